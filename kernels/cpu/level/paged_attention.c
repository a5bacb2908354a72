/* Attention over the pages of the KV cache. Query rows that follow each other in one sequence share a tile, and so do
 * the query heads of a key/value head; four pages are a chunk of keys. A page is used where it lies when its units are
 * the level's and its rows whole vectors, else it is copied first. */
#include "cpu/level/attention-internal.h"

enum { FEW_ROWS = 8, LINE = 64 };

/* The work: pieces of rows (of one sequence) by key/value heads by pieces of their query heads. */
struct paged_plan {
    const struct paged_attention *a;
    struct head_shape shape;
    int group, heads_at_once, head_pieces; /* query heads of a key/value head; of them in one tile */
    bool keys_in_place, values_in_place;
    int64_t row_pieces;
    int32_t *first_row;      /* [row_pieces + 1] */
    struct query_tile *tile; /* [threads] */
    float **keys, **values;  /* [threads] copies of one chunk's pages */
    size_t bytes;
};

/* Cuts the rows where the sequence changes or a tile is full. */
static void cut_rows(struct paged_plan *plan) {
    const struct paged_attention *a = plan->a;
    int64_t limit = TILE_ROWS / plan->heads_at_once, pieces = 0;
    for (int64_t i = 0, first = 0; i < a->rows; i++)
        if (i == 0 || i - first == limit || a->sequence[i] != a->sequence[first]) {
            first = i;
            plan->first_row[pieces++] = (int32_t)i;
        }
    plan->first_row[pieces] = (int32_t)a->rows;
    plan->row_pieces = pieces;
}

static struct paged_plan paged_plan(const struct paged_attention *a, int threads, void *workspace) {
    struct carver carver = carver_of(workspace);
    struct paged_plan plan = {.a = a, .shape = LEVEL(attention_shape)(a->type, a->head_size)};
    bool level_units = a->type == DTYPE_F32 || plan.shape.pairs;
    plan.keys_in_place = level_units && plan.shape.depth * plan.shape.group == a->head_size;
    plan.values_in_place = level_units && plan.shape.width == a->head_size;
    plan.group = a->heads / a->kv_heads;
    plan.heads_at_once = plan.group < TILE_ROWS ? plan.group : TILE_ROWS;
    plan.head_pieces = (plan.group + plan.heads_at_once - 1) / plan.heads_at_once;
    plan.first_row = carve(&carver, a->rows + 1, sizeof *plan.first_row);
    if (workspace)
        cut_rows(&plan);
    plan.tile = carve(&carver, threads, sizeof *plan.tile);
    plan.keys = carve(&carver, threads, sizeof *plan.keys);
    plan.values = carve(&carver, threads, sizeof *plan.values);
    for (int t = 0; t < threads; t++) {
        struct query_tile tile;
        LEVEL(attention_tile_carve)(&tile, &plan.shape, &carver);
        float *keys = plan.keys_in_place ? NULL : carve_floats(&carver, chunk_key_units(&plan.shape));
        float *values = plan.values_in_place ? NULL : carve_floats(&carver, chunk_value_units(&plan.shape));
        if (workspace) {
            plan.tile[t] = tile;
            plan.keys[t] = keys;
            plan.values[t] = values;
        }
    }
    plan.bytes = carver.used;
    return plan;
}

/* ---- copies of pages
 * ---------------------------------------------------------------------------------------------------- */

static const float *unit_at(const uint16_t *page, int64_t unit) {
    return (const float *)(const void *)(page + 2 * unit);
}

/* bf16 pairs [D / 2][16] into floats [D][16]. */
static void widen_keys(const struct head_shape *shape, const uint16_t *page, float *to) {
    int pairs = shape->size / 2;
    for (int u = 0; u < pairs; u++)
        for (int t = 0; t < PANEL_KEYS; t += SIMD_LANES) {
            vword x = (vword)simd_load(unit_at(page, u * PANEL_KEYS + t));
            simd_store(to + 2 * u * PANEL_KEYS + t, (vfloat)simd_upper_halves(x));
            simd_store(to + (2 * u + 1) * PANEL_KEYS + t, (vfloat)(x & simd_words(0xffff0000u)));
        }
    if (shape->size % 2)
        for (int t = 0; t < PANEL_KEYS; t++)
            to[2 * pairs * PANEL_KEYS + t] = bf16_to_float(page[2 * pairs * PANEL_KEYS + t]);
}

