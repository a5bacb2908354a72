/* A model on one rank: opening (first as a plan, then for real), initial values, one micro batch forward and backward.
 */
#include "model-internal.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB_STRIDE_MULTIPLE = 64 };

/* ---- opening ---- */

static int find(const struct model *model, int64_t layer, const char *text) {
    char name[PARAM_NAME_BYTES];
    if (layer >= 0)
        snprintf(name, sizeof name, "layers.%lld.%s", (long long)layer, text);
    else
        snprintf(name, sizeof name, "%s", text);
    int64_t rows_per_layer = model->table.count / model->options.config.num_layers;
    return param_table_find(&model->table, name, layer > 0 ? (int)(layer * rows_per_layer) : 0);
}

static struct linear find_linear(const struct model *model, int64_t layer, const char *weight, const char *bias,
                                 enum linear_split split) {
    struct linear linear = {.weight = find(model, layer, weight), .bias = find(model, layer, bias), .split = split};
    linear.out = model->store.shape[linear.weight][0];
    linear.in = model->store.shape[linear.weight][1];
    return linear;
}

static int find_parameters(struct model *model) {
    const struct model_config *c = &model->options.config;
    model->blocks = calloc((size_t)c->num_layers, sizeof *model->blocks);
    model->saved = calloc((size_t)c->num_layers, sizeof *model->saved);
    if (!model->blocks || !model->saved)
        return status_fail(STATUS_MEMORY, "out of memory");
    model->token_table = find(model, -1, "embedding.token.weight");
    model->position_table = find(model, -1, "embedding.position.weight");
    for (int64_t l = 0; l < c->num_layers; l++)
        model->blocks[l] = (struct block_params){
            .norm1 = {find(model, l, "norm1.weight"), find(model, l, "norm1.bias")},
            .norm2 = {find(model, l, "norm2.weight"), find(model, l, "norm2.bias")},
            .qkv = find_linear(model, l, "attention.qkv.weight", "attention.qkv.bias", LINEAR_COLUMN),
            .projection = find_linear(model, l, "attention.projection.weight", "attention.projection.bias", LINEAR_ROW),
            .fc1 = find_linear(model, l, "mlp.fc1.weight", "mlp.fc1.bias", LINEAR_COLUMN),
            .fc2 = find_linear(model, l, "mlp.fc2.weight", "mlp.fc2.bias", LINEAR_ROW),
        };
    model->final_norm = (struct norm_params){find(model, -1, "final_norm.weight"), find(model, -1, "final_norm.bias")};
    model->head =
        find_linear(model, -1, c->untie_embeddings_and_output_weights ? "head.weight" : "embedding.token.weight",
                    "head.bias", LINEAR_WHOLE); /* head_pass itself sums what its ranks make */
    return STATUS_OK;
}

/* The share of this tensor rank. */
static int cut(struct model *model) {
    const struct model_config *c = &model->options.config;
    int t = model->rank->place.tensor, tensors = model->rank->grid.tensor;
    if (c->num_attention_heads % tensors || c->num_query_groups % tensors || c->ffn_hidden_size % tensors ||
        c->vocab_size < tensors)
        return status_fail(STATUS_USAGE,
                           "%lld heads, %lld query groups or a feed-forward width of %lld cannot be cut over %d tensor "
                           "ranks",
                           (long long)c->num_attention_heads, (long long)c->num_query_groups,
                           (long long)c->ffn_hidden_size, tensors);
    model->heads = c->num_attention_heads / tensors;
    model->first_head = t * model->heads;
    model->query_groups = c->num_query_groups / tensors;
    model->ffn = c->ffn_hidden_size / tensors;
    model->first_token = param_share(c->vocab_size, t, tensors);
    model->vocab = param_share(c->vocab_size, t + 1, tensors) - model->first_token;
    model->qkv = (model->heads + 2 * model->query_groups) * (c->hidden_size / c->num_attention_heads);
    model->vocab_stride = (model->vocab + VOCAB_STRIDE_MULTIPLE - 1) / VOCAB_STRIDE_MULTIPLE * VOCAB_STRIDE_MULTIPLE;
    model->whole_vocab_stride =
        (c->vocab_size + VOCAB_STRIDE_MULTIPLE - 1) / VOCAB_STRIDE_MULTIPLE * VOCAB_STRIDE_MULTIPLE;
    return STATUS_OK;
}

static int run_step(struct model *model, int64_t rows, const struct model_pass *pass, bool train);

/* Runs what the model will run, on nothing: every operation notes the scratch that it needs. Which shape needs most is
 * the backend's secret, so small batches are planned as well as the largest. */
