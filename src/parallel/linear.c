/* The one linear: y[N,out] = x[N,in] W[out,in]' + b, its gradients, its hooks, and its collectives.
 *
 * A column linear (outputs cut over the tensor ranks) needs all of x and makes a partial dx. A row linear (inputs cut)
 * makes a partial y and needs all of dy. Partial results are summed over the ranks. Under sequence parallelism, each
 * rank gets only its rows of the sum, and rows that a product needs are gathered. */
#include "parallel/linear.h"

#include "kernels/algorithms.h"

static int64_t y_stride(const struct linear *linear, const struct linear_call *call) {
    return call->y_stride ? call->y_stride : linear->out;
}

/* Returns the hook call of this linear, complete except for the saved block. Hooks see the same as this rank's product:
 * all rows, its share of the columns, and its part of a sum over ranks. So they must be linear in y. */
static struct hook_call hook_call_of(const struct linear *linear, const struct linear_call *call) {
    struct hook_call hook = call->hook;
    hook.rank = call->rank;
    hook.base = call->store;
    hook.dtype = call->dtype;
    hook.rows = call->rows;
    hook.in = linear->in;
    hook.out = linear->out;
    hook.x = call->x;
    hook.y = call->y;
    hook.y_stride = y_stride(linear, call);
    hook.y_dtype = call->dtype;
    hook.dy = call->dy;
    hook.dx = call->dx;
    hook.has_no_dx = call->has_no_dx;
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
    return rank_gather(call->rank, RANK_TENSOR, own, whole, rank_stream_rows(call->rank, call->rows) * columns,
                       call->dtype);
}

/* Starts the sum of a partial [N, columns] over the ranks: in place, or into this rank's rows of it. */
static int sum_start(const struct linear_call *call, void *partial, void *own, int64_t columns, enum dtype dtype,
                     struct comm_request *request) {
    if (!call->rank->is_sequence_parallel)
        return rank_sum_start(call->rank, RANK_TENSOR, partial, call->rows * columns, dtype, request);
    const struct comm_data data = {
        .send = partial, .receive = own, .count = rank_stream_rows(call->rank, call->rows) * columns, .dtype = dtype};
    return rank_scatter_start(call->rank, RANK_TENSOR, &data, request);
}

/* Returns the base's product without its bias. `into_fp32`: y is fp32. */
static struct gemm product_of(const struct linear *linear, const struct linear_call *call, struct matrix_view weight,
                              const void *x, void *y, bool into_fp32) {
    enum dtype y_dtype = into_fp32 || call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype;
    return (struct gemm){
        .a = matrix_plain(call->dtype, x, call->rows, linear->in),
        .b = weight,
        .b_transposed = true,
        .c = matrix_strided(y_dtype, y, call->rows, linear->out, y_stride(linear, call)),
        .residual = call->adds_residual ? call->residual : NULL,
        .epilogue = call->epilogue,
        .aux = call->aux,
    };
}

static struct matrix_view gradient_view(const struct linear *linear, const struct linear_call *call, const void *dy) {
    return matrix_strided(call->dtype, dy, call->rows, linear->out, y_stride(linear, call));
}

/* Returns the product dx = dy W. */
static struct gemm input_gradient_of(const struct linear *linear, const struct linear_call *call,
                                     struct matrix_view weight, struct matrix_view dy, void *dx) {
    return (struct gemm){
        .a = dy,
        .b = weight,
        .c = matrix_plain(call->dtype, dx, call->rows, linear->in),
        .epilogue = call->epilogue,
        .aux = call->aux,
    };
}

/* Returns true if the backend has the product, in FP8 if the call asks for it. */
static bool is_supported(const struct linear_call *call, enum fp8_operand a, struct gemm gemm) {
    if (call->fp8) {
        gemm.a = fp8_view(call->fp8, a, &gemm.a);
        gemm.b = fp8_view(call->fp8, FP8_WEIGHT, &gemm.b);
    }
    return call->rank->ops->gemm_supports(call->rank->device, &gemm);
}