/* bf16 pairs [8][D] into floats [16][width]. */
static void widen_values(const struct head_shape *shape, const uint16_t *page, float *to) {
    for (int u = 0; u < PANEL_KEYS / 2; u++) {
        const uint16_t *from = page + (int64_t)2 * u * shape->size;
        float *even = to + (int64_t)2 * u * shape->width, *odd = even + shape->width;
        int d = 0;
        for (; d + SIMD_LANES <= shape->size; d += SIMD_LANES) {
            vword x = (vword)simd_load(unit_at(from, d));
            simd_store(even + d, (vfloat)simd_upper_halves(x));
            simd_store(odd + d, (vfloat)(x & simd_words(0xffff0000u)));
        }
        for (; d < shape->size; d++) {
            even[d] = bf16_to_float(from[2 * d]);
            odd[d] = bf16_to_float(from[2 * d + 1]);
        }
        for (; d < shape->width; d++)
            even[d] = odd[d] = 0.0f;
    }
}

/* Pairs of an odd head size: the last feature gets a zero beside it. */
static void copy_key_pairs(const struct head_shape *shape, const uint16_t *page, float *to) {
    int64_t whole = (int64_t)shape->size / 2 * PANEL_KEYS;
    memcpy(to, page, (size_t)whole * sizeof(float));
    memset(to + whole, 0, PANEL_KEYS * sizeof(float));
    for (int t = 0; t < PANEL_KEYS; t++)
        memcpy(to + whole + t, page + 2 * whole + t, sizeof *page);
}

static void copy_values(const struct head_shape *shape, const void *page, float *to) {
    size_t row = (size_t)shape->size * sizeof(float);
    for (int u = 0; u < PANEL_KEYS / shape->group; u++) {
        memcpy(to + (int64_t)u * shape->width, (const char *)page + (size_t)u * row, row);
        memset(to + (int64_t)u * shape->width + shape->size, 0, (size_t)(shape->width - shape->size) * sizeof(float));
    }
}

/* ---- one tile
 * -------------------------------------------------------------------------------------------------------------- */

struct tile_work {
    const struct paged_plan *plan;
    const int32_t *pages; /* of the sequence */
    int kv_head;
    float *keys, *values; /* copies */
};

static const void *page_keys(const struct tile_work *w, int64_t index) {
    const struct paged_attention *a = w->plan->a;
    int64_t at = w->pages[index] * a->page_stride + (int64_t)w->kv_head * KV_PAGE_TOKENS * a->head_size;
    return (const char *)a->pages + (size_t)at * dtype_bytes(a->type);
}

static const void *page_values(const struct tile_work *w, int64_t index) {
    const struct paged_attention *a = w->plan->a;
    return (const char *)page_keys(w, index) +
           (size_t)a->kv_heads * KV_PAGE_TOKENS * (size_t)a->head_size * dtype_bytes(a->type);
}

static const float *key_panel(const struct tile_work *w, int64_t index, int panel) {
    const struct head_shape *shape = &w->plan->shape;
    const void *page = page_keys(w, index);
    if (w->plan->keys_in_place)
        return page;
    float *copy = w->keys + (int64_t)panel * PANEL_KEYS * shape->depth;
    if (shape->pairs)
        copy_key_pairs(shape, page, copy);
    else
        widen_keys(shape, page, copy);
    return copy;
}

static const float *value_panel(const struct tile_work *w, int64_t index, int panel) {
    const struct head_shape *shape = &w->plan->shape;
    const void *page = page_values(w, index);
    if (w->plan->values_in_place)
        return page;
    float *copy = w->values + (int64_t)panel * (PANEL_KEYS / shape->group) * shape->width;
    if (shape->type == DTYPE_BF16 && !shape->pairs)
        widen_values(shape, page, copy);
    else
        copy_values(shape, page, copy);
    return copy;
}

/* A few rows read each page once, at the speed of the memory; pages lie anywhere, so the next chunk is asked for here.
 */
static void prefetch_chunk(const struct tile_work *w, int64_t first_page, int64_t pages) {
    size_t bytes = (size_t)KV_PAGE_TOKENS * (size_t)w->plan->a->head_size * dtype_bytes(w->plan->a->type);
    for (int64_t p = first_page; p < first_page + CHUNK_PANELS && p < pages; p++) {
        const char *keys = page_keys(w, p), *values = page_values(w, p);
        for (size_t i = 0; i < bytes; i += LINE) {
            __builtin_prefetch(keys + i);
            __builtin_prefetch(values + i);
        }
    }
}

