/* LoRA in a bank: each row is multiplied by its own image's pair. As in training, the scaled product of x and A stays
 * in fp32, and y is rounded once, after the sum. DoRA scales that sum. */
#include "bank-internal.h"
#include "lora-internal.h"

/* ---- the image ---- */

/* Puts the ratios, and the base's bias, which is not scaled. For a cut sum only the first tensor rank's part has the
 * bias. */
static int put_ratios(struct image_maker *maker, const struct pair *pair, struct group_entry *up,
                      struct group_entry *scale) {
    const struct param_store *base = maker->bank->base;
    bool is_first = !pair_is_row(pair) || maker->bank->rank->place.tensor == 0;
    int bias = model_find_linear(base->map.table, pair->layer, pair->projection.place, true);
    *scale = (struct group_entry){
        .n = up->n, .first_column = up->first_column, .type = DTYPE_F32, .bias_type = maker->bank->model.base.dtype};
    int status = image_put_late(maker, pair->dora.ratio, up->n, DTYPE_F32, &scale->data);
    if (status || bias == PARAM_NONE || !is_first)
        return status;
    if (maker_plans(maker))
        return image_put(maker, matrix_plain(scale->bias_type, NULL, 1, up->n), false, &scale->bias);
    TRY(param_unshard(base, (int)pair->layer, PARAM_READ));
    struct matrix_view view = param_borrow(base, bias);
    const char *from = (const char *)view.data + (size_t)up->first_column * dtype_bytes(view.type);
    status = image_put(maker, matrix_plain(view.type, from, 1, up->n), false, &scale->bias);
    param_return(base, bias);
    return param_reshard_after(base, (int)pair->layer, status);
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
static int multiply(const struct bank_call *call, int projection, int64_t first, int64_t rows) {
    const struct hook_call *hook = call->hook;
    const struct bank_list *list = call->list;
    struct grouped_gemm down = {.count = list->count,
                                .segments = list->segments,
                                .entry = bank_projection_entry(call->bank, call->site->layer, projection, ENTRY_DOWN),
                                .first_row = first,
                                .rows = rows,
                                .a = hook->x,
                                .lda = hook->in,
                                .a_type = hook->dtype,
                                .c = call->bank->scratch,
                                .c_row = first,
                                .ldc = list->columns,
                                .c_type = DTYPE_F32};
    struct grouped_gemm up = {.count = list->count,
                              .segments = list->segments,
                              .entry = bank_projection_entry(call->bank, call->site->layer, projection, ENTRY_UP),
                              .first_row = first,
                              .rows = rows,
                              .a = call->bank->scratch,
                              .a_row = first,
                              .lda = list->columns,
                              .a_type = DTYPE_F32,
                              .c = hook->y,
                              .ldc = hook->y_stride,
                              .c_type = hook->y_dtype,
                              .accumulate = true};
    int status = rank_run(hook->rank, PHASE_GEMM, grouped_gemm, &down);
    return status ? status : rank_run(hook->rank, PHASE_GEMM, grouped_gemm, &up);
}

int lora_batched(const struct bank_call *call) {
    const struct peft_bank *bank = call->bank;
    const struct hook_call *hook = call->hook;
    int64_t most = bank_piece(bank, (size_t)call->list->columns * sizeof(float));
    int status = STATUS_OK;
    for (int p = 0; p < bank->family->projection_count && !status; p++) {
        if (bank->projections[p].place != call->site->place)
            continue;
        for (int64_t first = 0; first < hook->rows && !status; first += most)
            status = multiply(call, p, first, hook->rows - first < most ? hook->rows - first : most);
        if (!status && call->list->has_ratios)
            status = bank_scale_rows(call, p, ENTRY_OUTPUT);
    }
    return status;
}

uint16_t lora_sites(void) {
    return peft_site_bit(ATTACH_QKV, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_PROJECTION, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_FC1, HOOK_BEFORE_ACTIVATION) | peft_site_bit(ATTACH_FC2, HOOK_BEFORE_ACTIVATION);
}
