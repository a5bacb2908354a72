/* P-tuning (arXiv 2103.10385): virtual tokens as in prompt tuning, from a table that an encoder makes once per global
 * batch. Outside training only the table remains. The encoder is on the first stage, whole on every tensor rank. */
#include "bank-internal.h"
#include "encoder-internal.h"
#include "format-internal.h"
#include "prompt-internal.h"

struct ptuning {
    struct prompt prompt; /* its table, when there is no encoder */
    bool is_encoded;      /* the table comes from the encoder */
    struct encoder encoder;
    struct fp32_weights fp32;
    void *memory;
    void *table; /* [tokens, C] of the stack's type, unless that is fp32; then the encoder's last y is used */
};

/* ---- the parameters ---- */

static int add_mlp(struct encoder *encoder, int64_t hidden, int64_t out) {
    int status = encoder_add_linear(encoder, "mlp_head.0", hidden);
    THEN(status, encoder_add_activation(encoder, ENCODER_RELU));
    THEN(status, encoder_add_linear(encoder, "mlp_head.2", hidden));
    THEN(status, encoder_add_activation(encoder, ENCODER_RELU));
    return status ? status : encoder_add_linear(encoder, "mlp_head.4", out);
}

static int add_lstm(struct encoder *encoder, int64_t hidden, int64_t layers, double dropout, int64_t out) {
    int status = STATUS_OK;
    for (int64_t layer = 0; layer < layers && !status; layer++) {
        if (layer > 0 && dropout > 0)
            status = encoder_add_dropout(encoder, dropout, layer);
        THEN(status, encoder_add_lstm(encoder, hidden, layer));
    }
    THEN(status, encoder_add_linear(encoder, "mlp_head.0", 2 * hidden));
    THEN(status, encoder_add_activation(encoder, ENCODER_RELU));
    return status ? status : encoder_add_linear(encoder, "mlp_head.2", out);
}

static int add_encoder(struct peft_adapter *adapter, struct ptuning *ptuning) {
    const struct peft_config *config = &adapter->config;
    int64_t C = adapter->peft->base.hidden_size;
    int64_t hidden = config->encoder_hidden_size ? config->encoder_hidden_size : C;
    int64_t layers = config->encoder_num_layers ? config->encoder_num_layers : 2;
    TRY(encoder_check(adapter));
    TRY(encoder_start(&ptuning->encoder, adapter, ptuning->prompt.tokens, C));
    return config->encoder_reparameterization_type == PEFT_MLP
               ? add_mlp(&ptuning->encoder, hidden, C)
               : add_lstm(&ptuning->encoder, hidden, layers, config->encoder_dropout, C);
}

static int describe(struct peft_adapter *adapter) {
    struct ptuning *ptuning = adapter->state = calloc(1, sizeof *ptuning);
    TRY(status_allocated(ptuning));
    TRY(prompt_open(adapter, &ptuning->prompt));
    ptuning->is_encoded = peft_is_encoded(adapter);
    ptuning->fp32.adapter = adapter;
    ptuning->encoder.fp32 = &ptuning->fp32;
    return ptuning->is_encoded ? add_encoder(adapter, ptuning) : prompt_add_table(adapter, &ptuning->prompt);
}

static void close_ptuning(struct peft_adapter *adapter) {
    struct ptuning *ptuning = adapter->state;
    if (ptuning) {
        encoder_close(&ptuning->encoder);
        fp32_free(&ptuning->fp32);
        device_free(adapter->peft->rank->device, ptuning->memory);
    }
    free(ptuning);
}

static bool is_encoded(const struct peft_config *config) {
    return true;
}

static void take_encoder(struct peft_config *config, const char *directory, bool has_encoder) {
    if (has_encoder)
        return;
    log_info("%s has only the virtual tokens, without their encoder: they continue as prompt tuning", directory);
    prompt_take(config);
}

/* ---- the hook ---- */

