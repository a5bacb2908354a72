/* The products of attention, in register blocks of SIMD_ROWS rows by SIMD_WIDE vectors. A tile of at most SIMD_ROWS
 * rows is one block, by four vectors if the registers hold them. Each result is one chain of multiply-adds, so that
 * blocking does not change bits. */
#include "cpu/level/attention-internal.h"

enum { WIDEST = 4 };

static inline int wide_of(int rows) {
    return rows <= SIMD_ROWS / 2 ? WIDEST : SIMD_WIDE;
}

/* Calls `body` with a constant number of rows, for 1 .. SIMD_ROWS. */
#define FEW_ROWS_CASE(body, n, ...)                                                                                    \
    case n:                                                                                                            \
        if (n <= SIMD_ROWS)                                                                                            \
            body(n, __VA_ARGS__);                                                                                      \
        break;
#define FEW_ROWS_SWITCH(rows, body, ...)                                                                               \
    switch (rows) {                                                                                                    \
        FEW_ROWS_CASE(body, 1, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 2, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 3, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 4, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 5, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 6, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 7, __VA_ARGS__)                                                                            \
        FEW_ROWS_CASE(body, 8, __VA_ARGS__)                                                                            \
    }
_Static_assert(SIMD_ROWS <= 8, "each number of rows has its case");

/* sum[r][n] += sum over steps k of a(r, k) * b[n][k]. */
struct run {
    const float *a;
    int64_t a_row, a_step;
    const float *b[WIDEST];
    int64_t b_step;
    int64_t steps;
    const float *next[WIDEST]; /* with is_few, prefetched while b is read: products of few rows wait for the memory */
};

ATTENTION_INLINE void run_block(bool pairs, bool is_few, int rows, int wide, vfloat sum[][WIDEST],
                                const struct run *run) {
    const float *a = run->a;
    for (int64_t k = 0; k < run->steps; k++) {
        vfloat b[WIDEST];
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) {
            b[n] = simd_load(run->b[n] + k * run->b_step);
            if (is_few)
                __builtin_prefetch(run->next[n] + k * run->b_step, 0, 3);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vfloat x = simd_set(a[r * run->a_row + k * run->a_step]);
#pragma GCC unroll 4
            for (int n = 0; n < wide; n++)
                sum[r][n] = simd_dot(pairs, x, b[n], sum[r][n]);
        }
    }
}

ATTENTION_INLINE void store_block(int rows, int wide, vfloat sum[][WIDEST], float *c, int64_t c_row) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++)
            simd_store(c + r * c_row + n * SIMD_LANES, sum[r][n]);
}

/* ---- scores ----------------------------------------------------------------------------------------------------- */

ATTENTION_INLINE void score_block(bool pairs, bool is_few, int rows, int wide, const struct score_product *p, int row,
                                  int vector) {
    vfloat sum[SIMD_ROWS][WIDEST];
    struct run run = {
        .a = p->a + row * p->a_row, .a_row = p->a_row, .a_step = 1, .b_step = PANEL_KEYS, .steps = p->shape->depth};
#pragma GCC unroll 4
    for (int n = 0; n < wide; n++) {
        int key = (vector + n) * SIMD_LANES;
        run.b[n] = p->key[key / PANEL_KEYS] + key % PANEL_KEYS;
        run.next[n] = is_few ? p->next_key[key / PANEL_KEYS] + key % PANEL_KEYS : NULL;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++)
            sum[r][n] = simd_set(0.0f);
    run_block(pairs, is_few, rows, wide, sum, &run);
    store_block(rows, wide, sum, p->scores + row * CHUNK_KEYS + vector * SIMD_LANES, CHUNK_KEYS);
}

/* Returns the vectors of the chunk that a block of rows needs: from .. to - 1. */
static inline struct seen_keys seen_vectors(const struct seen_keys *seen, int rows) {
    struct seen_keys any = seen ? seen[0] : (struct seen_keys){0, CHUNK_KEYS};
    for (int r = 1; seen && r < rows; r++) {
        any.from = seen[r].from < any.from ? seen[r].from : any.from;
        any.to = seen[r].to > any.to ? seen[r].to : any.to;
    }
    return (struct seen_keys){any.from / SIMD_LANES, (any.to + SIMD_LANES - 1) / SIMD_LANES};
}

ATTENTION_INLINE void few_scores(int rows, bool pairs, const struct score_product *p) {
    struct seen_keys vectors = seen_vectors(p->seen, rows);
    int v = vectors.from;
    for (; v + wide_of(rows) <= vectors.to; v += wide_of(rows))
        score_block(pairs, true, rows, wide_of(rows), p, 0, v);
    for (; v < vectors.to; v++)
        score_block(pairs, true, rows, 1, p, 0, v);
}

