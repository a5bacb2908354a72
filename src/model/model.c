/* A model on one rank: its stage of the pipeline, its opening (first as a plan, then for real), its initial values. */
#include "model-internal.h"

#include "parallel/sync.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static void full_name(int64_t layer, const char *text, char name[PARAM_NAME_BYTES]) {
    if (layer >= 0)
        snprintf(name, PARAM_NAME_BYTES, "layers.%lld.%s", (long long)layer, text);
    else
        snprintf(name, PARAM_NAME_BYTES, "%s", text);
}

static int find(const struct model *model, int64_t layer, const char *text) {
    char name[PARAM_NAME_BYTES];
    full_name(layer, text, name);
    int64_t rows_per_layer = model->table.count / model->options.config.num_layers;
    return param_table_find(&model->table, name, layer > 0 ? (int)(layer * rows_per_layer) : 0);
}

/* Finds a row that may be absent; if present, it follows the row that was found last. A search through all rows for
 * rows that no layer has would take quadratic time. */
static int find_after(const struct model *model, int id, int64_t layer, const char *text) {
    char name[PARAM_NAME_BYTES];
    full_name(layer, text, name);
    bool is_there = id + 1 < model->table.count && !strcmp(model->table.rows[id + 1].name, name);
    return is_there ? id + 1 : PARAM_NONE;
}

static struct linear find_linear(const struct model *model, int64_t layer, const char *weight, const char *bias,
                                 enum linear_split split) {
    struct linear linear = {.weight = find(model, layer, weight), .bias = PARAM_NONE, .split = split};
    linear.bias = find_after(model, linear.weight, layer, bias);
    linear.out = model->store.map.places[linear.weight].shape[0];
    linear.in = model->store.map.places[linear.weight].shape[1];
    return linear;
}

static struct norm_params find_norm(const struct model *model, int64_t layer, const char *gain, const char *bias) {
    int id = find(model, layer, gain);
    return (struct norm_params){id, find_after(model, id, layer, bias)};
}

static int find_parameters(struct model *model) {
    const struct model_config *c = &model->options.config;
    model->blocks = calloc((size_t)c->num_layers, sizeof *model->blocks);
    TRY(status_allocated(model->blocks));
    model->token_table = find(model, -1, "embedding.token.weight");
    model->position_table = find(model, -1, "embedding.position.weight");
    const struct norm_params none = {PARAM_NONE, PARAM_NONE};
    for (int64_t l = 0; l < c->num_layers; l++) {
        model->blocks[l] = (struct block_params){
            .norm1 = find_norm(model, l, "norm1.weight", "norm1.bias"),
            .norm2 = find_norm(model, l, "norm2.weight", "norm2.bias"),
            .q_norm = none,
            .k_norm = none,
            .qkv = find_linear(model, l, "attention.qkv.weight", "attention.qkv.bias", LINEAR_COLUMN),
            .projection = find_linear(model, l, "attention.projection.weight", "attention.projection.bias", LINEAR_ROW),
            .fc1 = find_linear(model, l, "mlp.fc1.weight", "mlp.fc1.bias", LINEAR_COLUMN),
            .fc2 = find_linear(model, l, "mlp.fc2.weight", "mlp.fc2.bias", LINEAR_ROW),
        };
        if (c->qk_layernorm) {
            model->blocks[l].q_norm = find_norm(model, l, "attention.q_norm.weight", "attention.q_norm.bias");
            model->blocks[l].k_norm = find_norm(model, l, "attention.k_norm.weight", "attention.k_norm.bias");
        }
    }
    model->final_norm = find_norm(model, -1, "final_norm.weight", "final_norm.bias");
    model->head =
        find_linear(model, -1, c->untie_embeddings_and_output_weights ? "head.weight" : "embedding.token.weight",
                    "head.bias", LINEAR_WHOLE); /* head_pass sums the ranks' results itself */
    return STATUS_OK;
}

static void mark_norm(struct model *model, const struct norm_params *norm) {
    if (norm->gain != PARAM_NONE)
        model->table.rows[norm->gain].sums_over_tensor = true;
    if (norm->bias != PARAM_NONE)
        model->table.rows[norm->bias].sums_over_tensor = true;
}

