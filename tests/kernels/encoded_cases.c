/* Weights in few bits: products {m, n, k} and their input gradients, rows of a table {m, n, k}, and squares of rows
 * {n, k, first row}. The variant is the number of an encoding. */
#include "encoded_rows.h"
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

enum { Q4_0, Q4_K, Q5_1, Q8_0, Q2_K, Q3_K, Q6_K, IQ4_NL, AWQ, GPTQ, INT8, NF4, FP4, FP8, ENCODINGS };

/* A group of 0 is a row. */
static const struct {
    struct encoding encoding;
    bool has_order;
} encodings[ENCODINGS] = {
    [Q4_0] = {{CODES_INTEGERS, 4, 8, ENCODED_SYMMETRIC, DTYPE_F16, 32, 0}, false},
    [Q4_K] = {{CODES_INTEGERS, 4, 0, ENCODED_OFFSETS, DTYPE_U8, 32, 8}, false},
    [Q5_1] = {{CODES_INTEGERS, 5, 0, ENCODED_OFFSETS, DTYPE_F16, 32, 0}, false},
    [Q8_0] = {{CODES_INTEGERS, 8, 128, ENCODED_SYMMETRIC, DTYPE_F16, 32, 0}, false},
    [Q2_K] = {{CODES_INTEGERS, 2, 0, ENCODED_OFFSETS, DTYPE_U8, 16, 16}, false},
    [Q3_K] = {{CODES_INTEGERS, 3, 4, ENCODED_SYMMETRIC, DTYPE_I8, 16, 16}, false},
    [Q6_K] = {{CODES_INTEGERS, 6, 32, ENCODED_SYMMETRIC, DTYPE_I8, 16, 16}, false},
    [IQ4_NL] = {{CODES_IQ4, 4, 0, ENCODED_SYMMETRIC, DTYPE_F16, 32, 0}, false},
    [AWQ] = {{CODES_INTEGERS, 4, 0, ENCODED_ZEROS, DTYPE_F16, 128, 0}, false},
    [GPTQ] = {{CODES_INTEGERS, 4, 0, ENCODED_ZEROS, DTYPE_F16, 32, 0}, true},
    [INT8] = {{CODES_INTEGERS, 8, 128, ENCODED_SYMMETRIC, DTYPE_BF16, 0, 0}, false},
    [NF4] = {{CODES_NF4, 4, 0, ENCODED_SYMMETRIC, DTYPE_F32, 64, 0}, false},
    [FP4] = {{CODES_FP4, 4, 0, ENCODED_SYMMETRIC, DTYPE_F32, 64, 0}, false},
    [FP8] = {{CODES_E4M3, 8, 0, ENCODED_SYMMETRIC, DTYPE_BF16, 128, 0}, false},
};

/* ---- the weight ---- */

enum { WEIGHT, X, Y, TOKENS };

static struct encoded_part part_of(const struct op_run *run, int64_t n, int64_t k) {
    struct encoded_part part = {.rows = n,
                                .positions = k,
                                .has_order = encodings[run->variant].has_order,
                                .encoding = encodings[run->variant].encoding};
    if (part.has_order)
        part.positions = (k * 3 + 1) / 2 + 5; /* a third of them is empty */
    if (!part.encoding.group)
        part.encoding.group = (int32_t)k;
    return part;
}

/* Returns rows whose `codes` the caller frees; NULL without memory. In a benchmark, all are equal: to draw them takes
 * longer than to measure, and bytes of 0x3c are scales near 1 in any type. */
static struct encoded_rows make_rows(const struct op_run *run, const struct encoded_part *part, int64_t k) {
    size_t bytes = encoded_rows_bytes(part);
    void *memory = malloc(bytes);
    struct encoded_rows rows = encoded_rows_place(part, memory);
    if (memory && run->is_benchmark)
        memset(memory, 0x3c, bytes);
    else if (memory)
        encoded_fill(&rows, k, 17);
    rows.codes = memory ? rows.codes : NULL;
    return rows;
}

