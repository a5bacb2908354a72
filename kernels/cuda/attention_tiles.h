/* Attention by tiles, for bf16: sizes that the launches and the kernels share. */
#ifndef CAMBIUM_KERNELS_CUDA_ATTENTION_TILES_H
#define CAMBIUM_KERNELS_CUDA_ATTENTION_TILES_H

#include "kernels/ops.h"

/* A block has a tile of query rows, and each of its warps has 16 of them. */
enum { TILE_WARPS = 4, TILE_ROWS = 16 * TILE_WARPS };

/* SIZE(n): the sizes to which heads are padded. */
#define ATTENTION_TILE_SIZES(SIZE) SIZE(32) SIZE(64) SIZE(96) SIZE(128) SIZE(256)

/* The keys of a tile; and the bytes of shared memory of a block, at most 96 KiB: two tiles of keys, two of values and
 * one of queries. */
#define ATTENTION_TILE_KEYS(size)  ((size) <= 128 ? 64 : 32)
#define ATTENTION_TILE_BYTES(size) ((TILE_ROWS + 4 * ATTENTION_TILE_KEYS(size)) * (size)*2)

/* The gradients: a block holds two tiles of one side of the scores, and takes two of the other side at a time, of this
 * number of columns. They arrive in turn at two places. A column of queries has 16 bytes more. */
#define GRADIENT_TILE_COLUMNS(size) ((size) <= 96 ? 32 : 16)
#define GRADIENT_TILE_BYTES(size)                                                                                      \
    ((2 * TILE_ROWS + 4 * GRADIENT_TILE_COLUMNS(size)) * (size)*2 + 2 * GRADIENT_TILE_COLUMNS(size) * 16)
/* Features of the gradients of keys and values that a block computes. */
#define GRADIENT_TILE_FEATURES(size) ((size) <= 128 ? (size) : 128)

#endif
