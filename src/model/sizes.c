/* The places of a batch's activations. The same code counts the bytes (on a planning arena) and places them, so the
 * printed plan is the allocation. */
#include "model-internal.h"

static void place_batch(const struct model *model, struct arena *arena, struct device_batch *batch) {
    batch->block = model->options.use == MODEL_INFER ? NULL : arena_take(arena, model_upload_bytes(model));
}

static size_t rounded(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

size_t model_upload_bytes(const struct model *model) {
    const struct model_options *o = &model->options;
    size_t rows = rounded((size_t)o->max_rows * 4), wanted = rounded((size_t)o->infer.max_logit_rows * 4);
    if (o->use != MODEL_INFER) /* tokens, positions, sample, token, labels, loss_weight, source, place; segment_start */
        return 8 * rows + rounded((size_t)(o->max_rows + 1) * sizeof(int64_t));
    /* tokens, positions, sequence, cached, place; changes of the page table; logit_row, labels; sample, changes; hooks'
     */
    return 5 * rows + rounded((size_t)(o->infer.max_sequences * o->infer.max_pages) * sizeof(struct id_change)) +
           2 * wanted + rounded((size_t)o->infer.max_logit_rows * sizeof(struct sample_row)) +
           rounded((size_t)o->infer.max_changes * sizeof(struct sample_change)) +
           (o->hooks ? o->hooks->upload.bytes : 0);
}

static size_t stream_bytes(const struct model *model) {
    return (size_t)model_stream_elements(model) * dtype_bytes(model->options.dtype);
}

/* Returns the bytes of all rows, even if the rows of the stream are cut. */
static size_t whole_bytes(const struct model *model, int64_t columns) {
    return (size_t)(model->options.max_rows * columns) * dtype_bytes(model->options.dtype);
}

enum { EVERY_LAYER = -1 };

/* True when hooks are at one of two places of `layer` (EVERY_LAYER: of any layer) in any chunk. */
static bool has_hooks(const struct model *model, int64_t layer, enum attach_place a, enum attach_place b) {
    const struct model_options *o = &model->options;
    for (int c = 0; c < o->chunk_count; c++)
        for (int64_t l = 0; l < o->chunks[c].count; l++)
            if ((l == layer || layer == EVERY_LAYER) && (hook_table_list(o->hooks, o->chunks[c].first + l, a)->count ||
                                                         hook_table_list(o->hooks, o->chunks[c].first + l, b)->count))
                return true;
    return false;
}

/* True when a norm's output is read in bf16. FP8 products do not read it; hooks at the two places do. */
static bool is_norm_read(const struct model *model, int64_t layer, enum attach_place linear, enum attach_place after) {
    return !fp8_has_norms(model) || has_hooks(model, layer, linear, after);
}

/* The same of the activation's output. */
static bool is_activated_read(const struct model *model, int64_t layer) {
    return !model->fp8.linears || has_hooks(model, layer, ATTACH_FC1, ATTACH_FC2);
}

/* Places the statistics of a norm over `count` vectors. */
static void place_statistics(const struct model *model, struct arena *arena, size_t count, float **mean, float **rstd) {
    bool has_mean = model->options.config.normalization == NORMALIZATION_LAYER;
    *mean = has_mean ? arena_take(arena, count * sizeof **mean) : NULL;
    *rstd = arena_take(arena, count * sizeof **rstd);
}

/* Places queries and keys after their norms. */
static void place_heads(const struct model *model, struct arena *arena, struct block_saved *saved) {
    const struct model_widths *widths = &model->share.widths;
    size_t N = (size_t)model->options.max_rows;
    if (!model->options.config.qk_layernorm)
        return;
    saved->turned = arena_take(arena, whole_bytes(model, widths->q + widths->kv));
    place_statistics(model, arena, N * (size_t)widths->heads, &saved->mean_q, &saved->rstd_q);
    place_statistics(model, arena, N * (size_t)widths->query_groups, &saved->mean_k, &saved->rstd_k);
}

/* Places everything that the forward of a block keeps, except its input. `layer` is counted within each chunk;
 * EVERY_LAYER: memory that suits every layer. `shared` is memory of all layers and stashes for results that the
 * backward recomputes or does not read; NULL without a backward. Weight gradients and hooks read the inputs of linears.
 */
static void place_saved(struct model *model, struct arena *arena, int64_t layer, struct block_saved *saved,
                        const struct block_saved *shared) {
    const struct model_options *o = &model->options;
    size_t N = (size_t)o->max_rows, local = (size_t)rank_stream_rows(model->rank, o->max_rows);
    const struct model_widths *widths = &model->share.widths;
    bool is_within = shared && o->train.recompute.how == RECOMPUTE_SELECTIVE;
    bool is_unread = shared && o->train.is_frozen, no_norms = is_within && o->train.recompute.layernorm;
    bool no_norm1 = no_norms || (is_unread && !has_hooks(model, layer, ATTACH_QKV, ATTACH_AFTER_ATTENTION));
    bool no_norm2 = no_norms || (is_unread && !has_hooks(model, layer, ATTACH_FC1, ATTACH_AFTER_MLP));
    bool no_activated =
        (is_within && o->train.recompute.mlp_act) || (is_unread && !has_hooks(model, layer, ATTACH_FC1, ATTACH_FC2));
    if (is_norm_read(model, layer, ATTACH_QKV, ATTACH_AFTER_ATTENTION))
        saved->norm1 = no_norm1 ? shared->norm1 : arena_take(arena, stream_bytes(model));
    saved->qkv = arena_take(arena, whole_bytes(model, widths->qkv));
    place_heads(model, arena, saved);
    saved->attention = arena_take(arena, whole_bytes(model, widths->q));
    saved->middle = arena_take(arena, stream_bytes(model));
    if (is_norm_read(model, layer, ATTACH_FC1, ATTACH_AFTER_MLP))
        saved->norm2 = no_norm2 ? shared->norm2 : arena_take(arena, stream_bytes(model));
    saved->fc1 = arena_take(arena, whole_bytes(model, widths->fc1));
    if (is_activated_read(model, layer))
        saved->activated = no_activated ? shared->activated : arena_take(arena, whole_bytes(model, widths->ffn));
    place_statistics(model, arena, local, &saved->mean1, &saved->rstd1);
    place_statistics(model, arena, local, &saved->mean2, &saved->rstd2);
    saved->lse = arena_take(arena, N * (size_t)widths->heads * sizeof(float));
}

/* Places the memory that hooks keep. `layer` is counted within each chunk; the chunk whose hooks keep most decides. */
static void place_hooks(struct model *model, struct arena *arena, int64_t layer, struct block_saved *saved) {
    const struct model_options *o = &model->options;
    for (int place = 0; place < ATTACH_PLACE_COUNT; place++) {
        size_t most = 0;
        for (int c = 0; c < o->chunk_count; c++) {
            bool has_layer = layer < o->chunks[c].count;
            size_t bytes =
                has_layer ? block_hook_saved_bytes(model, o->chunks[c].first + layer, (enum attach_place)place) : 0;
            most = bytes > most ? bytes : most;
        }
        saved->hooks[place] = most ? arena_take(arena, most) : NULL;
    }
}

bool model_recompute_group(const struct model *model, int64_t layers, int stash, int64_t layer, int64_t *first,
                           int64_t *end) {
    const struct model_recompute *r = &model->options.train.recompute;
    int64_t from = model->kept.first_layer;
    bool is_partial = !model->options.train.partial_stashes || stash < model->options.train.partial_stashes;
    bool is_uniform = r->how == RECOMPUTE_UNIFORM && layer >= from;
    *first = is_uniform ? from + (layer - from) / r->num_layers * r->num_layers : layer;
    *end = is_uniform ? *first + r->num_layers : layer + 1;
    if (*end > layers)
        *end = layers;
    return r->how == RECOMPUTE_UNIFORM || (r->how == RECOMPUTE_BLOCK && (!is_partial || layer < r->num_layers));
}

bool model_keeps(const struct model *model, const struct model_chunk *chunk, int stash, int64_t layer) {
    int64_t first, end;
    model_recompute_group(model, chunk->count, stash, layer, &first, &end);
    return chunk->first + end > model->share.lowest;
}

/* Places what a micro batch keeps of a chunk until its backward. Recomputed layers of all stashes share sets, one for
 * each layer of a group (*placed: their number so far); the first layer of a group keeps its input. `shared`: memory
 * for results that are recomputed within a layer. */
static void place_kept_blocks(struct model *model, struct arena *arena, int stash, int64_t *placed,
                              const struct block_saved *shared) {
    int64_t layers = model_chunk_layers(model);
    for (int64_t layer = model->kept.first_layer; layer < layers; layer++) {
        struct block_saved *saved = &model->kept.stashes[stash].saved[layer];
        int64_t first, end;
        if (model_recompute_group(model, layers, stash, layer, &first, &end)) {
            if (layer - first == *placed) {
                place_saved(model, arena, EVERY_LAYER, &model->kept.again[*placed], shared);
                model->kept.again[(*placed)++].x = layer > first ? arena_take(arena, stream_bytes(model)) : NULL;
            }
            *saved = model->kept.again[layer - first];
        } else {
            place_saved(model, arena, layer, saved, shared);
            first = layer;
        }
        if (layer == first)
            saved->x = arena_take(arena, stream_bytes(model));
        place_hooks(model, arena, layer, saved);
    }
}

/* Places the memory of layers without a backward. They have no hooks, and only the next layer reads the result of their
 * forward. `again`: a set of recomputed layers, which is free meanwhile; NULL: there is none. */
static void place_transient_layers(struct model *model, struct arena *arena, const struct block_saved *shared,
                                   const struct block_saved *again) {
    const struct model_options *o = &model->options;
    const struct model_widths *widths = &model->share.widths;
    struct block_saved set = {.norm1 = shared->norm1, .norm2 = shared->norm2, .activated = shared->activated};
    if (model->kept.transient_stash == &model->kept.stashes[o->train.stashes] &&
        !model_has_backward(o, o->chunks[0].first + o->chunks[0].count))
        place_batch(model, arena, &model->kept.transient_stash->batch);
    if (model->share.lowest <= o->chunks[0].first)
        return;
    set.qkv = again ? again->qkv : arena_take(arena, whole_bytes(model, widths->qkv));
    if (again) {
        set.turned = again->turned;
        set.mean_q = again->mean_q, set.rstd_q = again->rstd_q;
        set.mean_k = again->mean_k, set.rstd_k = again->rstd_k;
    } else {
        place_heads(model, arena, &set);
    }
    if (!model->share.activates_in_product)
        set.fc1 = again ? again->fc1 : arena_take(arena, whole_bytes(model, widths->fc1));
    set.attention = again ? again->attention : arena_take(arena, whole_bytes(model, widths->q));
    set.middle = again ? again->middle : arena_take(arena, stream_bytes(model));
    for (int64_t i = 0; i < 2; i++) {
        model->kept.transient[i] = set;
        if (model->share.lowest - o->chunks[0].first > i && model_chunk_layers(model) > i)
            model->kept.transient[i].x = arena_take(arena, stream_bytes(model));
    }
}

static void place_stashes(struct model *model, struct arena *arena) {
    const struct model_recompute *r = &model->options.train.recompute;
    struct block_saved shared = {0};
    int64_t placed = 0;
    bool is_frozen = model->options.train.is_frozen;
    bool norms_are_read = is_norm_read(model, EVERY_LAYER, ATTACH_QKV, ATTACH_AFTER_ATTENTION) ||
                          is_norm_read(model, EVERY_LAYER, ATTACH_FC1, ATTACH_AFTER_MLP);
    if (norms_are_read && (is_frozen || (r->how == RECOMPUTE_SELECTIVE && r->layernorm))) {
        shared.norm1 = arena_take(arena, stream_bytes(model));
        shared.norm2 = arena_take(arena, stream_bytes(model));
    }
    if (is_activated_read(model, EVERY_LAYER) && (is_frozen || (r->how == RECOMPUTE_SELECTIVE && r->mlp_act)))
        shared.activated = arena_take(arena, whole_bytes(model, model->share.widths.ffn));
    for (int stash = 0; stash < model->options.train.stashes; stash++) {
        place_batch(model, arena, &model->kept.stashes[stash].batch);
        place_kept_blocks(model, arena, stash, &placed, &shared);
        model->kept.stashes[stash].x_last = model->share.has_head ? arena_take(arena, stream_bytes(model)) : NULL;
    }
    place_transient_layers(model, arena, &shared, placed > 0 ? &model->kept.again[0] : NULL);
}

/* Without a backward nothing is kept: all layers share one set, and the stream alternates between two arrays. */
static void place_transient_blocks(struct model *model, struct arena *arena) {
    struct model_stash *stash = &model->kept.stashes[0];
    int64_t layers = model_chunk_layers(model);
    struct block_saved set = {0};
    place_batch(model, arena, &stash->batch);
    place_saved(model, arena, 0, &set, NULL);
    void *x[] = {arena_take(arena, stream_bytes(model)), arena_take(arena, stream_bytes(model))};
    for (int64_t layer = 0; layer < layers; layer++) {
        stash->saved[layer] = set;
        stash->saved[layer].x = x[layer % 2];
        place_hooks(model, arena, layer, &stash->saved[layer]);
    }
    stash->x_last = x[layers % 2];
}

/* Places the parts of losses that tensor ranks exchange, for `rows` rows. */
static void place_parts(struct model *model, struct arena *arena, size_t rows) {
    model->scratch.parts = arena_take(arena, (size_t)model->rank->grid.tensor * rows * sizeof *model->scratch.parts);
    model->scratch.joined = arena_take(arena, rows * sizeof *model->scratch.joined);
}

static void place_head(struct model *model, struct arena *arena) {
    const struct model_options *o = &model->options;
    size_t N = (size_t)o->max_rows, local = (size_t)rank_stream_rows(model->rank, o->max_rows);
    size_t most = (size_t)model_sizes(model)->head_rows, chunk = N < most ? N : most;
    model->scratch.final = arena_take(arena, stream_bytes(model));
    model->scratch.final_mean = arena_take(arena, local * sizeof(float));
    model->scratch.final_rstd = arena_take(arena, local * sizeof(float));
    model->scratch.losses = arena_take(arena, N * sizeof(float));
    model->scratch.loss_sum = arena_take(arena, sizeof(double));
    model->scratch.logits = arena_take(arena, chunk * (size_t)model->share.vocab_stride * dtype_bytes(o->dtype));
    if (model->rank->grid.tensor > 1)
        place_parts(model, arena, chunk);
}

static void place_gradients(struct model *model, struct arena *arena) {
    const struct model_options *o = &model->options;
    const struct model_chunk *last = &o->chunks[o->chunk_count - 1];
    bool needs_stream = false; /* some chunk's backward ends on this rank, so its gradient needs memory here */
    if (!model_has_backward(o, last->first + last->count))
        return;
    model->cleared.ranges = model_cleared_bytes(model) ? arena_take(arena, model_cleared_bytes(model)) : NULL;
    for (int c = 0; c < o->chunk_count; c++)
        needs_stream |= model_has_backward(o, o->chunks[c].first + o->chunks[c].count) &&
                        !model_sends_gradient(model, &o->chunks[c]);
    model->gradients.stream = needs_stream ? arena_take(arena, stream_bytes(model)) : NULL;
    size_t norm = stream_bytes(model), heads = whole_bytes(model, model->share.widths.q);
    model->gradients.norm = arena_take(arena, heads > norm ? heads : norm);
    model->gradients.qkv = arena_take(arena, whole_bytes(model, model->share.widths.qkv));
    if (o->config.qk_layernorm)
        model->gradients.turned = arena_take(arena, whole_bytes(model, model->share.widths.q + model->share.widths.kv));
    model->gradients.ffn = arena_take(arena, whole_bytes(model, model->share.widths.ffn));
    model->gradients.fc1 =
        o->config.swiglu ? arena_take(arena, whole_bytes(model, model->share.widths.fc1)) : model->gradients.ffn;
}

static void place_step(struct model *model, struct arena *arena) {
    const struct model_options *o = &model->options;
    struct device_step *step = &model->step;
    int64_t most = model_sizes(model)->step_rows;
    size_t wanted = (size_t)(o->infer.max_logit_rows < most ? o->infer.max_logit_rows : most);
    step->block = arena_take(arena, model_upload_bytes(model));
    step->page_table = arena_take(arena, (size_t)(o->infer.max_sequences * o->infer.max_pages) * sizeof(int32_t));
    for (int i = 0; i < 2 && !model->share.has_head; i++)
        step->out[i] = arena_take(arena, stream_bytes(model));
    if (!model->share.has_head)
        return;
    step->results = arena_take(arena, model_results_bytes(o->infer.max_logit_rows, true));
    step->logits = arena_take(arena, wanted * (size_t)model->share.vocab_stride * sizeof(float));
    step->rows = arena_take(arena, wanted * (size_t)o->config.hidden_size * dtype_bytes(o->dtype));
    if (model->rank->grid.tensor == 1)
        return;
    place_parts(model, arena, wanted);
    if (model->rank->place.tensor > 0)
        return;
    int64_t widest =
        model_vocab_stride((o->config.vocab_size + model->rank->grid.tensor - 1) / model->rank->grid.tensor);
    step->whole = arena_take(arena, wanted * (size_t)model->share.whole_vocab_stride * sizeof(float));
    size_t others = (size_t)model->rank->grid.tensor - 1;
    step->arrived = arena_take(arena, others * wanted * (size_t)widest * sizeof(float));
}

static void place_angles(struct model *model, struct arena *arena) {
    struct model_angles *angles = &model->angles;
    angles->columns = heads_turned_columns(&model->options.config);
    angles->positions = model->options.max_positions;
    if (!angles->columns)
        return;
    size_t bytes = (size_t)(angles->positions * (angles->columns / 2)) * sizeof(float);
    angles->cos = arena_take(arena, bytes);
    angles->sin = arena_take(arena, bytes);
}

void model_place_activations(struct model *model, struct arena *arena) {
    const struct model_options *o = &model->options;
    if (o->use == MODEL_TRAIN)
        place_stashes(model, arena);
    else
        place_transient_blocks(model, arena);
    place_angles(model, arena);
    model->scratch.branch = arena_take(arena, stream_bytes(model));
    if (model->share.has_embedding)
        model->scratch.virtual_rows = arena_take(arena, embedding_virtual_bytes(model));
    if (model->rank->is_sequence_parallel) {
        model->scratch.whole = arena_take(arena, whole_bytes(model, o->config.hidden_size));
        model->gradients.whole = arena_take(arena, whole_bytes(model, o->config.hidden_size));
    }
    if (o->use == MODEL_INFER)
        place_step(model, arena);
    else if (model->share.has_head)
        place_head(model, arena);
    if (o->use == MODEL_TRAIN)
        place_gradients(model, arena);
    fp8_place(model, arena);
}
