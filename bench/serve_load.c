/* Texts at once and one after another: rounds, and the scenarios that are made of them. */
#include "serve.h"

/* ---- texts ---- */

static void on_token(struct client_text *asked, double gap) {
    struct serve_text *text = asked->context;
    struct serve_bench *bench = text->bench;
    int status = STATUS_OK;
    if (gap >= 0 && text->is_measured)
        status = bench_series_add(&bench->tally.itl, gap);
    if (gap >= 0 && text->has_gaps && bench->gap_class != SERVE_NO_CLASS && !status)
        status = bench_series_add(&bench->gaps[bench->gap_class], gap);
    bench->tally.has_failed |= status != STATUS_OK;
}

int serve_text_ask(struct serve_bench *bench, const struct serve_ask *ask, struct serve_text *text) {
    int64_t in = ask->shared + ask->in;
    *text = (struct serve_text){.bench = bench,
                                .prompt = calloc((size_t)in + 1, sizeof *text->prompt),
                                .is_measured = bench->is_measured,
                                .has_gaps = ask->has_gaps};
    TRY(status_allocated(text->prompt));
    uint64_t number = bench->texts++;
    for (int64_t i = 0; i < in; i++)
        text->prompt[i] = engine_token(&bench->engine.config, i < ask->shared ? ask->beginning : number, i);
    text->text = (struct client_text){.adapter = ask->adapter,
                                      .prompt = text->prompt,
                                      .in = in,
                                      .out = ask->out,
                                      .on_token = on_token,
                                      .context = text};
    return client_ask(ask->client, &text->text);
}

static void tally(struct serve_tally *tally, const struct client_text *text) {
    double whole = text->last - text->asked, first = text->first - text->asked;
    int status = bench_series_add(&tally->ttft, first);
    THEN(status, bench_series_add(&tally->e2el, whole));
    THEN_IF(status, text->tokens > 1, bench_series_add(&tally->tpot, (whole - first) / (double)(text->tokens - 1)));
    tally->has_failed |= status != STATUS_OK;
    tally->completed++;
    tally->in += text->in;
    tally->out += text->tokens;
}

void serve_text_free(struct serve_text *text) {
    if (text->is_measured && text->text.is_done && !text->text.has_failed && text->text.chunks)
        tally(&text->bench->tally, &text->text);
    free(text->prompt);
    *text = (struct serve_text){0};
}

/* ---- rounds ---- */

int serve_round(struct serve_bench *bench, const struct serve_round *round, double *seconds) {
    struct serve_text *texts = calloc((size_t)round->count, sizeof *texts);
    int status = status_allocated(texts);
    double start = clock_seconds(), end = start;
    for (int64_t i = 0; i < round->count && !status; i++)
        status = serve_text_ask(bench,
                                &(struct serve_ask){.client = round->client,
                                                    .adapter = round->adapters ? round->adapters[i] : NULL,
                                                    .in = round->in,
                                                    .out = round->out},
                                &texts[i]);
    for (int64_t i = 0; i < round->count && !status; i++)
        status = client_await(round->client, &texts[i].text);
    for (int64_t i = 0; texts && i < round->count; i++) {
        if (texts[i].text.wire)
            client_leave(round->client, &texts[i].text);
        end = texts[i].text.last > end ? texts[i].text.last : end;
        serve_text_free(&texts[i]);
    }
    free(texts);
    *seconds = end - start;
    if (bench->is_measured)
        bench->tally.duration += *seconds;
    return status;
}

int serve_first_token(struct serve_bench *bench, const struct serve_ask *ask, double *seconds) {
    struct serve_text text;
    int status = serve_text_ask(bench, ask, &text);
    THEN(status, client_await(ask->client, &text.text));
    *seconds = text.text.first - text.text.asked;
    if (bench->is_measured && !status)
        bench->tally.duration += text.text.last - text.text.asked;
    serve_text_free(&text);
    return status;
}

static int64_t count_rounds(const struct serve_bench *bench) {
    int64_t rounds = (bench->requests + bench->streams - 1) / bench->streams;
    return rounds ? rounds : 1;
}

/* Adds the ratio of pairs under the scenario's name, and its quartiles. Stores the baseline's seconds in *baseline,
 * which may be NULL. */
static void take_ratio(struct serve_bench *bench, struct engine_pairs *pairs, bool is_speed, const char *name,
                       double *baseline) {
    json_t *figure = engine_pairs_figure(&bench->engine, pairs, is_speed, 0);
    if (baseline)
        *baseline = json_number_value(json_object_get(figure, "baseline_seconds"));
    if (figure) {
        json_object_set(bench->found, name, json_object_get(figure, "ratio"));
        json_object_set(bench->found, "quartiles", json_object_get(figure, "quartiles"));
    }
    json_decref(figure);
}

/* ---- the base, and bare steps of the same rows ---- */

static int run_bare(struct serve_bench *bench, struct engine *engine, double *seconds) {
    bench_pause();
    int status = engine_group_run(engine, bench->streams, bench->in, bench->out, seconds);
    bench_pause();
    return status;
}

