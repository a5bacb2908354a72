/* cambium bench serve: scenarios, their defaults, and the summary, whose keys are those of vLLM's benchmark of
 * servers. */
#include "serve.h"

#include <math.h>

enum { ROUNDS = 5 };

const char *const bench_protocols[] = {"http", "grpc", NULL};
const char *const bench_scenarios[] = {"streams",  "prefix", "long-prompt", "swap", "bank",
                                       "pipeline", "health", "idle",        NULL};

static const struct scenario {
    serve_scenario *run;
    int64_t requests;  /* the default; 0: ROUNDS of each stream */
    int64_t in;        /* of 1,024 positions */
    bool needs_server; /* starts a server; one at a URL does not do */
    bool starts;       /* starts servers itself */
} scenarios[] = {
    {serve_scenario_streams, 0, ENGINE_IN, false, false},    {serve_scenario_prefix, 32, ENGINE_UNSHARED, false, false},
    {serve_scenario_long_prompt, 16, 1000, false, false},    {serve_scenario_swap, 32, ENGINE_IN, true, false},
    {serve_scenario_bank, 0, ENGINE_IN, false, false},       {serve_scenario_pipeline, 0, ENGINE_IN, true, true},
    {serve_scenario_health, 20000, ENGINE_IN, false, false}, {serve_scenario_idle, 1, ENGINE_IN, true, false},
};

static const struct scenario *scenario_of(const struct serve_bench *bench) {
    return &scenarios[bench->options->scenario];
}

/* ---- opening ---- */

/* Sets numbers and lengths. */
static int choose(struct serve_bench *bench) {
    const struct bench_serve_options *o = bench->options;
    const struct scenario *scenario = scenario_of(bench);
    int64_t positions = model_positions(&bench->engine.config);
    bench->streams = o->streams ? o->streams : ENGINE_TEXTS;
    bench->requests = o->requests ? o->requests : scenario->requests;
    if (!bench->requests) {
        bench->requests = ROUNDS * bench->streams;
        if (bench->adapter_count > bench->requests)
            bench->requests = bench->adapter_count;
    }
    bench->in = o->input_len ? o->input_len : engine_bench_share(&bench->engine, scenario->in);
    bench->out = o->output_len ? o->output_len : engine_bench_share(&bench->engine, ENGINE_OUT);
    return bench->in + o->shared_prefix >= positions
               ? status_fail(STATUS_USAGE, "prompts of %lld tokens leave no room in the model's %lld positions",
                             (long long)(bench->in + o->shared_prefix), (long long)positions)
               : STATUS_OK;
}

static int check(const struct serve_bench *bench) {
    const struct bench_serve_options *o = bench->options;
    if (o->url && o->word_count)
        return status_fail(STATUS_USAGE, "%s is no option of a client, and --url asks a server that runs", o->words[0]);
    if (o->url && scenario_of(bench)->needs_server)
        return status_fail(STATUS_USAGE, "--scenario %s starts the server itself, and --url asks one that runs",
                           bench_scenarios[o->scenario]);
    if (model_positions(&bench->engine.config) < 64)
        return status_fail(STATUS_USAGE, "bench serve wants a model of 64 positions or more, not %lld",
                           (long long)model_positions(&bench->engine.config));
    return STATUS_OK;
}

static int open_bench(struct serve_bench *bench) {
    const struct bench_serve_options *o = bench->options;
    const char *model = o->engine.model ? o->engine.model : "gpt2-124m";
    bench->engine_options = o->engine;
    bench->engine_options.model = model;
    bench->engine = (struct engine_bench){.options = &bench->engine_options, .figure = bench_scenarios[o->scenario]};
    bench->found = json_object();
    bench->gap_class = SERVE_NO_CLASS;
    bench->ranks = o->ranks > 1 ? o->ranks : 1;
    int status = bench_model_config(model, 0, &bench->engine.config);
    THEN(status, check(bench));
    if (!status && o->engine.model)
        snprintf(bench->model, sizeof bench->model, "%s", o->engine.model);
    THEN(status, serve_files_write(bench));
    THEN(status, choose(bench));
    bench->engine_options.model = bench->model;
    bench->engine.in = bench->in;
    bench->engine.out = bench->out;
    bench->base = status ? NULL : event_base_new();
    THEN(status, status_allocated(bench->base));
    if (!status && o->url)
        status = client_open(bench->base, o->url, (enum client_protocol)o->protocol, &bench->client[0]);
    else if (!status && !scenario_of(bench)->starts)
        status = serve_start(bench, 0, NULL);
    return status;
}

static void close_clients(struct serve_bench *bench) {
    client_close(bench->control);
    bench->control = NULL;
    for (int i = 0; i < SERVE_SERVERS; i++) {
        client_close(bench->client[i]);
        bench->client[i] = NULL;
    }
    if (bench->base) /* one more turn, in which libevent closes its connections */
        event_base_loop(bench->base, EVLOOP_NONBLOCK);
}

static void close_bench(struct serve_bench *bench) {
    close_clients(bench);
    for (int i = 0; i < SERVE_SERVERS; i++)
        program_close(bench->program[i]);
    if (bench->base)
        event_base_free(bench->base);
    if (bench->engine.directory[0])
        file_remove_tree(bench->engine.directory);
    for (int c = 0; c < SERVE_TEXT_CLASSES; c++)
        bench_series_free(&bench->gaps[c]);
    bench_series_free(&bench->tally.ttft);
    bench_series_free(&bench->tally.tpot);
    bench_series_free(&bench->tally.itl);
    bench_series_free(&bench->tally.e2el);
    free(bench->adapters);
    free(bench->names);
    json_decref(bench->found);
}