/* Tensor ranks normalise different heads, and under sequence parallelism different rows. The gradients of those norms
 * are sums over the tensor ranks. */
static void mark_norms(struct model *model) {
    bool is_cut = model->rank->is_sequence_parallel;
    for (int64_t l = 0; l < model->options.config.num_layers; l++) {
        const struct block_params *block = &model->blocks[l];
        mark_norm(model, &block->q_norm);
        mark_norm(model, &block->k_norm);
        if (is_cut) {
            mark_norm(model, &block->norm1);
            mark_norm(model, &block->norm2);
        }
    }
    if (is_cut)
        mark_norm(model, &model->final_norm);
}

/* Computes the share of this tensor rank. STATUS_USAGE when the model cannot be cut. */
static int cut(struct model *model) {
    const struct model_config *c = &model->options.config;
    int t = model->rank->place.tensor, tensors = model->rank->grid.tensor;
    if (c->num_attention_heads % tensors || (c->num_query_groups % tensors && tensors % c->num_query_groups) ||
        c->ffn_hidden_size % tensors || c->vocab_size < tensors)
        return status_fail(STATUS_USAGE,
                           "%lld heads, %lld query groups or a feed-forward width of %lld cannot be cut over %d tensor "
                           "ranks",
                           (long long)c->num_attention_heads, (long long)c->num_query_groups,
                           (long long)c->ffn_hidden_size, tensors);
    model->share.widths = model_widths(c, tensors);
    model->share.first_head = t * model->share.widths.heads;
    model->share.first_token = param_share(c->vocab_size, t, tensors);
    model->share.vocab = param_share(c->vocab_size, t + 1, tensors) - model->share.first_token;
    model->share.vocab_stride = model_vocab_stride(model->share.vocab);
    model->share.whole_vocab_stride = model_vocab_stride(c->vocab_size);
    return STATUS_OK;
}

/* ---- the stage ---- */

/* Finds the chunks that keep nothing, and the first layer of other chunks that keeps something. */
static void open_transient(struct model *model) {
    const struct model_options *o = &model->options;
    const struct model_chunk *last = &o->chunks[o->chunk_count - 1];
    bool keeps_nothing = !model_has_backward(o, last->first + last->count);
    model->kept.transient_stash = &model->kept.stashes[keeps_nothing ? 0 : o->train.stashes];
    model->kept.first_layer = model->share.lowest < last->first                 ? 0
                              : model->share.lowest < last->first + last->count ? model->share.lowest - last->first
                                                                                : model_chunk_layers(model);
}

/* Sets up the chunks of this rank, and the stashes of their activations. */
static int open_stage(struct model *model) {
    struct model_options *o = &model->options;
    int64_t layers = o->config.num_layers, end = 0;
    if (!o->chunk_count)
        o->chunks[o->chunk_count++] = (struct model_chunk){0, layers};
    o->train.stashes = o->use == MODEL_TRAIN && o->train.stashes ? o->train.stashes : 1;
    const struct model_chunk *last = &o->chunks[o->chunk_count - 1];
    model->share.has_embedding = model_has_layer(o, -1);
    model->share.has_head = last->first + last->count == layers && !o->is_before_head;
    for (int c = 0; c < o->chunk_count; c++) {
        const struct model_chunk *chunk = &o->chunks[c];
        if (chunk->first < end || chunk->count < 0 ||
            (!chunk->count && !chunk_has_embedding(model, chunk) && !chunk_has_head(model, chunk)))
            return status_fail(STATUS_INVALID, "chunks of a stage that overlap, or have no layers");
        end = chunk->first + chunk->count;
    }
    if (end > layers)
        return status_fail(STATUS_INVALID, "a stage of layer %lld in a model of %lld", (long long)end,
                           (long long)layers);
    model->share.lowest = o->use == MODEL_TRAIN ? model_lowest_layer(o) : -1;
    size_t count = (size_t)model_chunk_layers(model) + !model_chunk_layers(model); /* no array is empty */
    model->kept.stashes = calloc((size_t)o->train.stashes + 1, sizeof *model->kept.stashes);
    model->kept.saved = calloc((size_t)o->train.stashes * count, sizeof *model->kept.saved);
    model->kept.again = calloc(count, sizeof *model->kept.again);
    TRY(status_allocated(model->kept.stashes && model->kept.saved && model->kept.again));
    for (int stash = 0; stash < o->train.stashes; stash++)
        model->kept.stashes[stash].saved = model->kept.saved + (size_t)stash * count;
    open_transient(model);
    return STATUS_OK;
}

