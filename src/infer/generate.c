/* Generation: a request of the scheduler for each prompt. */
#include "infer/generate.h"
#include "infer/slots.h"

#include <math.h>

struct generation {
    const struct tokenizer *tokenizer;
    const struct generate_options *options;
    struct generated *out;
    struct writer *writers; /* [samples] */
    size_t *given;          /* [samples] bytes already passed to on_text */
    bool is_done;
    int status; /* first failure in a callback */
};

static const struct ask_ends *ends_of(const struct generate_options *options) {
    static const struct ask_ends none;
    return options->ends ? options->ends : &none;
}

/* Passes the bytes that the writer released to on_text. */
static void give_text(struct generation *g, int64_t sample) {
    const struct strbuf *text = &g->out[sample].text;
    size_t from = g->given[sample];
    g->given[sample] = text->length;
    if (!g->status && text->length > from && g->options->on_text)
        g->status = g->options->on_text(g->options->context, sample, text->data + from, text->length - from);
}

static bool on_token(void *context, int64_t sample, const struct scheduler_token *token) {
    struct generation *g = context;
    struct generated *out = &g->out[sample];
    bool is_ended = false;
    if (!g->status && !isfinite(token->logprob))
        g->status = status_fail(STATUS_INVALID, ENGINE_NO_PROBABILITY);
    if (g->status || token->is_end)
        return g->status != STATUS_OK;
    g->status = token_buffer_add(&out->tokens, token->token);
    const struct ask_completion completion = {g->options->ask, ends_of(g->options), g->tokenizer, &g->writers[sample],
                                              (int64_t)out->tokens.count};
    THEN(g->status, ask_write(&completion, token->token, &out->text, &is_ended));
    give_text(g, sample);
    return g->status || is_ended;
}

static void on_end(void *context, int64_t sample, enum scheduler_end reason) {
    struct generation *g = context;
    g->out[sample].reason = reason == SCHEDULER_STOP        ? FINISH_STOP
                            : reason == SCHEDULER_CANCELLED ? FINISH_INTERRUPTED
                                                            : FINISH_LENGTH;
    if (!g->status)
        g->status = writer_end(&g->writers[sample], &g->out[sample].text);
    give_text(g, sample);
}

static void on_done(void *context) {
    struct generation *g = context;
    g->is_done = true;
}

/* Returns the maximum number of tokens that fit: the token after the last position is drawn but not run. */
static int64_t room(const struct engine *engine, const struct generate_options *options) {
    int64_t positions = engine_max_positions(engine);
    int64_t remaining = positions + 1 - engine_slot_virtual_tokens(engine, options->slot) - options->prompt_length;
    return options->ask->max_tokens < 0 || remaining < options->ask->max_tokens ? remaining : options->ask->max_tokens;
}

static bool is_interrupted(const struct generate_options *options) {
    return options->is_interrupted && options->is_interrupted(options->context);
}

static int submit(const struct engine *engine, struct scheduler *scheduler, struct generation *g) {
    const struct generate_options *options = g->options;
    enum scheduler_refusal refusal;
    uint64_t number;
    const struct ask_prompt prompt = {engine, options->slot, options->prompt, options->prompt_length};
    struct scheduler_request request;
    ask_schedule(options->ask, ends_of(options), &prompt, &request);
    request.max_tokens = room(engine, options);
    request.calls = (struct scheduler_calls){.on_token = on_token, .on_end = on_end, .on_done = on_done};
    request.context = g;
    return scheduler_submit(scheduler, &request, &number, &refusal);
}

static int run(struct engine *engine, struct generation *all, int64_t count) {
    struct scheduler *scheduler = NULL;
    int status = engine_open_scheduler(engine, &(struct scheduler_options){0}, &scheduler);
    for (int64_t i = 0; i < count && !status; i++)
        status = submit(engine, scheduler, &all[i]);
    for (int64_t i = 0; i < count && status >= 0 && !all[i].status && !is_interrupted(all[i].options);)
        if (all[i].is_done)
            i++;
        else
            status = scheduler_step(scheduler);
    if (scheduler)
        scheduler_close(scheduler); /* calls on_end of completions that are not finished */
    for (int64_t i = 0; i < count && status >= 0; i++)
        status = all[i].status;
    return status < 0 ? status : STATUS_OK;
}

int generate_check(const struct engine *engine, const struct generate_options *options) {
    if (options->prompt_length < 1)
        return status_fail(STATUS_INVALID, "the prompt has no tokens");
    return engine_check_tokens(engine, options->slot, "the prompt has ", options->prompt, options->prompt_length);
}

static int open_generation(const struct tokenizer *tokenizer, const struct generate_options *options,
                           struct generated *out, struct generation *g) {
    *g = (struct generation){.tokenizer = tokenizer, .options = options, .out = out};
    g->writers = calloc((size_t)options->ask->choices, sizeof *g->writers);
    g->given = calloc((size_t)options->ask->choices, sizeof *g->given);
    return status_allocated(g->writers && g->given);
}

static void close_generation(struct generation *g) {
    for (int64_t i = 0; g->writers && i < g->options->ask->choices; i++)
        writer_free(&g->writers[i]);
    free(g->writers);
    free(g->given);
}

int generate_all(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
                 int64_t count, struct generated *out) {
    struct generation *all = calloc((size_t)count + 1, sizeof *all);
    int64_t samples = 0, opened = 0;
    int status = status_allocated(all);
    for (int64_t i = 0; i < count; samples += options[i++].ask->choices) {
        for (int64_t k = 0; k < options[i].ask->choices; k++)
            out[samples + k] = (struct generated){.tokens = TOKEN_BUFFER_INIT, .reason = FINISH_LENGTH};
        THEN(status, generate_check(engine, &options[i]));
        if (!status && options[i].ask->max_tokens)
            status = open_generation(tokenizer, &options[i], out + samples, &all[opened++]);
    }
    THEN(status, run(engine, all, opened));
    for (int64_t i = 0; i < opened; i++)
        close_generation(&all[i]);
    free(all);
    return status;
}

int generate(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
             struct generated *out) {
    return generate_all(engine, tokenizer, options, 1, out);
}

void generated_free(struct generated *generated) {
    token_buffer_free(&generated->tokens);
    strbuf_free(&generated->text);
}
