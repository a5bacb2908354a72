/* cambium bench engine: what scheduling, adapters, caching and swapping cost beside bare steps of the engine. */
#include "engine.h"

#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pairs ---- */

int engine_pairs_add(struct engine_bench *bench, struct engine_pairs *pairs, double own, double other) {
    if (pairs->count == pairs->room) {
        int64_t room = pairs->room ? 2 * pairs->room : 64;
        double *a = realloc(pairs->own, (size_t)room * sizeof *a);
        pairs->own = a ? a : pairs->own;
        double *b = realloc(pairs->other, (size_t)room * sizeof *b);
        pairs->other = b ? b : pairs->other;
        if (!a || !b)
            return status_fail(STATUS_MEMORY, "out of memory");
        pairs->room = room;
    }
    pairs->own[pairs->count] = own;
    pairs->other[pairs->count++] = other;
    return bench_print(
        json_pack("{s:s, s:f, s:f}", "figure", bench->figure, "seconds", own, "baseline_seconds", other));
}

double engine_quantile(double *values, int64_t count, double share) {
    bench_median(values, count);
    int64_t at = (int64_t)ceil(share * (double)count) - 1;
    return values[at < 0 ? 0 : at];
}

json_t *engine_pairs_figure(const struct engine_bench *bench, struct engine_pairs *pairs, bool is_speed,
                            double tokens) {
    double *ratios = calloc((size_t)pairs->count + 1, sizeof *ratios);
    for (int64_t i = 0; ratios && i < pairs->count; i++)
        ratios[i] = is_speed ? pairs->other[i] / pairs->own[i] : pairs->own[i] / pairs->other[i];
    double own = 0, other = 0;
    if (pairs->count) {
        own = bench_median(pairs->own, pairs->count);
        other = bench_median(pairs->other, pairs->count);
    }
    json_t *figure =
        ratios && pairs->count
            ? json_pack("{s:s, s:f, s:[f, f], s:I, s:f, s:f}", "figure", bench->figure, "ratio",
                        bench_median(ratios, pairs->count), "quartiles", engine_quantile(ratios, pairs->count, 0.25),
                        engine_quantile(ratios, pairs->count, 0.75), "pairs", (json_int_t)pairs->count, "seconds", own,
                        "baseline_seconds", other)
            : NULL;
    if (figure && tokens > 0) {
        json_object_set_new(figure, "tokens_per_s", json_real(tokens / own));
        json_object_set_new(figure, "baseline_tokens_per_s", json_real(tokens / other));
    }
    free(ratios);
    free(pairs->own);
    free(pairs->other);
    *pairs = (struct engine_pairs){0};
    return figure;
}

/* ---- engines ---- */

int64_t engine_bench_share(const struct engine_bench *bench, int64_t of_1024) {
    int64_t share = bench->config.max_position_embeddings * of_1024 / 1024;
    return share > 1 ? share : 1;
}

int engine_bench_open(struct engine_bench *bench, struct engine_options options, struct engine **engine) {
    const struct bench_options *o = bench->options;
    options.model = o->model;
    options.random = bench->is_shape ? &bench->config : NULL;
    options.precision = o->precision;
    options.device = o->device;
    if (!options.threads)
        options.threads = (int)o->threads;
    options.max_rows = ENGINE_ROWS;
    options.touches_cache = true;
    options.max_logit_rows = options.max_sequences;
    int status = engine_open(&options, engine);
    if (!status && engine_leads(*engine) && !bench->device[0]) {
        snprintf(bench->device, sizeof bench->device, "%s", device_description(engine_rank(*engine)->device));
        snprintf(bench->dtype_text, sizeof bench->dtype_text, "%s", dtype_name(engine_dtype(*engine)));
    }
    return status;
}

/* ---- figures ---- */

static const struct {
    const char *name;
    int (*measure)(struct engine_bench *bench, json_t **figure);
} figures[] = {
    /* Those of processes of their own come first: a process that has started threads cannot be copied. */
    {"memory", engine_figure_memory},
    {"memory-adapters", engine_figure_adapter_memory},
    {"scheduler", engine_figure_scheduler},
    {"adapters", engine_figure_adapters},
    {"bank", engine_figure_bank},
    {"idle-bank", engine_figure_idle_bank},
    {"shared-prefix", engine_figure_prefix},
    {"prompts", engine_figure_prompts},
    {"swap", engine_figure_swap},
    {"swap-large", engine_figure_swap_large},
    {"pipeline", engine_figure_pipeline},
};
enum { FIGURES = sizeof figures / sizeof *figures };

static bool is_chosen(const struct bench_options *options, int i) {
    return !options->filter || strstr(figures[i].name, options->filter);
}

static int check(const struct engine_bench *bench) {
    int chosen = 0;
    for (int i = 0; i < FIGURES; i++)
        chosen += is_chosen(bench->options, i);
    if (!chosen)
        return status_fail(STATUS_USAGE, "no figure of bench engine has '%s' in its name", bench->options->filter);
    if (bench->config.max_position_embeddings < 64)
        return status_fail(STATUS_USAGE, "bench engine wants a model of 64 positions or more, not %lld",
                           (long long)bench->config.max_position_embeddings);
    return STATUS_OK;
}

static int measure(struct engine_bench *bench, int i) {
    json_t *figure = NULL;
    bench->figure = figures[i].name;
    int status = figures[i].measure(bench, &figure);
    if (!status && !figure)
        status = status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        json_array_append(bench->figures, figure);
    json_decref(figure);
    return status;
}

int bench_engine(const struct bench_options *options) {
    struct engine_bench bench = {.options = options, .is_shape = !strcmp(options->model, "gpt2-124m")};
    int status = bench_model_config(options->model, &bench.config);
    if (!status)
        status = check(&bench);
    bench.in = engine_bench_share(&bench, ENGINE_IN);
    bench.out = engine_bench_share(&bench, ENGINE_OUT);
    bench.figures = json_array();
    if (!status)
        status = bench_make_directory(bench.directory, "adapters");
    if (!status)
        status = engine_adapters_write(&bench);
    for (int i = 0; i < FIGURES && !status; i++)
        if (is_chosen(options, i))
            status = measure(&bench, i);
    if (!status)
        status = bench_print(json_pack("{s:s, s:s, s:s, s:I, s:O}", "bench", "engine", "device", bench.device,
                                       "precision", bench.dtype_text, "peak_rss_bytes", (json_int_t)memory_peak(),
                                       "figures", bench.figures));
    if (bench.directory[0])
        file_remove_tree(bench.directory);
    json_decref(bench.figures);
    return status;
}
