/* The paged cache: kv_append, shape {rows, key/value heads, head size, pages}; paged attention, shape {rows, heads,
 * key/value heads, head size, pages of a sequence, position of the first row}. What no row sees in the pages is NaN. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

enum { PAGE = KV_PAGE_TOKENS };

/* Returns the index of feature d of a token's key or value in its page, in elements (kernels/cpu/level/kv_append.c). */
static int64_t page_index(const struct op_run *run, int64_t kv_heads, int64_t size, bool is_value, int64_t head,
                          int64_t token, int64_t d) {
    int64_t unit = run->type == DTYPE_BF16 ? 2 : 1, at = ((is_value ? kv_heads : 0) + head) * PAGE * size;
    if (is_value)
        return at + (token / unit * size + d) * unit + token % unit;
    if (d >= size / unit * unit)
        return at + d * PAGE + token;
    return at + (d / unit * PAGE + token) * unit + d % unit;
}

/* ---- append ----------------------------------------------------------------------------------------------------- */

enum { APPEND_ROWS, APPEND_HEADS, APPEND_SIZE, APPEND_PAGES };
enum { K, V, PLACE, PAGES };
enum { SCATTERED = 1, FROM_START = 2 }; /* places all over the pages, every fifth row not kept; else neighbours */

static void fill_places(const struct op_run *run, struct op_tensor *t) {
    int64_t places = run->shape[APPEND_PAGES] * PAGE;
    for (int64_t i = 0; i < t->cols; i++) {
        t->value[i] = (double)((run->variant & FROM_START ? 0 : 5) + i);
        if (run->variant & SCATTERED)
            t->value[i] = i % 5 == 4 ? -1 : (double)(i * 7 % places);
    }
}

static void append_setup(struct op_run *run) {
    const int64_t *s = run->shape;
    int64_t cols = s[APPEND_HEADS] * s[APPEND_SIZE];
    struct op_tensor *t = run->tensor;
    t[K] = (struct op_tensor){
        .name = "k", .role = OP_IN, .type = run->type, .rows = s[APPEND_ROWS], .cols = cols, .stride = cols + 3};
    t[V] = t[K];
    t[V].name = "v";
    t[PLACE] = (struct op_tensor){
        .name = "place", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = s[APPEND_ROWS], .fill = fill_places};
    t[PAGES] = (struct op_tensor){.name = "pages",
                                  .role = OP_INOUT,
                                  .type = run->type,
                                  .rows = s[APPEND_PAGES],
                                  .cols = 2 * PAGE * cols,
                                  .stride = 2 * PAGE * cols + 6};
}

static int append_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    return ops->kv_append(exec, &(struct kv_append){.rows = run->shape[APPEND_ROWS],
                                                    .kv_heads = (int)run->shape[APPEND_HEADS],
                                                    .head_size = (int)run->shape[APPEND_SIZE],
                                                    .type = run->type,
                                                    .k = t[K].data,
                                                    .v = t[V].data,
                                                    .k_stride = t[K].stride,
                                                    .v_stride = t[V].stride,
                                                    .pages = t[PAGES].data,
                                                    .page_stride = t[PAGES].stride,
                                                    .place = t[PLACE].data});
}

