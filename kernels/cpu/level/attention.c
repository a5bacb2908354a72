/* Causal attention, forward. First, each chunk of keys and values is packed once for all tiles of queries that read it.
 * Then each (head, tile of query rows) takes the chunks that it sees, in order. The results do not depend on which
 * thread takes what. */
#include "cpu/level/attention-internal.h"

/* The work, and the pieces of the workspace. Segments are taken in waves. The segments of a wave have no more chunks,
 * all together, than one segment of all rows would have; so the workspace depends only on the number of rows. Chunks
 * and tiles are numbered through all segments of a wave. */
struct forward_plan {
    const struct attention *a;
    struct head_shape shape;
    int64_t chunks, tiles;
    int64_t *first_chunk, *first_tile; /* [S+1] of each segment */
    float *keys, *values;              /* [G][chunks] packed */
    struct query_tile *tile;           /* [threads] */
    float **staging;                   /* [threads] [CHUNK_KEYS][depth] */
    size_t bytes;
};

static int64_t units_up(int64_t count, int64_t unit) {
    return (count + unit - 1) / unit;
}

static int64_t wave_chunks(const struct attention *a) {
    return units_up(a->prefix + a->rows, CHUNK_KEYS) + (a->rows == 0);
}

static int64_t segment_chunks(const struct attention *a, int64_t segment) {
    int64_t rows = a->segment_start[segment + 1] - a->segment_start[segment];
    return rows ? units_up(a->prefix + rows, CHUNK_KEYS) : 0;
}

/* Returns the wave that starts at segment `first`. */
static struct attention next_wave(const struct attention *a, int64_t first) {
    struct attention wave = *a;
    int64_t chunks = 0, limit = wave_chunks(a);
    wave.segment_start = a->segment_start + first;
    for (wave.segments = 0; first + wave.segments < a->segments && wave.segments < limit; wave.segments++) {
        chunks += segment_chunks(a, first + wave.segments);
        if (chunks > limit)
            break;
    }
    return wave;
}

/* `a` is a wave; without a workspace, only the bytes count. */
static struct forward_plan forward_plan(const struct attention *a, int threads, void *workspace) {
    struct carver carver = carver_of(workspace);
    struct forward_plan plan = {.a = a, .shape = LEVEL(attention_shape)(a->type, a->head_size)};
    plan.first_chunk = carve(&carver, wave_chunks(a) + 1, sizeof *plan.first_chunk);
    plan.first_tile = carve(&carver, wave_chunks(a) + 1, sizeof *plan.first_tile);
    for (int64_t s = 0; workspace && s <= a->segments; s++) {
        plan.first_chunk[s] = plan.chunks;
        plan.first_tile[s] = plan.tiles;
        if (s < a->segments) {
            plan.chunks += segment_chunks(a, s);
            plan.tiles += units_up(a->segment_start[s + 1] - a->segment_start[s], TILE_ROWS);
        }
    }
    plan.keys = carve_floats(&carver, a->kv_heads * wave_chunks(a) * chunk_key_units(&plan.shape));
    plan.values = carve_floats(&carver, a->kv_heads * wave_chunks(a) * chunk_value_units(&plan.shape));
    plan.tile = carve(&carver, threads, sizeof *plan.tile);
    plan.staging = carve(&carver, threads, sizeof *plan.staging);
    for (int t = 0; t < threads; t++) {
        struct query_tile tile;
        LEVEL(attention_tile_carve)(&tile, &plan.shape, TILE_ROWS, &carver);
        float *staging = carve_floats(&carver, (int64_t)CHUNK_KEYS * plan.shape.depth);
        if (workspace) {
            plan.tile[t] = tile;
            plan.staging[t] = staging;
        }
    }
    plan.bytes = carver.used;
    return plan;
}

