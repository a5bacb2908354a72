/* Normalisation of rows. LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) / sqrt(variance + epsilon) * gain + bias.
 * The variance is that of the deviations from the computed mean, less the square of what that mean is off by, so that a
 * mean much larger than the deviation does no harm. RMSNorm (Zhang, Sennrich 2019) is the same with a mean and a bias
 * of 0: y = x / sqrt(mean of squares + epsilon) * gain. `kind` is a constant in each body, as `type` is. */
#include "cpu/level/rows.h"

#include <math.h>

static int64_t vectors_of_row(const struct norm *a) {
    return a->heads > 1 ? a->heads : 1;
}

static int64_t vectors_of(const struct norm *a) {
    return a->rows * vectors_of_row(a);
}

/* The first element of vector i in rows of that stride. */
static inline int64_t vector_at(const struct norm *a, int64_t i, int64_t stride) {
    int64_t heads = vectors_of_row(a);
    return i / heads * (stride ? stride : heads * a->cols) + i % heads * a->cols;
}

struct row_statistics {
    float mean, rstd;
};

TYPED_BODY struct row_statistics measure_rms(const void *x, int64_t cols, float epsilon, enum dtype type) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < cols; j++)
        squares += load(x, j, type) * load(x, j, type);
    return (struct row_statistics){0, 1.0f / sqrtf(squares / (float)cols + epsilon)};
}

TYPED_BODY struct row_statistics measure_layer(const void *x, int64_t cols, float epsilon, enum dtype type) {
    float sum = 0, rest = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < cols; j++)
        sum += load(x, j, type);
    float mean = sum / (float)cols;
#pragma omp simd reduction(+ : rest, squares)
    for (int64_t j = 0; j < cols; j++) {
        float d = load(x, j, type) - mean;
        rest += d;
        squares += d * d;
    }
    float off = rest / (float)cols;
    float variance = squares / (float)cols - off * off;
    return (struct row_statistics){mean + off, 1.0f / sqrtf((variance > 0 ? variance : 0) + epsilon)};
}

TYPED_BODY void forward_row(const struct norm *a, int64_t i, enum dtype type, enum norm_kind kind) {
    const void *x = at_const(a->x, vector_at(a, i, a->x_stride), type), *gain = a->gain, *bias = a->bias;
    void *y = at(a->y, vector_at(a, i, a->y_stride), type);
    int64_t cols = a->cols;
    struct row_statistics s =
        kind == NORM_RMS ? measure_rms(x, cols, a->epsilon, type) : measure_layer(x, cols, a->epsilon, type);
#pragma omp simd
    for (int64_t j = 0; j < cols; j++) {
        float shift = kind == NORM_RMS ? 0 : load(bias, j, type);
        store(y, j, type, (load(x, j, type) - s.mean) * s.rstd * load(gain, j, type) + shift);
    }
    if (!a->rstd)
        return;
    if (kind == NORM_LAYER)
        a->mean[i] = s.mean;
    a->rstd[i] = s.rstd;
}

TYPED_BODY void forward_kind(const struct norm *a, int64_t i, enum dtype type) {
    if (a->kind == NORM_RMS)
        forward_row(a, i, type, NORM_RMS);
    else
        forward_row(a, i, type, NORM_LAYER);
}

TYPED_ROW(forward_kind, norm)

int LEVEL(cpu_norm_forward)(const struct exec *exec, const struct norm *a) {
    return every_row(exec,
                     &(struct pieces){"norm_forward", a->type, vectors_of(a), a->cols, a, .row = forward_kind_of});
}

/* With h = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - h mean(g h)); RMSNorm's has no mean(g). */
TYPED_BODY void backward_row(const struct norm *a, int64_t i, float *dgain, float *dbias, enum dtype type,
                             enum norm_kind kind) {
    int64_t at_y = vector_at(a, i, a->y_stride);
    const void *x = at_const(a->x, vector_at(a, i, a->x_stride), type), *gain = a->gain;
    const void *dy = at_const(a->dy, at_y, type), *dx_add = a->dx_add ? at_const(a->dx_add, at_y, type) : NULL;
    void *dx = at(a->dx, at_y, type);
    int64_t cols = a->cols;
    float mean = kind == NORM_RMS ? 0 : a->mean[i], rstd = a->rstd[i], sum = 0, product = 0;
    if (dgain) {
#pragma omp simd reduction(+ : sum, product)
        for (int64_t j = 0; j < cols; j++) {
            float d = load(dy, j, type), h = (load(x, j, type) - mean) * rstd, g = d * load(gain, j, type);
            dgain[j] += d * h;
            if (kind == NORM_LAYER)
                dbias[j] += d;
            sum += g;
            product += g * h;
        }
    } else {
#pragma omp simd reduction(+ : sum, product)
        for (int64_t j = 0; j < cols; j++) {
            float h = (load(x, j, type) - mean) * rstd, g = load(dy, j, type) * load(gain, j, type);
            sum += g;
            product += g * h;
        }
    }
    float mean_g = kind == NORM_RMS ? 0 : sum / (float)cols, mean_gh = product / (float)cols;
    if (dx_add) {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            float h = (load(x, j, type) - mean) * rstd, g = load(dy, j, type) * load(gain, j, type);
            store(dx, j, type, rstd * (g - mean_g - h * mean_gh) + load(dx_add, j, type));
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            float h = (load(x, j, type) - mean) * rstd, g = load(dy, j, type) * load(gain, j, type);
            store(dx, j, type, rstd * (g - mean_g - h * mean_gh));
        }
    }
}

TYPED_BODY void backward_kind(const struct norm *a, int64_t i, float *dgain, float *dbias, enum dtype type) {
    if (a->kind == NORM_RMS)
        backward_row(a, i, dgain, dbias, type, NORM_RMS);
    else
        backward_row(a, i, dgain, dbias, type, NORM_LAYER);
}

/* One block's sums: of the gain, and of the bias where there is one. */
static int64_t block_sums(const struct norm *a) {
    return (a->kind == NORM_RMS ? 1 : 2) * a->cols;
}

size_t LEVEL(cpu_norm_backward_workspace)(struct device *device, const struct norm *a) {
    (void)device;
    return a->dgain ? (size_t)(row_blocks(vectors_of(a)) * block_sums(a)) * sizeof(float) : 0;
}

int LEVEL(cpu_norm_backward)(const struct exec *exec, const struct norm *a) {
    int status = require_activation("norm_backward", a->type);
    if (status)
        return status;
    int64_t vectors = vectors_of(a), step = row_block(vectors), blocks = row_blocks(vectors);
    int64_t cols = a->cols, sums = block_sums(a);
    float *partial = a->dgain ? exec->workspace : NULL;
#pragma omp parallel for num_threads(threads_for(exec, vectors *cols)) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        float *dgain = partial ? partial + b * sums : NULL, *dbias = partial ? dgain + cols : NULL;
        int64_t end = (b + 1) * step < vectors ? (b + 1) * step : vectors;
        if (partial)
            memset(dgain, 0, (size_t)sums * sizeof *dgain);
        for (int64_t i = b * step; i < end; i++) {
            if (a->type == DTYPE_F32)
                backward_kind(a, i, dgain, dbias, DTYPE_F32);
            else
                backward_kind(a, i, dgain, dbias, DTYPE_BF16);
        }
    }
    if (partial)
        add_partials(exec, blocks, cols, partial, sums, a->dgain);
    if (partial && a->kind == NORM_LAYER)
        add_partials(exec, blocks, cols, partial + cols, sums, a->dbias);
    return STATUS_OK;
}
