/* Causal attention over segments. The shape is {rows, heads, key/value heads, head size, prefix, segments, dropout in
 * thousandths, number of the first token, window}. The model has q, k and v as one fused tensor. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS, HEADS, KV_HEADS, SIZE, PREFIX, SEGMENTS, DROPPED, FIRST_TOKEN, WINDOW };
enum { QKV, PREFIX_K, PREFIX_V, SAMPLE, TOKEN, OUT, LSE, DOUT, DQKV, DPREFIX_K, DPREFIX_V, STARTS };
enum {
    EQUAL = 1,    /* segments of the same length; else they grow */
    STRIDED = 2,  /* rows longer than their tensors */
    SCATTERED = 4 /* tokens of a segment are not neighbours */
};
enum { FIRST_HEAD = 3, SITE = 40 };
static const uint64_t seed = 0x123456789abcdefu;

static double keep_scale(const struct op_run *run) {
    return 1 / (1 - (double)run->shape[DROPPED] / 1000);
}

static double scale_of(const struct op_run *run) {
    return 1 / sqrt((double)run->shape[SIZE]);
}

static bool is_tf32(const struct op_run *run) {
    return run->op_case->use & OP_TF32;
}

static int64_t kv_size(const struct op_run *run) {
    return run->shape[KV_HEADS] * run->shape[SIZE];
}

static int64_t segment_of(const struct op_run *run, int64_t row) {
    int64_t s = 0;
    while (run->host[s + 1] <= row)
        s++;
    return s;
}

static void fill_samples(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = 17 + (double)segment_of(run, i);
}

static void fill_tokens(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++) {
        int64_t token = i - run->host[segment_of(run, i)];
        if (run->variant & SCATTERED) /* neighbours in threes */
            token = token / 3 * 10 + token % 3;
        t->value[i] = (double)(run->shape[FIRST_TOKEN] + token);
    }
}

static void fill_starts(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = (double)run->host[i];
}

/* ---- the reference, a row of a head at a time ------------------------------------------------------------------- */

struct row {
    const struct op_run *run;
    int64_t row, head, segment, first, keys; /* it sees keys first .. keys - 1, of the prefix's and those up to it */
};

static const double *key_of(const struct row *r, int64_t j, bool is_value) {
    const struct op_run *run = r->run;
    int64_t size = run->shape[SIZE], prefix = run->shape[PREFIX];
    int64_t at = r->head / (run->shape[HEADS] / run->shape[KV_HEADS]) * size;
    if (j < prefix)
        return run->tensor[is_value ? PREFIX_V : PREFIX_K].value + j * kv_size(run) + at;
    const struct op_tensor *qkv = &run->tensor[QKV];
    return qkv->value + (run->host[r->segment] + j - prefix) * qkv->cols + run->shape[HEADS] * size +
           (is_value ? kv_size(run) : 0) + at;
}

