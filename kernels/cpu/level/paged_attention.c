/* Attention over the pages of the KV cache. Consecutive query rows of one sequence share a tile, and so do the query
 * heads of a key/value head. Four pages are a chunk of keys. A page is used in place if its units are the level's and
 * its rows are whole vectors; otherwise it is copied first.
 *
 * The memory's bandwidth limits tiles of few rows, and long runs use it best. So the heads of a thread, which are
 * neighbours in every page, take turns at each chunk. Each prefetches the panels of the next head, or of the next
 * pages.
 *
 * If all rows fit in one such tile, the units may not divide evenly among the threads. The remaining units are cut:
 * their scores by chunks, and then their outputs by features. Every sum keeps its order. */
#include "cpu/level/attention-internal.h"

enum { FEW_ROWS = 8, MOST_UNITS = 16 };

/* One thread's memory. */
struct paged_scratch {
    struct query_tile large;           /* of TILE_ROWS */
    struct query_tile few[MOST_UNITS]; /* of FEW_ROWS */
    float *keys, *values;              /* copies of one chunk's pages */
};

/* The work: pieces of rows of one sequence by runs of units. A unit is a key/value head with as many of its query heads
 * as fit into a tile. */
struct paged_plan {
    const struct paged_attention *a;
    struct head_shape shape;
    int group, heads_at_once,
        head_pieces; /* query heads of a key/value head; query heads of a unit; units of a key/value head */
    int units, units_at_once;
    bool keys_in_place, values_in_place;
    int64_t row_pieces;
    int32_t *first_row; /* [row_pieces + 1] */
    int cut_units;      /* units that are cut, the last ones */
    int score_parts;    /* of one cut unit */
    int feature_parts;
    float *scores; /* [cut_units][chunks of max_pages][rows][CHUNK_KEYS] */
    char *scratch; /* [threads][scratch_bytes] */
    size_t scratch_bytes, bytes;
};

/* Cuts the rows into pieces where the sequence changes or a tile is full. */
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

/* Lays out the scratch of one thread, and returns its bytes. Each thread does so for itself, because it is slow to read
 * what another core has written. */
static size_t carve_scratch(const struct paged_plan *plan, char *memory, struct paged_scratch *scratch) {
    struct carver carver = {.base = memory};
    LEVEL(attention_tile_carve)(&scratch->large, &plan->shape, TILE_ROWS, &carver);
    for (int u = 0; u < MOST_UNITS; u++)
        LEVEL(attention_tile_carve)(&scratch->few[u], &plan->shape, FEW_ROWS, &carver);
    scratch->keys = plan->keys_in_place ? NULL : carve_floats(&carver, chunk_key_units(&plan->shape));
    scratch->values = plan->values_in_place ? NULL : carve_floats(&carver, chunk_value_units(&plan->shape));
    return carver.used;
}

enum { CUT_CHUNKS = 8 }; /* the fewest chunks of a unit that is worth cutting */

static int64_t chunks_of(const struct paged_attention *a) {
    return (a->max_pages + CHUNK_PANELS - 1) / CHUNK_PANELS;
}

/* Returns the units that remain after an even division among the threads; 0 if units cannot be cut. */
static int units_remaining(const struct paged_plan *plan, int threads) {
    bool can_cut = plan->keys_in_place && plan->values_in_place && plan->heads_at_once <= FEW_ROWS;
    return can_cut && chunks_of(plan->a) >= CUT_CHUNKS ? plan->units % threads : 0;
}

