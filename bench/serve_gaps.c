/* Gaps between the tokens of texts, with and without arriving prompts or replaced adapters. */
#include "serve.h"

enum { QUIET, BUSY };
enum { PROMPT = 1000 /* of 1,024 positions */, WINDOW = 32 /* gaps of each text */ };

/* Texts without a pause: when one ends, the next one begins. */
struct writers {
    struct serve_bench *bench;
    int64_t count;
    struct serve_text *texts;
    bool on_adapters;
    double began;
};

static int begin(struct writers *writers, int64_t i) {
    struct serve_bench *bench = writers->bench;
    int64_t in = engine_bench_share(&bench->engine, ENGINE_IN),
            virtual = writers->on_adapters ? bench->options->engine.peft.num_virtual_tokens : 0,
            remaining = model_positions(&bench->engine.config) - in - virtual;
    return serve_text_ask(bench,
                          &(struct serve_ask){.client = bench->client[0],
                                              .adapter = writers->on_adapters && bench->adapter_count
                                                             ? bench->adapters[i % bench->adapter_count]
                                                             : NULL,
                                              .in = in,
                                              .out = bench->out && bench->out < remaining ? bench->out : remaining,
                                              .has_gaps = true},
                          &writers->texts[i]);
}

/* Waits for an event, and starts the next texts. */
static int turn(struct writers *writers) {
    struct serve_bench *bench = writers->bench;
    int status = client_turn(bench->client[0]);
    for (int64_t i = 0; i < writers->count && !status; i++) {
        struct serve_text *text = &writers->texts[i];
        if (!text->text.is_done)
            continue;
        status = client_await(bench->client[0], &text->text); /* returns its failure */
        serve_text_free(text);
        THEN(status, begin(writers, i));
    }
    return status;
}

/* Waits until each text has a token, and a step has run without a prompt. */
static int open_writers(struct writers *writers) {
    int status = STATUS_OK;
    writers->texts = calloc((size_t)writers->count + 1, sizeof *writers->texts);
    TRY(status_allocated(writers->texts));
    writers->bench->gap_class = SERVE_NO_CLASS;
    writers->began = clock_seconds();
    for (int64_t i = 0; i < writers->count && !status; i++)
        status = begin(writers, i);
    for (int64_t i = 0; i < writers->count; i++)
        while (!status && writers->texts[i].text.chunks < 2)
            status = turn(writers);
    return status;
}

/* Drops the texts, which do not count. */
static void close_writers(struct writers *writers) {
    struct serve_bench *bench = writers->bench;
    for (int64_t i = 0; writers->texts && i < writers->count; i++) {
        if (writers->texts[i].text.wire)
            client_leave(bench->client[0], &writers->texts[i].text);
        writers->texts[i].is_measured = false;
        serve_text_free(&writers->texts[i]);
    }
    free(writers->texts);
    bench->tally.duration += clock_seconds() - writers->began;
}

/* Waits until `count` more gaps of a class have come. */
static int wait_gaps(struct writers *writers, int gap_class, int64_t count) {
    struct serve_bench *bench = writers->bench;
    int64_t end = bench->gaps[gap_class].count + count;
    int status = STATUS_OK;
    bench->gap_class = gap_class;
    while (bench->gaps[gap_class].count < end && !status && !bench->tally.has_failed)
        status = turn(writers);
    bench->gap_class = SERVE_NO_CLASS;
    return status;
}

static void tell(struct serve_bench *bench, const char *name, double value) {
    json_object_set_new(bench->found, name, json_real(value));
}

static void tell_gaps(struct serve_bench *bench) {
    static const char *const names[SERVE_TEXT_CLASSES][2] = {{"quiet_median_gap_ms", "quiet_p99_gap_ms"},
                                                             {"busy_median_gap_ms", "busy_p99_gap_ms"}};
    for (int c = 0; c < SERVE_TEXT_CLASSES; c++) {
        tell(bench, names[c][0], 1e3 * bench_median(bench->gaps[c].values, bench->gaps[c].count));
        tell(bench, names[c][1], 1e3 * bench_quantile(bench->gaps[c].values, bench->gaps[c].count, 0.99));
    }
}

static double p99(struct serve_bench *bench, int gap_class) {
    return bench_quantile(bench->gaps[gap_class].values, bench->gaps[gap_class].count, 0.99);
}

/* ---- prompts that arrive ---- */

struct prompts {
    int64_t length;
    struct bench_series beside, alone; /* seconds to the first token */
    struct bench_series
        stretches; /* gaps during a prompt, over the median of those after it, because texts get longer */
};

static int run_alone(struct serve_bench *bench, struct prompts *prompts, int64_t count) {
    struct serve_ask ask = {.client = bench->client[0], .in = prompts->length, .out = 1};
    int status = STATUS_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        double seconds;
        status = serve_first_token(bench, &ask, &seconds);
        THEN(status, bench_series_add(&prompts->alone, seconds));
    }
    return status;
}

static int add_stretches(struct serve_bench *bench, struct prompts *prompts, int64_t first_busy, int64_t first_quiet) {
    const struct bench_series *busy = &bench->gaps[BUSY], *quiet = &bench->gaps[QUIET];
    int status = STATUS_OK;
    if (quiet->count == first_quiet)
        return STATUS_OK; /* no memory for more, which is reported at the end */
    double median = bench_median(quiet->values + first_quiet, quiet->count - first_quiet);
    for (int64_t i = first_busy; i < busy->count && !status; i++)
        status = bench_series_add(&prompts->stretches, busy->values[i] / median);
    return status;
}