static int plan_workspace(struct model *model) {
    const struct model_options *o = &model->options;
    int64_t start[2] = {0, 0};
    int status = STATUS_OK;
    model->batch.segments = 1;
    model->batch.segment_start = start;
    for (int64_t rows = 1; !status; rows = rows * 2 < o->max_rows ? rows * 2 : o->max_rows) {
        start[1] = rows;
        struct model_pass pass = {.has_dropout = true};
        if (o->use == MODEL_INFER)
            status = model_plan_step(model, rows);
        else
            status = run_step(model, rows, &pass, o->use == MODEL_TRAIN);
        if (rows == o->max_rows)
            break;
    }
    model->batch.segment_start = NULL;
    return status;
}

static int build(struct model *model, struct model_plan *plan) {
    const struct model_options *o = &model->options;
    struct param_part part = {.tensor = model->rank->place.tensor, .tensors = model->rank->grid.tensor};
    int status = cut(model);
    if (!status)
        status = gpt2_describe(&o->config, &model->table);
    if (!status)
        status = param_store_sketch(&model->store,
                                    &(const struct param_store_options){.table = &model->table,
                                                                        .part = &part,
                                                                        .device = model->rank->device,
                                                                        .dtype = o->dtype,
                                                                        .has_gradients = o->use == MODEL_TRAIN,
                                                                        .layer_shards = o->layer_shards,
                                                                        .will_pack = o->use == MODEL_INFER});
    if (!status)
        status = find_parameters(model);
    if (status)
        return status;
    struct arena arena = ARENA_PLAN;
    model_place_activations(model, &arena);
    status = plan_workspace(model);
    plan->weights = o->use == MODEL_INFER ? param_packed_bytes(&model->store) : param_weight_bytes(&model->store);
    plan->gradients = param_gradient_bytes(&model->store);
    plan->activations = arena.used;
    plan->workspace = model->rank->workspace_needed;
    plan->parameters = param_table_elements(&model->table, true);
    plan->flat_elements = model->store.flat_elements;
    return status;
}

static int allocate(struct model *model, const struct model_plan *plan) {
    int status = param_store_open(&model->store);
    if (!status && (status = device_alloc(model->rank->device, plan->activations, &model->activations)))
        status_wrap(status, "activations");
    if (status)
        return status;
    struct arena arena = arena_over(model->activations, plan->activations);
    model_place_activations(model, &arena);
    return rank_allocate_workspace(model->rank);
}

int model_open(const struct model_options *options, struct rank *rank, bool only_plan, struct model_plan *plan,
               struct model **out) {
    struct model_plan own_plan;
    plan = plan ? plan : &own_plan;
    *out = NULL;
    struct model *model = calloc(1, sizeof *model);
    if (!model)
        return status_fail(STATUS_MEMORY, "out of memory");
    model->options = *options;
    model->rank = rank;
    int status = build(model, plan);
    if (!status && !only_plan)
        status = allocate(model, plan);
    if (status || only_plan)
        model_close(model);
    else
        *out = model;
    return status;
}

void model_close(struct model *model) {
    if (!model)
        return;
    device_free(model->rank->device, model->activations);
    param_store_close(&model->store);
    param_table_free(&model->table);
    free(model->blocks);
    free(model->saved);
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

int model_pack(struct model *model) {
    return param_store_pack(&model->store, model->rank->exec.stream);
}

/* ---- initial values ---- */

enum { INITIAL_CHUNK = 1 << 20 };

/* Elements [first, first + count) of the whole parameter to the flat array from `at` on. `values` has a chunk's floats,
 * and behind them room for their bf16. */
static int initialise_run(struct model *model, const struct param *row, uint64_t seed, int64_t first, int64_t count,
                          int64_t at, float *values) {
    struct param_store *store = &model->store;
    size_t width = dtype_bytes(store->dtype);
    int status = STATUS_OK;
    for (int64_t done = 0; done < count && !status; done += INITIAL_CHUNK) {
        int64_t part = count - done < INITIAL_CHUNK ? count - done : INITIAL_CHUNK;
        param_initial_values(row, seed, first + done, part, values);
        uint16_t *rounded = (uint16_t *)(values + INITIAL_CHUNK);
        for (int64_t j = 0; j < part && store->dtype == DTYPE_BF16; j++)
            rounded[j] = bf16_from_float(values[j]);
        const void *source = store->dtype == DTYPE_BF16 ? (const void *)rounded : values;
        status = stream_copy_to_device(model->rank->exec.stream, (char *)store->weights + (size_t)(at + done) * width,
                                       source, (size_t)part * width);
        if (!status)
            status = stream_wait(model->rank->exec.stream);
    }
    return status;
}

int model_initialise(struct model *model, uint64_t seed) {
    const struct param_store *store = &model->store;
    float *values = malloc(INITIAL_CHUNK * (sizeof(float) + sizeof(uint16_t)));
    int status = values ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < model->table.count && !status; i++) {
        const struct param *row = &model->table.rows[i];
        struct param_rect rects[PARAM_MAX_SLICES];
        int count = param_part_rects(&store->part, store->table, i, rects);
        for (int r = 0; r < count && !status; r++) {
            bool is_whole = rects[r].columns == row->shape[1];
            int64_t runs = is_whole ? 1 : rects[r].rows, run = rects[r].columns * (is_whole ? rects[r].rows : 1);
            int64_t first = rects[r].row * row->shape[1] + rects[r].column;
            int64_t at = store->offset[i] + rects[r].local_row * rects[r].columns;
            for (int64_t j = 0; j < runs && !status; j++)
                status = initialise_run(model, row, seed, first + j * row->shape[1], run, at + j * run, values);
        }
    }
    free(values);
    return status;
}

