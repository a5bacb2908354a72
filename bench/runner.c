/* Takes training steps for a measurement. This thread is a rank (alone, or in a launch of processes), or ranks are
 * threads that follow orders. */
#include "training.h"

#include <pthread.h>

/* ---- one rank ---- */

struct side {
    struct comm *world; /* NULL: a single rank */
    struct trainer *trainer;
    enum dtype dtype;
    int block;                       /* steps in a row that are measured together */
    int64_t steps;                   /* measured so far */
    struct trainer_times times;      /* of these */
    struct bench_findings *findings; /* of the first rank; others have NULL */
};

static int sum_over_ranks(const struct side *side, void *values, int64_t count, enum dtype dtype) {
    struct comm_data data = {.send = values, .receive = values, .count = count, .dtype = dtype};
    return side->world ? comm_all_reduce(side->world, &data, COMM_SUM) : STATUS_OK;
}

static int meet(const struct side *side) {
    return side->world ? comm_barrier(side->world) : STATUS_OK;
}

/* Measures the ceiling on all ranks at the same time. */
static int measure_ceiling(struct side *side, bool is_before) {
    const struct rank *rank = trainer_rank(side->trainer);
    struct bench_ceiling mine = {0};
    int status = meet(side);
    THEN(status, bench_measure_ceiling(rank->device, side->dtype, rank->is_tf32, &mine));
    double values[] = {mine.gemm, mine.read};
    THEN(status, sum_over_ranks(side, values, 2, DTYPE_F64));
    if (side->findings)
        *(is_before ? &side->findings->before : &side->findings->after) =
            (struct bench_ceiling){.gemm = values[0], .read = values[1]};
    return status;
}

/* Measures a step or a block, from when all ranks are ready to when all are done. */
static int take_step(struct side *side, bool is_measured) {
    struct bench_findings *f = side->findings;
    struct train_record record;
    int status = rank_time_phases(trainer_rank(side->trainer), is_measured);
    THEN(status, meet(side));
    double start = clock_seconds();
    struct trainer_times before = trainer_times(side->trainer);
    for (int i = 0; i < (is_measured ? side->block : 1) && !status; i++)
        status = trainer_step(side->trainer, &record);
    if (!status && side->block > 1) /* a rank that does other work afterwards waits for the weights first */
        status = trainer_await_weights(side->trainer);
    struct trainer_times after = trainer_times(side->trainer);
    THEN(status, meet(side));
    if (status || !is_measured)
        return status;
    side->steps += side->block;
    side->times.waited += after.waited - before.waited;
    side->times.last_backward += after.last_backward - before.last_backward;
    if (!f)
        return STATUS_OK;
    f->seconds[f->steps] = (clock_seconds() - start) / side->block;
    f->total += f->seconds[f->steps++];
    f->loss = record.lm_loss;
    return STATUS_OK;
}

static int gather_cores(struct side *side) {
    const char *mine = trainer_site(side->trainer)->cores;
    int ranks = side->world ? side->world->size : 1;
    char(*cores)[SITE_CORES_BYTES] = calloc((size_t)ranks, sizeof *cores);
    TRY(status_allocated(cores));
    struct comm_data data = {.send = mine, .receive = cores, .count = sizeof *cores, .dtype = DTYPE_U8};
    int status = side->world ? comm_all_gather(side->world, &data) : STATUS_OK;
    if (!side->world)
        memcpy(cores[0], mine, sizeof *cores);
    if (side->findings)
        side->findings->cores = cores;
    else
        free(cores);
    return status;
}

static int finish(struct side *side) {
    struct rank *rank = trainer_rank(side->trainer);
    const struct rank_site *site = trainer_site(side->trainer);
    const struct train_plan *plan = trainer_plan(side->trainer);
    int ranks = side->world ? side->world->size : 1;
    double phases[PHASE_COUNT];
    int64_t mine = (int64_t)train_plan_total(plan), planned = mine;
    double times[] = {-side->times.waited / (double)side->steps, -side->times.last_backward / (double)side->steps};
    struct comm_data data = {.send = times, .receive = times, .count = 2, .dtype = DTYPE_F64};
    int status = trainer_await_weights(side->trainer);
    THEN(status, rank_take_phases(rank, phases));
    for (int i = 0; i < PHASE_COUNT && !status; i++)
        phases[i] /= ranks * side->block;
    THEN(status, sum_over_ranks(side, phases, PHASE_COUNT, DTYPE_F64));
    THEN(status, side->world ? comm_all_reduce(side->world, &data, COMM_MAX) : STATUS_OK);
    THEN(status, sum_over_ranks(side, &planned, 1, DTYPE_I64));
    struct bench_findings *f = side->findings;
    if (f) {
        memcpy(f->phases, phases, sizeof phases);
        f->planned_bytes = site->in_process == ranks ? planned : mine;
        f->trainable_parameters = plan->trainable_parameters;
        f->flops_per_token = plan->flops_per_token;
        f->times = (struct trainer_times){.waited = -times[0], .last_backward = -times[1]};
        f->device_bytes = bench_device_bytes(rank->device);
        f->grid = rank->grid;
        snprintf(f->device, sizeof f->device, "%s", device_description(rank->device));
        f->ranks = ranks;
        f->threads = site->threads;
    }
    return status ? status : gather_cores(side);
}