int serve_scenario_streams(struct serve_bench *bench) {
    struct serve_round round = {
        .client = bench->client[0], .count = bench->streams, .in = bench->in, .out = bench->out};
    struct engine_pairs pairs = {0};
    struct engine_options options = {.max_sequences = bench->streams, .has_no_prefix_cache = true};
    struct engine *engine = NULL;
    double served, bare = 0;
    bool is_comparable = !bench->options->url && bench->ranks == 1 && bench->streams <= ENGINE_MOST_TEXTS;
    int status = is_comparable ? engine_bench_open(&bench->engine, options, &engine) : STATUS_OK;
    THEN(status, serve_round(bench, &round, &served));
    THEN(status, engine ? run_bare(bench, engine, &bare) : STATUS_OK);
    bench->is_measured = true;
    for (int64_t i = count_rounds(bench); i > 0 && !status; i--) {
        status = serve_round(bench, &round, &served);
        THEN(status, engine ? run_bare(bench, engine, &bare) : STATUS_OK);
        THEN(status, engine ? engine_pairs_add(&bench->engine, &pairs, served, bare) : STATUS_OK);
    }
    take_ratio(bench, &pairs, true, "ratio", &bare);
    if (!status && bare > 0)
        json_object_set_new(bench->found, "engine_output_throughput",
                            json_real((double)(bench->streams * bench->out) / bare));
    engine_close(engine);
    return status;
}

/* ---- a shared beginning ---- */

int serve_scenario_prefix(struct serve_bench *bench) {
    struct engine_pairs pairs = {0};
    struct serve_ask ask = {.client = bench->client[0],
                            .shared = bench->options->shared_prefix ? bench->options->shared_prefix
                                                                    : engine_bench_share(&bench->engine, ENGINE_SHARED),
                            .in = bench->in,
                            .out = 1};
    double cached, uncached;
    int status = serve_first_token(bench, &ask, &uncached); /* it is cached from here on */
    bench->is_measured = true;
    for (int64_t i = 0; i < bench->requests && !status; i += 2) {
        ask.beginning = 0;
        status = serve_first_token(bench, &ask, &cached);
        ask.beginning = bench->texts;
        THEN(status, serve_first_token(bench, &ask, &uncached));
        THEN(status, engine_pairs_add(&bench->engine, &pairs, cached, uncached));
    }
    take_ratio(bench, &pairs, false, "ttft_cached_over_uncached", NULL);
    return status;
}

/* ---- adapters ---- */

int serve_scenario_bank(struct serve_bench *bench) {
    struct serve_round base = {.client = bench->client[0], .count = bench->streams, .in = bench->in, .out = bench->out};
    struct serve_round measured = base;
    struct engine_pairs pairs = {0};
    const char **names = calloc((size_t)bench->streams, sizeof *names);
    int64_t rounds = count_rounds(bench), next = 0;
    double seconds, other;
    int status = status_allocated(names);
    for (int64_t i = 0; i < bench->adapter_count && !status; i++) /* files are read at an adapter's first request */
        status = serve_first_token(
            bench, &(struct serve_ask){.client = bench->client[0], .adapter = bench->adapters[i], .in = 1, .out = 1},
            &other);
    measured.adapters = names;
    THEN(status, serve_round(bench, &base, &other));
    for (int64_t i = 0; i < rounds && !status; i++) {
        for (int64_t k = 0; k < bench->streams; k++)
            names[k] = bench->adapters[next++ % bench->adapter_count];
        bench->is_measured = true;
        status = serve_round(bench, &measured, &seconds);
        bench->is_measured = false;
        THEN(status, serve_round(bench, &base, &other));
        THEN(status, engine_pairs_add(&bench->engine, &pairs, seconds, other));
    }
    json_object_set_new(bench->found, "adapters", json_integer((json_int_t)bench->adapter_count));
    take_ratio(bench, &pairs, true, "bank_over_none", NULL);
    free(names);
    return status;
}

/* ---- two stages ---- */

int serve_scenario_pipeline(struct serve_bench *bench) {
    char layers[80];
    const char *const staged[] = {"--ranks", "2", "--parallel.pipeline_model_parallel_size=2", layers, NULL};
    struct serve_round measured = {.count = bench->streams, .in = bench->in, .out = bench->out};
    struct serve_round one = measured;
    struct engine_pairs pairs = {0};
    double seconds, other;
    snprintf(layers, sizeof layers, "--parallel.decoder_first_pipeline_num_layers=%lld",
             (long long)engine_first_layers(&bench->engine.config));
    bench->ranks = 2;
    int status = serve_start(bench, 0, staged);
    THEN(status, serve_start(bench, 1, NULL));
    measured.client = bench->client[0];
    one.client = bench->client[1];
    THEN(status, serve_round(bench, &measured, &seconds));
    THEN(status, serve_round(bench, &one, &other));
    for (int64_t i = count_rounds(bench); i > 0 && !status; i--) {
        bench->is_measured = true;
        status = serve_round(bench, &measured, &seconds);
        bench->is_measured = false;
        THEN(status, serve_round(bench, &one, &other));
        THEN(status, engine_pairs_add(&bench->engine, &pairs, seconds, other));
    }
    take_ratio(bench, &pairs, true, "in_flight_gain", NULL);
    return status;
}
