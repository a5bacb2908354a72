/* Messages of a tuning run, from the leader to the ranks that follow. */
#include "tuning-internal.h"

int tuning_share(const struct engine *engine, void *data, size_t bytes) {
    struct comm_data moved = {.send = data, .receive = data, .count = (int64_t)bytes, .dtype = DTYPE_U8};
    return engine->shared->holders && bytes ? comm_broadcast(engine->shared->holders, &moved, 0) : STATUS_OK;
}

int tuning_agree(const struct engine *engine, int status) {
    return engine->shared->holders ? comm_agree(engine->shared->holders, status) : status;
}

/* Sends a block with its length; a follower allocates it. */
static int share_block(const struct engine *engine, void **data, size_t *length) {
    int64_t bytes = (int64_t)*length;
    TRY(tuning_share(engine, &bytes, sizeof bytes));
    *length = (size_t)bytes;
    if (engine->follower)
        *data = malloc(*length + 1);
    TRY(tuning_agree(engine, status_allocated(*data || !*length)));
    return tuning_share(engine, *data, *length);
}

/* Takes texts and lists from a configuration that was read from the leader's text; all else is as in the leader's. */
static void take_texts(struct peft_config *config, const struct peft_config *read) {
    config->target_modules = read->target_modules;
    config->exclude_modules = read->exclude_modules;
    config->layers_to_transform = read->layers_to_transform;
    config->feedforward_modules = read->feedforward_modules;
    config->rank_pattern = read->rank_pattern;
    config->alpha_pattern = read->alpha_pattern;
    config->prompt_tuning_init_text = read->prompt_tuning_init_text;
    config->where = read->where;
    config->adapter_name = read->adapter_name;
    config->base_name = read->base_name;
    config->memory = read->memory;
}

static int share_config(struct tuning_run *run, struct peft_config *config) {
    struct engine *engine = run->engine;
    struct peft_config read = {0};
    char *text = NULL;
    int status =
        engine->leader ? peft_write_config(config, engine_config(engine), engine->directory, &text) : STATUS_OK;
    TRY(tuning_agree(engine, status));
    void *ids = (void *)config->prompt_tuning_init_ids, *block = text;
    size_t length = text ? strlen(text) + 1 : 0, id_bytes = 0;
    status = share_block(engine, &block, &length);
    THEN(status, tuning_share(engine, config, sizeof *config));
    id_bytes = (size_t)config->prompt_tuning_init_count * sizeof(int32_t);
    if (engine->follower)
        ids = NULL;
    THEN(status, share_block(engine, &ids, &id_bytes));
    if (!status && engine->follower) {
        status = peft_read_config(block, "the leader's run", &read);
        take_texts(config, &read);
        config->prompt_tuning_init_ids = ids;
    }
    free(block);
    return tuning_agree(engine, status);
}

int tuning_share_opening(struct tuning_run *run) {
    struct engine *engine = run->engine;
    if (!engine->shared->holders)
        return STATUS_OK;
    struct tuning_opening *opening = &run->opening;
    int status = tuning_share(engine, opening, sizeof *opening);
    for (int i = 0; i < opening->adapter_count && !status; i++)
        status = share_config(run, &run->configs[i]);
    for (int i = 0; i < opening->start_count && !status; i++) {
        status = share_block(engine, &run->start[i].data, &run->start[i].length);
        if (engine->follower)
            run->start[i].directory = strdup("the leader's run");
    }
    size_t bytes = (size_t)opening->state_bytes;
    THEN(status, share_block(engine, (void **)&run->state, &bytes));
    return status;
}

void tuning_free_opening(struct tuning_run *run) {
    for (int i = 0; i < PEFT_MAX_STACK && run->engine->follower; i++) {
        peft_bytes_free(&run->start[i]);
        free((void *)run->configs[i].prompt_tuning_init_ids);
        if (run->configs[i].memory)
            peft_config_free(&run->configs[i]);
    }
    if (run->engine->follower)
        free((void *)run->state);
}

int tuning_share_batch(const struct engine *engine, struct gpt_batch *batch, int status) {
    if (!engine->shared->holders)
        return status;
    int64_t facts[4] = {status, batch->rows, batch->padding, batch->segments};
    TRY(tuning_share(engine, facts, sizeof facts));
    if (facts[0])
        return engine->leader ? status : status_fail((int)facts[0], "the leader could not read a batch");
    batch->rows = facts[1];
    batch->padding = facts[2];
    batch->segments = facts[3];
    const size_t row = sizeof(int32_t) * (size_t)batch->rows;
    void *const arrays[] = {batch->tokens,    batch->labels, batch->loss_mask,
                            batch->positions, batch->sample, batch->token};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        TRY(tuning_share(engine, arrays[i], row));
    return tuning_share(engine, batch->segment_start, (size_t)(batch->segments + 1) * sizeof *batch->segment_start);
}
