/* Arithmetic of 32 lanes, one function for each opcode and type. Each computes all lanes, whichever are active. */
#pragma once

#include "cuda/ptx.h"

#include <string.h>

/* A row of the table. The key is the opcode without the parts that change nothing here: .rn, .ftz, .sat. */
struct lanes_row {
    const char *key;
    lanes_run *run;
    uint8_t destination, source[3]; /* bytes of one lane; 0 where there is no such source */
};

#define EACH_LANE _Pragma("GCC ivdep") for (int l = 0; l < LANES; l++)

/* Defines a function of 32 lanes. D and S are the types of the lanes of the destination and of the sources, C that of
 * the third source. */
#define LANES_OF(name, D, S, C, expression)                                                                            \
    static void name(void *d_, const void *a_, const void *b_, const void *c_) {                                       \
        D *d = d_;                                                                                                     \
        const S *a = a_, *b = b_;                                                                                      \
        const C *c = c_;                                                                                               \
        (void)b, (void)c;                                                                                              \
        EACH_LANE d[l] = (D)(expression);                                                                              \
    }

extern const struct lanes_row lanes_integer[], lanes_float[]; /* each ends with a row without a key */

/* The row of a key, or NULL. */
const struct lanes_row *lanes_find(const char *key);

/* The comparison of a name ("lt", "geu") for a type, or NULL. */
lanes_compare *lanes_compare_find(const char *name, struct ptx_type type);

/* Converts 32 lanes. The registers may hold more bytes than the types. `mode` is an enum rounding. */
void lanes_convert(void *d, uint8_t d_bytes, struct ptx_type to, const void *a, uint8_t a_bytes, struct ptx_type from,
                   uint8_t mode, bool clamp);

enum rounding { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };

static inline uint32_t lanes_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float lanes_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float lanes_from_bf16(uint16_t bits) {
    return lanes_float_of((uint32_t)bits << 16);
}

static inline uint16_t lanes_to_bf16(float value, enum rounding rounding) {
    uint32_t bits = lanes_bits(value), nearest = bits + 0x7FFF + (bits >> 16 & 1);
    return (uint16_t)(value != value ? 0x7FFF : (rounding == ROUND_NEAREST ? nearest : bits) >> 16);
}

/* An approximate result moved within its documented error, always alike for the same input: `error` is relative. */
float lanes_perturb(float exact, uint32_t input, float error);
