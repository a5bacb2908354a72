/* GELU as an operation, for where no product's epilogue can compute it. */
#include "cpu/level/gelu_forms.h"
#include "cpu/level/rows.h"

enum { CHUNK = 4096 }; /* elements that a thread takes at a time */

TYPED_BODY void forward_chunk(const struct gelu *a, int64_t first, int64_t count, enum dtype type) {
    const void *x = at_const(a->x, first, type);
    void *y = at(a->y, first, type);
    if (a->is_tanh) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(y, i, type, gelu_tanh(load(x, i, type)));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(y, i, type, gelu_exact(load(x, i, type)));
    }
}

TYPED_BODY void backward_chunk(const struct gelu *a, int64_t first, int64_t count, enum dtype type) {
    const void *x = at_const(a->x, first, type), *dy = at_const(a->dy, first, type);
    void *dx = at(a->dx, first, type);
    if (a->is_tanh) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(dx, i, type, load(dy, i, type) * gelu_tanh_gradient(load(x, i, type)));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(dx, i, type, load(dy, i, type) * gelu_exact_gradient(load(x, i, type)));
    }
}

TYPED_CHUNK(forward_chunk, gelu)

static int cast_result(const struct exec *exec, const struct gelu *a, const void *result) {
    int64_t cols = a->cols ? a->cols : 1;
    return LEVEL(cpu_fp8_result)(exec, &(const struct fp8_result){a->count / cols, cols, result, &a->fp8});
}

int LEVEL(cpu_gelu_forward)(const struct exec *exec, const struct gelu *a) {
    struct gelu call = *a;
    call.y = a->is_fp8_alone ? a->fp8.y : a->y;
    int status = every_chunk(
        exec, &(struct pieces){"gelu_forward", a->type, a->count, 1, &call, .chunk = forward_chunk_of}, CHUNK);
    return status ? status : cast_result(exec, a, call.y);
}

TYPED_CHUNK(backward_chunk, gelu)

int LEVEL(cpu_gelu_backward)(const struct exec *exec, const struct gelu *a) {
    struct gelu call = *a;
    call.dx = a->is_fp8_alone ? a->fp8.y : a->dx;
    int status = every_chunk(
        exec, &(struct pieces){"gelu_backward", a->type, a->count, 1, &call, .chunk = backward_chunk_of}, CHUNK);
    return status ? status : cast_result(exec, a, call.dx);
}
