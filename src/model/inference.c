/* An inference runner: its opening, first as a sketch that plans everything it will run. */
#include "model-internal.h"

/* Plans a step of `rows` rows. */
static int plan_rows(void *self, int64_t rows) {
    struct inference_runner *inference = self;
    int64_t wanted = inference->options.max_logit_rows, at_a_time = model_sizes(&inference->run)->step_rows;
    struct model_step_shape step = {.rows = rows, .logit_rows = rows, .seen = (double)inference->run.max_positions};
    step.logit_rows = rows < wanted ? rows : wanted;
    step.logit_rows = step.logit_rows < at_a_time ? step.logit_rows : at_a_time;
    return model_plan_step(inference, &step);
}

static int build(struct inference_runner *inference, struct model_plan *plan) {
    struct runner *run = &inference->run;
    const struct base *base = run->base;
    struct arena arena = ARENA_PLAN;
    size_t layers = (size_t)base_chunk_layers(base);
    inference->stash.saved = calloc(layers + !layers, sizeof *inference->stash.saved); /* no array is empty */
    TRY(status_allocated(inference->stash.saved));
    inference_place(inference, &arena);
    run->activation_bytes = arena.used;
    plan->activations += arena.used;
    plan->transfers += UPLOAD_TURNS * inference_upload_bytes(inference) + step_fetches_bytes(inference);
    plan->kv_page_bytes = model_kv_bytes(base, 1);
    return runner_plan(run, plan_rows, inference);
}

int inference_sketch(const struct model_options *options, const struct base *base, struct model_plan *plan,
                     struct inference_runner **out) {
    struct inference_runner *inference = *out = calloc(1, sizeof *inference);
    TRY(status_allocated(inference));
    runner_begin(&inference->run, base, options);
    inference->options = options->infer;
    return build(inference, plan);
}

int inference_allocate(struct inference_runner *inference) {
    struct runner *run = &inference->run;
    TRY(runner_allocate(run));
    struct arena arena = arena_over(run->activations, run->activation_bytes);
    inference_place(inference, &arena);
    TRY(runner_open_uploads(run, inference_upload_bytes(inference)));
    return step_open_fetches(inference);
}

int inference_open_pages(struct inference_runner *inference, int64_t page_count) {
    inference->kv.page_count = page_count;
    return device_alloc(inference->run.rank->device, model_kv_bytes(inference->run.base, page_count),
                        &inference->kv.pages);
}

int inference_touch_pages(struct inference_runner *inference) {
    struct stream *stream = inference->run.rank->exec.stream;
    int status =
        stream_zero(stream, inference->kv.pages, model_kv_bytes(inference->run.base, inference->kv.page_count));
    return status ? status : stream_wait(stream);
}

void inference_close(struct inference_runner *inference) {
    if (!inference)
        return;
    step_close_records(inference);
    step_close_fetches(inference);
    runner_close(&inference->run);
    device_free(inference->run.rank->device, inference->kv.pages);
    free(inference->stash.saved);
    free(inference);
}
