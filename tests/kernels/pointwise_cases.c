/* GELU, SwiGLU, residual with dropout, addition, casts, row gathers and transposes: what each element or row does
 * alone. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

enum { X, RESIDUAL, Y, SAMPLE, TOKEN };

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

/* ---- GELU: shape {count}, variant bits ---- */

enum { TANH = 1, IN_PLACE = 2 };
enum { DY = RESIDUAL, DX = Y };

static double gelu(double x, bool is_tanh) {
    return is_tanh ? 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
                   : 0.5 * x * erfc(-x * 0.7071067811865476);
}

static double gelu_slope(double x, bool is_tanh) {
    if (!is_tanh)
        return 0.5 * erfc(-x * 0.7071067811865476) + x * 0.3989422804014327 * exp(-0.5 * x * x);
    double u = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + u) + 0.5 * x * (1 - u * u) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static void gelu_forward_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[X].spread = 4;
    run->tensor[Y] = tensor("y", OP_OUT, run->type, 1, run->shape[0]);
    run->tensor[Y].bound = op_bound(4);
}

static void gelu_backward_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[X].spread = 4;
    if (!(run->variant & IN_PLACE))
        run->tensor[DY] = tensor("dy", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[DX] = tensor("dx", run->variant & IN_PLACE ? OP_INOUT : OP_OUT, run->type, 1, run->shape[0]);
    run->tensor[DX].gradient_of = 1 + X;
    run->tensor[DX].bound = op_bound(8);
}

static int gelu_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct gelu a = {.count = run->shape[0],
                     .type = run->type,
                     .is_tanh = run->variant & TANH,
                     .x = run->tensor[X].data,
                     .y = run->tensor[Y].data};
    return ops->gelu_forward(exec, &a);
}

static int gelu_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct gelu a = {.count = run->shape[0],
                     .type = run->type,
                     .is_tanh = run->variant & TANH,
                     .x = run->tensor[X].data,
                     .dy = run->tensor[run->variant & IN_PLACE ? DX : DY].data,
                     .dx = run->tensor[DX].data};
    return ops->gelu_backward(exec, &a);
}

static void gelu_forward_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[Y].expected[i] = gelu(run->tensor[X].value[i], run->variant & TANH);
}

static const double *incoming(const struct op_run *run) {
    return run->tensor[run->variant & IN_PLACE ? DX : DY].value;
}

static void gelu_backward_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[DX].expected[i] = incoming(run)[i] * gelu_slope(run->tensor[X].value[i], run->variant & TANH);
}

static double gelu_loss(const struct op_run *run) {
    double loss = 0;
    for (int64_t i = 0; i < run->shape[0]; i++)
        loss += incoming(run)[i] * gelu(run->tensor[X].value[i], run->variant & TANH);
    return loss;
}

static void two_tensors(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = 2.0 * (double)(run->shape[0] * (run->shape[1] ? run->shape[1] : 1)) * (double)dtype_bytes(run->type);
}

static void three_tensors(const struct op_run *run, double *flops, double *bytes) {
    two_tensors(run, flops, bytes);
    *bytes *= 1.5;
}

static const struct op_kind gelu_forward = {.name = "gelu_forward",
                                            .setup = gelu_forward_setup,
                                            .call = gelu_forward_call,
                                            .reference = gelu_forward_reference,
                                            .cost = two_tensors};
static const struct op_kind gelu_backward = {.name = "gelu_backward",
                                             .setup = gelu_backward_setup,
                                             .call = gelu_backward_call,
                                             .reference = gelu_backward_reference,
                                             .loss = gelu_loss,
                                             .cost = three_tensors};

/* ---- SwiGLU: shape {rows, cols} of the output; variant IN_PLACE: the backward's dx is x ---- */

enum { GATED_DX = SAMPLE };

static double swish(double x) {
    return x / (1 + exp(-x));
}

static double swish_gradient(double x) {
    return 1 / (1 + exp(-x)) * (1 + x / (1 + exp(x)));
}

static void swiglu_forward_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, run->shape[0], 2 * run->shape[1]);
    run->tensor[X].spread = 4;
    run->tensor[Y] = tensor("y", OP_OUT, run->type, run->shape[0], run->shape[1]);
    run->tensor[Y].bound = op_bound(8);
}