static void cut_units(struct paged_plan *plan, int threads) {
    const struct paged_attention *a = plan->a;
    plan->units_at_once = clamp_int64((plan->units + threads - 1) / threads, 1, MOST_UNITS);
    if (plan->row_pieces != 1 || a->rows * plan->heads_at_once > FEW_ROWS ||
        a->position[0] - first_seen(a->window, a->position[0]) < CUT_CHUNKS * CHUNK_KEYS)
        return;
    int vectors = plan->shape.width / SIMD_LANES;
    plan->cut_units = units_remaining(plan, threads);
    plan->score_parts = threads;
    for (plan->feature_parts = 1; plan->feature_parts < vectors; plan->feature_parts++)
        if (plan->cut_units * plan->feature_parts % threads == 0)
            break;
    if (plan->cut_units)
        plan->units_at_once = clamp_int64(plan->units / threads, 1, MOST_UNITS);
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
    plan.units = a->kv_heads * plan.head_pieces;
    plan.first_row = carve(&carver, a->rows + 1, sizeof *plan.first_row);
    plan.scores = carve_floats(&carver, units_remaining(&plan, threads) * chunks_of(a) * FEW_ROWS * CHUNK_KEYS);
    if (workspace) {
        cut_rows(&plan);
        cut_units(&plan, threads);
    }
    struct paged_scratch counted;
    plan.scratch_bytes = carve_scratch(&plan, NULL, &counted);
    plan.scratch = carve(&carver, threads, plan.scratch_bytes);
    plan.bytes = carver.used;
    return plan;
}

/* ---- copies of pages -------------------------------------------------------------------------------------------- */

static const float *unit_at(const uint16_t *page, int64_t unit) {
    return (const float *)(const void *)(page + 2 * unit);
}

/* Converts bf16 pairs [D / 2][16] to floats [D][16]. */
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

/* Converts bf16 pairs [8][D] to floats [16][width]. */
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

/* Copies the pairs of an odd head size: the last feature is paired with a zero. */
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

/* ---- units ------------------------------------------------------------------------------------------------------ */

struct unit_work {
    const struct paged_plan *plan;
    struct paged_scratch *scratch;
    const int32_t *pages;     /* of the sequence */
    int64_t first, end;       /* rows */
    int64_t from, to;         /* tokens that any of them sees */
    int64_t all_from, all_to; /* tokens that each of them sees */
};

static const void *page_keys(const struct unit_work *w, int kv_head, int64_t index) {
    const struct paged_attention *a = w->plan->a;
    int64_t at = w->pages[index] * a->page_stride + (int64_t)kv_head * KV_PAGE_TOKENS * a->head_size;
    return (const char *)a->pages + (size_t)at * dtype_bytes(a->type);
}

static const void *page_values(const struct unit_work *w, int kv_head, int64_t index) {
    return page_keys(w, kv_head + w->plan->a->kv_heads, index);
}

static const float *key_panel(const struct unit_work *w, const void *page, int panel) {
    const struct head_shape *shape = &w->plan->shape;
    if (w->plan->keys_in_place)
        return page;
    float *copy = w->scratch->keys + (int64_t)panel * PANEL_KEYS * shape->depth;
    if (shape->pairs)
        copy_key_pairs(shape, page, copy);
    else
        widen_keys(shape, page, copy);
    return copy;
}

static const float *value_panel(const struct unit_work *w, const void *page, int panel) {
    const struct head_shape *shape = &w->plan->shape;
    if (w->plan->values_in_place)
        return page;
    float *copy = w->scratch->values + (int64_t)panel * (PANEL_KEYS / shape->group) * shape->width;
    if (shape->type == DTYPE_BF16 && !shape->pairs)
        widen_values(shape, page, copy);
    else
        copy_values(shape, page, copy);
    return copy;
}

static int unit_heads(const struct paged_plan *plan, int unit) {
    int before = unit % plan->head_pieces * plan->heads_at_once;
    return plan->group - before < plan->heads_at_once ? plan->group - before : plan->heads_at_once;
}

/* Returns the first element of the unit's heads in a row of queries or outputs. */
static int64_t unit_column(const struct paged_plan *plan, int unit) {
    int head = unit / plan->head_pieces * plan->group + unit % plan->head_pieces * plan->heads_at_once;
    return (int64_t)head * plan->shape.size;
}

