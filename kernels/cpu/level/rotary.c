/* Rotary positions (Su et al. 2021, arXiv 2104.09864). Features j and j + rotary / 2 of a head are a point in a plane,
 * which is rotated by the angle of its position. */
#include "cpu/level/typed_vectors.h"

/* Rotates the points of a head, two rows of `half` features, by the angles' cosines and sines. */
TYPED_BODY void rotate_head(void *first, const float *cos, const float *sin, float sign, int64_t half,
                            enum dtype type) {
    void *second = at(first, half, type);
    int64_t j = 0;
    for (; j + SIMD_LANES <= half; j += SIMD_LANES) {
        vfloat x1 = load_vector(first, j, type), x2 = load_vector(second, j, type);
        vfloat c = simd_load(cos + j), s = simd_load(sin + j) * simd_set(sign);
        store_vector(first, j, type, x1 * c - x2 * s);
        store_vector(second, j, type, x2 * c + x1 * s);
    }
    for (; j < half; j++) {
        float x1 = load(first, j, type), x2 = load(second, j, type), s = sign * sin[j];
        store(first, j, type, x1 * cos[j] - x2 * s);
        store(second, j, type, x2 * cos[j] + x1 * s);
    }
}

/* Rotates a row, and prefetches the next one, which the processor does not foresee if it is part of a longer row. */
TYPED_BODY void rotate_row(const struct rotary *a, int64_t i, enum dtype type) {
    int64_t half = a->rotary / 2;
    const float *cos = a->cos + a->positions[i] * half, *sin = a->sin + a->positions[i] * half;
    float sign = a->is_backward ? -1.0f : 1.0f;
    for (int head = 0; head < a->heads; head++) {
        char *x = at(a->x, i * a->stride + (int64_t)head * a->head_size, type);
        const char *next = at_const(x, a->stride, type);
        for (int64_t j = 0; j < (int64_t)dtype_bytes(type) * 2 * half; j += 64)
            __builtin_prefetch(next + j, 1, 3);
        rotate_head(x, cos, sin, sign, half, type);
    }
}

TYPED_ROW(rotate_row, rotary)

int LEVEL(cpu_rotary)(const struct exec *exec, const struct rotary *a) {
    if (a->rotary < 0 || a->rotary % 2 || a->rotary > a->head_size)
        return status_fail(STATUS_INVALID, "rotary: %d of a head's %d features cannot be rotated in pairs", a->rotary,
                           a->head_size);
    int64_t cols = (int64_t)a->heads * a->rotary;
    return every_row(exec, &(struct pieces){"rotary", a->type, a->rows, cols, a, .row = rotate_row_of});
}