/* The values of the weight, rounded to the type of the run if the operation rounds them. */
static void fill_weight(const struct op_run *run, struct op_tensor *t, bool is_rounded) {
    struct encoded_part part = part_of(run, t->rows, t->cols);
    struct encoded_rows rows = make_rows(run, &part, t->cols);
    float *values = calloc((size_t)t->cols + 1, sizeof *values);
    for (int64_t i = 0; values && rows.codes && i < t->rows; i++) {
        encoded_row_values(&rows, i, values);
        for (int64_t j = 0; j < t->cols; j++)
            t->value[i * t->cols + j] =
                (double)(is_rounded && run->type == DTYPE_BF16 ? bf16_to_float(bf16_from_float(values[j])) : values[j]);
    }
    free(values);
    free(rows.codes);
}

static void fill_exact(const struct op_run *run, struct op_tensor *t) {
    fill_weight(run, t, false);
}

static void fill_rounded(const struct op_run *run, struct op_tensor *t) {
    fill_weight(run, t, true);
}

/* No operation reads the tensor: its values are those of the packed weight. */
static struct op_tensor weight_tensor(const struct op_run *run, int64_t n, int64_t k, bool is_rounded) {
    return (struct op_tensor){.name = "weight",
                              .role = run->is_benchmark ? 0 : OP_IN,
                              .type = DTYPE_F32,
                              .rows = n,
                              .cols = k,
                              .fill = is_rounded ? fill_rounded : fill_exact};
}

/* A packed weight. */
struct packed {
    struct encoded_layout layout;
    void *memory;
};

/* Returns the view of the weight, which is without memory until it is packed. */
static struct matrix_view weight_view(const struct op_run *run, struct encoded_layout *layout) {
    const struct op_tensor *t = &run->tensor[WEIGHT];
    const struct packed *packed = run->state;
    struct matrix_view view = matrix_plain(run->type, NULL, t->rows, t->cols);
    *layout = (struct encoded_layout){1, {part_of(run, t->rows, t->cols)}};
    view = matrix_packed(view, packed ? packed->memory : NULL);
    view.encoded = packed ? &packed->layout : layout;
    return view;
}

static int weight_prepare(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct device *device = stream_device(exec->stream);
    struct packed *packed = calloc(1, sizeof *packed);
    if (!packed)
        return status_fail(STATUS_MEMORY, "out of memory");
    struct matrix_view view = weight_view(run, &packed->layout);
    struct encoded_rows rows = make_rows(run, &packed->layout.parts[0], view.columns);
    run->state = packed;
    int status = rows.codes ? device_alloc(device, ops->packed_bytes(device, &view), &packed->memory)
                            : status_fail(STATUS_MEMORY, "out of memory");
    THEN(status, ops->pack(exec, &(const struct pack_call){.plain = view, .out = packed->memory, .rows = &rows}));
    int waited = stream_wait(exec->stream);
    free(rows.codes);
    return status ? status : waited;
}

static void weight_release(struct op_run *run, struct device *device) {
    struct packed *packed = run->state;
    if (packed)
        device_free(device, packed->memory);
    free(packed);
    run->state = NULL;
}

static bool weight_supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct encoded_layout layout;
    struct matrix_view view = weight_view(run, &layout);
    return ops->packed_bytes(device, &view) > 0;
}

static double weight_bytes(const struct op_run *run) {
    const struct op_tensor *t = &run->tensor[WEIGHT];
    const struct encoding *e = &encodings[run->variant].encoding;
    double scales = e->group ? (double)dtype_bytes(e->scale_type) / e->group : 0;
    return (double)(t->rows * t->cols) * (e->bits / 8.0 + scales * (e->shift == ENCODED_SYMMETRIC ? 1 : 2));
}

