/* ReLU, swish, x sigmoid(x) (Ramachandran, Zoph, Le 2017), and tanh. */
#include "cpu/level/rows.h"

#include <math.h>

enum { CHUNK = 4096 }; /* elements of one unit of work */

TYPED_BODY float unit_of(float x, enum unit unit) {
    return unit == UNIT_RELU ? (x > 0.0f ? x : 0.0f) : unit == UNIT_TANH ? tanhf(x) : x * vsigmoid(x);
}

/* With e = exp(-|x|): 1 - sigmoid(x) is the other of 1 / (1 + e) and e / (1 + e), and no difference. */
TYPED_BODY float slope_of(float x, enum unit unit) {
    if (unit == UNIT_RELU)
        return x > 0.0f ? 1.0f : 0.0f;
    if (unit == UNIT_TANH)
        return (1.0f - tanhf(x)) * (1.0f + tanhf(x));
    float e = vexp(x < 0.0f ? x : -x), large = 1.0f / (1.0f + e), small = e * large;
    float s = x < 0.0f ? small : large;
    return s + x * small * large;
}

TYPED_BODY void forward_chunk(const struct unit_call *a, int64_t first, int64_t count, enum dtype type,
                              enum unit unit) {
    const void *x = at_const(a->x, first, type);
    void *y = at(a->y, first, type);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        store(y, i, type, unit_of(load(x, i, type), unit));
}

TYPED_BODY void backward_chunk(const struct unit_call *a, int64_t first, int64_t count, enum dtype type,
                               enum unit unit) {
    const void *x = at_const(a->x, first, type), *dy = at_const(a->dy, first, type);
    void *dx = at(a->dx, first, type);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        store(dx, i, type, load(dy, i, type) * slope_of(load(x, i, type), unit));
}

TYPED_BODY void forward_unit(const struct unit_call *a, int64_t first, int64_t count, enum dtype type) {
    if (a->unit == UNIT_RELU)
        forward_chunk(a, first, count, type, UNIT_RELU);
    else if (a->unit == UNIT_TANH)
        forward_chunk(a, first, count, type, UNIT_TANH);
    else
        forward_chunk(a, first, count, type, UNIT_SWISH);
}

static void forward_typed(const struct unit_call *a, int64_t first, int64_t count) {
    if (a->type == DTYPE_F32)
        forward_unit(a, first, count, DTYPE_F32);
    else
        forward_unit(a, first, count, DTYPE_BF16);
}

TYPED_BODY void backward_unit(const struct unit_call *a, int64_t first, int64_t count, enum dtype type) {
    if (a->unit == UNIT_RELU)
        backward_chunk(a, first, count, type, UNIT_RELU);
    else if (a->unit == UNIT_TANH)
        backward_chunk(a, first, count, type, UNIT_TANH);
    else
        backward_chunk(a, first, count, type, UNIT_SWISH);
}

static void backward_typed(const struct unit_call *a, int64_t first, int64_t count) {
    if (a->type == DTYPE_F32)
        backward_unit(a, first, count, DTYPE_F32);
    else
        backward_unit(a, first, count, DTYPE_BF16);
}

static int every_chunk(const struct exec *exec, const struct unit_call *a,
                       void (*run)(const struct unit_call *a, int64_t first, int64_t count)) {
    int status = require_activation("unit", a->type);
    if (status)
        return status;
    (void)exec;
#pragma omp parallel for num_threads(threads_for(exec, a->count)) schedule(static)
    for (int64_t first = 0; first < a->count; first += CHUNK)
        run(a, first, a->count - first < CHUNK ? a->count - first : CHUNK);
    return STATUS_OK;
}

int LEVEL(cpu_unit_forward)(const struct exec *exec, const struct unit_call *a) {
    return every_chunk(exec, a, forward_typed);
}

int LEVEL(cpu_unit_backward)(const struct exec *exec, const struct unit_call *a) {
    return every_chunk(exec, a, backward_typed);
}
