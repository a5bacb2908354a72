/* SwiGLU (Shazeer 2020, arXiv 2002.05202): swish(gate) * up, where one product has made gate and up side by side. A
 * row's parts are short, and the processor does not foresee where the next row's parts begin. So they are prefetched
 * one row ahead. */
#include "cpu/level/typed_vectors.h"
#include "cpu/level/vector_exp.h"

/* Returns exp(-x), limited to 2^126. The sigmoid 1 / (1 + exp(-x)) then has a small relative error even near 0. */
static inline vfloat exp_of_minus(vfloat x) {
    return exp2_vector(-simd_max(simd_set(-126.0f), x * simd_set(LOG2_E)));
}

static inline vfloat forward_vector(vfloat gate, vfloat up) {
    return gate / (simd_set(1.0f) + exp_of_minus(gate)) * up;
}

TYPED_BODY void forward_row(const struct swiglu *a, int64_t i, enum dtype type) {
    int64_t cols = a->cols, ahead = i + 1 < a->rows ? cols : 0, j = 0;
    const void *gate = at_const(a->x, i * 2 * cols, type), *up = at_const(gate, cols, type);
    void *y = at(a->y, i * cols, type);
    for (; j + SIMD_LANES <= cols; j += SIMD_LANES) {
        __builtin_prefetch(at_const(gate, 2 * ahead + j, type), 0, 3);
        __builtin_prefetch(at_const(up, 2 * ahead + j, type), 0, 3);
        __builtin_prefetch(at_const(y, ahead + j, type), 1, 3);
        store_vector(y, j, type, forward_vector(load_vector(gate, j, type), load_vector(up, j, type)));
    }
    if (j < cols)
        store_part(y, j, cols - j, type,
                   forward_vector(load_part(gate, j, cols - j, type), load_part(up, j, cols - j, type)));
}

TYPED_ROW(forward_row, swiglu)

int LEVEL(cpu_swiglu_forward)(const struct exec *exec, const struct swiglu *a) {
    struct swiglu call = *a;
    call.y = a->is_fp8_alone ? a->fp8.y : a->y;
    int status =
        every_row(exec, &(struct pieces){"swiglu_forward", a->type, a->rows, a->cols, &call, .row = forward_row_of});
    return status ? status : LEVEL(cpu_fp8_result)(exec, &(const struct fp8_result){a->rows, a->cols, call.y, &a->fp8});
}

struct gradients {
    vfloat gate, up;
};

static inline struct gradients backward_vector(vfloat gate, vfloat up, vfloat dy) {
    vfloat one = simd_set(1.0f), e = exp_of_minus(gate), sigmoid = one / (one + e), rest = e * sigmoid;
    return (struct gradients){dy * up * sigmoid * (one + gate * rest), dy * gate * sigmoid};
}

TYPED_BODY void backward_row(const struct swiglu *a, int64_t i, enum dtype type) {
    int64_t cols = a->cols, ahead = i + 1 < a->rows ? cols : 0, j = 0;
    const void *gate = at_const(a->x, i * 2 * cols, type), *up = at_const(gate, cols, type);
    const void *dy = at_const(a->dy, i * cols, type);
    void *dgate = at(a->dx, i * 2 * cols, type), *dup = at(dgate, cols, type);
    for (; j + SIMD_LANES <= cols; j += SIMD_LANES) {
        __builtin_prefetch(at_const(gate, 2 * ahead + j, type), 0, 3);
        __builtin_prefetch(at_const(up, 2 * ahead + j, type), 0, 3);
        __builtin_prefetch(at_const(dgate, 2 * ahead + j, type), 1, 3);
        __builtin_prefetch(at_const(dup, 2 * ahead + j, type), 1, 3);
        struct gradients d =
            backward_vector(load_vector(gate, j, type), load_vector(up, j, type), load_vector(dy, j, type));
        store_vector(dgate, j, type, d.gate);
        store_vector(dup, j, type, d.up);
    }
    if (j < cols) {
        struct gradients d = backward_vector(load_part(gate, j, cols - j, type), load_part(up, j, cols - j, type),
                                             load_part(dy, j, cols - j, type));
        store_part(dgate, j, cols - j, type, d.gate);
        store_part(dup, j, cols - j, type, d.up);
    }
}

TYPED_ROW(backward_row, swiglu)

int LEVEL(cpu_swiglu_backward)(const struct exec *exec, const struct swiglu *a) {
    struct swiglu call = *a;
    call.dx = a->is_fp8_alone ? a->fp8.y : a->dx;
    int status =
        every_row(exec, &(struct pieces){"swiglu_backward", a->type, a->rows, a->cols, &call, .row = backward_row_of});
    return status ? status
                  : LEVEL(cpu_fp8_result)(exec, &(const struct fp8_result){a->rows, 2 * a->cols, call.dx, &a->fp8});
}
