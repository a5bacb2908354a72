/* Comparisons and conversions of 32 lanes. */
#include "cuda/lanes.h"

#include <math.h>
#include <string.h>

/* ---- comparisons ---- */

#define COMPARE(name, T, expression)                                                                                   \
    static uint32_t name(const void *a_, const void *b_) {                                                             \
        const T *a = a_, *b = b_;                                                                                      \
        uint32_t mask = 0;                                                                                             \
        for (int l = 0; l < LANES; l++) {                                                                              \
            mask |= (uint32_t)(expression) << l;                                                                       \
        }                                                                                                              \
        return mask;                                                                                                   \
    }
#define UNORDERED (a[l] != a[l] || b[l] != b[l])
#define ORDERS(type, T)                                                                                                \
    COMPARE(eq_##type, T, a[l] == b[l])                                                                                \
    COMPARE(lt_##type, T, a[l] < b[l])                                                                                 \
    COMPARE(le_##type, T, a[l] <= b[l])                                                                                \
    COMPARE(gt_##type, T, a[l] > b[l])                                                                                 \
    COMPARE(ge_##type, T, a[l] >= b[l])
#define INTEGERS(type, T)                                                                                              \
    ORDERS(type, T)                                                                                                    \
    COMPARE(ne_##type, T, a[l] != b[l])
#define FLOATS(type, T)                                                                                                \
    ORDERS(type, T)                                                                                                    \
    COMPARE(ne_##type, T, a[l]<b[l] || a[l]> b[l])                                                                     \
    COMPARE(equ_##type, T, !(a[l] < b[l] || a[l] > b[l]))                                                              \
    COMPARE(neu_##type, T, a[l] != b[l])                                                                               \
    COMPARE(ltu_##type, T, !(a[l] >= b[l]))                                                                            \
    COMPARE(leu_##type, T, !(a[l] > b[l]))                                                                             \
    COMPARE(gtu_##type, T, !(a[l] <= b[l]))                                                                            \
    COMPARE(geu_##type, T, !(a[l] < b[l]))                                                                             \
    COMPARE(num_##type, T, !UNORDERED)                                                                                 \
    COMPARE(nan_##type, T, UNORDERED)
INTEGERS(s16, int16_t)
INTEGERS(u16, uint16_t)
INTEGERS(s32, int32_t)
INTEGERS(u32, uint32_t)
INTEGERS(s64, int64_t)
INTEGERS(u64, uint64_t)
FLOATS(f32, float)
FLOATS(f64, double)

struct compare_row {
    const char *name;
    lanes_compare *s16, *s32, *s64, *u16, *u32, *u64, *f32, *f64;
};

#define ROW(name)                                                                                                      \
    { #name, name##_s16, name##_s32, name##_s64, name##_u16, name##_u32, name##_u64, name##_f32, name##_f64 }
#define UNSIGNED_ROW(name, as)                                                                                         \
    { #name, NULL, NULL, NULL, as##_u16, as##_u32, as##_u64, NULL, NULL }
#define FLOAT_ROW(name)                                                                                                \
    { #name, NULL, NULL, NULL, NULL, NULL, NULL, name##_f32, name##_f64 }
static const struct compare_row compares[] = {
    ROW(eq),
    ROW(ne),
    ROW(lt),
    ROW(le),
    ROW(gt),
    ROW(ge),
    FLOAT_ROW(equ),
    FLOAT_ROW(neu),
    FLOAT_ROW(ltu),
    FLOAT_ROW(leu),
    FLOAT_ROW(gtu),
    FLOAT_ROW(geu),
    FLOAT_ROW(num),
    FLOAT_ROW(nan),
    UNSIGNED_ROW(lo, lt),
    UNSIGNED_ROW(ls, le),
    UNSIGNED_ROW(hi, gt),
    UNSIGNED_ROW(hs, ge),
};

lanes_compare *lanes_compare_find(const char *name, struct ptx_type type) {
    for (size_t i = 0; i < sizeof compares / sizeof *compares; i++) {
        const struct compare_row *row = &compares[i];
        if (strcmp(row->name, name) != 0) {
            continue;
        }
        if (type.class == CLASS_FLOAT) {
            return type.bytes == 4 ? row->f32 : type.bytes == 8 ? row->f64 : NULL;
        }
        if (type.class == CLASS_SIGNED) {
            return type.bytes == 2 ? row->s16 : type.bytes == 4 ? row->s32 : type.bytes == 8 ? row->s64 : NULL;
        }
        return type.bytes == 2 ? row->u16 : type.bytes == 4 ? row->u32 : type.bytes == 8 ? row->u64 : NULL;
    }
    return NULL;
}

/* ---- conversions: every value passes through the widest type of its class ---- */

union wide {
    int64_t integer;
    uint64_t natural;
    double real;
};

static bool is_real(struct ptx_type type) {
    return type.class == CLASS_FLOAT || type.class == CLASS_BFLOAT;
}

static uint64_t raw(const void *lanes, uint8_t bytes, int lane) {
    uint64_t value = 0;
    memcpy(&value, (const char *)lanes + (size_t)lane * bytes, bytes);
    return value;
}

static union wide load(uint64_t bits, struct ptx_type type) {
    union wide value = {.natural = bits};
    int unused = 64 - 8 * type.bytes;
    if (type.class == CLASS_BFLOAT) {
        value.real = lanes_from_bf16((uint16_t)bits);
    } else if (type.class == CLASS_FLOAT && type.bytes == 2) {
        uint16_t half = (uint16_t)bits;
        _Float16 small;
        memcpy(&small, &half, sizeof small);
        value.real = (double)small;
    } else if (type.class == CLASS_FLOAT && type.bytes == 4) {
        uint32_t word = (uint32_t)bits;
        float single;
        memcpy(&single, &word, sizeof single);
        value.real = single;
    } else if (type.class == CLASS_SIGNED) {
        value.integer = (int64_t)(bits << unused) >> unused;
    } else if (type.class != CLASS_FLOAT) {
        value.natural = bits << unused >> unused;
    }
    return value;
}

/* A real number to fp32 in a direction. */
static float narrowed(double value, enum rounding rounding) {
    float nearest = (float)value;
    if (rounding == ROUND_NEAREST || (double)nearest == value || value != value) {
        return nearest;
    }
    bool over = (double)nearest > value;
    if (over && (rounding == ROUND_DOWN || (rounding == ROUND_ZERO && value > 0))) {
        return nextafterf(nearest, -INFINITY);
    }
    if (!over && (rounding == ROUND_UP || (rounding == ROUND_ZERO && value < 0))) {
        return nextafterf(nearest, INFINITY);
    }
    return nearest;
}

static double whole(double value, enum rounding rounding) {
    return rounding == ROUND_ZERO   ? trunc(value)
           : rounding == ROUND_DOWN ? floor(value)
           : rounding == ROUND_UP   ? ceil(value)
                                    : nearbyint(value);
}

/* A real number that is whole to an integer, held within its type's range. NaN becomes 0. */
static uint64_t held(double value, struct ptx_type type) {
    int bits = 8 * type.bytes;
    if (value != value) {
        return 0;
    }
    if (type.class == CLASS_SIGNED) {
        double limit = ldexp(1, bits - 1);
        int64_t most = (int64_t)(~0ull >> (65 - bits));
        return (uint64_t)(value >= limit ? most : value < -limit ? -most - 1 : (int64_t)value);
    }
    return value >= ldexp(1, bits) ? ~0ull >> (64 - bits) : value <= 0 ? 0 : (uint64_t)value;
}

static uint64_t held_integer(union wide value, struct ptx_type from, struct ptx_type to) {
    int bits = 8 * to.bytes;
    bool negative = from.class == CLASS_SIGNED && value.integer < 0;
    if (to.class == CLASS_SIGNED) {
        int64_t most = (int64_t)(~0ull >> (65 - bits));
        return negative                         ? (uint64_t)(value.integer < -most - 1 ? -most - 1 : value.integer)
               : value.natural > (uint64_t)most ? (uint64_t)most
                                                : value.natural;
    }
    return negative ? 0 : value.natural > ~0ull >> (64 - bits) ? ~0ull >> (64 - bits) : value.natural;
}

static uint64_t store_real(double value, struct ptx_type type, enum rounding rounding) {
    uint64_t bits = 0;
    if (type.bytes == 8) {
        memcpy(&bits, &value, 8);
        return bits;
    }
    float single = narrowed(value, rounding);
    if (type.class == CLASS_BFLOAT) {
        return lanes_to_bf16(single, rounding);
    }
    if (type.bytes == 2) {
        _Float16 half = (_Float16)value;
        memcpy(&bits, &half, 2);
        return value != value ? 0x7FFF : bits;
    }
    memcpy(&bits, &single, 4);
    return bits;
}

static uint64_t converted(uint64_t bits, struct ptx_type to, struct ptx_type from, enum rounding rounding, bool clamp,
                          bool to_whole) {
    union wide value = load(bits, from);
    if (is_real(from)) {
        double real = to_whole || !is_real(to) ? whole(value.real, rounding) : value.real;
        if (!is_real(to)) {
            return held(real, to);
        }
        real = !clamp ? real : real > 0 ? (real < 1 ? real : 1) : 0;
        return store_real(real, to, to_whole ? ROUND_NEAREST : rounding);
    }
    if (!is_real(to)) {
        return clamp ? held_integer(value, from, to) : value.natural;
    }
    if (to.bytes == 4 && rounding == ROUND_NEAREST) {
        float single = from.class == CLASS_SIGNED ? (float)value.integer : (float)value.natural;
        return store_real(single, to, rounding);
    }
    return store_real(from.class == CLASS_SIGNED ? (double)value.integer : (double)value.natural, to, rounding);
}

void lanes_convert(void *d, uint8_t d_bytes, struct ptx_type to, const void *a, uint8_t a_bytes, struct ptx_type from,
                   uint8_t mode, bool clamp) {
    uint64_t results[LANES];
    for (int l = 0; l < LANES; l++) {
        uint64_t bits = converted(raw(a, a_bytes, l), to, from, (enum rounding)(mode & 3), clamp, mode & 4);
        int unused = 64 - 8 * to.bytes; /* a register with more bytes than the type takes the sign along */
        results[l] =
            to.class == CLASS_SIGNED ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits << unused >> unused;
    }
    for (int l = 0; l < LANES; l++) {
        memcpy((char *)d + (size_t)l * d_bytes, &results[l], d_bytes);
    }
}
