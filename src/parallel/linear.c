/* The one linear: y[N,out] = x[N,in] W[out,in]' + b, its gradients, its hooks, and what its cut over the tensor ranks
 * asks for. A column linear (outputs cut) needs x whole and makes a partial dx; a row linear (inputs cut) makes a
 * partial y and needs dy whole. Partial results are summed over the ranks; under sequence parallelism each rank gets
 * its rows of the sum alone, and what has to be whole is gathered. */
#include "parallel/linear.h"

bool linear_can_fuse(const struct hook_list *hooks) {
    return !hook_list_is_active(hooks, HOOK_BEFORE_ACTIVATION);
}

/* The hook call of this linear with everything but the saved block filled in. Hooks see what this rank's product sees:
 * all rows, its share of the columns, and its part of a cut sum; so they are linear in y. */
static struct hook_call hook_call_of(const struct linear *linear, const struct linear_call *call) {
    struct hook_call hook = call->hook;
    hook.rank = call->rank;
    hook.dtype = call->dtype;
    hook.rows = call->rows;
    hook.in = linear->in;
    hook.out = linear->out;
    hook.x = call->x;
    hook.y = call->y;
    hook.y_stride = call->y_stride ? call->y_stride : linear->out;
    hook.y_dtype = call->dtype;
    hook.dy = call->dy;
    hook.dx = call->dx;
    return hook;
}

static bool is_cut(const struct linear *linear, const struct linear_call *call, enum linear_split split) {
    return linear->split == split && call->rank->grid.tensor > 1;
}

static bool is_cut_by_rows(const struct linear *linear, const struct linear_call *call, enum linear_split split) {
    return is_cut(linear, call, split) && call->rank->is_sequence_parallel;
}

/* Gathers all ranks' rows of the stream: [N, columns]. */
static int gather_rows(const struct linear_call *call, const void *own, int64_t columns, void *whole) {
    return rank_gather(call->rank, call->rank->tensor, own, whole, rank_stream_rows(call->rank, call->rows) * columns,
                       call->dtype);
}

/* Starts the sum of a partial [N, columns] over the ranks: in place, or to this rank's rows of it. */
static int sum_start(const struct linear_call *call, void *partial, void *own, int64_t columns, enum dtype dtype,
                     struct comm_request *request) {
    if (own == partial)
        return rank_sum_start(call->rank, call->rank->tensor, partial, call->rows * columns, dtype, request);
    return rank_scatter_start(call->rank, call->rank->tensor, partial, own,
                              rank_stream_rows(call->rank, call->rows) * columns, dtype, request);
}

/* The same, and waits for it. A call that is waited for at once is not looked after by anybody else meanwhile. */
static int sum_and_wait(const struct linear_call *call, void *partial, void *own, int64_t columns, enum dtype dtype) {
    if (own == partial)
        return rank_sum(call->rank, call->rank->tensor, partial, call->rows * columns, dtype);
    struct comm_request request;
    int status = sum_start(call, partial, own, columns, dtype, &request);
    return status ? status : rank_wait(call->rank, &request);
}

/* The base's product, with what the first hooks add to it; *hooks: how many these are. `is_wide`: y is fp32. */
static int multiply(const struct linear *linear, const struct linear_call *call, const void *x, void *y, bool is_wide,
                    int *hooks) {
    struct rank *rank = call->rank;
    struct hook_call hook = hook_call_of(linear, call);
    struct weight_view weight = param_borrow_linear(call->store, linear->weight), bias = {0};
    bool is_partial = is_cut(linear, call, LINEAR_ROW);
    if (linear->bias != PARAM_NONE)
        bias = param_borrow(call->store, linear->bias);
    struct gemm gemm = {
        .m = call->rows,
        .n = linear->out,
        .k = linear->in,
        .a = x,
        .lda = linear->in,
        .c = y,
        .ldc = call->y_stride ? call->y_stride : linear->out,
        .type = call->dtype,
        .c_type = is_wide || call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype,
        .bias = is_partial && rank->place.tensor > 0 ? NULL : bias.data, /* once in the sum */
        .epilogue = call->epilogue,
        .aux = call->aux,
    };
    if (weight.layout == WEIGHT_PACKED) {
        gemm.packed = weight;
    } else {
        gemm.b = weight.data;
        gemm.ldb = linear->in;
        gemm.b_transposed = true;
    }
    hook.x = x;
    hook.y = y;
    int status = is_wide ? STATUS_OK : hook_list_deltas(call->hooks, &hook, &gemm, hooks);
    if (!status)
        status = rank_run_scratch(rank, PHASE_GEMM, gemm, &gemm);
    param_return(call->store, linear->weight);
    if (linear->bias != PARAM_NONE)
        param_return(call->store, linear->bias);
    return status;
}

