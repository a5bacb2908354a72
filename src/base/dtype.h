/* Element types of tensors, in memory and in files. */
#pragma once

#include "inline.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_E4M3, /* FP8 with 3 bits of fraction, up to 448; it has NaN and no infinities */
    DTYPE_E5M2, /* FP8 with 2 bits of fraction, up to 57,344; the upper half of an IEEE half */
    DTYPE_COUNT
};

/* The bytes of one element of a type, and the type's name in messages. */
static inline size_t dtype_bytes(enum dtype type) {
    static const unsigned char bytes[DTYPE_COUNT] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1, 1};
    return bytes[type];
}
static inline const char *dtype_name(enum dtype type) {
    static const char *const names[DTYPE_COUNT] = {"fp32",   "bf16",  "fp16", "fp64", "int64", "int32",
                                                   "uint16", "uint8", "int8", "e4m3", "e5m2"};
    return names[type];
}

/* bfloat16 is the upper half of an IEEE float. Rounding is to nearest, ties to even; NaN stays NaN. */
BASE_INLINE float bf16_to_float(uint16_t bits) {
    uint32_t fp32 = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &fp32, sizeof value);
    return value;
}
BASE_INLINE uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? (uint16_t)((bits >> 16) | 0x40) : (uint16_t)rounded;
}

/* Returns the index of the first of `count` values of DTYPE_F32, DTYPE_BF16 or DTYPE_F16 that is NaN or infinite, or -1
 * when all are finite. */
int64_t dtype_find_not_finite(enum dtype type, const void *values, int64_t count);
/* Returns the name of such a value for messages: "nan", "inf", "-inf". */
const char *dtype_not_finite_name(double value);

/* IEEE half precision, subnormals included. */
float f16_to_float(uint16_t bits);
uint16_t f16_from_float(float value);

/* FP8 (Micikevicius et al. 2022, arXiv 2209.05433). Rounding is to nearest, ties to even. Numbers beyond the range,
 * infinities included, become the largest number of their sign; NaN stays NaN. `type` is DTYPE_E4M3 or DTYPE_E5M2. */
float fp8_to_float(enum dtype type, uint8_t bits);
uint8_t fp8_from_float(enum dtype type, float value);
/* Returns the largest number of the type. */
BASE_INLINE float fp8_largest(enum dtype type) {
    return type == DTYPE_E4M3 ? 448.0f : 57344.0f;
}
/* Returns the number of the type to which fp8_from_float rounds. It has no branches, so loops of it vectorise. */
BASE_INLINE float fp8_round(enum dtype type, float value) {
    const uint32_t drop = type == DTYPE_E4M3 ? 20 : 21; /* bits of an fp32's fraction */
    const float least = type == DTYPE_E4M3 ? 0x1p-6f : 0x1p-14f, most = fp8_largest(type);
    uint32_t bits, sign, rounded;
    memcpy(&bits, &value, sizeof bits);
    sign = bits & 0x80000000u;
    bits &= 0x7fffffffu;
    float size, result;
    memcpy(&size, &bits, sizeof size);
    /* Below the least normal number, all numbers are multiples of one power of two: that of the sum's last bit. */
    const float magic = least * (float)(1u << drop);
    float small = size + magic;
    small -= magic;
    rounded = (bits + (1u << (drop - 1)) - 1 + (bits >> drop & 1)) >> drop << drop;
    memcpy(&result, &rounded, sizeof result);
    result = size < least ? small : result;
    result = result > most ? most : result;
    result = size != size ? size : result;
    memcpy(&rounded, &result, sizeof rounded);
    rounded |= sign;
    memcpy(&result, &rounded, sizeof result);
    return result;
}
