/* One tile of query rows and its keys, chunk by chunk, with the online softmax. */
#include "cpu/level/attention-internal.h"

void LEVEL(attention_tile_carve)(struct query_tile *tile, const struct head_shape *shape, int rows,
                                 struct carver *carver) {
    tile->queries = carve_floats(carver, (int64_t)rows * shape->depth);
    tile->scores = carve_floats(carver, (int64_t)rows * CHUNK_KEYS);
    tile->sums = carve_floats(carver, (int64_t)rows * shape->width);
    tile->total = carve_floats(carver, (int64_t)rows * SIMD_LANES);
}

int LEVEL(attention_tile_rows)(int rows) {
    return rows <= SIMD_ROWS ? rows : (rows + SIMD_ROWS - 1) / SIMD_ROWS * SIMD_ROWS;
}

void LEVEL(attention_tile_begin)(struct query_tile *tile) {
    memset(tile->sums, 0, (size_t)tile->rows * (size_t)tile->shape->width * sizeof(float));
    memset(tile->total, 0, (size_t)tile->rows * SIMD_LANES * sizeof(float));
    for (int r = 0; r < tile->rows; r++)
        tile->largest[r] = -INFINITY;
}

/* Replaces the row's scores by weights exp(score - largest so far). The sum includes dropped weights. */
ATTENTION_INLINE void soften_row(bool pairs, bool is_whole, struct query_tile *tile, int row, uint64_t seen,
                                 uint64_t kept) {
    float *scores = tile->scores + row * CHUNK_KEYS, *total = tile->total + row * SIMD_LANES;
    vfloat x[CHUNK_VECTORS], top = simd_set(-INFINITY);
#pragma GCC unroll 16
    for (int v = 0; v < CHUNK_VECTORS; v++) {
        x[v] = simd_load(scores + v * SIMD_LANES);
        if (!is_whole)
            x[v] = simd_select((uint32_t)(seen >> (v * SIMD_LANES)), x[v], simd_set(-INFINITY));
        top = simd_max(x[v], top);
    }
    float old = tile->largest[row], chunk_top = simd_largest(top), largest = chunk_top > old ? chunk_top : old;
    float scale = tile->scale * LOG2_E;
    vfloat base = simd_set(-(largest * scale)), factor = simd_set(scale), sum = simd_set(0.0f);
    vfloat rescale = exp2_vector(simd_set((old - largest) * scale));
    tile->largest[row] = largest;
    simd_store(total, simd_load(total) * rescale);
    tile->rescale[row] = ((const float *)&rescale)[0];
#pragma GCC unroll 16
    for (int v = 0; v < CHUNK_VECTORS; v++) {
        vfloat weight = exp2_vector(simd_fma(x[v], factor, base));
        sum = sum + weight;
        weight = simd_select((uint32_t)(kept >> (v * SIMD_LANES)), weight, simd_set(0.0f));
        if (pairs)
            simd_store_halves((uint16_t *)(void *)scores + v * SIMD_LANES, simd_round_bf16(weight));
        else
            simd_store(scores + v * SIMD_LANES, weight);
    }
    simd_store(total, simd_load(total) + sum);
}

ATTENTION_INLINE void soften(bool pairs, struct query_tile *tile, const struct seen_keys *seen, const uint64_t *kept) {
    for (int r = 0; r < tile->rows; r++) {
        uint64_t bits = kept ? kept[r] : ~(uint64_t)0;
        if (!seen || sees_all(seen[r]))
            soften_row(pairs, true, tile, r, ~(uint64_t)0, bits);
        else if (seen[r].from < seen[r].to)
            soften_row(pairs, false, tile, r, seen_bits(seen[r]), bits);
        else
            tile->rescale[r] = 1.0f;
    }
}

void LEVEL(attention_tile_chunk)(struct query_tile *tile, const struct chunk *chunk, const struct seen_keys *seen,
                                 const uint64_t *kept) {
    LEVEL(attention_scores)
    (&(struct score_product){.shape = tile->shape,
                             .a = tile->queries,
                             .a_row = tile->shape->depth,
                             .key = chunk->key,
                             .next_key = chunk->next ? chunk->next->key : chunk->key,
                             .scores = tile->scores,
                             .rows = tile->rows,
                             .seen = seen});
    LEVEL(attention_tile_scored)(tile, chunk, seen, kept);
}

void LEVEL(attention_tile_scored)(struct query_tile *tile, const struct chunk *chunk, const struct seen_keys *seen,
                                  const uint64_t *kept) {
    if (SIMD_PAIRS && tile->shape->pairs)
        soften(true, tile, seen, kept);
    else
        soften(false, tile, seen, kept);
    LEVEL(attention_values)
    (&(struct value_product){.shape = tile->shape,
                             .weights = tile->scores,
                             .chunk = chunk,
                             .sums = tile->sums,
                             .rescale = tile->rescale,
                             .rows = tile->rows,
                             .seen = seen});
}

void LEVEL(attention_tile_end)(const struct query_tile *tile, int first, int rows, void *out, int64_t stride,
                               float *lse) {
    float scale[TILE_ROWS];
    for (int r = 0; r < rows; r++) {
        float total = simd_sum(simd_load(tile->total + (first + r) * SIMD_LANES));
        scale[r] = tile->keep_scale / total;
        if (lse)
            lse[r] = tile->largest[first + r] * tile->scale + logf(total);
    }
    const float *sums = tile->sums + (int64_t)first * tile->shape->width;
    LEVEL(attention_store_rows)(tile->shape, sums, scale, rows, out, stride);
}