static void borrow_rows(void *self, struct hook_virtual *rows) {
    struct peft_adapter *adapter = self;
    struct ptuning *ptuning = adapter->state;
    if (!ptuning->is_encoded) {
        prompt_borrow(adapter, &ptuning->prompt, rows);
        return;
    }
    *rows = (struct hook_virtual){.tokens = ptuning->prompt.tokens};
    if (!ptuning->prompt.is_here)
        return;
    const struct encoder_step *last = encoder_last(&ptuning->encoder);
    rows->table = adapter->peft->dtype == DTYPE_F32 ? last->y : ptuning->table;
    rows->gradient = last->dy;
}

static void return_rows(void *self) {
    const struct peft_adapter *adapter = self;
    const struct ptuning *ptuning = adapter->state;
    if (!ptuning->is_encoded)
        prompt_return(adapter, &ptuning->prompt);
}

/* ---- the encoder's turn ---- */

static int begin(struct peft_adapter *adapter) {
    struct ptuning *ptuning = adapter->state;
    struct rank *rank = adapter->peft->rank;
    enum dtype dtype = adapter->peft->dtype;
    int64_t count = ptuning->prompt.tokens * adapter->peft->base.hidden_size;
    if (!ptuning->is_encoded || !ptuning->prompt.is_here)
        return STATUS_OK;
    struct encoder_step *last = encoder_last(&ptuning->encoder);
    int status = fp32_begin(&ptuning->fp32);
    THEN(status, encoder_forward(&ptuning->encoder));
    if (!status && dtype != DTYPE_F32)
        status = rank_run(rank, PHASE_REST, cast,
                          &(const struct cast_call){count, DTYPE_F32, dtype, last->y, ptuning->table});
    THEN_IF(status, !rank->is_planning, stream_zero(rank->exec.stream, last->dy, (size_t)count * sizeof(float)));
    return status;
}

static int end(struct peft_adapter *adapter) {
    struct ptuning *ptuning = adapter->state;
    return ptuning->is_encoded && ptuning->prompt.is_here ? encoder_backward(&ptuning->encoder) : STATUS_OK;
}

static int fold(const struct peft_adapter *from, struct peft_adapter *to) {
    const struct ptuning *source = from->state, *folded = to->state;
    struct param_store *store = &to->peft->store;
    if (!source->is_encoded || !source->prompt.is_here)
        return STATUS_OK;
    int id = folded->prompt.table_id;
    const float *made = source->encoder.steps[source->encoder.count - 1].y;
    int status = stream_copy(to->peft->rank->exec.stream, param_borrow_to_write(store, id), made,
                             (size_t)param_local_elements(store, id) * sizeof *made);
    param_return(store, id);
    return status;
}

static void place(struct peft_adapter *adapter, struct arena *arena) {
    struct ptuning *ptuning = adapter->state;
    size_t elements = (size_t)(ptuning->prompt.tokens * adapter->peft->base.hidden_size);
    encoder_place(&ptuning->encoder, arena);
    ptuning->table = arena_take(arena, elements * dtype_bytes(adapter->peft->dtype));
}

static int allocate(struct peft_adapter *adapter) {
    struct ptuning *ptuning = adapter->state;
    struct arena arena = ARENA_PLAN;
    if (!ptuning->is_encoded || !ptuning->prompt.is_here)
        return STATUS_OK;
    place(adapter, &arena);
    int status = device_alloc(adapter->peft->rank->device, arena.used, &ptuning->memory);
    if (status)
        return status_wrap(status, "prompt encoder");
    arena = arena_over(ptuning->memory, arena.used);
    place(adapter, &arena);
    status = encoder_allocate(&ptuning->encoder);
    return status ? status : fp32_allocate(&ptuning->fp32);
}

static int make_image(struct image_maker *maker) {
    const struct ptuning *ptuning = maker->adapter->state;
    return prompt_put_image(maker, &ptuning->prompt);
}

