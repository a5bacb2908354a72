/* Rotary positions: shape {rows, heads, head size, rotary, positions of the table, columns after the heads}. */
#include "op_cases.h"

#include <math.h>

enum { ROWS, HEADS, SIZE, ROTARY, POSITIONS, BEHIND };
enum { X, POSITION, COS, SIN, FORWARD_X };
enum { BACKWARD = 1 }; /* X is the gradient; FORWARD_X, which the call does not get, is what the forward turned */

/* Angles as a model's: position * 10000^(-2j / rotary). */
static double angle(const struct op_tensor *t, int64_t i) {
    return (double)(i / t->cols) * pow(10000, -(double)(i % t->cols) / (double)t->cols);
}

static void fill_cos(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        t->value[i] = cos(angle(t, i));
}

static void fill_sin(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        t->value[i] = sin(angle(t, i));
}

/* One sequence's where time is measured, else any. */
static void fill_positions(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = (double)((run->is_benchmark ? i : i * 37 + 11) % run->shape[POSITIONS]);
}

static void setup(struct op_run *run) {
    const int64_t *s = run->shape;
    int64_t cols = s[HEADS] * s[SIZE] + s[BEHIND];
    struct op_tensor *t = run->tensor;
    t[X] = (struct op_tensor){
        .name = "x", .role = OP_INOUT, .type = run->type, .rows = s[ROWS], .cols = cols, .stride = cols + 3};
    /* Two products that may cancel, each rounded once. */
    t[X].bound = op_bound(3);
    t[POSITION] = (struct op_tensor){
        .name = "positions", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = s[ROWS], .fill = fill_positions};
    t[COS] = (struct op_tensor){
        .name = "cos", .role = OP_IN, .type = DTYPE_F32, .rows = s[POSITIONS], .cols = s[ROTARY] / 2, .fill = fill_cos};
    t[SIN] = t[COS];
    t[SIN].name = "sin";
    t[SIN].fill = fill_sin;
    if (!(run->variant & BACKWARD))
        return;
    t[FORWARD_X] =
        (struct op_tensor){.name = "forward's x", .role = OP_IN, .type = run->type, .rows = s[ROWS], .cols = cols};
    t[X].gradient_of = 1 + FORWARD_X;
}

static int call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    return ops->rotary(exec, &(struct rotary){.rows = run->shape[ROWS],
                                              .heads = (int)run->shape[HEADS],
                                              .head_size = (int)run->shape[SIZE],
                                              .rotary = (int)run->shape[ROTARY],
                                              .type = run->type,
                                              .positions = t[POSITION].data,
                                              .cos = t[COS].data,
                                              .sin = t[SIN].data,
                                              .x = t[X].data,
                                              .stride = t[X].stride,
                                              .is_backward = run->variant & BACKWARD});
}

/* Element `at` of x after turning. */
static double turned(const struct op_run *run, const double *x, int64_t at, bool is_backward) {
    const struct op_tensor *t = run->tensor;
    int64_t row = at / t[X].cols, col = at % t[X].cols, feature = col % run->shape[SIZE], half = run->shape[ROTARY] / 2;
    if (col >= run->shape[HEADS] * run->shape[SIZE] || feature >= 2 * half)
        return x[at];
    int64_t angle_at = (int64_t)t[POSITION].value[row] * half + feature % half;
    double sin = is_backward ? -t[SIN].value[angle_at] : t[SIN].value[angle_at];
    double other = feature < half ? -x[at + half] : x[at - half];
    return x[at] * t[COS].value[angle_at] + other * sin;
}

static void reference(struct op_run *run) {
    struct op_tensor *x = &run->tensor[X];
    for (int64_t i = 0; i < x->rows * x->cols; i++)
        x->expected[i] = turned(run, x->value, i, run->variant & BACKWARD);
}

static double loss(const struct op_run *run) {
    const struct op_tensor *dy = &run->tensor[X];
    double loss = 0;
    for (int64_t i = 0; i < dy->rows * dy->cols; i++)
        loss += turned(run, run->tensor[FORWARD_X].value, i, false) * dy->value[i];
    return loss;
}

static void cost(const struct op_run *run, double *flops, double *bytes) {
    const int64_t *s = run->shape;
    *flops = 0;
    *bytes = 2.0 * (double)(s[ROWS] * s[HEADS] * s[ROTARY]) * (double)dtype_bytes(run->type);
}

static const struct op_kind forward = {
    .name = "rotary_forward", .setup = setup, .call = call, .reference = reference, .cost = cost};
static const struct op_kind backward = {
    .name = "rotary_backward", .setup = setup, .call = call, .reference = reference, .loss = loss, .cost = cost};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(forward, "queries, keys, values", OP_TEST, 0, 5, 12, 64, 64, 40, 192),
    BOTH_TYPES(forward, "half of each head", OP_TEST, 0, 7, 3, 80, 40, 9, 0),
    BOTH_TYPES(forward, "odd", OP_TEST, 0, 6, 3, 37, 26, 70, 5),
    BOTH_TYPES(forward, "one pair", OP_TEST, 0, 3, 1, 2, 2, 4, 0),
    BOTH_TYPES(forward, "nothing turns", OP_TEST, 0, 3, 2, 5, 0, 4, 0),
    BOTH_TYPES(forward, "no rows", OP_TEST, 0, 0, 2, 16, 16, 4, 0),
    BOTH_TYPES(forward, "one row", OP_TEST, 0, 1, 16, 64, 64, 4096, 0),
    BOTH_TYPES(forward, "parallel", OP_TEST, 0, 50, 9, 64, 64, 500, 64),
    BOTH_TYPES(forward, "smollm2", OP_BENCH, 0, 1024, 12, 64, 64, 1024, 192),
    BOTH_TYPES(backward, "queries, keys, values", OP_TEST, BACKWARD, 5, 12, 64, 64, 40, 192),
    BOTH_TYPES(backward, "half of each head", OP_TEST, BACKWARD, 7, 3, 80, 40, 9, 0),
    BOTH_TYPES(backward, "odd", OP_TEST, BACKWARD, 6, 3, 37, 26, 70, 5),
    BOTH_TYPES(backward, "parallel", OP_TEST, BACKWARD, 50, 9, 64, 64, 500, 64),
};

const struct op_family rotary_family = {"rotary", cases, sizeof cases / sizeof *cases};
