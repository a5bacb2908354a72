/* Two sides of a comparison, taken in turn: their engines, and the ratio of their times. */
#include "engine.h"

int engine_pairs_add(struct engine_bench *bench, struct engine_pairs *pairs, double measured, double baseline) {
    int status = bench_series_add(&pairs->measured, measured);
    THEN(status, bench_series_add(&pairs->baseline, baseline));
    return status ? status
                  : bench_print(json_pack("{s:s, s:f, s:f}", "figure", bench->figure, "seconds", measured,
                                          "baseline_seconds", baseline));
}

json_t *engine_pairs_figure(const struct engine_bench *bench, struct engine_pairs *pairs, bool is_speed,
                            double tokens) {
    int64_t count = pairs->baseline.count; /* without memory, `measured` may have one more */
    double *ratios = calloc((size_t)count + 1, sizeof *ratios);
    for (int64_t i = 0; ratios && i < count; i++)
        ratios[i] = is_speed ? pairs->baseline.values[i] / pairs->measured.values[i]
                             : pairs->measured.values[i] / pairs->baseline.values[i];
    double measured = 0, baseline = 0;
    if (count) {
        measured = bench_median(pairs->measured.values, count);
        baseline = bench_median(pairs->baseline.values, count);
    }
    json_t *figure = ratios && count
                         ? json_pack("{s:s, s:f, s:[f, f], s:I, s:f, s:f}", "figure", bench->figure, "ratio",
                                     bench_median(ratios, count), "quartiles", bench_quantile(ratios, count, 0.25),
                                     bench_quantile(ratios, count, 0.75), "pairs", (json_int_t)count, "seconds",
                                     measured, "baseline_seconds", baseline)
                         : NULL;
    if (figure && tokens > 0) {
        json_object_set_new(figure, "tokens_per_s", json_real(tokens / measured));
        json_object_set_new(figure, "baseline_tokens_per_s", json_real(tokens / baseline));
    }
    free(ratios);
    bench_series_free(&pairs->measured);
    bench_series_free(&pairs->baseline);
    return figure;
}

int64_t engine_bench_share(const struct engine_bench *bench, int64_t of_1024) {
    int64_t share = model_positions(&bench->config) * of_1024 / 1024;
    return share > 1 ? share : 1;
}

int engine_bench_open(struct engine_bench *bench, struct engine_options options, struct engine **engine) {
    const struct bench_options *o = bench->options;
    options.model = o->model;
    options.random = bench->is_shape ? &bench->config : NULL;
    options.load_in = o->load_in;
    options.precision = o->precision;
    options.device = o->device;
    if (!options.threads)
        options.threads = (int)o->threads;
    options.max_rows = ENGINE_ROWS;
    options.touches_cache = true;
    options.receipts = RECEIPTS_OFF; /* loads are measured, not proofs */
    options.max_logit_rows = options.max_sequences;
    int status = engine_open(&options, engine);
    if (!status && engine_leads(*engine) && !bench->device[0]) {
        snprintf(bench->device, sizeof bench->device, "%s", device_description(engine_rank(*engine)->device));
        snprintf(bench->dtype_text, sizeof bench->dtype_text, "%s", engine_precision(*engine));
    }
    return status;
}