ATTENTION_INLINE void scores(bool pairs, const struct score_product *p) {
    struct seen_keys vectors[TILE_ROWS / SIMD_ROWS];
    for (int row = 0; row < p->rows; row += SIMD_ROWS)
        vectors[row / SIMD_ROWS] = seen_vectors(p->seen ? p->seen + row : NULL, SIMD_ROWS);
    for (int v = 0; v < CHUNK_VECTORS; v += SIMD_WIDE)
        for (int row = 0; row < p->rows; row += SIMD_ROWS) {
            int remaining = vectors[row / SIMD_ROWS].to - v;
            if (v + SIMD_WIDE <= vectors[row / SIMD_ROWS].from)
                continue;
            if (remaining >= SIMD_WIDE)
                score_block(pairs, false, SIMD_ROWS, SIMD_WIDE, p, row, v);
            else if (remaining > 0)
                score_block(pairs, false, SIMD_ROWS, 1, p, row, v);
        }
}

void LEVEL(attention_scores)(const struct score_product *p) {
    bool pairs = SIMD_PAIRS && p->shape->pairs;
    if (p->rows <= SIMD_ROWS && pairs)
        FEW_ROWS_SWITCH(p->rows, few_scores, true, p)
    else if (p->rows <= SIMD_ROWS)
        FEW_ROWS_SWITCH(p->rows, few_scores, false, p)
    else if (pairs)
        scores(true, p);
    else
        scores(false, p);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* Adds the keys that all rows of the block see, in whole groups. */
ATTENTION_INLINE void value_block(bool pairs, bool is_few, int rows, int wide, const struct value_product *p, int row,
                                  int vector, struct seen_keys keys) {
    const int group = pairs ? 2 : 1;
    const struct chunk *next = p->chunk->next ? p->chunk->next : p->chunk;
    vfloat sum[SIMD_ROWS][WIDEST];
    float *c = p->sums + (int64_t)row * p->shape->width + vector * SIMD_LANES;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++)
            sum[r][n] = simd_load(c + r * (int64_t)p->shape->width + n * SIMD_LANES) * simd_set(p->rescale[row + r]);
    struct run run = {.a = p->weights + row * CHUNK_KEYS + keys.from / group,
                      .a_row = CHUNK_KEYS,
                      .a_step = 1,
                      .b_step = p->chunk->value_step};
    int skipped = keys.from % PANEL_KEYS / group; /* groups of the first panel */
    for (int panel = keys.from / PANEL_KEYS; panel * PANEL_KEYS < keys.to; panel++, skipped = 0) {
        int remaining = keys.to - panel * PANEL_KEYS;
        run.steps = (remaining < PANEL_KEYS ? remaining : PANEL_KEYS) / group - skipped;
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) {
            int64_t at = skipped * run.b_step + (vector + n) * SIMD_LANES;
            run.b[n] = p->chunk->value[panel] + at;
            run.next[n] = next->value[panel] + at;
        }
        run_block(pairs, is_few, rows, wide, sum, &run);
        run.a += run.steps;
    }
    store_block(rows, wide, sum, c, p->shape->width);
}

/* Adds keys of one row, after its sum was rescaled. Of a pair with one key that is not seen, only the other is added.
 */
ATTENTION_INLINE void value_rest(bool pairs, const struct value_product *p, int row, struct seen_keys keys,
                                 float rescale) {
    const int group = pairs ? 2 : 1;
    const float *weights = p->weights + row * CHUNK_KEYS;
    for (int d = 0; d < p->shape->width; d += SIMD_LANES) {
        float *c = p->sums + (int64_t)row * p->shape->width + d;
        vfloat sum = simd_load(c) * simd_set(rescale);
        for (int k = keys.from / group * group; k < keys.to; k += group) {
            const float *value = p->chunk->value[k / PANEL_KEYS] + k % PANEL_KEYS / group * p->chunk->value_step + d;
            vfloat b = simd_load(value);
            if (pairs && k + 1 == keys.to)
                b = (vfloat)((vword)b & simd_words(0xffff));
            if (pairs && k < keys.from)
                b = (vfloat)((vword)b & simd_words(0xffff0000));
            sum = simd_dot(pairs, simd_set(weights[k / group]), b, sum);
        }
        simd_store(c, sum);
    }
}

/* Passes a whole chunk as a constant, so that the inner loops have constant bounds. */
ATTENTION_INLINE void value_strip(bool pairs, bool is_few, int block, int wide, const struct value_product *p,
                                  int vector, const struct seen_keys *shared, const bool *is_seen) {
    for (int row = 0; row < p->rows; row += block)
        if (!p->seen)
            value_block(pairs, is_few, block, wide, p, row, vector, (struct seen_keys){0, CHUNK_KEYS});
        else if (is_seen[row / block])
            value_block(pairs, is_few, block, wide, p, row, vector, shared[row / block]);
}

/* Returns the keys that all rows of a block see, as whole groups; if there are none, an empty range after all keys. */
static inline struct seen_keys shared_keys(const struct seen_keys *seen, int rows, int group) {
    struct seen_keys shared = {0, CHUNK_KEYS};
    for (int r = 0; r < rows; r++) {
        shared.from = seen[r].from > shared.from ? seen[r].from : shared.from;
        shared.to = seen[r].to < shared.to ? seen[r].to : shared.to;
    }
    shared.from = (shared.from + group - 1) / group * group;
    shared.to = shared.to / group * group;
    return shared.from <= shared.to ? shared : (struct seen_keys){CHUNK_KEYS, CHUNK_KEYS};
}