static void unit_begin(const struct unit_work *w, int unit, struct query_tile *tile) {
    const struct paged_attention *a = w->plan->a;
    const struct head_shape *shape = &w->plan->shape;
    int heads = unit_heads(w->plan, unit), rows = (int)(w->end - w->first) * heads, row = 0;
    tile->shape = shape;
    tile->scale = a->scale;
    tile->keep_scale = 1.0f;
    tile->rows = LEVEL(attention_tile_rows)(rows);
    for (int64_t i = w->first; i < w->end; i++, row += heads) {
        int64_t at = i * a->q_stride + unit_column(w->plan, unit);
        const char *q = (const char *)a->q + (size_t)at * dtype_bytes(a->type);
        LEVEL(attention_load_rows)(shape, q, shape->size, heads, tile->queries + row * shape->depth, shape->depth);
    }
    memset(tile->queries + rows * shape->depth, 0, (size_t)((tile->rows - rows) * shape->depth) * sizeof(float));
    LEVEL(attention_tile_begin)(tile);
}

/* Finds the panels of the pages from first_page on that the rows see. The first of these stands in for all others. */
static void find_chunk(const struct unit_work *w, int unit, int64_t first_page, struct chunk *chunk) {
    int kv_head = unit / w->plan->head_pieces;
    int from = clamp_int64(w->from / KV_PAGE_TOKENS - first_page, 0, CHUNK_PANELS - 1);
    int to = clamp_int64((w->to + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS - first_page, 1, CHUNK_PANELS);
    *chunk = (struct chunk){.value_step = w->plan->shape.width};
    for (int p = from; p < to; p++) {
        chunk->key[p] = key_panel(w, page_keys(w, kv_head, first_page + p), p);
        chunk->value[p] = value_panel(w, page_values(w, kv_head, first_page + p), p);
    }
    for (int p = 0; p < CHUNK_PANELS; p++)
        if (p < from || p >= to) {
            chunk->key[p] = chunk->key[from];
            chunk->value[p] = chunk->value[from];
        }
}

/* Returns the keys of the chunk that the tile's rows see: `seen`, or NULL for all keys. */
static const struct seen_keys *unit_sees(const struct unit_work *w, int unit, const struct query_tile *tile,
                                         int64_t first_page, struct seen_keys *seen) {
    const struct paged_attention *a = w->plan->a;
    int heads = unit_heads(w->plan, unit);
    int rows = (int)(w->end - w->first) * heads;
    int64_t token = first_page * KV_PAGE_TOKENS;
    if (w->all_from <= token && w->all_to >= token + CHUNK_KEYS)
        return NULL;
    for (int r = 0; r < tile->rows; r++) {
        int64_t row = w->first + (r < rows ? r : rows - 1) / heads;
        seen[r] = seen_of_chunk(a->window, a->position[row], token);
    }
    return seen;
}

/* Writes the outputs' features from `feature` on, as many as the tile's shape has. */
static void unit_end(const struct unit_work *w, int unit, const struct query_tile *tile, int feature) {
    const struct paged_attention *a = w->plan->a;
    int heads = unit_heads(w->plan, unit), row = 0;
    for (int64_t i = w->first; i < w->end; i++, row += heads) {
        int64_t at = i * a->out_stride + unit_column(w->plan, unit) + feature;
        char *out = (char *)a->out + (size_t)at * dtype_bytes(a->type);
        LEVEL(attention_tile_end)(tile, row, heads, out, w->plan->shape.size, NULL);
    }
}

/* Computes units first .. end-1 side by side, each in its tile. */
static void attend_units(const struct unit_work *w, int first, int end, struct query_tile *tile) {
    int64_t first_page = w->from / CHUNK_KEYS * CHUNK_PANELS;
    for (int unit = first; unit < end; unit++)
        unit_begin(w, unit, &tile[unit - first]);
    struct chunk chunks[2];
    bool is_in_place = w->plan->keys_in_place && w->plan->values_in_place;
    int turn = 0;
    for (int64_t page = first_page; page * KV_PAGE_TOKENS < w->to; page += CHUNK_PANELS)
        for (int unit = first; unit < end; unit++, turn = !turn) {
            struct chunk *chunk = &chunks[turn], *next = &chunks[!turn];
            int64_t next_page = unit + 1 < end ? page : page + CHUNK_PANELS;
            if (!is_in_place || (page == first_page && unit == first))
                find_chunk(w, unit, page, chunk);
            if (is_in_place && next_page * KV_PAGE_TOKENS < w->to) {
                find_chunk(w, unit + 1 < end ? unit + 1 : first, next_page, next);
                chunk->next = next;
            }
            struct seen_keys seen[TILE_ROWS];
            struct query_tile *one = &tile[unit - first];
            LEVEL(attention_tile_chunk)(one, chunk, unit_sees(w, unit, one, page, seen), NULL);
        }
    for (int unit = first; unit < end; unit++)
        unit_end(w, unit, &tile[unit - first], 0);
}

static struct unit_work work_of(const struct paged_plan *plan, int64_t piece, struct paged_scratch *scratch) {
    const struct paged_attention *a = plan->a;
    struct unit_work work = {
        .plan = plan, .scratch = scratch, .first = plan->first_row[piece], .end = plan->first_row[piece + 1]};
    work.pages = a->page_table + a->sequence[work.first] * a->max_pages;
    int64_t lowest = a->position[work.first], highest = lowest;
    for (int64_t i = work.first + 1; i < work.end; i++) {
        lowest = a->position[i] < lowest ? a->position[i] : lowest;
        highest = a->position[i] > highest ? a->position[i] : highest;
    }
    work.from = first_seen(a->window, lowest);
    work.to = highest + 1;
    work.all_from = first_seen(a->window, highest);
    work.all_to = lowest + 1;
    return work;
}

/* Returns the number of runs of whole units in each piece of rows. */
static int unit_runs(const struct paged_plan *plan) {
    return (plan->units - plan->cut_units + plan->units_at_once - 1) / plan->units_at_once;
}

/* Writes the outputs of rows that see nothing. */
static void clear_units(const struct unit_work *w, int first, int end) {
    const struct paged_attention *a = w->plan->a;
    for (int64_t i = w->first; i < w->end; i++)
        for (int unit = first; unit < end; unit++) {
            int64_t at = i * a->out_stride + unit_column(w->plan, unit);
            memset((char *)a->out + (size_t)at * dtype_bytes(a->type), 0,
                   (size_t)(unit_heads(w->plan, unit) * a->head_size) * dtype_bytes(a->type));
        }
}

/* Computes an item. The last piece of rows, which sees the most keys in a prefill, is taken first. */
static void attend_item(const struct paged_plan *plan, int64_t item, struct paged_scratch *scratch) {
    int runs = unit_runs(plan), whole = plan->units - plan->cut_units;
    int64_t piece = plan->row_pieces - 1 - item / runs;
    int first = (int)(item % runs) * plan->units_at_once;
    int end = first + plan->units_at_once < whole ? first + plan->units_at_once : whole;
    struct unit_work work = work_of(plan, piece, scratch);
    if (work.to == 0)
        clear_units(&work, first, end);
    else if ((work.end - work.first) * plan->heads_at_once <= FEW_ROWS)
        attend_units(&work, first, end, scratch->few);
    else
        for (int unit = first; unit < end; unit++)
            attend_units(&work, unit, unit + 1, &scratch->large);
}

/* ---- units that are cut ----------------------------------------------------------------------------------------- */

static float *scores_of(const struct paged_plan *plan, int cut, int64_t chunk) {
    return plan->scores + (cut * chunks_of(plan->a) + chunk) * FEW_ROWS * CHUNK_KEYS;
}

/* Computes the scores of some of a unit's chunks. */
static void score_item(const struct paged_plan *plan, int item, struct paged_scratch *scratch) {
    int cut = item / plan->score_parts, part = item % plan->score_parts, unit = plan->units - plan->cut_units + cut;
    struct unit_work work = work_of(plan, 0, scratch);
    struct query_tile *tile = &scratch->few[0];
    unit_begin(&work, unit, tile);
    int64_t first = work.from / CHUNK_KEYS, chunks = (work.to + CHUNK_KEYS - 1) / CHUNK_KEYS - first;
    int64_t begin = first + chunks * part / plan->score_parts, end = first + chunks * (part + 1) / plan->score_parts;
    struct chunk chunk, next = {0};
    for (int64_t c = begin; c < end; c++) {
        struct seen_keys seen[TILE_ROWS];
        if (c == begin)
            find_chunk(&work, unit, c * CHUNK_PANELS, &next);
        chunk = next;
        if (c + 1 < end)
            find_chunk(&work, unit, (c + 1) * CHUNK_PANELS, &next);
        LEVEL(attention_scores)
        (&(struct score_product){.shape = tile->shape,
                                 .a = tile->queries,
                                 .a_row = tile->shape->depth,
                                 .key = chunk.key,
                                 .next_key = next.key,
                                 .scores = scores_of(plan, cut, c),
                                 .rows = tile->rows,
                                 .seen = unit_sees(&work, unit, tile, c * CHUNK_PANELS, seen)});
    }
}

/* Finds a chunk's panels, from a feature of the values on. */
static void find_features(const struct unit_work *w, int unit, int64_t first_page, int feature, struct chunk *chunk) {
    find_chunk(w, unit, first_page, chunk);
    for (int p = 0; p < CHUNK_PANELS; p++)
        chunk->value[p] += feature;
}

/* Computes some features of a unit's outputs from its scores. */
static void feature_item(const struct paged_plan *plan, int item, struct paged_scratch *scratch) {
    int cut = item / plan->feature_parts, part = item % plan->feature_parts;
    int unit = plan->units - plan->cut_units + cut, vectors = plan->shape.width / SIMD_LANES;
    int feature = vectors * part / plan->feature_parts * SIMD_LANES;
    struct head_shape shape = plan->shape;
    shape.size = shape.width = vectors * (part + 1) / plan->feature_parts * SIMD_LANES - feature;
    struct unit_work work = work_of(plan, 0, scratch);
    struct query_tile *tile = &scratch->few[0];
    unit_begin(&work, unit, tile);
    tile->shape = &shape;
    int64_t first = work.from / CHUNK_KEYS;
    struct chunk chunk, next = {0};
    for (int64_t c = first; c * CHUNK_KEYS < work.to; c++) {
        struct seen_keys seen[TILE_ROWS];
        if (c == first)
            find_features(&work, unit, c * CHUNK_PANELS, feature, &next);
        chunk = next;
        if ((c + 1) * CHUNK_KEYS < work.to)
            find_features(&work, unit, (c + 1) * CHUNK_PANELS, feature, &next);
        chunk.next = &next;
        memcpy(tile->scores, scores_of(plan, cut, c), (size_t)(tile->rows * CHUNK_KEYS) * sizeof(float));
        LEVEL(attention_tile_scored)(tile, &chunk, unit_sees(&work, unit, tile, c * CHUNK_PANELS, seen), NULL);
    }
    unit_end(&work, unit, tile, feature);
}

LEVEL_WORKSPACE(paged_attention, paged_attention) {
    return paged_plan(a, device->threads, NULL).bytes;
}

LEVEL_OP(paged_attention, paged_attention) {
    TRY(paged_attention_check(a));
    int threads = exec_threads(exec);
    TRY(attention_check_workspace(exec, paged_plan(a, threads, NULL).bytes, "paged attention"));
    struct paged_plan plan = paged_plan(a, threads, exec->workspace);
    int64_t wholes = plan.row_pieces * unit_runs(&plan), items = wholes + plan.cut_units * plan.feature_parts;
    int64_t slots = 0, next = 0;
#pragma omp parallel num_threads(threads)
    {
        struct paged_scratch scratch;
        int64_t slot, item;
#pragma omp atomic capture
        slot = slots++;
        carve_scratch(&plan, plan.scratch + (size_t)slot * plan.scratch_bytes, &scratch);
        if (plan.cut_units) {
#pragma omp for schedule(static)
            for (int i = 0; i < plan.cut_units * plan.score_parts; i++)
                score_item(&plan, i, &scratch);
        }
#pragma omp atomic capture
        item = next++;
        while (item < items) {
            if (item < wholes)
                attend_item(&plan, item, &scratch);
            else
                feature_item(&plan, (int)(item - wholes), &scratch);
#pragma omp atomic capture
            item = next++;
        }
    }
    return STATUS_OK;
}
