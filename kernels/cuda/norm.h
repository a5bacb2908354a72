/* Numbers that the launches and the kernels of the normalisations share. */
#pragma once

#include "kernels/ops.h"

/* Shared memory of a block: room for its sums, then its vectors if those have no more bytes than these. Together they
 * are the 48 KiB that every GPU gives a block without being asked. */
enum { NORM_SUM_BYTES = 256, NORM_KEPT_BYTES = (48 << 10) - NORM_SUM_BYTES };

/* Numbers of norm_rows.cu: the accesses of 16 bytes that a lane may have of a row, and the warps of a block. Up to
 * NORM_FEW vectors have a block each in the forward. A backward for many rows has as many blocks as an H200 runs at a
 * time. */
enum { NORM_FEW = 256 };
enum { NORM_NARROW_PARTS = 3, NORM_WIDE_PARTS = 7, NORM_FORWARD_WARPS = 8, NORM_BACKWARD_WARPS = 4 };
enum { NORM_JOINED = 8 }; /* sums that may change places in shared memory: it has whole groups of these */
enum { NORM_NARROW_BLOCKS = 512, NORM_WIDE_BLOCKS = 256, NORM_LEAST_ROWS = 8 };

/* The forward that also writes rows of FP8. */
struct norm_cast {
    struct norm call;
    int64_t stride;      /* from row to row of FP8 */
    float *kept_inverse; /* receives *fp8.inverse */
};

/* The backward. A block takes `block_rows` rows, one after the other. It writes the sums of its part of dgain, then of
 * dbias, to its row of `partial`. */
struct norm_backward {
    struct norm call;
    int64_t block_rows;
    float *partial;   /* [blocks, sums], or NULL when frozen */
    int64_t sums;     /* C, or 2 C with dbias */
    bool keeps_rows;  /* shared memory holds a vector of x and of dy */
    bool keeps_sums;  /* and the sums, after the vectors */
    int64_t kept_row; /* bytes of a vector in shared memory: whole 16-byte accesses */
};
