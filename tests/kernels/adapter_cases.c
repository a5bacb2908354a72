/* Operations for adapters: ReLU and swish, scaled columns, norms of rows, scaled additions. */
#include "op_cases.h"

#include <math.h>

enum { X, SCALE, FIXED, FACTOR, DY, Y, KEPT, DX, DSCALE };

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

static void cost_of(const struct op_run *run, double tensors, double *flops, double *bytes) {
    *flops = 0;
    *bytes = tensors * (double)(run->shape[0] * (run->shape[1] ? run->shape[1] : 1)) * (double)dtype_bytes(run->type);
}

static void two_tensors(const struct op_run *run, double *flops, double *bytes) {
    cost_of(run, 2, flops, bytes);
}

static void three_tensors(const struct op_run *run, double *flops, double *bytes) {
    cost_of(run, 3, flops, bytes);
}

/* ---- units: shape {count}, variant bits ---- */

enum { SWISH = 1, IN_PLACE = 2, HYPERBOLIC = 4 };

static double unit_of(double x, int variant) {
    return variant & SWISH ? x / (1 + exp(-x)) : variant & HYPERBOLIC ? tanh(x) : x > 0 ? x : 0;
}

static double slope_of(double x, int variant) {
    double s = 1 / (1 + exp(-x));
    return variant & SWISH ? s + x * s / (1 + exp(x)) : variant & HYPERBOLIC ? 1 - tanh(x) * tanh(x) : x > 0;
}

static int gradient_in(const struct op_run *run) {
    return run->variant & IN_PLACE ? DX : DY;
}

static void unit_forward_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", run->variant & IN_PLACE ? OP_INOUT : OP_IN, run->type, 1, run->shape[0]);
    run->tensor[X].spread = 4;
    run->tensor[X].bound = op_bound(4);
    if (run->variant & IN_PLACE)
        return;
    run->tensor[Y] = tensor("y", OP_OUT, run->type, 1, run->shape[0]);
    run->tensor[Y].bound = op_bound(4);
}

static void unit_backward_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[X].spread = 4;
    if (!(run->variant & IN_PLACE))
        run->tensor[DY] = tensor("dy", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[DX] = tensor("dx", run->variant & IN_PLACE ? OP_INOUT : OP_OUT, run->type, 1, run->shape[0]);
    run->tensor[DX].gradient_of = run->variant & (SWISH | HYPERBOLIC) ? 1 + X : 0; /* differences do not see a corner */
    run->tensor[DX].bound = op_bound(8);
}

static struct unit_call unit_arguments(const struct op_run *run) {
    return (struct unit_call){.count = run->shape[0],
                              .type = run->type,
                              .unit = run->variant & SWISH        ? UNIT_SWISH
                                      : run->variant & HYPERBOLIC ? UNIT_TANH
                                                                  : UNIT_RELU,
                              .x = run->tensor[X].data,
                              .y = run->tensor[run->variant & IN_PLACE ? X : Y].data,
                              .dy = run->tensor[gradient_in(run)].data,
                              .dx = run->tensor[DX].data};
}

static int unit_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct unit_call a = unit_arguments(run);
    return ops->unit_forward(exec, &a);
}

static int unit_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct unit_call a = unit_arguments(run);
    return ops->unit_backward(exec, &a);
}

static void unit_forward_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[run->variant & IN_PLACE ? X : Y].expected[i] = unit_of(run->tensor[X].value[i], run->variant);
}

static void unit_backward_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[DX].expected[i] =
            run->tensor[gradient_in(run)].value[i] * slope_of(run->tensor[X].value[i], run->variant);
}

static double unit_loss(const struct op_run *run) {
    double loss = 0;
    for (int64_t i = 0; i < run->shape[0]; i++)
        loss += run->tensor[gradient_in(run)].value[i] * unit_of(run->tensor[X].value[i], run->variant);
    return loss;
}

static const struct op_kind unit_forward = {.name = "unit_forward",
                                            .setup = unit_forward_setup,
                                            .call = unit_forward_call,
                                            .reference = unit_forward_reference,
                                            .cost = two_tensors};
static const struct op_kind unit_backward = {.name = "unit_backward",
                                             .setup = unit_backward_setup,
                                             .call = unit_backward_call,
                                             .reference = unit_backward_reference,
                                             .loss = unit_loss,
                                             .cost = three_tensors};

