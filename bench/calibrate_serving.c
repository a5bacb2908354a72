/* Requests to an engine, and the constants of serving that give their times. */
#include "calibrate.h"

#include <math.h>

enum { STEPS = 4 };

static const struct serve_layout layouts[CALIBRATE_REQUESTS] = {
    /* prompts only, then prompts and further tokens; the precision is the calibration's */
    {1, 1, 1, 16, 1, 0, 0, 0, 0, 0, NULL},   {1, 1, 1, 128, 1, 0, 0, 0, 0, 0, NULL},
    {1, 1, 4, 128, 1, 0, 0, 0, 0, 0, NULL},  {1, 1, 1, 512, 1, 0, 0, 0, 0, 0, NULL},
    {1, 1, 1, 16, 33, 0, 0, 0, 0, 0, NULL},  {1, 1, 4, 16, 33, 0, 0, 0, 0, 0, NULL},
    {1, 1, 16, 16, 33, 0, 0, 0, 0, 0, NULL}, {1, 1, 1, 512, 17, 0, 0, 0, 0, 0, NULL},
};

int calibrate_requests(const struct calibration *c, const struct calibrate_place *place, double *seconds) {
    int status = STATUS_OK;
    for (int i = 0; i < CALIBRATE_REQUESTS && !status; i++) {
        const struct serve_layout *layout = &layouts[i];
        struct bench_options options = *c->options;
        options.threads = place->threads;
        options.device = place->device;
        options.micro_batch_size = layout->batch;
        options.seq_length = layout->input_len;
        options.steps = STEPS;
        if (layout->input_len + layout->output_len > model_positions(&c->run.config.model))
            continue;
        status = comm_barrier(place->world);
        THEN(status, bench_measure_requests(&options, layout->output_len, &seconds[i]));
    }
    return status;
}

static int add_row(const struct calibration *c, int request, const struct model_config *model,
                   const struct cluster *cluster, struct fit_rows *rows) {
    struct fit_row *row = &rows->rows[rows->count];
    *row = (struct fit_row){.nodes = 1, .seconds = c->alone.requests[request], .is_fitted = true};
    struct serve_layout layout = layouts[request];
    layout.precision = c->options->precision;
    layout.step_rows = layout.batch * layout.input_len; /* the engine's is as large */
    int status = serve_work_make(model, &layout, cluster, &row->serving);
    rows->count += !status;
    return status;
}

int calibrate_serving(const struct calibration *c, struct cluster *cluster) {
    struct fit_row all[CALIBRATE_REQUESTS];
    struct fit_rows rows = {.rows = all, .is_serving = true};
    struct model_config model;
    double largest = 0;
    char label[] = "requests";
    int status = bench_model_config(c->options->model, c->options->layers, &model);
    for (int i = 0; i < CALIBRATE_REQUESTS && !status; i++)
        if (c->alone.requests[i] > 0)
            status = add_row(c, i, &model, cluster, &rows);
    for (int i = 0; i < rows.count; i++)
        all[i].label = label;
    for (int i = 0; i < 2; i++) /* packed weights may exceed plain products, and caches the memory */
        cluster->achieved[i ? CLUSTER_SERVE_MEMORY : CLUSTER_SERVE_PRODUCTS].high = i ? 8 : 2;
    if (!c->memory) /* the processor that reads is the one that multiplies */
        cluster->achieved[CLUSTER_SERVE_HIDDEN].low = 0.01;
    THEN(status, rows.count ? fit_run(&rows, cluster) : STATUS_OK);
    for (int i = 0; i < rows.count; i++) {
        const struct serve_layout *layout = &all[i].serving.layout;
        largest = fmax(largest, fabs(fit_error(&all[i])));
        log_info("%2lld requests, %3lld tokens in, %2lld out: %.4g s measured, %.4g s fitted", (long long)layout->batch,
                 (long long)layout->input_len, (long long)layout->output_len, all[i].seconds, all[i].step.seconds);
        serve_work_free(&all[i].serving);
    }
    /* A sum has the latency of a ring. */
    const struct cost_link *link = &c->node;
    const double values[] = {2 * link->latency, link->latency};
    for (int i = 0; i < 2 && link->bandwidth > 0; i++) {
        struct config_quantity *constant = &cluster->achieved[i ? CLUSTER_SERVE_SUM_RANK : CLUSTER_SERVE_SUM];
        constant->value = fmin(fmax(values[i], constant->low), constant->high);
    }
    if (!status && rows.count)
        log_info("%d batches of requests: fitted, largest error %.1f%%", rows.count, 100 * largest);
    return status;
}