static void append_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t heads = run->shape[APPEND_HEADS], size = run->shape[APPEND_SIZE];
    memcpy(t[PAGES].expected, t[PAGES].value, (size_t)(t[PAGES].rows * t[PAGES].cols) * sizeof(double));
    for (int64_t i = 0; i < t[K].rows; i++) {
        int64_t place = (int64_t)t[PLACE].value[i];
        for (int64_t j = 0; place >= 0 && j < t[K].cols; j++)
            for (int is_value = 0; is_value < 2; is_value++) {
                int64_t at = page_index(run, heads, size, is_value, j / size, place % PAGE, j % size);
                t[PAGES].expected[place / PAGE * t[PAGES].cols + at] = t[is_value ? V : K].value[i * t[K].cols + j];
            }
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

enum { ROWS, HEADS, KV_HEADS, SIZE, SEQUENCE_PAGES, FIRST_POSITION, WINDOW };
/* Rows of one sequence; each of its own; half and half; each of its own, and three that see nothing. */
enum { PREFILL, DECODE, MIXED, PADDED };
enum { PADDING = 3 };
enum { Q, SEQUENCE, POSITION, TABLE, CACHE, OUT };

static int64_t prefill_rows(const struct op_run *run) {
    int64_t rows = run->shape[ROWS];
    return run->variant == PREFILL ? rows : run->variant == MIXED ? rows / 2 : 0;
}

static bool is_padding(const struct op_run *run, int64_t row) {
    return run->variant == PADDED && row >= run->shape[ROWS] - PADDING;
}

static int64_t sequences_of(const struct op_run *run) {
    int64_t prefill = prefill_rows(run);
    return run->shape[ROWS] - prefill + (prefill > 0);
}

static void fill_sequences(const struct op_run *run, struct op_tensor *t) {
    int64_t prefill = prefill_rows(run);
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = is_padding(run, i) ? -1 : i < prefill ? 0 : (double)(i - prefill + (prefill > 0));
}

static void fill_positions(const struct op_run *run, struct op_tensor *t) {
    int64_t prefill = prefill_rows(run), tokens = run->shape[SEQUENCE_PAGES] * PAGE, first = run->shape[FIRST_POSITION];
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = is_padding(run, i) ? -1 : i < prefill ? (double)(first + i) : (double)((first + i * 37) % tokens);
}

/* The first token that a row sees; it sees all up to its position. */
static int64_t first_seen(const struct op_run *run, int64_t row) {
    int64_t tokens = (int64_t)run->tensor[POSITION].value[row] + 1, window = run->shape[WINDOW];
    return window && tokens > window ? tokens - window : 0;
}

/* Pages in any order; none where a sequence has no token that is seen. */
static void fill_table(const struct op_run *run, struct op_tensor *t) {
    int64_t pages = t->rows * t->cols;
    for (int64_t i = 0; i < pages; i++)
        t->value[i] = -1;
    for (int64_t i = 0; i < run->shape[ROWS]; i++) {
        int64_t at = (int64_t)run->tensor[SEQUENCE].value[i] * t->cols;
        for (int64_t token = first_seen(run, i); token <= (int64_t)run->tensor[POSITION].value[i]; token++) {
            int64_t page = at + token / PAGE;
            t->value[page] = (double)((page + 3) * (pages % 7 ? 7 : 11) % pages);
        }
    }
}

/* Random where a sequence has tokens that are seen, NaN elsewhere. */
static void fill_cache(const struct op_run *run, struct op_tensor *t) {
    int64_t kv_heads = run->shape[KV_HEADS], size = run->shape[SIZE];
    const struct op_tensor *table = &run->tensor[TABLE];
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        t->value[i] = run->is_benchmark ? (double)(i % 31) / 16 - 1 : NAN;
    for (int64_t i = 0; i < run->shape[ROWS] && !run->is_benchmark; i++) {
        int64_t sequence = (int64_t)run->tensor[SEQUENCE].value[i],
                tokens = (int64_t)run->tensor[POSITION].value[i] + 1;
        for (int64_t token = first_seen(run, i); token < tokens; token++) {
            int64_t page = (int64_t)table->value[sequence * table->cols + token / PAGE];
            for (int64_t j = 0; j < 2 * kv_heads * size; j++) {
                int64_t head = j / size % kv_heads;
                struct philox words =
                    philox(99, (uint32_t)token, (uint32_t)sequence, (uint32_t)j, (uint32_t)RNG_TEST << 24);
                int64_t at = page_index(run, kv_heads, size, j >= kv_heads * size, head, token % PAGE, j % size);
                t->value[page * t->cols + at] = 4 * rng_unit(words.word[0]) - 2;
            }
        }
    }
}

static void paged_setup(struct op_run *run) {
    const int64_t *s = run->shape;
    int64_t rows = s[ROWS], cols = s[HEADS] * s[SIZE], sequences = sequences_of(run);
    struct op_tensor *t = run->tensor;
    t[Q] = (struct op_tensor){
        .name = "q", .role = OP_IN, .type = run->type, .rows = rows, .cols = cols, .stride = cols + 5};
    t[TABLE] = (struct op_tensor){.name = "page_table",
                                  .role = OP_IN,
                                  .type = DTYPE_I32,
                                  .rows = sequences,
                                  .cols = s[SEQUENCE_PAGES],
                                  .fill = fill_table};
    t[SEQUENCE] = (struct op_tensor){
        .name = "sequence", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = rows, .fill = fill_sequences};
    t[POSITION] = (struct op_tensor){
        .name = "position", .role = OP_IN, .type = DTYPE_I32, .rows = 1, .cols = rows, .fill = fill_positions};
    t[CACHE] = (struct op_tensor){.name = "pages",
                                  .role = OP_IN,
                                  .type = run->type,
                                  .rows = sequences * s[SEQUENCE_PAGES],
                                  .cols = 2 * PAGE * s[KV_HEADS] * s[SIZE],
                                  .fill = fill_cache};
    /* As in attention_cases.c. */
    t[OUT] = (struct op_tensor){.name = "out",
                                .role = OP_OUT,
                                .type = run->type,
                                .rows = rows,
                                .cols = cols,
                                .stride = cols + 2,
                                .bound = 2 * op_bound(s[SIZE]) + op_bound(s[SEQUENCE_PAGES] * PAGE) +
                                         (run->type == DTYPE_BF16 ? 0x1p-8 : 0)};
}

static struct paged_attention paged_arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct paged_attention){.rows = run->shape[ROWS],
                                    .heads = (int)run->shape[HEADS],
                                    .kv_heads = (int)run->shape[KV_HEADS],
                                    .head_size = (int)run->shape[SIZE],
                                    .type = run->type,
                                    .q = t[Q].data,
                                    .q_stride = t[Q].stride,
                                    .scale = (float)(1 / sqrt((double)run->shape[SIZE])),
                                    .pages = t[CACHE].data,
                                    .page_stride = t[CACHE].stride,
                                    .page_table = t[TABLE].data,
                                    .max_pages = t[TABLE].cols,
                                    .sequence = t[SEQUENCE].data,
                                    .position = t[POSITION].data,
                                    .window = run->shape[WINDOW],
                                    .out = t[OUT].data,
                                    .out_stride = t[OUT].stride};
}

