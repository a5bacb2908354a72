/* FP8: casts {rows, cols, exponent of the scale}, and scales {tensors, length, position}. The products are gemm's. */
#include "fp8_memory.h"

#include <float.h>
#include <math.h>

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

static void any_bytes(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (double)run->shape[0] * (double)run->shape[1] * 4;
}

/* ---- casts ---- */

enum { E5M2 = 1, HAS_AMAX = 2, STRIDED = 4, SPECIAL = 8, BY_ROWS = 16, BY_COLUMNS = 32 };
enum { X, SCALE, INVERSE_SCALE, AMAX, Y };

static void cast_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = (double)run->shape[0] * (double)run->shape[1] * (run->variant & (BY_ROWS | BY_COLUMNS) ? 3 : 4);
}

static enum dtype type_of(const struct op_run *run) {
    return run->variant & E5M2 ? DTYPE_E5M2 : DTYPE_E4M3;
}

static void fill_amax(const struct op_run *run, struct op_tensor *t) {
    t->value[0] = run->shape[0] % 2 ? 100 : 0.5; /* larger than all of x, or smaller than most */
}

/* All numbers of bf16. NaN can be compared as bytes alone. */
static void fill_special(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->rows * t->cols; i++) {
        float value = bf16_to_float((uint16_t)(i * 40503));
        t->value[i] = isnan(value) && !is_on_card(run) ? 0 : (double)value;
    }
}

static void cast_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    t[X] = tensor("x", OP_IN, DTYPE_BF16, run->shape[0], run->shape[1]);
    t[X].stride = run->shape[1] + (run->variant & STRIDED ? 5 : 0);
    t[X].fill = run->variant & SPECIAL ? fill_special : NULL;
    t[SCALE] = tensor("scale", OP_IN, DTYPE_F32, 1, 1);
    t[SCALE].fill = fill_scale;
    t[INVERSE_SCALE] = tensor("inverse", OP_IN, DTYPE_F32, 1, 1);
    if (run->variant & HAS_AMAX) {
        t[AMAX] = tensor("amax", OP_INOUT, DTYPE_F32, 1, 1);
        t[AMAX].fill = fill_amax;
    }
    t[Y] = fp8_memory(run, run->shape[0], run->shape[1]);
}

static struct fp8_output output_of(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct fp8_output){.type = type_of(run),
                               .copies = run->variant & BY_ROWS      ? FP8_BY_ROWS
                                         : run->variant & BY_COLUMNS ? FP8_BY_COLUMNS
                                                                     : FP8_ANY,
                               .scale = t[SCALE].data,
                               .inverse = t[INVERSE_SCALE].data,
                               .amax = t[AMAX].data,
                               .y = t[Y].data};
}

static int cast_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    return ops->fp8_cast(
        exec,
        &(const struct fp8_cast){
            .rows = run->shape[0], .cols = run->shape[1], .stride = t[X].stride, .x = t[X].data, .to = output_of(run)});
}

/* Writes a matrix as a GPU has it. Rows are filled with zeros to multiples of 16 numbers. The transpose follows in the
 * same way, and then the inverse of the scale. */
static void expect_bytes(const struct op_run *run, const double *x, double *y) {
    const int64_t rows = run->shape[0], cols = run->shape[1], down = (rows + 15) / 16 * 16,
                  across = (cols + 15) / 16 * 16;
    const float scale = (float)run->tensor[SCALE].value[0], inverse = (float)run->tensor[INVERSE_SCALE].value[0];
    int8_t bytes[sizeof inverse];
    for (int64_t i = 0; i < run->tensor[Y].cols; i++)
        y[i] = UNTOUCHED;
    memcpy(bytes, &inverse, sizeof inverse);
    for (size_t i = 0; i < sizeof inverse && rows && cols; i++)
        y[2 * down * across + (int64_t)i] = bytes[i];
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++) {
            bool is_inside = i < rows && j < cols;
            double byte = is_inside ? (int8_t)fp8_from_float(type_of(run), (float)x[i * cols + j] * scale) : 0;
            if (i < rows && !(run->variant & BY_COLUMNS))
                y[i * across + j] = byte;
            if (j < cols && !(run->variant & BY_ROWS))
                y[down * across + j * down + i] = byte;
        }
}

static void cast_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    double most = run->variant & HAS_AMAX ? t[AMAX].value[0] : 0;
    for (int64_t i = 0; i < run->shape[0] * run->shape[1]; i++) {
        most = fmax(most, fabs(t[X].value[i]));
        if (!is_on_card(run))
            t[Y].expected[i] = (double)fp8_round(type_of(run), (float)t[X].value[i] * (float)t[SCALE].value[0]);
    }
    if (is_on_card(run))
        expect_bytes(run, t[X].value, t[Y].expected);
    if (run->variant & HAS_AMAX)
        t[AMAX].expected[0] = most;
}

static const struct op_kind cast = {.name = "fp8_cast",
                                    .setup = cast_setup,
                                    .supports = cast_supports,
                                    .call = cast_call,
                                    .reference = cast_reference,
                                    .cost = cast_cost};

/* ---- scales ---- */

enum { MOST_RECENT = 1 };
enum { SCALES_AMAX, HISTORY, SCALES, INVERSE };
static const float MOST = 448;

