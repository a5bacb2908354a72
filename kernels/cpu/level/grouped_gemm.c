/* Products of rows that belong to many adapters: mostly few rows, with one side of the matrix short.
 *
 * A tile is computed in blocks of rows by columns. A block's sums stay in registers, so that each load serves the whole
 * block. The blocks of rows of one range of columns are computed in turn, because that part of the matrix stays in the
 * first-level cache.
 *
 * For a matrix [n, k], a block is dot products: an output is one vector of sums along k, whose lanes are added at the
 * end. For a matrix [k, n], lanes are outputs, and each output is one chain along k. So an output's order of summation
 * does not depend on the block. Several blocks of rows read a copy of their part of such a
 * matrix: at their stride in memory its rows would evict each other from the first-level cache. */
#include "cpu/level/gelu_forms.h"
#include "cpu/level/groups.h"
#include "cpu/level/typed_vectors.h"

#include <math.h>

enum {
    BLOCK_ROWS = 6,
    BLOCK_WIDE = SIMD_LANES == 16 ? 4 : 2, /* columns of dot products; vectors of columns */
    AHEAD_BLOCKS = 4,
    PANEL_DEPTH = 128, /* rows of such a copy */
};

struct block {
    const void *a; /* of the first row */
    int64_t lda;
    const void *matrix; /* of the first column */
    int64_t stride;     /* of the matrix's rows */
    int64_t k;
    int64_t ahead;  /* elements from the place that is read to the place that is prefetched; 0: no prefetch */
    int cols;       /* columns to compute, if the block is not full */
    bool continues; /* sums begin with those in `out` */
    float *out;     /* [rows][GROUP_COLS] */
};

/* ---- dot products ---- */

/* Returns true if the operands are multiplied as pairs of bf16. Then a step along k has twice the elements. */
TYPED_BODY bool are_pairs(enum dtype a_type, enum dtype type) {
    return SIMD_PAIRS && a_type == DTYPE_BF16 && type == DTYPE_BF16;
}

TYPED_BODY vfloat load_step(const void *x, int64_t i, bool pairs, enum dtype type) {
    vfloat units;
    if (!pairs)
        return load_vector(x, i, type);
    memcpy(&units, (const uint16_t *)x + i, sizeof units);
    return units;
}

TYPED_BODY void add_step(const struct block *b, int rows, int64_t j, vfloat sum[][BLOCK_WIDE], enum dtype a_type,
                         enum dtype type) {
    const bool pairs = are_pairs(a_type, type);
    vfloat w[BLOCK_WIDE];
#pragma GCC unroll 4
    for (int v = 0; v < BLOCK_WIDE; v++) { /* a column outside the block is replaced by one inside */
        int64_t at = (v < b->cols ? v : 0) * b->stride + j;
        w[v] = load_step(b->matrix, at, pairs, type);
        if (rows == 1)
            __builtin_prefetch(at_const(b->matrix, at + b->ahead, type));
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        vfloat x = load_step(b->a, r * b->lda + j, pairs, a_type);
#pragma GCC unroll 4
        for (int v = 0; v < BLOCK_WIDE; v++)
            sum[r][v] = simd_dot(pairs, x, w[v], sum[r][v]);
    }
}

/* The last elements along k of a block's rows and columns, with zeros after them. */
struct block_end {
    float a[BLOCK_ROWS][2 * SIMD_LANES], matrix[BLOCK_WIDE][2 * SIMD_LANES];
};

/* Copies the ends of `count` rows that begin `stride` elements from each other. */
static void copy_ends(float (*to)[2 * SIMD_LANES], const void *from, int64_t stride, int count, size_t bytes,
                      enum dtype type) {
    memset(to, 0, (size_t)count * sizeof *to);
    for (int i = 0; i < count; i++)
        memcpy(to[i], at_const(from, i * stride, type), bytes);
}

