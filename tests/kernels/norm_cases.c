/* LayerNorm and RMSNorm: shape {rows, cols, mean of the inputs, heads (0: one), columns after the heads}. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

enum { X, GAIN, BIAS, Y, MEAN, RSTD, DY, DX, DX_ADD, DGAIN, DBIAS };
enum { NO_STATISTICS = 1, ADD = 2, ADD_IN_PLACE = 4, FROZEN = 8, RMS = 16, OVER_X = 32, OVER_DY = 64 };
static const double epsilon = 1e-5f; /* as the argument holds it */

/* RMSNorm is the one with a mean and a bias of 0, and without tensors for them. */
static bool has_mean(const struct op_run *run) {
    return !(run->variant & RMS);
}

static int64_t heads_of(const struct op_run *run) {
    return run->shape[3] ? run->shape[3] : 1;
}

/* The vectors of all rows lie one after the other in `value`. */
static int64_t vectors_of(const struct op_run *run) {
    return run->shape[0] * heads_of(run);
}

static int output_of(const struct op_run *run) {
    return run->variant & OVER_X ? X : Y;
}

/* Returns the incoming gradient of y, plus what is added to dx, or NULL. */
static const struct op_tensor *incoming(const struct op_run *run) {
    return &run->tensor[run->variant & OVER_DY ? DX : DY];
}

static const struct op_tensor *added(const struct op_run *run) {
    return run->variant & ADD_IN_PLACE ? &run->tensor[DX] : run->variant & ADD ? &run->tensor[DX_ADD] : NULL;
}

static void vector_statistics(const struct op_run *run, int64_t i, double *mean, double *rstd) {
    int64_t cols = run->shape[1];
    const double *x = run->tensor[X].value + i * cols;
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < cols; j++)
        sum += x[j];
    *mean = has_mean(run) ? sum / (double)cols : 0;
    for (int64_t j = 0; j < cols; j++)
        squares += (x[j] - *mean) * (x[j] - *mean);
    *rstd = 1 / sqrt(squares / (double)cols + epsilon);
}

static void fill_mean(const struct op_run *run, struct op_tensor *t) {
    double rstd;
    for (int64_t i = 0; i < t->cols; i++)
        vector_statistics(run, i, &t->value[i], &rstd);
}

static void fill_rstd(const struct op_run *run, struct op_tensor *t) {
    double mean;
    for (int64_t i = 0; i < t->cols; i++)
        vector_statistics(run, i, &mean, &t->value[i]);
}

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

/* Rows of vectors; those of x are farther apart than the others. */
static struct op_tensor row_tensor(const struct op_run *run, const char *name, enum op_role role, int64_t more) {
    int64_t cols = heads_of(run) * run->shape[1], behind = run->shape[4];
    struct op_tensor t = tensor(name, role, run->type, run->shape[0], cols);
    t.stride = behind ? cols + behind + more : cols;
    return t;
}

/* A mean in fp32 is off by its own rounding, which the deviation's size makes larger. */
static double row_bound(const struct op_run *run) {
    return op_bound(run->shape[1]) * (1 + (has_mean(run) ? fabs((double)run->shape[2]) : 0));
}

static void setup_inputs(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    bool is_over = run->variant & OVER_X;
    t[X] = row_tensor(run, "x", is_over ? OP_INOUT : OP_IN, is_over ? 0 : 7);
    t[X].center = (double)run->shape[2];
    t[GAIN] = tensor("gain", OP_IN, run->type, 1, cols);
    if (has_mean(run))
        t[BIAS] = tensor("bias", OP_IN, run->type, 1, cols);
}

static void forward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t vectors = vectors_of(run), cols = run->shape[1];
    setup_inputs(run);
    if (output_of(run) == Y)
        t[Y] = row_tensor(run, "y", OP_OUT, 0);
    t[output_of(run)].bound = row_bound(run);
    if (run->variant & NO_STATISTICS)
        return;
    t[RSTD] = tensor("rstd", OP_OUT, DTYPE_F32, 1, vectors);
    t[RSTD].bound = op_bound(cols);
    if (!has_mean(run))
        return;
    t[MEAN] = tensor("mean", OP_OUT, DTYPE_F32, 1, vectors);
    t[MEAN].bound = op_bound(cols);
}

