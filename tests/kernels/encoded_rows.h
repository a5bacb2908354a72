/* Encoded rows for tests, as a codec writes them: random codes, scales and shifts. */
#pragma once

#include "kernels/encoding.h"

static inline uint32_t encoded_draw(uint32_t key, int64_t i) {
    return philox(key, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0];
}

/* Writes an element of an array of numbers; of one of small integers, a thousand times the value. */
static inline void encoded_put(enum dtype type, void *array, int64_t i, float value) {
    if (type == DTYPE_F32)
        ((float *)array)[i] = value;
    else if (type == DTYPE_F16)
        ((uint16_t *)array)[i] = f16_from_float(value);
    else if (type == DTYPE_BF16)
        ((uint16_t *)array)[i] = bf16_from_float(value);
    else
        ((uint8_t *)array)[i] = (uint8_t)(int)(value * 1000);
}

/* Every third place of an order is empty, and the others go through the inputs in steps. */
static inline void encoded_fill_order(struct encoded_rows *rows, int64_t k) {
    for (int64_t p = 0, from = 0; p < rows->positions; p++)
        rows->order[p] = p % 3 == 2 || from >= k ? -1 : (int32_t)(from++ * 101 % k);
}

/* Fills a matrix of k inputs with random codes, scales and shifts, and its order if it has one. */
static inline void encoded_fill(struct encoded_rows *rows, int64_t k, uint32_t key) {
    const struct encoding *e = &rows->encoding;
    int64_t groups = rows->rows * encoded_groups(e, rows->positions);
    int64_t blocks = rows->rows * encoded_blocks(e, rows->positions);
    for (int64_t i = 0; i < rows->rows * rows->positions; i++) {
        rows->codes[i] = (uint8_t)(encoded_draw(key, i) >> 8 & ((1u << e->bits) - 1));
        if (e->codes == CODES_E4M3 && (rows->codes[i] & 0x7f) == 0x7f)
            rows->codes[i] -= 1;
    }
    for (int64_t i = 0; i < groups; i++) {
        float unit = (float)(encoded_draw(key + 1, i) >> 8) * 0x1p-24f;
        encoded_put(e->scale_type, rows->scales, i,
                    e->scale_type == DTYPE_I8 ? (unit - 0.5f) * 0.06f : 0.01f + unit * 0.05f);
        if (e->shift == ENCODED_ZEROS)
            ((uint8_t *)rows->shifts)[i] = (uint8_t)(unit * (float)(1 << e->bits));
        else if (e->shift == ENCODED_OFFSETS)
            encoded_put(e->scale_type, rows->shifts, i, unit * 0.06f);
    }
    for (int64_t i = 0; i < blocks; i++) {
        rows->block_scales[i] = f16_from_float(0.001f + (float)(i % 7) * 0.0003f);
        if (rows->block_offsets)
            rows->block_offsets[i] = f16_from_float(0.002f + (float)(i % 5) * 0.0003f);
    }
    if (rows->order)
        encoded_fill_order(rows, k);
}
