/* Encoded weights in a GPU's memory: the parts of a layout one after the other, and the arguments of their kernels.
 *
 * A part has its order, codes, scales, shifts, and the scales and offsets of its blocks. Each array begins at a
 * multiple of 64 bytes. Outputs are in panels of 16: an array of scales is [panels, groups, 16].
 *
 * Codes are [panels, tiles] of 512 bytes. A tile has 64 positions of codes of up to 4 bits, or 32 of longer ones, which
 * take a byte. Lane 4 g + t of a warp has 16 bytes of it: the codes of outputs g and g + 8. Of each step of 16
 * positions it has those from 4 t to 4 t + 3, which are the fragment of a product. Pair i of a step has neighbouring
 * positions: pairs 0 and 2 are of output g, the others of g + 8.
 *
 *     4 bits    a word for a step: pair i has bits 4 i on of both halves
 *     8 bits    two words for a step: pair i has byte i % 2 of both halves of word i / 2
 *
 * Integers are stored less the code in the middle of all: as a signed byte, or plus 8 in 4 bits. A part without codes
 * is plain rows of the view's type. */
#pragma once

#include "cuda/few_rows.h"

enum {
    ENCODED_PANEL = 16,      /* outputs */
    ENCODED_STEP = 16,       /* positions of a product */
    ENCODED_TILE_BYTES = 512 /* 16 a lane */
};

/* A part in device memory. */
struct encoded_form {
    struct encoding encoding; /* with CODES_NONE, `codes` are plain rows */
    int64_t rows, columns, positions;
    int bits, tile;                /* of a code in memory; positions of a tile */
    int32_t group;                 /* whole steps, or half of one; a row with one group has a large number */
    int64_t tiles, groups, blocks; /* of a panel */
    float base;                    /* of integers: the stored number plus this is what the code means */
    float table[16];               /* of tables of 16 */
    const int32_t *order;          /* [positions], or NULL */
    const void *codes, *scales, *shifts;
    const uint16_t *block_scales, *block_offsets;
};

/* ---- products of few rows: encoded_rows.cu ---- */

/* KERNEL(codes, tiles, blocks): encoded_rows_CODES_TILES, for `tiles` times 8 rows. A block has a panel, and its
 * ENCODED_SPLITS warps share the depth. So a row's bits do not depend on the number of rows. At least `blocks` blocks
 * fit the registers of a multiprocessor. */
enum { ENCODED_ROWS_MOST = 64, ENCODED_SPLITS = 8, ENCODED_SUM_STRIDE = ENCODED_PANEL + 1, ENCODED_LANES = 32 };
#define ENCODED_ROWS_OF(KERNEL, codes) KERNEL(codes, 1, 2) KERNEL(codes, 2, 2) KERNEL(codes, 4, 2) KERNEL(codes, 8, 1)
#define ENCODED_ROWS_KERNELS(KERNEL)                                                                                   \
    ENCODED_ROWS_OF(KERNEL, nibbles)                                                                                   \
    ENCODED_ROWS_OF(KERNEL, tables) ENCODED_ROWS_OF(KERNEL, bytes) ENCODED_ROWS_OF(KERNEL, e4m3)

/* The terms of a tile's groups, which a warp copies with the tile's codes: pieces of 16 bytes of each array. */
enum { ENCODED_PIECE = 16, ENCODED_PLACES = 5 /* of tiles in a warp's shared memory */ };
struct encoded_pieces {
    int scale, shift;   /* of a group in these arrays */
    int groups, blocks; /* of a tile, at most; no blocks: the form has none */
    int all;
};

struct encoded_rows_call {
    struct few_rows product; /* without w. x has whole steps of positions, in rows of whole accesses of 8 bytes */
    struct encoded_form w;
    struct encoded_pieces pieces;
    int64_t first_row; /* of the part */
    bool has_shifts;   /* products need the sums of groups of x */
    bool is_split;     /* numbers of a table are two bf16 */
};
/* Returns the bytes of a tile with its terms in shared memory. */
BASE_INLINE int encoded_place_bytes(const struct encoded_pieces *pieces) {
    return ENCODED_TILE_BYTES + pieces->all * ENCODED_PIECE;
}
/* Returns the bytes of shared memory: a table for each lane, the warps' sums, their tiles, and terms of a tile. */
BASE_INLINE int encoded_rows_shared(const struct encoded_pieces *pieces, int tiles) {
    return (ENCODED_SPLITS * 8 * tiles * ENCODED_SUM_STRIDE + 16 * ENCODED_LANES) * (int)sizeof(float) +
           ENCODED_SPLITS *
               (ENCODED_PLACES * encoded_place_bytes(pieces) + pieces->groups * ENCODED_PANEL * 2 * (int)sizeof(float));
}

/* out[i, p] = x[i, order[p]], or x[i, p] without an order; 0 where there is no such input. */
struct encoded_inputs {
    int64_t rows, columns, positions, stride; /* of x, from row to row */
    const void *x;                            /* bf16 */
    const int32_t *order;
    void *out; /* [rows, positions in whole steps] */
};

/* ---- values: encoded.cu ---- */

/* out = columns [col, col + cols) of rows [first_row, first_row + rows), as fp32 or bf16. */
struct encoded_values {
    struct encoded_form w;
    int64_t first_row, rows, col, cols, stride;
    void *out;
};
/* The rows of an embedding whose tokens are in a part. */
struct encoded_gather {
    struct embedding call;
    struct encoded_form w;
    int64_t first;   /* the table's row that is row 0 of the part */
    bool has_others; /* rows of tokens outside the table, too, and of virtual ones */
};
/* Squares of rows [first_row, first_row + call.rows) of a part; call.first_row is not read. */
struct encoded_squares {
    struct row_squares call;
    struct encoded_form w;
    int64_t first_row;
};

/* ---- encoded.c ---- */

/* The rows of a view that are in one part. */
struct encoded_range {
    struct encoded_form form;
    int64_t first;      /* row of the view */
    int64_t from, rows; /* of the part */
};
/* Finds the rows in part `index`; false if there are none. */
bool cuda_encoded_range(const struct matrix_view *view, int index, struct encoded_range *range);
/* As the operations packed_bytes, embedding_forward and row_squares, of encoded weights. */
size_t cuda_packed_bytes(struct device *device, const struct matrix_view *view);
int cuda_encoded_gather(const struct exec *exec, const struct embedding *a);
int cuda_encoded_squares(const struct exec *exec, const struct row_squares *a);
