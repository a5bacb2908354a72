/* The one linear: y[N,out] = x[N,in] W[out,in]' + b, its gradients, its hooks. */
#include "parallel/parallel.h"

bool linear_can_fuse(const struct hook_list *hooks) {
    return !hook_list_has(hooks, HOOK_BEFORE_ACTIVATION);
}

/* The hook call of this linear with everything but the saved block filled in. */
static struct hook_call hook_call_of(const struct linear *linear, const struct linear_call *call) {
    struct hook_call hook = call->hook;
    hook.rank = call->rank;
    hook.dtype = call->dtype;
    hook.rows = call->rows;
    hook.in = linear->in;
    hook.out = linear->out;
    hook.x = call->x;
    hook.y = call->y;
    hook.dy = call->dy;
    hook.dx = call->dx;
    return hook;
}

int linear_forward(const struct linear *linear, const struct linear_call *call) {
    struct rank *rank = call->rank;
    struct weight_view weight = param_borrow_linear(call->store, linear->weight), bias = {0};
    bool is_partial = linear->split == LINEAR_ROW && rank->grid.tensor > 1;
    if (linear->bias != PARAM_NONE)
        bias = param_borrow(call->store, linear->bias);
    struct gemm gemm = {
        .m = call->rows,
        .n = linear->out,
        .k = linear->in,
        .a = call->x,
        .lda = linear->in,
        .c = call->y,
        .ldc = call->y_stride ? call->y_stride : linear->out,
        .type = call->dtype,
        .c_type = call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype,
        .bias = is_partial && rank->place.tensor > 0 ? NULL : bias.data, /* once in the sum */
        .epilogue = call->epilogue,
        .aux = call->aux,
    };
    if (weight.layout == WEIGHT_PACKED) {
        gemm.packed = &weight;
    } else {
        gemm.b = weight.data;
        gemm.ldb = linear->in;
        gemm.b_transposed = true;
    }
    int status = rank_run_scratch(rank, PHASE_GEMM, gemm, &gemm);
    param_return(call->store, linear->weight, weight);
    if (linear->bias != PARAM_NONE)
        param_return(call->store, linear->bias, bias);
    if (!status && is_partial)
        status = rank_sum(rank, rank->tensor, call->y, call->rows * linear->out, gemm.c_type);
    if (!status && call->hooks->count) {
        struct hook_call hook = hook_call_of(linear, call);
        status = hook_list_forward(call->hooks, HOOK_BEFORE_ACTIVATION, &hook, call->is_batched);
    }
    return status;
}

/* dW[out,in] (+)= dy' x, db[out] (+)= column sums of dy. */
static int weight_gradients(const struct linear *linear, const struct linear_call *call) {
    struct rank *rank = call->rank;
    int64_t dy_stride = call->y_stride ? call->y_stride : linear->out;
    float *dbias = linear->bias != PARAM_NONE ? param_gradient(call->store, linear->bias) : NULL;
    bool bias_trains = linear->bias != PARAM_NONE && param_trains(call->store, linear->bias);
    if (param_trains(call->store, linear->weight)) {
        struct gemm gemm = {
            .m = linear->out,
            .n = linear->in,
            .k = call->rows,
            .a = call->dy,
            .lda = dy_stride,
            .a_transposed = true,
            .b = call->x,
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
    return rank_run(rank, PHASE_GEMM, column_sum, call->rows, linear->out, call->dtype, call->dy, dy_stride, dbias);
}

int linear_backward(const struct linear *linear, const struct linear_call *call) {
    struct rank *rank = call->rank;
    struct hook_call hook = hook_call_of(linear, call);
    int status = hook_list_backward_output(call->hooks, HOOK_BEFORE_ACTIVATION, &hook);
    if (!status && call->dx) {
        struct weight_view weight = param_borrow(call->store, linear->weight);
        struct gemm gemm = {
            .m = call->rows,
            .n = linear->in,
            .k = linear->out,
            .a = call->dy,
            .lda = call->y_stride ? call->y_stride : linear->out,
            .b = weight.data,
            .ldb = linear->in,
            .c = call->dx,
            .ldc = linear->in,
            .type = call->dtype,
            .c_type = call->dtype,
            .epilogue = call->epilogue,
            .aux = call->aux,
        };
        status = rank_run_scratch(rank, PHASE_GEMM, gemm, &gemm);
        param_return(call->store, linear->weight, weight);
    }
    if (!status)
        status = hook_list_backward_input(call->hooks, HOOK_BEFORE_ACTIVATION, &hook);
    struct comm_request sum = {0}; /* of the partial dx, while the weight gradients are computed */
    if (!status && call->dx && linear->split == LINEAR_COLUMN)
        status = rank_sum_start(rank, rank->tensor, call->dx, call->rows * linear->in, call->dtype, &sum);
    if (!status)
        status = weight_gradients(linear, call);
    int summed = rank_sum_wait(rank, &sum);
    return status ? status : summed;
}
