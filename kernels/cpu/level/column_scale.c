/* Columns scaled by a vector, forward and backward, and the norms of rows from which DoRA computes its vector. The
 * vector's gradient is summed over fixed blocks of rows, then over the blocks in order. */
#include "cpu/level/gemm_level.h"
#include "cpu/level/rows.h"

#include <math.h>

enum { STRIPE = 512 }; /* columns at a time, whose part of the vector stays in the first-level cache */

/* ---- forward ---- */

static int64_t stride_of(const struct column_scale *a, int64_t stride) {
    return stride ? stride : a->cols;
}

TYPED_BODY void forward_row(const struct column_scale *a, int64_t i, enum dtype type, enum dtype scale_type) {
    const void *x = at_const(a->x, i * stride_of(a, a->x_stride), type), *scale = a->scale;
    void *y = at(a->y, i * stride_of(a, a->y_stride), type);
#pragma omp simd
    for (int64_t j = 0; j < a->cols; j++)
        store(y, j, type, load(y, j, type) + load(x, j, type) * (load(scale, j, scale_type) - 1.0f));
}

static int require_types(const char *op, const struct column_scale *a) {
    if (a->scale_type != a->type && a->scale_type != DTYPE_F32)
        return status_fail(STATUS_UNSUPPORTED, "%s: a vector of %s for rows of %s", op, dtype_name(a->scale_type),
                           dtype_name(a->type));
    return require_activation(op, a->type);
}

int LEVEL(cpu_column_scale_forward)(const struct exec *exec, const struct column_scale *a) {
    TRY(require_types("column_scale_forward", a));
#pragma omp parallel for num_threads(threads_for(exec, a->rows * a->cols)) schedule(static)
    for (int64_t i = 0; i < a->rows; i++) {
        if (a->type == DTYPE_F32)
            forward_row(a, i, DTYPE_F32, DTYPE_F32);
        else if (a->scale_type == DTYPE_F32)
            forward_row(a, i, DTYPE_BF16, DTYPE_F32);
        else
            forward_row(a, i, DTYPE_BF16, DTYPE_BF16);
    }
    return STATUS_OK;
}

/* ---- backward ---- */

/* sum[count] += dy * (x - fixed) of one row, from column `first` on. */
TYPED_BODY void add_products(const struct column_scale *a, int64_t i, int64_t first, int64_t count, float *sum,
                             enum dtype type) {
    const void *x = at_const(a->x, i * stride_of(a, a->x_stride) + first, type);
    const void *dy = at_const(a->dy, i * stride_of(a, a->dy_stride) + first, type);
    if (a->fixed) {
        const void *fixed = at_const(a->fixed, first, type);
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            sum[j] += load(dy, j, type) * (load(x, j, type) - load(fixed, j, type));
    } else {
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            sum[j] += load(dy, j, type) * load(x, j, type);
    }
}

/* Takes rows [first_row, end_row). The sums come first, because dx may overwrite dy or x. */
TYPED_BODY void backward_block(const struct column_scale *a, int64_t first_row, int64_t end_row, float *sum,
                               enum dtype type, enum dtype scale_type) {
    for (int64_t first = 0; first < a->cols; first += STRIPE) {
        int64_t count = a->cols - first < STRIPE ? a->cols - first : STRIPE;
        const void *scale = at_const(a->scale, first, scale_type);
        if (sum)
            memset(sum + first, 0, (size_t)count * sizeof *sum);
        for (int64_t i = first_row; i < end_row; i++) {
            const void *dy = at_const(a->dy, i * stride_of(a, a->dy_stride) + first, type);
            void *dx = at(a->dx, i * stride_of(a, a->dx_stride) + first, type);
            if (sum)
                add_products(a, i, first, count, sum + first, type);
#pragma omp simd
            for (int64_t j = 0; j < count; j++)
                store(dx, j, type, load(dy, j, type) * load(scale, j, scale_type));
        }
        for (int64_t j = 0; sum && a->factor && j < count; j++)
            sum[first + j] *= a->factor[first + j];
    }
}

size_t LEVEL(cpu_column_scale_backward_workspace)(struct device *device, const struct column_scale *a) {
    return (size_t)(row_blocks(a->rows) * a->cols) * sizeof(float);
}