/* Returns a block of the elements from `j` on, which lie in `end`. */
static struct block take_end(const struct block *b, int rows, int64_t j, enum dtype a_type, enum dtype type,
                             struct block_end *end) {
    struct block last = *b;
    copy_ends(end->a, at_const(b->a, j, a_type), b->lda, rows, (size_t)(b->k - j) * dtype_bytes(a_type), a_type);
    copy_ends(end->matrix, at_const(b->matrix, j, type), b->stride, b->cols, (size_t)(b->k - j) * dtype_bytes(type),
              type);
    last.a = end->a;
    last.lda = (int64_t)(sizeof *end->a / dtype_bytes(a_type));
    last.matrix = end->matrix;
    last.stride = (int64_t)(sizeof *end->matrix / dtype_bytes(type));
    last.ahead = 0;
    return last;
}

TYPED_BODY void dot_block(const struct block *b, int rows, enum dtype a_type, enum dtype type) {
    vfloat sum[BLOCK_ROWS][BLOCK_WIDE];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < BLOCK_WIDE; v++)
            sum[r][v] = simd_set(0.0f);
    int64_t j = 0;
    const int64_t step = are_pairs(a_type, type) ? 2 * SIMD_LANES : SIMD_LANES;
    for (; j + step <= b->k; j += step)
        add_step(b, rows, j, sum, a_type, type);
    if (j < b->k) {
        struct block_end end;
        struct block last = take_end(b, rows, j, a_type, type, &end);
        add_step(&last, rows, 0, sum, a_type, type);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < BLOCK_WIDE; v++)
            if (v < b->cols)
                b->out[r * GROUP_COLS + v] = simd_sum(sum[r][v]);
}

/* ---- chains along k ---- */

