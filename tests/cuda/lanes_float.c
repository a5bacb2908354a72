#include "cuda/lanes.h"

#include <math.h>
#include <string.h>

#define SINGLE(name, expression) LANES_OF(name, float, float, float, expression)
#define DOUBLE(name, expression) LANES_OF(name, double, double, double, expression)
#define BOTH(name, expression)                                                                                         \
    SINGLE(name##_f32, expression)                                                                                     \
    DOUBLE(name##_f64, expression)

float lanes_perturb(float exact, uint32_t input, float error) {
    if (exact == 0 || !isfinite(exact)) {
        return exact;
    }
    uint32_t hash = (input ^ 0x9E3779B9u) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 15) * 0xC2B2AE35u;
    double share = (double)(hash >> 8) / (1 << 23) - 1; /* -1 to 1 */
    return (float)(exact * (1 + 0.9 * error * share));
}

/* a b + c, rounded to fp32 in a direction: the nearest value, moved by one where it lies on the wrong side. */
static float directed(float a, float b, float c, enum rounding rounding) {
    float nearest = fmaf(a, b, c);
    if (!isfinite(nearest)) {
        return nearest;
    }
    double product = (double)a * b, sum = product + c, part = sum - product;
    double lost = (product - (sum - part)) + (c - part), over = ((double)nearest - sum) - lost;
    bool down = rounding == ROUND_DOWN || (rounding == ROUND_ZERO && nearest > 0);
    bool up = rounding == ROUND_UP || (rounding == ROUND_ZERO && nearest < 0);
    return down && over > 0 ? nextafterf(nearest, -INFINITY) : up && over < 0 ? nextafterf(nearest, INFINITY) : nearest;
}

BOTH(add, a[l] + b[l])
BOTH(sub, a[l] - b[l])
BOTH(mul, a[l] * b[l])
BOTH(div, a[l] / b[l])
SINGLE(fma_f32, __builtin_fmaf(a[l], b[l], c[l]))
DOUBLE(fma_f64, __builtin_fma(a[l], b[l], c[l]))
#define DIRECTED(name, rounding)                                                                                       \
    SINGLE(fma_##name, directed(a[l], b[l], c[l], rounding))                                                           \
    SINGLE(add_##name, directed(a[l], 1, b[l], rounding))                                                              \
    SINGLE(sub_##name, directed(a[l], 1, -b[l], rounding))                                                             \
    SINGLE(mul_##name, directed(a[l], b[l], 0, rounding))
DIRECTED(rz, ROUND_ZERO)
DIRECTED(rm, ROUND_DOWN)
DIRECTED(rp, ROUND_UP)
/* A NaN gives way to a number, and -0 is less than +0. */
BOTH(min, a[l] != a[l]   ? b[l]
          : b[l] != b[l] ? a[l]
          : a[l] == b[l] ? (signbit(a[l]) ? a[l] : b[l])
          : a[l] < b[l]  ? a[l]
                         : b[l])
BOTH(max, a[l] != a[l]   ? b[l]
          : b[l] != b[l] ? a[l]
          : a[l] == b[l] ? (signbit(a[l]) ? b[l] : a[l])
          : a[l] > b[l]  ? a[l]
                         : b[l])
SINGLE(min_nan, a[l] != a[l] || b[l] != b[l]                     ? lanes_float_of(0x7FFFFFFF)
                : a[l] < b[l] || (a[l] == b[l] && signbit(a[l])) ? a[l]
                                                                 : b[l])
SINGLE(max_nan, a[l] != a[l] || b[l] != b[l]                     ? lanes_float_of(0x7FFFFFFF)
                : a[l] > b[l] || (a[l] == b[l] && signbit(b[l])) ? a[l]
                                                                 : b[l])
SINGLE(neg_f32, -a[l])
DOUBLE(neg_f64, -a[l])
SINGLE(abs_f32, fabsf(a[l]))
DOUBLE(abs_f64, fabs(a[l]))
SINGLE(copysign_f32, copysignf(b[l], a[l]))
DOUBLE(copysign_f64, copysign(b[l], a[l]))
SINGLE(sqrt_f32, sqrtf(a[l]))
DOUBLE(sqrt_f64, sqrt(a[l]))
SINGLE(rcp_f32, 1 / a[l])
DOUBLE(rcp_f64, 1 / a[l])

/* ---- approximations: the bounds are those of the PTX manual ---- */

#define ERROR_OF(exponent_below_zero) (1.0f / (1 << (exponent_below_zero)))

SINGLE(div_approx, lanes_perturb((float)((double)a[l] / b[l]), lanes_bits(a[l]) ^ lanes_bits(b[l]) * 3, ERROR_OF(23)))
SINGLE(rcp_approx, lanes_perturb(1 / a[l], lanes_bits(a[l]), ERROR_OF(24)))
SINGLE(sqrt_approx, lanes_perturb(sqrtf(a[l]), lanes_bits(a[l]), ERROR_OF(24)))
SINGLE(rsqrt_approx, lanes_perturb((float)(1 / sqrt((double)a[l])), lanes_bits(a[l]), ERROR_OF(23)))
DOUBLE(rsqrt_f64, 1 / sqrt(a[l]))
/* Reads and writes the upper 32 bits of a double, 20 of them of its fraction. Subnormal numbers count as 0. */
static double reciprocal_approx(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t upper = (uint32_t)(bits >> 32);
    bool is_number = x == x;
    bits = (uint64_t)((upper & 0x7FF00000) ? upper : upper & 0x80000000) << 32;
    memcpy(&x, &bits, sizeof x);
    x = 1 / x * (double)lanes_perturb(1, upper, ERROR_OF(21));
    memcpy(&bits, &x, sizeof bits);
    bits = is_number ? (bits + 0x80000000) >> 32 << 32 : 0x7FFFFFFF00000000;
    bits = (bits >> 52 & 0x7FF) ? bits : bits & 1ull << 63;
    memcpy(&x, &bits, sizeof x);
    return x;
}
DOUBLE(rcp_approx_f64, reciprocal_approx(a[l]))
SINGLE(ex2_approx, a[l] == 0 ? 1 : lanes_perturb(exp2f(a[l]), lanes_bits(a[l]), ERROR_OF(23))) /* 2^0 is exact */
SINGLE(tanh_approx, lanes_perturb(tanhf(a[l]), lanes_bits(a[l]), ERROR_OF(11)))

/* The logarithm's error is absolute near 1: 2^-22; so are those of the sine and the cosine: 2^-20.5. */
static float moved(double exact, uint32_t input, float error) {
    float scale = (float)fabs(exact) < 1 && exact != 0 ? (float)(1 / fabs(exact)) : 1;
    return lanes_perturb((float)exact, input, error * scale > 0.5f ? 0.5f : error * scale);
}
SINGLE(lg2_approx, moved(log2((double)a[l]), lanes_bits(a[l]), ERROR_OF(23)))
SINGLE(sin_approx, moved(sin((double)a[l]), lanes_bits(a[l]), ERROR_OF(21)))
SINGLE(cos_approx, moved(cos((double)a[l]), lanes_bits(a[l]), ERROR_OF(21)))

/* ---- bf16 ---- */

#define BF16(bits) lanes_from_bf16((uint16_t)(bits))
#define PAIR(name, expression)                                                                                         \
    static uint16_t name##_one(uint16_t a, uint16_t b, uint16_t c) {                                                   \
        (void)b, (void)c;                                                                                              \
        return expression;                                                                                             \
    }                                                                                                                  \
    LANES_OF(name, uint16_t, uint16_t, uint16_t, name##_one(a[l], b[l], c[l]))                                         \
    LANES_OF(name##_x2, uint32_t, uint32_t, uint32_t,                                                                  \
             (uint32_t)name##_one(a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16 |                                          \
                 name##_one((uint16_t)a[l], (uint16_t)b[l], (uint16_t)c[l]))

/* Products of two bf16 are exact in double, and so is nearly every sum: rounding twice would be seen in ties alone. */
static uint16_t rounded(double exact) {
    float nearest = (float)exact;
    uint32_t bits = lanes_bits(nearest);
    if ((bits & 0xFFFF) == 0x8000 && (double)nearest != exact) { /* a tie of fp32's making */
        bits = (double)fabsf(nearest) > fabs(exact) ? bits - 1 : bits + 1;
        nearest = lanes_float_of(bits);
    }
    return lanes_to_bf16(nearest, ROUND_NEAREST);
}
PAIR(bf_fma, rounded((double)BF16(a) * BF16(b) + BF16(c)))
PAIR(bf_add, rounded((double)BF16(a) + BF16(b)))
PAIR(bf_sub, rounded((double)BF16(a) - BF16(b)))
PAIR(bf_mul, rounded((double)BF16(a) * BF16(b)))
PAIR(bf_neg, a ^ 0x8000)
PAIR(bf_abs, a & 0x7FFF)
PAIR(bf_min, BF16(a) != BF16(a)                                     ? b
             : BF16(b) != BF16(b)                                   ? a
             : BF16(a) < BF16(b) || (BF16(a) == BF16(b) && a >> 15) ? a
                                                                    : b)
PAIR(bf_max, BF16(a) != BF16(a)                                     ? b
             : BF16(b) != BF16(b)                                   ? a
             : BF16(a) > BF16(b) || (BF16(a) == BF16(b) && b >> 15) ? a
                                                                    : b)

LANES_OF(cvt_low, uint16_t, uint32_t, uint32_t, a[l])
LANES_OF(cvt_half, uint32_t, uint16_t, uint16_t, a[l])
LANES_OF(cvt_word, uint32_t, uint64_t, uint64_t, a[l])
LANES_OF(cvt_long, uint64_t, uint32_t, uint32_t, a[l])
LANES_OF(cvt_signed, int64_t, int32_t, int32_t, a[l])
LANES_OF(cvt_float, float, int32_t, int32_t, a[l])
LANES_OF(cvt_same, float, float, float, a[l])
LANES_OF(cvt_double, double, float, float, a[l])

#define ROW(key, run, d, ...)                                                                                          \
    {                                                                                                                  \
        key, run, d, {                                                                                                 \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define ONE(op, name) ROW(op ".f32", name##_f32, 4, 4), ROW(op ".f64", name##_f64, 8, 8)
#define TWO(op, name) ROW(op ".f32", name##_f32, 4, 4, 4), ROW(op ".f64", name##_f64, 8, 8, 8)
#define ROUNDED(r)                                                                                                     \
    ROW("fma." #r ".f32", fma_##r, 4, 4, 4, 4), ROW("add." #r ".f32", add_##r, 4, 4, 4),                               \
        ROW("sub." #r ".f32", sub_##r, 4, 4, 4), ROW("mul." #r ".f32", mul_##r, 4, 4, 4)
#define APPROXIMATE(op) ROW(#op ".approx.f32", op##_approx, 4, 4)

const struct lanes_row lanes_float[] = {
    TWO("add", add),
    TWO("sub", sub),
    TWO("mul", mul),
    TWO("div", div),
    TWO("min", min),
    TWO("max", max),
    TWO("copysign", copysign),
    ROW("min.NaN.f32", min_nan, 4, 4, 4),
    ROW("max.NaN.f32", max_nan, 4, 4, 4),
    ROW("fma.f32", fma_f32, 4, 4, 4, 4),
    ROW("fma.f64", fma_f64, 8, 8, 8, 8),
    ROW("mad.f32", fma_f32, 4, 4, 4, 4),
    ROUNDED(rz),
    ROUNDED(rm),
    ROUNDED(rp),
    ONE("neg", neg),
    ONE("abs", abs),
    ONE("sqrt", sqrt),
    ONE("rcp", rcp),
    ROW("div.approx.f32", div_approx, 4, 4, 4),
    APPROXIMATE(rcp),
    APPROXIMATE(sqrt),
    APPROXIMATE(rsqrt),
    APPROXIMATE(ex2),
    APPROXIMATE(lg2),
    APPROXIMATE(sin),
    APPROXIMATE(cos),
    ROW("tanh.approx.f32", tanh_approx, 4, 4),
    ROW("rsqrt.approx.f64", rsqrt_f64, 8, 8),
    ROW("rcp.approx.f64", rcp_approx_f64, 8, 8),
    ROW("fma.bf16", bf_fma, 2, 2, 2, 2),
    ROW("fma.bf16x2", bf_fma_x2, 4, 4, 4, 4),
    ROW("add.bf16", bf_add, 2, 2, 2),
    ROW("add.bf16x2", bf_add_x2, 4, 4, 4),
    ROW("sub.bf16", bf_sub, 2, 2, 2),
    ROW("sub.bf16x2", bf_sub_x2, 4, 4, 4),
    ROW("mul.bf16", bf_mul, 2, 2, 2),
    ROW("mul.bf16x2", bf_mul_x2, 4, 4, 4),
    ROW("min.bf16", bf_min, 2, 2, 2),
    ROW("min.bf16x2", bf_min_x2, 4, 4, 4),
    ROW("max.bf16", bf_max, 2, 2, 2),
    ROW("max.bf16x2", bf_max_x2, 4, 4, 4),
    ROW("neg.bf16", bf_neg, 2, 2),
    ROW("neg.bf16x2", bf_neg_x2, 4, 4),
    ROW("abs.bf16", bf_abs, 2, 2),
    ROW("abs.bf16x2", bf_abs_x2, 4, 4),
    /* Conversions in which a register holds just its type; lanes_convert() does the others. */
    ROW("cvt.u16.u32", cvt_low, 2, 4),
    ROW("cvt.u32.u16", cvt_half, 4, 2),
    ROW("cvt.u32.u64", cvt_word, 4, 8),
    ROW("cvt.u64.u32", cvt_long, 8, 4),
    ROW("cvt.s64.s32", cvt_signed, 8, 4),
    ROW("cvt.f32.s32", cvt_float, 4, 4),
    ROW("cvt.f32.f32", cvt_same, 4, 4),
    ROW("cvt.f64.f32", cvt_double, 8, 4),
    {NULL, NULL, 0, {0}},
};