bool linear_can_fuse(const struct linear *linear, const struct linear_call *call) {
    if (hook_list_is_active(call->hooks, HOOK_BEFORE_ACTIVATION))
        return false;
    struct matrix_view weight = param_view(call->store, linear->weight, PARAM_LINEAR);
    return is_supported(call, FP8_INPUT, product_of(linear, call, weight, call->x, call->y, false));
}

bool linear_can_add(const struct linear *linear, const struct linear_call *call) {
    if (call->fp8 || hook_list_is_active(call->hooks, HOOK_BEFORE_ACTIVATION) || is_cut(linear, call, LINEAR_ROW))
        return false;
    /* Beside rows with adapters the sum is rounded before the residual is added. */
    if (device_is_batch_invariant(call->rank->device))
        return false;
    struct matrix_view weight = param_view(call->store, linear->weight, PARAM_LINEAR);
    struct gemm gemm = product_of(linear, call, weight, call->x, call->y, false);
    gemm.residual = &gemm; /* any address will do */
    return is_supported(call, FP8_INPUT, gemm);
}

bool linear_can_fuse_backward(const struct linear *linear, const struct linear_call *call) {
    struct matrix_view weight = param_view(call->store, linear->weight, PARAM_LINEAR);
    struct matrix_view dy = gradient_view(linear, call, call->dy);
    struct gemm gemm = input_gradient_of(linear, call, weight, dy, call->dx);
    gemm.aux = gemm.aux ? gemm.aux : &gemm; /* while planning there are no addresses: any will do that is not NULL */
    return is_supported(call, FP8_GRADIENT, gemm);
}

static struct fp8_cast_of input_cast(const struct linear_call *call, enum fp8_copies copies) {
    return (struct fp8_cast_of){FP8_INPUT, copies, copies == FP8_BY_ROWS && call->measures_fp8};
}

struct fp8_output linear_input(const struct linear *linear, const struct linear_call *call, enum fp8_copies copies) {
    bool is_read = copies == FP8_BY_ROWS || param_trains(call->store, linear->weight);
    return call->x_is_cast && is_read ? fp8_output_of(call->fp8, input_cast(call, copies)) : (struct fp8_output){0};
}

/* Makes an operand x the view of its FP8 form. */
static int cast_input(const struct linear_call *call, enum fp8_copies copies, struct matrix_view *x) {
    if (call->fp8 && !call->x_is_cast)
        return fp8_cast(call->rank, call->fp8, input_cast(call, copies), x);
    if (call->fp8)
        *x = fp8_view(call->fp8, FP8_INPUT, x);
    return STATUS_OK;
}

/* Runs the base's product. `into_fp32`: y is fp32. */
static int multiply(const struct linear *linear, const struct linear_call *call, const void *x, void *y,
                    bool into_fp32) {
    struct rank *rank = call->rank;
    bool is_partial = is_cut(linear, call, LINEAR_ROW), has_bias = linear->bias != PARAM_NONE;
    struct gemm gemm = product_of(linear, call, param_borrow_linear(call->store, linear->weight), x, y, into_fp32);
    struct matrix_view bias = has_bias ? param_borrow(call->store, linear->bias) : (struct matrix_view){0};
    gemm.bias = is_partial && rank->place.tensor > 0 ? NULL : bias.data; /* the sum must have it once */
    int status = cast_input(call, FP8_BY_ROWS, &gemm.a);
    THEN_IF(status, call->fp8, fp8_cast_weight(rank, call->fp8, call->measures_fp8, &gemm.b));
    THEN(status, rank_multiply(rank, PHASE_GEMM, &gemm));
    if (!status && rank->is_planning && linear->bias != PARAM_NONE && !(is_partial && rank->place.tensor > 0))
        work_also_reads(&rank->work, linear->out, call->dtype); /* its pointer is NULL */
    if (!status && rank->is_planning && call->adds_residual)
        work_also_reads(&rank->work, call->rows * linear->out, call->dtype);
    param_return(call->store, linear->weight);
    if (has_bias)
        param_return(call->store, linear->bias);
    return status;
}

