/* Prompt tuning (arXiv 2104.08691) and p-tuning (arXiv 2103.10385): virtual tokens before each sample's own.
 *
 * They are ids behind the vocabulary, rows of a table that the embedding has beside its own; positions are added to
 * them as to all rows. Prompt tuning trains the table. P-tuning trains an encoder that makes it, once per global batch;
 * where nothing trains it is a table as well. Only the first
 * stage has any of it. Every tensor rank has all of the table, and the same gradient, as each sees the whole gradient
 * of the embedded rows. */
#include "encoder-internal.h"

#include <stdlib.h>

struct prompt {
    int64_t tokens;
    bool is_here;    /* this stage has the embedding */
    bool is_encoded; /* the table comes from the encoder */
    int table_id;    /* the table's row where it does not */
    struct encoder encoder;
    struct wide_weights wide;
    void *memory;
    void *table; /* [tokens, C] of the stack's type, where that is not fp32; else the encoder's last y serves */
};

/* ---- the parameters ---- */

static int add_table(struct peft_adapter *adapter, struct prompt *prompt) {
    struct param row = {.name = "prompt_embeddings",
                        .dims = 2,
                        .shape = {prompt->tokens, adapter->peft->base.hidden_size},
                        .init = PARAM_INIT_NORMAL,
                        .init_std = 1,
                        .decays = true,
                        .layer = -1};
    snprintf(row.slices[0].name, sizeof row.slices[0].name, "prompt_embeddings");
    prompt->table_id = peft_add_row(adapter, &row);
    return prompt->table_id < 0 ? prompt->table_id : STATUS_OK;
}

static int add_mlp(struct prompt *prompt, int64_t hidden, int64_t out) {
    struct encoder *encoder = &prompt->encoder;
    int status = encoder_add_linear(encoder, "mlp_head.0", hidden);
    if (!status)
        status = encoder_add_activation(encoder, ENCODER_RELU);
    if (!status)
        status = encoder_add_linear(encoder, "mlp_head.2", hidden);
    if (!status)
        status = encoder_add_activation(encoder, ENCODER_RELU);
    return status ? status : encoder_add_linear(encoder, "mlp_head.4", out);
}

static int add_lstm(struct prompt *prompt, int64_t hidden, int64_t layers, double dropout, int64_t out) {
    struct encoder *encoder = &prompt->encoder;
    int status = STATUS_OK;
    for (int64_t layer = 0; layer < layers && !status; layer++) {
        if (layer > 0 && dropout > 0)
            status = encoder_add_dropout(encoder, dropout, layer);
        if (!status)
            status = encoder_add_lstm(encoder, hidden, layer);
    }
    if (!status)
        status = encoder_add_linear(encoder, "mlp_head.0", 2 * hidden);
    if (!status)
        status = encoder_add_activation(encoder, ENCODER_RELU);
    return status ? status : encoder_add_linear(encoder, "mlp_head.2", out);
}

static int add_encoder(struct peft_adapter *adapter, struct prompt *prompt) {
    const struct peft_config *config = &adapter->config;
    int64_t C = adapter->peft->base.hidden_size;
    int64_t hidden = config->encoder_hidden_size ? config->encoder_hidden_size : C;
    int64_t layers = config->encoder_num_layers ? config->encoder_num_layers : 2;
    int status = peft_check_encoder(adapter);
    if (!status)
        status = encoder_start(&prompt->encoder, adapter, prompt->tokens, C);
    if (status)
        return status;
    return config->encoder_reparameterization_type == PEFT_MLP
               ? add_mlp(prompt, hidden, C)
               : add_lstm(prompt, hidden, layers, config->encoder_dropout, C);
}

static int check_text(const struct peft_adapter *adapter) {
    const struct peft_config *config = &adapter->config;
    if (adapter->config.type != PEFT_PROMPT || config->prompt_tuning_init != PEFT_INIT_TEXT)
        return STATUS_OK;
    if (adapter->peft->trains && config->prompt_tuning_init_count < 1)
        return status_fail(STATUS_USAGE, "peft.prompt_tuning_init text: expected peft.prompt_tuning_init_text, of at "
                                         "least one token");
    for (int64_t i = 0; i < config->prompt_tuning_init_count; i++)
        if (config->prompt_tuning_init_ids[i] < 0 ||
            config->prompt_tuning_init_ids[i] >= adapter->peft->base.vocab_size)
            return status_fail(STATUS_USAGE, "peft.prompt_tuning_init_text: token %d is not in the vocabulary of %lld",
                               config->prompt_tuning_init_ids[i], (long long)adapter->peft->base.vocab_size);
    return STATUS_OK;
}