double model_flops_per_token(const struct model_config *c, int64_t seq_length) {
    double C = (double)c->hidden_size, F = (double)c->ffn_hidden_size, V = (double)c->vocab_size;
    double block = 4 * C * C + 3 * C + C + 2 * C * F + F + C + 4 * C; /* qkv, projection, fc1, fc2, norms */
    double weights = (double)c->num_layers * block + 2 * C + V * C;
    return 6 * weights + 6 * (double)c->num_layers * C * (double)seq_length;
}

/* ---- a micro batch ---- */

static int upload(struct model *model, const struct model_batch *batch) {
    const struct model_options *o = &model->options;
    if (batch->rows < 1 || batch->rows > o->max_rows)
        return status_fail(STATUS_INVALID, "a batch of %lld rows in a model opened for %lld", (long long)batch->rows,
                           (long long)o->max_rows);
    for (int64_t i = 0; i < batch->rows; i++) {
        if (batch->tokens[i] < 0 || batch->tokens[i] >= o->config.vocab_size || batch->labels[i] < 0 ||
            batch->labels[i] >= o->config.vocab_size)
            return status_fail(STATUS_INVALID, "row %lld: token %d or label %d is not in the vocabulary of %lld",
                               (long long)i, batch->tokens[i], batch->labels[i], (long long)o->config.vocab_size);
        if (batch->positions[i] < 0 || batch->positions[i] >= o->config.max_position_embeddings)
            return status_fail(STATUS_INVALID, "row %lld: position %d of a model with %lld", (long long)i,
                               batch->positions[i], (long long)o->config.max_position_embeddings);
    }
    struct device_batch *device = &model->batch;
    device->rows = batch->rows;
    device->segments = batch->segments;
    device->segment_start = batch->segment_start;
    const void *from[] = {batch->tokens, batch->positions, batch->sample,
                          batch->token,  batch->labels,    batch->loss_weight};
    void *to[] = {device->tokens, device->positions, device->sample,
                  device->token,  device->labels,    device->loss_weight};
    int status = STATUS_OK;
    for (int i = 0; i < 6 && !status; i++)
        status = stream_copy_to_device(model->rank->exec.stream, to[i], from[i], (size_t)batch->rows * 4);
    return status;
}

/* Weight gradients of linears are overwritten by the first micro batch; all others only ever add. */
static int clear_gradients(struct model *model) {
    const struct param_store *store = &model->store;
    int status = STATUS_OK;
    for (int i = 0; i < model->table.count && !status && !model->rank->is_planning; i++) {
        float *gradient = param_gradient(store, i);
        if (gradient && !model->table.rows[i].is_linear)
            status =
                stream_zero(model->rank->exec.stream, gradient, (size_t)param_local_elements(store, i) * sizeof(float));
    }
    return status;
}

static struct block_pass block_pass_of(struct model *model, int64_t layer, int64_t rows, const struct model_pass *pass,
                                       const struct hook_segment *segment) {
    bool is_last = layer + 1 == model->options.config.num_layers;
    return (struct block_pass){
        .model = model,
        .layer = layer,
        .saved = &model->saved[layer],
        .out = is_last ? model->x_last : model->saved[layer + 1].x,
        .rows = rows,
        .has_dropout = pass->has_dropout,
        .overwrite_gradients = pass->is_first_micro_batch,
        .segments = segment,
        .segment_count = 1,
    };
}

static int run_blocks(struct model *model, int64_t rows, const struct model_pass *pass) {
    struct hook_segment segment = {.rows = rows};
    int status = embedding_pass_forward(model, rows, pass->has_dropout, model->saved[0].x);
    for (int64_t layer = 0; layer < model->options.config.num_layers && !status; layer++) {
        struct block_pass block = block_pass_of(model, layer, rows, pass, &segment);
        status = block_forward(&block);
    }
    return status;
}

