/* The products of attention: register blocks of SIMD_ROWS rows by SIMD_WIDE vectors, or of one row by four vectors
 * where there is one row. One chain of multiply-adds a result, so that blocking does not change bits. */
#include "cpu/level/attention-internal.h"

enum { WIDEST = 4 };

/* sum[r][n] += sum over steps k of a(r, k) * b[n][k]. */
struct run {
    const float *a;
    int64_t a_row, a_step;
    const float *b[WIDEST];
    int64_t b_step;
    int64_t steps;
    /* Fetched as b is read, with one row: such a product waits for the memory alone. */
    const float *next[WIDEST];
};

ATTENTION_INLINE void run_block(bool pairs, int rows, int wide, vfloat sum[][WIDEST], const struct run *run) {
    const float *a = run->a;
    for (int64_t k = 0; k < run->steps; k++) {
        vfloat b[WIDEST];
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) {
            b[n] = simd_load(run->b[n] + k * run->b_step);
            if (rows == 1)
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

ATTENTION_INLINE void score_block(bool pairs, int rows, int wide, const struct score_product *p, int row, int vector) {
    vfloat sum[SIMD_ROWS][WIDEST];
    struct run run = {
        .a = p->a + row * p->a_row, .a_row = p->a_row, .a_step = 1, .b_step = PANEL_KEYS, .steps = p->shape->depth};
#pragma GCC unroll 4
    for (int n = 0; n < wide; n++) {
        int key = (vector + n) * SIMD_LANES;
        run.b[n] = p->key[key / PANEL_KEYS] + key % PANEL_KEYS;
        run.next[n] = rows == 1 ? p->next_key[key / PANEL_KEYS] + key % PANEL_KEYS : NULL;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++)
            sum[r][n] = simd_set(0.0f);
    run_block(pairs, rows, wide, sum, &run);
    store_block(rows, wide, sum, p->scores + row * CHUNK_KEYS + vector * SIMD_LANES, CHUNK_KEYS);
}

static inline int vectors_of(int keys) {
    return (keys + SIMD_LANES - 1) / SIMD_LANES;
}

ATTENTION_INLINE void scores(bool pairs, const struct score_product *p) {
    if (p->rows == 1) {
        int vectors = vectors_of(p->visible[0]), v = 0;
        for (; v + WIDEST <= vectors; v += WIDEST)
            score_block(pairs, 1, WIDEST, p, 0, v);
        for (; v < vectors; v++)
            score_block(pairs, 1, 1, p, 0, v);
        return;
    }
    int vectors[TILE_ROWS / SIMD_ROWS];
    for (int row = 0; row < p->rows; row += SIMD_ROWS) {
        int most = 0;
        for (int r = row; r < row + SIMD_ROWS; r++)
            most = p->visible[r] > most ? p->visible[r] : most;
        vectors[row / SIMD_ROWS] = vectors_of(most);
    }
    for (int v = 0; v < CHUNK_VECTORS; v += SIMD_WIDE)
        for (int row = 0; row < p->rows; row += SIMD_ROWS) {
            int left = vectors[row / SIMD_ROWS] - v;
            if (left >= SIMD_WIDE)
                score_block(pairs, SIMD_ROWS, SIMD_WIDE, p, row, v);
            else if (left > 0)
                score_block(pairs, SIMD_ROWS, 1, p, row, v);
        }
}

void LEVEL(attention_scores)(const struct score_product *p) {
    if (SIMD_PAIRS && p->shape->pairs)
        scores(true, p);
    else
        scores(false, p);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* Keys 0 .. keys-1, which all rows of the block see; whole groups. */
ATTENTION_INLINE void value_block(bool pairs, int rows, int wide, const struct value_product *p, int row, int vector,
                                  int keys) {
    const int group = pairs ? 2 : 1;
    const struct chunk *next = p->chunk->next ? p->chunk->next : p->chunk;
    vfloat sum[SIMD_ROWS][WIDEST];
    float *c = p->sums + (int64_t)row * p->shape->width + vector * SIMD_LANES;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++)
            sum[r][n] = simd_load(c + r * (int64_t)p->shape->width + n * SIMD_LANES) * simd_set(p->rescale[row + r]);
    struct run run = {
        .a = p->weights + row * CHUNK_KEYS, .a_row = CHUNK_KEYS, .a_step = 1, .b_step = p->chunk->value_step};
    for (int panel = 0; panel * PANEL_KEYS < keys; panel++) {
        int left = keys - panel * PANEL_KEYS;
        run.steps = (left < PANEL_KEYS ? left : PANEL_KEYS) / group;
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) {
            run.b[n] = p->chunk->value[panel] + (vector + n) * SIMD_LANES;
            run.next[n] = next->value[panel] + (vector + n) * SIMD_LANES;
        }
        run_block(pairs, rows, wide, sum, &run);
        run.a += PANEL_KEYS / group;
    }
    store_block(rows, wide, sum, c, p->shape->width);
}

/* Keys from .. visible-1 of one row; of a pair whose second key is not seen, only the first is multiplied. */
ATTENTION_INLINE void value_rest(bool pairs, const struct value_product *p, int row, int from) {
    const int group = pairs ? 2 : 1;
    const float *weights = p->weights + row * CHUNK_KEYS;
    for (int d = 0; d < p->shape->width; d += SIMD_LANES) {
        float *c = p->sums + (int64_t)row * p->shape->width + d;
        vfloat sum = simd_load(c);
        for (int k = from; k < p->visible[row]; k += group) {
            const float *value = p->chunk->value[k / PANEL_KEYS] + k % PANEL_KEYS / group * p->chunk->value_step + d;
            vfloat b = simd_load(value);
            if (pairs && k + 1 == p->visible[row])
                b = (vfloat)((vword)b & simd_words(0xffff));
            sum = simd_dot(pairs, simd_set(weights[k / group]), b, sum);
        }
        simd_store(c, sum);
    }
}

ATTENTION_INLINE void value_strip(bool pairs, int block, const struct value_product *p, int vector, int wide,
                                  const int *shared, const int *most) {
    for (int row = 0; row < p->rows; row += block) {
        if (!most[row / block])
            continue;
        if (wide == 1)
            value_block(pairs, block, 1, p, row, vector, shared[row / block]);
        else
            value_block(pairs, block, block == 1 ? WIDEST : SIMD_WIDE, p, row, vector, shared[row / block]);
    }
}

ATTENTION_INLINE void values(bool pairs, int block, const struct value_product *p) {
    const int wide = block == 1 ? WIDEST : SIMD_WIDE;
    int shared[TILE_ROWS / SIMD_ROWS], most[TILE_ROWS / SIMD_ROWS];
    for (int row = 0; row < p->rows; row += block) {
        int low = CHUNK_KEYS, high = 0;
        for (int r = row; r < row + block; r++) {
            low = p->visible[r] < low ? p->visible[r] : low;
            high = p->visible[r] > high ? p->visible[r] : high;
        }
        shared[row / block] = pairs ? low / 2 * 2 : low;
        most[row / block] = high;
    }
    int vectors = p->shape->width / SIMD_LANES, v = 0;
    for (; v + wide <= vectors; v += wide)
        value_strip(pairs, block, p, v, wide, shared, most);
    for (; v < vectors; v++)
        value_strip(pairs, block, p, v, 1, shared, most);
    for (int row = 0; row < p->rows; row++)
        if (p->visible[row] > shared[row / block])
            value_rest(pairs, p, row, shared[row / block]);
}

void LEVEL(attention_values)(const struct value_product *p) {
    bool pairs = SIMD_PAIRS && p->shape->pairs;
    if (p->rows == 1 && pairs)
        values(true, 1, p);
    else if (p->rows == 1)
        values(false, 1, p);
    else if (pairs)
        values(true, SIMD_ROWS, p);
    else
        values(false, SIMD_ROWS, p);
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* a_row, a_step: the constants that the product's are known to be, so that addresses need no multiplication. */
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
    run_block(pairs, SIMD_ROWS, wide, sum, &run);
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
