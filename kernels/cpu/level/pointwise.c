/* Activations of small networks beside the model: ReLU, tanh, and swish x s(x) with the logistic function s. */
#include "cpu/level/rows.h"

#include <math.h>

enum { CHUNK = 4096 }; /* elements of one unit of work */

TYPED_BODY float pointwise_value(float x, enum pointwise_kind kind) {
    return kind == POINTWISE_RELU ? (x > 0.0f ? x : 0.0f) : kind == POINTWISE_TANH ? tanhf(x) : x * vsigmoid(x);
}

TYPED_BODY float pointwise_slope(float x, enum pointwise_kind kind) {
    if (kind == POINTWISE_RELU)
        return x > 0.0f ? 1.0f : 0.0f;
    if (kind == POINTWISE_TANH) {
        float y = tanhf(x);
        return (1.0f - y) * (1.0f + y);
    }
    float s = vsigmoid(x);
    return s * (1.0f + x * vsigmoid(-x));
}

TYPED_BODY void pointwise_chunk(const struct pointwise *a, int64_t first, int64_t count, enum dtype type,
                                enum pointwise_kind kind) {
    const void *x = at_const(a->x, first, type), *dy = a->dy ? at_const(a->dy, first, type) : NULL;
    void *out = at(a->dy ? a->dx : a->y, first, type);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float value = load(x, i, type);
        store(out, i, type, dy ? load(dy, i, type) * pointwise_slope(value, kind) : pointwise_value(value, kind));
    }
}

TYPED_BODY void typed_chunk(const struct pointwise *a, int64_t first, int64_t count, enum dtype type) {
    switch (a->kind) {
    case POINTWISE_RELU:
        pointwise_chunk(a, first, count, type, POINTWISE_RELU);
        break;
    case POINTWISE_TANH:
        pointwise_chunk(a, first, count, type, POINTWISE_TANH);
        break;
    case POINTWISE_SWISH:
        pointwise_chunk(a, first, count, type, POINTWISE_SWISH);
        break;
    }
}

static void pointwise(const struct exec *exec, const struct pointwise *a) {
    (void)exec;
#pragma omp parallel for num_threads(threads_for(exec, a->count)) schedule(static)
    for (int64_t first = 0; first < a->count; first += CHUNK) {
        int64_t count = a->count - first < CHUNK ? a->count - first : CHUNK;
        if (a->type == DTYPE_F32)
            typed_chunk(a, first, count, DTYPE_F32);
        else
            typed_chunk(a, first, count, DTYPE_BF16);
    }
}

int LEVEL(cpu_pointwise_forward)(const struct exec *exec, const struct pointwise *a) {
    int status = require_activation("pointwise_forward", a->type);
    struct pointwise forward = *a;
    forward.dy = NULL;
    if (!status)
        pointwise(exec, &forward);
    return status;
}

int LEVEL(cpu_pointwise_backward)(const struct exec *exec, const struct pointwise *a) {
    int status = require_activation("pointwise_backward", a->type);
    if (!status)
        pointwise(exec, a);
    return status;
}