static int obey(struct side *side, enum bench_order order) {
    switch (order) {
    case ORDER_CEILING_BEFORE:
    case ORDER_CEILING_AFTER:
        return measure_ceiling(side, order == ORDER_CEILING_BEFORE);
    case ORDER_WARM_UP:
    case ORDER_STEP:
        return take_step(side, order == ORDER_STEP);
    case ORDER_FINISH:
        return finish(side);
    case ORDER_END:
        break;
    }
    return STATUS_OK;
}

/* ---- runners ---- */

struct bench_runner {
    const struct train_run *run;
    int ranks, block;
    struct bench_findings findings;
    struct side side; /* of this thread, when it is a rank; else without a trainer */

    pthread_t thread; /* starts the other ranks and joins them */
    bool has_thread;
    pthread_mutex_t lock; /* for the members below */
    pthread_cond_t change;
    enum bench_order order;
    int64_t given, done; /* orders; the opening is number 0 */
    bool has_ended;      /* with the status and text of a failure */
    int status;
    char text[1024];
};

static enum bench_order await_order(struct bench_runner *runner, int64_t number) {
    pthread_mutex_lock(&runner->lock);
    while (runner->given < number && !runner->has_ended)
        pthread_cond_wait(&runner->change, &runner->lock);
    enum bench_order order = runner->has_ended ? ORDER_END : runner->order;
    pthread_mutex_unlock(&runner->lock);
    return order;
}

static void tell(struct bench_runner *runner, int64_t done, bool has_ended) {
    pthread_mutex_lock(&runner->lock);
    runner->done = done > runner->done ? done : runner->done;
    runner->has_ended |= has_ended;
    pthread_cond_broadcast(&runner->change);
    pthread_mutex_unlock(&runner->lock);
}

static int open_side(struct bench_runner *runner, struct comm *world, struct side *side) {
    bool is_first = !world || world->rank == 0;
    *side = (struct side){.world = world,
                          .dtype = run_dtype(&runner->run->config),
                          .block = runner->block,
                          .findings = is_first ? &runner->findings : NULL};
    return trainer_open(runner->run, world, &side->trainer);
}

static int run_rank(struct comm *world, void *context) {
    struct bench_runner *runner = context;
    struct side side;
    enum bench_order order = ORDER_WARM_UP;
    log_quiet(world->rank > 0);
    int status = open_side(runner, world, &side);
    for (int64_t number = 1; !status && order != ORDER_END; number++) {
        if (world->rank == 0)
            tell(runner, number - 1, false);
        order = await_order(runner, number);
        status = obey(&side, order);
    }
    if (status) {
        comm_abort(world, status_text());
        tell(runner, 0, true);
    }
    trainer_close(side.trainer);
    return status;
}

static void *run_all(void *context) {
    struct bench_runner *runner = context;
    int status = comm_local_run(runner->ranks, run_rank, runner);
    pthread_mutex_lock(&runner->lock);
    runner->status = status;
    snprintf(runner->text, sizeof runner->text, "%s", status ? status_text() : "");
    runner->has_ended = true;
    pthread_cond_broadcast(&runner->change);
    pthread_mutex_unlock(&runner->lock);
    return NULL;
}

/* Returns when the first rank has done order `number`. */
static int await_done(struct bench_runner *runner, int64_t number) {
    pthread_mutex_lock(&runner->lock);
    while (runner->done < number && !runner->has_ended)
        pthread_cond_wait(&runner->change, &runner->lock);
    bool has_ended = runner->has_ended;
    pthread_mutex_unlock(&runner->lock);
    if (!has_ended)
        return STATUS_OK;
    if (runner->has_thread)
        pthread_join(runner->thread, NULL);
    runner->has_thread = false;
    return runner->status ? status_fail(runner->status, "%s", runner->text) : STATUS_OK;
}

int bench_runner_open(const struct train_run *run, int ranks, struct comm *world, int64_t steps, int block,
                      struct bench_runner **out) {
    struct bench_runner *runner = *out = calloc(1, sizeof *runner);
    TRY(status_allocated(runner));
    runner->run = run;
    runner->ranks = ranks;
    runner->block = block;
    pthread_mutex_init(&runner->lock, NULL);
    pthread_cond_init(&runner->change, NULL);
    runner->findings.seconds = calloc((size_t)steps, sizeof(double));
    TRY(status_allocated(runner->findings.seconds));
    if (world || ranks == 1)
        return open_side(runner, world, &runner->side);
    runner->done = -1;
    if (pthread_create(&runner->thread, NULL, run_all, runner))
        return status_fail(STATUS_MEMORY, "cannot start a thread");
    runner->has_thread = true;
    return await_done(runner, 0);
}

int bench_runner_obey(struct bench_runner *runner, enum bench_order order) {
    if (runner->side.trainer)
        return obey(&runner->side, order);
    pthread_mutex_lock(&runner->lock);
    runner->order = order;
    int64_t number = ++runner->given;
    pthread_cond_broadcast(&runner->change);
    pthread_mutex_unlock(&runner->lock);
    return await_done(runner, number);
}

struct bench_findings *bench_runner_findings(struct bench_runner *runner) {
    return &runner->findings;
}

struct trainer *bench_runner_trainer(struct bench_runner *runner) {
    return runner->side.trainer;
}

void bench_runner_close(struct bench_runner *runner) {
    if (!runner)
        return;
    if (runner->has_thread) {
        tell(runner, 0, true);
        pthread_join(runner->thread, NULL);
    }
    trainer_close(runner->side.trainer);
    pthread_cond_destroy(&runner->change);
    pthread_mutex_destroy(&runner->lock);
    free(runner->findings.seconds);
    free(runner->findings.cores);
    free(runner);
}