static int attach(struct peft_adapter *adapter) {
    const struct ptuning *ptuning = adapter->state;
    const struct token_hook hook = {.self = adapter, .borrow_rows = borrow_rows, .return_rows = return_rows};
    struct arena arena = ARENA_PLAN;
    if (ptuning->is_encoded && ptuning->prompt.is_here) {
        place(adapter, &arena);
        adapter->peft->method_bytes += arena.used + fp32_bytes(&ptuning->fp32);
    }
    int status = hook_table_add_tokens(&adapter->peft->hooks, &hook);
    if (!status && adapter->peft->rank->is_planning) /* reports the scratch */
        status = begin(adapter);
    return status || !adapter->peft->rank->is_planning ? status : end(adapter);
}

static int initialise(struct peft_adapter *adapter, uint64_t seed) {
    const struct ptuning *ptuning = adapter->state;
    return ptuning->is_encoded ? STATUS_OK : prompt_initialise(adapter, &ptuning->prompt, seed);
}

/* ---- its configuration ---- */

const char *const peft_encoder_names[] = {[PEFT_MLP] = "MLP", [PEFT_LSTM] = "LSTM", NULL};

static const struct config_row keys[] = {
    PEFT_CHOICE(encoder_reparameterization_type, "MLP", peft_encoder_names, "ptuning: kind of encoder"),
    PEFT_INT(encoder_hidden_size, "0", 0, 1 << 20, "ptuning and a projected prefix: inner width; 0: the model's width"),
    PEFT_INT(encoder_num_layers, "2", 1, 64, "ptuning with LSTM: number of layers"),
    PEFT_FLOAT(encoder_dropout, "0", 0, 1, "ptuning with LSTM: dropout between its layers, below 1"),
};
static const struct peft_shared_key shared[] = {
    PEFT_SHARED("ptuning", num_virtual_tokens), PEFT_SHARED("ptuning", encoder_hidden_size), {0}};

static const char *const known[] = {"encoder_reparameterization_type", "encoder_hidden_size", "encoder_num_layers",
                                    "encoder_dropout", NULL};

/* Refuses dropout between layers when there is only one layer. */
static int check_run(const struct peft_config *config) {
    bool has_layers = config->encoder_reparameterization_type == PEFT_LSTM && config->encoder_num_layers > 1;
    return config->encoder_dropout > 0 && !has_layers
               ? status_fail(STATUS_USAGE,
                             "peft.encoder_dropout %g: expected with peft.encoder_reparameterization_type LSTM of "
                             "several layers, between which it is",
                             config->encoder_dropout)
               : STATUS_OK;
}

static int write_keys(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      json_t *object) {
    writer_tokens(object, config);
    writer_set(object, "encoder_reparameterization_type",
               json_string(peft_encoder_names[config->encoder_reparameterization_type]));
    writer_set(object, "encoder_num_layers", json_integer(config->encoder_num_layers));
    writer_set(object, "encoder_dropout", json_real(config->encoder_dropout));
    return STATUS_OK;
}

static const struct peft_format format = {.keys = keys,
                                          .key_count = sizeof keys / sizeof *keys,
                                          .shared = shared,
                                          .check_run = check_run,
                                          .type = "P_TUNING",
                                          .known = known,
                                          .read = reader_tokens,
                                          .write = write_keys,
                                          .check_shape = shape_check_tokens,
                                          .show = show_tokens};

const struct peft_method peft_ptuning = {.title = "p-tuning",
                                         .format = &format,
                                         .encoder_lr = 1e-3, /* PEFT, method_comparison/MetaMathQA, ptuning */
                                         .before = PEFT_BEFORE_ROWS,
                                         .is_encoded = is_encoded,
                                         .take_encoder = take_encoder,
                                         .describe = describe,
                                         .attach = attach,
                                         .allocate = allocate,
                                         .initialise = initialise,
                                         .begin = begin,
                                         .end = end,
                                         .fold = fold,
                                         .close = close_ptuning,
                                         .make_image = make_image};
