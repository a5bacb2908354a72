/* Training steps on any layout, in turn with steps of a baseline, so that other programs affect both alike. For ranks
 * of this process the baseline is one rank with as many threads: the ratio of the medians is the cost of the layout.
 * For a launch of processes with several data ranks the baseline is the same layout without the overlap of
 * communication and computation: the difference is the gain from overlap. */
#include "training.h"

#include "model/model.h"

enum {
    DATASET_SAMPLES = 8,
    /* Steps in a row when the overlap is measured: the weights of a step travel during the next. The last ones are
     * waited for, so an eighth of the gain is missing. */
    OVERLAP_BLOCK = 8,
};

struct measurement {
    const struct bench_options *options;
    struct train_run run, plain; /* `plain`: of the baseline */
    struct bench_dataset dataset;
    struct bench_contest contest;
    bool measures_overlap;
};

/* ---- opening ---- */

/* True when data ranks in several processes overlap anything. */
static bool overlaps(const struct measurement *m) {
    const struct run_config *run = &m->run.config;
    return m->options->world && m->options->has_baseline && bench_data_ranks(run, m->options->world->size) > 1 &&
           (run->parallel.overlap_grad_reduce || run->parallel.overlap_param_gather);
}

static int block_of(const struct measurement *m) {
    return m->measures_overlap ? OVERLAP_BLOCK : 1;
}

/* Opens the same ranks without overlap. */
static int open_without_overlap(struct measurement *m) {
    m->plain = m->run;
    m->plain.config.parallel.overlap_grad_reduce = m->plain.config.parallel.overlap_param_gather = false;
    return bench_runner_open(&m->plain, (int)m->options->ranks, m->options->world, m->options->steps, block_of(m),
                             &m->contest.baseline);
}

/* Opens the same iterations on one rank, with all of the ranks' threads. */
static int open_baseline(struct measurement *m) {
    const struct bench_options *o = m->options;
    struct bench_options plain = *o;
    plain.threads = bench_baseline_threads(o);
    plain.global_batch_size = m->run.config.train.global_batch_size;
    int status = bench_training_run(&plain, true, bench_contest_iterations(o->steps), &m->dataset, &m->plain);
    return status ? status : bench_runner_open(&m->plain, 1, NULL, o->steps, 1, &m->contest.baseline);
}

static int open_contest(struct measurement *m) {
    const struct bench_options *o = m->options;
    struct model_config model;
    int status = bench_model_config(o->model, o->layers, &model);
    THEN(status,
         bench_training_run(o, false, bench_contest_iterations(o->steps) * OVERLAP_BLOCK, &m->dataset, &m->run));
    m->measures_overlap = !status && overlaps(m);
    THEN(status, bench_dataset_open(&m->dataset, DATASET_SAMPLES * o->seq_length + 1, model.vocab_size));
    THEN(status, bench_runner_open(&m->run, (int)o->ranks, o->world, o->steps, block_of(m), &m->contest.runner));
    /* The baseline is one rank that keeps all activations. */
    if (!status && o->has_baseline && !o->world &&
        (o->ranks > 1 || o->run.parallel.recompute_granularity != GRANULARITY_NONE))
        status = open_baseline(m);
    THEN(status, m->measures_overlap ? open_without_overlap(m) : STATUS_OK);
    if (!status && o->has_peer && o->world)
        status = status_fail(STATUS_USAGE, "--peer is for one process, not for a launch of %d", o->world->size);
    THEN(status, bench_contest_open_peer(&m->contest, o, &m->run.config, NULL, o->seq_length));
    bench_dataset_close(&m->dataset); /* a process that has it open can still read it */
    return status;
}

/* ---- the summary ---- */