/* Marks the parameters that the stage has: those of its layers and ends. A tied head's weight is a copy if another
 * stage has the embedding. */
static int choose_parameters(struct model *model) {
    const struct model_options *o = &model->options;
    size_t count = (size_t)model->table.count;
    model->share.is_held = calloc(count, sizeof *model->share.is_held);
    model->share.is_copy = calloc(count, sizeof *model->share.is_copy);
    TRY(status_allocated(model->share.is_held && model->share.is_copy));
    for (size_t i = 0; i < count; i++) {
        int64_t layer = model->table.rows[i].layer;
        model->share.is_held[i] = layer < o->config.num_layers ? model_has_layer(o, layer) : model->share.has_head;
    }
    int token_table = find(model, -1, "embedding.token.weight");
    bool is_tied = !o->config.untie_embeddings_and_output_weights;
    if (is_tied && model->share.has_head && !model->share.has_embedding)
        model->share.is_held[token_table] = model->share.is_copy[token_table] = true;
    model->table.rows[token_table].is_linear = is_tied && model->share.has_head;
    model->table.rows[token_table].is_embedding = model->share.has_embedding;
    return STATUS_OK;
}

/* Plans a batch of `rows` rows through every chunk. */
static int plan_batch(struct model *model, int64_t rows) {
    const struct model_options *o = &model->options;
    struct device_batch *batch = &model->kept.stashes[0].batch;
    int status = STATUS_OK;
    batch->rows = batch->head.count = rows;
    batch->segments = o->train.segment_rows && rows > o->train.segment_rows ? rows / o->train.segment_rows : 1;
    batch->head.is_all = true;
    for (int c = 0; c < o->chunk_count && !status; c++) {
        struct model_pass pass = {.chunk = c, .has_dropout = true};
        status = o->use == MODEL_TRAIN ? pass_forward(model, &pass, PARAM_FORWARD, NULL, NULL)
                                       : pass_evaluate(model, c, NULL, NULL);
        if (!status && o->use == MODEL_TRAIN)
            status = pass_backward(model, &pass, NULL, NULL);
    }
    return status;
}

static int plan_rows(struct model *model, int64_t rows) {
    const struct model_options *o = &model->options;
    int64_t at_a_time = model_sizes(model)->step_rows;
    struct model_step_shape step = {.rows = rows, .logit_rows = rows, .seen = (double)o->max_positions};
    step.logit_rows = rows < o->infer.max_logit_rows ? rows : o->infer.max_logit_rows;
    step.logit_rows = step.logit_rows < at_a_time ? step.logit_rows : at_a_time;
    return o->use == MODEL_INFER ? model_plan_step(model, &step) : plan_batch(model, rows);
}

/* Plans the model's work on its gradients once for a global batch. */
static int plan_gradients(struct model *model) {
    const struct model_options *o = &model->options;
    int status = STATUS_OK;
    rank_plan_part(model->rank, WORK_GRADIENTS, 0);
    for (int c = 0; c < o->chunk_count && !status && !param_cuts_gradients(&model->store); c++)
        status = chunk_clear_gradients(model, &o->chunks[c]);
    THEN(status, gradient_sum_all_over_tensor(model->rank, &model->store));
    THEN(status, model_fp8_end_step(model, 0));
    return status ? status : model_sum_tied_gradients(model);
}

/* Plans everything that the model will run: every operation enters the rank's list of work. Only the backend knows
 * which shape needs the maximum scratch, so small batches are planned too; but only the work of the largest one counts.
 */
