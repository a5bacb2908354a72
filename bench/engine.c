/* cambium bench engine: the cost of scheduling, adapters, caching and swapping, compared with bare steps of the
 * engine. */
#include "engine.h"

/* ---- figures ---- */

static const struct {
    const char *name;
    engine_figure *measure;
    int variant; /* memory: with adapters or not; swap: the kind of the adapter */
} figures[] = {
    /* Figures measured in separate processes come first, because a process with threads cannot be forked. */
    {"memory", engine_figure_memory, false},
    {"memory-adapters", engine_figure_memory, true},
    {"scheduler", engine_figure_scheduler, 0},
    {"adapters", engine_figure_adapters, 0},
    {"bank", engine_figure_bank, 0},
    {"idle-bank", engine_figure_idle_bank, 0},
    {"shared-prefix", engine_figure_prefix, 0},
    {"prompts", engine_figure_prompts, 0},
    {"swap", engine_figure_swap, ADAPTER_GIVEN},
    {"swap-large", engine_figure_swap, ADAPTER_LARGE},
    {"pipeline", engine_figure_pipeline, 0},
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
    if (model_positions(&bench->config) < 64)
        return status_fail(STATUS_USAGE, "bench engine wants a model of 64 positions or more, not %lld",
                           (long long)model_positions(&bench->config));
    return STATUS_OK;
}

static int measure(struct engine_bench *bench, int i) {
    json_t *figure = NULL;
    bench->figure = figures[i].name;
    bench->variant = figures[i].variant;
    int status = figures[i].measure(bench, &figure);
    THEN(status, status_allocated(figure));
    if (!status)
        json_array_append(bench->figures, figure);
    json_decref(figure);
    return status;
}

int bench_engine(const struct bench_options *options) {
    struct engine_bench bench = {.options = options, .is_shape = bench_is_shape(options->model)};
    int status = bench_model_config(options->model, options->layers, &bench.config);
    THEN(status, check(&bench));
    bench.in = engine_bench_share(&bench, ENGINE_IN);
    bench.out = engine_bench_share(&bench, ENGINE_OUT);
    bench.figures = json_array();
    THEN(status, bench_make_directory(bench.directory, "adapters"));
    THEN(status, engine_adapters_write(&bench));
    for (int i = 0; i < FIGURES && !status; i++)
        if (is_chosen(options, i))
            status = measure(&bench, i);
    THEN(status, bench_print(json_pack("{s:s, s:s, s:s, s:I, s:O}", "bench", "engine", "device", bench.device,
                                       "precision", bench.dtype_text, "peak_rss_bytes", (json_int_t)memory_peak(),
                                       "figures", bench.figures)));
    if (bench.directory[0])
        file_remove_tree(bench.directory);
    json_decref(bench.figures);
    return status;
}
