/* Causal attention, backward (FlashAttention-2). The probabilities are computed again from the scores and the saved
 * log-sum-exp. One thread computes a (segment, key/value head): for each of its query heads, for each chunk of keys,
 * for each tile of queries below the diagonal, in this order. So every sum has one owner and one order.
 *
 *     P = exp(scale q k - lse)   delta = sum(dout * out)   dP = dout v   dS = P (dP - delta)
 *     dv = P^T dout   dk = scale dS^T q   dq = scale dS k
 *
 * With dropout, P and dP are masked and scaled; delta is not. */
#include "cpu/level/attention-internal.h"

/* Rows of a query head: as the left operand of products along D, and as the right operand of products along rows. Both
 * are the same memory if units are floats. */
struct operand {
    float *along_size; /* [rows][size_row] */
    int64_t size_row;
    float *along_rows; /* [rows / group][width] */
};

/* One thread's memory, for the rows of the longest segment, rounded up to whole tiles. */
struct scratch {
    struct operand q, dout;
    float *dq;                        /* [rows][width] */
    float *lse, *delta;               /* [rows] lse in base 2 */
    float *dk, *dv;                   /* [keys][width], the sums over the query heads of a group */
    float *key_panels, *value_panels; /* of one chunk */
    float *key_rows;                  /* of one chunk, [CHUNK_KEYS / group][width] */
    float *staging;                   /* [CHUNK_KEYS][size_row] */
    float *scores, *dscores;          /* [TILE_ROWS][CHUNK_KEYS]; P and dS where units are floats */
    float *p_pairs, *ds_pairs;        /* [TILE_ROWS / 2][CHUNK_KEYS] pairs along queries; else scores, dscores */
};

struct backward_plan {
    const struct attention *a;
    struct head_shape shape;
    struct scratch *scratch;      /* [threads] */
    float *dprefix_k, *dprefix_v; /* [PREFIX_WAVE][P][G][D] parts of the prefix's gradients, or NULL */
    int64_t first, end;           /* segments of the wave */
    size_t bytes;
};

/* Segments that are computed at once if there is a prefix. Each has a part of the prefix's gradients; the parts are
 * added after each wave. */
enum { PREFIX_WAVE = 4 };