static int plan_work(struct model *model) {
    const struct model_options *o = &model->options;
    struct rank *rank = model->rank;
    int status = STATUS_OK;
    work_forget(&rank->work, WORK_FORWARD);
    work_forget(&rank->work, WORK_BACKWARD);
    work_forget(&rank->work, WORK_GRADIENTS);
    rank_unsure(rank, true, 1);
    for (int64_t rows = 1; rows < o->max_rows && !status; rows *= 2)
        status = plan_rows(model, rows);
    rank_unsure(rank, true, -1);
    THEN(status, plan_rows(model, o->max_rows));
    if (!status && o->use == MODEL_TRAIN)
        status = plan_gradients(model);
    rank_plan_part(rank, WORK_UPDATE, 0);
    return status;
}

static const struct storage *storage_of(const struct model_options *options) {
    return options->storage ? options->storage : options->use == MODEL_INFER ? &storage_packed : &storage_whole;
}

static int build(struct model *model, struct model_plan *plan) {
    const struct model_options *o = &model->options;
    int status = cut(model);
    THEN(status, open_stage(model));
    THEN(status, model_describe(&o->config, &model->table));
    THEN(status, choose_parameters(model));
    for (int i = 0; i < model->table.count && o->train.is_frozen; i++)
        model->table.rows[i].is_trainable = false;
    struct param_part part = {.tensor = model->rank->place.tensor,
                              .tensors = model->rank->grid.tensor,
                              .is_held = model->share.is_held,
                              .is_copy = model->share.is_copy};
    if (!status)
        status = param_store_sketch(&model->store, &(const struct param_store_options){
                                                       .table = &model->table,
                                                       .part = &part,
                                                       .device = model->rank->device,
                                                       .dtype = o->dtype,
                                                       .has_gradients = o->use == MODEL_TRAIN && !o->train.is_frozen,
                                                       .layer_shards = o->train.layer_shards,
                                                       .sharing = {.rank = model->rank,
                                                                   .kept_units = o->train.kept_units,
                                                                   .overlaps_weights = !o->train.gathers_wait,
                                                                   .overlaps_sums = !o->train.sums_wait},
                                                       .storage = storage_of(o)});
    if (!status && o->use == MODEL_TRAIN && storage_of(o)->is_forward_only)
        status = status_fail(STATUS_UNSUPPORTED, "training on weights that are held as %s: they multiply only forward",
                             storage_of(o)->name);
    THEN(status, find_parameters(model));
    THEN(status, fp8_sketch(model));
    THEN(status, block_choose_activation(model));
    if (status)
        return status;
    mark_norms(model);
    rank_plan_sharers(model->rank, o->config.num_query_groups);
    struct arena arena = ARENA_PLAN;
    model_place_activations(model, &arena);
    status = plan_work(model);
    plan->weights = param_weight_bytes(&model->store) + fp8_weight_bytes(model);
    plan->gradients = param_gradient_bytes(&model->store);
    plan->activations = arena.used;
    plan->workspace = work_scratch(&model->rank->work);
    plan->parameters = param_table_elements(&model->table, true);
    plan->all_parameters = param_table_elements(&model->table, false);
    plan->flat_elements = model->store.map.flat_elements;
    plan->table_rows = model->table.count;
    plan->transfers =
        UPLOAD_TURNS * model_upload_bytes(model) + (o->use == MODEL_INFER ? step_fetches_bytes(model) : sizeof(double));
    plan->kv_page_bytes = o->use == MODEL_INFER ? model_kv_bytes(model, 1) : 0;
    plan->stream_bytes = (size_t)model_stream_elements(model) * dtype_bytes(o->dtype);
    return status;
}

static int allocate(struct model *model, const struct model_plan *plan) {
    bool trains = model->options.use == MODEL_TRAIN;
    bool is_filled = model->options.use == MODEL_INFER || model->store.storage->needs_fill; /* by model_fill */
    int status = is_filled ? STATUS_OK : param_store_open(&model->store, NULL);
    if (!status && trains)
        status = rank_open_sharers(model->rank);
    THEN(status, head_staging_open(model));
    if (!status && (status = device_alloc(model->rank->device, plan->activations, &model->activations)))
        status_wrap(status, "activations");
    if (status)
        return status;
    struct arena arena = arena_over(model->activations, plan->activations);
    model_place_activations(model, &arena);
    status = fp8_open(model);
    THEN(status, upload_open(&model->upload, model->rank->device, model_upload_bytes(model)));
    if (!status && model->options.use == MODEL_INFER)
        status = step_open_fetches(model);
    if (!status && model->options.use != MODEL_INFER)
        status = device_host_alloc(model->rank->device, sizeof(double), &model->fetched_loss);
    THEN(status, model_upload_cleared(model));
    THEN(status, heads_upload_angles(model));
    if (!status && model->scratch.loss_sum)
        status = stream_zero(model->rank->exec.stream, model->scratch.loss_sum, sizeof *model->scratch.loss_sum);
    return status ? status : rank_allocate_workspace(model->rank);
}

