/* Plain matrices become codes and scales: nearest rounding, on the host.
 *
 * A rounding is an encoding with what it leaves open: how many rows share a scale, and whether scales are rounded too.
 * A scale is rounded to its type first, and codes follow from the rounded one. Equal values give equal codes for any
 * number of threads. The values are finite; an infinite scale means that its type is too narrow for them. */
#pragma once

#include "kernels/encoding.h"

struct rounding {
    const char *name;
    struct encoding encoding; /* group 0: the largest of 128, 64 and 32 that divides a row, else the row. -1: the row */
    int32_t tall;             /* rows that share a scale */
    bool is_flat;             /* groups run on from row to row, as in bitsandbytes */
    uint8_t lowest_zero;      /* of asymmetric groups */
    bool is_twice;            /* of flat groups: scales are rounded to 8 bits in blocks of 256, less their mean */
};

/* Returns the rounding of this name, or NULL. "int8" has a scale for each row, and "int4" for each group; scales are
 * bf16. "nf4" and "fp4" have groups of 64, and scales that are rounded. "fp8" has blocks of 128 x 128. */
const struct rounding *rounding_find(const char *name);

/* Returns the encoding of a matrix whose rows have `columns` values. Where flat groups cross rows, its group is the
 * largest that does not, and scales are repeated. */
struct encoding rounding_encoding(const struct rounding *rounding, int64_t columns);

/* The 8 bits of scales that were rounded themselves: scale = map[code] * absmax[i / 256] + offset, in fp32. */
struct rounding_scales {
    uint8_t *codes; /* [count] */
    float *absmax;  /* [ceil(count / 256)] */
    float offset;
};
enum { ROUNDING_SCALES_BLOCK = 256 };

struct rounding_call {
    const struct rounding *rounding;
    const float
        *values; /* [rows, columns]. With tall or flat groups, all rows of the matrix, or a multiple of `tall` */
    int64_t rows, columns;
    int threads;
    struct encoded_rows *to;        /* of rounding_encoding(), with rows * columns codes; without an order */
    struct rounding_scales *scales; /* written for flat groups scaled twice; NULL: not wanted */
};
/* Rounds a matrix, or rows of it. */
void rounding_rows(const struct rounding_call *call);

/* Returns the scale that a group of these numbers gets, and its zero (of a symmetric group: the bias). */
float rounding_scale(const struct rounding *rounding, const float *x, int64_t count, int *zero);
/* Stores a scale that has its type's precision, and a zero. */
void rounding_store(const struct encoded_rows *to, int64_t row, int64_t group, float scale, int zero);

/* Writes the 256 numbers that the codes of scales mean: bitsandbytes' dynamic map, signed. */
void rounding_map(float map[256]);
