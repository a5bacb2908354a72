/* SwiGLU (Shazeer 2020, arXiv 2002.05202): swish(gate) * up, where one product has made gate and up side by side. */
#include "cpu/level/rows.h"
#include "cpu/level/swish_forms.h"

TYPED_BODY void forward_row(const struct swiglu *a, int64_t i, enum dtype type) {
    const void *gate = at_const(a->x, i * 2 * a->cols, type), *up = at_const(gate, a->cols, type);
    void *y = at(a->y, i * a->cols, type);
#pragma omp simd
    for (int64_t j = 0; j < a->cols; j++)
        store(y, j, type, swish(load(gate, j, type)) * load(up, j, type));
}

TYPED_ROW(forward_row, swiglu)

int LEVEL(cpu_swiglu_forward)(const struct exec *exec, const struct swiglu *a) {
    return every_row(exec, &(struct pieces){"swiglu_forward", a->type, a->rows, a->cols, a, .row = forward_row_of});
}

TYPED_BODY void backward_row(const struct swiglu *a, int64_t i, enum dtype type) {
    const void *gate = at_const(a->x, i * 2 * a->cols, type), *up = at_const(gate, a->cols, type);
    const void *dy = at_const(a->dy, i * a->cols, type);
    void *dgate = at(a->dx, i * 2 * a->cols, type), *dup = at(dgate, a->cols, type);
#pragma omp simd
    for (int64_t j = 0; j < a->cols; j++) {
        struct swish_pair s = swish_pair(load(gate, j, type));
        float u = load(up, j, type), d = load(dy, j, type);
        store(dgate, j, type, d * u * s.gradient);
        store(dup, j, type, d * s.value);
    }
}

TYPED_ROW(backward_row, swiglu)

int LEVEL(cpu_swiglu_backward)(const struct exec *exec, const struct swiglu *a) {
    return every_row(exec, &(struct pieces){"swiglu_backward", a->type, a->rows, a->cols, a, .row = backward_row_of});
}