/* Runs a prompt during the texts, and afterwards as many gaps without one. */
static int run_beside(struct writers *writers, struct prompts *prompts) {
    struct serve_bench *bench = writers->bench;
    struct serve_text prompt;
    int64_t first_busy = bench->gaps[BUSY].count, first_quiet = bench->gaps[QUIET].count;
    int status = serve_text_ask(bench, &(struct serve_ask){.client = bench->client[0], .in = prompts->length, .out = 1},
                                &prompt);
    bench->gap_class = BUSY;
    while (!prompt.text.is_done && !status)
        status = turn(writers);
    bench->gap_class = SERVE_NO_CLASS;
    THEN(status, client_await(bench->client[0], &prompt.text));
    THEN(status, bench_series_add(&prompts->beside, prompt.text.first - prompt.text.asked));
    if (prompt.text.wire)
        client_leave(bench->client[0], &prompt.text);
    serve_text_free(&prompt);
    int64_t gaps = bench->gaps[BUSY].count - first_busy;
    THEN(status, wait_gaps(writers, QUIET, gaps > writers->count ? gaps : writers->count));
    return status ? status : add_stretches(bench, prompts, first_busy, first_quiet);
}

static int run_prompts(struct serve_bench *bench, struct prompts *prompts) {
    struct writers writers = {.bench = bench, .count = bench->streams > 1 ? bench->streams - 1 : 1};
    int status = open_writers(&writers);
    bench->is_measured = true;
    for (int64_t i = 0; i < bench->requests && !status; i++)
        status = run_beside(&writers, prompts);
    close_writers(&writers);
    return status;
}

int serve_scenario_long_prompt(struct serve_bench *bench) {
    struct prompts prompts = {.length = bench->in};
    double unused;
    bench->out = bench->options->output_len; /* of the texts: by default as many as possible */
    int status = serve_first_token(
        bench, &(struct serve_ask){.client = bench->client[0], .in = prompts.length, .out = 1}, &unused);
    THEN(status, run_alone(bench, &prompts, (bench->requests + 1) / 2));
    THEN(status, run_prompts(bench, &prompts));
    bench->is_measured = false;
    if (!status) /* after the step in which the server noticed the dropped texts */
        status = serve_first_token(bench, &(struct serve_ask){.client = bench->client[0], .in = 1, .out = 1}, &unused);
    THEN(status, run_alone(bench, &prompts, (bench->requests + 1) / 2));
    if (!status && prompts.stretches.count) {
        double beside = bench_median(prompts.beside.values, prompts.beside.count),
               alone = bench_median(prompts.alone.values, prompts.alone.count);
        tell(bench, "gap_p99_over_median", bench_quantile(prompts.stretches.values, prompts.stretches.count, 0.99));
        tell(bench, "ttft_over_alone", beside / alone);
        tell(bench, "ttft_beside_ms", 1e3 * beside);
        tell(bench, "ttft_alone_ms", 1e3 * alone);
        tell_gaps(bench);
    }
    bench_series_free(&prompts.beside);
    bench_series_free(&prompts.alone);
    bench_series_free(&prompts.stretches);
    return status;
}

/* ---- adapters that are replaced ---- */

/* Makes one replacement after the other until there are enough gaps; the last one ends outside of the window. */
static int swap(struct writers *writers, struct bench_series *seconds) {
    struct serve_bench *bench = writers->bench;
    int64_t end = bench->gaps[BUSY].count + WINDOW * writers->count;
    int status = STATUS_OK;
    while (!status && bench->gaps[BUSY].count < end && !bench->tally.has_failed) {
        char path[128];
        struct client_text change = {.method = "PUT", .path = path, .body = "{}"};
        snprintf(path, sizeof path, "/v1/adapters/%s", bench->adapters[seconds->count % bench->adapter_count]);
        status = client_ask(bench->control, &change);
        bench->gap_class = BUSY;
        while (!change.is_done && !status) {
            status = turn(writers);
            if (bench->gaps[BUSY].count >= end)
                bench->gap_class = SERVE_NO_CLASS;
        }
        bench->gap_class = SERVE_NO_CLASS;
        THEN(status, client_await(bench->control, &change));
        if (change.wire)
            client_leave(bench->control, &change);
        THEN(status, bench_series_add(seconds, clock_seconds() - change.asked));
    }
    return status;
}

int serve_scenario_swap(struct serve_bench *bench) {
    struct writers writers = {.bench = bench, .count = bench->streams, .on_adapters = true};
    struct bench_series seconds = {0};
    bench->out = bench->options->output_len;
    int status = open_writers(&writers);
    bench->is_measured = true;
    while (seconds.count < bench->requests && !status && !bench->tally.has_failed) {
        status = wait_gaps(&writers, QUIET, WINDOW * writers.count);
        THEN(status, swap(&writers, &seconds));
    }
    close_writers(&writers);
    if (!status && seconds.count) {
        tell(bench, "gap_p99_over_quiet", p99(bench, BUSY) / p99(bench, QUIET));
        tell(bench, "swap_ms", 1e3 * bench_median(seconds.values, seconds.count));
        json_object_set_new(bench->found, "swaps", json_integer((json_int_t)seconds.count));
        json_object_set_new(bench->found, "adapters", json_integer((json_int_t)bench->adapter_count));
        tell_gaps(bench);
    }
    bench_series_free(&seconds);
    return status;
}
