/* Generation: a prompt once, then all samples forward together, a token a step. */
#include "infer/infer.h"
#include "infer/writer.h"

#include <stdlib.h>
#include <string.h>

/* One text being written. */
struct writing {
    int sequence; /* -1 once it ended */
    int32_t next; /* the token that the next step runs */
    size_t given; /* bytes of the text that on_text has had */
    struct writer writer;
};

struct generation {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct generate_options *options;
    struct generated *out;
    struct writer_stops *stops;
    struct writing *writing;          /* [samples] */
    struct engine_sampling *sampling; /* [samples] */
    struct engine_row *rows;
    struct engine_result *results;
};

/* What the writer let go. */
static int give_text(const struct generation *g, int64_t sample) {
    struct writing *writing = &g->writing[sample];
    const struct strbuf *text = &g->out[sample].text;
    size_t from = writing->given;
    if (text->length == from)
        return STATUS_OK;
    writing->given = text->length;
    return g->options->on_text
               ? g->options->on_text(g->options->context, sample, text->data + from, text->length - from)
               : STATUS_OK;
}

static int finish(struct generation *g, int64_t sample, enum finish_reason reason) {
    struct writing *writing = &g->writing[sample];
    g->out[sample].reason = reason;
    engine_sequence_free(g->engine, writing->sequence);
    writing->sequence = -1;
    int status = writer_end(&writing->writer, &g->out[sample].text);
    return status ? status : give_text(g, sample);
}

static bool ends_text(const struct generate_options *options, int32_t token) {
    for (size_t i = 0; i < options->end_count; i++)
        if (options->end_ids[i] == token)
            return true;
    return false;
}

/* Takes one drawn token into a text; ends the text where it has to end. */
static int accept(struct generation *g, int64_t sample, int32_t token) {
    struct generated *out = &g->out[sample];
    struct writing *writing = &g->writing[sample];
    const struct generate_options *options = g->options;
    size_t length = 0;
    if (ends_text(options, token))
        return finish(g, sample, FINISH_STOP);
    int status = token_buffer_add(&out->tokens, token);
    /* A vocabulary is often padded beyond the tokenizer's: such an id stands for no text. */
    const unsigned char *bytes = g->tokenizer ? tokenizer_token_bytes(g->tokenizer, token, &length) : NULL;
    if (!status)
        status = writer_add(&writing->writer, bytes, length, &out->text);
    if (status)
        return status;
    if (writing->writer.is_stopped)
        return finish(g, sample, FINISH_STOP);
    status = give_text(g, sample);
    writing->next = token;
    int64_t run = engine_sequence_length(g->engine, writing->sequence);
    bool is_full = run >= engine_config(g->engine)->max_position_embeddings;
    if (!status && ((int64_t)out->tokens.count >= options->max_new_tokens || is_full))
        status = finish(g, sample, FINISH_LENGTH);
    return status;
}

/* All of the prompt but its last token, into one sequence; every sample becomes a fork of it. */
static int run_prompt(struct generation *g) {
    const struct generate_options *options = g->options;
    int first = engine_sequence_new(g->engine);
    if (first < 0)
        return first;
    g->writing[0].sequence = first;
    int64_t chunk = engine_max_rows(g->engine);
    int status = STATUS_OK;
    for (int64_t done = 0; done < options->prompt_length - 1 && !status; done += chunk) {
        int64_t count = options->prompt_length - 1 - done < chunk ? options->prompt_length - 1 - done : chunk;
        for (int64_t i = 0; i < count; i++)
            g->rows[i] = (struct engine_row){.token = options->prompt[done + i], .sequence = first, .label = -1};
        status = engine_step(g->engine, g->rows, count, g->results);
    }
    for (int64_t i = 0; i < options->samples && !status; i++) {
        if (i > 0) {
            int sequence = engine_sequence_fork(g->engine, first);
            status = sequence < 0 ? sequence : STATUS_OK;
            g->writing[i].sequence = sequence < 0 ? -1 : sequence;
        }
        g->writing[i].next = options->prompt[options->prompt_length - 1];
    }
    return status;
}