/* Every fifth size is 0, one is the least fp32, and one is infinite. */
static void fill_sizes(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        t->value[i] = i % 5 == 0 ? 0 : i % 17 == 3 ? 0x1p-149 : i == 7 ? INFINITY : (double)(1 + i * 7 % 13) / 8;
}

static void scales_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    t[SCALES_AMAX] = tensor("amax", OP_INOUT, DTYPE_F32, 1, run->shape[0]);
    t[HISTORY] = tensor("history", OP_INOUT, DTYPE_F32, run->shape[1], run->shape[0]);
    t[HISTORY].stride = run->shape[0] + 3;
    t[SCALES_AMAX].fill = t[HISTORY].fill = fill_sizes;
    t[SCALES] = tensor("scale", OP_INOUT, DTYPE_F32, 1, run->shape[0]);
    t[SCALES].center = 20;
    t[INVERSE] = tensor("inverse", OP_OUT, DTYPE_F32, 1, run->shape[0]);
}

static int scales_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    return ops->fp8_scales(exec, &(const struct fp8_scales){.count = run->shape[0],
                                                            .length = run->shape[1],
                                                            .position = run->shape[2],
                                                            .stride = t[HISTORY].stride,
                                                            .is_most_recent = run->variant & MOST_RECENT,
                                                            .most = MOST,
                                                            .amax = t[SCALES_AMAX].data,
                                                            .history = t[HISTORY].data,
                                                            .scale = t[SCALES].data,
                                                            .inverse = t[INVERSE].data});
}

static bool scales_supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    (void)run, (void)device;
    return ops->fp8_scales != ops_absent.fp8_scales;
}

static void scales_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t count = run->shape[0];
    for (int64_t i = 0; i < run->shape[1] * count; i++)
        t[HISTORY].expected[i] = i / count == run->shape[2] ? t[SCALES_AMAX].value[i % count] : t[HISTORY].value[i];
    for (int64_t j = 0; j < count; j++) {
        double largest = t[SCALES_AMAX].value[j];
        for (int64_t i = 0; i < run->shape[1] && !(run->variant & MOST_RECENT); i++)
            largest = fmax(largest, t[HISTORY].expected[i * count + j]);
        double scale = largest > 0 && isfinite(largest) ? (double)MOST / largest : t[SCALES].value[j];
        t[SCALES].expected[j] = fmin(scale, (double)FLT_MAX);
        t[INVERSE].expected[j] = 1 / (double)(float)t[SCALES].expected[j];
        t[SCALES_AMAX].expected[j] = 0;
    }
}

static const struct op_kind scales = {.name = "fp8_scales",
                                      .setup = scales_setup,
                                      .supports = scales_supports,
                                      .call = scales_call,
                                      .reference = scales_reference,
                                      .cost = any_bytes};

static const struct op_case cases[] = {
    {&cast, "e4m3", OP_TEST, DTYPE_BF16, HAS_AMAX, {5, 48, 0}},
    {&cast, "e5m2", OP_TEST, DTYPE_BF16, HAS_AMAX | E5M2 | STRIDED, {8, 77, 0}},
    {&cast, "e4m3, saturating", OP_TEST, DTYPE_BF16, HAS_AMAX | STRIDED, {4, 33, 9}},
    {&cast, "e5m2, saturating", OP_TEST, DTYPE_BF16, E5M2, {4, 33, 16}},
    {&cast, "e4m3, subnormal", OP_TEST, DTYPE_BF16, 0, {3, 65, -8}},
    {&cast, "e5m2, subnormal", OP_TEST, DTYPE_BF16, E5M2, {3, 65, -15}},
    {&cast, "e4m3, parallel", OP_TEST, DTYPE_BF16, HAS_AMAX, {60, 769, 5}},
    {&cast, "e5m2, whole packs", OP_TEST, DTYPE_BF16, HAS_AMAX | E5M2, {144, 272, 9}},
    {&cast, "e4m3, by rows", OP_TEST, DTYPE_BF16, HAS_AMAX | BY_ROWS, {33, 48, 5}},
    {&cast, "e4m3, by columns", OP_TEST, DTYPE_BF16, HAS_AMAX | BY_COLUMNS, {33, 48, 5}},
    {&cast, "e4m3, all numbers", OP_TEST, DTYPE_BF16, SPECIAL, {256, 256, 0}},
    {&cast, "e5m2, all numbers", OP_TEST, DTYPE_BF16, SPECIAL | E5M2, {256, 256, 3}},
    {&cast, "no rows", OP_TEST, DTYPE_BF16, HAS_AMAX, {0, 16, 0}},
    {&cast, "gpt2 fc2 input", OP_BENCH, DTYPE_BF16, HAS_AMAX | BY_ROWS, {1024, 3072, 5}},
    {&cast, "gpt2 fc2 gradient", OP_BENCH, DTYPE_BF16, HAS_AMAX | E5M2, {1024, 768, 5}},
    {&scales, "max", OP_TEST, DTYPE_F32, 0, {12, 4, 1}},
    {&scales, "most recent", OP_TEST, DTYPE_F32, MOST_RECENT, {12, 4, 3}},
    {&scales, "one step", OP_TEST, DTYPE_F32, 0, {9, 1, 0}},
    {&scales, "gpt2 layer", OP_BENCH, DTYPE_F32, 0, {12, 1024, 7}},
};

const struct op_family fp8_family = {"fp8", cases, sizeof cases / sizeof *cases};
