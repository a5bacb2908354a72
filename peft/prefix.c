/* Prefix tuning (arXiv 2101.00190): keys and values before those of each sample, in every layer.
 *
 * The file's table [tokens, 2 L C] holds keys and then values, layer by layer. It is cut into parameters of the layers,
 * feature by feature, [2 C, tokens]; they lie on their stage, and each tensor rank has its heads. With a projection
 * during training, the table is the output of a linear after a small encoder; the parameters of a layer are that
 * linear's [2 C, H]. Either way keys [tokens, C] are hidden weight' (+ bias); without a projection hidden is the unit
 * matrix. The first stage has the encoder. All stages get its output by a sum to which the others add nothing. */
#include "bank-internal.h"
#include "encoder-internal.h"
#include "format-internal.h"

#include <math.h>

struct prefix_layer {
    bool is_here;
    int weight, bias;               /* ids */
    void *table[2];                 /* keys and values [tokens, width] of the stack's type */
    float *values[2], *gradient[2]; /* the same in fp32 (identical to `table` when that is fp32), and its gradient */
};

struct prefix {
    int64_t tokens, width; /* of keys, on this tensor rank */
    int64_t inner;         /* columns of hidden */
    bool is_first;         /* this stage has the encoder */
    bool is_projected;
    struct encoder encoder;
    struct fp32_weights fp32;
    void *memory;
    float *hidden, *hidden_gradient; /* [tokens, inner] */
    void *gradients;                 /* the gradients of all layers in one block, cleared in one call; NULL: none */
    size_t gradient_bytes;
    struct prefix_layer *layers; /* [L] */
};

/* ---- the parameters ---- */

static int64_t whole_width(const struct peft *peft) {
    return model_widths(&peft->base, 1).kv;
}

/* A parameter of every layer: rows of keys and of values, [2 C, columns]. */
struct layer_row {
    const char *name, *file; /* the tensor `file` has the rows of all layers */
    int64_t columns;         /* 0: a bias */
    bool is_transposed;
    double bound; /* of uniform initial values; 0: normal ones */
};

static int add_layer_row(struct peft_adapter *adapter, int64_t layer, const struct layer_row *of_layer) {
    int64_t columns = of_layer->columns;
    double bound = of_layer->bound;
    int64_t width = whole_width(adapter->peft), layers = adapter->peft->base.num_layers;
    struct param row = {.dims = columns ? 2 : 1,
                        .shape = {2 * width, columns},
                        .shard = PARAM_SHARD_AXIS0,
                        .init = bound > 0 ? PARAM_INIT_UNIFORM : PARAM_INIT_NORMAL,
                        .init_std = bound > 0 ? (float)bound : 1,
                        .decays = columns > 0,
                        .layer = (int)layer,
                        .slice_count = 2};
    snprintf(row.name, sizeof row.name, "layers.%lld.%s", (long long)layer, of_layer->name);
    for (int i = 0; i < 2; i++) {
        row.slices[i] = (struct param_slice){.row = i * width,
                                             .rows = width,
                                             .file_start = (2 * layer + i) * width,
                                             .file_rows = 2 * layers * width,
                                             .is_transposed = of_layer->is_transposed,
                                             .most_parts = adapter->peft->base.num_query_groups};
        snprintf(row.slices[i].name, sizeof row.slices[i].name, "%s", of_layer->file);
    }
    return peft_add_row(adapter, &row);
}

static int add_layer(struct peft_adapter *adapter, struct prefix *prefix, int64_t layer) {
    struct prefix_layer *here = &prefix->layers[layer];
    here->is_here = peft_has_layer(adapter->peft, layer);
    if (!prefix->is_projected) {
        const struct layer_row table = {
            .name = "prompt_embeddings", .file = "prompt_embeddings", .columns = prefix->tokens, .is_transposed = true};
        here->weight = add_layer_row(adapter, layer, &table);
        return here->weight < 0 ? here->weight : STATUS_OK;
    }
    double bound = 1 / sqrt((double)prefix->inner);
    const struct layer_row weight = {.name = "transform.2.weight",
                                     .file = "prompt_encoder.default.transform.2.weight",
                                     .columns = prefix->inner,
                                     .bound = bound};
    const struct layer_row bias = {
        .name = "transform.2.bias", .file = "prompt_encoder.default.transform.2.bias", .bound = bound};
    here->weight = add_layer_row(adapter, layer, &weight);
    if (here->weight < 0)
        return here->weight;
    here->bias = add_layer_row(adapter, layer, &bias);
    return here->bias < 0 ? here->bias : STATUS_OK;
}

