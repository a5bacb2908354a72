/* Functions of fp32 numbers, and typed loads and stores. They have no calls, branches or tables, so that a loop around
 * them vectorises. Errors are against the exact value, with and without fused multiply-add. */
#pragma once

#include "base/base.h"

/* ---- the bits of a float ---- */

static inline float vbits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t vfloat_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- elements of arrays of `type`, fp32 or bf16: it must be a constant after inlining for the loop to vectorise ----
 */

/* Returns element i. */
static inline __attribute__((always_inline)) float load(const void *x, int64_t i, enum dtype type) {
    return type == DTYPE_F32 ? ((const float *)x)[i] : bf16_to_float(((const uint16_t *)x)[i]);
}

/* Rounds like bf16_from_float. It finds NaN by comparing the number with itself, which vectors do faster. */
static inline uint16_t vbf16_from_float(float value) {
    uint32_t bits = vfloat_to_bits(value), high = bits >> 16;
    uint32_t rounded = (bits + 0x7fff + (high & 1)) >> 16;
    return (uint16_t)(value != value ? high | 0x40 : rounded);
}

/* Writes element i, rounded to the type. */
static inline __attribute__((always_inline)) void store(void *x, int64_t i, enum dtype type, float value) {
    if (type == DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = vbf16_from_float(value);
}

/* Returns the value as a load would return it after a store. */
static inline __attribute__((always_inline)) float rounded(float value, enum dtype type) {
    return type == DTYPE_F32 ? value : bf16_to_float(vbf16_from_float(value));
}

/* ---- functions ---- */

/* Returns exp(x + tail) for a tail much smaller than one.
 *
 * exp(x) = 2^n exp(r), |r| <= ln 2 / 2. The polynomial is twice exp(r), to 3e-9 relative, and the scale is 2^(n-1), so
 * that n = 128 fits and n = -126 gives a scale of 0. The constant that rounds x / ln 2 also contains the exponent's
 * bias: the low bits of the sum are the scale's exponent. They are bounded by the exponent of infinity. (The upper
 * bound is not on x because the compiler vectorises two bounds on one float badly.) */
static inline float vexp_sum(float x, float tail) {
    const float bias = 12582912.0f + 126.0f;
    x = x < -87.3f ? -87.3f : x;
    float shifted = x * 1.44269504f + bias;
    float n = shifted - bias;
    float r = x - n * 0.693359375f;
    r = r + (n * 2.12194440e-4f + tail);
    float p = 2.762907650321722e-03f;
    p = p * r + 1.673749089241028e-02f;
    p = p * r + 8.333677798509598e-02f;
    p = p * r + 3.333304226398468e-01f;
    p = p * r + 9.999998807907104e-01f;
    p = p * r + 2.0f;
    p = p * r + 2.0f;
    uint32_t exponent = vfloat_to_bits(shifted);
    exponent = exponent < 0x4b4000ffu ? exponent : 0x4b4000ffu;
    return p * vbits_to_float(exponent << 23);
}

/* Returns exp(x), to 1.5 units in the last place. It is 0 below -87 (where the result would be below 2^-126), infinity
 * above 88.7228, and NaN for NaN and for infinity. */
static inline float vexp(float x) {
    return vexp_sum(x, 0.0f);
}

/* Returns 1 / (1 + exp(-x)), to 3 units in the last place. */
static inline float vsigmoid(float x) {
    return 1.0f / (1.0f + vexp(-x));
}

struct vnormal {
    float cumulative, density;
};

/* Returns the standard normal distribution at x: Phi(x) = (1 + erf(x / sqrt 2)) / 2 and phi(x), each to 4e-7 relative,
 * also in the lower tail.
 *
 * Phi(-t) = exp(-t^2 / 2) R(t) for t >= 0. R is a polynomial in 1 / (1 + t / 4), to 1.2e-8 relative on 0 .. 13.3;
 * beyond that, the exponential is 0. The square t^2 is computed in two parts, because the exponential would multiply
 * its rounding error.
 */
static inline struct vnormal vnormal(float x) {
    float t = x < 0.0f ? -x : x;
    float high = vbits_to_float(vfloat_to_bits(t) & 0xfffff000u);
    float e = vexp_sum(-0.5f * high * high, -0.5f * (t - high) * (t + high));
    float u = 1.0f / (1.0f + 0.25f * t);
    float p = 3.46923715e-02f;
    p = p * u - 2.00209112e-01f;
    p = p * u + 4.04452808e-01f;
    p = p * u - 3.46056828e-01f;
    p = p * u + 3.14967100e-01f;
    p = p * u - 2.60328005e-02f;
    p = p * u + 1.23536468e-01f;
    p = p * u + 9.43929687e-02f;
    p = p * u + 1.00281382e-01f;
    p = p * u - 2.43630086e-05f;
    float tail = e * p;
    return (struct vnormal){.cumulative = x < 0.0f ? tail : 1.0f - tail, .density = 0.398942280f * e};
}
