/* Shared by the files of attention at one level.
 *
 * Attention works on tiles of TILE_ROWS query rows by chunks of CHUNK_KEYS keys (FlashAttention-2: Dao, 2023). A tile
 * needs only products of units (see simd.h) and passes over the 64 x 64 scores. The keys of a chunk are stored in four
 * panels of 16 keys, [depth][16] units, so that the scores of 16 keys are one product vector. Values are stored as
 * [16 / group][width] units, where a group is the number of keys that one unit holds. A page of the KV cache consists
 * of such panels.
 *
 * A query row's arithmetic does not depend on the rows that share its tile. Each score and each output is one chain of
 * multiply-adds in the order of features and of keys. Keys that the row does not see are never multiplied. Training and
 * the paged cache use the same code, so their bits agree. */
#pragma once

#include "attention_check.h"
#include "cpu/level/level.h"
#include "cpu/level/vector_exp.h"

#include <math.h>

enum {
    TILE_ROWS = 64,
    CHUNK_KEYS = 64,
    PANEL_KEYS = 16,
    CHUNK_PANELS = CHUNK_KEYS / PANEL_KEYS,
    CHUNK_VECTORS = CHUNK_KEYS / SIMD_LANES
};

#define ATTENTION_INLINE static inline __attribute__((always_inline))

struct head_shape {
    enum dtype type;
    int size;   /* D */
    int depth;  /* units along D: D floats, or (D + 1) / 2 pairs */
    int width;  /* D rounded up to whole vectors */
    int group;  /* 2 when units are pairs of bf16, else 1 */
    bool pairs; /* always false at a level without SIMD_PAIRS */
};

/* As attention_check, and STATUS_UNSUPPORTED for TF32. */
ATTENTION_INLINE int check_call(const struct attention *a) {
    int status = attention_check(a);
    return !status && a->is_tf32 ? status_fail(STATUS_UNSUPPORTED, "attention: no TF32 on cpu") : status;
}

/* Returns the shape of heads of this type and size. */
struct head_shape LEVEL(attention_shape)(enum dtype type, int head_size);

/* ---- units in the four panels of a chunk's keys, and in its values ---- */

static inline int64_t chunk_key_units(const struct head_shape *shape) {
    return (int64_t)CHUNK_KEYS * shape->depth;
}
static inline int64_t chunk_value_units(const struct head_shape *shape) {
    return (int64_t)CHUNK_KEYS / shape->group * shape->width;
}

/* ---- pieces of the workspace ------------------------------------------------------------------------------------ */

/* Divides a block into aligned pieces. With a NULL base, it only counts the bytes. */
struct carver {
    char *base;
    size_t used;
};

/* Returns the next piece, of `count` elements of `element` bytes; NULL if the carver only counts. */
static inline void *carve(struct carver *carver, int64_t count, size_t element) {
    void *piece = carver->base ? carver->base + carver->used : NULL;
    carver->used += ((size_t)count * element + 63) / 64 * 64;
    return piece;
}

/* The same for floats. */
static inline float *carve_floats(struct carver *carver, int64_t count) {
    return carve(carver, count, sizeof(float));
}

/* Returns a carver of the caller's workspace, from its first aligned byte. For NULL it counts, including the bytes that
 * alignment can cost. */
static inline struct carver carver_of(void *workspace) {
    if (!workspace)
        return (struct carver){.used = 64};
    return (struct carver){.base = (char *)(((uintptr_t)workspace + 63) / 64 * 64)};
}

/* ---- products (attention_product.c) ----------------------------------------------------------------------------- */

/* One chunk of keys and values. A panel that no row sees need not exist. */
struct chunk {
    const float *key[CHUNK_PANELS];
    const float *value[CHUNK_PANELS];
    int64_t value_step;       /* units from one group of keys to the next */
    const struct chunk *next; /* with all panels, which a tile of few rows prefetches; or NULL */
};

/* The keys of a chunk that a row sees: from .. to - 1, or none if from >= to. Both are 0 .. CHUNK_KEYS. */
struct seen_keys {
    int from, to;
};

/* scores[r][j] = row r of `a` times key j, for rows 0 .. rows-1 and at least the keys that the row sees. The number of
 * rows is at most SIMD_ROWS, or a multiple of it. */
struct score_product {
    const struct head_shape *shape;
    const float *a; /* [rows][a_row] units */
    int64_t a_row;
    const float *const *key;      /* the chunk's panels */
    const float *const *next_key; /* of the next chunk, or the same; for few rows */
    float *scores;                /* [rows][CHUNK_KEYS] */
    int rows;
    const struct seen_keys *seen; /* [rows]; NULL: each sees the whole chunk */
};
void LEVEL(attention_scores)(const struct score_product *p);

/* sums[r] = sums[r] * rescale[r] + sum over the seen keys of weight[r][key] * value[key]. */
struct value_product {
    const struct head_shape *shape;
    const float *weights; /* [rows][CHUNK_KEYS] units */
    const struct chunk *chunk;
    float *sums;    /* [rows][width] */
    float *rescale; /* [rows]; scratch follows it */
    int rows;
    const struct seen_keys *seen; /* as above */
};
void LEVEL(attention_values)(const struct value_product *p);

/* c[r] += the sum over steps k of a(r, k) * b[k], where a(r, k) = a[r * a_row + k * a_step]. Block i of SIMD_ROWS rows
 * takes steps from[i] .. to[i] - 1. */
struct gradient_product {
    const struct head_shape *shape;
    const float *a;
    int64_t a_row, a_step;
    const float *b; /* [steps][width] */
    float *c;       /* [rows][width] */
    int rows;       /* a multiple of SIMD_ROWS */
    const int *from, *to;
};
void LEVEL(attention_accumulate)(const struct gradient_product *p);