static int add_encoder(struct peft_adapter *adapter, struct prefix *prefix) {
    int64_t width = whole_width(adapter->peft);
    prefix->inner = adapter->config.encoder_hidden_size ? adapter->config.encoder_hidden_size : width;
    int status = encoder_check(adapter);
    THEN(status, encoder_start(&prefix->encoder, adapter, prefix->tokens, width));
    THEN(status, encoder_add_linear(&prefix->encoder, "transform.0", prefix->inner));
    return status ? status : encoder_add_activation(&prefix->encoder, ENCODER_TANH);
}

/* Rows far after the prefix would not see it. */
static int check_window(const struct peft *peft) {
    return peft->base.window ? status_fail(STATUS_UNSUPPORTED,
                                           "prefix tuning of a model whose rows see a window of %lld tokens is not "
                                           "built: use prompt tuning or another method",
                                           (long long)peft->base.window)
                             : STATUS_OK;
}

static int describe(struct peft_adapter *adapter) {
    struct peft *peft = adapter->peft;
    struct prefix *prefix = adapter->state = calloc(1, sizeof *prefix);
    if (prefix)
        prefix->layers = calloc((size_t)peft->base.num_layers, sizeof *prefix->layers);
    TRY(status_allocated(prefix && prefix->layers));
    int below = peft->frozen ? peft->frozen->count : 0;
    for (int i = 0; i < below + adapter->number; i++)
        if ((i < below ? &peft->frozen->adapters[i] : &peft->adapters[i - below])->method == adapter->method)
            return peft_fail_prefixes(i, below + adapter->number);
    int status = check_window(peft);
    THEN(status, peft_check_virtual_tokens(adapter));
    prefix->tokens = prefix->inner = adapter->config.num_virtual_tokens;
    prefix->width = model_widths(&peft->base, peft->rank->grid.tensor).kv;
    prefix->is_first = peft_has_layer(peft, -1);
    prefix->is_projected = peft_is_encoded(adapter);
    prefix->fp32.adapter = adapter;
    prefix->encoder.fp32 = &prefix->fp32;
    THEN_IF(status, prefix->is_projected, add_encoder(adapter, prefix));
    for (int64_t layer = 0; layer < peft->base.num_layers && !status; layer++)
        status = add_layer(adapter, prefix, layer);
    return status;
}

static void close_prefix(struct peft_adapter *adapter) {
    struct prefix *prefix = adapter->state;
    if (prefix) {
        fp32_free(&prefix->fp32);
        device_free(adapter->peft->rank->device, prefix->memory);
        free(prefix->layers);
    }
    free(prefix);
}

static bool is_encoded(const struct peft_config *config) {
    return config->prefix_projection;
}

static void take_encoder(struct peft_config *config, const char *directory, bool has_encoder) {
    config->prefix_projection = has_encoder;
}

/* ---- the hook ---- */

static int give_prefix(void *self, int image, int layer, struct hook_prefix *prefix) {
    const struct peft_adapter *adapter = self;
    const struct prefix *all = adapter->state;
    const struct prefix_layer *here = &all->layers[layer];
    *prefix = (struct hook_prefix){.tokens = all->tokens,
                                   .k = here->table[0],
                                   .v = here->table[1],
                                   .dk = here->gradient[0],
                                   .dv = here->gradient[1]};
    return STATUS_OK;
}

/* ---- from parameters to keys and values, and back ---- */

static int multiply(const struct peft_adapter *adapter, const struct gemm *gemm) {
    return rank_multiply(adapter->peft->rank, PHASE_REST, gemm);
}

/* Returns the offset of the keys (0) or the values (1) in a parameter; the local rows of the keys come first. */
static int64_t half(const struct prefix *prefix, int which, int64_t columns) {
    return which * prefix->width * columns;
}

/* The part of the keys (0), or of the values (1), of a layer's weight in fp32, or of its gradient. */
static struct matrix_view weight_half(const struct prefix *prefix, const float *weight, int which) {
    return matrix_plain(DTYPE_F32, weight ? weight + half(prefix, which, prefix->inner) : NULL, prefix->width,
                        prefix->inner);
}

