/* Attention by tiles, for bf16 and for TF32: sizes that the launches and the kernels share. */
#pragma once

#include "kernels/ops.h"

/* A block has a tile of query rows, and each of its warps has 16 of them. */
enum { TILE_WARPS = 4, TILE_ROWS = 16 * TILE_WARPS };

/* Two tiles of the bits of dropout, of KEYS keys: places for the words of a row, and bytes. */
#define KEPT_PLACES(keys)     ((keys) <= 32 ? 2 : 4)
#define KEPT_TILE_BYTES(keys) (2 * TILE_ROWS * KEPT_PLACES(keys) * 4)

/* A warp finds the bits of a query row's elements for this many heads. */
enum { KEPT_HEADS = 4 };

/* SIZE(n): the sizes to which heads are padded, in bf16 and in TF32. The last ones are the largest heads. */
#define ATTENTION_TILE_SIZES(SIZE) SIZE(32) SIZE(64) SIZE(96) SIZE(128) SIZE(256)
#define ATTENTION_TF32_SIZES(SIZE) SIZE(64) SIZE(128)
enum { TILE_SIZE_MOST = 256 };

/* The keys of a tile, whose elements have this many bytes. A block has at most 96 KiB of shared memory: two tiles of
 * keys, two of values and one of queries. With dropout, two tiles of its bits follow. */
#define ATTENTION_TILE_KEYS(size, bytes)  ((bytes) == 2 && (size) <= 128 ? 64 : 32)
#define ATTENTION_TILE_BYTES(size, bytes) ((TILE_ROWS + 4 * ATTENTION_TILE_KEYS(size, bytes)) * (size) * (bytes))

/* The gradients: a block holds two tiles of one side of the scores, and takes two of the other side at a time, of this
 * number of columns. They arrive in turn at two places. A column of queries has 8 bytes more, and two tiles of keys
 * have those of dropout's bits. */
#define GRADIENT_TILE_COLUMNS(size) ((size) <= 96 ? 32 : 16)
#define GRADIENT_TILE_BYTES(size, bytes)                                                                               \
    ((2 * TILE_ROWS + 4 * GRADIENT_TILE_COLUMNS(size)) * (size) * (bytes) +                                            \
     KEPT_TILE_BYTES(GRADIENT_TILE_COLUMNS(size)))
/* Features of the gradients of keys and values that a block computes. */
#define GRADIENT_TILE_FEATURES(size) ((size) <= 128 ? (size) : 128)