static const double *query_of(const struct row *r) {
    return r->run->tensor[QKV].value + r->row * r->run->tensor[QKV].cols + r->head * r->run->shape[SIZE];
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Softmax of the row's scores into p[keys]; returns their log-sum-exp. */
static double row_softmax(const struct row *r, double *p) {
    double largest = -INFINITY, sum = 0;
    for (int64_t j = r->first; j < r->keys; j++) {
        p[j] = scale_of(r->run) * dot(query_of(r), key_of(r, j, false), r->run->shape[SIZE]);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = r->first; j < r->keys; j++)
        sum += p[j] = exp(p[j] - largest);
    for (int64_t j = r->first; j < r->keys; j++)
        p[j] /= sum;
    return largest + log(sum);
}

/* 0, or 1 / (1 - p). */
static double dropout_factor(const struct row *r, int64_t j) {
    const struct op_run *run = r->run;
    float p = (float)run->shape[DROPPED] / 1000;
    if (p == 0)
        return 1;
    const double *sample = run->tensor[SAMPLE].value, *token = run->tensor[TOKEN].value;
    int64_t prefix = run->shape[PREFIX];
    uint32_t element =
        j < prefix ? (uint32_t)(0x80000000 - prefix + j) : (uint32_t)token[run->host[r->segment] + j - prefix];
    uint32_t word = rng_dropout_word(seed, RNG_ATTENTION_DROPOUT, SITE + FIRST_HEAD + (uint32_t)r->head,
                                     (uint32_t)sample[r->row], (uint32_t)token[r->row], element);
    return word >= rng_dropout_threshold(p) ? keep_scale(run) : 0;
}

/* One row's output; returns its log-sum-exp. */
static double row_forward(const struct row *r, double *p, double *out) {
    double lse = row_softmax(r, p);
    for (int64_t d = 0; d < r->run->shape[SIZE]; d++)
        out[d] = 0;
    for (int64_t j = r->first; j < r->keys; j++) {
        double weight = p[j] * dropout_factor(r, j);
        for (int64_t d = 0; d < r->run->shape[SIZE]; d++)
            out[d] += weight * key_of(r, j, true)[d];
    }
    return lse;
}

/* Calls `visit` for every row of every head, with room for its probabilities. */
static void each_row(const struct op_run *run, void (*visit)(const struct row *r, double *p, void *context),
                     void *context) {
    double *p = malloc((size_t)(run->shape[ROWS] + run->shape[PREFIX] + 1) * sizeof *p);
    for (int64_t head = 0; head < run->shape[HEADS]; head++)
        for (int64_t i = 0; i < run->shape[ROWS]; i++) {
            int64_t segment = segment_of(run, i);
            int64_t keys = run->shape[PREFIX] + i - run->host[segment] + 1, window = run->shape[WINDOW];
            struct row r = {run, i, head, segment, window && keys > window ? keys - window : 0, keys};
            visit(&r, p, context);
        }
    free(p);
}

struct forward_results {
    double *out, *lse; /* each may be NULL */
};

static void visit_forward(const struct row *r, double *p, void *context) {
    const struct forward_results *results = context;
    const struct op_run *run = r->run;
    double out[256], lse = row_forward(r, p, out);
    for (int64_t d = 0; results->out && d < run->shape[SIZE]; d++)
        results->out[(r->row * run->shape[HEADS] + r->head) * run->shape[SIZE] + d] = out[d];
    if (results->lse)
        results->lse[r->head * run->shape[ROWS] + r->row] = lse;
}

static void visit_loss(const struct row *r, double *p, void *context) {
    const struct op_run *run = r->run;
    double out[256], *loss = context;
    row_forward(r, p, out);
    *loss +=
        dot(out, run->tensor[DOUT].value + (r->row * run->shape[HEADS] + r->head) * run->shape[SIZE], run->shape[SIZE]);
}

static double *key_gradient_of(const struct row *r, int64_t j, bool is_value) {
    struct op_tensor *t = (struct op_tensor *)r->run->tensor;
    const double *key = key_of(r, j, is_value);
    if (j < r->run->shape[PREFIX]) {
        int from = is_value ? PREFIX_V : PREFIX_K, to = is_value ? DPREFIX_V : DPREFIX_K;
        return t[to].expected + (key - t[from].value);
    }
    return t[DQKV].expected + (key - t[QKV].value);
}

static void visit_backward(const struct row *r, double *p, void *context) {
    const struct op_run *run = r->run;
    (void)context;
    int64_t size = run->shape[SIZE];
    double out[256], scale = scale_of(run);
    const double *dout = run->tensor[DOUT].value + (r->row * run->shape[HEADS] + r->head) * size;
    double *dq = run->tensor[DQKV].expected + (query_of(r) - run->tensor[QKV].value);
    row_forward(r, p, out);
    double delta = dot(out, dout, size);
    for (int64_t j = r->first; j < r->keys; j++) {
        double factor = dropout_factor(r, j);
        double ds = scale * p[j] * (factor * dot(dout, key_of(r, j, true), size) - delta);
        double *dk = key_gradient_of(r, j, false), *dv = key_gradient_of(r, j, true);
        for (int64_t d = 0; d < size; d++) {
            dv[d] += factor * p[j] * dout[d];
            dk[d] += ds * query_of(r)[d];
            dq[d] += ds * key_of(r, j, false)[d];
        }
    }
}

/* ---- the kinds -------------------------------------------------------------------------------------------------- */

static void fill_out(const struct op_run *run, struct op_tensor *t) {
    if (!run->is_benchmark)
        each_row(run, visit_forward, &(struct forward_results){.out = t->value});
}

/* For a benchmark the log-sum-exp is only near the truth: 64 or 1,024 keys with scores of deviation one. */
static void fill_lse(const struct op_run *run, struct op_tensor *t) {
    if (!run->is_benchmark)
        each_row(run, visit_forward, &(struct forward_results){.lse = t->value});
    for (int64_t i = 0; run->is_benchmark && i < t->rows * t->cols; i++)
        t->value[i] = 8;
}

static void attention_setup(struct op_run *run) {
    const int64_t *s = run->shape;
    int64_t rows = s[ROWS], segments = s[SEGMENTS], qkv = s[HEADS] * s[SIZE] + 2 * kv_size(run);
    int64_t gap = run->variant & STRIDED ? 7 : 0;
    for (int64_t i = 0; i <= segments; i++)
        run->host[i] = run->variant & EQUAL ? rows * i / segments : rows * i * (i + 1) / (segments * (segments + 1));
    struct op_tensor *t = run->tensor;
    t[QKV] = (struct op_tensor){
        .name = "qkv", .role = OP_IN, .type = run->type, .rows = rows, .cols = qkv, .stride = qkv + gap};
    if (s[PREFIX]) {
        t[PREFIX_K] = (struct op_tensor){
            .name = "prefix_k", .role = OP_IN, .type = run->type, .rows = s[PREFIX], .cols = kv_size(run)};
        t[PREFIX_V] = t[PREFIX_K];
        t[PREFIX_V].name = "prefix_v";
    }
    t[STARTS] = (struct op_tensor){.name = "segment_start",
                                   .role = OP_IN,
                                   .type = DTYPE_I64,
                                   .rows = 1,
                                   .cols = segments + 1,
                                   .fill = fill_starts};
    t[SAMPLE] = (struct op_tensor){
        .name = "sample", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = rows, .fill = fill_samples};
    t[TOKEN] = (struct op_tensor){
        .name = "token", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = rows, .fill = fill_tokens};
    t[OUT] = (struct op_tensor){.name = "out",
                                .role = OP_OUT,
                                .type = run->type,
                                .rows = rows,
                                .cols = s[HEADS] * s[SIZE],
                                .stride = s[HEADS] * s[SIZE] + gap};
    t[LSE] = (struct op_tensor){.name = "lse", .role = OP_OUT, .type = DTYPE_F32, .rows = s[HEADS], .cols = rows};
    /* fp32: the rounding of a score, |q||k| of length D, moves a probability by as much; then come sums over keys. In
     * bf16 probabilities and their gradients may be rounded to 8 bits before they are multiplied. TF32 cuts a factor by
     * at most 2^-10 of itself, and so a term of a score, and of a sum over keys, by 2^-9. These errors are
     * independent. */
    double tf32 = is_tf32(run) ? 0x1p-9 : 0, bound = 2 * op_bound(s[SIZE]) + op_bound(rows + s[PREFIX]) + tf32;
    t[OUT].bound = bound + (run->type == DTYPE_BF16 ? 0x1p-8 : 0);
    t[LSE].bound = bound;
}

static void backward_setup(struct op_run *run) {
    attention_setup(run);
    struct op_tensor *t = run->tensor;
    double bound = t[OUT].bound;
    t[OUT].role = t[LSE].role = OP_IN;
    t[OUT].fill = fill_out;
    t[LSE].fill = fill_lse;
    t[DOUT] = (struct op_tensor){.name = "dout",
                                 .role = OP_IN,
                                 .type = run->type,
                                 .rows = t[OUT].rows,
                                 .cols = t[OUT].cols,
                                 .stride = t[OUT].stride};
    /* Sums of products whose factors carry the errors above; out itself was rounded. */
    t[DQKV] = t[QKV];
    t[DQKV].name = "dqkv";
    t[DQKV].role = OP_OUT;
    t[DQKV].bound = 2 * bound;
    t[DQKV].gradient_of = 1 + QKV;
    for (int i = 0; i < 2 && run->shape[PREFIX]; i++)
        t[DPREFIX_K + i] = (struct op_tensor){.name = i ? "dprefix_v" : "dprefix_k",
                                              .role = OP_ADDED,
                                              .type = DTYPE_F32,
                                              .rows = run->shape[PREFIX],
                                              .cols = kv_size(run),
                                              .bound = 2 * bound,
                                              .gradient_of = 1 + PREFIX_K + i};
}

static int64_t longest_segment(const struct op_run *run) {
    int64_t longest = 0;
    for (int64_t i = 0; i < run->shape[SEGMENTS]; i++) {
        int64_t rows = run->host[i + 1] - run->host[i];
        longest = rows > longest ? rows : longest;
    }
    return longest;
}

static struct attention attention_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    const int64_t *s = run->shape;
    size_t element = dtype_bytes(run->type), k_at = (size_t)(s[HEADS] * s[SIZE]) * element;
    size_t v_at = k_at + (size_t)kv_size(run) * element;
    char *qkv = t[QKV].data, *dqkv = t[DQKV].data;
    return (struct attention){
        .rows = s[ROWS],
        .segments = s[SEGMENTS],
        .segment_start = t[STARTS].data,
        .longest = longest_segment(run),
        .heads = (int)s[HEADS],
        .kv_heads = (int)s[KV_HEADS],
        .head_size = (int)s[SIZE],
        .first_head = FIRST_HEAD,
        .type = run->type,
        .is_tf32 = is_tf32(run),
        .q = qkv,
        .k = qkv + k_at,
        .v = qkv + v_at,
        .q_stride = t[QKV].stride,
        .k_stride = t[QKV].stride,
        .v_stride = t[QKV].stride,
        .scale = (float)scale_of(run),
        .out = t[OUT].data,
        .out_stride = t[OUT].stride,
        .window = s[WINDOW],
        .lse = t[LSE].data,
        .dropout = {.p = (float)s[DROPPED] / 1000,
                    .seed = seed,
                    .site = SITE,
                    .keys = {.sample = t[SAMPLE].data, .token = t[TOKEN].data}},
        .prefix = s[PREFIX],
        .prefix_k = t[PREFIX_K].data,
        .prefix_v = t[PREFIX_V].data,
        .dout = t[DOUT].data,
        .dq = dqkv,
        .dk = dqkv ? dqkv + k_at : NULL,
        .dv = dqkv ? dqkv + v_at : NULL,
        .dprefix_k = t[DPREFIX_K].data,
        .dprefix_v = t[DPREFIX_V].data,
    };
}