/* Adds the keys of a block's rows before the shared ones. Returns true if any row sees a key. */
ATTENTION_INLINE bool values_before(bool pairs, int block, const struct value_product *p, int row,
                                    struct seen_keys shared) {
    bool is_seen = false;
    for (int r = row; r < row + block; r++) {
        struct seen_keys before = p->seen[r];
        is_seen |= before.from < before.to;
        before.to = before.to < shared.from ? before.to : shared.from;
        if (before.from < before.to) {
            value_rest(pairs, p, r, before, p->rescale[r]);
            p->rescale[r] = 1.0f;
        }
    }
    return is_seen;
}

/* Adds each row's keys before the shared ones, then the shared ones of the block, then each row's keys after them. */
ATTENTION_INLINE void values(int block, bool pairs, bool is_few, const struct value_product *p) {
    const int wide = is_few ? wide_of(block) : SIMD_WIDE;
    struct seen_keys shared[TILE_ROWS / SIMD_ROWS];
    bool is_seen[TILE_ROWS / SIMD_ROWS];
    for (int row = 0; p->seen && row < p->rows; row += block) {
        shared[row / block] = shared_keys(p->seen + row, block, pairs ? 2 : 1);
        is_seen[row / block] = values_before(pairs, block, p, row, shared[row / block]);
    }
    int vectors = p->shape->width / SIMD_LANES, v = 0;
    for (; v + wide <= vectors; v += wide)
        value_strip(pairs, is_few, block, wide, p, v, shared, is_seen);
    for (; v < vectors; v++)
        value_strip(pairs, is_few, block, 1, p, v, shared, is_seen);
    for (int row = 0; p->seen && row < p->rows; row++)
        if (p->seen[row].to > shared[row / block].to)
            value_rest(pairs, p, row, (struct seen_keys){shared[row / block].to, p->seen[row].to}, 1.0f);
}

void LEVEL(attention_values)(const struct value_product *p) {
    bool pairs = SIMD_PAIRS && p->shape->pairs;
    if (p->rows <= SIMD_ROWS && pairs)
        FEW_ROWS_SWITCH(p->rows, values, true, true, p)
    else if (p->rows <= SIMD_ROWS)
        FEW_ROWS_SWITCH(p->rows, values, false, true, p)
    else if (pairs)
        values(SIMD_ROWS, true, false, p);
    else
        values(SIMD_ROWS, false, false, p);
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* a_row and a_step equal the product's. They are constants here, so that addresses need no multiplication. */
ATTENTION_INLINE void gradient_block(bool pairs, int wide, const struct gradient_product *p, int64_t a_row,
                                     int64_t a_step, int row, int vector) {
    int from = p->from[row / SIMD_ROWS], to = p->to[row / SIMD_ROWS];
    if (from >= to)
        return;
    vfloat sum[SIMD_ROWS][WIDEST];
    float *c = p->c + (int64_t)row * p->shape->width + vector * SIMD_LANES;
#pragma GCC unroll 8
    for (int r = 0; r < SIMD_ROWS; r++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++)
            sum[r][n] = simd_load(c + r * (int64_t)p->shape->width + n * SIMD_LANES);
    struct run run = {.a = p->a + row * a_row + from * a_step,
                      .a_row = a_row,
                      .a_step = a_step,
                      .b_step = p->shape->width,
                      .steps = to - from};
#pragma GCC unroll 4
    for (int n = 0; n < wide; n++)
        run.b[n] = p->b + (int64_t)from * p->shape->width + (vector + n) * SIMD_LANES;
    run_block(pairs, false, SIMD_ROWS, wide, sum, &run);
    store_block(SIMD_ROWS, wide, sum, c, p->shape->width);
}

ATTENTION_INLINE void accumulate(bool pairs, const struct gradient_product *p, int64_t a_row, int64_t a_step) {
    int vectors = p->shape->width / SIMD_LANES, v = 0;
    for (; v + SIMD_WIDE <= vectors; v += SIMD_WIDE)
        for (int row = 0; row < p->rows; row += SIMD_ROWS)
            gradient_block(pairs, SIMD_WIDE, p, a_row, a_step, row, v);
    for (; v < vectors; v++)
        for (int row = 0; row < p->rows; row += SIMD_ROWS)
            gradient_block(pairs, 1, p, a_row, a_step, row, v);
}

void LEVEL(attention_accumulate)(const struct gradient_product *p) {
    bool pairs = SIMD_PAIRS && p->shape->pairs;
    if (p->a_step == 1 && pairs)
        accumulate(true, p, CHUNK_KEYS, 1);
    else if (p->a_step == 1)
        accumulate(false, p, CHUNK_KEYS, 1);
    else if (pairs)
        accumulate(true, p, 1, CHUNK_KEYS);
    else
        accumulate(false, p, 1, CHUNK_KEYS);
}