static int64_t whole_tiles(int64_t rows) {
    return (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

static struct operand operand_carve(struct carver *carver, const struct head_shape *shape, int64_t rows) {
    struct operand operand = {.size_row = shape->pairs ? shape->depth : shape->width};
    operand.along_size = carve_floats(carver, rows * operand.size_row);
    operand.along_rows = shape->pairs ? carve_floats(carver, rows / 2 * shape->width) : operand.along_size;
    return operand;
}

static struct scratch scratch_carve(struct carver *carver, const struct head_shape *shape, int64_t rows, int64_t keys) {
    struct scratch s = {.q = operand_carve(carver, shape, rows), .dout = operand_carve(carver, shape, rows)};
    int64_t size_row = s.q.size_row;
    s.dq = carve_floats(carver, rows * shape->width);
    s.lse = carve_floats(carver, rows);
    s.delta = carve_floats(carver, rows);
    s.dk = carve_floats(carver, keys * shape->width);
    s.dv = carve_floats(carver, keys * shape->width);
    s.key_panels = carve_floats(carver, chunk_key_units(shape));
    s.value_panels = carve_floats(carver, chunk_key_units(shape));
    s.key_rows = carve_floats(carver, chunk_value_units(shape));
    s.staging = shape->pairs ? carve_floats(carver, CHUNK_KEYS * size_row) : s.key_rows;
    s.scores = carve_floats(carver, TILE_ROWS * CHUNK_KEYS);
    s.dscores = carve_floats(carver, TILE_ROWS * CHUNK_KEYS);
    s.p_pairs = shape->pairs ? carve_floats(carver, TILE_ROWS / 2 * CHUNK_KEYS) : s.scores;
    s.ds_pairs = shape->pairs ? carve_floats(carver, TILE_ROWS / 2 * CHUNK_KEYS) : s.dscores;
    return s;
}

static struct backward_plan backward_plan(const struct attention *a, int threads, void *workspace) {
    struct carver carver = carver_of(workspace);
    struct backward_plan plan = {.a = a, .shape = LEVEL(attention_shape)(a->type, a->head_size)};
    int64_t longest = a->segment_start ? 0 : a->rows;
    for (int64_t s = 0; s < a->segments; s++) {
        int64_t rows = a->segment_start[s + 1] - a->segment_start[s];
        longest = rows > longest ? rows : longest;
    }
    plan.scratch = carve(&carver, threads, sizeof *plan.scratch);
    for (int t = 0; t < threads; t++) {
        struct scratch scratch =
            scratch_carve(&carver, &plan.shape, whole_tiles(longest), whole_tiles(a->prefix + longest));
        if (workspace)
            plan.scratch[t] = scratch;
    }
    int64_t prefix = PREFIX_WAVE * a->prefix * a->kv_heads * a->head_size;
    float *dprefix_k = carve_floats(&carver, prefix), *dprefix_v = carve_floats(&carver, prefix);
    plan.dprefix_k = a->dprefix_k ? dprefix_k : NULL;
    plan.dprefix_v = a->dprefix_v ? dprefix_v : NULL;
    plan.bytes = carver.used;
    return plan;
}

/* ---- one tile of queries against one chunk of keys -------------------------------------------------------------- */

struct tile_mask {
    bool is_whole; /* each row sees the whole chunk, and `seen` is not read */
    struct seen_keys seen[TILE_ROWS];
    uint64_t kept[TILE_ROWS];
    float keep_scale; /* 1 / (1 - p) */
    float scale2;     /* the factor of the scores, for base 2 */
};

/* Computes P (masked by dropout, not yet scaled) and dS of SIMD_LANES keys of one row. */
ATTENTION_INLINE void row_gradient(const struct scratch *s, const struct tile_mask *mask, int64_t first, int row,
                                   int vector, vfloat *p, vfloat *ds) {
    int lane = vector * SIMD_LANES;
    uint64_t seen = mask->is_whole ? ~(uint64_t)0 : seen_bits(mask->seen[row]);
    if (!(seen >> lane & first_bits(SIMD_LANES))) {
        *p = *ds = simd_set(0.0f);
        return;
    }
    vfloat zero = simd_set(0.0f);
    vfloat score = simd_load(s->scores + row * CHUNK_KEYS + lane), dp = simd_load(s->dscores + row * CHUNK_KEYS + lane);
    vfloat weight = exp2_vector(simd_fma(score, simd_set(mask->scale2), simd_set(-s->lse[first + row])));
    weight = simd_select((uint32_t)(seen >> lane), weight, zero);
    dp = simd_select((uint32_t)((seen & mask->kept[row]) >> lane), dp * simd_set(mask->keep_scale), zero);
    *p = simd_select((uint32_t)(mask->kept[row] >> lane), weight, zero);
    *ds = weight * (dp - simd_set(s->delta[first + row]));
}

static void tile_gradient_floats(const struct scratch *s, const struct tile_mask *mask, int64_t first) {
    for (int row = 0; row < TILE_ROWS; row++)
        for (int v = 0; v < CHUNK_VECTORS; v++) {
            vfloat p, ds;
            row_gradient(s, mask, first, row, v, &p, &ds);
            simd_store(s->scores + row * CHUNK_KEYS + v * SIMD_LANES, p);
            simd_store(s->dscores + row * CHUNK_KEYS + v * SIMD_LANES, ds);
        }
}

/* dS is wanted in pairs along the keys as well (for dq): they replace dP, and lie at its place or after it. */
static void tile_gradient_pairs(const struct scratch *s, const struct tile_mask *mask, int64_t first) {
    for (int row = 0; row < TILE_ROWS; row += 2)
        for (int v = 0; v < CHUNK_VECTORS; v++) {
            vfloat p[2], ds[2];
            vword low, high;
            for (int i = 0; i < 2; i++)
                row_gradient(s, mask, first, row + i, v, &p[i], &ds[i]);
            int at = row / 2 * CHUNK_KEYS + v * SIMD_LANES;
            low = simd_round_bf16(p[0]);
            high = simd_round_bf16(p[1]);
            simd_store(s->p_pairs + at, (vfloat)(low | simd_upper_halves(high)));
            low = simd_round_bf16(ds[0]);
            high = simd_round_bf16(ds[1]);
            simd_store(s->ds_pairs + at, (vfloat)(low | simd_upper_halves(high)));
            simd_store_halves((uint16_t *)(void *)(s->dscores + row * CHUNK_KEYS) + v * SIMD_LANES, low);
            simd_store_halves((uint16_t *)(void *)(s->dscores + (row + 1) * CHUNK_KEYS) + v * SIMD_LANES, high);
        }
}

static void tile_products(const struct head_shape *shape, const struct scratch *s, int64_t first,
                          const struct tile_mask *mask) {
    const float *key[CHUNK_PANELS], *value[CHUNK_PANELS];
    for (int p = 0; p < CHUNK_PANELS; p++) {
        key[p] = s->key_panels + p * PANEL_KEYS * shape->depth;
        value[p] = s->value_panels + p * PANEL_KEYS * shape->depth;
    }
    struct score_product product = {.shape = shape,
                                    .a = s->q.along_size + first * s->q.size_row,
                                    .a_row = s->q.size_row,
                                    .key = key,
                                    .scores = s->scores,
                                    .rows = TILE_ROWS,
                                    .seen = mask->is_whole ? NULL : mask->seen};
    LEVEL(attention_scores)(&product);
    product.a = s->dout.along_size + first * s->dout.size_row;
    product.key = value;
    product.scores = s->dscores;
    LEVEL(attention_scores)(&product);
}

/* Adds a tile's products to the chunk's dk and dv. From row to row of the tile, neither the first nor the last seen key
 * ever decreases. */
static void tile_accumulate(const struct head_shape *shape, const struct scratch *s, int64_t first,
                            const struct tile_mask *mask, float *dk, float *dv) {
    const int group = shape->group;
    int from[TILE_ROWS / SIMD_ROWS], to[TILE_ROWS / SIMD_ROWS];
    for (int block = 0, row = 0, end = mask->is_whole ? TILE_ROWS : 0; block < CHUNK_KEYS / SIMD_ROWS; block++) {
        while (!mask->is_whole && row < TILE_ROWS && mask->seen[row].to <= block * SIMD_ROWS)
            row++;
        while (end < TILE_ROWS && mask->seen[end].from < (block + 1) * SIMD_ROWS)
            end++;
        from[block] = row / group;
        to[block] = (end + group - 1) / group;
    }
    struct gradient_product product = {.shape = shape,
                                       .a = s->p_pairs,
                                       .a_row = 1,
                                       .a_step = CHUNK_KEYS,
                                       .b = s->dout.along_rows + first / group * shape->width,
                                       .c = dv,
                                       .rows = CHUNK_KEYS,
                                       .from = from,
                                       .to = to};
    LEVEL(attention_accumulate)(&product);
    product.a = s->ds_pairs;
    product.b = s->q.along_rows + first / group * shape->width;
    product.c = dk;
    LEVEL(attention_accumulate)(&product);
    for (int block = 0; block < TILE_ROWS / SIMD_ROWS; block++) {
        from[block] = mask->is_whole ? 0 : mask->seen[block * SIMD_ROWS].from / group;
        to[block] =
            mask->is_whole ? CHUNK_KEYS / group : (mask->seen[(block + 1) * SIMD_ROWS - 1].to + group - 1) / group;
    }
    product.a = s->dscores;
    product.a_row = CHUNK_KEYS;
    product.a_step = 1;
    product.b = s->key_rows;
    product.c = s->dq + first * shape->width;
    product.rows = TILE_ROWS;
    LEVEL(attention_accumulate)(&product);
}

/* ---- one head of one segment ------------------------------------------------------------------------------------ */

struct head_work {
    const struct backward_plan *plan;
    const struct scratch *s;
    int64_t segment, start, rows; /* the segment's first row and its rows */
    int head, kv_head;
};

static const void *element_at(const void *base, enum dtype type, int64_t index) {
    return (const char *)base + (size_t)index * dtype_bytes(type);
}

static void load_operand(const struct head_shape *shape, struct operand operand, const void *from, int64_t stride,
                         int64_t rows) {
    int64_t whole = whole_tiles(rows);
    LEVEL(attention_load_rows)(shape, from, stride, (int)rows, operand.along_size, operand.size_row);
    memset(operand.along_size + rows * operand.size_row, 0,
           (size_t)((whole - rows) * operand.size_row) * sizeof(float));
    if (shape->pairs)
        LEVEL(attention_pair_rows)(shape, operand.along_size, operand.size_row, (int)whole, operand.along_rows);
}

/* Returns the sum of dout * out of a row, in fp32. */
static float row_delta(const struct head_shape *shape, const void *dout, const void *out) {
    vfloat sum = simd_set(0.0f);
    int size = shape->size, d = 0;
    float rest = 0.0f;
    if (shape->type == DTYPE_F32) {
        const float *x = dout, *y = out;
        for (; d + SIMD_LANES <= size; d += SIMD_LANES)
            sum = simd_fma(simd_load(x + d), simd_load(y + d), sum);
        for (; d < size; d++)
            rest += x[d] * y[d];
    } else {
        const uint16_t *x = dout, *y = out;
        for (; d + SIMD_LANES <= size; d += SIMD_LANES)
            sum = simd_fma(simd_load_bf16(x + d), simd_load_bf16(y + d), sum);
        for (; d < size; d++)
            rest += bf16_to_float(x[d]) * bf16_to_float(y[d]);
    }
    return simd_sum(sum) + rest;
}

/* Loads the rows of a head. Rows after the segment's last get an infinite lse, so that their probabilities are 0. */
static void load_head(const struct head_work *w) {
    const struct attention *a = w->plan->a;
    const struct head_shape *shape = &w->plan->shape;
    int64_t at = (int64_t)w->head * shape->size, out_at = w->start * a->out_stride + at;
    load_operand(shape, w->s->q, element_at(a->q, a->type, w->start * a->q_stride + at), a->q_stride, w->rows);
    load_operand(shape, w->s->dout, element_at(a->dout, a->type, out_at), a->out_stride, w->rows);
    for (int64_t r = 0; r < whole_tiles(w->rows); r++) {
        int64_t index = out_at + r * a->out_stride;
        bool exists = r < w->rows;
        w->s->lse[r] = exists ? a->lse[w->head * a->rows + w->start + r] * LOG2_E : INFINITY;
        w->s->delta[r] =
            exists ? row_delta(shape, element_at(a->dout, a->type, index), element_at(a->out, a->type, index)) : 0.0f;
    }
    memset(w->s->dq, 0, (size_t)(whole_tiles(w->rows) * shape->width) * sizeof(float));
}

static void load_chunk(const struct head_work *w, int64_t first_key) {
    const struct head_shape *shape = &w->plan->shape;
    const struct scratch *s = w->s;
    struct key_rows keys = {
        .a = w->plan->a, .segment = w->segment, .kv_head = w->kv_head, .first = first_key, .is_value = true};
    LEVEL(attention_load_keys)(shape, &keys, s->staging, s->q.size_row);
    LEVEL(attention_make_panels)(shape, s->staging, s->q.size_row, s->value_panels);
    keys.is_value = false;
    LEVEL(attention_load_keys)(shape, &keys, s->staging, s->q.size_row);
    LEVEL(attention_make_panels)(shape, s->staging, s->q.size_row, s->key_panels);
    if (shape->pairs)
        LEVEL(attention_pair_rows)(shape, s->staging, s->q.size_row, CHUNK_KEYS, s->key_rows);
}

/* Adds the contributions of query head w->head to dk and dv of the chunk, and to dq. */
static void chunk_gradient(const struct head_work *w, int64_t first_key, float *dk, float *dv) {
    const struct attention *a = w->plan->a;
    struct tile_mask mask = {.keep_scale = 1.0f / (1.0f - a->dropout.p), .scale2 = a->scale * LOG2_E};
    struct key_run runs[CHUNK_KEYS];
    int count = a->dropout.p > 0 ? LEVEL(attention_key_runs)(a, w->segment, first_key, runs) : 0;
    memset(mask.kept, 0xff, sizeof mask.kept);
    int64_t diagonal = first_key - a->prefix, end = w->rows;
    if (a->window && a->window <= end - diagonal - CHUNK_KEYS)
        end = diagonal + CHUNK_KEYS + a->window - 1; /* one past the last row that sees the chunk's last key */
    for (int64_t first = diagonal > 0 ? diagonal / TILE_ROWS * TILE_ROWS : 0; first < end; first += TILE_ROWS) {
        int rows = clamp_int64(w->rows - first, 0, TILE_ROWS);
        mask.is_whole = sees_all(seen_of_chunk(a->window, a->prefix + first, first_key)) &&
                        sees_all(seen_of_chunk(a->window, a->prefix + first + TILE_ROWS - 1, first_key));
        for (int r = 0; !mask.is_whole && r < TILE_ROWS; r++)
            mask.seen[r] = seen_of_chunk(a->window, a->prefix + first + r, first_key);
        if (a->dropout.p > 0)
            LEVEL(attention_kept)(a, w->head, w->start + first, rows, runs, count, mask.kept);
        tile_products(&w->plan->shape, w->s, first, &mask);
        if (SIMD_PAIRS && w->plan->shape.pairs)
            tile_gradient_pairs(w->s, &mask, first);
        else
            tile_gradient_floats(w->s, &mask, first);
        tile_accumulate(&w->plan->shape, w->s, first, &mask, dk, dv);
    }
}

/* dk or dv of a chunk. Those of the prefix's keys are written to its parts, the others to the tensor. */
struct key_gradient {
    const float *from; /* [CHUNK_KEYS][width] */
    float factor;
    float *prefix; /* this segment's [P][G][D], or NULL */
    void *to;
    int64_t stride;
};

static void store_chunk(const struct head_work *w, int64_t first_key, const struct key_gradient *gradient) {
    const struct attention *a = w->plan->a;
    const struct head_shape *shape = &w->plan->shape;
    float factor[CHUNK_KEYS];
    for (int i = 0; i < CHUNK_KEYS; i++)
        factor[i] = gradient->factor;
    int64_t at = (int64_t)w->kv_head * shape->size, prefix_row = (int64_t)a->kv_heads * shape->size;
    int before = clamp_int64(a->prefix - first_key, 0, CHUNK_KEYS);
    if (before && gradient->prefix) {
        struct head_shape floats = *shape;
        floats.type = DTYPE_F32;
        LEVEL(attention_store_rows)
        (&floats, gradient->from, factor, before, gradient->prefix + first_key * prefix_row + at, prefix_row);
    }
    int64_t first_row = first_key + before - a->prefix;
    int rows = clamp_int64(w->rows - first_row, 0, CHUNK_KEYS - before);
    char *to = (char *)gradient->to + (size_t)((w->start + first_row) * gradient->stride + at) * dtype_bytes(a->type);
    if (rows)
        LEVEL(attention_store_rows)
    (shape, gradient->from + (int64_t)before * shape->width, factor, rows, to, gradient->stride);
}

static void store_chunks(const struct head_work *w, int64_t first_key, const float *dk, const float *dv) {
    const struct backward_plan *plan = w->plan;
    const struct attention *a = plan->a;
    int64_t part = (w->segment - plan->first) * a->prefix * a->kv_heads * a->head_size;
    struct key_gradient k = {.from = dk,
                             .factor = a->scale,
                             .prefix = plan->dprefix_k ? plan->dprefix_k + part : NULL,
                             .to = a->dk,
                             .stride = a->k_stride};
    struct key_gradient v = {.from = dv,
                             .factor = 1.0f / (1.0f - a->dropout.p),
                             .prefix = plan->dprefix_v ? plan->dprefix_v + part : NULL,
                             .to = a->dv,
                             .stride = a->v_stride};
    store_chunk(w, first_key, &k);
    store_chunk(w, first_key, &v);
}

static void store_dq(const struct head_work *w) {
    const struct attention *a = w->plan->a;
    const struct head_shape *shape = &w->plan->shape;
    float factor[TILE_ROWS];
    for (int i = 0; i < TILE_ROWS; i++)
        factor[i] = a->scale;
    for (int64_t first = 0; first < w->rows; first += TILE_ROWS) {
        int64_t at = (w->start + first) * a->q_stride + (int64_t)w->head * shape->size;
        LEVEL(attention_store_rows)
        (shape, w->s->dq + first * shape->width, factor, clamp_int64(w->rows - first, 0, TILE_ROWS),
         (char *)a->dq + (size_t)at * dtype_bytes(a->type), a->q_stride);
    }
}

static void group_backward(const struct backward_plan *plan, int64_t item, const struct scratch *s) {
    const struct attention *a = plan->a;
    int group = a->heads / a->kv_heads, width = plan->shape.width;
    struct head_work w = {
        .plan = plan, .s = s, .segment = plan->first + item / a->kv_heads, .kv_head = (int)(item % a->kv_heads)};
    w.start = a->segment_start[w.segment];
    w.rows = a->segment_start[w.segment + 1] - w.start;
    for (int i = 0; i < group; i++) {
        w.head = w.kv_head * group + i;
        load_head(&w);
        for (int64_t first = 0; first < a->prefix + w.rows; first += CHUNK_KEYS) {
            float *dk = s->dk + first * width, *dv = s->dv + first * width;
            if (i == 0) {
                memset(dk, 0, (size_t)(CHUNK_KEYS * width) * sizeof(float));
                memset(dv, 0, (size_t)(CHUNK_KEYS * width) * sizeof(float));
            }
            load_chunk(&w, first);
            chunk_gradient(&w, first, dk, dv);
            if (i == group - 1)
                store_chunks(&w, first, dk, dv);
        }
        store_dq(&w);
    }
}

/* Adds the parts of the wave's segments to `to`, in their order. */
static void add_prefix_parts(const struct backward_plan *plan, const float *parts, float *to) {
    const struct attention *a = plan->a;
    int64_t count = a->prefix * a->kv_heads * a->head_size;
    for (int64_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (int64_t s = plan->first; s < plan->end; s++)
            sum += a->segment_start[s + 1] > a->segment_start[s] ? parts[(s - plan->first) * count + i] : 0.0f;
        to[i] += sum;
    }
}

static void wave_backward(const struct backward_plan *plan, int threads) {
    const struct attention *a = plan->a;
    int slots = 0;
#pragma omp parallel num_threads(threads)
    {
        int slot;
#pragma omp atomic capture
        slot = slots++;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (plan->end - plan->first) * a->kv_heads; i++)
            group_backward(plan, i, &plan->scratch[slot]);
    }
    if (plan->dprefix_k)
        add_prefix_parts(plan, plan->dprefix_k, a->dprefix_k);
    if (plan->dprefix_v)
        add_prefix_parts(plan, plan->dprefix_v, a->dprefix_v);
}

LEVEL_WORKSPACE(attention_backward, attention) {
    struct attention whole = *a;
    whole.segment_start = NULL;
    whole.segments = 0;
    return backward_plan(&whole, device->threads, NULL).bytes;
}

LEVEL_OP(attention_backward, attention) {
    TRY(check_call(a));
    int threads = exec_threads(exec);
    TRY(attention_check_workspace(exec, backward_plan(a, threads, NULL).bytes, "attention backward"));
    struct backward_plan plan = backward_plan(a, threads, exec->workspace);
    int64_t wave = plan.dprefix_k || plan.dprefix_v ? PREFIX_WAVE : a->segments;
    for (plan.first = 0; plan.first < a->segments; plan.first = plan.end) {
        plan.end = plan.first + wave < a->segments ? plan.first + wave : a->segments;
        wave_backward(&plan, threads);
    }
    return STATUS_OK;
}