static void swiglu_backward_setup(struct op_run *run) {
    bool is_in_place = run->variant & IN_PLACE;
    int gradient = is_in_place ? X : GATED_DX;
    run->tensor[X] = tensor("x", OP_IN, run->type, run->shape[0], 2 * run->shape[1]);
    run->tensor[DY] = tensor("dy", OP_IN, run->type, run->shape[0], run->shape[1]);
    run->tensor[gradient] = tensor("dx", is_in_place ? OP_INOUT : OP_OUT, run->type, run->shape[0], 2 * run->shape[1]);
    run->tensor[gradient].gradient_of = is_in_place ? 0 : 1 + X;
    run->tensor[gradient].bound = op_bound(8);
    run->tensor[X].spread = 4;
}

static struct swiglu swiglu_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct swiglu){.rows = run->shape[0],
                           .cols = run->shape[1],
                           .type = run->type,
                           .x = t[X].data,
                           .y = t[Y].data,
                           .dy = t[DY].data,
                           .dx = t[run->variant & IN_PLACE ? X : GATED_DX].data};
}

static int swiglu_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct swiglu a = swiglu_arguments(run);
    return ops->swiglu_forward(exec, &a);
}

static int swiglu_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct swiglu a = swiglu_arguments(run);
    return ops->swiglu_backward(exec, &a);
}

static void swiglu_forward_reference(struct op_run *run) {
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < run->shape[0] * cols; i++) {
        const double *gate = run->tensor[X].value + i / cols * 2 * cols + i % cols;
        run->tensor[Y].expected[i] = swish(gate[0]) * gate[cols];
    }
}

static void swiglu_backward_reference(struct op_run *run) {
    int64_t cols = run->shape[1];
    double *dx = run->tensor[run->variant & IN_PLACE ? X : GATED_DX].expected;
    for (int64_t i = 0; i < run->shape[0] * cols; i++) {
        int64_t at = i / cols * 2 * cols + i % cols;
        const double *gate = run->tensor[X].value + at;
        dx[at] = run->tensor[DY].value[i] * swish_gradient(gate[0]) * gate[cols];
        dx[at + cols] = run->tensor[DY].value[i] * swish(gate[0]);
    }
}

static double swiglu_loss(const struct op_run *run) {
    int64_t cols = run->shape[1];
    double loss = 0;
    for (int64_t i = 0; i < run->shape[0] * cols; i++) {
        const double *gate = run->tensor[X].value + i / cols * 2 * cols + i % cols;
        loss += run->tensor[DY].value[i] * swish(gate[0]) * gate[cols];
    }
    return loss;
}

static void five_tensors(const struct op_run *run, double *flops, double *bytes) {
    two_tensors(run, flops, bytes);
    *bytes *= 2.5;
}

static const struct op_kind swiglu_forward = {.name = "swiglu_forward",
                                              .setup = swiglu_forward_setup,
                                              .call = swiglu_forward_call,
                                              .reference = swiglu_forward_reference,
                                              .cost = three_tensors};
static const struct op_kind swiglu_backward = {.name = "swiglu_backward",
                                               .setup = swiglu_backward_setup,
                                               .call = swiglu_backward_call,
                                               .reference = swiglu_backward_reference,
                                               .loss = swiglu_loss,
                                               .cost = five_tensors};

/* ---- residual + dropout: shape {rows, cols, p in thousandths, first column} ---- */

enum { HAS_RESIDUAL = 1, OVER_X = 2, OVER_RESIDUAL = 4 };
enum { SEED = 77123456789, SITE = 12345 };

static void dropout_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], cols = run->shape[1];
    bool is_over = run->variant & (OVER_X | OVER_RESIDUAL);
    t[X] = tensor("x", run->variant & OVER_X ? OP_INOUT : OP_IN, run->type, rows, cols);
    if (run->variant & HAS_RESIDUAL)
        t[RESIDUAL] = tensor("residual", run->variant & OVER_RESIDUAL ? OP_INOUT : OP_IN, run->type, rows, cols);
    if (!is_over)
        t[Y] = tensor("y", OP_OUT, run->type, rows, cols);
    t[X].bound = t[RESIDUAL].bound = t[Y].bound = op_bound(4);
    t[SAMPLE] = tensor("sample", OP_IN, DTYPE_I32, 1, rows);
    t[SAMPLE].spread = 1 << 30;
    t[TOKEN] = tensor("token", OP_IN, DTYPE_I32, 1, rows);
    t[TOKEN].spread = 1024;
}

