/* Residual addition with dropout. The mask is never stored: forward and backward draw the same words (base/rng.h), 64
 * global columns at a time. */
#include "cpu/level/philox_lanes.h"
#include "cpu/level/rows.h"

TYPED_BODY void drop_piece(const void *x, const void *residual, void *y, const uint32_t *word, uint32_t threshold,
                           float scale, int64_t count, enum dtype type) {
    if (residual) {
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            store(y, j, type, load(residual, j, type) + load(x, j, type) * (word[j] >= threshold ? scale : 0.0f));
    } else {
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            store(y, j, type, load(x, j, type) * (word[j] >= threshold ? scale : 0.0f));
    }
}

/* Computes one row in pieces that share a block of random words. The loops over whole blocks are unrolled. */
TYPED_BODY void drop_row(const struct residual_dropout *a, int64_t i, const void *from, const void *residual, void *to,
                         enum dtype type) {
    const struct dropout *d = &a->dropout;
    uint32_t threshold = rng_dropout_threshold(d->p), word[PHILOX_BLOCK];
    float scale = 1.0f / (1.0f - d->p);
    for (int64_t j = 0, count; j < a->cols; j += count) {
        uint32_t element = (uint32_t)(a->first_col + j), inside = element % PHILOX_BLOCK;
        const void *x = at_const(from, j, type), *r = residual ? at_const(residual, j, type) : NULL;
        void *y = at(to, j, type);
        philox_block(d->seed, element / PHILOX_BLOCK, d->keys.token[i], d->keys.sample[i],
                     (uint32_t)RNG_DROPOUT << 24 | d->site, word);
        count = PHILOX_BLOCK - (int64_t)inside < a->cols - j ? PHILOX_BLOCK - (int64_t)inside : a->cols - j;
        if (count == PHILOX_BLOCK)
            drop_piece(x, r, y, word, threshold, scale, PHILOX_BLOCK, type);
        else
            drop_piece(x, r, y, word + inside, threshold, scale, count, type);
    }
}

/* Computes one row with p = 0, which is an addition or a copy. */
TYPED_BODY void keep_row(int64_t cols, const void *x, const void *residual, void *y, enum dtype type) {
    if (residual) {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            store(y, j, type, load(residual, j, type) + load(x, j, type));
    } else if (y != x) {
        memcpy(y, x, (size_t)cols * dtype_bytes(type));
    }
}

TYPED_BODY void one_row(const struct residual_dropout *a, int64_t i, bool is_backward, enum dtype type) {
    int64_t start = i * a->cols;
    const void *from = at_const(is_backward ? a->dy : a->x, start, type);
    const void *residual = is_backward || !a->residual ? NULL : at_const(a->residual, start, type);
    void *to = at(is_backward ? a->dx : a->y, start, type);
    if (a->dropout.p > 0)
        drop_row(a, i, from, residual, to, type);
    else
        keep_row(a->cols, from, residual, to, type);
}

TYPED_BODY void forward_row(const struct residual_dropout *a, int64_t i, enum dtype type) {
    one_row(a, i, false, type);
}

TYPED_BODY void backward_row(const struct residual_dropout *a, int64_t i, enum dtype type) {
    one_row(a, i, true, type);
}

TYPED_ROW(forward_row, residual_dropout)
TYPED_ROW(backward_row, residual_dropout)

int LEVEL(cpu_residual_dropout_forward)(const struct exec *exec, const struct residual_dropout *a) {
    return every_row(exec, &(struct pieces){"residual_dropout", a->type, a->rows, a->cols, a, .row = forward_row_of});
}

int LEVEL(cpu_residual_dropout_backward)(const struct exec *exec, const struct residual_dropout *a) {
    return every_row(exec, &(struct pieces){"residual_dropout", a->type, a->rows, a->cols, a, .row = backward_row_of});
}