/* seen[r]: keys that the tile's row r sees; most: the largest. */
static void walk_pages(const struct tile_work *w, struct query_tile *tile, const int64_t *seen, int64_t most) {
    int64_t pages = (most + PANEL_KEYS - 1) / PANEL_KEYS;
    LEVEL(attention_tile_begin)(tile);
    for (int64_t first = 0; first < pages; first += CHUNK_PANELS) {
        if (tile->rows <= FEW_ROWS)
            prefetch_chunk(w, first + CHUNK_PANELS, pages);
        struct chunk chunk = {.value_step = w->plan->shape.width};
        for (int p = 0; p < CHUNK_PANELS && first + p < pages; p++) {
            chunk.key[p] = key_panel(w, first + p, p);
            chunk.value[p] = value_panel(w, first + p, p);
        }
        int visible[TILE_ROWS];
        for (int r = 0; r < tile->rows; r++)
            visible[r] = clamp_int64(seen[r] - first * PANEL_KEYS, 0, CHUNK_KEYS);
        LEVEL(attention_tile_chunk)(tile, &chunk, visible, NULL);
    }
}

static void attend_piece(const struct paged_plan *plan, int64_t item, int slot) {
    const struct paged_attention *a = plan->a;
    const struct head_shape *shape = &plan->shape;
    struct query_tile *tile = &plan->tile[slot];
    int head_piece = (int)(item % plan->head_pieces), kv_head = (int)(item / plan->head_pieces % a->kv_heads);
    int64_t piece = plan->row_pieces - 1 - item / plan->head_pieces / a->kv_heads;
    int64_t first = plan->first_row[piece], end = plan->first_row[piece + 1];
    int first_head = head_piece * plan->heads_at_once;
    int heads = plan->group - first_head < plan->heads_at_once ? plan->group - first_head : plan->heads_at_once;
    int rows = (int)(end - first) * heads;
    int64_t head_at = (int64_t)(kv_head * plan->group + first_head) * shape->size, seen[TILE_ROWS], most = 0;
    size_t element = dtype_bytes(a->type);

    tile->shape = shape;
    tile->scale = a->scale;
    tile->keep_scale = 1.0f;
    tile->rows = LEVEL(attention_tile_rows)(rows);
    for (int64_t i = first; i < end; i++) {
        int at = (int)(i - first) * heads;
        const char *q = (const char *)a->q + (size_t)(i * a->q_stride + head_at) * element;
        LEVEL(attention_load_rows)(shape, q, shape->size, heads, tile->queries + at * shape->depth, shape->depth);
        for (int h = 0; h < heads; h++)
            seen[at + h] = a->position[i] + 1;
        most = a->position[i] + 1 > most ? a->position[i] + 1 : most;
    }
    for (int r = rows; r < tile->rows; r++)
        seen[r] = seen[rows - 1];
    memset(tile->queries + rows * shape->depth, 0, (size_t)((tile->rows - rows) * shape->depth) * sizeof(float));
    struct tile_work work = {.plan = plan,
                             .pages = a->page_table + a->sequence[first] * a->max_pages,
                             .kv_head = kv_head,
                             .keys = plan->keys[slot],
                             .values = plan->values[slot]};
    walk_pages(&work, tile, seen, most);
    for (int64_t i = first; i < end; i++) {
        char *out = (char *)a->out + (size_t)(i * a->out_stride + head_at) * element;
        LEVEL(attention_tile_end)(tile, (int)(i - first) * heads, heads, out, shape->size, NULL);
    }
}

LEVEL_WORKSPACE(paged_attention, paged_attention) {
    return paged_plan(a, device->threads, NULL).bytes;
}

LEVEL_OP(paged_attention, paged_attention) {
    if (a->type != DTYPE_F32 && a->type != DTYPE_BF16)
        return status_fail(STATUS_UNSUPPORTED, "paged attention in %s is not built (fp32 and bf16 are)",
                           dtype_name(a->type));
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads || a->head_size < 1)
        return status_fail(STATUS_INVALID, "paged attention of %d heads of size %d over %d key/value heads", a->heads,
                           a->head_size, a->kv_heads);
    int threads = exec_threads(exec);
    int status = LEVEL(attention_check_workspace)(exec, paged_plan(a, threads, NULL).bytes, "paged attention");
    if (status)
        return status;
    struct paged_plan plan = paged_plan(a, threads, exec->workspace);
    int64_t items = plan.row_pieces * a->kv_heads * plan.head_pieces;
    int slots = 0;
#pragma omp parallel num_threads(threads)
    {
        int slot;
#pragma omp atomic capture
        slot = slots++;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < items; i++)
            attend_piece(&plan, i, slot);
    }
    return STATUS_OK;
}