static int output_of(const struct op_run *run) {
    return run->variant & OVER_X ? X : run->variant & OVER_RESIDUAL ? RESIDUAL : Y;
}

static struct residual_dropout dropout_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct residual_dropout){
        .rows = run->shape[0],
        .cols = run->shape[1],
        .type = run->type,
        .dropout = {.p = (float)run->shape[2] / 1000.0f,
                    .seed = SEED,
                    .site = SITE,
                    .keys = {.sample = t[SAMPLE].data, .token = t[TOKEN].data}},
        .first_col = run->shape[3],
    };
}

static int dropout_forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct residual_dropout a = dropout_arguments(run);
    a.x = run->tensor[X].data;
    a.residual = run->tensor[RESIDUAL].data;
    a.y = run->tensor[output_of(run)].data;
    return ops->residual_dropout_forward(exec, &a);
}

/* The mask is its own derivative: the backward is the forward without a residual, on dy. */
static int dropout_backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct residual_dropout a = dropout_arguments(run);
    a.dy = run->tensor[X].data;
    a.dx = run->tensor[output_of(run)].data;
    return ops->residual_dropout_backward(exec, &a);
}

static void dropout_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    float p = (float)run->shape[2] / 1000.0f;
    for (int64_t i = 0; i < run->shape[0] * cols; i++) {
        uint32_t word = rng_dropout_word(SEED, RNG_DROPOUT, SITE, (uint32_t)t[SAMPLE].value[i / cols],
                                         (uint32_t)t[TOKEN].value[i / cols], (uint32_t)(run->shape[3] + i % cols));
        double kept = p == 0 ? 1 : word >= rng_dropout_threshold(p) ? 1 / (1 - (double)p) : 0;
        t[output_of(run)].expected[i] = (t[RESIDUAL].role ? t[RESIDUAL].value[i] : 0) + kept * t[X].value[i];
    }
}

static void dropout_cost(const struct op_run *run, double *flops, double *bytes) {
    two_tensors(run, flops, bytes);
    *bytes *= run->variant & HAS_RESIDUAL ? 1.5 : 1;
}

static const struct op_kind dropout_forward = {.name = "residual_dropout_forward",
                                               .setup = dropout_setup,
                                               .call = dropout_forward_call,
                                               .reference = dropout_reference,
                                               .cost = dropout_cost};
static const struct op_kind dropout_backward = {.name = "residual_dropout_backward",
                                                .setup = dropout_setup,
                                                .call = dropout_backward_call,
                                                .reference = dropout_reference,
                                                .cost = dropout_cost};

/* ---- addition and casts: shape {count}; gathers: {rows, cols, rows of x}, the variant is minus the lowest index ----
 */

static void add_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[Y] = tensor("y", OP_INOUT, run->type, 1, run->shape[0]);
}

static int add_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    return ops->add(exec, &(const struct add_call){run->shape[0], run->type, run->tensor[X].data, run->tensor[Y].data});
}

static void add_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[Y].expected[i] = run->tensor[X].value[i] + run->tensor[Y].value[i];
}

/* From the case's type; the variant is the other. */
static void cast_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, 1, run->shape[0]);
    run->tensor[Y] = tensor("y", OP_OUT, (enum dtype)run->variant, 1, run->shape[0]);
}

static int cast_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    return ops->cast(exec, &(const struct cast_call){run->shape[0], run->type, (enum dtype)run->variant,
                                                     run->tensor[X].data, run->tensor[Y].data});
}

static void cast_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[Y].expected[i] = run->tensor[X].value[i];
}

static void cast_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (double)run->shape[0] * (double)(dtype_bytes(run->type) + dtype_bytes((enum dtype)run->variant));
}

enum { INDEX = SAMPLE };

static void gather_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, run->shape[2], run->shape[1]);
    run->tensor[Y] = tensor("out", OP_OUT, run->type, run->shape[0], run->shape[1]);
    run->tensor[INDEX] = tensor("index", OP_IN, DTYPE_I32, 1, run->shape[0]);
    run->tensor[INDEX].center = -(double)run->variant;
    run->tensor[INDEX].spread = (double)(run->shape[2] + run->variant);
}