static int make_half(struct peft_adapter *adapter, const struct prefix_layer *layer, int which) {
    const struct prefix *prefix = adapter->state;
    enum dtype dtype = adapter->peft->dtype;
    const float *weight = fp32_borrow(&prefix->fp32, layer->weight);
    const float *bias = prefix->is_projected ? fp32_borrow(&prefix->fp32, layer->bias) : NULL;
    struct gemm gemm = {.a = matrix_plain(DTYPE_F32, prefix->hidden, prefix->tokens, prefix->inner),
                        .b = weight_half(prefix, weight, which),
                        .b_transposed = true,
                        .c = matrix_plain(DTYPE_F32, layer->values[which], prefix->tokens, prefix->width),
                        .bias = bias ? bias + half(prefix, which, 1) : NULL};
    int status = multiply(adapter, &gemm);
    fp32_return(&prefix->fp32, layer->weight);
    if (prefix->is_projected)
        fp32_return(&prefix->fp32, layer->bias);
    if (!status && dtype != DTYPE_F32)
        status = rank_run(adapter->peft->rank, PHASE_REST, cast,
                          &(const struct cast_call){prefix->tokens * prefix->width, DTYPE_F32, dtype,
                                                    layer->values[which], layer->table[which]});
    return status;
}

/* Computes the gradients of the layer's parameters, and its part of the gradient of hidden. */
static int return_half(struct peft_adapter *adapter, const struct prefix_layer *layer, int which) {
    const struct prefix *prefix = adapter->state;
    const struct param_store *store = &adapter->peft->store;
    float *gradient = param_gradient(store, layer->weight);
    float *bias_gradient = prefix->is_projected ? param_gradient(store, layer->bias) : NULL;
    const float *weight = fp32_borrow(&prefix->fp32, layer->weight);
    struct matrix_view values = matrix_plain(DTYPE_F32, layer->gradient[which], prefix->tokens, prefix->width);
    struct gemm gemm = {.a = values,
                        .a_transposed = true,
                        .b = matrix_plain(DTYPE_F32, prefix->hidden, prefix->tokens, prefix->inner),
                        .c = weight_half(prefix, gradient, which),
                        .accumulate = true,
                        .bias_gradient = bias_gradient ? bias_gradient + half(prefix, which, 1) : NULL};
    struct gemm back = {.a = values,
                        .b = weight_half(prefix, weight, which),
                        .c = matrix_plain(DTYPE_F32, prefix->hidden_gradient, prefix->tokens, prefix->inner),
                        .accumulate = true};
    int status = multiply(adapter, &gemm);
    THEN_IF(status, prefix->is_projected, multiply(adapter, &back));
    fp32_return(&prefix->fp32, layer->weight);
    return status;
}

static int clear_gradients(struct peft_adapter *adapter) {
    const struct prefix *prefix = adapter->state;
    struct rank *rank = adapter->peft->rank;
    if (rank->is_planning || !adapter->peft->trains)
        return STATUS_OK;
    int status = stream_zero(rank->exec.stream, prefix->gradients, prefix->gradient_bytes);
    if (!status && prefix->is_projected)
        status = stream_zero(rank->exec.stream, prefix->hidden_gradient,
                             (size_t)(prefix->tokens * prefix->inner) * sizeof(float));
    return status;
}

/* Brings the encoder's output to every stage. */
static int make_hidden(struct peft_adapter *adapter) {
    struct prefix *prefix = adapter->state;
    struct rank *rank = adapter->peft->rank;
    int64_t count = prefix->tokens * prefix->inner;
    int status = STATUS_OK;
    if (prefix->is_first)
        status = encoder_forward(&prefix->encoder);
    else if (!rank->is_planning)
        status = stream_zero(rank->exec.stream, prefix->hidden, (size_t)count * sizeof(float));
    return status ? status : rank_sum(rank, RANK_PIPELINE, prefix->hidden, count, DTYPE_F32);
}

static int begin(struct peft_adapter *adapter) {
    struct prefix *prefix = adapter->state;
    int status = fp32_begin(&prefix->fp32);
    THEN_IF(status, prefix->is_projected, make_hidden(adapter));
    for (int64_t l = 0; l < adapter->peft->base.num_layers && !status; l++)
        for (int which = 0; which < 2 && prefix->layers[l].is_here && !status; which++)
            status = make_half(adapter, &prefix->layers[l], which);
    return status ? status : clear_gradients(adapter);
}

