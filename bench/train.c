/* Training steps on any layout. In turn with each of them, one rank with as many threads takes one of its own, so that
 * what the machine does to one it does to the other: the ratio of their medians says what the layout costs. */
#include "training.h"

#include "model/model.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_UP = 2, DATASET_SAMPLES = 8, PAUSE_NANOSECONDS = 20 * 1000 * 1000 };

struct contest {
    const struct bench_options *options;
    struct train_run run, plain; /* `plain`: of the baseline */
    struct bench_dataset dataset;
    struct bench_runner *runner, *baseline; /* the baseline may be NULL */
};

/* ---- opening ---- */

static int usable_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Whether one rank that keeps everything would be something else. */
static bool is_layout(const struct bench_options *options) {
    return options->ranks > 1 || options->run.parallel.recompute_granularity != GRANULARITY_NONE;
}

/* The same iterations on one rank, with all threads that the ranks have. */
static int open_baseline(struct contest *c) {
    const struct bench_options *o = c->options;
    struct bench_options plain = *o;
    int64_t threads = o->run.parallel.threads_per_rank ? o->run.parallel.threads_per_rank : o->threads;
    threads = o->ranks == 1 ? threads : (threads ? threads : 1) * o->ranks;
    plain.threads = threads < usable_cores() ? threads : usable_cores();
    plain.global_batch_size = c->run.config.train.global_batch_size;
    int status = bench_training_run(&plain, true, WARM_UP + o->steps, &c->dataset, &c->plain);
    return status ? status : bench_runner_open(&c->plain, 1, NULL, o->steps, &c->baseline);
}

static int open_contest(struct contest *c) {
    const struct bench_options *o = c->options;
    struct model_config model;
    int status = bench_model_config(o->model, &model);
    if (!status)
        status = bench_training_run(o, false, WARM_UP + o->steps, &c->dataset, &c->run);
    if (!status)
        status = bench_dataset_open(&c->dataset, DATASET_SAMPLES * o->seq_length + 1, model.vocab_size);
    if (!status)
        status = bench_runner_open(&c->run, (int)o->ranks, o->world, o->steps, &c->runner);
    if (!status && o->has_baseline && !o->world && is_layout(o))
        status = open_baseline(c);
    bench_dataset_close(&c->dataset); /* who has it open keeps it */
    return status;
}

static void close_contest(struct contest *c) {
    bench_runner_close(c->baseline);
    bench_runner_close(c->runner);
}

/* ---- measuring ---- */

/* Threads that wait for their next turn spin for some milliseconds before they sleep. */
static void pause_for_sleepers(void) {
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
}

static int take_turns(struct contest *c, enum bench_order order) {
    int status = STATUS_OK;
    if (c->baseline) {
        pause_for_sleepers();
        status = bench_runner_obey(c->baseline, order);
        pause_for_sleepers();
    }
    return status ? status : bench_runner_obey(c->runner, order);
}

static int print_step(struct contest *c, int64_t step) {
    const struct bench_findings *f = bench_runner_findings(c->runner);
    json_t *line =
        json_pack("{s:I, s:f, s:f}", "step", (json_int_t)step + 1, "seconds", f->seconds[step], "loss", f->loss);
    if (c->baseline)
        json_object_set_new(line, "baseline_seconds", json_real(bench_runner_findings(c->baseline)->seconds[step]));
    return bench_print(line);
}

static int measure(struct contest *c) {
    int status = bench_runner_obey(c->runner, ORDER_CEILING_BEFORE);
    for (int i = 0; i < WARM_UP && !status; i++)
        status = take_turns(c, ORDER_WARM_UP);
    for (int64_t i = 0; i < c->options->steps && !status; i++) {
        status = take_turns(c, ORDER_STEP);
        if (!status)
            status = print_step(c, i);
    }
    if (!status)
        status = take_turns(c, ORDER_FINISH);
    return status;
}

/* ---- the summary ---- */

/* The share of the time in which the stages of a pipeline work, when all chunks are equally fast. */
static double pipeline_share(const struct contest *c, const struct rank_grid *grid) {
    const struct run_config *run = &c->run.config;
    double micros = (double)(run->train.global_batch_size / run->train.micro_batch_size / grid->data);
    double chunks = micros * (double)run->parallel.virtual_pipeline_model_parallel_size;
    return chunks / (chunks + grid->pipeline - 1);
}