/* Computes `vectors` whole vectors of outputs, or a part of one vector if that is 0. */
TYPED_BODY void chain_block(const struct block *b, int rows, int vectors, enum dtype a_type, enum dtype type) {
    const int wide = vectors ? vectors : 1;
    vfloat sum[BLOCK_ROWS][BLOCK_WIDE];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++)
            sum[r][v] = b->continues ? simd_load(b->out + r * GROUP_COLS + v * SIMD_LANES) : simd_set(0.0f);
    for (int64_t j = 0; j < b->k; j++) {
        vfloat w[BLOCK_WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++)
            w[v] = vectors ? load_vector(b->matrix, j * b->stride + v * SIMD_LANES, type)
                           : load_part(b->matrix, j * b->stride, b->cols, type);
        if (rows == 1 && vectors > 1)
#pragma GCC unroll 4
            for (int v = 0; v < wide; v++)
                __builtin_prefetch(at_const(b->matrix, j * b->stride + v * SIMD_LANES + b->ahead, type));
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vfloat x = simd_set(load(b->a, r * b->lda + j, a_type));
#pragma GCC unroll 4
            for (int v = 0; v < wide; v++)
                sum[r][v] = simd_fma(x, w[v], sum[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++)
            simd_store(b->out + r * GROUP_COLS + v * SIMD_LANES, sum[r][v]);
}

/* ---- a tile ---- */

enum form { FORM_DOT, FORM_CHAIN, FORM_CHAIN_ONE, FORM_CHAIN_PART };

#define BLOCK_CASE(number)                                                                                             \
    case number:                                                                                                       \
        if (form == FORM_DOT)                                                                                          \
            dot_block(b, number, a_type, type);                                                                        \
        else                                                                                                           \
            chain_block(b, number, form == FORM_CHAIN ? BLOCK_WIDE : form == FORM_CHAIN_ONE, a_type, type);            \
        break;

TYPED_BODY void run_block(const struct block *b, int rows, enum form form, enum dtype a_type, enum dtype type) {
    switch (rows) {
        BLOCK_CASE(1)
        BLOCK_CASE(2)
        BLOCK_CASE(3)
        BLOCK_CASE(4)
        BLOCK_CASE(5)
        BLOCK_CASE(6)
    }
}

/* Runs the block and those below it. */
TYPED_BODY void run_column(const struct block *first, int64_t rows, enum form form, enum dtype a_type,
                           enum dtype type) {
    struct block b = *first;
    for (int64_t row = 0; row < rows; row += BLOCK_ROWS) {
        b.a = at_const(first->a, row * b.lda, a_type);
        b.out = first->out + row * GROUP_COLS;
        run_block(&b, (int)group_least(rows - row, BLOCK_ROWS), form, a_type, type);
    }
}

/* Computes the sums of a tile. `whole` is the block at its first row and column. */
TYPED_BODY void run_blocks(const struct block *whole, const struct group_tile *tile, enum dtype a_type,
                           enum dtype type) {
    bool is_by_input = tile->entry->is_by_input;
    int64_t col = 0;
    while (col < tile->cols) {
        int64_t remaining = tile->cols - col, width = is_by_input ? BLOCK_WIDE * SIMD_LANES : BLOCK_WIDE;
        struct block b = *whole;
        b.matrix = at_const(whole->matrix, is_by_input ? col : col * b.stride, type);
        b.out = whole->out + col;
        b.cols = (int)group_least(remaining, width);
        b.ahead = is_by_input ? AHEAD_BLOCKS * width : AHEAD_BLOCKS * width * b.stride;
        if (!is_by_input) {
            run_column(&b, tile->rows, FORM_DOT, a_type, type);
        } else if (remaining >= width) {
            run_column(&b, tile->rows, FORM_CHAIN, a_type, type);
        } else if (remaining >= SIMD_LANES) {
            run_column(&b, tile->rows, FORM_CHAIN_ONE, a_type, type);
            width = SIMD_LANES;
        } else {
            run_column(&b, tile->rows, FORM_CHAIN_PART, a_type, type);
        }
        col += width;
    }
}

static void blocks_f32_f32(const struct block *b, const struct group_tile *tile) {
    run_blocks(b, tile, DTYPE_F32, DTYPE_F32);
}

static void blocks_f32_bf16(const struct block *b, const struct group_tile *tile) {
    run_blocks(b, tile, DTYPE_F32, DTYPE_BF16);
}

static void blocks_bf16_f32(const struct block *b, const struct group_tile *tile) {
    run_blocks(b, tile, DTYPE_BF16, DTYPE_F32);
}

static void blocks_bf16_bf16(const struct block *b, const struct group_tile *tile) {
    run_blocks(b, tile, DTYPE_BF16, DTYPE_BF16);
}

TYPED_BODY void copy_row(const void *row, int64_t cols, float *to, enum dtype type) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        to[j] = load(row, j, type);
}

/* Computes the sums of a tile from copies of the matrix [k, n] in fp32. */
static void run_panels(const struct block *whole, const struct group_tile *tile, enum dtype a_type) {
    _Alignas(64) float panel[PANEL_DEPTH * GROUP_COLS];
    enum dtype type = tile->entry->type;
    for (int64_t first = 0; first < whole->k; first += PANEL_DEPTH) {
        struct block b = *whole;
        b.a = at_const(whole->a, first, a_type);
        b.matrix = panel;
        b.stride = GROUP_COLS;
        b.k = group_least(whole->k - first, PANEL_DEPTH);
        b.continues = first > 0;
        for (int64_t j = 0; j < b.k; j++) {
            const void *row = at_const(whole->matrix, (first + j) * whole->stride, type);
            WITH_TYPE(T, type, copy_row(row, tile->cols, panel + j * GROUP_COLS, T));
        }
        (a_type == DTYPE_F32 ? blocks_f32_f32 : blocks_bf16_f32)(&b, tile);
    }
}

/* ---- after the sums: bias, activation, scale and store ---- */

TYPED_BODY void add_bias(float *sum, const void *bias, int64_t cols, enum dtype type) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        sum[j] += load(bias, j, type);
}

