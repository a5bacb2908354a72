/* Steps of one run over random tokens. */
#include "training.h"

enum { WARM_UP = 2, DATASET_SAMPLES = 8 };

static int take_steps(struct bench_runner *runner, int64_t steps, struct bench_steps *out) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < WARM_UP + steps && !status; i++)
        status = bench_runner_obey(runner, i < WARM_UP ? ORDER_WARM_UP : ORDER_STEP);
    THEN(status, bench_runner_obey(runner, ORDER_FINISH));
    struct bench_findings *f = bench_runner_findings(runner);
    if (status || !f->steps)
        return status;
    out->seconds = out->phases[PHASE_REST] = bench_median(f->seconds, f->steps);
    for (int i = 0; i < PHASE_REST; i++) {
        out->phases[i] = f->phases[i] * out->seconds / f->total;
        out->phases[PHASE_REST] -= out->phases[i];
    }
    return STATUS_OK;
}

/* Points a run at random tokens, which `dataset` will have. */
static void use_tokens(struct train_run *run, struct bench_dataset *dataset, int64_t steps) {
    dataset->item = dataset->prefix;
    run->config.data.data_path = (struct config_list){&dataset->item, 1};
    run->config.data.data_cache_path = "";
    run->config.data.split = "1,0,0";
    run->config.train.train_iters = WARM_UP + steps;
}

int bench_take_steps(const struct train_run *run, int ranks, struct comm *world, int64_t steps,
                     struct bench_steps *out) {
    struct bench_dataset dataset = {0};
    struct bench_runner *runner = NULL;
    struct train_run made = *run;
    int64_t tokens = DATASET_SAMPLES * run->config.data.seq_length + 1;
    int status = bench_dataset_open(&dataset, tokens, run->config.model.vocab_size);
    *out = (struct bench_steps){0};
    use_tokens(&made, &dataset, steps);
    THEN(status, bench_runner_open(&made, ranks, world, steps, 1, &runner));
    THEN(status, take_steps(runner, steps, out));
    bench_runner_close(runner);
    bench_dataset_close(&dataset);
    return status;
}

/* Refuses a run that this host cannot hold. */
static int check_memory(const struct train_run *run, int ranks) {
    struct bench_dataset dataset = {0};
    struct train_run made = *run;
    struct train_plan plan;
    struct memory_limit limit = memory_limit_find("");
    int status = bench_dataset_open(&dataset, run->config.data.seq_length + 1, run->config.model.vocab_size);
    use_tokens(&made, &dataset, 1);
    THEN(status, train_plan_make(&made, ranks, NULL, &plan));
    bench_dataset_close(&dataset);
    return status ? status : train_plan_check(&made, &plan, &limit);
}

int bench_measure_row(const struct bench_row *row, double *seconds) {
    struct train_run run = *row->run;
    struct bench_steps steps;
    if (!run.config.device)
        run.config.device = row->device;
    int status = check_memory(&run, row->ranks);
    THEN(status, bench_take_steps(&run, row->ranks, NULL, row->steps, &steps));
    *seconds = status ? 0 : steps.seconds;
    return status;
}