static int describe(struct peft_adapter *adapter) {
    struct prompt *prompt = adapter->own = calloc(1, sizeof *prompt);
    if (!prompt)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = peft_check_virtual_tokens(adapter);
    if (!status)
        status = check_text(adapter);
    if (status)
        return status;
    prompt->tokens = adapter->config.num_virtual_tokens;
    prompt->is_here = peft_has_layer(adapter->peft, 0);
    prompt->is_encoded = peft_is_encoded(adapter);
    prompt->wide.peft = adapter->peft;
    prompt->encoder.wide = &prompt->wide;
    return prompt->is_encoded ? add_encoder(adapter, prompt) : add_table(adapter, prompt);
}

static void close_prompt(struct peft_adapter *adapter) {
    struct prompt *prompt = adapter->own;
    if (prompt) {
        wide_free(&prompt->wide);
        device_free(adapter->peft->rank->device, prompt->memory);
    }
    free(prompt);
}

/* ---- the hook ---- */

static int virtual_rows(void *self, struct hook_virtual *rows) {
    struct peft_adapter *adapter = self;
    const struct prompt *prompt = adapter->own;
    const struct param_store *store = &adapter->peft->store;
    *rows = (struct hook_virtual){.tokens = prompt->tokens};
    if (!prompt->is_here)
        return STATUS_OK;
    if (prompt->is_encoded) {
        const struct encoder_step *last = &prompt->encoder.steps[prompt->encoder.count - 1];
        rows->table = store->dtype == DTYPE_F32 ? last->y : prompt->table;
        rows->gradient = last->dy;
    } else {
        rows->table = param_borrow(store, prompt->table_id).data;
        rows->gradient = param_gradient(store, prompt->table_id);
    }
    return STATUS_OK;
}

/* ---- the encoder's turn ---- */

static int begin(struct peft_adapter *adapter) {
    struct prompt *prompt = adapter->own;
    struct rank *rank = adapter->peft->rank;
    enum dtype dtype = adapter->peft->store.dtype;
    int64_t count = prompt->tokens * adapter->peft->base.hidden_size;
    if (!prompt->is_encoded || !prompt->is_here)
        return STATUS_OK;
    struct encoder_step *last = encoder_last(&prompt->encoder);
    int status = wide_begin(&prompt->wide);
    if (!status)
        status = encoder_forward(&prompt->encoder);
    if (!status && dtype != DTYPE_F32)
        status = rank_run(rank, PHASE_REST, cast, count, DTYPE_F32, last->y, dtype, prompt->table);
    if (!status && !rank->is_planning)
        status = stream_zero(rank->exec.stream, last->dy, (size_t)count * sizeof(float));
    return status;
}

static int end(struct peft_adapter *adapter) {
    struct prompt *prompt = adapter->own;
    return prompt->is_encoded && prompt->is_here ? encoder_backward(&prompt->encoder) : STATUS_OK;
}

static int fold(const struct peft_adapter *from, struct peft_adapter *to) {
    const struct prompt *source = from->own, *folded = to->own;
    struct param_store *store = &to->peft->store;
    if (!source->is_encoded || !source->is_here)
        return STATUS_OK;
    int64_t offset = store->offset[folded->table_id], count = param_local_elements(store, folded->table_id);
    const float *made = source->encoder.steps[source->encoder.count - 1].y;
    return stream_copy(to->peft->rank->exec.stream, (float *)store->weights + offset, made,
                       (size_t)count * sizeof *made);
}

static void place(struct peft_adapter *adapter, struct arena *arena) {
    struct prompt *prompt = adapter->own;
    size_t elements = (size_t)(prompt->tokens * adapter->peft->base.hidden_size);
    encoder_place(&prompt->encoder, arena);
    prompt->table = arena_take(arena, elements * dtype_bytes(adapter->peft->store.dtype));
}

