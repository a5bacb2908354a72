/* Moves rows between the caller's tensors and the layouts of the products. */
#include "cpu/level/attention-internal.h"

struct head_shape LEVEL(attention_shape)(enum dtype type, int head_size) {
    bool pairs = SIMD_PAIRS && type == DTYPE_BF16;
    return (struct head_shape){.type = type,
                               .size = head_size,
                               .depth = pairs ? (head_size + 1) / 2 : head_size,
                               .width = (head_size + SIMD_LANES - 1) / SIMD_LANES * SIMD_LANES,
                               .group = pairs ? 2 : 1,
                               .pairs = pairs};
}

void LEVEL(attention_load_rows)(const struct head_shape *shape, const void *from, int64_t stride, int rows, float *to,
                                int64_t to_row) {
    int size = shape->size;
    if (shape->type == DTYPE_BF16 && !shape->pairs) {
        for (int r = 0; r < rows; r++) {
            const uint16_t *x = (const uint16_t *)from + r * stride;
            float *y = to + r * to_row;
            int d = 0;
            for (; d + SIMD_LANES <= size; d += SIMD_LANES)
                simd_store(y + d, simd_load_bf16(x + d));
            for (; d < size; d++)
                y[d] = bf16_to_float(x[d]);
            for (; d < to_row; d++)
                y[d] = 0.0f;
        }
        return;
    }
    size_t element = dtype_bytes(shape->type), bytes = (size_t)size * element;
    int64_t whole = (int64_t)(bytes / sizeof(float)) / SIMD_LANES * SIMD_LANES;
    size_t rest = bytes - (size_t)whole * sizeof(float), padding = (size_t)(to_row - whole) * sizeof(float) - rest;
    for (int r = 0; r < rows; r++) {
        const char *x = (const char *)from + (size_t)(r * stride) * element;
        float *y = to + r * to_row;
        for (int64_t u = 0; u < whole; u += SIMD_LANES)
            simd_store(y + u, simd_load((const float *)(const void *)x + u));
        if (rest)
            memcpy(y + whole, x + (size_t)whole * sizeof(float), rest);
        if (padding)
            memset((char *)(y + whole) + rest, 0, padding);
    }
}

void LEVEL(attention_make_panels)(const struct head_shape *shape, const float *from, int64_t from_row, float *panels) {
    int depth = shape->depth;
    for (int row = 0; row < CHUNK_KEYS; row += 4) {
        float *to = panels + (int64_t)row / PANEL_KEYS * PANEL_KEYS * depth + row % PANEL_KEYS;
        const float *x = from + row * from_row;
        int u = 0;
        for (; u + 4 <= depth; u += 4) {
            __m128 a = _mm_loadu_ps(x + u), b = _mm_loadu_ps(x + from_row + u);
            __m128 c = _mm_loadu_ps(x + 2 * from_row + u), d = _mm_loadu_ps(x + 3 * from_row + u);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(to + (u + 0) * PANEL_KEYS, a);
            _mm_storeu_ps(to + (u + 1) * PANEL_KEYS, b);
            _mm_storeu_ps(to + (u + 2) * PANEL_KEYS, c);
            _mm_storeu_ps(to + (u + 3) * PANEL_KEYS, d);
        }
        for (; u < depth; u++)
            for (int r = 0; r < 4; r++)
                memcpy(to + u * PANEL_KEYS + r, x + r * from_row + u, sizeof(float));
    }
}

void LEVEL(attention_pair_rows)(const struct head_shape *shape, const float *from, int64_t from_row, int rows,
                                float *to) {
    for (int r = 0; r < rows; r += 2) {
        const uint16_t *even = (const uint16_t *)(const void *)(from + r * from_row);
        const uint16_t *odd = (const uint16_t *)(const void *)(from + (r + 1) * from_row);
        uint16_t *pairs = (uint16_t *)(void *)(to + (int64_t)r / 2 * shape->width);
        for (int d = 0; d < shape->size; d++) {
            pairs[2 * d] = even[d];
            pairs[2 * d + 1] = odd[d];
        }
        memset(pairs + 2 * shape->size, 0, (size_t)(shape->width - shape->size) * sizeof(float));
    }
}

void LEVEL(attention_store_rows)(const struct head_shape *shape, const float *from, const float *factor, int rows,
                                 void *to, int64_t stride) {
    int size = shape->size, whole = size / SIMD_LANES * SIMD_LANES;
    for (int r = 0; r < rows; r++) {
        const float *x = from + (int64_t)r * shape->width;
        vfloat scale = simd_set(factor[r]);
        if (shape->type == DTYPE_F32) {
            float *y = (float *)to + r * stride;
            for (int d = 0; d < whole; d += SIMD_LANES)
                simd_store(y + d, simd_load(x + d) * scale);
            for (int d = whole; d < size; d++)
                y[d] = x[d] * factor[r];
        } else {
            uint16_t *y = (uint16_t *)to + r * stride;
            for (int d = 0; d < whole; d += SIMD_LANES)
                simd_store_halves(y + d, simd_round_bf16(simd_load(x + d) * scale));
            for (int d = whole; d < size; d++)
                y[d] = bf16_from_float(x[d] * factor[r]);
        }
    }
}

void LEVEL(attention_load_keys)(const struct head_shape *shape, const struct key_rows *keys, float *to,
                                int64_t to_row) {
    const struct attention *a = keys->a;
    size_t element = dtype_bytes(shape->type);
    int64_t start = a->segment_start[keys->segment], rows = a->segment_start[keys->segment + 1] - start;
    int64_t head = (int64_t)keys->kv_head * shape->size;
    int done = 0;
    if (keys->first < a->prefix) {
        const char *prefix = keys->is_value ? a->prefix_v : a->prefix_k;
        int64_t stride = (int64_t)a->kv_heads * shape->size;
        done = clamp_int64(a->prefix - keys->first, 0, CHUNK_KEYS);
        LEVEL(attention_load_rows)
        (shape, prefix + (size_t)(keys->first * stride + head) * element, stride, done, to, to_row);
    }
    int64_t first_row = keys->first + done - a->prefix;
    int count = clamp_int64(rows - first_row, 0, CHUNK_KEYS - done);
    if (count > 0) {
        const char *from = keys->is_value ? a->v : a->k;
        int64_t stride = keys->is_value ? a->v_stride : a->k_stride;
        LEVEL(attention_load_rows)
        (shape, from + (size_t)((start + first_row) * stride + head) * element, stride, count, to + done * to_row,
         to_row);
    }
    memset(to + (done + count) * to_row, 0, (size_t)((CHUNK_KEYS - done - count) * to_row) * sizeof(float));
}