static int gather_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    return ops->gather_rows(exec, &(const struct gather_rows){run->shape[0], run->shape[1], run->type, t[X].data,
                                                              t[INDEX].data, t[Y].data});
}

static void gather_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < run->shape[0] * cols; i++) {
        int64_t row = (int64_t)t[INDEX].value[i / cols];
        t[Y].expected[i] = row < 0 ? 0 : t[X].value[row * cols + i % cols];
    }
}

/* Shape {rows, cols}. */
static void transpose_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, run->shape[0], run->shape[1]);
    run->tensor[Y] = tensor("y", OP_OUT, run->type, run->shape[1], run->shape[0]);
}

static int transpose_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    return ops->transpose(exec, &(const struct transpose){.rows = run->shape[0],
                                                          .cols = run->shape[1],
                                                          .type = run->type,
                                                          .x = run->tensor[X].data,
                                                          .y = run->tensor[Y].data});
}

static void transpose_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        for (int64_t j = 0; j < run->shape[1]; j++)
            run->tensor[Y].expected[j * run->shape[0] + i] = run->tensor[X].value[i * run->shape[1] + j];
}

static const struct op_kind add = {
    .name = "add", .setup = add_setup, .call = add_call, .reference = add_reference, .cost = three_tensors};
static const struct op_kind cast = {
    .name = "cast", .setup = cast_setup, .call = cast_call, .reference = cast_reference, .cost = cast_cost};
static const struct op_kind gather = {.name = "gather_rows",
                                      .setup = gather_setup,
                                      .call = gather_call,
                                      .reference = gather_reference,
                                      .cost = two_tensors};

