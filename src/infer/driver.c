/* The engine's table of calls for a scheduler. */
#include "engine-internal.h"

static int open_sequence(void *self, const struct sequence_beginning *beginning, int64_t *cached) {
    return engine_sequence_open(self, beginning, cached);
}

static void close_sequence(void *self, int sequence) {
    engine_sequence_close(self, sequence);
}

static int64_t pages_available(void *self) {
    return engine_pages_available(self);
}

static int64_t pages_needed(void *self, int sequence, int64_t rows) {
    return engine_pages_needed(self, sequence, rows);
}

static int submit(void *self, const struct engine_row *rows, int64_t count) {
    return engine_submit(self, rows, count);
}

static int collect(void *self, struct engine_result *results) {
    return engine_collect(self, results);
}

static double now(void *self) {
    return clock_seconds();
}

/* Returns the cost of attending to one more row, relative to a row's products with the weights (without the head, which
 * few rows need). An operation of attention takes about twice as long as one of a product. With GPT-2 124M on two cores
 * it took 2.1 times in bf16 and 1.7 in fp32, by a fit over the steps of bench serve --scenario long-prompt. */
static double row_growth(const struct model_config *config) {
    static const double slowness = 2;
    double weights = model_flops_per_token(config, 0);
    return slowness * (model_flops_per_token(config, 2) - weights) / (weights - model_head_flops_per_token(config));
}

int engine_open_scheduler(struct engine *engine, const struct scheduler_options *options,
                          struct scheduler **scheduler) {
    struct scheduler_engine calls = {.self = engine,
                                     .sequence_open = open_sequence,
                                     .sequence_close = close_sequence,
                                     .pages_available = pages_available,
                                     .pages_needed = pages_needed,
                                     .submit = submit,
                                     .collect = collect,
                                     .now = now};
    struct scheduler_options complete = *options;
    complete.max_rows = engine_max_rows(engine);
    complete.max_logit_rows = engine->options.max_logit_rows;
    complete.max_sequences = engine_max_sequences(engine);
    complete.max_positions = engine_max_positions(engine);
    complete.page_tokens = KV_PAGE_TOKENS;
    complete.pages = engine_pages(engine);
    complete.vocab = engine_config(engine)->vocab_size;
    complete.row_growth = row_growth(engine_config(engine));
    complete.depth = options->depth && options->depth < engine_depth(engine) ? options->depth : engine_depth(engine);
    return scheduler_open(&calls, &complete, scheduler);
}
