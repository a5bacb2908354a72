#include "cuda/lanes.h"

#include <stdlib.h>
#include <string.h>

#define SAME(name, T, expression) LANES_OF(name, T, T, T, expression)

/* The same expression for the sizes: U is unsigned, S signed. */
#define UNSIGNED_SIZES(name, expression)                                                                               \
    SAME(name##_16, uint16_t, expression)                                                                              \
    SAME(name##_32, uint32_t, expression)                                                                              \
    SAME(name##_64, uint64_t, expression)
#define SIGNED_SIZES(name, expression)                                                                                 \
    SAME(name##_s16, int16_t, expression)                                                                              \
    SAME(name##_s32, int32_t, expression)                                                                              \
    SAME(name##_s64, int64_t, expression)

UNSIGNED_SIZES(add, a[l] + b[l])
UNSIGNED_SIZES(sub, a[l] - b[l])
SAME(mul_16, uint16_t, (uint32_t)a[l] * b[l])
SAME(mul_32, uint32_t, a[l] * b[l])
SAME(mul_64, uint64_t, a[l] * b[l])
SAME(mad_16, uint16_t, (uint32_t)a[l] * b[l] + c[l])
SAME(mad_32, uint32_t, a[l] * b[l] + c[l])
SAME(mad_64, uint64_t, a[l] * b[l] + c[l])
LANES_OF(mul_wide_u16, uint32_t, uint16_t, uint32_t, (uint32_t)a[l] * b[l])
LANES_OF(mul_wide_s16, int32_t, int16_t, int32_t, (int32_t)a[l] * b[l])
LANES_OF(mul_wide_u32, uint64_t, uint32_t, uint64_t, (uint64_t)a[l] * b[l])
LANES_OF(mul_wide_s32, int64_t, int32_t, int64_t, (int64_t)a[l] * b[l])
LANES_OF(mad_wide_u16, uint32_t, uint16_t, uint32_t, (uint32_t)a[l] * b[l] + c[l])
LANES_OF(mad_wide_s16, uint32_t, int16_t, uint32_t, (uint32_t)(a[l] * b[l]) + c[l])
LANES_OF(mad_wide_u32, uint64_t, uint32_t, uint64_t, (uint64_t)a[l] * b[l] + c[l])
LANES_OF(mad_wide_s32, uint64_t, int32_t, uint64_t, (uint64_t)((int64_t)a[l] * b[l]) + c[l])
SAME(mul_hi_u32, uint32_t, (uint64_t)a[l] * b[l] >> 32)
SAME(mul_hi_s32, int32_t, (int64_t)a[l] * b[l] >> 32)
SAME(mul_hi_u64, uint64_t, (unsigned __int128)a[l] * b[l] >> 64)
SAME(mul_hi_s64, int64_t, (__int128)a[l] * b[l] >> 64)
SAME(mad_hi_u32, uint32_t, ((uint64_t)a[l] * b[l] >> 32) + c[l])
SAME(mad_hi_s32, int32_t, (uint32_t)((int64_t)a[l] * b[l] >> 32) + (uint32_t)c[l])
UNSIGNED_SIZES(min_u, a[l] < b[l] ? a[l] : b[l])
UNSIGNED_SIZES(max_u, a[l] > b[l] ? a[l] : b[l])
SIGNED_SIZES(min, a[l] < b[l] ? a[l] : b[l])
SIGNED_SIZES(max, a[l] > b[l] ? a[l] : b[l])
SAME(abs_s16, int16_t, a[l] < 0 ? -a[l] : a[l])
SAME(abs_s32, uint32_t, (int32_t)a[l] < 0 ? -a[l] : a[l])
SAME(abs_s64, uint64_t, (int64_t)a[l] < 0 ? -a[l] : a[l])
UNSIGNED_SIZES(neg, 0 - a[l])
UNSIGNED_SIZES(and, a[l] & b[l])
UNSIGNED_SIZES(or, a[l] | b[l])
UNSIGNED_SIZES(xor, a[l] ^ b[l])
UNSIGNED_SIZES(not, ~a[l])
UNSIGNED_SIZES(cnot, a[l] == 0)
UNSIGNED_SIZES(mov, a[l])

/* Shifts take a 32-bit amount, and amounts beyond the width count as the width. */
LANES_OF(shl_16, uint16_t, uint16_t, uint32_t, ((const uint32_t *)b_)[l] > 15 ? 0 : a[l] << ((const uint32_t *)b_)[l])
LANES_OF(shl_32, uint32_t, uint32_t, uint32_t, b[l] > 31 ? 0 : a[l] << (b[l] & 31))
LANES_OF(shl_64, uint64_t, uint64_t, uint32_t,
         ((const uint32_t *)b_)[l] > 63 ? 0 : a[l] << (((const uint32_t *)b_)[l] & 63))
LANES_OF(shr_u16, uint16_t, uint16_t, uint32_t, ((const uint32_t *)b_)[l] > 15 ? 0 : a[l] >> ((const uint32_t *)b_)[l])
LANES_OF(shr_u32, uint32_t, uint32_t, uint32_t, b[l] > 31 ? 0 : a[l] >> (b[l] & 31))
LANES_OF(shr_u64, uint64_t, uint64_t, uint32_t,
         ((const uint32_t *)b_)[l] > 63 ? 0 : a[l] >> (((const uint32_t *)b_)[l] & 63))
#define AMOUNT(most) (((const uint32_t *)b_)[l] > (most) ? (most) : ((const uint32_t *)b_)[l])
LANES_OF(shr_s16, int16_t, int16_t, uint32_t, a[l] >> AMOUNT(15))
LANES_OF(shr_s32, int32_t, int32_t, uint32_t, a[l] >> AMOUNT(31))
LANES_OF(shr_s64, int64_t, int64_t, uint32_t, a[l] >> AMOUNT(63))

/* Divisions that C leaves undefined have the values that the hardware gives: all ones, and the dividend. */
#define DIVISION(name, T)                                                                                              \
    SAME(div_##name, T, b[l] == 0 ? (T)-1 : b[l] == (T)-1 && (T)-1 < (T)1 ? (T)(0 - (uint64_t)a[l]) : a[l] / b[l])     \
    SAME(rem_##name, T, b[l] == 0 ? a[l] : b[l] == (T)-1 && (T)-1 < (T)1 ? 0 : a[l] % b[l])
DIVISION(u16, uint16_t)
DIVISION(u32, uint32_t)
DIVISION(u64, uint64_t)
DIVISION(s16, int16_t)
DIVISION(s32, int32_t)
DIVISION(s64, int64_t)

/* ---- bits ---- */

static uint32_t reversed(uint32_t value) {
    uint32_t result = 0;
    for (int i = 0; i < 32; i++) {
        result |= (value >> i & 1) << (31 - i);
    }
    return result;
}

static uint64_t field(uint64_t value, uint32_t start, uint32_t length, int bits, bool is_signed) {
    start &= 255, length &= 255;
    uint64_t top = start + length > (uint32_t)bits ? (uint64_t)bits - 1 : start + length - 1;
    uint64_t sign = is_signed && length > 0 ? value >> (top > 63 ? 63 : top) & 1 : 0;
    uint64_t low = start >= (uint32_t)bits ? 0 : value >> start;
    uint32_t have = start >= (uint32_t)bits ? 0 : (uint32_t)bits - start;
    uint32_t kept = length < have ? length : have;
    uint64_t mask = kept >= 64 ? ~0ull : (1ull << kept) - 1;
    return length == 0 ? 0 : (low & mask) | (sign ? ~mask : 0);
}

static uint32_t chosen_bytes(uint64_t bytes, uint32_t selector) {
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t nibble = selector >> 4 * i & 15, byte = bytes >> 8 * (nibble & 7) & 255;
        result |= (nibble & 8 ? (byte & 128 ? 255u : 0) : byte) << 8 * i;
    }
    return result;
}

SAME(popc_32, uint32_t, __builtin_popcount(a[l]))
LANES_OF(popc_64, uint32_t, uint64_t, uint32_t, __builtin_popcountll(a[l]))
SAME(clz_32, uint32_t, a[l] ? __builtin_clz(a[l]) : 32)
LANES_OF(clz_64, uint32_t, uint64_t, uint32_t, a[l] ? __builtin_clzll(a[l]) : 64)
SAME(brev_32, uint32_t, reversed(a[l]))
LANES_OF(brev_64, uint64_t, uint64_t, uint64_t, (uint64_t)reversed((uint32_t)a[l]) << 32 | reversed(a[l] >> 32))
SAME(bfind_u32, uint32_t, a[l] ? 31 - __builtin_clz(a[l]) : -1)
SAME(bfind_shift, uint32_t, a[l] ? __builtin_clz(a[l]) : -1)
SAME(bfe_u32, uint32_t, field(a[l], b[l], c[l], 32, false))
SAME(bfe_s32, uint32_t, field(a[l], b[l], c[l], 32, true))
LANES_OF(bfe_u64, uint64_t, uint64_t, uint32_t, field(a[l], ((const uint32_t *)b_)[l], c[l], 64, false))
LANES_OF(bfe_s64, uint64_t, uint64_t, uint32_t, field(a[l], ((const uint32_t *)b_)[l], c[l], 64, true))
SAME(prmt_32, uint32_t, chosen_bytes((uint64_t)b[l] << 32 | a[l], c[l]))
#define JOINED ((uint64_t)b[l] << 32 | a[l])
SAME(shf_l_wrap, uint32_t, JOINED << (c[l] & 31) >> 32)
SAME(shf_r_wrap, uint32_t, JOINED >> (c[l] & 31))
SAME(shf_l_clamp, uint32_t, c[l] > 31 ? a[l] : JOINED << c[l] >> 32)
SAME(shf_r_clamp, uint32_t, c[l] > 31 ? b[l] : JOINED >> c[l])
SAME(sad_s32, uint32_t, c[l] + ((int32_t)a[l] < (int32_t)b[l] ? b[l] - a[l] : a[l] - b[l]))
SAME(sad_u32, uint32_t, c[l] + (a[l] < b[l] ? b[l] - a[l] : a[l] - b[l]))

#define ROW(key, run, d, ...)                                                                                          \
    {                                                                                                                  \
        key, run, d, {                                                                                                 \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define TWO_SIGNS(op, name, ...)                                                                                       \
    ROW(op ".s16", name##_16, 2, 2, 2), ROW(op ".u16", name##_16, 2, 2, 2), ROW(op ".s32", name##_32, 4, 4, 4),        \
        ROW(op ".u32", name##_32, 4, 4, 4), ROW(op ".s64", name##_64, 8, 8, 8), ROW(op ".u64", name##_64, 8, 8, 8)
#define BITS(op, name)                                                                                                 \
    ROW(op ".b16", name##_16, 2, 2, 2), ROW(op ".b32", name##_32, 4, 4, 4), ROW(op ".b64", name##_64, 8, 8, 8)
#define BITS_OF_ONE(op, name)                                                                                          \
    ROW(op ".b16", name##_16, 2, 2), ROW(op ".b32", name##_32, 4, 4), ROW(op ".b64", name##_64, 8, 8)
#define BY_SIGN(op, name, unsigned_name)                                                                               \
    ROW(op ".s16", name##_s16, 2, 2, 2), ROW(op ".u16", unsigned_name##16, 2, 2, 2),                                   \
        ROW(op ".s32", name##_s32, 4, 4, 4), ROW(op ".u32", unsigned_name##32, 4, 4, 4),                               \
        ROW(op ".s64", name##_s64, 8, 8, 8), ROW(op ".u64", unsigned_name##64, 8, 8, 8)
#define SHIFTS(op, name, a, b, c)                                                                                      \
    ROW(op a, name##16, 2, 2, 4), ROW(op b, name##32, 4, 4, 4), ROW(op c, name##64, 8, 8, 4)
#define MOVES(bytes, run, ...) ROW("mov" __VA_ARGS__, run, bytes, bytes)

const struct lanes_row lanes_integer[] = {
    TWO_SIGNS("add", add),
    TWO_SIGNS("sub", sub),
    TWO_SIGNS("mul.lo", mul),
    ROW("mad.lo.s16", mad_16, 2, 2, 2, 2),
    ROW("mad.lo.u16", mad_16, 2, 2, 2, 2),
    ROW("mad.lo.s32", mad_32, 4, 4, 4, 4),
    ROW("mad.lo.u32", mad_32, 4, 4, 4, 4),
    ROW("mad.lo.s64", mad_64, 8, 8, 8, 8),
    ROW("mad.lo.u64", mad_64, 8, 8, 8, 8),
    ROW("mul.wide.u16", mul_wide_u16, 4, 2, 2),
    ROW("mul.wide.s16", mul_wide_s16, 4, 2, 2),
    ROW("mul.wide.u32", mul_wide_u32, 8, 4, 4),
    ROW("mul.wide.s32", mul_wide_s32, 8, 4, 4),
    ROW("mad.wide.u16", mad_wide_u16, 4, 2, 2, 4),
    ROW("mad.wide.s16", mad_wide_s16, 4, 2, 2, 4),
    ROW("mad.wide.u32", mad_wide_u32, 8, 4, 4, 8),
    ROW("mad.wide.s32", mad_wide_s32, 8, 4, 4, 8),
    ROW("mul.hi.u32", mul_hi_u32, 4, 4, 4),
    ROW("mul.hi.s32", mul_hi_s32, 4, 4, 4),
    ROW("mul.hi.u64", mul_hi_u64, 8, 8, 8),
    ROW("mul.hi.s64", mul_hi_s64, 8, 8, 8),
    ROW("mad.hi.u32", mad_hi_u32, 4, 4, 4, 4),
    ROW("mad.hi.s32", mad_hi_s32, 4, 4, 4, 4),
    BY_SIGN("min", min, min_u_),
    BY_SIGN("max", max, max_u_),
    BY_SIGN("div", div, div_u),
    BY_SIGN("rem", rem, rem_u),
    ROW("abs.s16", abs_s16, 2, 2),
    ROW("abs.s32", abs_s32, 4, 4),
    ROW("abs.s64", abs_s64, 8, 8),
    ROW("neg.s16", neg_16, 2, 2),
    ROW("neg.s32", neg_32, 4, 4),
    ROW("neg.s64", neg_64, 8, 8),
    BITS("and", and),
    BITS("or", or),
    BITS("xor", xor),
    BITS_OF_ONE("not", not ),
    BITS_OF_ONE("cnot", cnot),
    BITS_OF_ONE("mov", mov),
    MOVES(2, mov_16, ".u16"),
    MOVES(2, mov_16, ".s16"),
    MOVES(4, mov_32, ".u32"),
    MOVES(4, mov_32, ".s32"),
    MOVES(4, mov_32, ".f32"),
    MOVES(8, mov_64, ".u64"),
    MOVES(8, mov_64, ".s64"),
    MOVES(8, mov_64, ".f64"),
    SHIFTS("shl", shl_, ".b16", ".b32", ".b64"),
    SHIFTS("shr", shr_u, ".b16", ".b32", ".b64"),
    SHIFTS("shr", shr_u, ".u16", ".u32", ".u64"),
    SHIFTS("shr", shr_s, ".s16", ".s32", ".s64"),
    ROW("popc.b32", popc_32, 4, 4),
    ROW("popc.b64", popc_64, 4, 8),
    ROW("clz.b32", clz_32, 4, 4),
    ROW("clz.b64", clz_64, 4, 8),
    ROW("brev.b32", brev_32, 4, 4),
    ROW("brev.b64", brev_64, 8, 8),
    ROW("bfind.u32", bfind_u32, 4, 4),
    ROW("bfind.shiftamt.u32", bfind_shift, 4, 4),
    ROW("bfe.u32", bfe_u32, 4, 4, 4, 4),
    ROW("bfe.s32", bfe_s32, 4, 4, 4, 4),
    ROW("bfe.u64", bfe_u64, 8, 8, 4, 4),
    ROW("bfe.s64", bfe_s64, 8, 8, 4, 4),
    ROW("prmt.b32", prmt_32, 4, 4, 4, 4),
    ROW("shf.l.wrap.b32", shf_l_wrap, 4, 4, 4, 4),
    ROW("shf.r.wrap.b32", shf_r_wrap, 4, 4, 4, 4),
    ROW("shf.l.clamp.b32", shf_l_clamp, 4, 4, 4, 4),
    ROW("shf.r.clamp.b32", shf_r_clamp, 4, 4, 4, 4),
    ROW("sad.s32", sad_s32, 4, 4, 4, 4),
    ROW("sad.u32", sad_u32, 4, 4, 4, 4),
    {NULL, NULL, 0, {0}},
};

const struct lanes_row *lanes_find(const char *key) {
    const struct lanes_row *const tables[] = {lanes_integer, lanes_float};
    for (int i = 0; i < 2; i++) {
        for (const struct lanes_row *row = tables[i]; row->key; row++) {
            if (row->key[0] == key[0] && strcmp(row->key, key) == 0) {
                return row;
            }
        }
    }
    return NULL;
}