/* Returns the segment whose range in `first` holds `item`. */
static int64_t segment_of(const int64_t *first, int64_t segments, int64_t item) {
    int64_t low = 0, high = segments;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (first[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void pack_chunk(const struct forward_plan *plan, int64_t item, float *staging) {
    const struct head_shape *shape = &plan->shape;
    int64_t chunk = item % plan->chunks, segment = segment_of(plan->first_chunk, plan->a->segments, chunk);
    struct key_rows keys = {.a = plan->a,
                            .segment = segment,
                            .kv_head = (int)(item / plan->chunks),
                            .first = (chunk - plan->first_chunk[segment]) * CHUNK_KEYS};
    LEVEL(attention_load_keys)(shape, &keys, staging, shape->depth);
    LEVEL(attention_make_panels)(shape, staging, shape->depth, plan->keys + item * chunk_key_units(shape));
    keys.is_value = true;
    float *values = plan->values + item * chunk_value_units(shape);
    if (!shape->pairs) {
        LEVEL(attention_load_keys)(shape, &keys, values, shape->width);
        return;
    }
    LEVEL(attention_load_keys)(shape, &keys, staging, shape->depth);
    LEVEL(attention_pair_rows)(shape, staging, shape->depth, CHUNK_KEYS, values);
}

static struct chunk packed_chunk(const struct forward_plan *plan, int64_t item) {
    const struct head_shape *shape = &plan->shape;
    struct chunk chunk = {.value_step = shape->width};
    for (int p = 0; p < CHUNK_PANELS; p++) {
        chunk.key[p] = plan->keys + item * chunk_key_units(shape) + p * chunk_key_units(shape) / CHUNK_PANELS;
        chunk.value[p] = plan->values + item * chunk_value_units(shape) + p * chunk_value_units(shape) / CHUNK_PANELS;
    }
    return chunk;
}

/* Computes a tile. Each head's last tile, which sees the most keys, is taken first. */
static void attend_tile(const struct forward_plan *plan, int64_t item, struct query_tile *tile) {
    const struct attention *a = plan->a;
    const struct head_shape *shape = &plan->shape;
    int head = (int)(item / plan->tiles), kv_head = head / (a->heads / a->kv_heads);
    int64_t number = plan->tiles - 1 - item % plan->tiles;
    int64_t segment = segment_of(plan->first_tile, a->segments, number);
    int64_t first = (number - plan->first_tile[segment]) * TILE_ROWS; /* row in the segment */
    int64_t row = a->segment_start[segment] + first;
    int rows = clamp_int64(a->segment_start[segment + 1] - row, 0, TILE_ROWS);
    size_t element = dtype_bytes(a->type);
    const char *q = (const char *)a->q + (size_t)(row * a->q_stride + (int64_t)head * shape->size) * element;
    char *out = (char *)a->out + (size_t)(row * a->out_stride + (int64_t)head * shape->size) * element;

    tile->shape = shape;
    tile->scale = a->scale;
    tile->keep_scale = 1.0f / (1.0f - a->dropout.p);
    tile->rows = LEVEL(attention_tile_rows)(rows);
    float *queries = tile->queries;
    LEVEL(attention_load_rows)(shape, q, a->q_stride, rows, queries, shape->depth);
    memset(queries + rows * shape->depth, 0, (size_t)((tile->rows - rows) * shape->depth) * sizeof(float));
    LEVEL(attention_tile_begin)(tile);
    int64_t chunk = first_seen(a->window, a->prefix + first) / CHUNK_KEYS;
    for (; chunk * CHUNK_KEYS < a->prefix + first + rows; chunk++) {
        int64_t first_key = chunk * CHUNK_KEYS;
        bool is_whole = sees_all(seen_of_chunk(a->window, a->prefix + first, first_key)) &&
                        sees_all(seen_of_chunk(a->window, a->prefix + first + rows - 1, first_key));
        struct seen_keys seen[TILE_ROWS];
        for (int r = 0; !is_whole && r < tile->rows; r++)
            seen[r] = seen_of_chunk(a->window, a->prefix + first + (r < rows ? r : rows - 1), first_key);
        uint64_t kept[TILE_ROWS];
        if (a->dropout.p > 0) {
            struct key_run runs[CHUNK_KEYS];
            int count = LEVEL(attention_key_runs)(a, segment, first_key, runs);
            LEVEL(attention_kept)(a, head, row, rows, runs, count, kept);
            for (int r = rows; r < tile->rows; r++)
                kept[r] = 0;
        }
        struct chunk packed = packed_chunk(plan, kv_head * plan->chunks + plan->first_chunk[segment] + chunk);
        LEVEL(attention_tile_chunk)(tile, &packed, is_whole ? NULL : seen, a->dropout.p > 0 ? kept : NULL);
    }
    float *lse = a->lse ? a->lse + head * a->rows + row : NULL;
    LEVEL(attention_tile_end)(tile, 0, rows, out, a->out_stride, lse);
}

LEVEL_WORKSPACE(attention_forward, attention) {
    return forward_plan(a, device->threads, NULL).bytes;
}

static void forward_wave(const struct exec *exec, const struct attention *a, int threads) {
    struct forward_plan plan = forward_plan(a, threads, exec->workspace);
    int slots = 0;
#pragma omp parallel num_threads(threads)
    {
        int slot;
#pragma omp atomic capture
        slot = slots++;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a->kv_heads * plan.chunks; i++)
            pack_chunk(&plan, i, plan.staging[slot]);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < a->heads * plan.tiles; i++)
            attend_tile(&plan, i, &plan.tile[slot]);
    }
}

LEVEL_OP(attention_forward, attention) {
    TRY(check_call(a));
    int threads = exec_threads(exec);
    int status = attention_check_workspace(exec, forward_plan(a, threads, NULL).bytes, "attention forward");
    for (int64_t first = 0; !status && first < a->segments;) {
        struct attention wave = next_wave(a, first);
        forward_wave(exec, &wave, threads);
        first += wave.segments;
    }
    return status;
}
