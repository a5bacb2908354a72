/* Codes, scales and values of encoded weights, on the device. encoded.h says where they lie. */
#pragma once

#include "cuda/encoded.h"
#include "cuda/typed.cuh"

static __device__ __forceinline__ float half_to_float(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

static __device__ __forceinline__ float scale_at(int type, const void *array, int64_t i) {
    return type == DTYPE_F32    ? ((const float *)array)[i]
           : type == DTYPE_F16  ? half_to_float(((const uint16_t *)array)[i])
           : type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)array)[i])
           : type == DTYPE_I8   ? (float)((const int8_t *)array)[i]
                                : (float)((const uint8_t *)array)[i];
}

/* The scale of a group, and what is subtracted from its numbers and from its values. */
struct group_terms {
    float scale, zero, offset;
};
/* The arrays that terms come from: all of a form, or a copy of some. */
struct term_arrays {
    const void *scales, *shifts, *block_scales, *block_offsets;
};
/* Returns the terms at element `at` of the first two arrays, and at element `block` of the others. */
static __device__ __forceinline__ group_terms terms_at(const encoding &e, const term_arrays &from, int64_t at,
                                                       int64_t block) {
    group_terms terms = {scale_at(e.scale_type, from.scales, at), 0, 0};
    if (e.shift == ENCODED_ZEROS)
        terms.zero = ((const uint8_t *)from.shifts)[at];
    else if (e.shift == ENCODED_OFFSETS)
        terms.offset = scale_at(e.scale_type, from.shifts, at);
    if (e.groups_of_block) {
        terms.scale *= half_to_float(((const uint16_t *)from.block_scales)[block]);
        if (e.shift == ENCODED_OFFSETS)
            terms.offset *= half_to_float(((const uint16_t *)from.block_offsets)[block]);
    }
    return terms;
}
static __device__ __forceinline__ group_terms terms_of(const encoded_form &w, int64_t row, int64_t group) {
    int64_t panel = row / ENCODED_PANEL, output = row % ENCODED_PANEL;
    int64_t block = 0;
    if (w.encoding.groups_of_block)
        block = (panel * w.blocks + group / w.encoding.groups_of_block) * ENCODED_PANEL + output;
    return terms_at(w.encoding, {w.scales, w.shifts, w.block_scales, w.block_offsets},
                    (panel * w.groups + group) * ENCODED_PANEL + output, block);
}

/* a * b + c of two bf16 each, rounded once. */
static __device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Two numbers as bf16, from codes in both halves of a word. A bf16 of 128 to 255 has its number in the lowest bits of
 * its fraction. E4M3 has the exponents and fractions of bf16 numbers that are 2^120 times smaller. */
static __device__ __forceinline__ uint32_t nibbles_to_numbers(uint32_t pair) {
    return multiply_add(pair & 0x000f000f | 0x43004300, 0x3f803f80, 0xc308c308);
}
static __device__ __forceinline__ uint32_t bytes_to_numbers(uint32_t pair) {
    return multiply_add(pair & 0x007f007f | 0x43004300, 0x3f803f80, pair & 0x00800080 | 0xc300c300);
}
static __device__ __forceinline__ uint32_t e4m3_to_numbers(uint32_t pair) {
    return multiply_add((pair & 0x007f007f) << 4 | (pair & 0x00800080) << 8, 0x7b807b80, 0x80008000);
}
