/* AdamW {count, step, ranges}, zeroing {count, 0, ranges}, sums {count}, the clip factor and column sums {rows, cols,
 * stride}. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

/* ---- tables of ranges ---- */

enum { MASTER, M, V, GRADIENT, SCALE, WEIGHTS };
enum { HAS_WEIGHTS = 1, HAS_SCALE = 2, ZERO_GRADIENT = 4, NO_DECAY = 8, SMALL_GRADIENT = 16 };

/* One range is all elements. Many have odd sizes, some have none, and there are gaps between them; a call gets all but
 * the table's first and last. What it does not get must stay as it is. */
enum { RANGES_MOST = 400 };
struct ranges {
    struct flat_range table[RANGES_MOST];
    int count, first, end; /* of the table; of the call */
    int64_t elements;
};

static struct ranges ranges_of(const struct op_run *run) {
    int count = run->shape[2] ? (int)run->shape[2] : 1;
    int64_t share = run->shape[0] / count, at = 0;
    const int64_t counts[] = {share / 7 + 1, 0, share / 3, share + share / 2 + 1, share / 2};
    const float factors[] = {0, 16, 0.3f};
    struct ranges ranges = {.count = count, .first = count > 1, .end = count > 1 ? count - 1 : count};
    for (int i = 0; i < count; i++) {
        ranges.table[i] = (struct flat_range){.before = ranges.elements,
                                              .count = count > 1 ? counts[i % 5] : share,
                                              .first = at,
                                              .master = run->variant & HAS_WEIGHTS ? ranges.elements : at,
                                              .state = ranges.elements,
                                              .weight_decay = run->variant & NO_DECAY || i % 4 == 1 ? 0 : 0.1f,
                                              .lr_factor = factors[i % 3]};
        at += ranges.table[i].count + i % 3;
        ranges.elements += ranges.table[i].count;
    }
    return ranges;
}

static int upload_ranges(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct ranges ranges = ranges_of(run);
    size_t bytes = (size_t)ranges.count * sizeof *ranges.table;
    (void)ops;
    int status = device_alloc(stream_device(exec->stream), bytes, &run->state);
    if (!status)
        status = stream_copy_to_device(exec->stream, run->state, ranges.table, bytes);
    return status ? status : stream_wait(exec->stream);
}

static void free_ranges(struct op_run *run, struct device *device) {
    device_free(device, run->state);
    run->state = NULL;
}

static void expect_unchanged(struct op_tensor *t) {
    for (int64_t i = 0; i < t->rows * t->cols && t->role == OP_INOUT; i++)
        t->expected[i] = t->value[i];
}

/* ---- zeroing ---- */

static void zero_setup(struct op_run *run) {
    run->tensor[GRADIENT] = tensor("x", OP_INOUT, DTYPE_F32, 1, run->shape[0]);
}

static int zero_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct ranges ranges = ranges_of(run);
    struct zero_ranges a = {.ranges = (const struct flat_range *)run->state + ranges.first,
                            .range_count = ranges.end - ranges.first,
                            .x = run->tensor[GRADIENT].data};
    return ops->zero_ranges(exec, &a);
}

static void zero_reference(struct op_run *run) {
    struct ranges ranges = ranges_of(run);
    struct op_tensor *x = &run->tensor[GRADIENT];
    expect_unchanged(x);
    for (int i = ranges.first; i < ranges.end; i++)
        for (int64_t j = 0; j < ranges.table[i].count; j++)
            x->expected[ranges.table[i].first + j] = 0;
}

static void zero_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = 4.0 * (double)ranges_of(run).elements;
}

static const struct op_kind zero = {.name = "zero_ranges",
                                    .setup = zero_setup,
                                    .prepare = upload_ranges,
                                    .release = free_ranges,
                                    .call = zero_call,
                                    .reference = zero_reference,
                                    .cost = zero_cost};

/* ---- AdamW: the case's type is that of the working copy ---- */

/* The size of gradients and means. Small ones are as large as epsilon: then its place in the quotient matters. */
static double size_of_gradient(const struct op_run *run) {
    return run->variant & SMALL_GRADIENT ? 1e-8 : 0.01;
}

static void fill_squares(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = run->shape[1] == 1 ? 0
                                         : size_of_gradient(run) * size_of_gradient(run) *
                                               rng_unit(philox(9, (uint32_t)i, 0, 0, 0).word[0]);
}

static void fill_means(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = run->shape[1] == 1
                          ? 0
                          : size_of_gradient(run) * (2 * rng_unit(philox(8, (uint32_t)i, 0, 0, 0).word[0]) - 1);
}