static size_t paged_workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct paged_attention a = paged_arguments(run);
    return ops->paged_attention_workspace(device, &a);
}

static int paged_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct paged_attention a = paged_arguments(run);
    return ops->paged_attention(exec, &a);
}

static double cached(const struct op_run *run, int64_t row, bool is_value, int64_t head, int64_t token, int64_t d) {
    const struct op_tensor *t = run->tensor;
    int64_t sequence = (int64_t)t[SEQUENCE].value[row];
    int64_t page = (int64_t)t[TABLE].value[sequence * t[TABLE].cols + token / PAGE];
    int64_t at = page_index(run, run->shape[KV_HEADS], run->shape[SIZE], is_value, head, token % PAGE, d);
    return t[CACHE].value[page * t[CACHE].cols + at];
}

static void paged_reference(struct op_run *run) {
    const int64_t *s = run->shape;
    struct op_tensor *t = run->tensor;
    double *p = malloc((size_t)(s[SEQUENCE_PAGES] * PAGE) * sizeof *p);
    for (int64_t i = 0; i < s[ROWS]; i++)
        for (int64_t head = 0; head < s[HEADS]; head++) {
            int64_t tokens = (int64_t)t[POSITION].value[i] + 1, kv_head = head / (s[HEADS] / s[KV_HEADS]);
            int64_t first = first_seen(run, i);
            int64_t at = i * t[Q].cols + head * s[SIZE];
            double largest = -INFINITY, sum = 0;
            for (int64_t j = first; j < tokens; j++) {
                p[j] = 0;
                for (int64_t d = 0; d < s[SIZE]; d++)
                    p[j] += t[Q].value[at + d] * cached(run, i, false, kv_head, j, d);
                p[j] /= sqrt((double)s[SIZE]);
                largest = fmax(largest, p[j]);
            }
            for (int64_t j = first; j < tokens; j++)
                sum += p[j] = exp(p[j] - largest);
            for (int64_t d = 0; d < s[SIZE]; d++) {
                double out = 0;
                for (int64_t j = first; j < tokens; j++)
                    out += p[j] / sum * cached(run, i, true, kv_head, j, d);
                t[OUT].expected[at + d] = out;
            }
        }
    free(p);
}

/* Decoding reads each sequence's keys and values once. */
static void paged_cost(const struct op_run *run, double *flops, double *bytes) {
    double seen = 0, window = (double)run->shape[WINDOW];
    for (int64_t i = 0; i < run->shape[ROWS]; i++) {
        int64_t prefill = prefill_rows(run), tokens = run->shape[SEQUENCE_PAGES] * PAGE;
        double row = (double)(1 + (i < prefill ? run->shape[FIRST_POSITION] + i
                                               : (run->shape[FIRST_POSITION] + i * 37) % tokens));
        seen += window != 0 && row > window ? window : row;
    }
    *flops = 4 * seen * (double)(run->shape[HEADS] * run->shape[SIZE]);
    *bytes = run->variant == DECODE
                 ? 2 * seen * (double)(run->shape[KV_HEADS] * run->shape[SIZE]) * (double)dtype_bytes(run->type)
                 : 0;
}

static const struct op_kind append = {
    .name = "kv_append", .setup = append_setup, .call = append_call, .reference = append_reference};

static const struct op_kind paged = {
    .name = "paged_attention",
    .setup = paged_setup,
    .workspace = paged_workspace,
    .call = paged_call,
    .reference = paged_reference,
    .cost = paged_cost,
};