static void backward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t vectors = vectors_of(run), cols = run->shape[1];
    setup_inputs(run);
    if (has_mean(run)) {
        t[MEAN] = tensor("mean", OP_IN, DTYPE_F32, 1, vectors);
        t[MEAN].fill = fill_mean;
    }
    t[RSTD] = tensor("rstd", OP_IN, DTYPE_F32, 1, vectors);
    t[RSTD].fill = fill_rstd;
    if (!(run->variant & OVER_DY))
        t[DY] = row_tensor(run, "dy", OP_IN, 0);
    t[DX] = row_tensor(run, "dx", run->variant & (ADD_IN_PLACE | OVER_DY) ? OP_INOUT : OP_OUT,
                       run->variant & OVER_DY ? 0 : 3);
    t[DX].gradient_of = 1 + X;
    t[DX].bound = row_bound(run);
    if (run->variant & ADD)
        t[DX_ADD] = row_tensor(run, "dx_add", OP_IN, 3);
    if (run->variant & FROZEN)
        return;
    t[DGAIN] = tensor("dgain", OP_ADDED, DTYPE_F32, 1, cols);
    t[DGAIN].gradient_of = 1 + GAIN;
    t[DGAIN].bound = op_bound(vectors + cols) * (1 + fabs((double)run->shape[2]));
    if (!has_mean(run))
        return;
    t[DBIAS] = tensor("dbias", OP_ADDED, DTYPE_F32, 1, cols);
    t[DBIAS].gradient_of = 1 + BIAS;
    t[DBIAS].bound = op_bound(vectors);
}

static struct norm arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor, *add = added(run);
    bool is_strided = run->shape[4];
    return (struct norm){.kind = has_mean(run) ? NORM_LAYER : NORM_RMS,
                         .rows = run->shape[0],
                         .cols = run->shape[1],
                         .type = run->type,
                         .x = t[X].data,
                         .gain = t[GAIN].data,
                         .bias = t[BIAS].data,
                         .epsilon = (float)epsilon,
                         .y = t[output_of(run)].data,
                         .mean = t[MEAN].data,
                         .rstd = t[RSTD].data,
                         .dy = incoming(run)->data,
                         .dx = t[DX].data,
                         .dx_add = add ? add->data : NULL,
                         .dgain = t[DGAIN].data,
                         .dbias = t[DBIAS].data,
                         .heads = (int)run->shape[3],
                         .x_stride = is_strided ? t[X].stride : 0,
                         .y_stride = is_strided ? t[DX].role ? incoming(run)->stride : t[output_of(run)].stride : 0,
                         .dx_stride = is_strided ? t[DX].stride : 0};
}

static int forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct norm a = arguments(run);
    return ops->norm_forward(exec, &a);
}

static int backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct norm a = arguments(run);
    return ops->norm_backward(exec, &a);
}

static size_t backward_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct norm a = arguments(run);
    return ops->norm_backward_workspace(device, &a);
}

static double normed(const struct op_run *run, int64_t i, int64_t j, double mean, double rstd) {
    const struct op_tensor *t = run->tensor;
    double bias = has_mean(run) ? t[BIAS].value[j] : 0;
    return (t[X].value[i * run->shape[1] + j] - mean) * rstd * t[GAIN].value[j] + bias;
}

static void forward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < vectors_of(run); i++) {
        double mean, rstd;
        vector_statistics(run, i, &mean, &rstd);
        for (int64_t j = 0; j < cols; j++)
            t[output_of(run)].expected[i * cols + j] = normed(run, i, j, mean, rstd);
        if (t[MEAN].role)
            t[MEAN].expected[i] = mean;
        if (t[RSTD].role)
            t[RSTD].expected[i] = rstd;
    }
}

static void backward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    const struct op_tensor *add = added(run);
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < vectors_of(run); i++) {
        double mean, rstd, sum = 0, product = 0;
        const double *x = t[X].value + i * cols, *dy = incoming(run)->value + i * cols;
        vector_statistics(run, i, &mean, &rstd);
        for (int64_t j = 0; j < cols; j++) {
            sum += !has_mean(run) ? 0 : dy[j] * t[GAIN].value[j] / (double)cols;
            product += dy[j] * t[GAIN].value[j] * (x[j] - mean) * rstd / (double)cols;
        }
        for (int64_t j = 0; j < cols; j++) {
            double h = (x[j] - mean) * rstd;
            t[DX].expected[i * cols + j] =
                rstd * (dy[j] * t[GAIN].value[j] - sum - h * product) + (add ? add->value[i * cols + j] : 0);
            if (t[DGAIN].role)
                t[DGAIN].expected[j] += dy[j] * h;
            if (t[DBIAS].role)
                t[DBIAS].expected[j] += dy[j];
        }
    }
}

