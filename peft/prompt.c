/* Prompt tuning (arXiv 2104.08691): virtual tokens before each sample's tokens.
 *
 * They are ids after the vocabulary, and rows of a second table of the embedding; positions are added as to all rows.
 * Only the first stage takes part. Every tensor rank has the whole table and computes the same gradient, because it
 * sees the whole gradient of the embedded rows. */
#include "bank-internal.h"
#include "format-internal.h"
#include "prompt-internal.h"

/* ---- the parameters ---- */

int prompt_open(struct peft_adapter *adapter, struct prompt *prompt) {
    prompt->tokens = adapter->config.num_virtual_tokens;
    prompt->is_here = peft_has_layer(adapter->peft, -1);
    return peft_check_virtual_tokens(adapter);
}

int prompt_add_table(struct peft_adapter *adapter, struct prompt *prompt) {
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

static int check_text(const struct peft_adapter *adapter) {
    const struct peft_config *config = &adapter->config;
    if (config->prompt_tuning_init != PEFT_INIT_TEXT)
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
    struct prompt *prompt = adapter->state = calloc(1, sizeof *prompt);
    TRY(status_allocated(prompt));
    int status = prompt_open(adapter, prompt);
    THEN(status, check_text(adapter));
    return status ? status : prompt_add_table(adapter, prompt);
}

static void close_prompt(struct peft_adapter *adapter) {
    free(adapter->state);
}

void prompt_take(struct peft_config *config) {
    config->type = PEFT_PROMPT;
}

/* ---- the hook ---- */

void prompt_borrow(const struct peft_adapter *adapter, const struct prompt *prompt, struct hook_virtual *rows) {
    const struct param_store *store = &adapter->peft->store;
    *rows = (struct hook_virtual){.tokens = prompt->tokens};
    if (!prompt->is_here)
        return;
    rows->table = param_borrow(store, prompt->table_id).data;
    rows->gradient = param_gradient(store, prompt->table_id);
}

void prompt_return(const struct peft_adapter *adapter, const struct prompt *prompt) {
    if (prompt->is_here)
        param_return(&adapter->peft->store, prompt->table_id);
}

static void borrow_rows(void *self, struct hook_virtual *rows) {
    const struct peft_adapter *adapter = self;
    prompt_borrow(adapter, adapter->state, rows);
}

static void return_rows(void *self) {
    const struct peft_adapter *adapter = self;
    prompt_return(adapter, adapter->state);
}

static int attach(struct peft_adapter *adapter) {
    const struct token_hook hook = {.self = adapter, .borrow_rows = borrow_rows, .return_rows = return_rows};
    return hook_table_add_tokens(&adapter->peft->hooks, &hook);
}

int prompt_put_image(struct image_maker *maker, const struct prompt *prompt) {
    return image_put_virtual(maker, prompt->table_id, prompt->tokens);
}

static int make_image(struct image_maker *maker) {
    return prompt_put_image(maker, maker->adapter->state);
}

/* ---- initial rows ---- */

/* Chooses rows of the base's token table: those of the text, repeated if it is short, or random ones. */
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

/* The vocabulary is cut over the tensor ranks: each contributes the rows that it has, and zeros. */
static int gather_rows(struct peft_adapter *adapter, const struct prompt *prompt, const struct param_store *base,
                       const int32_t *ids) {
    struct rank *rank = adapter->peft->rank;
    struct param_rect rects[PARAM_MAX_SLICES];
    int token_table = param_table_find(base->map.table, "embedding.token.weight", 0);
    param_part_rects(&base->map.part, base->map.table, token_table, rects);
    struct embedding call = {.rows = prompt->tokens,
                             .cols = adapter->peft->base.hidden_size,
                             .first_token = rects[0].row,
                             .token_count = rects[0].rows,
                             .tokens = ids,
                             .x = param_borrow_to_write(&adapter->peft->store, prompt->table_id)};
    int status = param_unshard(base, PARAM_UNIT_FIRST, PARAM_READ);
    if (!status) {
        struct matrix_view tokens = param_borrow_rows(base, token_table);
        call.type = tokens.type;
        call.token_table = tokens;
        status = rank_run(rank, PHASE_REST, embedding_forward, &call);
        param_return(base, token_table);
        status = param_reshard_after(base, PARAM_UNIT_FIRST, status);
    }
    THEN(status, rank_sum(rank, RANK_TENSOR, call.x, call.rows * call.cols, call.type));
    param_return(&adapter->peft->store, prompt->table_id);
    return status;
}

int prompt_initialise(struct peft_adapter *adapter, const struct prompt *prompt, uint64_t seed) {
    const struct param_store *base = adapter->peft->weights;
    struct stream *stream = adapter->peft->rank->exec.stream;
    if (!prompt->is_here || adapter->config.prompt_tuning_init == PEFT_INIT_RANDOM)
        return STATUS_OK;
    if (!base)
        return status_fail(STATUS_INVALID, "a prompt of rows of the base, without the base's weights");
    size_t bytes = (size_t)prompt->tokens * sizeof(int32_t);
    int32_t *ids = malloc(bytes);
    void *device_ids = NULL;
    int status = status_allocated(ids);
    THEN(status, device_alloc(base->device, bytes, &device_ids));
    if (!status) {
        choose_ids(adapter, seed, prompt->tokens, ids);
        status = stream_copy_to_device(stream, device_ids, ids, bytes);
    }
    THEN(status, gather_rows(adapter, prompt, base, device_ids));
    THEN(status, stream_wait(stream));
    device_free(base->device, device_ids);
    free(ids);
    return status;
}

static int initialise(struct peft_adapter *adapter, uint64_t seed) {
    return prompt_initialise(adapter, adapter->state, seed);
}

/* ---- its configuration ---- */

static const char *const inits[] = {
    [PEFT_INIT_SAMPLE_VOCAB] = "SAMPLE_VOCAB", [PEFT_INIT_TEXT] = "TEXT", [PEFT_INIT_RANDOM] = "RANDOM", NULL};

static const struct config_row keys[] = {
    PEFT_INT(num_virtual_tokens, "20", 1, 65536, "prompt, ptuning and prefix: number of virtual tokens"),
    PEFT_CHOICE(prompt_tuning_init, "SAMPLE_VOCAB", inits, "prompt: initial values of the virtual tokens"),
    PEFT_KEY(prompt_tuning_init_text, CONFIG_STRING, .metavar = "TEXT",
             .help = "prompt with TEXT: the text, whose tokens are repeated or cut"),
};
static const struct peft_shared_key shared[] = {PEFT_SHARED("prompt", num_virtual_tokens), {0}};

static const char *const known[] = {"num_virtual_tokens",
                                    "token_dim",
                                    "num_transformer_submodules",
                                    "num_attention_heads",
                                    "num_layers",
                                    "prompt_tuning_init",
                                    "prompt_tuning_init_text",
                                    "tokenizer_name_or_path",
                                    "tokenizer_kwargs",
                                    "init_weights",
                                    NULL};

static int write_keys(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      json_t *object) {
    writer_tokens(object, config);
    writer_set(object, "prompt_tuning_init", json_string("RANDOM")); /* the file holds the values */
    return STATUS_OK;
}

int peft_find_text_start(struct peft_config *configs, int count, struct peft_config **found) {
    *found = NULL;
    for (int i = 0; i < count; i++)
        if (configs[i].type == PEFT_PROMPT && configs[i].prompt_tuning_init == PEFT_INIT_TEXT)
            *found = &configs[i];
    return *found ? STATUS_OK
                  : status_fail(STATUS_USAGE, "peft.prompt_tuning_init_text is for --peft prompt with "
                                              "peft.prompt_tuning_init TEXT");
}

static const struct peft_format format = {.keys = keys,
                                          .key_count = sizeof keys / sizeof *keys,
                                          .shared = shared,
                                          .type = "PROMPT_TUNING",
                                          .known = known,
                                          .read = reader_tokens,
                                          .write = write_keys,
                                          .check_shape = shape_check_tokens,
                                          .show = show_tokens};

const struct peft_method peft_prompt = {.title = "prompt tuning",
                                        .format = &format,
                                        .lr = 3e-2, /* PEFT, docs, task_guides/prompt_based_methods */
                                        .before = PEFT_BEFORE_ROWS,
                                        .describe = describe,
                                        .attach = attach,
                                        .initialise = initialise,
                                        .close = close_prompt,
                                        .make_image = make_image};