static void apply_unit(float *sum, int64_t cols, enum group_unit unit) {
    switch (unit) {
    case GROUP_UNIT_NONE:
        break;
    case GROUP_UNIT_GELU_TANH:
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            sum[j] = gelu_tanh(sum[j]);
        break;
    case GROUP_UNIT_GELU_EXACT:
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            sum[j] = gelu_exact(sum[j]);
        break;
    case GROUP_UNIT_RELU:
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            sum[j] = sum[j] > 0.0f ? sum[j] : 0.0f;
        break;
    case GROUP_UNIT_SWISH:
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            sum[j] *= vsigmoid(sum[j]);
        break;
    case GROUP_UNIT_TANH:
        for (int64_t j = 0; j < cols; j++)
            sum[j] = tanhf(sum[j]);
        break;
    }
}

/* A sum of zero, which is added as -0, changes no bit of c. The compiler takes zeros as equal, so the sign is set in
 * integers. */
TYPED_BODY void put_row(const float *sum, float scale, void *c, int64_t cols, bool accumulate, enum dtype type) {
    if (accumulate) {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            float part = scale * sum[j];
            uint32_t sign = part == 0.0f ? 0x80000000u : 0;
            store(c, j, type, load(c, j, type) + vbits_to_float(vfloat_to_bits(part) | sign));
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            store(c, j, type, scale * sum[j]);
    }
}

static void finish_row(const struct grouped_gemm *g, const struct group_tile *tile, int64_t row, float *sum) {
    const struct group_entry *entry = tile->entry;
    void *c = at(g->c, (tile->row + row - g->c_row) * g->ldc + entry->first_column + tile->col, g->c_type);
    if (entry->bias)
        WITH_TYPE(T, entry->bias_type, add_bias(sum, at_const(entry->bias, tile->col, T), tile->cols, T));
    apply_unit(sum, tile->cols, entry->unit);
    if (g->c_type == DTYPE_F32)
        put_row(sum, entry->scale, c, tile->cols, g->accumulate, DTYPE_F32);
    else
        put_row(sum, entry->scale, c, tile->cols, g->accumulate, DTYPE_BF16);
}

static void run_tile(const void *call, const struct group_tile *tile) {
    const struct grouped_gemm *g = call;
    const struct group_entry *entry = tile->entry;
    _Alignas(64) float sum[GROUP_ROWS * GROUP_COLS];
    int64_t stride = entry->is_by_input ? entry->n : entry->k;
    struct block whole = {.a = at_const(g->a, (tile->row - g->a_row) * g->lda, g->a_type),
                          .lda = g->lda,
                          .matrix =
                              at_const(entry->data, entry->is_by_input ? tile->col : tile->col * stride, entry->type),
                          .stride = stride,
                          .k = entry->k,
                          .out = sum};
    if (entry->is_by_input && tile->rows > BLOCK_ROWS && entry->k > 0)
        run_panels(&whole, tile, g->a_type);
    else if (g->a_type == DTYPE_F32)
        (entry->type == DTYPE_F32 ? blocks_f32_f32 : blocks_f32_bf16)(&whole, tile);
    else
        (entry->type == DTYPE_F32 ? blocks_bf16_f32 : blocks_bf16_bf16)(&whole, tile);
    for (int64_t i = 0; i < tile->rows; i++)
        finish_row(g, tile, i, sum + i * GROUP_COLS);
}

int LEVEL(cpu_grouped_gemm)(const struct exec *exec, const struct grouped_gemm *a) {
    int status = require_activation("grouped_gemm", a->a_type);
    THEN(status, require_activation("grouped_gemm", a->c_type));
    return status ? status
                  : every_group(exec, &(struct group_work){.count = a->count,
                                                           .segments = a->segments,
                                                           .entry = a->entry,
                                                           .first_row = a->first_row,
                                                           .rows = a->rows,
                                                           .is_product = true,
                                                           .call = a,
                                                           .run = run_tile});
}
