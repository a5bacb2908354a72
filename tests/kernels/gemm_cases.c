/* Products: shape {m, n, k}, the rest of `struct gemm` in the variant's bits. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    A_TRANSPOSED = 1,
    B_TRANSPOSED = 2,
    BIAS = 4,
    ACCUMULATE = 8,
    C_FP32 = 16,
    STRIDED = 32, /* rows longer than the matrices */
    PACKED = 64,
    BIAS_GRADIENT = 128,
    AUX = 256,
    GELU_TANH = 512,
    GELU_EXACT = 1024,
    DGELU_TANH = 2048,
    DGELU_EXACT = 4096,
    SCALED = 8192,
    SCALED_BY_ZERO = 16384,
    FP8 = 131072, /* A and B, cast from numbers of their types */
    A_E5M2 = 262144,
    RESIDUAL = 524288,
    PACKED_BACK = 2097152 | PACKED, /* B is the weight of an input gradient */
    FORWARD = B_TRANSPOSED | BIAS,
    WEIGHT_GRADIENT = A_TRANSPOSED | ACCUMULATE | C_FP32 | BIAS_GRADIENT,
    ANY_GELU = GELU_TANH | GELU_EXACT,
    ANY_DGELU = DGELU_TANH | DGELU_EXACT,
};
enum { A, B, BIAS_VECTOR, C, AUX_MATRIX, BIAS_SUM, A_SCALE, B_SCALE, ONE, RESIDUAL_MATRIX };

static bool is_b_transposed(const struct op_run *run) {
    return run->variant & B_TRANSPOSED || (run->variant & PACKED_BACK) == PACKED;
}

static int64_t stride_of(const struct op_run *run, int64_t cols) {
    return run->variant & STRIDED ? cols + 5 : cols;
}

static enum dtype fp8_type_of(const struct op_run *run, const struct op_tensor *t) {
    return run->variant & A_E5M2 && t == &run->tensor[A] ? DTYPE_E5M2 : DTYPE_E4M3;
}

/* Numbers of the type, of many sizes. */
static void fill_fp8(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->rows * t->cols; i++) {
        uint32_t word = philox(3, (uint32_t)(i + t->rows), (uint32_t)t->cols, 0, (uint32_t)RNG_TEST << 24).word[0];
        double size = ((double)(word >> 8) / 0x1p24 - 0.5) * 64;
        t->value[i] = (double)fp8_round(fp8_type_of(run, t), (float)size);
    }
}

static void setup_fp8(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    const struct op_tensor scale = {
        .role = OP_IN, .type = DTYPE_F32, .rows = 1, .cols = 1, .center = 0.02, .spread = 0.01};
    t[A].fill = t[B].fill = fill_fp8;
    t[A].stride = t[A].cols;
    t[B].stride = t[B].cols;
    t[A_SCALE] = t[B_SCALE] = scale;
    t[A_SCALE].name = "a's scale";
    t[B_SCALE].name = "b's scale";
    t[ONE] = (struct op_tensor){
        .name = "one", .role = OP_IN, .type = DTYPE_F32, .rows = 1, .cols = 1, .center = 1, .spread = 0x1p-40};
}

/* A GPU adds 32 products of FP8 at a time to a sum, and keeps 14 bits of the largest (DeepSeek-V3, arXiv 2412.19437,
 * 3.3.2). An H200's error was 2^-13 of the sum of all sizes. For a gradient, it adds such sums of 128 in fp32. */
static double fp8_bound(const struct op_run *run) {
    int64_t steps = (run->shape[2] + 31) / 32, together = run->variant & B_TRANSPOSED ? steps : 128 / 32;
    bool is_on_card = run->variant & FP8 && strcmp(run->backend, "cuda") == 0;
    return is_on_card ? 0x1p-13 * (double)(steps < together ? steps : together) : 0;
}

/* A GPU rounds a product to bf16, by at most 2^-8 of itself, before it multiplies by a GELU's gradient, if
 * rows are whole accesses of 16 bytes. */
static double bf16_bound(const struct op_run *run) {
    bool is_whole = (run->shape[1] | run->shape[2]) % 8 == 0 && !(run->variant & STRIDED);
    bool is_rounded = run->variant & ANY_DGELU && run->type == DTYPE_BF16 && is_whole;
    return is_rounded && strcmp(run->backend, "cuda") == 0 ? 0x1p-8 : 0;
}

