/* Texts through a scheduler, and when their tokens came. */
#include "engine.h"
#include "infer/slots.h"

/* ---- gaps ---- */

static bool on_token(void *context, int64_t choice, const struct scheduler_token *token) {
    struct engine_load_text *text = context;
    double now = clock_seconds();
    if (text->tokens == 0)
        text->first = now;
    else if (text->has_gaps && text->load->gap_class != LOAD_NO_CLASS)
        text->load->is_out_of_memory |=
            bench_series_add(&text->load->gaps[text->load->gap_class], now - text->last) != 0;
    text->last = now;
    text->tokens++;
    return false;
}

static void on_done(void *context) {
    struct engine_load_text *text = context;
    text->is_done = true;
}

/* ---- loads ---- */

int engine_load_open(struct engine_load *load, struct engine *engine, int depth, double prefill_stretch) {
    *load = (struct engine_load){.engine = engine};
    struct scheduler_options options = {.depth = depth, .prefill_stretch = prefill_stretch};
    return engine_open_scheduler(engine, &options, &load->scheduler);
}

void engine_load_close(struct engine_load *load) {
    if (load->scheduler)
        scheduler_close(load->scheduler);
    for (int c = 0; c < LOAD_CLASSES; c++)
        bench_series_free(&load->gaps[c]);
    *load = (struct engine_load){0};
}

int engine_load_submit(struct engine_load *load, const struct engine_load_request *request,
                       struct engine_load_text *text) {
    *text = (struct engine_load_text){.load = load, .has_gaps = request->has_gaps, .submitted = clock_seconds()};
    struct scheduler_request asked = {.prompt = request->prompt,
                                      .prompt_length = request->in,
                                      .slot = request->slot,
                                      .virtual_tokens = engine_slot_virtual_tokens(load->engine, request->slot),
                                      .virtual_tokens_predict = engine_slot_predicts_first(load->engine, request->slot),
                                      .salt = request->salt,
                                      .max_tokens = request->out,
                                      .sampling = {.top_p = 1, .repetition_penalty = 1},
                                      .calls = {.on_token = on_token, .on_done = on_done},
                                      .context = text};
    enum scheduler_refusal refusal;
    return scheduler_submit(load->scheduler, &asked, &text->number, &refusal);
}

int engine_load_step(struct engine_load *load) {
    int status = scheduler_step(load->scheduler);
    if (status >= 0 && load->is_out_of_memory)
        return status_no_memory();
    return status < 0 ? status : STATUS_OK;
}

int engine_load_finish(struct engine_load *load, const struct engine_load_text *text) {
    int status = STATUS_OK;
    while (!text->is_done && !status)
        status = engine_load_step(load);
    return status;
}

/* Submits `count` random texts, text k on slots[k] (NULL: the base); `like` has the rest of their requests. */
static int engine_load_begin(struct engine_bench *bench, struct engine_load *load, const int *slots, int64_t count,
                             struct engine_load_request like, struct engine_load_text *texts) {
    int32_t *prompt = calloc((size_t)bench->in, sizeof *prompt);
    int status = status_allocated(prompt);
    like.prompt = prompt;
    like.in = bench->in;
    for (int64_t k = 0; k < count && !status; k++) {
        for (int64_t i = 0; i < bench->in; i++)
            prompt[i] = engine_token(&bench->config, (uint64_t)k, i);
        like.slot = slots ? slots[k] : -1;
        status = engine_load_submit(load, &like, &texts[k]);
    }
    free(prompt);
    return status;
}

int engine_load_write(struct engine_bench *bench, struct engine_load *load, const int *slots, int64_t count,
                      int64_t out, struct engine_load_text *texts) {
    int status =
        engine_load_begin(bench, load, slots, count, (struct engine_load_request){.out = out, .has_gaps = true}, texts);
    load->gap_class = LOAD_NO_CLASS;
    for (int64_t k = 0; k < count; k++)
        while (!status && !texts[k].tokens)
            status = engine_load_step(load);
    return status;
}

int engine_load_run(struct engine_bench *bench, struct engine *engine, int depth, double *seconds) {
    struct engine_load load;
    struct engine_load_text texts[ENGINE_TEXTS];
    int status = engine_load_open(&load, engine, depth, 0);
    THEN(status,
         engine_load_begin(bench, &load, NULL, ENGINE_TEXTS, (struct engine_load_request){.out = bench->out}, texts));
    double start = clock_seconds();
    for (int k = 0; k < ENGINE_TEXTS && !status; k++)
        status = engine_load_finish(&load, &texts[k]);
    *seconds = clock_seconds() - start;
    engine_load_close(&load);
    return status;
}
