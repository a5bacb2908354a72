/* Sums of squares, weighted sums, sums of columns, and the clip factor. The order of additions depends only on sizes,
 * never on the number of threads. */
#include "cpu/level/rows.h"

#include <math.h>

enum { SQUARES_BLOCK = 65536, COLUMN_STRIPE = 256 };

static int64_t squares_blocks(int64_t count) {
    return (count + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
}

/* Adds four parts of a block at once: one chain of additions would wait for itself. */
static double block_squares(const float *x, int64_t count) {
    int64_t q = count / 4;
    const float *x1 = x + q, *x2 = x1 + q, *x3 = x2 + q;
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t i = 0; i < q; i++) {
        s0 += (double)x[i] * (double)x[i];
        s1 += (double)x1[i] * (double)x1[i];
        s2 += (double)x2[i] * (double)x2[i];
        s3 += (double)x3[i] * (double)x3[i];
    }
    for (int64_t i = 4 * q; i < count; i++)
        s0 += (double)x[i] * (double)x[i];
    return (s0 + s1) + (s2 + s3);
}

size_t LEVEL(cpu_sum_of_squares_workspace)(struct device *device, const struct sum_of_squares *a) {
    return (size_t)squares_blocks(a->count) * sizeof(double);
}

int LEVEL(cpu_sum_of_squares)(const struct exec *exec, const struct sum_of_squares *a) {
    double *partial = exec->workspace, total = a->accumulate ? *a->sum : 0;
    int64_t blocks = squares_blocks(a->count);
#pragma omp parallel for num_threads(threads_for(exec, a->count)) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * SQUARES_BLOCK, remaining = a->count - first;
        partial[b] = block_squares(a->x + first, remaining < SQUARES_BLOCK ? remaining : SQUARES_BLOCK);
    }
    for (int64_t b = 0; b < blocks; b++)
        total += partial[b];
    *a->sum = total;
    return STATUS_OK;
}

/* If the norm is not finite, the factor is NaN, so that no later number looks healthy. */
int LEVEL(cpu_clip_factor)(const struct exec *exec, const struct clip_factor *a) {
    double norm = sqrt(*a->sum_of_squares), factor = (double)a->max_norm / (norm + 1e-6);
    *a->norm = (float)norm;
    *a->factor = !isfinite(*a->norm) ? NAN : a->max_norm == 0 || factor > 1 ? 1.0f : (float)factor;
    return STATUS_OK;
}

int LEVEL(cpu_weighted_sum)(const struct exec *exec, const struct weighted_sum *a) {
    double total = 0;
    for (int64_t i = 0; i < a->count; i++)
        total += (double)a->x[i] * (double)a->weight[i];
    *a->sum = (a->accumulate ? *a->sum : 0) + total;
    return STATUS_OK;
}

size_t LEVEL(cpu_column_sum_workspace)(struct device *device, const struct column_sum *a) {
    return (size_t)(row_blocks(a->rows) * a->cols) * sizeof(float);
}

/* Sums a block's rows into partial[cols], a stripe of columns at a time, so that the sums stay in the first-level
 * cache.
 */
TYPED_BODY void block_columns(int64_t rows, int64_t cols, const void *x, int64_t stride, float *partial,
                              enum dtype type) {
    for (int64_t first = 0; first < cols; first += COLUMN_STRIPE) {
        int64_t count = cols - first < COLUMN_STRIPE ? cols - first : COLUMN_STRIPE, i = 0;
        float *sum = partial + first;
        memset(sum, 0, (size_t)count * sizeof *sum);
        for (; i + 4 <= rows; i += 4) {
            const void *r0 = at_const(x, i * stride + first, type), *r1 = at_const(r0, stride, type);
            const void *r2 = at_const(r1, stride, type), *r3 = at_const(r2, stride, type);
#pragma omp simd
            for (int64_t j = 0; j < count; j++)
                sum[j] += (load(r0, j, type) + load(r1, j, type)) + (load(r2, j, type) + load(r3, j, type));
        }
        for (; i < rows; i++) {
            const void *row = at_const(x, i * stride + first, type);
#pragma omp simd
            for (int64_t j = 0; j < count; j++)
                sum[j] += load(row, j, type);
        }
    }
}

int LEVEL(cpu_column_sum)(const struct exec *exec, const struct column_sum *a) {
    TRY(require_activation("column_sum", a->type));
    int64_t rows = a->rows, cols = a->cols, stride = a->stride, step = row_block(rows), blocks = row_blocks(rows);
    float *partial = exec->workspace;
#pragma omp parallel for num_threads(threads_for(exec, rows *cols)) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t count = rows - b * step < step ? rows - b * step : step;
        WITH_TYPE(T, a->type,
                  block_columns(count, cols, at_const(a->x, b * step * stride, T), stride, partial + b * cols, T));
    }
    add_partials(exec, blocks, cols, partial, cols, a->out);
    return STATUS_OK;
}