/* TF32 cuts a factor by at most 2^-10 of itself, and so a term by 2^-9. */
static double bound_of(const struct op_run *run, int64_t terms) {
    return op_bound(terms) + (run->op_case->use & OP_TF32 ? 0x1p-9 : 0) + fp8_bound(run) + bf16_bound(run);
}

static void gemm_setup(struct op_run *run) {
    int64_t m = run->shape[0], n = run->shape[1], k = run->shape[2];
    int v = run->variant;
    struct op_tensor *t = run->tensor;
    double spread = 1 / sqrt((double)k);
    t[A] = (struct op_tensor){.name = "a", .role = OP_IN, .type = run->type, .rows = m, .cols = k};
    if (v & A_TRANSPOSED) {
        t[A].rows = k;
        t[A].cols = m;
    }
    t[B] = (struct op_tensor){.name = "b", .role = OP_IN, .type = run->type, .rows = k, .cols = n, .spread = spread};
    if (is_b_transposed(run)) {
        t[B].rows = n;
        t[B].cols = k;
    }
    t[A].stride = stride_of(run, t[A].cols);
    t[B].stride = v & PACKED ? t[B].cols : stride_of(run, t[B].cols);
    if (v & FP8)
        setup_fp8(run);
    if (v & BIAS)
        t[BIAS_VECTOR] = (struct op_tensor){.name = "bias", .role = OP_IN, .type = run->type, .rows = 1, .cols = n};
    t[C] = (struct op_tensor){.name = "c",
                              .role = v & ACCUMULATE ? OP_ADDED : OP_OUT,
                              .type = v & C_FP32 ? DTYPE_F32 : run->type,
                              .rows = m,
                              .cols = n,
                              .stride = stride_of(run, n),
                              .bound = bound_of(run, k)};
    if (v & ANY_GELU && run->type == DTYPE_BF16)
        t[C].bound += 1.13 * 0x1p-9; /* its input is rounded; the slope is at most 1.13 */
    if (v & (AUX | ANY_DGELU))
        t[AUX_MATRIX] = (struct op_tensor){.name = "aux",
                                           .role = v & ANY_DGELU ? OP_IN : OP_OUT,
                                           .type = run->type,
                                           .rows = m,
                                           .cols = n,
                                           .stride = stride_of(run, n),
                                           .bound = bound_of(run, k)};
    if (v & RESIDUAL)
        t[RESIDUAL_MATRIX] = (struct op_tensor){
            .name = "residual", .role = OP_IN, .type = run->type, .rows = m, .cols = n, .stride = stride_of(run, n)};
    if (v & BIAS_GRADIENT)
        t[BIAS_SUM] = (struct op_tensor){
            .name = "bias_gradient", .role = OP_ADDED, .type = DTYPE_F32, .rows = 1, .cols = m, .bound = op_bound(k)};
}

/* Both factors in FP8, in one block. */
struct fp8_factors {
    void *memory;
    struct matrix_view a, b;
};

static int cast_factor(const struct op_run *run, const struct ops *ops, const struct exec *exec, int index,
                       void *memory, struct matrix_view *view) {
    const struct op_tensor *t = &run->tensor[index];
    *view = matrix_plain(fp8_type_of(run, t), memory, t->rows, t->cols);
    view->form = MATRIX_FP8;
    view->scale = run->tensor[index == A ? A_SCALE : B_SCALE].data;
    return ops->fp8_cast(
        exec, &(const struct fp8_cast){
                  .rows = t->rows,
                  .cols = t->cols,
                  .stride = t->stride,
                  .x = t->data,
                  .to = {.type = view->type, .scale = run->tensor[ONE].data, .inverse = view->scale, .y = memory}});
}

static int prepare_fp8(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    size_t a_bytes = (fp8_bytes(t[A].rows, t[A].cols) + 255) / 256 * 256;
    struct fp8_factors *factors = calloc(1, sizeof *factors);
    int status =
        factors ? device_alloc(stream_device(exec->stream), a_bytes + fp8_bytes(t[B].rows, t[B].cols), &factors->memory)
                : status_fail(STATUS_MEMORY, "out of memory");
    run->state = factors;
    if (!status)
        status = cast_factor(run, ops, exec, A, factors->memory, &factors->a);
    return status ? status : cast_factor(run, ops, exec, B, (char *)factors->memory + a_bytes, &factors->b);
}

