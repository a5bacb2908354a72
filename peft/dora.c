/* DoRA's magnitudes. Norms are measured once for all micro batches of a global batch. Over tensor ranks, each rank has
 * the norms of its rows of a column projection. For a row projection, norms come from squares that are summed over the
 * ranks. */
#include "lora-internal.h"

static size_t device_bytes(const struct pair *pair, int64_t out) {
    return (size_t)out * (3 * sizeof(float) + dtype_bytes(pair->adapter->peft->dtype));
}

int dora_add_row(struct pair *pair) {
    const struct model_projection *p = &pair->projection;
    struct param row = {.dims = 1,
                        .shape = {p->out, 1},
                        .shard = pair_is_row(pair) ? PARAM_REPLICATED : PARAM_SHARD_AXIS0,
                        .sums_over_tensor = pair_is_row(pair),
                        .init = PARAM_INIT_ONE,
                        .layer = (int)pair->layer};
    pair_name(pair, "lora_magnitude_vector", row.name);
    row.slice_count = model_projection_slices(&pair->adapter->peft->base, p, row.slices);
    for (int i = 0; i < row.slice_count; i++)
        peft_tensor_name(pair->adapter->peft, pair->layer, p->module, "lora_magnitude_vector", row.slices[i].name);
    int64_t columns = peft_range(pair->adapter->peft, p).columns;
    pair->adapter->peft->method_bytes += pair->is_here ? device_bytes(pair, columns) : 0;
    pair->dora.magnitude = peft_add_row(pair->adapter, &row);
    return pair->dora.magnitude < 0 ? pair->dora.magnitude : STATUS_OK;
}

static int64_t outputs(const struct pair *pair) {
    return param_local_elements(&pair->adapter->peft->store, pair->dora.magnitude);
}

int dora_allocate(struct pair *pair) {
    void *memory;
    int64_t out = outputs(pair);
    int status = device_alloc(pair->adapter->peft->rank->device, device_bytes(pair, out), &memory);
    if (status)
        return status_wrap(status, "magnitudes");
    pair->dora.squares = memory;
    pair->dora.ratio = pair->dora.squares + out;
    pair->dora.inverse = pair->dora.ratio + out;
    pair->dora.bias = pair->dora.inverse + out;
    return STATUS_OK;
}

void dora_free(struct pair *pair) {
    device_free(pair->adapter->peft->rank->device, pair->dora.squares);
}

/* ---- measuring ---- */

static int find_linear(const struct pair *pair, const struct param_store *base, bool is_bias) {
    return model_find_linear(base->map.table, pair->layer, pair->projection.place, is_bias);
}

bool dora_has_bias(const struct pair *pair, const struct param_store *base) {
    bool is_first = !pair_is_row(pair) || pair->adapter->peft->rank->place.tensor == 0;
    return is_first && base && find_linear(pair, base, true) != PARAM_NONE;
}

static int copy_bias(struct pair *pair) {
    const struct peft *peft = pair->adapter->peft;
    int id = find_linear(pair, peft->weights, true);
    size_t width = dtype_bytes(peft->dtype);
    const char *bias = param_borrow(peft->weights, id).data;
    int status =
        stream_copy(peft->rank->exec.stream, pair->dora.bias,
                    bias + (size_t)peft_range(peft, &pair->projection).first * width, (size_t)outputs(pair) * width);
    param_return(peft->weights, id);
    return status;
}

/* Computes dora.squares for this rank's part of the base's weight, with or without the pair's product. */
static int measure_part(struct pair *pair, int id, bool with_pair) {
    struct peft *peft = pair->adapter->peft;
    struct matrix_view weight = param_borrow_linear(peft->weights, id);
    struct matrix_view a = param_borrow(&peft->store, pair->a), b = param_borrow(&peft->store, pair->b);
    struct row_squares call = {.weight = weight,
                               .first_row = peft_range(peft, &pair->projection).first,
                               .rows = outputs(pair),
                               .rank = pair->r,
                               .up = with_pair ? b.data : NULL,
                               .down = a.data,
                               .scale = pair->scale,
                               .squares = pair->dora.squares};
    int status = rank_run(peft->rank, PHASE_NORM, row_squares, &call);
    param_return(peft->weights, id);
    param_return(&peft->store, pair->a);
    param_return(&peft->store, pair->b);
    return status;
}

static int measure_own(struct pair *pair, bool with_pair) {
    const struct param_store *base = pair->adapter->peft->weights;
    if (!base)
        return status_fail(STATUS_INVALID, "DoRA without the weights of its base");
    int id = find_linear(pair, base, false), unit = base->map.table->rows[id].layer; /* of a tied head, the embedding */
    TRY(param_unshard(base, unit, PARAM_READ));
    int status = measure_part(pair, id, with_pair);
    THEN_IF(status, dora_has_bias(pair, base), copy_bias(pair));
    return param_reshard_after(base, unit, status);
}

