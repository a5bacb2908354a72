/* The numbers that codes mean, as they are multiplied: vectors of outputs, pair of positions by pair. */
#pragma once

#include "cpu/level/encoded.h"

/* How numbers are multiplied. */
enum product { PRODUCT_FLOATS, PRODUCT_PAIRS };

/* Numbers of codes of 4 bits: as floats, and as bf16 numbers, which come twice because 5 bits choose among them. A code
 * means a bf16 number times `unit`. */
struct numbers {
    float table[16];
    uint16_t halves[32];
    float unit;
    uint16_t sixes[64]; /* of signed integers of 6 bits */
};

/* Returns what FP4's and NF4's numbers are multiplied by to be bf16 numbers, and 1 for those that are such. FP4's
 * become 0, 1/64, 1/2, 3/4, 1, 3/2, 2 and 3. NF4's gives the smallest error of all factors. It is 0.00063, the root
 * mean square over that of the numbers, and 0.0019 at most. Rounding to bf16 without a factor has 0.0011 and 0.0031. */
static inline float bf16_factor(enum encoded_codes codes) {
    return codes == CODES_NF4 ? 1.437F : codes == CODES_FP4 ? 3 : 1;
}

/* Returns the numbers of codes for a kind of product. */
static struct numbers numbers_of(const struct panel_form *f, enum product product) {
    const float *given = encoded_table(f->encoding.codes);
    const float factor = product == PRODUCT_PAIRS ? bf16_factor(f->encoding.codes) : 1;
    struct numbers n = {.unit = 1 / factor};
    for (int i = 0; i < 16; i++) {
        n.table[i] = given ? given[i] : (float)(i - f->centre);
        n.halves[i] = n.halves[16 + i] = vbf16_from_float(n.table[i] * factor);
    }
    for (int i = 0; i < 64; i++)
        n.sixes[i] = vbf16_from_float((float)(i < 32 ? i : i - 64));
    return n;
}

/* 16-bit numbers, two in each lane of a vfloat. */
typedef uint16_t vhalves __attribute__((vector_size(sizeof(vfloat))));

/* Returns a vector in memory. */
static inline vhalves load_halves(const void *from) {
    vhalves x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Returns entries of a table, by the lowest 5 bits of each code. */
TILE_INLINE vhalves chosen(vhalves table, vhalves codes) {
    return (vhalves)simd_chosen_halves((vword)table, (vword)codes);
}

/* Returns the same numbers as bf16, from codes in 16 bits. */
TILE_INLINE vhalves e4m3_halves(vhalves codes) {
    static const uint16_t subnormal[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    vhalves size = codes & 0x7f, is_subnormal = (vhalves)(size < 8);
    vhalves few = chosen(load_halves(subnormal), size), bits = (size << 4) + (120 << 7);
    return (few & is_subnormal) | (bits & ~is_subnormal) | (codes & 0x80) << 8;
}

/* Forms of numbers in memory: expanded to what is multiplied, or codes. Sixes are bytes with integers of up to 6 bits,
 * which a table turns into bf16. */
enum form { FORM_NUMBERS, FORM_NIBBLES, FORM_SIXES, FORM_BYTES, FORM_E4M3, FORMS };

/* Returns the form of a panel's codes for a product. */
static inline enum form form_of(enum product product, const struct panel_form *f) {
    bool has_table = f->encoding.bits <= 6 && product != PRODUCT_FLOATS;
    return f->bits == 4                          ? FORM_NIBBLES
           : f->encoding.codes != CODES_INTEGERS ? FORM_E4M3
           : has_table                           ? FORM_SIXES
                                                 : FORM_BYTES;
}

/* Returns the vectors of numbers that a pair of positions has for a vector of outputs. */
TILE_INLINE int parts_of(enum product product) {
    return product == PRODUCT_PAIRS ? 1 : 2;
}

/* Returns the bytes of a chunk of a panel. */
TILE_INLINE int chunk_bytes(enum form form, enum product product) {
    return form == FORM_NIBBLES   ? CHUNK * PANEL / 2
           : form == FORM_NUMBERS ? parts_of(product) * CHUNK / 2 * PANEL * (int)sizeof(float)
                                  : CHUNK * PANEL;
}

/* Takes the numbers of a pair of positions, for the vector of outputs from `first` on. That is one vector of both, or
 * one for each position. */
TILE_INLINE void take_numbers(enum form form, enum product product, const struct numbers *n, const char *chunk,
                              int pair, int first, vfloat w[2]) {
    if (form == FORM_NUMBERS) {
        const float *from = (const float *)(const void *)chunk + pair * parts_of(product) * PANEL + first;
        w[0] = simd_load(from);
        if (product != PRODUCT_PAIRS)
            w[1] = simd_load(from + PANEL);
    } else if (form == FORM_NIBBLES && product == PRODUCT_FLOATS) {
        vlanes word;
        memcpy(&word, chunk + first * 4, sizeof word);
        w[0] = entries_of(n->table, word >> 4 * pair);
        w[1] = entries_of(n->table, word >> (4 * pair + 16));
    } else if (form == FORM_NIBBLES) {
        vhalves code = load_halves(chunk + first * 4) >> 4 * pair;
        w[0] = (vfloat)chosen(load_halves(n->halves), code);
    } else {
        vlanes words;
        memcpy(&words, chunk + pair * PANEL * 2, sizeof words);
        const int half = first / SIMD_LANES, even = 24 - 16 * half, odd = 16 - 16 * half;
        if (form == FORM_SIXES && product != PRODUCT_FLOATS) {
            vword codes = simd_widened_bytes((vword)words, half);
            w[0] = (vfloat)simd_chosen_of_two((vword)load_halves(n->sixes), (vword)load_halves(n->sixes + 32), codes);
            return;
        }
        if (product != PRODUCT_FLOATS) {
            w[0] = form == FORM_BYTES ? simd_byte_pairs((vword)words, half)
                                      : (vfloat)e4m3_halves((vhalves)simd_widened_bytes((vword)words, half));
            return;
        }
        w[0] = form != FORM_E4M3 ? to_float(words << even >> 24) : e4m3_floats(words >> 16 * half & 255);
        w[1] = form != FORM_E4M3 ? to_float(words << odd >> 24) : e4m3_floats(words >> (16 * half + 8) & 255);
    }
}