static int end(struct peft_adapter *adapter) {
    struct prefix *prefix = adapter->state;
    struct rank *rank = adapter->peft->rank;
    int64_t count = prefix->tokens * prefix->inner;
    int status = STATUS_OK;
    for (int64_t l = 0; l < adapter->peft->base.num_layers && !status; l++)
        for (int which = 0; which < 2 && prefix->layers[l].is_here && !status; which++)
            status = return_half(adapter, &prefix->layers[l], which);
    if (status || !prefix->is_projected)
        return status;
    status = rank_sum(rank, RANK_TENSOR, prefix->hidden_gradient, count, DTYPE_F32);
    THEN(status, rank_sum(rank, RANK_PIPELINE, prefix->hidden_gradient, count, DTYPE_F32));
    return status || !prefix->is_first ? status : encoder_backward(&prefix->encoder);
}

/* Folds keys or values [tokens, width] into the parameter's rows [width, tokens]. */
static int fold_half(const struct prefix *source, struct peft_adapter *to, int64_t layer, int which) {
    const struct prefix *folded = to->state;
    struct param_store *store = &to->peft->store;
    int id = folded->layers[layer].weight;
    float *weight = param_borrow_to_write(store, id);
    const struct transpose call = {.rows = source->tokens,
                                   .cols = source->width,
                                   .type = DTYPE_F32,
                                   .x = source->layers[layer].values[which],
                                   .y = weight + half(folded, which, source->tokens)};
    int status = rank_run(to->peft->rank, PHASE_REST, transpose, &call);
    param_return(store, id);
    return status;
}

static int fold(const struct peft_adapter *from, struct peft_adapter *to) {
    const struct prefix *source = from->state;
    int status = STATUS_OK;
    for (int64_t l = 0; l < from->peft->base.num_layers && source->is_projected && !status; l++)
        for (int which = 0; which < 2 && source->layers[l].is_here && !status; which++)
            status = fold_half(source, to, l, which);
    return status;
}

/* ---- memory ---- */

static void place_gradients(struct peft_adapter *adapter, struct arena *arena) {
    struct prefix *prefix = adapter->state;
    size_t mark = arena_mark(arena), bytes = (size_t)(prefix->tokens * prefix->width) * sizeof(float);
    for (int64_t l = 0; l < adapter->peft->base.num_layers && adapter->peft->trains; l++)
        for (int which = 0; which < 2 && prefix->layers[l].is_here; which++) {
            float *gradient = prefix->layers[l].gradient[which] = arena_take(arena, bytes);
            prefix->gradients = prefix->gradients ? prefix->gradients : gradient;
        }
    prefix->gradient_bytes = arena_mark(arena) - mark;
}

static void place(struct peft_adapter *adapter, struct arena *arena) {
    struct prefix *prefix = adapter->state;
    enum dtype dtype = adapter->peft->dtype;
    size_t count = (size_t)(prefix->tokens * prefix->width), hidden = (size_t)(prefix->tokens * prefix->inner);
    if (prefix->is_projected && prefix->is_first) {
        encoder_place(&prefix->encoder, arena);
        prefix->hidden = encoder_last(&prefix->encoder)->y;
        prefix->hidden_gradient = encoder_last(&prefix->encoder)->dy;
    } else {
        prefix->hidden = arena_take(arena, hidden * sizeof(float));
        prefix->hidden_gradient = arena_take(arena, hidden * sizeof(float));
    }
    for (int64_t l = 0; l < adapter->peft->base.num_layers; l++)
        for (int which = 0; which < 2 && prefix->layers[l].is_here; which++) {
            struct prefix_layer *layer = &prefix->layers[l];
            layer->values[which] = arena_take(arena, count * sizeof(float));
            layer->table[which] =
                dtype == DTYPE_F32 ? layer->values[which] : arena_take(arena, count * dtype_bytes(dtype));
        }
    place_gradients(adapter, arena);
}

/* Without an encoder, hidden is the unit matrix. */
static int set_unit(struct peft_adapter *adapter) {
    const struct prefix *prefix = adapter->state;
    struct stream *stream = adapter->peft->rank->exec.stream;
    size_t n = (size_t)prefix->tokens;
    float *unit = calloc(n * n, sizeof *unit);
    TRY(status_allocated(unit));
    for (size_t i = 0; i < n; i++)
        unit[i * n + i] = 1;
    int status = stream_copy_to_device(stream, prefix->hidden, unit, n * n * sizeof *unit);
    THEN(status, stream_wait(stream));
    free(unit);
    return status;
}

