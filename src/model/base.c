/* A base: its stage of the pipeline, its parameters and linears, its opening (first as a sketch), its initial values.
 */
#include "model-internal.h"

/* ---- opening ---- */

static void full_name(int64_t layer, const char *text, char name[PARAM_NAME_BYTES]) {
    if (layer >= 0)
        snprintf(name, PARAM_NAME_BYTES, "layers.%lld.%s", (long long)layer, text);
    else
        snprintf(name, PARAM_NAME_BYTES, "%s", text);
}

static int find(const struct base *base, int64_t layer, const char *text) {
    char name[PARAM_NAME_BYTES];
    full_name(layer, text, name);
    int64_t rows_per_layer = base->table.count / base->options.config.num_layers;
    return param_table_find(&base->table, name, layer > 0 ? (int)(layer * rows_per_layer) : 0);
}

/* Finds a row that may be absent; if present, it follows the row that was found last. A search through all rows for
 * rows that no layer has would take quadratic time. */
static int find_after(const struct base *base, int id, int64_t layer, const char *text) {
    char name[PARAM_NAME_BYTES];
    full_name(layer, text, name);
    bool is_there = id + 1 < base->table.count && !strcmp(base->table.rows[id + 1].name, name);
    return is_there ? id + 1 : PARAM_NONE;
}

static struct linear find_linear(const struct base *base, int64_t layer, const char *weight, const char *bias,
                                 enum linear_split split) {
    struct linear linear = {.weight = find(base, layer, weight), .bias = PARAM_NONE, .split = split};
    linear.bias = find_after(base, linear.weight, layer, bias);
    linear.out = base->store.map.places[linear.weight].shape[0];
    linear.in = base->store.map.places[linear.weight].shape[1];
    return linear;
}

static struct norm_params find_norm(const struct base *base, int64_t layer, const char *gain, const char *bias) {
    int id = find(base, layer, gain);
    return (struct norm_params){id, find_after(base, id, layer, bias)};
}

static int find_parameters(struct base *base) {
    const struct model_config *c = &base->options.config;
    base->blocks = calloc((size_t)c->num_layers, sizeof *base->blocks);
    TRY(status_allocated(base->blocks));
    base->token_table = find(base, -1, "embedding.token.weight");
    base->position_table = find(base, -1, "embedding.position.weight");
    const struct norm_params none = {PARAM_NONE, PARAM_NONE};
    for (int64_t l = 0; l < c->num_layers; l++) {
        base->blocks[l] = (struct block_params){
            .norm1 = find_norm(base, l, "norm1.weight", "norm1.bias"),
            .norm2 = find_norm(base, l, "norm2.weight", "norm2.bias"),
            .q_norm = none,
            .k_norm = none,
            .qkv = find_linear(base, l, "attention.qkv.weight", "attention.qkv.bias", LINEAR_COLUMN),
            .projection = find_linear(base, l, "attention.projection.weight", "attention.projection.bias", LINEAR_ROW),
            .fc1 = find_linear(base, l, "mlp.fc1.weight", "mlp.fc1.bias", LINEAR_COLUMN),
            .fc2 = find_linear(base, l, "mlp.fc2.weight", "mlp.fc2.bias", LINEAR_ROW),
        };
        if (c->qk_layernorm) {
            base->blocks[l].q_norm = find_norm(base, l, "attention.q_norm.weight", "attention.q_norm.bias");
            base->blocks[l].k_norm = find_norm(base, l, "attention.k_norm.weight", "attention.k_norm.bias");
        }
    }
    base->final_norm = find_norm(base, -1, "final_norm.weight", "final_norm.bias");
    base->head =
        find_linear(base, -1, c->untie_embeddings_and_output_weights ? "head.weight" : "embedding.token.weight",
                    "head.bias", LINEAR_WHOLE); /* head_pass sums the ranks' results itself */
    return STATUS_OK;
}

static void mark_norm(struct base *base, const struct norm_params *norm) {
    if (norm->gain != PARAM_NONE)
        base->table.rows[norm->gain].sums_over_tensor = true;
    if (norm->bias != PARAM_NONE)
        base->table.rows[norm->bias].sums_over_tensor = true;
}

/* Tensor ranks normalise different heads, and under sequence parallelism different rows. The gradients of those norms
 * are sums over the tensor ranks. */
static void mark_norms(struct base *base) {
    bool is_cut = base->rank->is_sequence_parallel;
    for (int64_t l = 0; l < base->options.config.num_layers; l++) {
        const struct block_params *block = &base->blocks[l];
        mark_norm(base, &block->q_norm);
        mark_norm(base, &block->k_norm);
        if (is_cut) {
            mark_norm(base, &block->norm1);
            mark_norm(base, &block->norm2);
        }
    }
    if (is_cut)
        mark_norm(base, &base->final_norm);
}

/* Computes the share of this tensor rank. STATUS_USAGE when the model cannot be cut. */
static int cut(struct base *base) {
    const struct model_config *c = &base->options.config;
    int t = base->rank->place.tensor, tensors = base->rank->grid.tensor;
    if (c->num_attention_heads % tensors || (c->num_query_groups % tensors && tensors % c->num_query_groups) ||
        c->ffn_hidden_size % tensors || c->vocab_size < tensors)
        return status_fail(STATUS_USAGE,
                           "%lld heads, %lld query groups or a feed-forward width of %lld cannot be cut over %d tensor "
                           "ranks",
                           (long long)c->num_attention_heads, (long long)c->num_query_groups,
                           (long long)c->ffn_hidden_size, tensors);
    base->part.widths = model_widths(c, tensors);
    base->part.first_head = t * base->part.widths.heads;
    base->part.first_token = param_share(c->vocab_size, t, tensors);
    base->part.vocab = param_share(c->vocab_size, t + 1, tensors) - base->part.first_token;
    base->part.vocab_stride = model_vocab_stride(base->part.vocab);
    base->part.whole_vocab_stride = model_vocab_stride(c->vocab_size);
    return STATUS_OK;
}