static double backward_loss(const struct op_run *run) {
    const struct op_tensor *t = run->tensor, *add = added(run);
    int64_t cols = run->shape[1];
    double loss = 0;
    for (int64_t i = 0; i < vectors_of(run); i++) {
        double mean, rstd;
        vector_statistics(run, i, &mean, &rstd);
        for (int64_t j = 0; j < cols; j++) {
            loss += normed(run, i, j, mean, rstd) * incoming(run)->value[i * cols + j];
            loss += add ? add->value[i * cols + j] * t[X].value[i * cols + j] : 0;
        }
    }
    return loss;
}

static void forward_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = 2.0 * (double)(vectors_of(run) * run->shape[1]) * (double)dtype_bytes(run->type);
}

static void backward_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (run->variant & (ADD | ADD_IN_PLACE) ? 4.0 : 3.0) * (double)(vectors_of(run) * run->shape[1]) *
             (double)dtype_bytes(run->type);
}

static const struct op_kind forward = {
    .name = "layernorm_forward",
    .setup = forward_setup,
    .call = forward_call,
    .reference = forward_reference,
    .cost = forward_cost,
};
static const struct op_kind backward = {
    .name = "layernorm_backward",
    .setup = backward_setup,
    .workspace = backward_workspace,
    .call = backward_call,
    .reference = backward_reference,
    .loss = backward_loss,
    .cost = backward_cost,
};
static const struct op_kind rms_forward = {
    .name = "rmsnorm_forward",
    .setup = forward_setup,
    .call = forward_call,
    .reference = forward_reference,
    .cost = forward_cost,
};
static const struct op_kind rms_backward = {
    .name = "rmsnorm_backward",
    .setup = backward_setup,
    .workspace = backward_workspace,
    .call = backward_call,
    .reference = backward_reference,
    .loss = backward_loss,
    .cost = backward_cost,
};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(forward, NULL, OP_TEST, 0, 5, 64),
    BOTH_TYPES(forward, "odd", OP_TEST, 0, 7, 77),
    BOTH_TYPES(forward, "one column", OP_TEST, 0, 3, 1),
    BOTH_TYPES(forward, "no rows", OP_TEST, 0, 0, 48),
    BOTH_TYPES(forward, "nothing saved", OP_TEST, NO_STATISTICS, 33, 129),
    BOTH_TYPES(forward, "parallel", OP_TEST, 0, 100, 768),
    {&forward, "large mean", OP_TEST, DTYPE_F32, 0, {20, 768, 3000}},
    BOTH_TYPES(forward, "gpt2", OP_BENCH, 0, 1024, 768),
    BOTH_TYPES(forward, "in place", OP_TEST, OVER_X, 7, 77),
    BOTH_TYPES(forward, "heads", OP_TEST, 0, 7, 33, 0, 3, 5),
    BOTH_TYPES(backward, NULL, OP_TEST, 0, 5, 64),
    BOTH_TYPES(backward, "odd", OP_TEST, ADD, 7, 77),
    BOTH_TYPES(backward, "residual in place", OP_TEST, ADD_IN_PLACE, 9, 33),
    BOTH_TYPES(backward, "frozen", OP_TEST, FROZEN | ADD, 9, 33),
    BOTH_TYPES(backward, "no rows", OP_TEST, 0, 0, 48),
    BOTH_TYPES(backward, "parallel", OP_TEST, ADD, 150, 384),
    BOTH_TYPES(backward, "more rows than blocks", OP_TEST, 0, 1031, 17),
    {&backward, "large mean", OP_TEST, DTYPE_F32, 0, {20, 256, 500}},
    BOTH_TYPES(backward, "heads", OP_TEST, ADD, 7, 33, 0, 3, 5),
    BOTH_TYPES(backward, "gpt2", OP_BENCH, ADD, 1024, 768),
    BOTH_TYPES(rms_forward, NULL, OP_TEST, RMS, 5, 64),
    BOTH_TYPES(rms_forward, "odd", OP_TEST, RMS, 7, 77),
    BOTH_TYPES(rms_forward, "one row", OP_TEST, RMS, 1, 576),
    BOTH_TYPES(rms_forward, "one column", OP_TEST, RMS, 3, 1),
    BOTH_TYPES(rms_forward, "no rows", OP_TEST, RMS, 0, 48),
    BOTH_TYPES(rms_forward, "nothing saved", OP_TEST, RMS | NO_STATISTICS, 33, 129),
    BOTH_TYPES(rms_forward, "parallel", OP_TEST, RMS, 100, 768),
    {&rms_forward, "large mean", OP_TEST, DTYPE_F32, RMS, {20, 768, 3000}},
    BOTH_TYPES(rms_forward, "hidden 768", OP_BENCH, RMS, 1024, 768),
    BOTH_TYPES(rms_forward, "qwen3 queries", OP_BENCH, RMS | OVER_X, 1024, 128, 0, 16, 2048),
    BOTH_TYPES(rms_forward, "in place", OP_TEST, RMS | OVER_X, 7, 77),
    BOTH_TYPES(rms_forward, "heads of dense rows", OP_TEST, RMS, 5, 64, 0, 4),
    BOTH_TYPES(rms_forward, "heads", OP_TEST, RMS, 7, 33, 0, 3, 5),
    BOTH_TYPES(rms_forward, "heads in place", OP_TEST, RMS | OVER_X, 9, 128, 0, 2, 64),
    BOTH_TYPES(rms_forward, "heads, nothing saved", OP_TEST, RMS | OVER_X | NO_STATISTICS, 9, 128, 0, 2, 64),
    BOTH_TYPES(rms_forward, "rows apart", OP_TEST, RMS, 9, 65, 0, 0, 3),
    BOTH_TYPES(rms_forward, "heads, parallel", OP_TEST, RMS | OVER_X, 50, 64, 0, 9, 192),
    BOTH_TYPES(rms_backward, NULL, OP_TEST, RMS, 5, 64),
    BOTH_TYPES(rms_backward, "odd", OP_TEST, RMS | ADD, 7, 77),
    BOTH_TYPES(rms_backward, "one row", OP_TEST, RMS, 1, 576),
    /* The rest of dx cancels, and the residual's gradient determines the size of a rounding. */
    BOTH_TYPES(rms_backward, "one column", OP_TEST, RMS | ADD, 3, 1, 3),
    BOTH_TYPES(rms_backward, "residual in place", OP_TEST, RMS | ADD_IN_PLACE, 9, 33),
    BOTH_TYPES(rms_backward, "frozen", OP_TEST, RMS | FROZEN | ADD, 9, 33),
    BOTH_TYPES(rms_backward, "no rows", OP_TEST, RMS, 0, 48),
    BOTH_TYPES(rms_backward, "parallel", OP_TEST, RMS | ADD, 150, 384),
    BOTH_TYPES(rms_backward, "more rows than blocks", OP_TEST, RMS, 1031, 17),
    BOTH_TYPES(rms_backward, "over the gradient", OP_TEST, RMS | OVER_DY, 9, 77),
    BOTH_TYPES(rms_backward, "heads of dense rows", OP_TEST, RMS, 5, 64, 0, 4),
    BOTH_TYPES(rms_backward, "heads", OP_TEST, RMS | ADD, 7, 33, 0, 3, 5),
    BOTH_TYPES(rms_backward, "heads in place", OP_TEST, RMS | OVER_DY, 9, 128, 0, 2, 64),
    BOTH_TYPES(rms_backward, "heads, frozen", OP_TEST, RMS | OVER_DY | FROZEN, 9, 128, 0, 2, 64),
    BOTH_TYPES(rms_backward, "heads, parallel", OP_TEST, RMS | OVER_DY, 50, 64, 0, 9, 192),
    {&rms_backward, "mean", OP_TEST, DTYPE_F32, RMS, {20, 256, 3}},
    BOTH_TYPES(rms_backward, "hidden 768", OP_BENCH, RMS | ADD, 1024, 768),
};

const struct op_family norm_family = {"norm", cases, sizeof cases / sizeof *cases};