static int allocate(struct peft_adapter *adapter) {
    struct prefix *prefix = adapter->state;
    struct arena arena = ARENA_PLAN;
    place(adapter, &arena);
    int status = device_alloc(adapter->peft->rank->device, arena.used, &prefix->memory);
    if (status)
        return status_wrap(status, "prefix keys and values");
    arena = arena_over(prefix->memory, arena.used);
    place(adapter, &arena);
    status = fp32_allocate(&prefix->fp32);
    return status || prefix->is_projected ? status : set_unit(adapter);
}

static int attach(struct peft_adapter *adapter) {
    struct peft *peft = adapter->peft;
    const struct prefix *prefix = adapter->state;
    const struct prefix_hook hook = {.self = adapter, .prefix = give_prefix};
    struct arena arena = ARENA_PLAN;
    int status = STATUS_OK;
    place(adapter, &arena);
    peft->method_bytes += arena.used + fp32_bytes(&prefix->fp32);
    for (int64_t layer = 0; layer < peft->base.num_layers && !status; layer++)
        status = hook_table_add_prefix(&peft->hooks, layer, &hook);
    if (!status && peft->rank->is_planning) /* reports the scratch */
        status = begin(adapter);
    return status || !peft->rank->is_planning ? status : end(adapter);
}

/* ---- in a bank ---- */

/* A parameter without an encoder holds keys and values feature by feature; the image needs them token by token. */
static int put_layer(struct image_maker *maker, int64_t layer, const void **place) {
    const struct prefix *prefix = maker->adapter->state;
    const struct param_store *store = &maker->adapter->peft->store;
    int id = prefix->layers[layer].weight, status = STATUS_OK;
    struct matrix_view view = {0};
    if (!maker_plans(maker))
        view = param_borrow(store, id);
    for (int which = 0; which < 2 && !status; which++) {
        size_t skipped = (size_t)half(prefix, which, prefix->tokens) * dtype_bytes(maker->adapter->peft->dtype);
        status =
            image_put(maker,
                      matrix_plain(maker->adapter->peft->dtype, view.data ? (const char *)view.data + skipped : NULL,
                                   prefix->width, prefix->tokens),
                      true, &place[which]);
    }
    if (!maker_plans(maker))
        param_return(store, id);
    return status;
}

static int make_image(struct image_maker *maker) {
    const struct prefix *prefix = maker->adapter->state;
    const struct peft_bank *bank = maker->bank;
    struct peft_image *image = maker->image;
    int status = STATUS_OK;
    image->prefix_tokens = prefix->tokens;
    for (int64_t i = 0; i < bank->layers && !status; i++)
        status = put_layer(maker, bank->first_layer + i, &image->prefix[2 * i]);
    return status;
}

/* ---- its configuration ---- */

static const struct config_row keys[] = {
    PEFT_BOOL(prefix_projection, "false", "prefix: train it through an encoder"),
};
static const struct peft_shared_key shared[] = {
    PEFT_SHARED("prefix", num_virtual_tokens), PEFT_SHARED("prefix", encoder_hidden_size), {0}};
static const char *const known[] = {"prefix_projection", NULL};

static int write_keys(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      json_t *object) {
    writer_tokens(object, config);
    writer_set(object, "prefix_projection", json_false()); /* folded in the file */
    return STATUS_OK;
}

static const struct peft_format format = {.keys = keys,
                                          .key_count = sizeof keys / sizeof *keys,
                                          .shared = shared,
                                          .type = "PREFIX_TUNING",
                                          .known = known,
                                          .read = reader_tokens,
                                          .write = write_keys,
                                          .check_shape = shape_check_tokens,
                                          .show = show_tokens};

const struct peft_method peft_prefix = {.title = "prefix tuning",
                                        .format = &format,
                                        .lr = 1e-2, /* PEFT, docs, task_guides/seq2seq-prefix-tuning */
                                        .encoder_lr =
                                            5e-5, /* of GPT-2 by Li and Liang, 2021: XiangLi1999/PrefixTuning, README */
                                        .before = PEFT_BEFORE_KEYS,
                                        .is_encoded = is_encoded,
                                        .take_encoder = take_encoder,
                                        .describe = describe,
                                        .attach = attach,
                                        .allocate = allocate,
                                        .begin = begin,
                                        .end = end,
                                        .fold = fold,
                                        .close = close_prefix,
                                        .make_image = make_image};
