/* LoRA's forward: each row is multiplied by its own image's pair. The scaled product of x and A stays in fp32, and y is
 * rounded once, after the sum. DoRA scales that sum. */
#include "bank-internal.h"
#include "lora-internal.h"

/* ---- the image ---- */

/* Puts the ratios, and the base's bias, which is not scaled. */
static int put_ratios(struct image_maker *maker, const struct pair *pair, const struct group_entry *up,
                      struct group_entry *scale) {
    enum dtype dtype = maker->adapter->peft->dtype;
    *scale = (struct group_entry){.n = up->n, .first_column = up->first_column, .type = DTYPE_F32, .bias_type = dtype};
    TRY(image_put_late(maker, pair->dora.ratio, up->n, DTYPE_F32, &scale->data));
    return dora_has_bias(pair, maker->bank->base) ? image_put_late(maker, pair->dora.bias, up->n, dtype, &scale->bias)
                                                  : STATUS_OK;
}

static int put_pair(struct image_maker *maker, const struct pair *pair) {
    const struct peft_bank *bank = maker->bank;
    const struct param_store *store = &maker->adapter->peft->store;
    int p = bank_projection(bank, &pair->projection);
    int64_t first = bank_projection_entry(bank, pair->layer - bank->first_layer, p, ENTRY_DOWN);
    struct group_entry *down = image_entry(maker, first), *up = image_entry(maker, first + ENTRY_UP - ENTRY_DOWN);
    *down = (struct group_entry){.n = pair->r,
                                 .k = store->map.places[pair->a].shape[1],
                                 .type = maker->adapter->peft->dtype,
                                 .scale = pair->scale};
    *up = (struct group_entry){.n = store->map.places[pair->b].shape[0],
                               .k = pair->r,
                               .first_column = bank_first_column(bank, &pair->projection),
                               .is_by_input = true,
                               .type = maker->adapter->peft->dtype,
                               .scale = 1};
    maker->image->columns = pair->r > maker->image->columns ? pair->r : maker->image->columns;
    int status = image_put_param(maker, pair->a, false, &down->data);
    THEN(status, image_put_param(maker, pair->b, true, &up->data));
    if (!status && maker->adapter->config.use_dora)
        status = put_ratios(maker, pair, up, image_entry(maker, first + ENTRY_OUTPUT - ENTRY_DOWN));
    return status;
}

int lora_make_image(struct image_maker *maker) {
    const struct lora *lora = maker->adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < lora->count && !status; i++)
        if (lora->pairs[i].is_here)
            status = put_pair(maker, &lora->pairs[i]);
    return status;
}

/* ---- the rows ---- */

/* Handles rows [first, first + rows) of the batch. */
static int multiply(const struct bank_call *call, int64_t first, int64_t rows) {
    const struct hook_call *hook = call->hook;
    const struct bank_list *list = call->list;
    bool is_in_kept = call->kept.inner && hook->dtype == DTYPE_F32;
    float *inner =
        is_in_kept ? (float *)call->kept.inner + first * call->columns : (float *)(void *)call->bank->scratch;
    struct grouped_gemm down = {.count = list->count,
                                .segments = list->segments,
                                .entry =
                                    bank_projection_entry(call->bank, call->site->layer, call->projection, ENTRY_DOWN),
                                .first_row = hook->first_row + first,
                                .rows = rows,
                                .a = hook->x,
                                .a_row = hook->first_row,
                                .lda = hook->in,
                                .a_type = hook->dtype,
                                .c = inner,
                                .c_row = hook->first_row + first,
                                .ldc = call->columns,
                                .c_type = DTYPE_F32};
    struct grouped_gemm up = {.count = list->count,
                              .segments = list->segments,
                              .entry = down.entry + ENTRY_UP - ENTRY_DOWN,
                              .first_row = hook->first_row + first,
                              .rows = rows,
                              .a = inner,
                              .a_row = hook->first_row + first,
                              .lda = call->columns,
                              .a_type = DTYPE_F32,
                              .c = hook->y,
                              .c_row = hook->first_row,
                              .ldc = hook->y_stride,
                              .c_type = hook->y_dtype,
                              .accumulate = true};
    int64_t count = rows * call->columns;
    TRY(rank_run(hook->rank, PHASE_GEMM, grouped_gemm, &down));
    if (call->kept.inner && !is_in_kept) {
        char *kept = (char *)call->kept.inner + (size_t)(first * call->columns) * dtype_bytes(hook->dtype);
        TRY(rank_run(hook->rank, PHASE_NORM, cast,
                     &(const struct cast_call){count, DTYPE_F32, hook->dtype, inner, kept}));
    }
    return rank_run(hook->rank, PHASE_GEMM, grouped_gemm, &up);
}

int lora_forward(const struct bank_call *call) {
    const struct hook_call *hook = call->hook;
    int64_t most = bank_piece(call->bank, (size_t)call->columns * sizeof(float));
    for (int64_t first = 0; first < hook->rows; first += most)
        TRY(multiply(call, first, hook->rows - first < most ? hook->rows - first : most));
    return call->list->has_ratios && !call->is_unscaled ? bank_scale_rows(call, ENTRY_OUTPUT) : STATUS_OK;
}

uint16_t lora_sites(void) {
    return peft_site_bit(ATTACH_QKV, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_PROJECTION, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_FC1, HOOK_BEFORE_ACTIVATION) | peft_site_bit(ATTACH_FC2, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_HEAD, HOOK_BEFORE_ACTIVATION);
}