/* ---- scaled columns: shape {rows, cols, columns after those of x}; IN_PLACE is 2 as above ---- */

enum { HAS_FIXED = 4, FP32_SCALE = 8, HAS_FACTOR = 32, FROZEN = 64, OVER_X = 256 };

/* Rows that lie apart, each tensor's a little farther than those of the one before it. */
static void set_strides(struct op_run *run) {
    static const int strided[] = {X, Y, DY, DX};
    for (int64_t i = 0; i < 4 && run->shape[2]; i++)
        run->tensor[strided[i]].stride = run->shape[1] + (i + 1) * run->shape[2];
}

static void scale_inputs(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    t[SCALE] = tensor("scale", OP_IN, run->variant & FP32_SCALE ? DTYPE_F32 : run->type, 1, cols);
    t[SCALE].center = 1;
    if (run->variant & HAS_FIXED)
        t[FIXED] = tensor("fixed", OP_IN, run->type, 1, cols);
}

static void scale_forward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], cols = run->shape[1];
    scale_inputs(run);
    t[X] = tensor("x", OP_IN, run->type, rows, cols);
    t[Y] = tensor("y", OP_INOUT, run->type, rows, cols);
    t[Y].bound = op_bound(6);
    set_strides(run);
}

static void scale_backward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], cols = run->shape[1];
    scale_inputs(run);
    t[X] = tensor("x", run->variant & OVER_X ? OP_INOUT : OP_IN, run->type, rows, cols);
    t[X].bound = op_bound(2);
    if (!(run->variant & IN_PLACE))
        t[DY] = tensor("dy", OP_IN, run->type, rows, cols);
    if (!(run->variant & OVER_X)) {
        t[DX] = tensor("dx", run->variant & IN_PLACE ? OP_INOUT : OP_OUT, run->type, rows, cols);
        t[DX].gradient_of = 1 + X;
        t[DX].bound = op_bound(2);
    }
    set_strides(run);
    if (run->variant & FROZEN)
        return;
    if (run->variant & HAS_FACTOR)
        t[FACTOR] = tensor("factor", OP_IN, DTYPE_F32, 1, cols);
    t[DSCALE] = tensor("dscale", OP_ADDED, DTYPE_F32, 1, cols);
    t[DSCALE].gradient_of = run->variant & HAS_FACTOR ? 0 : 1 + SCALE;
    t[DSCALE].bound = op_bound(2 * rows + 4);
}

static int64_t scale_stride(const struct op_run *run, int tensor) {
    return run->shape[2] ? run->tensor[tensor].stride : 0;
}

static struct column_scale scale_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct column_scale){.rows = run->shape[0],
                                 .cols = run->shape[1],
                                 .type = run->type,
                                 .scale_type = run->variant & FP32_SCALE ? DTYPE_F32 : run->type,
                                 .x = t[X].data,
                                 .scale = t[SCALE].data,
                                 .fixed = t[FIXED].data,
                                 .y = t[Y].data,
                                 .dy = t[gradient_in(run)].data,
                                 .dx = t[run->variant & OVER_X ? X : DX].data,
                                 .factor = t[FACTOR].data,
                                 .dscale = t[DSCALE].data,
                                 .x_stride = scale_stride(run, X),
                                 .y_stride = scale_stride(run, Y),
                                 .dy_stride = scale_stride(run, gradient_in(run)),
                                 .dx_stride = scale_stride(run, run->variant & OVER_X ? X : DX)};
}

static int scale_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct column_scale a = scale_arguments(run);
    return ops->column_scale_forward(exec, &a);
}

static int scale_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct column_scale a = scale_arguments(run);
    return ops->column_scale_backward(exec, &a);
}

static size_t scale_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct column_scale a = scale_arguments(run);
    return ops->column_scale_backward_workspace(device, &a);
}

static double scaled(const struct op_run *run, int64_t i) {
    const struct op_tensor *t = run->tensor;
    double fixed = t[FIXED].role ? t[FIXED].value[i % run->shape[1]] : 0;
    return fixed + (t[X].value[i] - fixed) * t[SCALE].value[i % run->shape[1]];
}

static void scale_forward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    for (int64_t i = 0; i < run->shape[0] * run->shape[1]; i++)
        t[Y].expected[i] = t[Y].value[i] + t[X].value[i] * (t[SCALE].value[i % run->shape[1]] - 1);
}

