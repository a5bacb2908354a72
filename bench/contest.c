/* Two runs of the trainer, a step of each in turn. */
#include "training.h"

enum { WARM_UP = 2 };

int64_t bench_baseline_threads(const struct bench_options *options) {
    int64_t threads =
        options->run.parallel.threads_per_rank ? options->run.parallel.threads_per_rank : options->threads;
    threads = options->ranks == 1 ? threads : (threads ? threads : 1) * options->ranks;
    return threads < usable_cores() ? threads : usable_cores();
}

int64_t bench_contest_iterations(int64_t steps) {
    return WARM_UP + steps;
}

int bench_contest_open_peer(struct bench_contest *contest, const struct bench_options *o, const struct run_config *run,
                            const struct peft_config *adapter, int64_t tokens) {
    const struct bench_transformers_task task = {
        .model = &run->model,
        .adapter = adapter,
        .micro_batch_size = run->train.micro_batch_size,
        .micro_batches = run->train.global_batch_size / run->train.micro_batch_size,
        .tokens = tokens,
        .threads = bench_baseline_threads(o),
        .device = o->device,
        .precision = o->precision,
        .has_dropout = o->has_dropout,
    };
    return o->has_peer ? bench_transformers_open(&task, o->peer_python, o->steps, &contest->peer) : STATUS_OK;
}

static int take_turns(struct bench_contest *contest, enum bench_order order) {
    int status = STATUS_OK;
    if (contest->baseline) {
        bench_pause();
        status = bench_runner_obey(contest->baseline, order);
        bench_pause();
    }
    THEN(status, order == ORDER_WARM_UP ? bench_transformers_warm_up(&contest->peer, "step") : STATUS_OK);
    return status ? status : bench_runner_obey(contest->runner, order);
}

static int print_step(struct bench_contest *contest, int64_t step) {
    const struct bench_findings *f = bench_runner_findings(contest->runner);
    json_t *line =
        json_pack("{s:I, s:f, s:f}", "step", (json_int_t)step + 1, "seconds", f->seconds[step], "loss", f->loss);
    if (contest->baseline)
        json_object_set_new(line, "baseline_seconds",
                            json_real(bench_runner_findings(contest->baseline)->seconds[step]));
    if (contest->peer.peer)
        json_object_set_new(line, "peer_seconds", json_real(contest->peer.seconds[step]));
    return bench_print(line);
}

int bench_contest_measure(struct bench_contest *contest, int64_t steps) {
    int status = bench_runner_obey(contest->runner, ORDER_CEILING_BEFORE);
    for (int i = 0; i < WARM_UP && !status; i++)
        status = take_turns(contest, ORDER_WARM_UP);
    for (int64_t i = 0; i < steps && !status; i++) {
        status = take_turns(contest, ORDER_STEP);
        THEN(status, bench_transformers_measure(&contest->peer, "step"));
        THEN(status, print_step(contest, i));
    }
    return status ? status : take_turns(contest, ORDER_FINISH);
}

void bench_contest_close(struct bench_contest *contest) {
    bench_runner_close(contest->baseline);
    bench_runner_close(contest->runner);
    bench_transformers_close(&contest->peer);
}

void bench_add_layout(json_t *object, const struct run_config *run, const struct bench_findings *f) {
    json_t *cores = json_array();
    for (int r = 0; r < f->ranks; r++)
        json_array_append_new(cores, json_string(f->cores[r]));
    json_object_set_new(object, "ranks", json_integer(f->ranks));
    json_object_set_new(object, "threads_per_rank", json_integer(f->threads));
    json_object_set_new(object, "cores", cores);
    json_object_set_new(object, "global_batch_size", json_integer(run->train.global_batch_size));
    json_object_set_new(object, "layout",
                        json_pack("{s:i, s:i, s:i, s:b, s:s, s:s}", "tensor", f->grid.tensor, "pipeline",
                                  f->grid.pipeline, "data", f->grid.data, "sequence_parallel",
                                  run->parallel.sequence_parallel, "sharding", run_shardings[run_sharding(run)],
                                  "recompute",
                                  run->parallel.recompute_granularity == GRANULARITY_NONE        ? "none"
                                  : run->parallel.recompute_granularity == GRANULARITY_SELECTIVE ? "selective"
                                                                                                 : "full"));
}