static void adamw_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    struct ranges ranges = ranges_of(run);
    int64_t n = run->shape[0];
    t[MASTER] = tensor("master", OP_INOUT, DTYPE_F32, 1, run->variant & HAS_WEIGHTS ? ranges.elements : n);
    t[MASTER].bound = op_bound(4);
    t[M] = tensor("m", OP_INOUT, DTYPE_F32, 1, ranges.elements);
    t[M].fill = fill_means;
    t[M].bound = op_bound(4);
    t[V] = tensor("v", OP_INOUT, DTYPE_F32, 1, ranges.elements);
    t[V].fill = fill_squares;
    t[V].bound = op_bound(4);
    t[GRADIENT] = tensor("gradient", run->variant & ZERO_GRADIENT ? OP_INOUT : OP_IN, DTYPE_F32, 1, n);
    t[GRADIENT].spread = size_of_gradient(run);
    if (run->variant & HAS_SCALE)
        t[SCALE] = tensor("gradient_scale", OP_IN, DTYPE_F32, 1, 1);
    if (run->variant & HAS_WEIGHTS)
        t[WEIGHTS] = tensor("weights", ranges.count > 1 ? OP_INOUT : OP_OUT, run->type, 1, n);
    t[WEIGHTS].bound = op_bound(4);
}

static struct adamw adamw_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    struct ranges ranges = ranges_of(run);
    return (struct adamw){.ranges = (const struct flat_range *)run->state + ranges.first,
                          .range_count = ranges.end - ranges.first,
                          .master = t[MASTER].data,
                          .m = t[M].data,
                          .v = t[V].data,
                          .gradient = t[GRADIENT].data,
                          .gradient_scale = t[SCALE].data,
                          .weights = t[WEIGHTS].data,
                          .weights_type = run->type,
                          .lr = 3e-4,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .epsilon = 1e-8f,
                          .step = run->shape[1],
                          .zero_gradient = run->variant & ZERO_GRADIENT};
}

static int adamw_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct adamw a = adamw_arguments(run);
    return ops->adamw(exec, &a);
}

/* torch.optim.AdamW, a line each, at element `at` of a range. */
static void update_element(struct op_tensor *t, const struct adamw *a, const struct flat_range *range, int64_t at) {
    double beta1 = a->beta1, beta2 = a->beta2, lr = a->lr * (range->lr_factor > 0 ? range->lr_factor : 1);
    int64_t flat = range->first + at, state = range->state + at, master = range->master + at;
    double g = t[GRADIENT].value[flat] * (t[SCALE].role ? t[SCALE].value[0] : 1);
    double p = t[MASTER].value[master] * (1 - lr * range->weight_decay);
    double m = t[M].value[state] * beta1 + g * (1 - beta1);
    double v = t[V].value[state] * beta2 + g * g * (1 - beta2);
    double denominator = sqrt(v) / sqrt(1 - pow(beta2, (double)a->step)) + a->epsilon;
    t[MASTER].expected[master] = p - lr / (1 - pow(beta1, (double)a->step)) * m / denominator;
    t[M].expected[state] = m;
    t[V].expected[state] = v;
    if (t[WEIGHTS].role)
        t[WEIGHTS].expected[flat] = t[MASTER].expected[master];
    if (a->zero_gradient)
        t[GRADIENT].expected[flat] = 0;
}

static void adamw_reference(struct op_run *run) {
    struct ranges ranges = ranges_of(run);
    struct adamw a = adamw_arguments(run);
    for (int i = 0; i < OP_TENSORS; i++)
        expect_unchanged(&run->tensor[i]);
    for (int i = ranges.first; i < ranges.end; i++)
        for (int64_t j = 0; j < ranges.table[i].count; j++)
            update_element(run->tensor, &a, &ranges.table[i], j);
}

static void adamw_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes =
        (double)ranges_of(run).elements * (28.0 + (run->variant & HAS_WEIGHTS ? (double)dtype_bytes(run->type) : 0) +
                                           (run->variant & ZERO_GRADIENT ? 4 : 0));
}

static const struct op_kind adamw = {.name = "adamw",
                                     .setup = adamw_setup,
                                     .prepare = upload_ranges,
                                     .release = free_ranges,
                                     .call = adamw_call,
                                     .reference = adamw_reference,
                                     .cost = adamw_cost};

/* ---- sums ---- */

enum { X, WEIGHT, SUM, NORM, FACTOR };
enum { ACCUMULATE = 1 };

static void squares_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, DTYPE_F32, 1, run->shape[0]);
    run->tensor[SUM] = tensor("sum", run->variant & ACCUMULATE ? OP_ADDED : OP_OUT, DTYPE_F64, 1, 1);
    run->tensor[SUM].bound = 1e-13;
}