static void scale_backward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    const double *dy = t[gradient_in(run)].value;
    for (int64_t i = 0; i < run->shape[0] * cols; i++) {
        t[run->variant & OVER_X ? X : DX].expected[i] = dy[i] * t[SCALE].value[i % cols];
        if (t[DSCALE].role)
            t[DSCALE].expected[i % cols] += dy[i] * (t[X].value[i] - (t[FIXED].role ? t[FIXED].value[i % cols] : 0)) *
                                            (t[FACTOR].role ? t[FACTOR].value[i % cols] : 1);
    }
}

static double scale_loss(const struct op_run *run) {
    double loss = 0;
    for (int64_t i = 0; i < run->shape[0] * run->shape[1]; i++)
        loss += run->tensor[gradient_in(run)].value[i] * scaled(run, i);
    return loss;
}

static const struct op_kind scale_forward = {.name = "column_scale_forward",
                                             .setup = scale_forward_setup,
                                             .call = scale_forward_call,
                                             .reference = scale_forward_reference,
                                             .cost = two_tensors};
static const struct op_kind scale_backward = {.name = "column_scale_backward",
                                              .setup = scale_backward_setup,
                                              .workspace = scale_workspace,
                                              .call = scale_backward_call,
                                              .reference = scale_backward_reference,
                                              .loss = scale_loss,
                                              .cost = three_tensors};

/* ---- norms of rows: shape {rows, cols, rank (0: the weight alone), first row}; ratios: {count} ---- */

enum { UP = SCALE, DOWN = FIXED, SQUARES = Y, MAGNITUDE = X, NORM = KEPT, RATIO = DX, INVERSE = DSCALE };
enum { PACKED = 1, ROWS_BEHIND = 5 /* of the weight, after those that are measured */ };

static void squares_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rank = run->shape[2];
    t[X] = tensor("weight", OP_IN, run->type, run->shape[3] + run->shape[0] + ROWS_BEHIND, run->shape[1]);
    if (rank) {
        t[UP] = tensor("up", OP_IN, run->type, run->shape[0], rank);
        t[DOWN] = tensor("down", OP_IN, run->type, rank, run->shape[1]);
    }
    t[SQUARES] = tensor("squares", OP_OUT, DTYPE_F32, 1, run->shape[0]);
    t[SQUARES].bound = op_bound(run->shape[1] + 4 * rank);
}

static struct matrix_view plain_weight(const struct op_run *run) {
    const struct op_tensor *weight = &run->tensor[X];
    return matrix_plain(run->type, weight->data, weight->rows, weight->cols);
}

/* Not a packed weight on a backend that packs nothing. */
static bool squares_supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct matrix_view plain = plain_weight(run);
    return !(run->variant & PACKED) || ops->packed_bytes(device, &plain);
}

static int squares_prepare(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct device *device = stream_device(exec->stream);
    struct matrix_view plain = plain_weight(run);
    if (!(run->variant & PACKED))
        return STATUS_OK;
    int status = device_alloc(device, ops->packed_bytes(device, &plain), &run->state);
    return status ? status : ops->pack(exec, &(const struct pack_call){.plain = plain, .out = run->state});
}

static void squares_release(struct op_run *run, struct device *device) {
    device_free(device, run->state);
    run->state = NULL;
}

static int squares_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    struct row_squares a = {.weight = plain_weight(run),
                            .first_row = run->shape[3],
                            .rows = run->shape[0],
                            .rank = run->shape[2],
                            .up = t[UP].data,
                            .down = t[DOWN].data,
                            .scale = 0.75f,
                            .squares = t[SQUARES].data};
    if (run->variant & PACKED) {
        a.weight.form = MATRIX_PACKED;
        a.weight.data = run->state;
    }
    return ops->row_squares(exec, &a);
}

static void squares_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1], rank = run->shape[2];
    for (int64_t i = 0; i < run->shape[0]; i++) {
        t[SQUARES].expected[i] = 0;
        for (int64_t j = 0; j < cols; j++) {
            double value = t[X].value[(run->shape[3] + i) * cols + j];
            for (int64_t r = 0; r < rank; r++)
                value += 0.75 * t[UP].value[i * rank + r] * t[DOWN].value[r * cols + j];
            t[SQUARES].expected[i] += value * value;
        }
    }
}

static void fill_squares(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = (float)(1 + 0.37 * (double)i);
}