static const void *at_row(const void *matrix, int64_t row, int64_t stride, enum dtype dtype) {
    return matrix ? (const char *)matrix + (size_t)(row * stride) * dtype_bytes(dtype) : NULL;
}

/* Pauses before a product of `rows` rows, of which *count come next. It reads all weights once. */
static int pause_before(const struct linear *linear, const struct linear_call *call, int64_t rows, int64_t *count) {
    double weights = (double)linear->in * (double)linear->out;
    const struct slice_rows next = {SLICE_PRODUCT, rows, 2 * SLICE_BYTE * weights, 2 * weights};
    return rank_pause_rows(call->rank, &next, count);
}

bool linear_cuts_columns(const struct linear *linear, const struct linear_call *call) {
    struct matrix_view weight = param_view(call->store, linear->weight, PARAM_LINEAR);
    return call->rank->slice && !call->rank->is_planning && linear->split == LINEAR_WHOLE &&
           linear->bias == PARAM_NONE && call->rank->grid.tensor == 1 && !call->fp8 && weight.form == MATRIX_PACKED &&
           !weight.encoded && call->epilogue == EPILOGUE_NONE;
}

enum { PIECE_OUTPUTS = 4096 };

static int multiply_columns(const struct linear *linear, const struct linear_call *call, const void *x, void *y) {
    struct linear_call piece = *call;
    struct linear part = *linear;
    size_t width = dtype_bytes(call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype);
    int status = STATUS_OK;
    piece.y_stride = y_stride(linear, call);
    for (int64_t first = 0; first < linear->out && !status; first += part.out) {
        part.out = linear->out - first < PIECE_OUTPUTS ? linear->out - first : PIECE_OUTPUTS;
        TRY(rank_pause(call->rank, SLICE_HEAD, 2.0 * (double)(linear->in * part.out * (call->rows + SLICE_BYTE))));
        struct matrix_view rows = matrix_rows(param_borrow_linear(call->store, linear->weight), first, part.out);
        struct gemm gemm = product_of(&part, &piece, rows, x, (char *)y + (size_t)first * width, false);
        status = rank_multiply(call->rank, PHASE_GEMM, &gemm);
        param_return(call->store, linear->weight);
    }
    return status;
}

/* The base's product, a block of rows after the other where the rank's work is cut into slices. Casts to FP8 are of all
 * rows. */
static int multiply_rows(const struct linear *linear, const struct linear_call *call, const void *x, void *y,
                         bool into_fp32) {
    enum dtype y_dtype = into_fp32 || call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype;
    int64_t count = call->rows, stride = y_stride(linear, call);
    int status = STATUS_OK;
    if (linear_cuts_columns(linear, call) && !into_fp32)
        return multiply_columns(linear, call, x, y);
    for (int64_t first = 0; first < call->rows && !status; first += count) {
        if (linear->split != LINEAR_WHOLE && !call->fp8)
            TRY(pause_before(linear, call, call->rows - first, &count));
        struct linear_call block = *call;
        block.rows = count;
        block.residual = at_row(call->residual, first, stride, y_dtype);
        block.aux = (void *)at_row(call->aux, first, linear->out, call->dtype);
        status = multiply(linear, &block, at_row(x, first, linear->in, call->dtype),
                          (void *)at_row(y, first, stride, y_dtype), into_fp32);
    }
    return status;
}