/* Sums of offsets are larger than results. In bf16 a GPU has two numbers for one of NF4 and FP4, to 2^-16, and the CPU
 * one for a number of NF4, to 2^-9. */
static double bound_of(const struct op_run *run, int64_t terms) {
    const struct encoding *e = &encodings[run->variant].encoding;
    bool is_gpu = !strcmp(run->backend, "cuda"), is_near = run->type == DTYPE_BF16 && e->codes == CODES_NF4;
    double error = is_gpu ? 0x1p-16 : is_near ? 0x1p-9 : 0;
    return op_bound(terms) * (e->shift == ENCODED_SYMMETRIC ? 1 : 4) + error;
}

/* Returns true if a forward product of `rows` rows takes the values rounded to bf16, as that of many on a GPU does. */
static bool rounds_values(const struct op_run *run, int64_t rows) {
    enum { FEW_ROWS = 64 };
    return rows > FEW_ROWS && run->type == DTYPE_BF16 && !strcmp(run->backend, "cuda");
}

/* ---- products: y = x W', and dx = dy W, with y for dy and x for dx ---- */

static void forward_setup(struct op_run *run) {
    int64_t m = run->shape[0], n = run->shape[1], k = run->shape[2];
    struct op_tensor *t = run->tensor;
    t[WEIGHT] = weight_tensor(run, n, k, rounds_values(run, m));
    t[X] = (struct op_tensor){.name = "x", .role = OP_IN, .type = run->type, .rows = m, .cols = k};
    t[Y] = (struct op_tensor){
        .name = "y", .role = OP_OUT, .type = DTYPE_F32, .rows = m, .cols = n, .bound = bound_of(run, k)};
}

enum { DX = TOKENS + 1 };

static void backward_setup(struct op_run *run) {
    int64_t m = run->shape[0], n = run->shape[1], k = run->shape[2];
    struct op_tensor *t = run->tensor;
    t[WEIGHT] = weight_tensor(run, n, k, true);
    t[X] = (struct op_tensor){.name = "x", .role = OP_IN, .type = run->type, .rows = m, .cols = k};
    t[Y] = (struct op_tensor){.name = "dy", .role = OP_IN, .type = run->type, .rows = m, .cols = n};
    t[DX] = (struct op_tensor){.name = "dx",
                               .role = OP_OUT,
                               .type = run->type,
                               .rows = m,
                               .cols = k,
                               .bound = op_bound(n),
                               .gradient_of = 1 + X};
}

static struct gemm product_of(const struct op_run *run, struct encoded_layout *layout) {
    const struct op_tensor *t = run->tensor, *from = &t[t[DX].role ? Y : X], *to = &t[t[DX].role ? DX : Y];
    return (struct gemm){.a = matrix_plain(from->type, from->data, from->rows, from->cols),
                         .b = weight_view(run, layout),
                         .b_transposed = !t[DX].role,
                         .c = matrix_plain(to->type, to->data, to->rows, to->cols)};
}

static bool product_supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct encoded_layout layout;
    struct gemm g = product_of(run, &layout);
    return weight_supports(run, ops, device) && ops->gemm_supports(device, &g);
}

static size_t product_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct encoded_layout layout;
    struct gemm g = product_of(run, &layout);
    return ops->gemm_workspace(device, &g);
}

static int product_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct encoded_layout layout;
    struct gemm g = product_of(run, &layout);
    return ops->gemm(exec, &g);
}

static double product_at(const struct op_run *run, int64_t i, int64_t j) {
    const struct op_tensor *t = run->tensor;
    int64_t k = t[X].cols;
    double sum = 0;
    for (int64_t l = 0; l < k; l++)
        sum += t[X].value[i * k + l] * t[WEIGHT].value[j * k + l];
    return sum;
}

static void forward_reference(struct op_run *run) {
    struct op_tensor *y = &run->tensor[Y];
    for (int64_t i = 0; i < y->rows * y->cols; i++)
        y->expected[i] = product_at(run, i / y->cols, i % y->cols);
}