static int prepare_packed(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct device *device = stream_device(exec->stream);
    const struct op_tensor *b = &run->tensor[B];
    struct matrix_view plain = matrix_plain(run->type, b->data, b->rows, b->cols);
    size_t bytes = ops->packed_bytes(device, &plain);
    struct matrix_view *packed = malloc(sizeof *packed);
    void *memory = NULL;
    int status = packed ? device_alloc(device, bytes, &memory) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = ops->pack(exec, &(const struct pack_call){.plain = plain, .out = memory});
    if (packed)
        *packed = matrix_packed(plain, memory);
    run->state = packed;
    return status;
}

static int gemm_prepare(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    return run->variant & PACKED ? prepare_packed(run, ops, exec)
           : run->variant & FP8  ? prepare_fp8(run, ops, exec)
                                 : STATUS_OK;
}

static void gemm_release(struct op_run *run, struct device *device) {
    struct matrix_view *packed = run->state;
    struct fp8_factors *factors = run->state;
    if (run->state)
        device_free(device, run->variant & FP8 ? factors->memory : (void *)packed->data);
    free(run->state);
    run->state = NULL;
}

static float scale_of(const struct op_run *run) {
    return run->variant & SCALED_BY_ZERO ? 0 : 0.75f;
}

static struct matrix_view view_of(const struct op_tensor *t) {
    return matrix_strided(t->type, t->data, t->rows, t->cols, t->stride);
}

static struct gemm gemm_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    int v = run->variant;
    struct gemm g = {.a = view_of(&t[A]),
                     .a_transposed = v & A_TRANSPOSED,
                     .b = view_of(&t[B]),
                     .b_transposed = is_b_transposed(run),
                     .c = view_of(&t[C]),
                     .is_tf32 = run->op_case->use & OP_TF32,
                     .accumulate = v & ACCUMULATE,
                     .is_scaled = v & (SCALED | SCALED_BY_ZERO),
                     .scale = scale_of(run),
                     .bias = t[BIAS_VECTOR].data,
                     .residual = t[RESIDUAL_MATRIX].data,
                     .aux = t[AUX_MATRIX].data,
                     .bias_gradient = t[BIAS_SUM].data};
    if (v & FP8) {
        g.a.form = g.b.form = MATRIX_FP8;
        g.a.type = fp8_type_of(run, &t[A]);
        g.b.type = fp8_type_of(run, &t[B]);
        g.a.scale = t[A_SCALE].data;
        g.b.scale = t[B_SCALE].data;
    }
    if (v & FP8 && run->state) {
        g.a = ((struct fp8_factors *)run->state)->a;
        g.b = ((struct fp8_factors *)run->state)->b;
    }
    if (v & PACKED)
        g.b.form = MATRIX_PACKED;
    if (v & PACKED && run->state)
        g.b = *(struct matrix_view *)run->state;
    g.epilogue = v & GELU_TANH     ? EPILOGUE_GELU_TANH
                 : v & GELU_EXACT  ? EPILOGUE_GELU_EXACT
                 : v & DGELU_TANH  ? EPILOGUE_DGELU_TANH
                 : v & DGELU_EXACT ? EPILOGUE_DGELU_EXACT
                                   : EPILOGUE_NONE;
    return g;
}

static size_t gemm_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct gemm g = gemm_arguments(run);
    return ops->gemm_workspace(device, &g);
}

static bool gemm_supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct gemm g = gemm_arguments(run);
    return ops->gemm_supports(device, &g);
}

static int gemm_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct gemm g = gemm_arguments(run);
    return ops->gemm(exec, &g);
}

static double gelu(double x, bool is_tanh) {
    return is_tanh ? 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
                   : 0.5 * x * (1 + erf(x * 0.7071067811865476));
}

