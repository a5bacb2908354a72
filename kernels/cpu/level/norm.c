/* Normalisation of rows. LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) / sqrt(variance + epsilon) * gain + bias.
 * The mean has a rounding error, whose square is subtracted from the mean square of the deviations. So the variance is
 * accurate even if the mean is much larger than the deviations. RMSNorm (Zhang, Sennrich 2019) is the same with a mean
 * and a bias of 0: y = x / sqrt(mean of squares + epsilon) * gain. `kind` is a constant in each body, as `type` is. */
#include "cpu/level/groups.h"
#include "cpu/level/typed_vectors.h"

#include <math.h>

static inline int64_t stride_of(const struct norm *a, int64_t stride) {
    return stride ? stride : heads_of_norm(a) * a->cols;
}

/* Prefetches the next row of heads, which the processor does not foresee if it is part of a longer row. */
TYPED_BODY void fetch(const void *x, int64_t cols, enum dtype type) {
    for (int64_t j = 0; j < cols; j += 64 / (type == DTYPE_F32 ? 4 : 2))
        __builtin_prefetch(at_const(x, j, type), 0, 3);
}

struct row_statistics {
    float mean, rstd;
};

/* Uses four sums in turn, so that no addition waits for the one before. */
TYPED_BODY struct row_statistics measure_rms(const void *x, int64_t cols, float epsilon, enum dtype type) {
    vfloat sum[4] = {simd_set(0), simd_set(0), simd_set(0), simd_set(0)}, v;
    int64_t j = 0;
    for (; j + 4 * SIMD_LANES <= cols; j += 4 * SIMD_LANES)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v = load_vector(x, j + k * SIMD_LANES, type);
            sum[k] = simd_fma(v, v, sum[k]);
        }
    for (; j < cols; j += SIMD_LANES) {
        v = cols - j < SIMD_LANES ? load_part(x, j, cols - j, type) : load_vector(x, j, type);
        sum[0] = simd_fma(v, v, sum[0]);
    }
    float squares = simd_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    return (struct row_statistics){0, 1.0f / sqrtf(squares / (float)cols + epsilon)};
}