/* Before the backward of `layer`: the forward of its group, if the last layer of one that kept its input alone. The
 * last group of all is still as the forward left it. */
static int run_again(struct model *model, int64_t layer, int64_t rows, const struct model_pass *pass) {
    struct hook_segment segment = {.rows = rows};
    int64_t first, end, next_first, next_end;
    int status = STATUS_OK;
    if (!model_recompute_group(model, layer, &first, &end) || layer + 1 != end ||
        end == model->options.config.num_layers || !model_recompute_group(model, end, &next_first, &next_end))
        return STATUS_OK;
    for (int64_t again = first; again < end && !status; again++) {
        struct block_pass block = block_pass_of(model, again, rows, pass, &segment);
        block.is_again = again + 1 == end;
        status = block_forward(&block);
    }
    return status;
}

/* The gradients of a layer are what they will be. */
static int layer_done(struct model *model, const struct model_pass *pass, int64_t layer) {
    int status = pass->is_last_micro_batch && layer >= 0 ? norm_gradients_sum(model, layer) : STATUS_OK;
    return !status && pass->layer_done ? pass->layer_done(pass->context, (int)layer) : status;
}

static int run_step(struct model *model, int64_t rows, const struct model_pass *pass, bool train) {
    struct hook_segment segment = {.rows = rows};
    int status = train && pass->is_first_micro_batch ? clear_gradients(model) : STATUS_OK;
    if (!status)
        status = run_blocks(model, rows, pass);
    if (!status)
        status = head_pass(model, rows, train, pass->is_first_micro_batch);
    if (!status && train)
        status = layer_done(model, pass, model->options.config.num_layers);
    for (int64_t layer = model->options.config.num_layers - 1; layer >= 0 && train && !status; layer--) {
        struct block_pass block = block_pass_of(model, layer, rows, pass, &segment);
        status = run_again(model, layer, rows, pass);
        if (!status)
            status = block_backward(&block);
        if (!status)
            status = layer_done(model, pass, layer);
    }
    if (!status && train)
        status = embedding_pass_backward(model, rows, pass->has_dropout, model->d);
    return status || !train ? status : layer_done(model, pass, -1);
}

int model_train_step(struct model *model, const struct model_batch *batch, const struct model_pass *pass) {
    int status = upload(model, batch);
    return status ? status : run_step(model, batch->rows, pass, true);
}

int model_evaluate(struct model *model, const struct model_batch *batch) {
    int status = upload(model, batch);
    return status ? status : run_step(model, batch->rows, &(struct model_pass){0}, false);
}

int model_loss(struct model *model, double *loss) {
    struct stream *stream = model->rank->exec.stream;
    int status = stream_copy_to_host(stream, loss, model->loss_sum, sizeof *loss);
    if (!status)
        status = stream_wait(stream);
    return status ? status : stream_zero(stream, model->loss_sum, sizeof *loss);
}

int model_row_losses(struct model *model, float *losses) {
    struct stream *stream = model->rank->exec.stream;
    int status = stream_copy_to_host(stream, losses, model->losses, (size_t)model->batch.rows * sizeof *losses);
    return status ? status : stream_wait(stream);
}

/* One chunk of model->logits to host rows of V floats. */
static int fetch_logits(struct model *model, int64_t count, float *out) {
    int64_t V = model->options.config.vocab_size, stride = model->vocab_stride;
    size_t width = dtype_bytes(model->options.dtype);
    char *host = malloc((size_t)(count * stride) * width);
    if (!host)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = stream_copy_to_host(model->rank->exec.stream, host, model->logits, (size_t)(count * stride) * width);
    if (!status)
        status = stream_wait(model->rank->exec.stream);
    for (int64_t i = 0; i < count && !status; i++)
        for (int64_t v = 0; v < V; v++)
            out[i * V + v] = model->options.dtype == DTYPE_F32 ? ((float *)host)[i * stride + v]
                                                               : bf16_to_float(((uint16_t *)host)[i * stride + v]);
    free(host);
    return status;
}

int model_logits(struct model *model, const struct model_batch *batch, float *logits) {
    int status = upload(model, batch);
    if (!status)
        status = run_blocks(model, batch->rows, &(struct model_pass){0});
    if (!status)
        status = norm_forward(model, &model->final_norm, batch->rows, model->x_last, model->final, model->final_mean,
                              model->final_rstd);
    for (int64_t first = 0; first < batch->rows && !status; first += HEAD_CHUNK_ROWS) {
        int64_t count = batch->rows - first < HEAD_CHUNK_ROWS ? batch->rows - first : HEAD_CHUNK_ROWS;
        status = head_logits(model, first, count);
        if (!status)
            status = fetch_logits(model, count, logits + first * model->options.config.vocab_size);
    }
    return status;
}