static void add_layout(json_t *object, const struct contest *c, const struct bench_findings *f) {
    const struct run_config *run = &c->run.config;
    json_t *cores = json_array();
    for (int r = 0; r < f->ranks; r++)
        json_array_append_new(cores, json_string(f->cores[r]));
    json_object_set_new(object, "ranks", json_integer(f->ranks));
    json_object_set_new(object, "threads_per_rank", json_integer(f->threads));
    json_object_set_new(object, "cores", cores);
    json_object_set_new(object, "global_batch_size", json_integer(run->train.global_batch_size));
    json_object_set_new(object, "layout",
                        json_pack("{s:i, s:i, s:i, s:b, s:b, s:s}", "tensor", f->grid.tensor, "pipeline",
                                  f->grid.pipeline, "data", f->grid.data, "sequence_parallel",
                                  run->parallel.sequence_parallel, "distributed_optimizer",
                                  run->parallel.use_distributed_optimizer, "recompute",
                                  run->parallel.recompute_granularity == GRANULARITY_NONE        ? "none"
                                  : run->parallel.recompute_granularity == GRANULARITY_SELECTIVE ? "selective"
                                                                                                 : "full"));
}

/* Ratios of medians of one run. */
static void add_baseline(json_t *object, const struct contest *c, double seconds, double tokens) {
    struct bench_findings *b = bench_runner_findings(c->baseline);
    const struct rank_grid *grid = &bench_runner_findings(c->runner)->grid;
    double own = bench_median(b->seconds, b->steps), share = pipeline_share(c, grid);
    json_object_set_new(object, "baseline",
                        json_pack("{s:i, s:f, s:f, s:o}", "threads", b->threads, "seconds", own, "tokens_per_s",
                                  tokens / own, "phases", bench_phases(&b->phases, b->total, b->steps)));
    json_object_set_new(object, "step_time_over_baseline", json_real(seconds / own));
    json_object_set_new(object, "tokens_per_s_over_baseline", json_real(own / seconds));
    if (grid->pipeline > 1) {
        json_object_set_new(object, "pipeline_share", json_real(share));
        json_object_set_new(object, "tokens_per_s_over_baseline_and_share", json_real(own / seconds / share));
    }
}

static int print_summary(struct contest *c, size_t peak) {
    const struct bench_options *o = c->options;
    struct bench_findings *f = bench_runner_findings(c->runner);
    double seconds = bench_median(f->seconds, f->steps), ceiling = bench_mean(f->before, f->after).gemm;
    double tokens = (double)(c->run.config.train.global_batch_size * o->seq_length);
    double flops = model_flops_per_token(&c->run.config.model, o->seq_length) * tokens / seconds;
    int64_t planned = f->planned_bytes + (c->baseline ? bench_runner_findings(c->baseline)->planned_bytes : 0);
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:o}", "bench", "train", "device",
        f->device, "precision", o->precision == PRECISION_BF16 ? "bf16" : "fp32", "micro_batch_size",
        (json_int_t)o->micro_batch_size, "seq_length", (json_int_t)o->seq_length, "dropout", o->has_dropout, "seconds",
        seconds, "tokens_per_s", tokens / seconds, "model_tflops", flops / 1e12, "ceiling", ceiling / 1e12, "ratio",
        flops / ceiling, "peak_rss_bytes", (json_int_t)peak, "planned_bytes", (json_int_t)planned, "peak_over_plan",
        (double)peak / (double)planned, "phases", bench_phases(&f->phases, f->total, f->steps));
    if (!object)
        return status_fail(STATUS_MEMORY, "out of memory");
    add_layout(object, c, f);
    if (c->baseline)
        add_baseline(object, c, seconds, tokens);
    return bench_print(object);
}

int bench_train(const struct bench_options *options) {
    struct contest contest = {.options = options};
    int status = open_contest(&contest);
    if (!status)
        status = measure(&contest);
    size_t peak = bench_peak_rss();
    if (!status)
        status = bench_runner_obey(contest.runner, ORDER_CEILING_AFTER);
    if (!status && (!options->world || options->world->rank == 0))
        status = print_summary(&contest, peak);
    if (status && options->world)
        comm_abort(options->world, status_text());
    close_contest(&contest);
    return status;
}
