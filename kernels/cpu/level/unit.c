/* Activations of adapters: ReLU, swish and tanh. */
#include "cpu/level/rows.h"
#include "cpu/level/swish_forms.h"

#include <math.h>

enum { CHUNK = 4096 }; /* elements that a thread takes at a time */

TYPED_BODY float unit_of(float x, enum unit unit) {
    return unit == UNIT_RELU ? (x > 0.0f ? x : 0.0f) : unit == UNIT_TANH ? tanhf(x) : swish(x);
}

TYPED_BODY float gradient_of(float x, enum unit unit) {
    if (unit == UNIT_RELU)
        return x > 0.0f ? 1.0f : 0.0f;
    if (unit == UNIT_TANH)
        return (1.0f - tanhf(x)) * (1.0f + tanhf(x));
    return swish_pair(x).gradient;
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
        store(dx, i, type, load(dy, i, type) * gradient_of(load(x, i, type), unit));
}

TYPED_BODY void forward_unit(const struct unit_call *a, int64_t first, int64_t count, enum dtype type) {
    if (a->unit == UNIT_RELU)
        forward_chunk(a, first, count, type, UNIT_RELU);
    else if (a->unit == UNIT_TANH)
        forward_chunk(a, first, count, type, UNIT_TANH);
    else
        forward_chunk(a, first, count, type, UNIT_SWISH);
}

TYPED_CHUNK(forward_unit, unit_call)

TYPED_BODY void backward_unit(const struct unit_call *a, int64_t first, int64_t count, enum dtype type) {
    if (a->unit == UNIT_RELU)
        backward_chunk(a, first, count, type, UNIT_RELU);
    else if (a->unit == UNIT_TANH)
        backward_chunk(a, first, count, type, UNIT_TANH);
    else
        backward_chunk(a, first, count, type, UNIT_SWISH);
}

TYPED_CHUNK(backward_unit, unit_call)

int LEVEL(cpu_unit_forward)(const struct exec *exec, const struct unit_call *a) {
    return every_chunk(exec, &(struct pieces){"unit_forward", a->type, a->count, 1, a, .chunk = forward_unit_of},
                       CHUNK);
}

int LEVEL(cpu_unit_backward)(const struct exec *exec, const struct unit_call *a) {
    return every_chunk(exec, &(struct pieces){"unit_backward", a->type, a->count, 1, a, .chunk = backward_unit_of},
                       CHUNK);
}