static size_t forward_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct attention a = attention_arguments(run);
    return ops->attention_forward_workspace(device, &a);
}

static int forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct attention a = attention_arguments(run);
    return ops->attention_forward(exec, &a);
}

static void forward_reference(struct op_run *run) {
    each_row(run, visit_forward,
             &(struct forward_results){.out = run->tensor[OUT].expected, .lse = run->tensor[LSE].expected});
}

static size_t backward_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct attention a = attention_arguments(run);
    return ops->attention_backward_workspace(device, &a);
}

static int backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct attention a = attention_arguments(run);
    return ops->attention_backward(exec, &a);
}

static void backward_reference(struct op_run *run) {
    each_row(run, visit_backward, NULL);
}

static double backward_loss(const struct op_run *run) {
    double loss = 0;
    each_row(run, visit_loss, &loss);
    return loss;
}

/* Only the pairs of a query and a key that it sees: two products forward, five backward. */
static void attention_cost(const struct op_run *run, double products, double *flops, double *bytes) {
    double pairs = 0;
    for (int64_t i = 0; i < run->shape[SEGMENTS]; i++) {
        double rows = (double)(run->host[i + 1] - run->host[i]);
        double window = (double)run->shape[WINDOW], hidden = window != 0 && rows > window ? rows - window : 0;
        pairs += rows * (rows + 1) / 2 - hidden * (hidden + 1) / 2 + rows * (double)run->shape[PREFIX];
    }
    *flops = products * 2 * pairs * (double)(run->shape[HEADS] * run->shape[SIZE]);
    *bytes = 0;
    for (int i = 0; i < OP_TENSORS; i++)
        *bytes += (double)(run->tensor[i].rows * run->tensor[i].cols) * (double)dtype_bytes(run->tensor[i].type);
}