int linear_forward(const struct linear *linear, const struct linear_call *call) {
    const void *x = call->x;
    void *y = call->y;
    int status = STATUS_OK;
    if (is_cut_by_rows(linear, call, LINEAR_COLUMN)) {
        x = call->whole;
        status = gather_rows(call, call->x, linear->in, call->whole);
    }
    if (is_cut_by_rows(linear, call, LINEAR_ROW))
        y = call->whole;
    float *const *fp32_y = call->dtype == DTYPE_BF16 ? hook_list_fp32_y(call->hooks) : NULL;
    void *first = fp32_y ? *fp32_y : y;
    THEN(status, multiply_rows(linear, call, x, first, fp32_y != NULL));
    if (!status && fp32_y && call->rank->is_planning) { /* a plan does not know whether a step has active hooks here */
        rank_unsure(call->rank, true, 1);
        status = multiply(linear, call, x, y, false);
        rank_unsure(call->rank, true, -1);
    }
    if (!status && call->hooks->count) {
        struct hook_call hook = hook_call_of(linear, call);
        hook.x = x;
        hook.y = first;
        hook.y_dtype = fp32_y ? DTYPE_F32 : call->dtype;
        status = hook_list_forward(call->hooks, HOOK_BEFORE_ACTIVATION, &hook);
    }
    if (!status && fp32_y)
        status = rank_run(call->rank, PHASE_NORM, cast,
                          &(const struct cast_call){call->rows * linear->out, DTYPE_F32, call->dtype, first, y});
    if (!status && is_cut(linear, call, LINEAR_ROW))
        status = rank_sum_stream(call->rank, y, call->y, call->rows, linear->out,
                                 call->y_dtype_is_fp32 ? DTYPE_F32 : call->dtype);
    return status;
}

/* Computes dW[out,in] (+)= dy' x, db[out] (+)= column sums of dy. `factor`: dy as products take it. */
static int weight_gradients(const struct linear *linear, const struct linear_call *call, const void *x, const void *dy,
                            struct matrix_view factor) {
    struct rank *rank = call->rank;
    float *dbias = linear->bias != PARAM_NONE ? param_gradient(call->store, linear->bias) : NULL;
    bool bias_trains = linear->bias != PARAM_NONE && param_trains(call->store, linear->bias);
    if (param_trains(call->store, linear->weight)) {
        struct gemm gemm = {
            .a = factor,
            .a_transposed = true,
            .b = matrix_plain(call->dtype, x, call->rows, linear->in),
            .c = matrix_plain(DTYPE_F32, param_gradient(call->store, linear->weight), linear->out, linear->in),
            .accumulate = !call->overwrite_gradients,
            .bias_gradient = call->fp8 ? NULL : dbias,
        };
        int status = cast_input(call, FP8_BY_COLUMNS, &gemm.b);
        THEN(status, rank_multiply(rank, PHASE_GEMM, &gemm));
        if (status || !call->fp8)
            return status;
    }
    if (!bias_trains)
        return STATUS_OK;
    struct column_sum sum = {.rows = call->rows,
                             .cols = linear->out,
                             .type = call->dtype,
                             .x = dy,
                             .stride = y_stride(linear, call),
                             .out = dbias};
    return rank_run(rank, PHASE_GEMM, column_sum, &sum);
}

static int input_gradient(const struct linear *linear, const struct linear_call *call, struct matrix_view dy,
                          void *dx) {
    struct gemm gemm = input_gradient_of(linear, call, param_borrow_linear(call->store, linear->weight), dy, dx);
    if (call->rank->is_planning && call->epilogue != EPILOGUE_NONE)
        gemm.aux = &gemm; /* any address: without one there is no such product, and no workspace */
    int status = call->fp8 ? fp8_cast_weight(call->rank, call->fp8, false, &gemm.b) : STATUS_OK;
    THEN(status, rank_multiply(call->rank, PHASE_GEMM, &gemm));
    param_return(call->store, linear->weight);
    return status;
}