static const struct op_kind transpose = {.name = "transpose",
                                         .setup = transpose_setup,
                                         .call = transpose_call,
                                         .reference = transpose_reference,
                                         .cost = two_tensors};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(gelu_forward, "exact", OP_TEST, 0, 1037),
    BOTH_TYPES(gelu_forward, "tanh", OP_TEST, TANH, 1037),
    BOTH_TYPES(gelu_forward, "nothing", OP_TEST, 0, 0),
    BOTH_TYPES(gelu_forward, "exact, parallel", OP_TEST, 0, 40001),
    BOTH_TYPES(gelu_forward, "tanh, parallel", OP_TEST, TANH, 40001),
    BOTH_TYPES(gelu_backward, "exact", OP_TEST, 0, 1037),
    BOTH_TYPES(gelu_backward, "tanh", OP_TEST, TANH, 1037),
    BOTH_TYPES(gelu_backward, "exact in place", OP_TEST, IN_PLACE, 40001),
    BOTH_TYPES(gelu_backward, "tanh in place", OP_TEST, TANH | IN_PLACE, 40001),
    BOTH_TYPES(gelu_forward, "tanh, gpt2", OP_BENCH, TANH, 1024 * 3072),
    BOTH_TYPES(gelu_forward, "exact, gpt2", OP_BENCH, 0, 1024 * 3072),
    BOTH_TYPES(gelu_backward, "tanh, gpt2", OP_BENCH, TANH, 1024 * 3072),
    BOTH_TYPES(gelu_backward, "exact, gpt2", OP_BENCH, 0, 1024 * 3072),
    BOTH_TYPES(swiglu_forward, NULL, OP_TEST, 0, 5, 64),
    BOTH_TYPES(swiglu_forward, "odd", OP_TEST, 0, 7, 77),
    BOTH_TYPES(swiglu_forward, "one row", OP_TEST, 0, 1, 1536),
    BOTH_TYPES(swiglu_forward, "one column", OP_TEST, 0, 3, 1),
    BOTH_TYPES(swiglu_forward, "no rows", OP_TEST, 0, 0, 48),
    BOTH_TYPES(swiglu_forward, "parallel", OP_TEST, 0, 60, 769),
    BOTH_TYPES(swiglu_forward, "smollm2", OP_BENCH, 0, 1024, 1536),
    BOTH_TYPES(swiglu_backward, NULL, OP_TEST, 0, 5, 64),
    BOTH_TYPES(swiglu_backward, "odd", OP_TEST, 0, 7, 77),
    BOTH_TYPES(swiglu_backward, "one row", OP_TEST, 0, 1, 1536),
    BOTH_TYPES(swiglu_backward, "one column", OP_TEST, 0, 3, 1),
    BOTH_TYPES(swiglu_backward, "in place", OP_TEST, IN_PLACE, 9, 33),
    BOTH_TYPES(swiglu_backward, "no rows", OP_TEST, 0, 0, 48),
    BOTH_TYPES(swiglu_backward, "parallel", OP_TEST, 0, 60, 769),
    BOTH_TYPES(swiglu_backward, "smollm2", OP_BENCH, 0, 1024, 1536),
    BOTH_TYPES(dropout_forward, NULL, OP_TEST, HAS_RESIDUAL, 5, 128, 100),
    BOTH_TYPES(dropout_forward, "odd", OP_TEST, HAS_RESIDUAL, 7, 131, 500),
    BOTH_TYPES(dropout_forward, "a shard", OP_TEST, HAS_RESIDUAL, 7, 131, 300, 77),
    BOTH_TYPES(dropout_forward, "over x", OP_TEST, HAS_RESIDUAL | OVER_X, 3, 200, 100),
    BOTH_TYPES(dropout_forward, "over the residual", OP_TEST, HAS_RESIDUAL | OVER_RESIDUAL, 3, 200, 100),
    BOTH_TYPES(dropout_forward, "no residual", OP_TEST, 0, 60, 768, 100),
    BOTH_TYPES(dropout_forward, "p = 0", OP_TEST, HAS_RESIDUAL, 60, 768, 0),
    BOTH_TYPES(dropout_forward, "p = 0, no residual", OP_TEST, 0, 3, 65, 0),
    BOTH_TYPES(dropout_forward, "p = 0, nothing to do", OP_TEST, OVER_X, 3, 65, 0),
    BOTH_TYPES(dropout_forward, "no rows", OP_TEST, HAS_RESIDUAL, 0, 65, 100),
    BOTH_TYPES(dropout_backward, "a shard", OP_TEST, 0, 7, 131, 300, 77),
    BOTH_TYPES(dropout_backward, "in place", OP_TEST, OVER_X, 60, 768, 100),
    BOTH_TYPES(dropout_forward, "gpt2", OP_BENCH, HAS_RESIDUAL, 1024, 768, 100),
    BOTH_TYPES(dropout_backward, "gpt2", OP_BENCH, 0, 1024, 768, 100),
    BOTH_TYPES(add, NULL, OP_TEST, 0, 1037),
    BOTH_TYPES(add, "nothing", OP_TEST, 0, 0),
    BOTH_TYPES(add, "parallel", OP_TEST, 0, 50001),
    BOTH_TYPES(add, "gpt2", OP_BENCH, 0, 1024 * 768),
    BOTH_TYPES(cast, "to fp32", OP_TEST, DTYPE_F32, 50001),
    BOTH_TYPES(cast, "to bf16", OP_TEST, DTYPE_BF16, 50001),
    BOTH_TYPES(cast, "nothing", OP_TEST, DTYPE_BF16, 0),
    {&cast, "to bf16", OP_BENCH, DTYPE_F32, DTYPE_BF16, {8 << 20}},
    {&cast, "to fp32", OP_BENCH, DTYPE_BF16, DTYPE_F32, {8 << 20}},
    BOTH_TYPES(gather, NULL, OP_TEST, 0, 9, 33, 20),
    BOTH_TYPES(gather, "no rows", OP_TEST, 0, 0, 33, 20),
    BOTH_TYPES(gather, "parallel", OP_TEST, 0, 40, 768, 64),
    BOTH_TYPES(gather, "rows of zeros", OP_TEST, 10, 40, 33, 20),
    BOTH_TYPES(transpose, NULL, OP_TEST, 0, 64, 96),
    BOTH_TYPES(transpose, "odd", OP_TEST, 0, 77, 45),
    BOTH_TYPES(transpose, "one row", OP_TEST, 0, 1, 131),
    BOTH_TYPES(transpose, "no rows", OP_TEST, 0, 0, 33),
    BOTH_TYPES(transpose, "parallel", OP_TEST, 0, 130, 768),
    BOTH_TYPES(transpose, "a LoRA of rank 16 on gpt2's fc1", OP_BENCH, 0, 3072, 16),
};

const struct op_family pointwise_family = {"pointwise", cases, sizeof cases / sizeof *cases};