static double gelu_slope(double x, bool is_tanh) {
    if (!is_tanh)
        return 0.5 * (1 + erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * exp(-0.5 * x * x);
    double u = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + u) + 0.5 * x * (1 - u * u) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static void gemm_reference(struct op_run *run) {
    int64_t m = run->shape[0], n = run->shape[1], k = run->shape[2];
    struct op_tensor *t = run->tensor;
    int v = run->variant;
    bool b_transposed = is_b_transposed(run);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += t[A].value[v & A_TRANSPOSED ? l * m + i : i * k + l] *
                       t[B].value[b_transposed ? j * k + l : l * n + j];
            if (v & (SCALED | SCALED_BY_ZERO))
                sum *= (double)scale_of(run);
            if (v & FP8)
                sum *= t[A_SCALE].value[0] * t[B_SCALE].value[0];
            if (v & BIAS)
                sum += t[BIAS_VECTOR].value[j];
            if (v & RESIDUAL)
                sum += t[RESIDUAL_MATRIX].value[i * n + j];
            if (v & ANY_GELU && v & AUX)
                t[AUX_MATRIX].expected[i * n + j] = sum;
            if (v & ANY_GELU)
                sum = gelu(sum, v & GELU_TANH);
            if (v & ANY_DGELU)
                sum *= gelu_slope(t[AUX_MATRIX].value[i * n + j], v & DGELU_TANH);
            t[C].expected[i * n + j] = sum;
        }
    for (int64_t i = 0; v & BIAS_GRADIENT && i < m; i++)
        for (int64_t l = 0; l < k; l++)
            t[BIAS_SUM].expected[i] += t[A].value[v & A_TRANSPOSED ? l * m + i : i * k + l];
}

static void gemm_cost(const struct op_run *run, double *flops, double *bytes) {
    int64_t m = run->shape[0], n = run->shape[1], k = run->shape[2];
    *flops = 2.0 * (double)m * (double)n * (double)k;
    *bytes = (double)(m * k + n * k) * (double)dtype_bytes(run->type) +
             (double)(m * n) * (double)dtype_bytes(run->tensor[C].type);
}

static const struct op_kind gemm_kind = {
    .name = "gemm",
    .setup = gemm_setup,
    .prepare = gemm_prepare,
    .release = gemm_release,
    .workspace = gemm_workspace,
    .supports = gemm_supports,
    .call = gemm_call,
    .reference = gemm_reference,
    .cost = gemm_cost,
};