/* ---- the summary ---- */

/* Adds mean_NAME_ms and the other figures of a series. */
static void add_series(json_t *summary, const char *name, struct bench_series *series) {
    char key[32];
    double sum = 0, squares = 0, count = (double)series->count;
    for (int64_t i = 0; i < series->count; i++)
        sum += series->values[i];
    double mean = series->count ? sum / count : 0;
    for (int64_t i = 0; i < series->count; i++)
        squares += (series->values[i] - mean) * (series->values[i] - mean);
    const struct {
        const char *name;
        double value;
    } figures[] = {{"mean", mean},
                   {"median", series->count ? bench_median(series->values, series->count) : 0},
                   {"std", series->count ? sqrt(squares / count) : 0},
                   {"p99", series->count ? bench_quantile(series->values, series->count, 0.99) : 0}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        snprintf(key, sizeof key, "%s_%s_ms", figures[i].name, name);
        json_object_set_new(summary, key, json_real(1e3 * figures[i].value));
    }
}

/* Adds the plan that the server printed: the sum of its parts over all ranks. Adds nothing when it printed none. */
static void add_plan(const struct serve_bench *bench, json_t *summary) {
    struct strbuf text = STRBUF_INIT;
    double weights, cache, adapters, workspace, server;
    int64_t peak = program_peak(bench->program[0]);
    const char *found = program_errors(bench->program[0], &text) ? NULL : strstr(strbuf_text(&text), "memory of each");
    if (found && sscanf(found,
                        "memory of each rank: weights %lf MiB, %*d pages of keys and values %lf, adapters %lf, "
                        "activations and workspace %lf; server %lf",
                        &weights, &cache, &adapters, &workspace, &server) == 5) {
        double planned = (bench->ranks * (weights + cache + adapters + workspace) + server) * (1 << 20);
        json_object_set_new(summary, "planned_bytes", json_integer((json_int_t)planned));
        json_object_set_new(summary, "peak_rss_over_planned", json_real((double)peak / planned));
    }
    json_object_set_new(summary, "peak_rss_bytes", json_integer((json_int_t)peak));
    strbuf_free(&text);
}

static json_t *begin_summary(const struct serve_bench *bench) {
    const struct bench_serve_options *o = bench->options;
    char date[32];
    time_t now = time(NULL);
    struct tm local;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:f, s:I}", "bench", "serve", "scenario",
                     bench_scenarios[o->scenario], "date", date, "backend", bench_protocols[o->protocol], "model_id",
                     o->engine.model ? o->engine.model : "gpt2-124m", "num_prompts", (json_int_t)bench->tally.completed,
                     "max_concurrency", (json_int_t)bench->streams, "request_rate", "inf", "burstiness", 1.0, "failed",
                     (json_int_t)0);
}

static double rate(double count, double seconds) {
    return seconds > 0 ? count / seconds : 0;
}

static int print_summary(struct serve_bench *bench) {
    struct serve_tally *tally = &bench->tally;
    double in = (double)tally->in, out = (double)tally->out, cpu = 0;
    json_t *summary = begin_summary(bench);
    json_t *figures = json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "completed", (json_int_t)tally->completed,
                                "total_input_tokens", (json_int_t)tally->in, "total_output_tokens",
                                (json_int_t)tally->out, "duration", tally->duration, "request_throughput",
                                rate((double)tally->completed, tally->duration), "output_throughput",
                                rate(out, tally->duration), "total_token_throughput", rate(in + out, tally->duration));
    json_object_update(summary, figures);
    json_decref(figures);
    add_series(summary, "ttft", &tally->ttft);
    add_series(summary, "tpot", &tally->tpot);
    add_series(summary, "itl", &tally->itl);
    add_series(summary, "e2el", &tally->e2el);
    for (int i = 0; i < SERVE_SERVERS; i++)
        cpu += bench->client[i] ? client_seconds(bench->client[i]) : 0;
    json_object_set_new(summary, "client_cpu_seconds", json_real(cpu));
    if (bench->engine.device[0]) {
        json_object_set_new(summary, "device", json_string(bench->engine.device));
        json_object_set_new(summary, "precision", json_string(bench->engine.dtype_text));
    }
    if (bench->program[0])
        add_plan(bench, summary);
    json_object_update(summary, bench->found);
    return bench_print(summary);
}

int bench_serve(const struct bench_serve_options *options) {
    struct serve_bench bench = {.options = options};
    int status = open_bench(&bench);
    THEN(status, scenario_of(&bench)->run(&bench));
    THEN(status, bench.tally.has_failed ? status_no_memory() : STATUS_OK);
    THEN(status, print_summary(&bench));
    close_clients(&bench); /* a server that ends waits for its clients */
    for (int i = 0; i < SERVE_SERVERS && !status; i++) {
        int ending = bench.program[i] ? program_end(bench.program[i], true) : 0;
        if (ending)
            status = status_fail(STATUS_IO, "the server ended with status %d", ending);
    }
    close_bench(&bench);
    return status;
}