int LEVEL(cpu_column_scale_backward)(const struct exec *exec, const struct column_scale *a) {
    TRY(require_types("column_scale_backward", a));
    int64_t step = row_block(a->rows), blocks = row_blocks(a->rows), cols = a->cols;
    float *partial = a->dscale ? exec->workspace : NULL;
#pragma omp parallel for num_threads(threads_for(exec, a->rows *cols)) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t end = (b + 1) * step < a->rows ? (b + 1) * step : a->rows;
        float *sum = partial ? partial + b * cols : NULL;
        if (a->type == DTYPE_F32)
            backward_block(a, b * step, end, sum, DTYPE_F32, DTYPE_F32);
        else if (a->scale_type == DTYPE_F32)
            backward_block(a, b * step, end, sum, DTYPE_BF16, DTYPE_F32);
        else
            backward_block(a, b * step, end, sum, DTYPE_BF16, DTYPE_BF16);
    }
    if (partial)
        add_partials(exec, blocks, cols, partial, cols, a->dscale);
    return STATUS_OK;
}

/* ---- norms of rows ---- */

enum { SQUARES_ROWS = 16 }; /* rows at a time, which share each reading of a packed weight */

/* Reads the values in columns [first, first + count) of some rows. */
TYPED_BODY void read_weight(const struct row_squares *a, int64_t row, int64_t rows, int64_t first, int64_t count,
                            float value[][STRIPE], enum dtype type) {
    if (a->weight.form == MATRIX_PACKED) {
        LEVEL(packed_read)
        (&a->weight, &(const struct read_block){a->first_row + row, rows, first, count, value[0], STRIPE});
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        const void *weight = at_const(a->weight.data, (a->first_row + row + i) * a->weight.stride + first, type);
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            value[i][j] = load(weight, j, type);
    }
}

TYPED_BODY float squares_of_stripe(const struct row_squares *a, int64_t i, int64_t first, int64_t count, float *value,
                                   enum dtype type) {
    const void *up = a->up ? at_const(a->up, i * a->rank, type) : NULL;
    for (int64_t r = 0; up && r < a->rank; r++) {
        const void *down = at_const(a->down, r * a->weight.columns + first, type);
        float times = a->scale * load(up, r, type);
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            value[j] += times * load(down, j, type);
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; j++)
        sum += value[j] * value[j];
    return sum;
}

/* Not inlined: the compiler chooses the order of the sum, which must be the same for all callers. */
static __attribute__((noinline)) float squares_of_f32(const struct row_squares *a, int64_t i, int64_t first,
                                                      int64_t count, float *value) {
    return squares_of_stripe(a, i, first, count, value, DTYPE_F32);
}

static __attribute__((noinline)) float squares_of_bf16(const struct row_squares *a, int64_t i, int64_t first,
                                                       int64_t count, float *value) {
    return squares_of_stripe(a, i, first, count, value, DTYPE_BF16);
}

TYPED_BODY void squares_of_rows(const struct row_squares *a, int64_t row, enum dtype type) {
    int64_t rows = a->rows - row < SQUARES_ROWS ? a->rows - row : SQUARES_ROWS;
    double total[SQUARES_ROWS] = {0};
    for (int64_t first = 0; first < a->weight.columns; first += STRIPE) {
        int64_t count = a->weight.columns - first < STRIPE ? a->weight.columns - first : STRIPE;
        _Alignas(64) float value[SQUARES_ROWS][STRIPE];
        read_weight(a, row, rows, first, count, value, type);
        for (int64_t i = 0; i < rows; i++)
            total[i] +=
                (double)(type == DTYPE_F32 ? squares_of_f32 : squares_of_bf16)(a, row + i, first, count, value[i]);
    }
    for (int64_t i = 0; i < rows; i++)
        a->squares[row + i] = (float)total[i];
}

int LEVEL(cpu_row_squares)(const struct exec *exec, const struct row_squares *a) {
    TRY(require_activation("row_squares", a->weight.type));
#pragma omp parallel for num_threads(threads_for(exec, a->rows * a->weight.columns)) schedule(static)
    for (int64_t i = 0; i < a->rows; i += SQUARES_ROWS) {
        WITH_TYPE(T, a->weight.type, squares_of_rows(a, i, T));
    }
    return STATUS_OK;
}

int LEVEL(cpu_magnitude_ratio)(const struct exec *exec, const struct magnitude_ratio *a) {
    int status = require_activation("magnitude_ratio", a->type);
    for (int64_t i = 0; i < a->count && !status; i++) {
        float norm = sqrtf(a->squares[i]);
        if (a->type == DTYPE_BF16)
            norm = bf16_to_float(bf16_from_float(norm));
        if (a->ratio)
            a->ratio[i] = load(a->magnitude, i, a->type) / norm;
        if (a->inverse)
            a->inverse[i] = 1.0f / norm;
        if (a->norm)
            store(a->norm, i, a->type, norm);
    }
    return status;
}
