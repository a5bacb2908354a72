/* GELU (Hendrycks, Gimpel 2016): x Phi(x), exact or by its tanh form. 1 + tanh(u) is 2 / (1 + exp(-2u)), which loses
 * nothing where tanh is near -1. */
#include "cpu/level/rows.h"

enum { CHUNK = 4096 }; /* elements of one unit of work */

static inline float tanh_form(float x) {
    return x * vsigmoid(1.5957691216f * x * (1.0f + 0.044715f * x * x));
}

/* s (1 - s) of the logistic function's s is e / (1 + e)^2 with e = exp(-|z|): 1 - s alone would be a difference. */
static inline float tanh_form_slope(float x) {
    float z = 1.5957691216f * x * (1.0f + 0.044715f * x * x);
    float e = vexp(z < 0.0f ? z : -z), large = 1.0f / (1.0f + e), small = e * large;
    float s = z < 0.0f ? small : large;
    return s + x * small * large * 1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x);
}

static inline float exact_form(float x) {
    return x * vnormal(x).cumulative;
}

static inline float exact_form_slope(float x) {
    struct vnormal n = vnormal(x);
    return n.cumulative + x * n.density;
}

TYPED_BODY void forward_chunk(const struct gelu *a, int64_t first, int64_t count, enum dtype type) {
    const void *x = at_const(a->x, first, type);
    void *y = at(a->y, first, type);
    if (a->is_tanh) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(y, i, type, tanh_form(load(x, i, type)));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(y, i, type, exact_form(load(x, i, type)));
    }
}

TYPED_BODY void backward_chunk(const struct gelu *a, int64_t first, int64_t count, enum dtype type) {
    const void *x = at_const(a->x, first, type), *dy = at_const(a->dy, first, type);
    void *dx = at(a->dx, first, type);
    if (a->is_tanh) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(dx, i, type, load(dy, i, type) * tanh_form_slope(load(x, i, type)));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(dx, i, type, load(dy, i, type) * exact_form_slope(load(x, i, type)));
    }
}

TYPED_CHUNK(forward_chunk, gelu)

int LEVEL(cpu_gelu_forward)(const struct exec *exec, const struct gelu *a) {
    return every_chunk(exec, &(struct pieces){"gelu_forward", a->type, a->count, 1, a, .chunk = forward_chunk_of},
                       CHUNK);
}

TYPED_CHUNK(backward_chunk, gelu)

int LEVEL(cpu_gelu_backward)(const struct exec *exec, const struct gelu *a) {
    return every_chunk(exec, &(struct pieces){"gelu_backward", a->type, a->count, 1, a, .chunk = backward_chunk_of},
                       CHUNK);
}