static int squares_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    return ops->sum_of_squares(exec, &(const struct sum_of_squares){run->shape[0], run->tensor[X].data,
                                                                    run->variant & ACCUMULATE, run->tensor[SUM].data});
}

static size_t squares_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    return ops->sum_of_squares_workspace(device, &(const struct sum_of_squares){.count = run->shape[0]});
}

static void squares_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[SUM].expected[0] += run->tensor[X].value[i] * run->tensor[X].value[i];
}

static void squares_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = 4.0 * (double)run->shape[0];
}

static void weighted_setup(struct op_run *run) {
    squares_setup(run);
    run->tensor[WEIGHT] = tensor("weight", OP_IN, DTYPE_F32, 1, run->shape[0]);
}

static int weighted_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    return ops->weighted_sum(exec, &(const struct weighted_sum){run->shape[0], t[X].data, t[WEIGHT].data,
                                                                run->variant & ACCUMULATE, t[SUM].data});
}

static void weighted_reference(struct op_run *run) {
    for (int64_t i = 0; i < run->shape[0]; i++)
        run->tensor[SUM].expected[0] += run->tensor[X].value[i] * run->tensor[WEIGHT].value[i];
}

/* shape {norm in thousandths, maximum in thousandths} */
static void fill_sum(const struct op_run *run, struct op_tensor *t) {
    t->value[0] = (double)run->shape[0] / 1000 * (double)run->shape[0] / 1000;
}

static void clip_setup(struct op_run *run) {
    run->tensor[SUM] = tensor("sum_of_squares", OP_IN, DTYPE_F64, 1, 1);
    run->tensor[SUM].fill = fill_sum;
    run->tensor[NORM] = tensor("norm", OP_OUT, DTYPE_F32, 1, 1);
    run->tensor[FACTOR] = tensor("factor", OP_OUT, DTYPE_F32, 1, 1);
}

static int clip_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct clip_factor a = {.sum_of_squares = run->tensor[SUM].data,
                            .max_norm = (float)run->shape[1] / 1000.0f,
                            .norm = run->tensor[NORM].data,
                            .factor = run->tensor[FACTOR].data};
    return ops->clip_factor(exec, &a);
}

static void clip_reference(struct op_run *run) {
    double norm = sqrt(run->tensor[SUM].value[0]), max = (double)run->shape[1] / 1000;
    run->tensor[NORM].expected[0] = norm;
    run->tensor[FACTOR].expected[0] = max == 0 ? 1 : fmin(1, max / (norm + 1e-6));
}

static void column_setup(struct op_run *run) {
    run->tensor[X] = tensor("x", OP_IN, run->type, run->shape[0], run->shape[1]);
    run->tensor[X].stride = run->shape[2];
    run->tensor[SUM] = tensor("out", OP_ADDED, DTYPE_F32, 1, run->shape[1]);
    run->tensor[SUM].bound = op_bound(run->shape[0]);
}

static struct column_sum column_arguments(const struct op_run *run) {
    return (struct column_sum){.rows = run->shape[0],
                               .cols = run->shape[1],
                               .type = run->type,
                               .x = run->tensor[X].data,
                               .stride = run->shape[2],
                               .out = run->tensor[SUM].data};
}

static int column_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct column_sum a = column_arguments(run);
    return ops->column_sum(exec, &a);
}

static size_t column_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct column_sum a = column_arguments(run);
    return ops->column_sum_workspace(device, &a);
}

static void column_reference(struct op_run *run) {
    int64_t cols = run->shape[1];
    for (int64_t i = 0; i < run->shape[0] * cols; i++)
        run->tensor[SUM].expected[i % cols] += run->tensor[X].value[i];
}

static void column_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (double)(run->shape[0] * run->shape[1]) * (double)dtype_bytes(run->type);
}

static const struct op_kind squares = {.name = "sum_of_squares",
                                       .setup = squares_setup,
                                       .workspace = squares_workspace,
                                       .call = squares_call,
                                       .reference = squares_reference,
                                       .cost = squares_cost};
static const struct op_kind weighted = {
    .name = "weighted_sum", .setup = weighted_setup, .call = weighted_call, .reference = weighted_reference};
static const struct op_kind clip = {
    .name = "clip_factor", .setup = clip_setup, .call = clip_call, .reference = clip_reference};