static int allocate(struct peft_adapter *adapter) {
    struct prompt *prompt = adapter->own;
    struct arena arena = ARENA_PLAN;
    if (!prompt->is_encoded || !prompt->is_here)
        return STATUS_OK;
    place(adapter, &arena);
    int status = device_alloc(adapter->peft->rank->device, arena.used, &prompt->memory);
    if (status)
        return status_wrap(status, "prompt encoder");
    arena = arena_over(prompt->memory, arena.used);
    place(adapter, &arena);
    return wide_allocate(&prompt->wide);
}

static int attach(struct peft_adapter *adapter) {
    const struct prompt *prompt = adapter->own;
    struct hook hook = {.self = adapter, .virtual_rows = virtual_rows};
    struct arena arena = ARENA_PLAN;
    if (prompt->is_encoded && prompt->is_here) {
        place(adapter, &arena);
        adapter->peft->own_bytes += arena.used + wide_bytes(&prompt->wide);
    }
    int status = hook_table_add(&adapter->peft->hooks, 0, ATTACH_EMBEDDING, &hook);
    if (!status && adapter->peft->rank->is_planning) /* notes the scratch */
        status = begin(adapter);
    return status || !adapter->peft->rank->is_planning ? status : end(adapter);
}

/* ---- initial rows ---- */

/* Rows of the base's token table: those of the text, again and again if it is short, or drawn ones. */
static void choose_ids(const struct peft_adapter *adapter, uint64_t seed, int64_t count, int32_t *ids) {
    const struct peft_config *config = &adapter->config;
    int64_t vocab = adapter->peft->base.vocab_size;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = philox(seed, (uint32_t)i, (uint32_t)adapter->number, 0, (uint32_t)RNG_PROMPT << 24).word[0];
        ids[i] = config->prompt_tuning_init == PEFT_INIT_TEXT
                     ? config->prompt_tuning_init_ids[i % config->prompt_tuning_init_count]
                     : (int32_t)(rng_unit(word) * (double)vocab);
    }
}

/* The vocabulary is cut over the tensor ranks: each gives the rows that it has, and zeros. */
static int gather_rows(struct peft_adapter *adapter, const struct param_store *base, const int32_t *ids) {
    const struct prompt *prompt = adapter->own;
    struct rank *rank = adapter->peft->rank;
    struct param_rect rects[PARAM_MAX_SLICES];
    int token_table = param_table_find(base->table, "embedding.token.weight", 0);
    param_part_rects(&base->part, base->table, token_table, rects);
    struct weight_view tokens = param_borrow(base, token_table);
    struct embedding call = {.rows = prompt->tokens,
                             .cols = adapter->peft->base.hidden_size,
                             .type = base->dtype,
                             .first_token = rects[0].row,
                             .token_count = rects[0].rows,
                             .tokens = ids,
                             .token_table = tokens.data,
                             .x = (void *)(uintptr_t)param_borrow(&adapter->peft->store, prompt->table_id).data};
    int status = rank_run(rank, PHASE_REST, embedding_forward, &call);
    param_return(base, token_table, tokens);
    return status ? status : rank_sum(rank, rank->tensor, call.x, call.rows * call.cols, call.type);
}

static int initialise(struct peft_adapter *adapter, uint64_t seed) {
    const struct prompt *prompt = adapter->own;
    const struct param_store *base = adapter->peft->weights;
    struct stream *stream = adapter->peft->rank->exec.stream;
    if (prompt->is_encoded || !prompt->is_here || adapter->config.prompt_tuning_init == PEFT_INIT_RANDOM)
        return STATUS_OK;
    if (!base)
        return status_fail(STATUS_INVALID, "a prompt of rows of the base, without the base's weights");
    size_t bytes = (size_t)prompt->tokens * sizeof(int32_t);
    int32_t *ids = malloc(bytes);
    void *device_ids = NULL;
    int status = ids ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = device_alloc(base->device, bytes, &device_ids);
    if (!status) {
        choose_ids(adapter, seed, prompt->tokens, ids);
        status = stream_copy_to_device(stream, device_ids, ids, bytes);
    }
    if (!status)
        status = gather_rows(adapter, base, device_ids);
    if (!status)
        status = stream_wait(stream);
    device_free(base->device, device_ids);
    free(ids);
    return status;
}

const struct peft_method peft_prompt = {.describe = describe,
                                        .attach = attach,
                                        .allocate = allocate,
                                        .initialise = initialise,
                                        .begin = begin,
                                        .end = end,
                                        .fold = fold,
                                        .close = close_prompt};