static void ratio_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t count = run->shape[0];
    t[MAGNITUDE] = tensor("magnitude", OP_IN, run->type, 1, count);
    t[FACTOR] = tensor("squares", OP_IN, DTYPE_F32, 1, count);
    t[FACTOR].fill = fill_squares;
    t[NORM] = tensor("norm", OP_OUT, run->type, 1, count);
    t[RATIO] = tensor("ratio", OP_OUT, DTYPE_F32, 1, count);
    t[INVERSE] = tensor("inverse", OP_OUT, DTYPE_F32, 1, count);
    t[NORM].bound = t[RATIO].bound = t[INVERSE].bound = op_bound(2);
}

static int ratio_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    struct magnitude_ratio a = {.count = run->shape[0],
                                .type = run->type,
                                .squares = t[FACTOR].data,
                                .magnitude = t[MAGNITUDE].data,
                                .norm = t[NORM].data,
                                .ratio = t[RATIO].data,
                                .inverse = t[INVERSE].data};
    return ops->magnitude_ratio(exec, &a);
}

static void ratio_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    for (int64_t i = 0; i < run->shape[0]; i++) {
        double norm = sqrt(t[FACTOR].value[i]);
        if (run->type == DTYPE_BF16)
            norm = (double)bf16_to_float(bf16_from_float((float)norm));
        t[NORM].expected[i] = norm;
        t[RATIO].expected[i] = t[MAGNITUDE].value[i] / norm;
        t[INVERSE].expected[i] = 1 / norm;
    }
}

static const struct op_kind row_squares = {.name = "row_squares",
                                           .setup = squares_setup,
                                           .prepare = squares_prepare,
                                           .release = squares_release,
                                           .supports = squares_supports,
                                           .call = squares_call,
                                           .reference = squares_reference,
                                           .cost = two_tensors};
static const struct op_kind ratio = {
    .name = "magnitude_ratio", .setup = ratio_setup, .call = ratio_call, .reference = ratio_reference};

/* ---- scaled additions: shape {cols, scale in thousandths, rows (0: 1), columns after those of x} ---- */

enum { ACCUMULATE = 1 };

static void add_setup(struct op_run *run) {
    int64_t rows = run->shape[2] ? run->shape[2] : 1, cols = run->shape[0];
    run->tensor[X] = tensor("x", OP_IN, run->type, rows, cols);
    run->tensor[Y] = tensor("y", run->variant & ACCUMULATE ? OP_INOUT : OP_OUT, run->type, rows, cols);
    run->tensor[Y].bound = op_bound(2);
    if (run->shape[3]) {
        run->tensor[X].stride = cols + run->shape[3];
        run->tensor[Y].stride = cols + 2 * run->shape[3];
    }
}

static float add_scale(const struct op_run *run) {
    return (float)run->shape[1] / 1000.0f;
}

static int add_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    struct scale_add a = {.rows = t[X].rows,
                          .cols = t[X].cols,
                          .type = run->type,
                          .scale = add_scale(run),
                          .x = t[X].data,
                          .y = t[Y].data,
                          .accumulate = run->variant & ACCUMULATE,
                          .x_stride = run->shape[3] ? t[X].stride : 0,
                          .y_stride = run->shape[3] ? t[Y].stride : 0};
    return ops->scale_add(exec, &a);
}

static void add_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->tensor[X].rows * run->tensor[X].cols; i++)
        run->tensor[Y].expected[i] = (double)add_scale(run) * run->tensor[X].value[i] +
                                     (run->variant & ACCUMULATE ? run->tensor[Y].value[i] : 0);
}

