/* The places of a batch's activations. The same code counts the bytes (on a planning arena) and places them, so the
 * printed plan is the allocation. */
#include "model-internal.h"

static size_t rounded(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

size_t training_upload_bytes(const struct runner *run) {
    /* tokens, positions, sample, token, labels, loss_weight, source, place, keys of the head; segment_start */
    return (head_hooks(run)->count ? 10 : 8) * rounded((size_t)run->max_rows * 4) +
           rounded((size_t)(run->max_rows + 1) * sizeof(int64_t));
}

size_t inference_upload_bytes(const struct inference_runner *inference) {
    const struct model_inference *o = &inference->options;
    const struct hook_table *hooks = inference->run.hooks;
    /* tokens, positions, sequence, cached, place; changes of the page table; logit_row, labels; sample, changes; hooks'
     */
    return 5 * rounded((size_t)inference->run.max_rows * 4) +
           rounded((size_t)(o->max_sequences * o->max_pages) * sizeof(struct id_change)) +
           2 * rounded((size_t)o->max_logit_rows * 4) + rounded((size_t)o->max_logit_rows * sizeof(struct sample_row)) +
           rounded((size_t)o->max_changes * sizeof(struct sample_change)) + (hooks ? hooks->upload.bytes : 0);
}

static size_t stream_bytes(const struct runner *run) {
    return model_stream_bytes(run, run->max_rows);
}

/* Returns the bytes of all rows, even if the rows of the stream are cut. */
static size_t whole_bytes(const struct runner *run, int64_t columns) {
    return (size_t)(run->max_rows * columns) * dtype_bytes(run->base->options.dtype);
}

enum { EVERY_LAYER = -1 };

/* True when hooks are at one of two places of `layer` (EVERY_LAYER: of any layer) in any chunk. */
static bool has_hooks(const struct runner *run, int64_t layer, enum attach_place a, enum attach_place b) {
    const struct base_options *o = &run->base->options;
    for (int c = 0; c < o->chunk_count; c++)
        for (int64_t l = 0; l < o->chunks[c].count; l++)
            if ((l == layer || layer == EVERY_LAYER) &&
                (hook_table_list(run->hooks, o->chunks[c].first + l, a)->count ||
                 hook_table_list(run->hooks, o->chunks[c].first + l, b)->count))
                return true;
    return false;
}

/* True when a norm's output is read in bf16. FP8 products do not read it; hooks at the two places do. */
static bool is_norm_read(const struct runner *run, int64_t layer, enum attach_place linear, enum attach_place after) {
    return !fp8_has_norms(run) || has_hooks(run, layer, linear, after);
}

/* The same of the activation's output. */
static bool is_activated_read(const struct runner *run, int64_t layer) {
    return !run->fp8 || has_hooks(run, layer, ATTACH_FC1, ATTACH_FC2);
}

/* Places the statistics of a norm over `count` vectors. */
static void place_statistics(const struct runner *run, struct arena *arena, size_t count, float **mean, float **rstd) {
    bool has_mean = run->base->options.config.normalization == NORMALIZATION_LAYER;
    *mean = has_mean ? arena_take(arena, count * sizeof **mean) : NULL;
    *rstd = arena_take(arena, count * sizeof **rstd);
}

/* Places queries and keys after their norms. */
static void place_heads(const struct runner *run, struct arena *arena, struct block_saved *saved) {
    const struct model_widths *widths = &run->base->part.widths;
    size_t N = (size_t)run->max_rows;
    if (!run->base->options.config.qk_layernorm)
        return;
    saved->turned = arena_take(arena, whole_bytes(run, widths->q + widths->kv));
    place_statistics(run, arena, N * (size_t)widths->heads, &saved->mean_q, &saved->rstd_q);
    place_statistics(run, arena, N * (size_t)widths->query_groups, &saved->mean_k, &saved->rstd_k);
}

/* Places everything that the forward of a block keeps, except its input. `layer` is counted within each chunk;
 * EVERY_LAYER: memory that suits every layer. `shared` is memory of all layers and stashes for results that the
 * backward recomputes or does not read; NULL without a backward. Weight gradients and hooks read the inputs of linears.
 */
static void place_saved(struct runner *run, struct arena *arena, int64_t layer, struct block_saved *saved,
                        const struct block_saved *shared) {
    size_t N = (size_t)run->max_rows, local = (size_t)rank_stream_rows(run->rank, run->max_rows);
    const struct model_widths *widths = &run->base->part.widths;
    bool is_within = shared && run->recompute.how == RECOMPUTE_SELECTIVE;
    bool is_unread = shared && !run->base->options.trains, no_norms = is_within && run->recompute.layernorm;
    bool no_norm1 = no_norms || (is_unread && !has_hooks(run, layer, ATTACH_QKV, ATTACH_AFTER_ATTENTION));
    bool no_norm2 = no_norms || (is_unread && !has_hooks(run, layer, ATTACH_FC1, ATTACH_AFTER_MLP));
    bool no_activated =
        (is_within && run->recompute.mlp_act) || (is_unread && !has_hooks(run, layer, ATTACH_FC1, ATTACH_FC2));
    if (is_norm_read(run, layer, ATTACH_QKV, ATTACH_AFTER_ATTENTION))
        saved->norm1 = no_norm1 ? shared->norm1 : arena_take(arena, stream_bytes(run));
    saved->qkv = arena_take(arena, whole_bytes(run, widths->qkv));
    place_heads(run, arena, saved);
    saved->attention = arena_take(arena, whole_bytes(run, widths->q));
    saved->middle = arena_take(arena, stream_bytes(run));
    if (is_norm_read(run, layer, ATTACH_FC1, ATTACH_AFTER_MLP))
        saved->norm2 = no_norm2 ? shared->norm2 : arena_take(arena, stream_bytes(run));
    saved->fc1 = arena_take(arena, whole_bytes(run, widths->fc1));
    if (is_activated_read(run, layer))
        saved->activated = no_activated ? shared->activated : arena_take(arena, whole_bytes(run, widths->ffn));
    place_statistics(run, arena, local, &saved->mean1, &saved->rstd1);
    place_statistics(run, arena, local, &saved->mean2, &saved->rstd2);
    saved->lse = arena_take(arena, N * (size_t)widths->heads * sizeof(float));
}

/* Places the memory that hooks keep. `layer` is counted within each chunk; the chunk whose hooks keep most decides. */
static void place_hooks(struct runner *run, struct arena *arena, int64_t layer, struct block_saved *saved) {
    const struct base_options *o = &run->base->options;
    for (int place = 0; place < ATTACH_PLACE_COUNT; place++) {
        size_t most = 0;
        for (int c = 0; c < o->chunk_count; c++) {
            bool has_layer = layer < o->chunks[c].count;
            size_t bytes =
                has_layer ? block_hook_saved_bytes(run, o->chunks[c].first + layer, (enum attach_place)place) : 0;
            most = bytes > most ? bytes : most;
        }
        saved->hooks[place] = most ? arena_take(arena, most) : NULL;
    }
}

bool model_recompute_group(const struct training_runner *training, int64_t layers, int stash, int64_t layer,
                           int64_t *first, int64_t *end) {
    const struct model_recompute *r = &training->run.recompute;
    int64_t from = training->kept.first_layer;
    bool is_partial = !training->options.partial_stashes || stash < training->options.partial_stashes;
    bool is_uniform = r->how == RECOMPUTE_UNIFORM && layer >= from;
    *first = is_uniform ? from + (layer - from) / r->num_layers * r->num_layers : layer;
    *end = is_uniform ? *first + r->num_layers : layer + 1;
    if (*end > layers)
        *end = layers;
    return r->how == RECOMPUTE_UNIFORM || (r->how == RECOMPUTE_BLOCK && (!is_partial || layer < r->num_layers));
}

bool model_keeps(const struct training_runner *training, const struct model_chunk *chunk, int stash, int64_t layer) {
    int64_t first, end;
    model_recompute_group(training, chunk->count, stash, layer, &first, &end);
    return chunk->first + end > training->run.lowest;
}

/* Places what a micro batch keeps of a chunk until its backward. Recomputed layers of all stashes share sets, one for
 * each layer of a group (*placed: their number so far); the first layer of a group keeps its input. `shared`: memory
 * for results that are recomputed within a layer. */
static void place_kept_blocks(struct training_runner *training, struct arena *arena, int stash, int64_t *placed,
                              const struct block_saved *shared) {
    int64_t layers = base_chunk_layers(training->run.base);
    for (int64_t layer = training->kept.first_layer; layer < layers; layer++) {
        struct block_saved *saved = &training->kept.stashes[stash].saved[layer];
        int64_t first, end;
        if (model_recompute_group(training, layers, stash, layer, &first, &end)) {
            if (layer - first == *placed) {
                place_saved(&training->run, arena, EVERY_LAYER, &training->kept.again[*placed], shared);
                training->kept.again[(*placed)++].x =
                    layer > first ? arena_take(arena, stream_bytes(&training->run)) : NULL;
            }
            *saved = training->kept.again[layer - first];
        } else {
            place_saved(&training->run, arena, layer, saved, shared);
            first = layer;
        }
        if (layer == first)
            saved->x = arena_take(arena, stream_bytes(&training->run));
        place_hooks(&training->run, arena, layer, saved);
    }
}

/* Places the memory of layers without a backward. They have no hooks, and only the next layer reads the result of their
 * forward. `again`: a set of recomputed layers, which is free meanwhile; NULL: there is none. */
static void place_transient_layers(struct training_runner *training, struct arena *arena,
                                   const struct block_saved *shared, const struct block_saved *again) {
    const struct base_options *o = &training->run.base->options;
    const struct model_widths *widths = &training->run.base->part.widths;
    struct block_saved set = {.norm1 = shared->norm1, .norm2 = shared->norm2, .activated = shared->activated};
    if (training->kept.transient_stash == &training->kept.stashes[training->options.stashes] &&
        !chunk_has_backward(&training->run, &o->chunks[0]))
        training->kept.transient_stash->batch.block = arena_take(arena, training_upload_bytes(&training->run));
    if (training->run.lowest <= o->chunks[0].first)
        return;
    set.qkv = again ? again->qkv : arena_take(arena, whole_bytes(&training->run, widths->qkv));
    if (again) {
        set.turned = again->turned;
        set.mean_q = again->mean_q, set.rstd_q = again->rstd_q;
        set.mean_k = again->mean_k, set.rstd_k = again->rstd_k;
    } else {
        place_heads(&training->run, arena, &set);
    }
    if (!training->run.activates_in_product)
        set.fc1 = again ? again->fc1 : arena_take(arena, whole_bytes(&training->run, widths->fc1));
    set.attention = again ? again->attention : arena_take(arena, whole_bytes(&training->run, widths->q));
    set.middle = again ? again->middle : arena_take(arena, stream_bytes(&training->run));
    for (int64_t i = 0; i < 2; i++) {
        training->kept.transient[i] = set;
        if (training->run.lowest - o->chunks[0].first > i && base_chunk_layers(training->run.base) > i)
            training->kept.transient[i].x = arena_take(arena, stream_bytes(&training->run));
    }
}

static void place_stashes(struct training_runner *training, struct arena *arena) {
    const struct model_recompute *r = &training->run.recompute;
    struct block_saved shared = {0};
    int64_t placed = 0;
    bool is_frozen = !training->run.base->options.trains;
    bool norms_are_read = is_norm_read(&training->run, EVERY_LAYER, ATTACH_QKV, ATTACH_AFTER_ATTENTION) ||
                          is_norm_read(&training->run, EVERY_LAYER, ATTACH_FC1, ATTACH_AFTER_MLP);
    if (norms_are_read && (is_frozen || (r->how == RECOMPUTE_SELECTIVE && r->layernorm))) {
        shared.norm1 = arena_take(arena, stream_bytes(&training->run));
        shared.norm2 = arena_take(arena, stream_bytes(&training->run));
    }
    if (is_activated_read(&training->run, EVERY_LAYER) && (is_frozen || (r->how == RECOMPUTE_SELECTIVE && r->mlp_act)))
        shared.activated = arena_take(arena, whole_bytes(&training->run, training->run.base->part.widths.ffn));
    for (int stash = 0; stash < training->options.stashes; stash++) {
        training->kept.stashes[stash].batch.block = arena_take(arena, training_upload_bytes(&training->run));
        place_kept_blocks(training, arena, stash, &placed, &shared);
        training->kept.stashes[stash].x_last =
            training->run.base->part.has_head ? arena_take(arena, stream_bytes(&training->run)) : NULL;
    }
    place_transient_layers(training, arena, &shared, placed > 0 ? &training->kept.again[0] : NULL);
}

/* Without a backward nothing is kept: all layers share one set, and the stream alternates between two arrays. */
static void place_transient_blocks(struct inference_runner *inference, struct arena *arena) {
    struct runner *run = &inference->run;
    struct model_stash *stash = &inference->stash;
    int64_t layers = base_chunk_layers(run->base);
    struct block_saved set = {0};
    place_saved(run, arena, 0, &set, NULL);
    void *x[] = {arena_take(arena, stream_bytes(run)), arena_take(arena, stream_bytes(run))};
    for (int64_t layer = 0; layer < layers; layer++) {
        stash->saved[layer] = set;
        stash->saved[layer].x = x[layer % 2];
        place_hooks(run, arena, layer, &stash->saved[layer]);
    }
    stash->x_last = x[layers % 2];
}

/* Places the parts of losses that tensor ranks exchange, for `rows` rows. */
static void place_parts(struct runner *run, struct arena *arena, size_t rows) {
    run->scratch.parts = arena_take(arena, (size_t)run->rank->grid.tensor * rows * sizeof *run->scratch.parts);
    run->scratch.joined = arena_take(arena, rows * sizeof *run->scratch.joined);
}

static void place_head(struct runner *run, struct arena *arena) {
    size_t N = (size_t)run->max_rows, local = (size_t)rank_stream_rows(run->rank, run->max_rows);
    size_t most = (size_t)head_rows_most(run), chunk = N < most ? N : most;
    run->scratch.final = arena_take(arena, stream_bytes(run));
    run->scratch.final_mean = arena_take(arena, local * sizeof(float));
    run->scratch.final_rstd = arena_take(arena, local * sizeof(float));
    run->scratch.losses = arena_take(arena, N * sizeof(float));
    run->scratch.loss_sum = arena_take(arena, sizeof(double));
    run->scratch.logits =
        arena_take(arena, chunk * (size_t)run->base->part.vocab_stride * dtype_bytes(head_logits_type(run)));
    run->scratch.head_hooks = head_hooks(run)->count ? arena_take(arena, head_hook_saved_bytes(run)) : NULL;
    if (run->rank->grid.tensor > 1)
        place_parts(run, arena, chunk);
}

static void place_gradients(struct training_runner *training, struct arena *arena) {
    struct runner *run = &training->run;
    const struct base_options *o = &run->base->options;
    const struct model_widths *widths = &run->base->part.widths;
    bool needs_stream = false; /* some chunk's backward ends on this rank, so its gradient needs memory here */
    if (!chunk_has_backward(run, &o->chunks[o->chunk_count - 1]))
        return;
    training->cleared.ranges = model_cleared_bytes(training) ? arena_take(arena, model_cleared_bytes(training)) : NULL;
    for (int c = 0; c < o->chunk_count; c++)
        needs_stream |= chunk_has_backward(run, &o->chunks[c]) && !model_sends_gradient(run, &o->chunks[c]);
    run->gradients.stream = needs_stream ? arena_take(arena, stream_bytes(run)) : NULL;
    size_t norm = stream_bytes(run), heads = whole_bytes(run, widths->q);
    run->gradients.norm = arena_take(arena, heads > norm ? heads : norm);
    run->gradients.qkv = arena_take(arena, whole_bytes(run, widths->qkv));
    if (o->config.qk_layernorm)
        run->gradients.turned = arena_take(arena, whole_bytes(run, widths->q + widths->kv));
    run->gradients.ffn = arena_take(arena, whole_bytes(run, widths->ffn));
    run->gradients.fc1 = o->config.swiglu ? arena_take(arena, whole_bytes(run, widths->fc1)) : run->gradients.ffn;
}

static void place_step(struct inference_runner *inference, struct arena *arena) {
    struct runner *run = &inference->run;
    const struct base *base = run->base;
    const struct model_inference *o = &inference->options;
    struct device_step *step = &inference->step;
    int64_t most = model_sizes(run)->step_rows;
    size_t wanted = (size_t)(o->max_logit_rows < most ? o->max_logit_rows : most);
    inference->stash.batch.block = arena_take(arena, inference_upload_bytes(inference));
    step->page_table = arena_take(arena, (size_t)(o->max_sequences * o->max_pages) * sizeof(int32_t));
    for (int i = 0; i < 2 && !base->part.has_head; i++)
        step->out[i] = arena_take(arena, stream_bytes(run));
    if (!base->part.has_head)
        return;
    step->results = arena_take(arena, model_results_bytes(o->max_logit_rows, true));
    if (run->rank->place.tensor == 0)
        step->masks = arena_take(arena, step_masks_bytes(inference));
    step->logits = arena_take(arena, wanted * (size_t)base->part.vocab_stride * sizeof(float));
    step->rows =
        arena_take(arena, wanted * (size_t)base->options.config.hidden_size * dtype_bytes(base->options.dtype));
    if (run->rank->grid.tensor == 1)
        return;
    place_parts(run, arena, wanted);
    if (run->rank->place.tensor > 0)
        return;
    int64_t ranks = run->rank->grid.tensor;
    int64_t widest = model_vocab_stride((base->options.config.vocab_size + ranks - 1) / ranks);
    step->whole = arena_take(arena, wanted * (size_t)base->part.whole_vocab_stride * sizeof(float));
    step->arrived = arena_take(arena, (size_t)(ranks - 1) * wanted * (size_t)widest * sizeof(float));
}

static void place_angles(struct runner *run, struct arena *arena) {
    struct model_angles *angles = &run->angles;
    angles->columns = heads_turned_columns(&run->base->options.config);
    angles->positions = run->max_positions;
    if (!angles->columns)
        return;
    size_t bytes = (size_t)(angles->positions * (angles->columns / 2)) * sizeof(float);
    angles->cos = arena_take(arena, bytes);
    angles->sin = arena_take(arena, bytes);
}

/* Places what every pass goes through, beside the blocks. */
static void place_scratch(struct runner *run, struct arena *arena) {
    int64_t C = run->base->options.config.hidden_size;
    place_angles(run, arena);
    run->scratch.branch = arena_take(arena, stream_bytes(run));
    if (run->base->part.has_embedding)
        run->scratch.virtual_rows = arena_take(arena, embedding_virtual_bytes(run));
    if (run->rank->is_sequence_parallel) {
        run->scratch.whole = arena_take(arena, whole_bytes(run, C));
        run->gradients.whole = arena_take(arena, whole_bytes(run, C));
    }
}

void training_place(struct training_runner *training, struct arena *arena) {
    place_stashes(training, arena);
    place_scratch(&training->run, arena);
    if (training->run.base->part.has_head)
        place_head(&training->run, arena);
    place_gradients(training, arena);
    fp8_place(training, arena);
}

void inference_place(struct inference_runner *inference, struct arena *arena) {
    place_transient_blocks(inference, arena);
    place_scratch(&inference->run, arena);
    place_step(inference, arena);
}