static void backward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t n = t[Y].cols, k = t[X].cols;
    for (int64_t i = 0; i < t[X].rows; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; l < k; l++)
                t[DX].expected[i * k + l] += t[Y].value[i * n + j] * t[WEIGHT].value[j * k + l];
}

static double backward_loss(const struct op_run *run) {
    const struct op_tensor *y = &run->tensor[Y];
    double loss = 0;
    for (int64_t i = 0; i < y->rows * y->cols; i++)
        loss += y->value[i] * product_at(run, i / y->cols, i % y->cols);
    return loss;
}

static void product_cost(const struct op_run *run, double *flops, double *bytes) {
    const struct op_tensor *t = run->tensor;
    double m = (double)t[X].rows, n = (double)t[Y].cols, k = (double)t[X].cols;
    *flops = 2 * m * n * k;
    *bytes = weight_bytes(run) + m * k * (double)dtype_bytes(t[X].type) + m * n * (double)dtype_bytes(t[Y].type);
}

static const struct op_kind forward = {.name = "gemm_encoded",
                                       .setup = forward_setup,
                                       .prepare = weight_prepare,
                                       .release = weight_release,
                                       .workspace = product_workspace,
                                       .supports = product_supports,
                                       .call = product_call,
                                       .reference = forward_reference,
                                       .cost = product_cost};
static const struct op_kind backward = {.name = "gemm_encoded_backward",
                                        .setup = backward_setup,
                                        .prepare = weight_prepare,
                                        .release = weight_release,
                                        .workspace = product_workspace,
                                        .supports = product_supports,
                                        .call = product_call,
                                        .reference = backward_reference,
                                        .loss = backward_loss,
                                        .cost = product_cost};

/* ---- rows of a table ---- */

static void embedding_setup(struct op_run *run) {
    int64_t m = run->shape[0], n = run->shape[1], k = run->shape[2];
    struct op_tensor *t = run->tensor;
    t[WEIGHT] = weight_tensor(run, n, k, true);
    t[TOKENS] = (struct op_tensor){
        .name = "tokens", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = m, .spread = (double)n};
    t[X] = (struct op_tensor){.name = "x", .role = OP_OUT, .type = run->type, .rows = m, .cols = k};
}

static int embedding_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct encoded_layout layout;
    const struct op_tensor *t = run->tensor;
    return ops->embedding_forward(exec, &(const struct embedding){.rows = t[X].rows,
                                                                  .cols = t[X].cols,
                                                                  .type = run->type,
                                                                  .tokens = t[TOKENS].data,
                                                                  .token_table = weight_view(run, &layout),
                                                                  .first_virtual = t[WEIGHT].rows,
                                                                  .x = t[X].data});
}

static void embedding_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t k = t[X].cols;
    for (int64_t i = 0; i < t[X].rows * k; i++)
        t[X].expected[i] = t[WEIGHT].value[(int64_t)t[TOKENS].value[i / k] * k + i % k];
}

static void embedding_cost(const struct op_run *run, double *flops, double *bytes) {
    const struct op_tensor *t = run->tensor;
    *flops = 0;
    *bytes = (double)(t[X].rows * t[X].cols) *
             ((double)dtype_bytes(run->type) + weight_bytes(run) / (double)(t[WEIGHT].rows * t[WEIGHT].cols));
}

static const struct op_kind embedding = {.name = "embedding_encoded",
                                         .setup = embedding_setup,
                                         .prepare = weight_prepare,
                                         .release = weight_release,
                                         .supports = weight_supports,
                                         .call = embedding_call,
                                         .reference = embedding_reference,
                                         .cost = embedding_cost};

/* ---- squares of rows ---- */