/* The same in blocks of rows; see multiply_rows. */
static int input_gradient_rows(const struct linear *linear, const struct linear_call *call, struct matrix_view dy,
                               void *dx) {
    double work = 2.0 * (double)linear->in * (double)linear->out;
    int64_t count = call->rows;
    int status = STATUS_OK;
    if (linear_cuts_columns(linear, call)) /* it reads the weights, unpacks them, and reads them again */
        TRY(rank_pause(call->rank, SLICE_HEAD, work * (double)(call->rows + 3 * SLICE_BYTE)));
    if (linear->split == LINEAR_WHOLE || call->fp8)
        return input_gradient(linear, call, dy, dx);
    for (int64_t first = 0; first < call->rows && !status; first += count) {
        TRY(pause_before(linear, call, call->rows - first, &count));
        struct linear_call block = *call;
        block.rows = count;
        block.aux = (void *)at_row(call->aux, first, linear->in, call->dtype);
        const void *gradient = at_row(dy.data, first, y_stride(linear, call), call->dtype);
        status = input_gradient(linear, &block, gradient_view(linear, &block, gradient),
                                (void *)at_row(dx, first, linear->in, call->dtype));
    }
    return status;
}

static int plan_input_gradient(const struct linear *linear, const struct linear_call *call, struct matrix_view dy) {
    rank_unsure(call->rank, true, 1);
    int status = input_gradient(linear, call, dy, NULL);
    rank_unsure(call->rank, true, -1);
    return status;
}

static bool wants_dx(const struct linear_call *call) {
    return call->rank->is_planning ? !call->has_no_dx : call->dx != NULL;
}

/* Returns the cast of dy for the products that read it. */
static struct fp8_cast_of gradient_cast(const struct linear *linear, const struct linear_call *call) {
    bool is_by_rows = wants_dx(call), is_by_columns = param_trains(call->store, linear->weight);
    return (struct fp8_cast_of){.operand = FP8_GRADIENT,
                                .copies = is_by_rows == is_by_columns ? FP8_ANY
                                          : is_by_rows                ? FP8_BY_ROWS
                                                                      : FP8_BY_COLUMNS,
                                .measures = true};
}

struct fp8_output linear_gradient(const struct linear *linear, const struct linear_call *call) {
    bool is_read = wants_dx(call) || param_trains(call->store, linear->weight);
    return call->dy_is_cast && is_read ? fp8_output_of(call->fp8, gradient_cast(linear, call)) : (struct fp8_output){0};
}

int linear_backward(const struct linear *linear, const struct linear_call *call) {
    struct hook_call hook = hook_call_of(linear, call);
    struct comm_request sum = {0}; /* of the partial dx, while the weight gradients are computed */
    bool has_own_rows = is_cut_by_rows(linear, call, LINEAR_COLUMN);
    bool has_dx = wants_dx(call), has_dw = param_trains(call->store, linear->weight);
    int status = STATUS_OK;
    if (is_cut_by_rows(linear, call, LINEAR_ROW)) {
        hook.dy = call->whole;
        status = gather_rows(call, call->dy, linear->out, call->whole);
    } else if (has_own_rows && (has_dw || call->hooks->count)) {
        hook.x = call->whole;
        status = gather_rows(call, call->x, linear->in, call->whole);
    }
    hook.dx = has_own_rows ? call->whole_gradient : call->dx;
    THEN(status, hook_list_backward_output(call->hooks, HOOK_BEFORE_ACTIVATION, &hook));
    struct matrix_view dy = gradient_view(linear, call, hook.dy);
    if (!status && call->fp8 && !call->dy_is_cast && (has_dx || has_dw))
        status = fp8_cast(call->rank, call->fp8, gradient_cast(linear, call), &dy);
    else if (call->fp8)
        dy = fp8_view(call->fp8, FP8_GRADIENT, &dy);
    if (!status && has_dx)
        status = input_gradient_rows(linear, call, dy, hook.dx);
    else if (!status && call->rank->is_planning) /* in other layers, a run needs it */
        status = plan_input_gradient(linear, call, dy);
    THEN(status, hook_list_backward_input(call->hooks, HOOK_BEFORE_ACTIVATION, &hook));
    if (!status && has_dx && is_cut(linear, call, LINEAR_COLUMN))
        status = sum_start(call, hook.dx, call->dx, linear->in, call->dtype, &sum);
    THEN(status, weight_gradients(linear, call, hook.x, hook.dy, dy));
    int summed = rank_wait(call->rank, &sum);
    return status ? status : summed;
}