/* One step of all texts that have not ended; *live counts them. */
static int run_decode(struct generation *g, int64_t *live) {
    int64_t count = 0;
    for (int64_t i = 0; i < g->options->samples; i++) {
        if (g->writing[i].sequence < 0)
            continue;
        g->rows[count++] = (struct engine_row){.token = g->writing[i].next,
                                               .sequence = g->writing[i].sequence,
                                               .wants_logits = true,
                                               .label = -1,
                                               .sampling = &g->sampling[i]};
    }
    *live = count;
    int status = count ? engine_step(g->engine, g->rows, count, g->results) : STATUS_OK;
    for (int64_t i = 0, row = 0; i < g->options->samples && !status; i++)
        if (g->writing[i].sequence >= 0)
            status = accept(g, i, g->results[row++].token);
    return status;
}

/* With everything allocated: the whole generation; no sequence stays behind. */
static int write_texts(struct generation *g) {
    for (int64_t i = 0; i < g->options->samples; i++) {
        g->writing[i].sequence = -1;
        writer_begin(&g->writing[i].writer, g->stops);
        g->sampling[i] = g->options->sampling;
        g->sampling[i].choice = (uint32_t)i;
    }
    int status = run_prompt(g);
    for (int64_t live = 1; live && !status;)
        status = run_decode(g, &live);
    for (int64_t i = 0; i < g->options->samples; i++) {
        if (g->writing[i].sequence >= 0)
            engine_sequence_free(g->engine, g->writing[i].sequence);
        writer_free(&g->writing[i].writer);
    }
    return status;
}

static int open_stops(const char *const *stop, size_t count, struct writer_stops **stops) {
    struct writer_string *strings = calloc(count + 1, sizeof *strings);
    *stops = NULL;
    if (!strings)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++)
        strings[i] = (struct writer_string){stop[i], strlen(stop[i])};
    int status = writer_stops_open(strings, count, stops);
    free(strings);
    return status;
}

int generate_check_stops(const char *const *stop, size_t count) {
    struct writer_stops *stops;
    int status = open_stops(stop, count, &stops);
    writer_stops_close(stops);
    return status;
}

int generate_check(const struct engine *engine, const int32_t *prompt, int64_t prompt_length) {
    if (prompt_length < 1)
        return status_fail(STATUS_INVALID, "the prompt has no tokens");
    return engine_check_tokens(engine, "the prompt has ", prompt, prompt_length);
}

int generate(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
             struct generated *out) {
    for (int64_t i = 0; i < options->samples; i++)
        out[i] = (struct generated){.tokens = TOKEN_BUFFER_INIT, .text = STRBUF_INIT, .reason = FINISH_LENGTH};
    int64_t rows = engine_max_rows(engine);
    int status = generate_check(engine, options->prompt, options->prompt_length);
    if (!status && options->samples > rows)
        status = status_fail(STATUS_INVALID, "%lld samples at once in an engine opened for %lld rows",
                             (long long)options->samples, (long long)rows);
    if (status || options->max_new_tokens < 1)
        return status;
    struct generation g = {.engine = engine, .tokenizer = tokenizer, .options = options, .out = out};
    g.writing = calloc((size_t)options->samples, sizeof *g.writing);
    g.sampling = calloc((size_t)options->samples, sizeof *g.sampling);
    g.rows = calloc((size_t)rows, sizeof *g.rows);
    g.results = calloc((size_t)rows, sizeof *g.results);
    if (!g.writing || !g.sampling || !g.rows || !g.results)
        status = status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = open_stops(options->stop, options->stop_count, &g.stops);
    if (!status)
        status = write_texts(&g);
    writer_stops_close(g.stops);
    free(g.results);
    free(g.rows);
    free(g.sampling);
    free(g.writing);
    return status;
}

void generated_free(struct generated *generated) {
    token_buffer_free(&generated->tokens);
    strbuf_free(&generated->text);
}
