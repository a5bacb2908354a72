/* Opening and closing an engine by the steps of engine_open.c, and facts about an open engine. */
#include "engine-internal.h"

int engine_allocate(const struct engine_options *options, struct engine **out) {
    size_t count = 0;
    for (const struct engine_options *at = options; at; at = at->next)
        count++;
    struct engine_shared *shared = calloc(1, sizeof *shared + count * sizeof *shared->bases);
    TRY(status_allocated(shared));
    for (const struct engine_options *at = options; at; at = at->next) {
        struct engine *engine = &shared->bases[shared->count++];
        *engine = (struct engine){.options = *at, .shared = shared};
        engine->options.world = options->world;
        engine->options.grid = options->grid;
        engine->options.precision = options->precision;
        engine->options.device_sharers = options->device_sharers;
    }
    *out = shared->bases;
    return STATUS_OK;
}

int engine_open(const struct engine_options *options, struct engine **out) {
    struct engine *engine;
    *out = NULL;
    TRY(engine_allocate(options, &engine));
    int status = opening_run(&engine_opening, engine);
    if (status)
        free(engine->shared);
    else
        *out = engine;
    return status;
}

void engine_close(struct engine *engine) {
    if (!engine)
        return;
    opening_undo(&engine_opening, engine);
    free(engine->shared);
}

struct engine *engine_of_base(struct engine *engine, int number) {
    return &engine->shared->bases[number];
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

const char *engine_quantization(const struct engine *engine) {
    return engine->quantization_text;
}

int64_t engine_max_rows(const struct engine *engine) {
    return engine->options.max_rows;
}

int64_t engine_max_sequences(const struct engine *engine) {
    return engine->options.max_sequences;
}

int64_t engine_max_positions(const struct engine *engine) {
    return engine->options.max_positions;
}

/* It follows from the grid, so it holds also for an engine that is only planned. */
bool engine_leads(const struct engine *engine) {
    return engine->shared->holder == 0;
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
    return engine->shared->rank.grid.pipeline;
}

struct rank *engine_rank(struct engine *engine) {
    return &engine->shared->rank;
}

int engine_step_work(struct engine *engine, const struct model_step_shape *shape, struct work_list *list) {
    return model_step_work(engine->runner, shape, list);
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