/* Adds ratios of medians of one run. */
static void add_baseline(json_t *object, const struct measurement *m, double seconds, double tokens) {
    struct bench_findings *b = bench_runner_findings(m->contest.baseline);
    const struct rank_grid *grid = &bench_runner_findings(m->contest.runner)->grid;
    /* The share of the time in which the stages of a pipeline work, if all chunks are equally fast. */
    const struct run_config *run = &m->run.config;
    double micros = (double)(run->train.global_batch_size / run->train.micro_batch_size / grid->data);
    double chunks = micros * (double)run->parallel.virtual_pipeline_model_parallel_size;
    double baseline = bench_median(b->seconds, b->steps), share = chunks / (chunks + grid->pipeline - 1);
    json_object_set_new(object, "baseline",
                        json_pack("{s:i, s:f, s:f, s:o}", "threads", b->threads, "seconds", baseline, "tokens_per_s",
                                  tokens / baseline, "phases", bench_phases(b->phases, b->total, b->steps)));
    json_object_set_new(object, "step_time_over_baseline", json_real(seconds / baseline));
    json_object_set_new(object, "tokens_per_s_over_baseline", json_real(baseline / seconds));
    if (grid->pipeline > 1) {
        json_object_set_new(object, "pipeline_share", json_real(share));
        json_object_set_new(object, "tokens_per_s_over_baseline_and_share", json_real(baseline / seconds / share));
    }
}

/* Adds the gain as a share of the possible gain in seconds. That is the time in which a rank waits for communication
 * when nothing else is done, or the time of the last backward, whichever is less. */
static void add_overlap(json_t *object, const struct measurement *m, double seconds) {
    struct bench_findings *f = bench_runner_findings(m->contest.runner);
    struct bench_findings *b = bench_runner_findings(m->contest.baseline);
    double without = bench_median(b->seconds, b->steps), transfer = b->times.waited;
    double backward = b->times.last_backward, saveable = transfer < backward ? transfer : backward;
    json_object_set_new(object, "overlap",
                        json_pack("{s:f, s:o, s:f, s:f, s:f, s:f, s:f}", "seconds_without", without, "phases_without",
                                  bench_phases(b->phases, b->total, b->steps), "transfer_seconds", transfer,
                                  "last_backward_seconds", backward, "waited_seconds", f->times.waited, "saved_seconds",
                                  without - seconds, "saved_over_saveable", (without - seconds) / saveable));
}

static int print_summary(struct measurement *m, size_t peak) {
    const struct bench_options *o = m->options;
    struct bench_findings *f = bench_runner_findings(m->contest.runner);
    double seconds = bench_median(f->seconds, f->steps), ceiling = bench_mean(f->before, f->after).gemm;
    double tokens = (double)(m->run.config.train.global_batch_size * o->seq_length);
    double flops = model_flops_per_token(&m->run.config.model, o->seq_length) * tokens / seconds;
    int64_t planned =
        f->planned_bytes + (m->contest.baseline ? bench_runner_findings(m->contest.baseline)->planned_bytes : 0);
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:o}", "bench", "train", "device",
        f->device, "precision", precision_names[o->precision], "micro_batch_size", (json_int_t)o->micro_batch_size,
        "seq_length", (json_int_t)o->seq_length, "dropout", o->has_dropout, "seconds", seconds, "tokens_per_s",
        tokens / seconds, "model_tflops", flops / 1e12, "ceiling", ceiling / 1e12, "ratio", flops / ceiling,
        "peak_rss_bytes", (json_int_t)peak, "planned_bytes", (json_int_t)planned, "peak_over_plan",
        (double)peak / (double)planned, "phases", bench_phases(f->phases, f->total, f->steps));
    TRY(status_allocated(object));
    bench_add_device_bytes(object, f->device_bytes);
    bench_add_layout(object, &m->run.config, f);
    if (m->measures_overlap)
        add_overlap(object, m, seconds);
    else if (m->contest.baseline)
        add_baseline(object, m, seconds, tokens);
    return bench_transformers_print(&m->contest.peer, seconds, object);
}

int bench_train(const struct bench_options *options) {
    struct measurement measurement = {.options = options};
    struct bench_contest *contest = &measurement.contest;
    int status = open_contest(&measurement);
    THEN(status, bench_contest_measure(contest, options->steps));
    size_t peak = memory_peak();
    THEN(status, bench_runner_obey(contest->runner, ORDER_CEILING_AFTER));
    THEN_IF(status, !options->world || options->world->rank == 0, print_summary(&measurement, peak));
    if (status && options->world)
        comm_abort(options->world, status_text());
    bench_contest_close(contest);
    return status;
}