#define BOTH_TYPES(use, note, variant, ...)                                                                            \
    {&gemm_kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {                                                      \
        &gemm_kind, note, use, DTYPE_BF16, variant, {                                                                  \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

/* The weights of a decode step. */
#define PACKED_ROWS(rows)                                                                                              \
    BOTH_TYPES(OP_BENCH, "packed gpt2 qkv", PACKED | BIAS, rows, 2304, 768),                                           \
        BOTH_TYPES(OP_BENCH, "packed gpt2 attention output", PACKED | BIAS, rows, 768, 768),                           \
        BOTH_TYPES(OP_BENCH, "packed gpt2 fc1", PACKED | BIAS | GELU_TANH, rows, 3072, 768),                           \
        BOTH_TYPES(OP_BENCH, "packed gpt2 fc2", PACKED | BIAS, rows, 768, 3072),                                       \
        BOTH_TYPES(OP_BENCH, "packed gpt2 head", PACKED | C_FP32, rows, 50257, 768)

#define FP8_CASE(note, variant, ...)                                                                                   \
    {                                                                                                                  \
        &gemm_kind, "fp8, " note, OP_TEST, DTYPE_BF16, FP8 | (variant), {                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

static const struct op_case cases[] = {
    BOTH_TYPES(OP_TEST, "plain", 0, 5, 7, 3),
    BOTH_TYPES(OP_TEST, "one row", B_TRANSPOSED, 1, 33, 65),
    BOTH_TYPES(OP_TEST, "one column", FORWARD, 17, 1, 31),
    BOTH_TYPES(OP_TEST, "k 1", FORWARD, 9, 18, 1),
    BOTH_TYPES(OP_TEST, "forward", FORWARD, 64, 96, 128),
    BOTH_TYPES(OP_TEST, "forward, odd", FORWARD | STRIDED, 37, 51, 129),
    BOTH_TYPES(OP_TEST, "forward to fp32", FORWARD | C_FP32, 33, 47, 65),
    BOTH_TYPES(OP_TEST, "input gradient", 0, 64, 128, 96),
    BOTH_TYPES(OP_TEST, "input gradient, odd", STRIDED, 35, 129, 51),
    BOTH_TYPES(OP_TEST, "both transposed", A_TRANSPOSED | B_TRANSPOSED | C_FP32 | STRIDED, 29, 43, 57),
    BOTH_TYPES(OP_TEST, "weight gradient", WEIGHT_GRADIENT, 96, 64, 130),
    BOTH_TYPES(OP_TEST, "weight gradient, odd", WEIGHT_GRADIENT | STRIDED, 51, 129, 37),
    BOTH_TYPES(OP_TEST, "weight gradient, many rows", A_TRANSPOSED | ACCUMULATE | C_FP32, 24, 40, 3000),
    BOTH_TYPES(OP_TEST, "weight gradient, pieces", WEIGHT_GRADIENT | STRIDED, 19, 397, 1100),
    BOTH_TYPES(OP_TEST, "forward, pieces", FORWARD | STRIDED, 513, 601, 9),
    BOTH_TYPES(OP_TEST, "input gradient, pieces", BIAS | STRIDED, 3, 389, 8197),
    BOTH_TYPES(OP_TEST, "input gradient, long", STRIDED, 3, 41, 8197),
    BOTH_TYPES(OP_TEST, "scaled", B_TRANSPOSED | SCALED, 33, 8, 65),
    BOTH_TYPES(OP_TEST, "scaled, added", SCALED | ACCUMULATE | STRIDED, 33, 9, 65),
    BOTH_TYPES(OP_TEST, "scaled by 0", B_TRANSPOSED | SCALED_BY_ZERO, 33, 8, 65),
    BOTH_TYPES(OP_TEST, "scaled by 0, added", SCALED_BY_ZERO | ACCUMULATE, 33, 9, 65),
    BOTH_TYPES(OP_TEST, "gelu", FORWARD | GELU_TANH, 33, 65, 64),
    BOTH_TYPES(OP_TEST, "gelu saving", FORWARD | GELU_TANH | AUX | STRIDED, 33, 65, 64),
    BOTH_TYPES(OP_TEST, "exact gelu saving", FORWARD | GELU_EXACT | AUX, 33, 65, 64),
    BOTH_TYPES(OP_TEST, "gelu saving, no bias, to fp32", B_TRANSPOSED | GELU_TANH | AUX | C_FP32, 33, 65, 64),
    BOTH_TYPES(OP_TEST, "gelu saving, pieces", FORWARD | GELU_TANH | AUX, 1030, 800, 9),
    BOTH_TYPES(OP_TEST, "gelu backward", DGELU_TANH, 33, 65, 64),
    BOTH_TYPES(OP_TEST, "exact gelu backward", DGELU_EXACT | STRIDED, 31, 67, 64),
    {&gemm_kind, "gelu backward, whole accesses", OP_TEST, DTYPE_BF16, DGELU_TANH, {33, 72, 64}},
    {&gemm_kind, "exact gelu backward, whole accesses", OP_TEST, DTYPE_BF16, DGELU_EXACT, {33, 72, 64}},
    {&gemm_kind, "exact gelu saving, whole accesses", OP_TEST, DTYPE_BF16, FORWARD | GELU_EXACT | AUX, {33, 72, 64}},
    BOTH_TYPES(OP_TEST, "gelu backward, pieces", DGELU_TANH | STRIDED, 1030, 800, 9),
    BOTH_TYPES(OP_TEST, "head, odd", B_TRANSPOSED | STRIDED, 9, 1027, 27),
    BOTH_TYPES(OP_TEST, "head to fp32, odd", B_TRANSPOSED | C_FP32 | STRIDED, 3, 1027, 24),
    BOTH_TYPES(OP_TEST, "head input gradient, odd", STRIDED, 9, 40, 1027),
    BOTH_TYPES(OP_TEST, "head weight gradient, odd", A_TRANSPOSED | ACCUMULATE | C_FP32 | STRIDED, 1027, 40, 9),
    BOTH_TYPES(OP_TEST, "residual", FORWARD | RESIDUAL, 33, 64, 72),
    BOTH_TYPES(OP_TEST, "residual, odd", FORWARD | RESIDUAL | STRIDED, 35, 67, 65),
    {&gemm_kind, "few rows, residual", OP_TEST, DTYPE_BF16, FORWARD | RESIDUAL, {1, 50, 1608}},
    {&gemm_kind, "few rows, gelu", OP_TEST, DTYPE_BF16, FORWARD | GELU_TANH, {8, 24, 2312}},
    {&gemm_kind, "few rows, exact gelu", OP_TEST, DTYPE_BF16, FORWARD | GELU_EXACT, {9, 33, 40}},
    {&gemm_kind, "few rows, to fp32", OP_TEST, DTYPE_BF16, B_TRANSPOSED | C_FP32, {16, 65, 264}},
    {&gemm_kind, "tf32", OP_TEST | OP_TF32, DTYPE_F32, FORWARD, {64, 96, 128}},
    {&gemm_kind, "tf32, odd", OP_TEST | OP_TF32, DTYPE_F32, FORWARD | STRIDED, {37, 51, 129}},
    {&gemm_kind, "tf32, input gradient", OP_TEST | OP_TF32, DTYPE_F32, 0, {64, 128, 96}},
    {&gemm_kind, "tf32, weight gradient", OP_TEST | OP_TF32, DTYPE_F32, WEIGHT_GRADIENT | STRIDED, {51, 129, 370}},
    {&gemm_kind, "tf32, gelu saving", OP_TEST | OP_TF32, DTYPE_F32, FORWARD | GELU_TANH | AUX | STRIDED, {33, 65, 64}},
    {&gemm_kind, "tf32, gelu backward", OP_TEST | OP_TF32, DTYPE_F32, DGELU_TANH, {33, 65, 64}},
    {&gemm_kind, "tf32, scaled, added", OP_TEST | OP_TF32, DTYPE_F32, SCALED | ACCUMULATE | STRIDED, {33, 9, 65}},
    BOTH_TYPES(OP_TEST, "packed, one row", PACKED, 1, 32, 64),
    BOTH_TYPES(OP_TEST, "packed, odd", PACKED | BIAS | STRIDED, 3, 33, 65),
    BOTH_TYPES(OP_TEST, "packed, 1 x 1 x 1", PACKED | BIAS, 1, 1, 1),
    BOTH_TYPES(OP_TEST, "packed, fills tiles", PACKED | BIAS, 29, 97, 37),
    BOTH_TYPES(OP_TEST, "packed, to fp32", PACKED | BIAS | C_FP32, 14, 50, 66),
    BOTH_TYPES(OP_TEST, "packed, accumulating", PACKED | ACCUMULATE | C_FP32, 15, 50, 67),
    BOTH_TYPES(OP_TEST, "packed, gelu", PACKED | BIAS | GELU_TANH, 7, 70, 40),
    BOTH_TYPES(OP_TEST, "packed, exact gelu saving", PACKED | BIAS | GELU_EXACT | AUX | STRIDED, 40, 70, 41),
    BOTH_TYPES(OP_TEST, "packed, several passes", PACKED | BIAS, 200, 34, 6000),
    /* Their bounds are those of plain weights: unpacked values are the same numbers, multiplied by the same code. */
    BOTH_TYPES(OP_TEST, "packed, input gradient", PACKED_BACK, 64, 128, 96),
    BOTH_TYPES(OP_TEST, "packed, input gradient, odd", PACKED_BACK | STRIDED, 35, 129, 51),
    BOTH_TYPES(OP_TEST, "packed, input gradient, 1 x 1 x 1", PACKED_BACK, 1, 1, 1),
    BOTH_TYPES(OP_TEST, "packed, input gradient, added", PACKED_BACK | ACCUMULATE, 33, 9, 65),
    BOTH_TYPES(OP_TEST, "packed, input gradient, scaled", PACKED_BACK | SCALED | STRIDED, 33, 8, 65),
    BOTH_TYPES(OP_TEST, "packed, input gradient, pieces", PACKED_BACK | STRIDED, 3, 389, 8197),
    BOTH_TYPES(OP_TEST, "packed, gelu backward", PACKED_BACK | DGELU_TANH, 33, 65, 64),
    BOTH_TYPES(OP_TEST, "packed, exact gelu backward, pieces", PACKED_BACK | DGELU_EXACT | STRIDED, 1030, 1600, 9),
    BOTH_TYPES(OP_TEST, "packed, strided", PACKED | BIAS | STRIDED, 37, 51, 129),
    BOTH_TYPES(OP_TEST, "packed, pieces", PACKED | BIAS, 513, 601, 9),
    BOTH_TYPES(OP_TEST, "packed, odd, gelu saving", PACKED | BIAS | GELU_TANH | AUX, 33, 65, 64),

    FP8_CASE("forward", FORWARD | STRIDED, 48, 32, 64),
    FP8_CASE("forward to fp32", FORWARD | C_FP32, 33, 48, 64),
    FP8_CASE("forward, no bias, pieces", B_TRANSPOSED, 1030, 608, 16),
    FP8_CASE("gelu saving", FORWARD | GELU_TANH | AUX, 33, 64, 48),
    FP8_CASE("exact gelu", FORWARD | GELU_EXACT, 33, 64, 48),
    FP8_CASE("input gradient", A_E5M2, 48, 64, 32),
    FP8_CASE("gelu backward", A_E5M2 | DGELU_TANH, 33, 64, 48),
    FP8_CASE("exact gelu backward", A_E5M2 | DGELU_EXACT, 33, 64, 48),
    FP8_CASE("weight gradient", A_E5M2 | A_TRANSPOSED | C_FP32, 32, 48, 100),
    FP8_CASE("weight gradient, added, pieces", A_E5M2 | A_TRANSPOSED | ACCUMULATE | C_FP32, 32, 400, 3000),

    BOTH_TYPES(OP_BENCH, "gpt2 qkv forward", FORWARD, 1024, 2304, 768),
    {&gemm_kind, "fp8, gpt2 qkv forward", OP_BENCH, DTYPE_BF16, FP8 | FORWARD, {1024, 2304, 768}},
    {&gemm_kind,
     "fp8, gpt2 fc1 weight gradient",
     OP_BENCH,
     DTYPE_BF16,
     FP8 | A_E5M2 | A_TRANSPOSED | ACCUMULATE | C_FP32,
     {3072, 768, 1024}},
    BOTH_TYPES(OP_BENCH, "gpt2 attention output", FORWARD, 1024, 768, 768),
    BOTH_TYPES(OP_BENCH, "gpt2 fc1 forward, bare", B_TRANSPOSED, 1024, 3072, 768),
    BOTH_TYPES(OP_BENCH, "gpt2 fc1 forward, gelu saving", FORWARD | GELU_TANH | AUX, 1024, 3072, 768),
    BOTH_TYPES(OP_BENCH, "gpt2 fc2 forward", FORWARD, 1024, 768, 3072),
    BOTH_TYPES(OP_BENCH, "gpt2 fc2 input gradient, bare", 0, 1024, 3072, 768),
    BOTH_TYPES(OP_BENCH, "gpt2 fc2 input gradient, gelu backward", DGELU_TANH, 1024, 3072, 768),
    BOTH_TYPES(OP_BENCH, "gpt2 fc1 input gradient", 0, 1024, 768, 3072),
    BOTH_TYPES(OP_BENCH, "gpt2 fc1 weight gradient", WEIGHT_GRADIENT, 3072, 768, 1024),
    BOTH_TYPES(OP_BENCH, "gpt2 fc2 weight gradient", WEIGHT_GRADIENT, 768, 3072, 1024),
    BOTH_TYPES(OP_BENCH, "gpt2 head forward", B_TRANSPOSED, 256, 50304, 768),
    BOTH_TYPES(OP_BENCH, "gpt2 head input gradient", 0, 256, 768, 50304),
    BOTH_TYPES(OP_BENCH, "gpt2 head weight gradient", A_TRANSPOSED | ACCUMULATE | C_FP32, 50304, 768, 256),
    {&gemm_kind, "tf32, gpt2 qkv forward", OP_BENCH | OP_TF32, DTYPE_F32, FORWARD, {1024, 2304, 768}},
    {&gemm_kind,
     "tf32, gpt2 fc1 forward, gelu saving",
     OP_BENCH | OP_TF32,
     DTYPE_F32,
     FORWARD | GELU_TANH | AUX,
     {1024, 3072, 768}},
    {&gemm_kind,
     "tf32, gpt2 fc2 input gradient, gelu backward",
     OP_BENCH | OP_TF32,
     DTYPE_F32,
     DGELU_TANH,
     {1024, 3072, 768}},
    {&gemm_kind, "tf32, gpt2 fc1 weight gradient", OP_BENCH | OP_TF32, DTYPE_F32, WEIGHT_GRADIENT, {3072, 768, 1024}},
    {&gemm_kind, "tf32, gpt2 head forward", OP_BENCH | OP_TF32, DTYPE_F32, B_TRANSPOSED, {256, 50304, 768}},
    PACKED_ROWS(1),
    PACKED_ROWS(4),
    PACKED_ROWS(16),
    PACKED_ROWS(32),
    PACKED_ROWS(1024),
};

const struct op_family gemm_family = {"gemm", cases, sizeof cases / sizeof *cases};
