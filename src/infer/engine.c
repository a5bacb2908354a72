/* Opening and closing an engine by the steps of engine_open.c, and facts about an open engine. */
#include "engine-internal.h"

#include <stdlib.h>

int engine_open(const struct engine_options *options, struct engine **out) {
    *out = NULL;
    struct engine *engine = calloc(1, sizeof *engine);
    TRY(status_allocated(engine));
    engine->options = *options;
    int status = opening_run(&engine_opening, engine);
    if (status)
        free(engine);
    else
        *out = engine;
    return status;
}

void engine_close(struct engine *engine) {
    if (!engine)
        return;
    opening_undo(&engine_opening, engine);
    free(engine);
}

const struct model_config *engine_config(const struct engine *engine) {
    return base_config(engine->base);
}

enum dtype engine_dtype(const struct engine *engine) {
    return base_store(engine->base)->map.type;
}

const char *engine_precision(const struct engine *engine) {
    int precision = engine->options.precision;
    return precision >= 0 ? precision_names[precision] : dtype_name(engine_dtype(engine));
}

int64_t engine_max_rows(const struct engine *engine) {
    return engine->options.max_rows;
}

int64_t engine_max_logit_rows(const struct engine *engine) {
    return engine->options.max_logit_rows;
}

int64_t engine_max_sequences(const struct engine *engine) {
    return engine->options.max_sequences;
}

int64_t engine_max_positions(const struct engine *engine) {
    return engine->options.max_positions;
}

bool engine_leads(const struct engine *engine) {
    return engine_is_leader(engine);
}

const char *engine_directory(const struct engine *engine) {
    return engine->directory;
}

struct model_text_ends engine_text_ends(const struct engine *engine, const struct tokenizer *tokenizer) {
    struct model_text_ends ends = engine->ends;
    int32_t eos = tokenizer ? tokenizer_eos_id(tokenizer) : -1;
    if (eos >= 0)
        model_add_eos(&ends, eos, true);
    return ends;
}

int engine_depth(const struct engine *engine) {
    return engine->rank.grid.pipeline;
}

struct rank *engine_rank(struct engine *engine) {
    return &engine->rank;
}

int engine_step_work(struct engine *engine, const struct model_step_shape *shape, struct work_list *list) {
    return model_step_work(engine->runner, shape, list);
}

void engine_read_plan(const struct engine *engine, struct engine_plan *plan) {
    engine_fill_plan(engine, engine->pages, engine->bank ? peft_bank_memory(engine->bank) : 0, plan);
}

size_t engine_planned_bytes(const struct engine *engine) {
    struct engine_plan plan;
    engine_read_plan(engine, &plan);
    return engine_plan_device_bytes(&plan);
}

struct engine_graphs engine_graphs(const struct engine *engine) {
    struct engine_graphs graphs = engine->graphs;
    graphs.replays = model_replays(engine->runner);
    return graphs;
}