int linear_forward(const struct linear *linear, const struct linear_call *call) {
    const void *x = call->x;
    void *y = call->y;
    int status = STATUS_OK, in_product = 0;
    if (is_cut_by_rows(linear, call, LINEAR_COLUMN)) {
        x = call->whole;
        status = gather_rows(call, call->x, linear->in, call->whole);
    }
    if (is_cut_by_rows(linear, call, LINEAR_ROW))
        y = call->whole;
    float *const *wide = call->dtype == DTYPE_BF16 ? hook_list_wide(call->hooks) : NULL;
    void *first = wide ? *wide : y;
    if (!status)
        status = multiply(linear, call, x, first, wide != NULL, &in_product);
    if (!status && wide && call->rank->is_planning) /* whether a step touches the place is not known then */
        status = multiply(linear, call, x, y, false, &in_product);
    if (!status && in_product < call->hooks->count) {
        struct hook_call hook = hook_call_of(linear, call);
        hook.x = x;
        hook.y = first;
        hook.y_dtype = wide ? DTYPE_F32 : call->dtype;
        status = hook_list_forward_from(call->hooks, in_product, HOOK_BEFORE_ACTIVATION, &hook);
    }
    if (!status && wide)
        status = rank_run(call->rank, PHASE_NORM, cast, call->rows * linear->out, DTYPE_F32, first, call->dtype, y);
    if (!status && is_cut(linear, call, LINEAR_ROW))
        status = sum_and_wait(call, y, call->y, linear->out, call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype);
    return status;
}

/* dW[out,in] (+)= dy' x, db[out] (+)= column sums of dy. */
static int weight_gradients(const struct linear *linear, const struct linear_call *call, const void *x,
                            const void *dy) {
    struct rank *rank = call->rank;
    int64_t dy_stride = call->y_stride ? call->y_stride : linear->out;
    float *dbias = linear->bias != PARAM_NONE ? param_gradient(call->store, linear->bias) : NULL;
    bool bias_trains = linear->bias != PARAM_NONE && param_trains(call->store, linear->bias);
    if (param_trains(call->store, linear->weight)) {
        struct gemm gemm = {
            .m = linear->out,
            .n = linear->in,
            .k = call->rows,
            .a = dy,
            .lda = dy_stride,
            .a_transposed = true,
            .b = x,
            .ldb = linear->in,
            .c = param_gradient(call->store, linear->weight),
            .ldc = linear->in,
            .type = call->dtype,
            .c_type = DTYPE_F32,
            .accumulate = !call->overwrite_gradients,
            .bias_gradient = dbias,
        };
        return rank_run_scratch(rank, PHASE_GEMM, gemm, &gemm);
    }
    if (!bias_trains)
        return STATUS_OK;
    if (rank->is_planning) {
        rank_need(rank, rank->ops->column_sum_workspace(rank->device, call->rows, linear->out));
        return STATUS_OK;
    }
    return rank_run(rank, PHASE_GEMM, column_sum, call->rows, linear->out, call->dtype, dy, dy_stride, dbias);
}

static int input_gradient(const struct linear *linear, const struct linear_call *call, const void *dy, void *dx) {
    struct weight_view weight = param_borrow(call->store, linear->weight);
    struct gemm gemm = {
        .m = call->rows,
        .n = linear->in,
        .k = linear->out,
        .a = dy,
        .lda = call->y_stride ? call->y_stride : linear->out,
        .b = weight.data,
        .ldb = linear->in,
        .c = dx,
        .ldc = linear->in,
        .type = call->dtype,
        .c_type = call->dtype,
        .epilogue = call->epilogue,
        .aux = call->aux,
    };
    int status = rank_run_scratch(call->rank, PHASE_GEMM, gemm, &gemm);
    param_return(call->store, linear->weight);
    return status;
}

int linear_backward(const struct linear *linear, const struct linear_call *call) {
    struct hook_call hook = hook_call_of(linear, call);
    struct comm_request sum = {0}; /* of the partial dx, while the weight gradients are computed */
    bool has_own_rows = is_cut_by_rows(linear, call, LINEAR_COLUMN);
    bool wants_x = param_trains(call->store, linear->weight) || call->hooks->count;
    int status = STATUS_OK;
    if (is_cut_by_rows(linear, call, LINEAR_ROW)) {
        hook.dy = call->whole;
        status = gather_rows(call, call->dy, linear->out, call->whole);
    } else if (has_own_rows && wants_x) {
        hook.x = call->whole;
        status = gather_rows(call, call->x, linear->in, call->whole);
    }
    hook.dx = has_own_rows ? call->whole_gradient : call->dx;
    if (!status)
        status = hook_list_backward_output(call->hooks, HOOK_BEFORE_ACTIVATION, &hook);
    if (!status && (call->dx || call->rank->is_planning)) /* whether anybody wants it is not known then */
        status = input_gradient(linear, call, hook.dy, hook.dx);
    if (!status)
        status = hook_list_backward_input(call->hooks, HOOK_BEFORE_ACTIVATION, &hook);
    if (!status && call->dx && is_cut(linear, call, LINEAR_COLUMN))
        status = sum_start(call, hook.dx, call->dx, linear->in, call->dtype, &sum);
    if (!status)
        status = weight_gradients(linear, call, hook.x, hook.dy);
    int summed = rank_wait(call->rank, &sum);
    return status ? status : summed;
}