TYPED_BODY void scale_rms(const void *x, const void *gain, float rstd, int64_t cols, void *y, enum dtype type) {
    vfloat scale = simd_set(rstd);
    int64_t j = 0;
    for (; j + SIMD_LANES <= cols; j += SIMD_LANES)
        store_vector(y, j, type, load_vector(x, j, type) * scale * load_vector(gain, j, type));
    if (j < cols)
        store_part(y, j, cols - j, type, load_part(x, j, cols - j, type) * scale * load_part(gain, j, cols - j, type));
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

TYPED_BODY void forward_head(const struct norm *a, int64_t i, int64_t head, enum dtype type, enum norm_kind kind) {
    int64_t x_stride = stride_of(a, a->x_stride), y_stride = stride_of(a, a->y_stride), cols = a->cols;
    const void *x = at_const(a->x, i * x_stride + head * cols, type), *gain = a->gain, *bias = a->bias;
    void *y = at(a->y, i * y_stride + head * cols, type);
    if (a->heads > 1) {
        fetch(at_const(x, x_stride, type), cols, type);
        fetch(at_const(y, y_stride, type), cols, type);
    }
    struct row_statistics s =
        kind == NORM_RMS ? measure_rms(x, cols, a->epsilon, type) : measure_layer(x, cols, a->epsilon, type);
    if (kind == NORM_RMS) {
        scale_rms(x, gain, s.rstd, cols, y, type);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            store(y, j, type, (load(x, j, type) - s.mean) * s.rstd * load(gain, j, type) + load(bias, j, type));
    }
    if (!a->rstd)
        return;
    if (kind == NORM_LAYER)
        a->mean[i * heads_of_norm(a) + head] = s.mean;
    a->rstd[i * heads_of_norm(a) + head] = s.rstd;
}

TYPED_BODY void forward_kind(const struct norm *a, int64_t i, enum dtype type) {
    for (int64_t head = 0; head < heads_of_norm(a); head++)
        if (a->kind == NORM_RMS)
            forward_head(a, i, head, type, NORM_RMS);
        else
            forward_head(a, i, head, type, NORM_LAYER);
}

TYPED_ROW(forward_kind, norm)

int LEVEL(cpu_norm_forward)(const struct exec *exec, const struct norm *a) {
    int64_t cols = heads_of_norm(a) * a->cols;
    struct norm call = *a;
    call.y = a->is_fp8_alone ? a->fp8.y : a->y;
    int status =
        every_row(exec, &(struct pieces){"norm_forward", a->type, a->rows, cols, &call, .row = forward_kind_of});
    return status ? status : LEVEL(cpu_fp8_result)(exec, &(const struct fp8_result){a->rows, cols, call.y, &a->fp8});
}

/* The rows of a segment are normalised together. */
int LEVEL(cpu_grouped_norm)(const struct exec *exec, const struct grouped_norm *a) {
    const struct group_work work = {
        .count = a->count, .segments = a->segments, .entry = a->entry, .first_row = a->first_row, .rows = a->rows};
    int status = require_activation("grouped_norm", a->type);
    for (int64_t s = 0; s < a->count && !status; s++) {
        struct group_part part = group_part(&work, s);
        if (!part.tiles)
            continue;
        void *x = at(a->x, (part.first - a->x_row) * a->ldx + part.entry->first_column, a->type);
        status = LEVEL(cpu_norm_forward)(exec, &(const struct norm){.kind = NORM_LAYER,
                                                                    .rows = part.rows,
                                                                    .cols = part.entry->n,
                                                                    .type = a->type,
                                                                    .x = x,
                                                                    .gain = part.entry->data,
                                                                    .bias = part.entry->bias,
                                                                    .epsilon = a->epsilon,
                                                                    .y = x,
                                                                    .x_stride = a->ldx,
                                                                    .y_stride = a->ldx});
    }
    return status;
}

/* With h = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - h mean(g h)); RMSNorm's has no mean(g). */
TYPED_BODY void backward_head(const struct norm *a, int64_t i, int64_t head, float *dgain, float *dbias,
                              enum dtype type, enum norm_kind kind) {
    int64_t within = head * a->cols, vector = i * heads_of_norm(a) + head;
    int64_t at_dx = i * stride_of(a, a->dx_stride) + within;
    const void *x = at_const(a->x, i * stride_of(a, a->x_stride) + within, type), *gain = a->gain;
    const void *dy = at_const(a->dy, i * stride_of(a, a->y_stride) + within, type);
    const void *dx_add = a->dx_add ? at_const(a->dx_add, at_dx, type) : NULL;
    void *dx = at(a->dx, at_dx, type);
    int64_t cols = a->cols;
    float mean = kind == NORM_RMS ? 0 : a->mean[vector], rstd = a->rstd[vector], sum = 0, product = 0;
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
    for (int64_t head = 0; head < heads_of_norm(a); head++)
        if (a->kind == NORM_RMS)
            backward_head(a, i, head, dgain, dbias, type, NORM_RMS);
        else
            backward_head(a, i, head, dgain, dbias, type, NORM_LAYER);
}

/* Returns the floats of one block's sums: of the gain, and of the bias if there is one. */
static int64_t block_sums(const struct norm *a) {
    return (a->kind == NORM_RMS ? 1 : 2) * a->cols;
}

size_t LEVEL(cpu_norm_backward_workspace)(struct device *device, const struct norm *a) {
    return a->dgain ? (size_t)(row_blocks(a->rows) * block_sums(a)) * sizeof(float) : 0;
}

int LEVEL(cpu_norm_backward)(const struct exec *exec, const struct norm *a) {
    TRY(require_activation("norm_backward", a->type));
    int64_t step = row_block(a->rows), blocks = row_blocks(a->rows), cols = a->cols, sums = block_sums(a);
    float *partial = a->dgain ? exec->workspace : NULL;
#pragma omp parallel for num_threads(threads_for(exec, a->rows *heads_of_norm(a) * cols)) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        float *dgain = partial ? partial + b * sums : NULL, *dbias = partial ? dgain + cols : NULL;
        int64_t end = (b + 1) * step < a->rows ? (b + 1) * step : a->rows;
        if (partial)
            memset(dgain, 0, (size_t)sums * sizeof *dgain);
        for (int64_t i = b * step; i < end; i++) {
            WITH_TYPE(T, a->type, backward_kind(a, i, dgain, dbias, T));
        }
    }
    if (partial)
        add_partials(exec, blocks, cols, partial, sums, a->dgain);
    if (partial && a->kind == NORM_LAYER)
        add_partials(exec, blocks, cols, partial + cols, sums, a->dbias);
    return STATUS_OK;
}
