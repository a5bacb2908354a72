/* IA3 in a bank: the vectors of each row's image scale its activations. Where an input has other readers, the rows of
 * images that scale it are gathered, and the product of the difference is added to their outputs. */
#include "bank-internal.h"
#include "ia3-internal.h"

int ia3_make_image(struct image_maker *maker) {
    const struct ia3 *ia3 = maker->adapter->state;
    const struct peft_bank *bank = maker->bank;
    int status = STATUS_OK;
    for (int i = 0; i < ia3->count && !status; i++) {
        const struct scale *scale = &ia3->scales[i];
        const struct model_projection *p = &scale->projection;
        if (!peft_has_layer(maker->adapter->peft, scale->layer))
            continue;
        bool is_input = peft_choice(maker->adapter, scale->layer, p)->is_feedforward;
        int64_t number = bank_projection_entry(bank, scale->layer - bank->first_layer, bank_projection(bank, p),
                                               is_input ? ENTRY_INPUT : ENTRY_OUTPUT);
        struct group_entry *entry = image_entry(maker, number);
        *entry = (struct group_entry){.n = param_local_elements(&maker->adapter->peft->store, scale->id),
                                      .first_column = is_input ? 0 : bank_first_column(bank, p),
                                      .type = bank->model.base.dtype};
        status = image_put_param(maker, scale->id, false, &entry->data);
        if (is_input && !ia3_has_input_place(p))
            maker->image->scaled_input = p->module;
    }
    return status;
}

/* Storage for rows that are scaled at a projection's input: their inputs, the differences, and the products. */
struct inputs {
    char *x, *difference;
    float *product; /* of all outputs of the place, with y's stride */
};

static size_t input_row_bytes(const struct hook_call *hook) {
    return 2 * (size_t)hook->in * dtype_bytes(hook->dtype) + (size_t)hook->y_stride * sizeof(float) +
           3 * ARENA_ALIGNMENT;
}

static struct gemm input_product(const struct hook_call *hook, struct matrix_view weight, int64_t rows, const void *x,
                                 void *product) {
    return (struct gemm){.a = matrix_plain(hook->dtype, x, rows, hook->in),
                         .b = weight,
                         .b_transposed = true,
                         .c = matrix_strided(DTYPE_F32, product, rows, weight.rows, hook->y_stride)};
}

int ia3_plan_forward(struct peft_bank *bank, const struct hook_call *hook) {
    bool is_projection = hook->place == ATTACH_QKV || hook->place == ATTACH_PROJECTION || hook->place == ATTACH_FC1;
    int64_t most = is_projection ? bank_piece(bank, input_row_bytes(hook)) : 0;
    int64_t rows = hook->rows < most ? hook->rows : most;
    if (!is_projection || !hook->base) /* an activation after the projection has a place of its inputs */
        return STATUS_OK;
    int id = model_find_linear(hook->base->map.table, hook->layer, hook->place, false);
    struct gemm gemm = input_product(hook, param_view(hook->base, id, PARAM_LINEAR), rows, NULL, NULL);
    return rank_multiply(hook->rank, PHASE_GEMM, &gemm);
}

/* Handles rows [first, first + rows) of the list: y += W ((l - 1) x). Rows whose image does not scale an input here add
 * zeros. */
static int add_inputs(const struct bank_call *call, int64_t first, int64_t rows) {
    const struct model_projection *projection = &call->bank->projections[call->projection];
    const struct hook_call *hook = call->hook;
    struct peft_bank *bank = call->bank;
    struct stream *stream = hook->rank->exec.stream;
    size_t bytes = (size_t)(rows * hook->in) * dtype_bytes(hook->dtype);
    struct arena arena = arena_over(bank->scratch, bank->scratch_bytes);
    struct inputs in = {.x = arena_take(&arena, bytes), .difference = arena_take(&arena, bytes)};
    in.product = arena_take(&arena, (size_t)(rows * hook->y_stride) * sizeof(float));
    struct group_scale scale = {.count = call->list->count,
                                .segments = call->list->listed,
                                .entry = bank_projection_entry(bank, call->site->layer, call->projection, ENTRY_INPUT),
                                .first_row = first,
                                .rows = rows,
                                .x = in.x,
                                .x_row = first,
                                .ldx = hook->in,
                                .x_type = hook->dtype,
                                .y = in.difference,
                                .y_row = first,
                                .ldy = hook->in,
                                .y_type = hook->dtype,
                                .is_difference = true};
    if (!bank->base)
        return status_fail(STATUS_INVALID, "IA3 of an input without the weights of its base");
    int64_t layer = bank->first_layer + call->site->layer;
    int id = model_find_linear(bank->base->map.table, layer, projection->place, false);
    const int32_t *index = call->list->row_index + first;
    int status = stream_zero(stream, in.difference, bytes);
    THEN(status, rank_run(hook->rank, PHASE_NORM, gather_rows,
                          &(const struct gather_rows){rows, hook->in, hook->dtype, hook->x, index, in.x}));
    THEN(status, rank_run(hook->rank, PHASE_NORM, group_scale, &scale));
    struct gemm gemm = input_product(hook, param_borrow_linear(bank->base, id), rows, in.difference, in.product);
    THEN(status, rank_multiply(hook->rank, PHASE_GEMM, &gemm));
    param_return(bank->base, id);
    struct model_range range = model_range(&bank->model.base.config, hook->rank->grid.tensor, projection);
    struct scatter_add_rows sum = {.rows = rows,
                                   .cols = range.columns,
                                   .x_type = DTYPE_F32,
                                   .y_type = hook->y_dtype,
                                   .x = in.product + range.first,
                                   .index = index,
                                   .y = (char *)hook->y + (size_t)range.first * dtype_bytes(hook->y_dtype),
                                   .x_stride = hook->y_stride,
                                   .y_stride = hook->y_stride};
    return status ? status : rank_run(hook->rank, PHASE_NORM, scatter_add_rows, &sum);
}

static bool scales_input(const struct bank_call *call) {
    int64_t number = bank_projection_entry(call->bank, call->site->layer, call->projection, ENTRY_INPUT);
    if (call->bank->is_by_row)
        return call->list->has_inputs;
    for (int64_t i = 0; i < call->list->count; i++)
        if (call->list->rows[i].image->entries[number].n)
            return true;
    return false;
}

int ia3_forward(const struct bank_call *call) {
    bool has_input_place = ia3_has_input_place(&call->bank->projections[call->projection]);
    bool is_after = call->site->side == HOOK_AFTER_ACTIVATION;
    int64_t most = bank_piece(call->bank, input_row_bytes(call->hook)), rows = call->list->total;
    int status = bank_scale_rows(call, is_after ? ENTRY_INPUT : ENTRY_OUTPUT);
    for (int64_t first = 0; !has_input_place && scales_input(call) && first < rows && !status; first += most)
        status = add_inputs(call, first, rows - first < most ? rows - first : most);
    return status;
}

/* Outputs, and the activations that FC2 reads. */
uint16_t ia3_sites(void) {
    return peft_site_bit(ATTACH_QKV, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_PROJECTION, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_FC1, HOOK_BEFORE_ACTIVATION) | peft_site_bit(ATTACH_FC2, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_FC1, HOOK_AFTER_ACTIVATION);
}