/* ---- the stage ---- */

/* Sets up the chunks of this rank. */
static int open_stage(struct base *base) {
    struct base_options *o = &base->options;
    int64_t layers = o->config.num_layers, end = 0;
    if (!o->chunk_count)
        o->chunks[o->chunk_count++] = (struct model_chunk){0, layers};
    base->part.has_embedding = model_has_layer(o, -1);
    base->part.has_head = model_has_layer(o, layers);
    for (int c = 0; c < o->chunk_count; c++) {
        const struct model_chunk *chunk = &o->chunks[c];
        if (chunk->first < end || chunk->count < 0 ||
            (!chunk->count && !chunk_has_embedding(base, chunk) && !chunk_has_head(base, chunk)))
            return status_fail(STATUS_INVALID, "chunks of a stage that overlap, or have no layers");
        end = chunk->first + chunk->count;
    }
    return end > layers ? status_fail(STATUS_INVALID, "a stage of layer %lld in a model of %lld", (long long)end,
                                      (long long)layers)
                        : STATUS_OK;
}

/* Marks the parameters that the stage has: those of its layers and ends. A tied head's weight is a copy if another
 * stage has the embedding. */
static int choose_parameters(struct base *base) {
    const struct base_options *o = &base->options;
    size_t count = (size_t)base->table.count;
    base->part.is_held = calloc(count, sizeof *base->part.is_held);
    base->part.is_copy = calloc(count, sizeof *base->part.is_copy);
    TRY(status_allocated(base->part.is_held && base->part.is_copy));
    for (size_t i = 0; i < count; i++)
        base->part.is_held[i] = model_has_layer(o, base->table.rows[i].layer);
    int token_table = find(base, -1, "embedding.token.weight");
    bool is_tied = !o->config.untie_embeddings_and_output_weights;
    if (is_tied && base->part.has_head && !base->part.has_embedding)
        base->part.is_held[token_table] = base->part.is_copy[token_table] = true;
    base->table.rows[token_table].is_linear = is_tied && base->part.has_head;
    base->table.rows[token_table].is_embedding = base->part.has_embedding;
    return STATUS_OK;
}

static int build(struct base *base, struct model_plan *plan) {
    const struct base_options *o = &base->options;
    int status = cut(base);
    THEN(status, open_stage(base));
    THEN(status, model_describe(&o->config, &base->table));
    THEN(status, choose_parameters(base));
    for (int i = 0; i < base->table.count && !o->trains; i++)
        base->table.rows[i].is_trainable = false;
    struct param_part part = {.tensor = base->rank->place.tensor,
                              .tensors = base->rank->grid.tensor,
                              .is_held = base->part.is_held,
                              .is_copy = base->part.is_copy};
    if (!status)
        status = param_store_sketch(
            &base->store, &(const struct param_store_options){.table = &base->table,
                                                              .part = &part,
                                                              .device = base->rank->device,
                                                              .dtype = o->dtype,
                                                              .has_gradients = o->trains,
                                                              .layer_shards = o->layer_shards,
                                                              .sharing = {.rank = base->rank,
                                                                          .kept_units = o->kept_units,
                                                                          .overlaps_weights = !o->gathers_wait,
                                                                          .overlaps_sums = !o->sums_wait},
                                                              .encodings = o->encodings,
                                                              .storage = o->storage ? o->storage : &storage_whole});
    THEN(status, find_parameters(base));
    TRY(status);
    mark_norms(base);
    rank_plan_sharers(base->rank, o->config.num_query_groups);
    plan->weights += param_weight_bytes(&base->store);
    plan->gradients += param_gradient_bytes(&base->store);
    plan->parameters += param_table_elements(&base->table, true);
    plan->all_parameters += param_table_elements(&base->table, false);
    plan->flat_elements += base->store.map.flat_elements;
    plan->table_rows += base->table.count;
    return STATUS_OK;
}

int base_sketch(const struct base_options *options, struct rank *rank, struct model_plan *plan, struct base **out) {
    struct base *base = *out = calloc(1, sizeof *base);
    TRY(status_allocated(base));
    base->options = *options;
    base->rank = rank;
    return build(base, plan);
}

int base_allocate(struct base *base) {
    return base->store.storage->needs_fill ? STATUS_OK : param_store_open(&base->store, NULL);
}

int base_fill(struct base *base, struct param_fill fill) {
    fill.stream = base->rank->exec.stream;
    return param_store_open(&base->store, &fill);
}

int base_open(const struct base_options *options, struct rank *rank, struct base **base) {
    struct model_plan plan = {0};
    int status = base_sketch(options, rank, &plan, base);
    THEN(status, base_allocate(*base));
    return status ? status : rank_allocate_workspace(rank);
}

void base_close(struct base *base) {
    if (!base)
        return;
    param_store_close(&base->store);
    param_table_free(&base->table);
    free(base->blocks);
    free(base->part.is_held);
    free(base->part.is_copy);
    free(base);
}

const struct param_table *base_table(const struct base *base) {
    return &base->table;
}

struct param_store *base_store(struct base *base) {
    return &base->store;
}

const struct model_config *base_config(const struct base *base) {
    return &base->options.config;
}

int base_initialise(struct base *base, uint64_t seed) {
    return param_store_initialise(&base->store, base->rank->exec.stream, seed);
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