/* ---- moving rows (attention_pack.c) ----------------------------------------------------------------------------- */

/* Converts rows of D elements to units: to[rows][to_row], with zeros after D. */
void LEVEL(attention_load_rows)(const struct head_shape *shape, const void *from, int64_t stride, int rows, float *to,
                                int64_t to_row);
/* Copies CHUNK_KEYS rows of `depth` units, with row stride from_row, into the four panels of a chunk. */
void LEVEL(attention_make_panels)(const struct head_shape *shape, const float *from, int64_t from_row, float *panels);
/* Combines rows 2i and 2i+1 of bf16 into row i of pairs, to[rows / 2][width]. */
void LEVEL(attention_pair_rows)(const struct head_shape *shape, const float *from, int64_t from_row, int rows,
                                float *to);
/* Writes rows of fp32 times factor[row] as D elements of the shape's type. */
void LEVEL(attention_store_rows)(const struct head_shape *shape, const float *from, const float *factor, int rows,
                                 void *to, int64_t stride);

/* Keys (or values) first .. first + CHUNK_KEYS - 1 of a segment. A segment's keys are the prefix's, then those of its
 * rows. */
struct key_rows {
    const struct attention *a;
    int64_t segment;
    int kv_head;
    int64_t first;
    bool is_value;
};
/* Loads the keys (or values) as units, with zeros after the last. */
void LEVEL(attention_load_keys)(const struct head_shape *shape, const struct key_rows *keys, float *to, int64_t to_row);

/* ---- dropout (attention_dropout.c) ------------------------------------------------------------------------------ */

/* Neighbouring keys of a chunk whose elements for dropout are neighbours, too. */
struct key_run {
    int lane, count;
    uint32_t element;
};

/* Writes the runs of keys first .. first + CHUNK_KEYS - 1 of a segment, prefix first. Returns their number. */
int LEVEL(attention_key_runs)(const struct attention *a, int64_t segment, int64_t first, struct key_run *runs);
/* Writes kept[r] for query rows first_row + r: bit j is set if dropout keeps the probability of the chunk's key j. */
void LEVEL(attention_kept)(const struct attention *a, int head, int64_t first_row, int rows, const struct key_run *runs,
                           int count, uint64_t *kept);

/* ---- one tile of query rows (attention_tile.c) ------------------------------------------------------------------ */

/* Query rows against the chunks of one key/value head, which are taken in order. */
struct query_tile {
    const struct head_shape *shape;
    float scale;
    float keep_scale;         /* 1 / (1 - p) of dropout */
    int rows;                 /* at most SIMD_ROWS, or a multiple of it */
    float *queries;           /* [rows][depth] units */
    float *scores;            /* [rows][CHUNK_KEYS] scratch */
    float *sums;              /* [rows][width] */
    float *total;             /* [rows][SIMD_LANES] parts of the sum of the exponentials */
    float largest[TILE_ROWS]; /* unscaled score of each row */
    float rescale[TILE_ROWS];
};

/* Takes the arrays of a tile of at most `rows` rows from the carver. The caller sets the members before `queries`. */
void LEVEL(attention_tile_carve)(struct query_tile *tile, const struct head_shape *shape, int rows,
                                 struct carver *carver);
/* Returns `rows` rounded up to a multiple of SIMD_ROWS, or unchanged if it is at most SIMD_ROWS. */
int LEVEL(attention_tile_rows)(int rows);
/* Starts with no chunk. */
void LEVEL(attention_tile_begin)(struct query_tile *tile);
/* Takes the next chunk. `seen`: [rows], or NULL if each row sees the whole chunk. `kept`: [rows] bits of keys that
 * dropout keeps, or NULL without dropout. */
void LEVEL(attention_tile_chunk)(struct query_tile *tile, const struct chunk *chunk, const struct seen_keys *seen,
                                 const uint64_t *kept);
/* The same when the tile already holds the scores. */
void LEVEL(attention_tile_scored)(struct query_tile *tile, const struct chunk *chunk, const struct seen_keys *seen,
                                  const uint64_t *kept);
/* Writes the output of rows first .. first + rows - 1, and unless `lse` is NULL their log-sum-exp. */
void LEVEL(attention_tile_end)(const struct query_tile *tile, int first, int rows, void *out, int64_t stride,
                               float *lse);

/* ---- small functions -------------------------------------------------------------------------------------------- */

/* Returns a word with its lowest n bits set. */
static inline uint64_t first_bits(int n) {
    return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
}

/* Returns x, limited to low .. high. */
static inline int clamp_int64(int64_t x, int low, int high) {
    return x < low ? low : x > high ? high : (int)x;
}

/* Returns the first key that a row sees if `last` is its last one. */
static inline int64_t first_seen(int64_t window, int64_t last) {
    return window && last >= window ? last - window + 1 : 0;
}

/* Returns the keys that such a row sees in the chunk that begins at key `first`. */
static inline struct seen_keys seen_of_chunk(int64_t window, int64_t last, int64_t first) {
    return (struct seen_keys){.from = clamp_int64(first_seen(window, last) - first, 0, CHUNK_KEYS),
                              .to = clamp_int64(last + 1 - first, 0, CHUNK_KEYS)};
}

/* Returns true if all keys of a chunk are seen. */
static inline bool sees_all(struct seen_keys seen) {
    return seen.from == 0 && seen.to == CHUNK_KEYS;
}

/* Returns one bit for each seen key. */
static inline uint64_t seen_bits(struct seen_keys seen) {
    return first_bits(seen.to) & ~first_bits(seen.from);
}