int model_sketch(const struct model_options *options, struct rank *rank, struct model_plan *plan, struct model **out) {
    *out = NULL;
    struct model *model = calloc(1, sizeof *model);
    TRY(status_allocated(model));
    model->options = *options;
    model->options.max_positions = options->max_positions ? options->max_positions : model_positions(&options->config);
    model->rank = rank;
    int status = build(model, plan);
    if (status)
        model_close(model);
    else
        *out = model;
    return status;
}

int model_open(const struct model_options *options, struct rank *rank, bool only_plan, struct model_plan *plan,
               struct model **out) {
    struct model_plan own_plan;
    plan = plan ? plan : &own_plan;
    int status = model_sketch(options, rank, plan, out);
    if (!status && !only_plan)
        status = allocate(*out, plan);
    if (status || only_plan) {
        model_close(*out);
        *out = NULL;
    }
    return status;
}

void model_close(struct model *model) {
    if (!model)
        return;
    step_close_records(model);
    device_free(model->rank->device, model->activations);
    fp8_close(model);
    step_close_fetches(model);
    device_host_free(model->rank->device, model->fetched_loss);
    upload_close(&model->upload);
    head_staging_close(model);
    param_store_close(&model->store);
    param_table_free(&model->table);
    free(model->blocks);
    free(model->kept.stashes);
    free(model->kept.saved);
    free(model->kept.again);
    free(model->share.is_held);
    free(model->share.is_copy);
    free(model);
}

const struct param_table *model_table(const struct model *model) {
    return &model->table;
}

struct param_store *model_store(struct model *model) {
    return &model->store;
}

const struct model_config *model_config_of(const struct model *model) {
    return &model->options.config;
}

int model_fill(struct model *model, int (*fill)(void *context, int id), void *context) {
    struct param_fill values = {.stream = model->rank->exec.stream, .fill = fill, .context = context};
    return param_store_open(&model->store, &values);
}

int model_initialise(struct model *model, uint64_t seed) {
    return param_store_initialise(&model->store, model->rank->exec.stream, seed);
}

/* Returns the elements of a linear and its bias. */
static double linear_elements(const struct model_config *c, enum attach_place place, int64_t out, int64_t in) {
    return (double)out * (double)in + (model_has_bias(c, place) ? (double)out : 0);
}

/* Returns twice the tokens that a row sees on average: all before it, or those of the window. */
static double seen_tokens(const struct model_config *c, int64_t layer, int64_t seq_length) {
    double T = (double)seq_length, W = (double)c->window;
    return model_layer_is_full(c, layer) || W >= T ? T : W * (2 - W / T);
}

double model_flops_per_token(const struct model_config *c, int64_t seq_length) {
    struct model_widths widths = model_widths(c, 1);
    int64_t C = c->hidden_size;
    double norm = c->normalization == NORMALIZATION_LAYER ? 2 : 1, seen = 0;
    double block = linear_elements(c, ATTACH_QKV, widths.qkv, C) + linear_elements(c, ATTACH_PROJECTION, C, widths.q) +
                   linear_elements(c, ATTACH_FC1, widths.fc1, C) + linear_elements(c, ATTACH_FC2, C, widths.ffn) +
                   2 * norm * (double)C + (c->qk_layernorm ? 2 * norm * (double)widths.head : 0);
    double weights = (double)c->num_layers * block + norm * (double)C + (double)c->vocab_size * (double)C;
    for (int64_t layer = 0; layer < c->num_layers; layer++)
        seen += seen_tokens(c, layer, seq_length);
    return 6 * weights + 6 * (double)widths.q * seen;
}

double model_head_flops_per_token(const struct model_config *c) {
    return 6 * (double)c->vocab_size * (double)c->hidden_size;
}