static void forward_cost(const struct op_run *run, double *flops, double *bytes) {
    attention_cost(run, 2, flops, bytes);
}

static void backward_cost(const struct op_run *run, double *flops, double *bytes) {
    attention_cost(run, 5, flops, bytes);
}

static bool supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct matrix_view matrix = matrix_plain(DTYPE_F32, NULL, 1, 1);
    const struct gemm gemm = {.a = matrix, .b = matrix, .c = matrix, .is_tf32 = true};
    return !is_tf32(run) || ops->gemm_supports(device, &gemm);
}

static const struct op_kind forward = {
    .name = "attention_forward",
    .setup = attention_setup,
    .workspace = forward_workspace,
    .supports = supports,
    .call = forward_call,
    .reference = forward_reference,
    .cost = forward_cost,
};

static const struct op_kind backward = {
    .name = "attention_backward",
    .setup = backward_setup,
    .workspace = backward_workspace,
    .supports = supports,
    .call = backward_call,
    .reference = backward_reference,
    .loss = backward_loss,
    .cost = backward_cost,
};

#define BOTH_TYPES(kind, use, note, variant, ...)                                                                      \
    {kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {                                                            \
        kind, note, use, DTYPE_BF16, variant, {                                                                        \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define BOTH_WAYS(use, note, variant, ...)                                                                             \
    BOTH_TYPES(&forward, use, note, variant, __VA_ARGS__), BOTH_TYPES(&backward, use, note, variant, __VA_ARGS__)

#define BF16_BOTH_WAYS(note, ...)                                                                                      \
    {&forward, note, OP_TEST, DTYPE_BF16, 0, {__VA_ARGS__}}, {                                                         \
        &backward, note, OP_TEST, DTYPE_BF16, 0, {                                                                     \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

#define TF32_BOTH_WAYS(note, variant, ...)                                                                             \
    {&forward, "tf32, " note, OP_TEST | OP_TF32, DTYPE_F32, variant, {__VA_ARGS__}}, {                                 \
        &backward, "tf32, " note, OP_TEST | OP_TF32, DTYPE_F32, variant, {                                             \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

static const struct op_case cases[] = {
    BOTH_WAYS(OP_TEST, "one row", 0, 1, 1, 1, 1, 0, 1),
    BOTH_WAYS(OP_TEST, "one key of size 2", 0, 2, 1, 1, 2, 0, 2),
    BOTH_WAYS(OP_TEST, "small", 0, 9, 2, 2, 5, 0, 1),
    BOTH_WAYS(OP_TEST, "size 16", STRIDED, 40, 2, 2, 16, 0, 1),
    BOTH_WAYS(OP_TEST, "size 33, several tiles", STRIDED, 131, 2, 2, 33, 0, 1),
    BOTH_WAYS(OP_TEST, "size 64, whole tiles", 0, 128, 1, 1, 64, 0, 1),
    BOTH_WAYS(OP_TEST, "size 64, segments", EQUAL, 256, 1, 1, 64, 0, 4),
    BOTH_WAYS(OP_TEST, "size 80, segments", STRIDED, 150, 2, 2, 80, 0, 5),
    BOTH_WAYS(OP_TEST, "size 128", 0, 70, 1, 1, 128, 0, 1),
    BOTH_WAYS(OP_TEST, "size 130", 0, 66, 1, 1, 130, 0, 1),
    BOTH_WAYS(OP_TEST, "empty segments", 0, 7, 1, 1, 8, 0, 9),
    BOTH_WAYS(OP_TEST, "grouped heads", STRIDED, 90, 6, 2, 24, 0, 2),
    BOTH_WAYS(OP_TEST, "one key head", 0, 67, 5, 1, 31, 0, 1),
    BOTH_WAYS(OP_TEST, "prefix", 0, 75, 2, 2, 40, 13, 2),
    BOTH_WAYS(OP_TEST, "prefix of a whole chunk", 0, 20, 1, 1, 12, 64, 3),
    BOTH_WAYS(OP_TEST, "long prefix, grouped heads", STRIDED, 70, 4, 2, 17, 150, 3),
    BOTH_WAYS(OP_TEST, "dropout", 0, 150, 2, 2, 32, 0, 1, 100),
    BOTH_WAYS(OP_TEST, "dropout, later tokens", EQUAL, 200, 1, 1, 32, 0, 2, 300, 37),
    BOTH_WAYS(OP_TEST, "dropout, scattered tokens", SCATTERED, 90, 1, 1, 16, 0, 2, 500, 1000),
    BOTH_WAYS(OP_TEST, "dropout, prefix, grouped heads", STRIDED, 110, 4, 2, 20, 21, 3, 250, 5),
    BOTH_WAYS(OP_TEST, "window of one", 0, 70, 1, 1, 16, 0, 1, 0, 0, 1),
    BOTH_WAYS(OP_TEST, "odd window", STRIDED, 150, 2, 2, 33, 0, 2, 0, 0, 37),
    BOTH_WAYS(OP_TEST, "window of a tile", EQUAL, 256, 1, 1, 64, 0, 1, 0, 0, 64),
    BOTH_WAYS(OP_TEST, "window that reaches over a tile by two", EQUAL, 256, 1, 1, 16, 0, 1, 0, 0, 66),
    BOTH_WAYS(OP_TEST, "window, grouped heads", 0, 270, 4, 2, 24, 0, 2, 0, 0, 100),
    BOTH_WAYS(OP_TEST, "window, dropout", STRIDED, 260, 2, 1, 20, 0, 2, 250, 5, 71),
    BOTH_WAYS(OP_TEST, "window that hides nothing", 0, 70, 1, 1, 16, 0, 1, 0, 0, 70),
    BF16_BOTH_WAYS("size 40, long prefix, grouped heads", 110, 4, 2, 40, 70, 3),
    BF16_BOTH_WAYS("size 24, dropout, prefix, grouped heads", 110, 4, 2, 24, 21, 3, 250, 5),
    BF16_BOTH_WAYS("size 96, segments", 100, 1, 1, 96, 0, 3),
    BF16_BOTH_WAYS("size 200, dropout, prefix", 70, 2, 1, 200, 33, 2, 200),
    BF16_BOTH_WAYS("size 256, window", 100, 1, 1, 256, 0, 1, 0, 0, 40),
    BF16_BOTH_WAYS("size 128, several tiles", 210, 1, 1, 128, 0, 2),
    BF16_BOTH_WAYS("size 64, dropout, later tokens", 150, 1, 1, 64, 0, 2, 100, 101),
    TF32_BOTH_WAYS("one key of size 4", 0, 2, 1, 1, 4, 0, 2),
    TF32_BOTH_WAYS("size 64, whole tiles", 0, 128, 1, 1, 64, 0, 1),
    TF32_BOTH_WAYS("size 36, long prefix, grouped heads", 0, 110, 4, 2, 36, 70, 3),
    TF32_BOTH_WAYS("size 20, dropout, prefix, grouped heads", 0, 110, 4, 2, 20, 21, 3, 250, 5),
    TF32_BOTH_WAYS("size 100, dropout, later tokens", 0, 150, 1, 1, 100, 0, 2, 100, 101),
    TF32_BOTH_WAYS("size 128, window", 0, 140, 2, 1, 128, 0, 1, 0, 0, 40),
    TF32_BOTH_WAYS("rows at 4 bytes", STRIDED, 40, 2, 2, 16, 0, 1, 100),
    TF32_BOTH_WAYS("size 132", 0, 20, 1, 1, 132, 0, 1, 100),
    TF32_BOTH_WAYS("size 10", 0, 20, 2, 2, 10, 0, 1, 100),
    BOTH_WAYS(OP_LONG, "long", 0, 700, 2, 1, 64, 0, 2, 100),
    BOTH_WAYS(OP_LONG, "size 65", 0, 257, 3, 3, 65, 70, 3, 100),

    BOTH_WAYS(OP_BENCH, "gpt2", EQUAL, 1024, 12, 12, 64, 0, 1),
    {&forward, "tf32, gpt2", OP_BENCH | OP_TF32, DTYPE_F32, EQUAL, {1024, 12, 12, 64, 0, 1}},
    {&backward, "tf32, gpt2", OP_BENCH | OP_TF32, DTYPE_F32, EQUAL, {1024, 12, 12, 64, 0, 1}},
    BOTH_WAYS(OP_BENCH, "gpt2, dropout", EQUAL, 1024, 12, 12, 64, 0, 1, 100),
    BOTH_WAYS(OP_BENCH, "gpt2, 4 x 256, dropout", EQUAL, 1024, 12, 12, 64, 0, 4, 100),
    BOTH_WAYS(OP_BENCH, "window 512", EQUAL, 4096, 9, 3, 64, 0, 1, 0, 0, 512),
    BOTH_WAYS(OP_BENCH, "no window", EQUAL, 4096, 9, 3, 64, 0, 1),
    BOTH_WAYS(OP_BENCH, "size 128, grouped heads", EQUAL, 1024, 16, 4, 128, 0, 1),
    BOTH_WAYS(OP_BENCH, "2,048 tokens, size 64", EQUAL, 2048, 32, 32, 64, 0, 1),
    BOTH_WAYS(OP_BENCH, "2,048 tokens, size 128", EQUAL, 2048, 16, 16, 128, 0, 1),
};

const struct op_family attention_family = {"attention", cases, sizeof cases / sizeof *cases};