static const struct op_kind column = {.name = "column_sum",
                                      .setup = column_setup,
                                      .workspace = column_workspace,
                                      .call = column_call,
                                      .reference = column_reference,
                                      .cost = column_cost};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(adamw, "first step", OP_TEST, HAS_WEIGHTS, 1037, 1),
    BOTH_TYPES(adamw, "tenth step, clipped", OP_TEST, HAS_WEIGHTS | HAS_SCALE, 1037, 10),
    BOTH_TYPES(adamw, "clearing", OP_TEST, HAS_WEIGHTS | HAS_SCALE | ZERO_GRADIENT, 2049, 10),
    BOTH_TYPES(adamw, "gradients of the size of epsilon", OP_TEST, HAS_WEIGHTS | SMALL_GRADIENT, 1037, 10),
    BOTH_TYPES(adamw, "parallel", OP_TEST, HAS_WEIGHTS | NO_DECAY | ZERO_GRADIENT, 40001, 100000),
    {&adamw, "no working copy", OP_TEST, DTYPE_F32, HAS_SCALE, {77, 3}},
    {&adamw, "nothing", OP_TEST, DTYPE_BF16, HAS_WEIGHTS, {0, 3}},
    BOTH_TYPES(adamw, "ranges", OP_TEST, HAS_WEIGHTS | HAS_SCALE | ZERO_GRADIENT, 40001, 10, 17),
    BOTH_TYPES(adamw, "many small ranges", OP_TEST, HAS_WEIGHTS, 20001, 2, 400),
    {&adamw, "ranges, no working copy", OP_TEST, DTYPE_F32, HAS_SCALE, {30011, 3, 23}},
    {&adamw, "a call of one empty range", OP_TEST, DTYPE_F32, HAS_SCALE, {999, 3, 3}},
    {&adamw, "a call of no range", OP_TEST, DTYPE_F32, HAS_SCALE, {999, 3, 2}},
    {&adamw, "20 M", OP_BENCH, DTYPE_F32, HAS_SCALE, {20 << 20, 10}},
    {&adamw, "20 M", OP_BENCH, DTYPE_BF16, HAS_SCALE | HAS_WEIGHTS | ZERO_GRADIENT, {20 << 20, 10}},
    {&adamw, "148 ranges", OP_BENCH, DTYPE_F32, HAS_SCALE, {40 << 20, 10, 148}},
    {&zero, "one range", OP_TEST, DTYPE_F32, 0, {1037, 0, 1}},
    {&zero, "ranges", OP_TEST, DTYPE_F32, 0, {40001, 0, 17}},
    {&zero, "many small ranges", OP_TEST, DTYPE_F32, 0, {20001, 0, 400}},
    {&zero, "a call of no range", OP_TEST, DTYPE_F32, 0, {999, 0, 2}},
    {&zero, "148 ranges", OP_BENCH, DTYPE_F32, 0, {40 << 20, 0, 148}},
    {&squares, NULL, OP_TEST, DTYPE_F32, 0, {1037}},
    {&squares, "nothing", OP_TEST, DTYPE_F32, 0, {0}},
    {&squares, "blocks", OP_TEST, DTYPE_F32, ACCUMULATE, {200003}},
    {&squares, "one block", OP_TEST, DTYPE_F32, ACCUMULATE, {65536}},
    {&squares, "20 M", OP_BENCH, DTYPE_F32, 0, {20 << 20}},
    {&weighted, NULL, OP_TEST, DTYPE_F32, 0, {1037}},
    {&weighted, "accumulated", OP_TEST, DTYPE_F32, ACCUMULATE, {1037}},
    {&weighted, "nothing", OP_TEST, DTYPE_F32, ACCUMULATE, {0}},
    {&clip, "clipped", OP_TEST, DTYPE_F32, 0, {2500, 1000}},
    {&clip, "small enough", OP_TEST, DTYPE_F32, 0, {700, 1000}},
    {&clip, "zero", OP_TEST, DTYPE_F32, 0, {0, 1000}},
    {&clip, "off", OP_TEST, DTYPE_F32, 0, {2500, 0}},
    BOTH_TYPES(column, NULL, OP_TEST, 0, 5, 48, 48),
    BOTH_TYPES(column, "odd", OP_TEST, 0, 77, 133, 150),
    BOTH_TYPES(column, "no rows", OP_TEST, 0, 0, 133, 150),
    BOTH_TYPES(column, "parallel, wide", OP_TEST, 0, 70, 800, 800),
    BOTH_TYPES(column, "more rows than blocks", OP_TEST, 0, 1031, 33, 33),
    BOTH_TYPES(column, "gpt2 fc1", OP_BENCH, 0, 1024, 3072, 3072),
};

const struct op_family optimizer_family = {"optimizer", cases, sizeof cases / sizeof *cases};