static void squares_setup(struct op_run *run) {
    int64_t n = run->shape[0], k = run->shape[1], first = run->shape[2];
    run->tensor[WEIGHT] = weight_tensor(run, n, k, true);
    run->tensor[Y] = (struct op_tensor){
        .name = "squares", .role = OP_OUT, .type = DTYPE_F32, .rows = 1, .cols = n - first, .bound = op_bound(k)};
}

static int squares_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct encoded_layout layout;
    return ops->row_squares(exec, &(const struct row_squares){.weight = weight_view(run, &layout),
                                                              .first_row = run->shape[2],
                                                              .rows = run->tensor[Y].cols,
                                                              .squares = run->tensor[Y].data});
}

static void squares_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t k = t[WEIGHT].cols, before = run->shape[2] * k;
    for (int64_t i = 0; i < t[Y].cols * k; i++)
        t[Y].expected[i / k] += t[WEIGHT].value[i + before] * t[WEIGHT].value[i + before];
}

static void squares_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 2.0 * (double)(run->shape[0] * run->shape[1]);
    *bytes = weight_bytes(run);
}

static const struct op_kind squares = {.name = "row_squares_encoded",
                                       .setup = squares_setup,
                                       .prepare = weight_prepare,
                                       .release = weight_release,
                                       .supports = weight_supports,
                                       .call = squares_call,
                                       .reference = squares_reference,
                                       .cost = squares_cost};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

#define TESTS(note, variant)                                                                                           \
    BOTH_TYPES(forward, note, OP_TEST, variant, 1, 33, 67), BOTH_TYPES(forward, note, OP_TEST, variant, 19, 97, 301),  \
        BOTH_TYPES(forward, note, OP_TEST, variant, 40, 35, 131),                                                      \
        BOTH_TYPES(forward, note, OP_TEST, variant, 256, 37, 129),                                                     \
        BOTH_TYPES(backward, note, OP_TEST, variant, 7, 35, 131),                                                      \
        BOTH_TYPES(embedding, note, OP_TEST, variant, 9, 45, 131),                                                     \
        BOTH_TYPES(squares, note, OP_TEST, variant, 45, 131, 3), BOTH_TYPES(squares, note, OP_TEST, variant, 45, 601)

/* A decode step, a few of them at a time, and prompts. */
#define BENCHMARKS(note, variant)                                                                                      \
    BOTH_TYPES(forward, note, OP_BENCH, variant, 1, 3072, 768),                                                        \
        BOTH_TYPES(forward, note, OP_BENCH, variant, 16, 3072, 768),                                                   \
        BOTH_TYPES(forward, note, OP_BENCH, variant, 1024, 3072, 768),                                                 \
        BOTH_TYPES(backward, note, OP_BENCH, variant, 1024, 3072, 768)

static const struct op_case cases[] = {
    TESTS("q4_0", Q4_0),
    TESTS("q4_k", Q4_K),
    TESTS("q5_1", Q5_1),
    TESTS("q8_0", Q8_0),
    TESTS("q2_k", Q2_K),
    TESTS("q3_k", Q3_K),
    TESTS("q6_k", Q6_K),
    TESTS("iq4_nl", IQ4_NL),
    TESTS("awq", AWQ),
    TESTS("gptq by act-order", GPTQ),
    TESTS("int8 by row", INT8),
    TESTS("nf4", NF4),
    TESTS("fp4", FP4),
    TESTS("fp8", FP8),
    BENCHMARKS("q4_0", Q4_0),
    BENCHMARKS("q4_k", Q4_K),
    BENCHMARKS("q8_0", Q8_0),
    BENCHMARKS("nf4", NF4),
    BOTH_TYPES(embedding, "q8_0", OP_BENCH, Q8_0, 1024, 3072, 768),
    BOTH_TYPES(squares, "q4_0", OP_BENCH, Q4_0, 3072, 768),
};

const struct op_family encoded_family = {"encoded", cases, sizeof cases / sizeof *cases};