#define BOTH_TYPES(kind, use, note, variant, ...)                                                                      \
    {kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {                                                            \
        kind, note, use, DTYPE_BF16, variant, {                                                                        \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

static const struct op_case cases[] = {
    BOTH_TYPES(&append, OP_TEST, "neighbours", 0, 75, 2, 64, 6),
    BOTH_TYPES(&append, OP_TEST, "whole pages", FROM_START, 64, 3, 24, 5),
    BOTH_TYPES(&append, OP_TEST, "odd size", 0, 50, 3, 37, 4),
    BOTH_TYPES(&append, OP_TEST, "scattered", SCATTERED, 41, 2, 5, 4),
    BOTH_TYPES(&append, OP_TEST, "one row", 0, 1, 1, 1, 1),

    BOTH_TYPES(&paged, OP_TEST, "prefill", PREFILL, 90, 2, 2, 64, 6, 0),
    BOTH_TYPES(&paged, OP_TEST, "prefill after a prefix", PREFILL, 33, 2, 1, 16, 8, 70),
    BOTH_TYPES(&paged, OP_TEST, "prefill, odd size", PREFILL, 40, 2, 2, 33, 4, 3),
    BOTH_TYPES(&paged, OP_TEST, "prefill, size 80, grouped", PREFILL, 50, 6, 2, 80, 5, 1),
    BOTH_TYPES(&paged, OP_TEST, "decode", DECODE, 7, 3, 3, 64, 9, 0),
    BOTH_TYPES(&paged, OP_TEST, "decode, padded", PADDED, 7, 4, 2, 64, 9, 5),
    BOTH_TYPES(&paged, OP_TEST, "decode, padded, odd size", PADDED, 6, 3, 3, 37, 3, 5, 20),
    BOTH_TYPES(&paged, OP_TEST, "padding alone", PADDED, 3, 2, 1, 64, 2, 0),
    BOTH_TYPES(&paged, OP_TEST, "decode, one token", DECODE, 1, 2, 2, 128, 1, 0),
    BOTH_TYPES(&paged, OP_TEST, "decode, odd size", DECODE, 5, 2, 2, 5, 7, 20),
    BOTH_TYPES(&paged, OP_TEST, "decode, grouped heads", DECODE, 5, 16, 2, 32, 6, 90),
    BOTH_TYPES(&paged, OP_TEST, "decode, 71 heads of one", DECODE, 3, 71, 1, 16, 3, 40),
    BOTH_TYPES(&paged, OP_TEST, "mixed", MIXED, 60, 4, 2, 48, 5, 9),

    BOTH_TYPES(&paged, OP_TEST, "prefill, window", PREFILL, 200, 2, 2, 64, 14, 0, 70),
    BOTH_TYPES(&paged, OP_TEST, "prefill, odd size, odd window", PREFILL, 90, 6, 2, 33, 16, 160, 37),
    BOTH_TYPES(&paged, OP_TEST, "decode, window", DECODE, 7, 3, 3, 64, 19, 250, 64),
    BOTH_TYPES(&paged, OP_TEST, "decode, odd window, grouped heads", DECODE, 5, 16, 2, 33, 16, 190, 21),
    BOTH_TYPES(&paged, OP_TEST, "decode, window of one", DECODE, 5, 4, 2, 16, 6, 90, 1),
    BOTH_TYPES(&paged, OP_TEST, "decode, three groups and a long cache", DECODE, 1, 9, 3, 64, 45, 700),
    BOTH_TYPES(&paged, OP_TEST, "decode, five groups and a long cache, window", DECODE, 1, 5, 5, 48, 60, 950, 701),
    BOTH_TYPES(&paged, OP_TEST, "two rows, one group and a long cache", PREFILL, 2, 3, 1, 80, 40, 600),
    BOTH_TYPES(&paged, OP_TEST, "mixed, window", MIXED, 60, 4, 2, 48, 9, 100, 33),

    BOTH_TYPES(&paged, OP_BENCH, "gpt2 prefill", PREFILL, 1024, 12, 12, 64, 64, 0),
    BOTH_TYPES(&paged, OP_BENCH, "gpt2 decode", DECODE, 1, 12, 12, 64, 64, 1023),
    BOTH_TYPES(&paged, OP_BENCH, "gpt2 decode, 16 sequences", DECODE, 16, 12, 12, 64, 64, 600),
    BOTH_TYPES(&paged, OP_BENCH, "decode after 4,096, 9 heads of 9 groups", DECODE, 1, 9, 9, 64, 256, 4095),
    BOTH_TYPES(&paged, OP_BENCH, "decode after 4,096, 9 heads of 3 groups", DECODE, 1, 9, 3, 64, 256, 4095),
    BOTH_TYPES(&paged, OP_BENCH, "decode after 4,096, 14 heads of 2 groups", DECODE, 1, 14, 2, 64, 256, 4095),
    BOTH_TYPES(&paged, OP_BENCH, "decode after 4,096, window 512", DECODE, 1, 9, 9, 64, 256, 4095, 512),
    BOTH_TYPES(&append, OP_BENCH, "gpt2 prefill", FROM_START, 1024, 12, 64, 64),
};

const struct op_family paged_family = {"paged", cases, sizeof cases / sizeof *cases};