static const struct op_kind scale_add = {
    .name = "scale_add", .setup = add_setup, .call = add_call, .reference = add_reference};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(unit_forward, "relu", OP_TEST, 0, 1037),
    BOTH_TYPES(unit_forward, "swish", OP_TEST, SWISH, 1037),
    BOTH_TYPES(unit_forward, "tanh", OP_TEST, HYPERBOLIC, 1037),
    BOTH_TYPES(unit_backward, "tanh", OP_TEST, HYPERBOLIC, 1037),
    BOTH_TYPES(unit_forward, "nothing", OP_TEST, SWISH, 0),
    BOTH_TYPES(unit_forward, "swish in place, parallel", OP_TEST, SWISH | IN_PLACE, 40001),
    BOTH_TYPES(unit_backward, "relu", OP_TEST, 0, 1037),
    BOTH_TYPES(unit_backward, "swish", OP_TEST, SWISH, 1037),
    BOTH_TYPES(unit_backward, "relu in place", OP_TEST, IN_PLACE, 40001),
    BOTH_TYPES(unit_backward, "swish in place", OP_TEST, SWISH | IN_PLACE, 40001),
    BOTH_TYPES(scale_forward, NULL, OP_TEST, 0, 5, 64),
    BOTH_TYPES(scale_forward, "odd", OP_TEST, 0, 7, 77),
    BOTH_TYPES(scale_forward, "parallel", OP_TEST, 0, 100, 768),
    BOTH_TYPES(scale_forward, "strides", OP_TEST, FP32_SCALE, 9, 601, 5),
    BOTH_TYPES(scale_forward, "other vector", OP_TEST, FP32_SCALE, 9, 601),
    BOTH_TYPES(scale_forward, "no rows", OP_TEST, 0, 0, 64),
    BOTH_TYPES(scale_backward, NULL, OP_TEST, 0, 5, 64),
    BOTH_TYPES(scale_backward, "odd", OP_TEST, FP32_SCALE, 7, 77),
    BOTH_TYPES(scale_backward, "in place", OP_TEST, IN_PLACE, 150, 384),
    BOTH_TYPES(scale_backward, "a part stays", OP_TEST, HAS_FIXED | FP32_SCALE, 9, 601),
    BOTH_TYPES(scale_backward, "a part stays, factors", OP_TEST, HAS_FIXED | FP32_SCALE | HAS_FACTOR, 9, 601),
    BOTH_TYPES(scale_backward, "over x", OP_TEST, OVER_X | FP32_SCALE | HAS_FACTOR, 150, 601),
    BOTH_TYPES(scale_backward, "strides", OP_TEST, HAS_FIXED | FP32_SCALE | HAS_FACTOR, 9, 601, 5),
    BOTH_TYPES(scale_backward, "strides, in place", OP_TEST, IN_PLACE, 9, 601, 5),
    BOTH_TYPES(scale_backward, "strides, over x", OP_TEST, OVER_X, 9, 601, 5),
    BOTH_TYPES(scale_backward, "frozen", OP_TEST, FROZEN | IN_PLACE, 9, 33),
    BOTH_TYPES(scale_backward, "no rows", OP_TEST, 0, 0, 33),
    BOTH_TYPES(scale_backward, "more rows than blocks", OP_TEST, 0, 1031, 17),
    BOTH_TYPES(scale_forward, "gpt2 qkv", OP_BENCH, 0, 1024, 2304),
    BOTH_TYPES(scale_backward, "gpt2 qkv", OP_BENCH, IN_PLACE, 1024, 2304),
    BOTH_TYPES(row_squares, "the weight alone", OP_TEST, 0, 7, 77),
    BOTH_TYPES(row_squares, NULL, OP_TEST, 0, 33, 1100, 5),
    BOTH_TYPES(row_squares, "some rows", OP_TEST, 0, 33, 77, 5, 9),
    BOTH_TYPES(row_squares, "packed", OP_TEST, PACKED, 75, 1101, 5),
    BOTH_TYPES(row_squares, "packed, some rows, the weight alone", OP_TEST, PACKED, 75, 77, 0, 29),
    BOTH_TYPES(row_squares, "packed, no rows", OP_TEST, PACKED, 0, 77, 0, 29),
    BOTH_TYPES(row_squares, "packed, gpt2 qkv", OP_BENCH, PACKED, 2304, 768, 8),
    BOTH_TYPES(row_squares, "gpt2 qkv", OP_BENCH, 0, 2304, 768, 8),
    BOTH_TYPES(ratio, NULL, OP_TEST, 0, 61),
    BOTH_TYPES(scale_add, NULL, OP_TEST, 0, 1037, 1250),
    BOTH_TYPES(scale_add, "accumulated", OP_TEST, ACCUMULATE, 50001, 4000),
    BOTH_TYPES(scale_add, "rows", OP_TEST, ACCUMULATE, 601, 4000, 37),
    BOTH_TYPES(scale_add, "strides", OP_TEST, ACCUMULATE, 601, 4000, 37, 5),
    BOTH_TYPES(scale_add, "nothing", OP_TEST, ACCUMULATE, 0, 4000),
};

const struct op_family adapter_family = {"adapter", cases, sizeof cases / sizeof *cases};