static int sum_squares(struct pair *pair) {
    struct rank *rank = pair->adapter->peft->rank;
    return pair_is_row(pair) ? rank_sum(rank, RANK_TENSOR, pair->dora.squares, outputs(pair), DTYPE_F32) : STATUS_OK;
}

int dora_measure(struct pair *pair) {
    return measure_own(pair, true);
}

int dora_initialise(struct pair *pair) {
    struct peft *peft = pair->adapter->peft;
    struct magnitude_ratio call = {.count = outputs(pair),
                                   .type = peft->dtype,
                                   .squares = pair->dora.squares,
                                   .norm = param_borrow_to_write(&peft->store, pair->dora.magnitude)};
    int status = measure_own(pair, false);
    THEN(status, sum_squares(pair));
    THEN(status, rank_run(peft->rank, PHASE_NORM, magnitude_ratio, &call));
    param_return(&peft->store, pair->dora.magnitude);
    return status;
}

int dora_begin(struct pair *pair) {
    int status = dora_measure(pair);
    return status ? status : dora_finish(pair);
}

int dora_finish(struct pair *pair) {
    struct peft *peft = pair->adapter->peft;
    struct matrix_view magnitude = param_borrow(&peft->store, pair->dora.magnitude);
    struct magnitude_ratio call = {.count = outputs(pair),
                                   .type = peft->dtype,
                                   .squares = pair->dora.squares,
                                   .magnitude = magnitude.data,
                                   .ratio = pair->dora.ratio,
                                   .inverse = pair->dora.inverse};
    int status = sum_squares(pair);
    THEN(status, rank_run(peft->rank, PHASE_NORM, magnitude_ratio, &call));
    param_return(&peft->store, pair->dora.magnitude);
    return status;
}

/* ---- the hook's part ---- */

int dora_backward(const struct pair *pair, const struct hook_call *call, const void *kept) {
    const struct peft *peft = pair->adapter->peft;
    struct column_scale scale_call = {.rows = call->rows,
                                      .cols = call->out,
                                      .type = call->dtype,
                                      .scale_type = DTYPE_F32,
                                      .x = kept,
                                      .scale = pair->dora.ratio,
                                      .fixed = dora_has_bias(pair, peft->weights) ? pair->dora.bias : NULL,
                                      .dy = call->dy,
                                      .dx = call->dy,
                                      .factor = pair->dora.inverse,
                                      .dscale = param_gradient(&peft->store, pair->dora.magnitude),
                                      .dy_stride = call->y_stride,
                                      .dx_stride = call->y_stride};
    return rank_run(call->rank, PHASE_NORM, column_scale_backward, &scale_call);
}

/* ---- with dropout ---- */

int dora_base_product(const struct pair *pair, const struct hook_call *call, bool is_forward, const void *x, void *z) {
    int64_t from = is_forward ? call->in : call->out, to = is_forward ? call->out : call->in;
    struct gemm gemm = {.a = matrix_plain(call->dtype, x, call->rows, from),
                        .b_transposed = is_forward,
                        .c = matrix_plain(is_forward ? call->y_dtype : call->dtype, z, call->rows, to),
                        .accumulate = !is_forward};
    return peft_multiply_base(pair->adapter->peft, pair->layer, call, &gemm);
}

int dora_add(const struct pair *pair, const struct hook_call *call, const void *z) {
    struct column_scale scale_call = {.rows = call->rows,
                                      .cols = call->out,
                                      .type = call->y_dtype,
                                      .scale_type = DTYPE_F32,
                                      .x = z,
                                      .scale = pair->dora.ratio,
                                      .y = call->y,
                                      .y_stride = call->y_stride};
    return rank_run(call->rank, PHASE_NORM, column_scale_forward, &scale_call);
}

int dora_dropped_backward(const struct pair *pair, const struct hook_call *call, void *z) {
    struct column_scale scale_call = {.rows = call->rows,
                                      .cols = call->out,
                                      .type = call->dtype,
                                      .scale_type = DTYPE_F32,
                                      .x = z,
                                      .scale = pair->dora.ratio,
                                      .dy = call->dy,
                                      .dx = z,
                                      .factor = pair->dora.inverse,
                                      .dscale = param_gradient(&pair->adapter->peft->store, pair->dora.magnitude),
                                      .dy_stride = call->y_stride};
    return rank_run(call->rank, PHASE_NORM, column_scale_backward, &scale_call);
}
