/* Two runs of the trainer, a step of each in turn. */
#include "training.h"

#include <time.h>

enum { WARM_UP = 2, PAUSE_NANOSECONDS = 20 * 1000 * 1000 };

int64_t bench_baseline_threads(const struct bench_options *options) {
    int64_t threads =
        options->run.parallel.threads_per_rank ? options->run.parallel.threads_per_rank : options->threads;
    threads = options->ranks == 1 ? threads : (threads ? threads : 1) * options->ranks;
    return threads < usable_cores() ? threads : usable_cores();
}

int64_t bench_contest_iterations(int64_t steps) {
    return WARM_UP + steps;
}

/* Threads that wait for their next turn spin for some milliseconds before they sleep. */
static void pause_for_sleepers(void) {
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
}

static int take_turns(struct bench_contest *contest, enum bench_order order) {
    int status = STATUS_OK;
    if (contest->baseline) {
        pause_for_sleepers();
        status = bench_runner_obey(contest->baseline, order);
        pause_for_sleepers();
    }
    if (!status && contest->peer && order == ORDER_WARM_UP)
        status = bench_peer_number(contest->peer, "step", "seconds", &(double){0});
    return status ? status : bench_runner_obey(contest->runner, order);
}

static int print_step(struct bench_contest *contest, int64_t step) {
    const struct bench_findings *f = bench_runner_findings(contest->runner);
    json_t *line =
        json_pack("{s:I, s:f, s:f}", "step", (json_int_t)step + 1, "seconds", f->seconds[step], "loss", f->loss);
    if (contest->baseline)
        json_object_set_new(line, "baseline_seconds",
                            json_real(bench_runner_findings(contest->baseline)->seconds[step]));
    if (contest->peer)
        json_object_set_new(line, "peer_seconds", json_real(contest->peer_seconds[step]));
    return bench_print(line);
}

int bench_contest_measure(struct bench_contest *contest, int64_t steps) {
    int status = bench_runner_obey(contest->runner, ORDER_CEILING_BEFORE);
    for (int i = 0; i < WARM_UP && !status; i++)
        status = take_turns(contest, ORDER_WARM_UP);
    for (int64_t i = 0; i < steps && !status; i++) {
        status = take_turns(contest, ORDER_STEP);
        if (!status && contest->peer) {
            pause_for_sleepers();
            status = bench_peer_number(contest->peer, "step", "seconds", &contest->peer_seconds[i]);
        }
        if (!status)
            status = print_step(contest, i);
    }
    return status ? status : take_turns(contest, ORDER_FINISH);
}

void bench_contest_close(struct bench_contest *contest) {
    bench_runner_close(contest->baseline);
    bench_runner_close(contest->runner);
}
