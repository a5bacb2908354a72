/* One training step: a micro batch of random tokens forward and backward, clipping, AdamW. */
#include "bench.h"

#include "model/model.h"
#include "optim/optim.h"

#include <stdlib.h>

struct training {
    const struct bench_options *options;
    struct model_config config;
    enum dtype dtype;
    int64_t rows;
    struct device *device;
    struct rank rank;
    struct model_plan plan;
    struct model *model;
    struct gradient_sync sync;
    struct optimizer optimizer;
    struct model_batch batch;
    struct bench_ceiling before;
};

static int fill_batch(struct training *t) {
    size_t rows = (size_t)t->rows;
    int32_t *ids = malloc(3 * rows * sizeof *ids);
    uint32_t *keys = malloc(2 * rows * sizeof *keys);
    float *weight = malloc(rows * sizeof *weight);
    int64_t *starts = malloc(((size_t)t->options->micro_batch_size + 1) * sizeof *starts);
    t->batch = (struct model_batch){.rows = t->rows,
                                    .tokens = ids,
                                    .labels = ids + rows,
                                    .positions = ids + 2 * rows,
                                    .sample = keys,
                                    .token = keys + rows,
                                    .segments = t->options->micro_batch_size,
                                    .segment_start = starts,
                                    .loss_weight = weight};
    if (!ids || !keys || !weight || !starts)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < rows; i++) {
        struct philox r = philox(1, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24);
        ids[i] = (int32_t)(r.word[0] % (uint32_t)t->config.vocab_size);
        ids[rows + i] = (int32_t)(r.word[1] % (uint32_t)t->config.vocab_size);
        ids[2 * rows + i] = (int32_t)((int64_t)i % t->options->seq_length);
        keys[i] = (uint32_t)((int64_t)i / t->options->seq_length);
        keys[rows + i] = (uint32_t)ids[2 * rows + i];
        weight[i] = 1.0f / (float)rows;
    }
    for (int64_t s = 0; s <= t->options->micro_batch_size; s++)
        starts[s] = s * t->options->seq_length;
    return STATUS_OK;
}

static void free_batch(struct training *t) {
    free((void *)t->batch.tokens);
    free((void *)t->batch.sample);
    free((void *)t->batch.loss_weight);
    free((void *)t->batch.segment_start);
}

static int open_training(struct training *t) {
    const struct bench_options *o = t->options;
    int status = bench_model_config(o->model, &t->config);
    if (!status && o->seq_length > t->config.max_position_embeddings)
        status = status_fail(STATUS_USAGE, "--seq-length %lld is more than the model's %lld positions",
                             (long long)o->seq_length, (long long)t->config.max_position_embeddings);
    if (!status)
        status = device_open("cpu", 0, (int)o->threads, &t->device);
    if (!status)
        status = bench_measure_ceiling(t->device, t->dtype, &t->before);
    if (!status)
        status = rank_open_single(&t->rank, t->device, 1);
    struct model_options options = {.config = t->config, .dtype = t->dtype, .use = MODEL_TRAIN, .max_rows = t->rows};
    if (!status)
        status = model_open(&options, &t->rank, true, &t->plan, &t->model);
    if (!status)
        optimizer_plan(&t->rank, t->plan.flat_elements);
    if (!status)
        status = model_open(&options, &t->rank, false, &t->plan, &t->model);
    if (!status)
        status = model_initialise(t->model, 1);
    struct optimizer_options adamw = {
        .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01, .clip_grad = 1};
    if (!status)
        status = gradient_sync_open(&t->sync, &t->rank, model_store(t->model), false);
    if (!status)
        status = optimizer_open(&t->optimizer, &adamw, &t->sync);
    if (!status)
        status = optimizer_reset(&t->optimizer);
    return status ? status : fill_batch(t);
}

static void close_training(struct training *t) {
    free_batch(t);
    optimizer_close(&t->optimizer);
    gradient_sync_close(&t->sync);
    model_close(t->model);
    rank_close(&t->rank);
    device_close(t->device);
}

static int run_step(struct training *t, double *seconds, double *loss) {
    double start = clock_seconds(), norm;
    struct model_pass pass = {
        .is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = t->options->has_dropout};
    int status = model_train_step(t->model, &t->batch, &pass);
    if (!status)
        status = model_loss(t->model, loss);
    if (!status)
        status = optimizer_step(&t->optimizer, 1e-4, &norm);
    *seconds = clock_seconds() - start;
    return status;
}

static int measure(struct training *t) {
    enum { WARM_UP = 2 };
    int64_t steps = t->options->steps;
    double *seconds = malloc((size_t)steps * sizeof *seconds), total = 0, loss = 0, unused;
    int status = seconds ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < WARM_UP && !status; i++)
        status = run_step(t, &unused, &loss);
    for (int i = 0; i < PHASE_COUNT; i++)
        t->rank.phase_seconds[i] = 0;
    t->rank.is_timed = true;
    for (int64_t i = 0; i < steps && !status; i++) {
        status = run_step(t, &seconds[i], &loss);
        total += seconds[i];
        if (!status)
            status = bench_print(
                json_pack("{s:I, s:f, s:f}", "step", (json_int_t)i + 1, "seconds", seconds[i], "loss", loss));
    }
    struct bench_ceiling after;
    size_t peak = bench_peak_rss();
    if (!status)
        status = bench_measure_ceiling(t->device, t->dtype, &after);
    if (!status) {
        double step = bench_median(seconds, steps), ceiling = bench_mean(t->before, after).gemm;
        double flops = model_flops_per_token(&t->config, t->options->seq_length) * (double)t->rows / step;
        size_t planned = t->plan.weights + t->plan.gradients + t->plan.activations + t->plan.workspace +
                         optimizer_bytes(t->plan.flat_elements, t->dtype);
        status = bench_print(
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:o}", "bench", "train",
                      "device", device_description(t->device), "precision", dtype_name(t->dtype), "micro_batch_size",
                      (json_int_t)t->options->micro_batch_size, "seq_length", (json_int_t)t->options->seq_length,
                      "dropout", t->options->has_dropout, "seconds", step, "tokens_per_s", (double)t->rows / step,
                      "model_tflops", flops / 1e12, "ceiling", ceiling / 1e12, "ratio", flops / ceiling,
                      "peak_rss_bytes", (json_int_t)peak, "planned_bytes", (json_int_t)planned, "peak_over_plan",
                      (double)peak / (double)planned, "phases", bench_phases(&t->rank, total, steps)));
    }
    free(seconds);
    return status;
}

int bench_train(const struct bench_options *options) {
    struct training t = {.options = options,
                         .dtype = options->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32,
                         .rows = options->micro_batch_size * options->seq_length};
    int status = open_training(&t);
    if (!status)
        status = measure(&t);
    close_training(&t);
    return status;
}
