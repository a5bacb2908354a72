#include "dtype.h"

#include <math.h>

float f16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023, fp32;
    if (exponent == 31) {
        fp32 = sign | 0x7f800000 | fraction << 13;
    } else if (exponent) {
        fp32 = sign | (exponent + 112) << 23 | fraction << 13;
    } else { /* zero or subnormal: fraction * 2^-24 is exact in a float */
        float value = (float)fraction * 0x1p-24f;
        memcpy(&fp32, &value, sizeof fp32);
        fp32 |= sign;
    }
    float value;
    memcpy(&value, &fp32, sizeof value);
    return value;
}

uint16_t f16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return sign | 0x7e00;
    if (bits >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (bits < 0x38800000) { /* subnormal: adding 0.5 leaves value / 2^-24, rounded, in the low bits */
        float magic;
        memcpy(&magic, &bits, sizeof magic);
        magic += 0.5f;
        memcpy(&bits, &magic, sizeof bits);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    bits += 0xc8000fff + (bits >> 13 & 1);
    return sign | (uint16_t)(bits >> 13);
}

float fp8_to_float(enum dtype type, uint8_t bits) {
    if (type == DTYPE_E5M2)
        return f16_to_float((uint16_t)(bits << 8));
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    float size = exponent == 15 && fraction == 7 ? NAN
                 : exponent                      ? ldexpf((float)(8 + fraction), exponent - 10)
                                                 : ldexpf((float)fraction, -9);
    return bits & 0x80 ? -size : size;
}

uint8_t fp8_from_float(enum dtype type, float value) {
    float rounded = fp8_round(type, value);
    if (type == DTYPE_E5M2) /* exact: a half has all numbers of E5M2 */
        return (uint8_t)(f16_from_float(rounded) >> 8);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (isnan(rounded))
        return sign | 0x7f;
    bits &= 0x7fffffff;
    if (bits < 0x3c800000) /* subnormal, a multiple of 2^-9 */
        return sign | (uint8_t)(fabsf(rounded) * 0x1p9f);
    return sign | (uint8_t)((bits - (120u << 23)) >> 20);
}

/* An exponent of all ones marks infinities and NaN. */
#define DEFINE_FIND(name, bits, exponent)                                                                              \
    static int64_t name(const bits *value, int64_t count) {                                                            \
        bits found = 0;                                                                                                \
        _Pragma("omp simd reduction(| : found)") for (int64_t i = 0; i < count; i++) found |=                          \
            (value[i] & (exponent)) == (exponent);                                                                     \
        for (int64_t i = 0; i < count && found; i++)                                                                   \
            if ((value[i] & (exponent)) == (exponent))                                                                 \
                return i;                                                                                              \
        return -1;                                                                                                     \
    }
DEFINE_FIND(find_in_words, uint32_t, 0x7f800000u)
DEFINE_FIND(find_in_halves, uint16_t, 0x7f80u)
DEFINE_FIND(find_in_f16, uint16_t, 0x7c00u)

int64_t dtype_find_not_finite(enum dtype type, const void *values, int64_t count) {
    return type == DTYPE_BF16  ? find_in_halves(values, count)
           : type == DTYPE_F16 ? find_in_f16(values, count)
                               : find_in_words(values, count);
}

const char *dtype_not_finite_name(double value) {
    return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
