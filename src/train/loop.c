/* The run: iterations and their reports, validation, checkpoints, and the three ways to end. */
#include "train-internal.h"

#include <math.h>

static const double CEILING_SECONDS = 0.3; /* limit for measuring the machine */

/* The files that a run writes to in each iteration, on the first rank only. */
struct outputs {
    struct metrics_file metrics;
    struct event_file events;
    struct report report;
    bool is_reporter, has_metrics, has_events, has_answers;
};

/* A run that restarts before its first checkpoint starts from the beginning, and so do its records. */
static struct metrics_start describe_start(const struct trainer *trainer) {
    const struct train_run *run = &trainer->run;
    return (struct metrics_start){.iteration = trainer->iteration,
                                  .kind = run->config.train.skip_train ? METRICS_ADDS
                                          : train_resumes(run)         ? METRICS_RESUMES
                                                                       : METRICS_FRESH,
                                  .has_loss = trainer->progress.has_loss,
                                  .loss = trainer->progress.loss};
}

static int open_outputs(struct outputs *outputs, const struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    int status = STATUS_OK;
    outputs->is_reporter = trainer->world->rank == 0;
    outputs->has_answers = stepper_has_answers(&trainer->stepper);
    if (!outputs->is_reporter)
        return STATUS_OK;
    if (run->log.metrics_file) {
        struct metrics_start start = describe_start(trainer);
        status = metrics_open(&outputs->metrics, run->log.metrics_file, &start);
        outputs->has_metrics = !status;
    }
    if (!status && run->log.tensorboard_dir) {
        status = events_open(&outputs->events, run->log.tensorboard_dir, trainer->iteration + 1);
        outputs->has_events = !status;
    }
    return status;
}

static void close_outputs(struct outputs *outputs) {
    if (outputs->has_metrics)
        metrics_close(&outputs->metrics);
    if (outputs->has_events)
        events_close(&outputs->events);
}

static int tell_step(struct outputs *outputs, const struct train_record *record) {
    int status = STATUS_OK;
    if (outputs->has_metrics)
        status = metrics_write_train(&outputs->metrics, record);
    const struct event_scalar scalars[] = {
        {record->has_rewards ? "loss" : "lm loss", record->lm_loss},
        {"learning-rate", record->lr},
        {"grad-norm", record->grad_norm},
        {"tokens-per-second", record->tokens_per_s},
        {"model-tflops", record->model_tflops},
        {"rewards/chosen", record->rewards.chosen},
        {"rewards/rejected", record->rewards.rejected},
        {"rewards/margin", record->rewards.margin},
        {"rewards/accuracy", record->rewards.accuracy},
    };
    size_t count = sizeof scalars / sizeof *scalars - (record->has_rewards ? 0 : 4);
    if (!status && outputs->has_events)
        status = events_write(&outputs->events, record->iteration, scalars, count);
    if (outputs->is_reporter)
        report_step(&outputs->report, record);
    return status;
}

static int tell_validation(struct outputs *outputs, const struct validation_record *record, bool is_kept) {
    const struct event_scalar scalar = {outputs->has_answers ? "loss validation" : "lm loss validation",
                                        record->valid_loss};
    int status = STATUS_OK;
    if (outputs->has_metrics)
        status = metrics_write_validation(&outputs->metrics, record);
    THEN_IF(status, outputs->has_events, events_write(&outputs->events, record->iteration, &scalar, 1));
    if (outputs->is_reporter)
        report_validation(&outputs->report, record, is_kept);
    return status;
}

/* A loss that is not finite ends the run before anything is saved, as in a training step. */
static int check_validation(struct trainer *trainer, const struct validation_record *record) {
    if (isfinite(record->valid_loss))
        return STATUS_OK;
    int status = train_end_together(trainer);
    return status ? status
                  : status_fail(STATUS_INVALID,
                                "iteration %lld: the validation loss is %s; stopped, with nothing saved (a lower "
                                "optim.lr may help)",
                                (long long)record->iteration, dtype_not_finite_name(record->valid_loss));
}

static int evaluate(struct trainer *trainer, struct outputs *outputs) {
    struct validation_record record;
    bool is_done, is_better;
    int status = train_validate(trainer, &record, &is_done, &is_better);
    if (status || !is_done)
        return status;
    status = tell_validation(outputs, &record, is_better && train_keeps_best(&trainer->run));
    return status ? status : check_validation(trainer, &record);
}

/* train.skip_train */
static int evaluate_alone(struct trainer *trainer, struct outputs *outputs) {
    struct validation_record record;
    bool is_done;
    int status = trainer_evaluate(trainer, &record, &is_done);
    if (!status && !is_done && !trainer->stop)
        status = status_fail(STATUS_USAGE, "train.skip_train: there are no samples for a validation");
    THEN_IF(status, is_done, tell_validation(outputs, &record, false));
    return status || !is_done ? status : check_validation(trainer, &record);
}

/* Saves a checkpoint; waits for it if it is the run's last one. */
static int save(struct trainer *trainer, struct outputs *outputs, bool is_last) {
    report_pause(&outputs->report);
    TRY(outputs->has_metrics ? metrics_sync(&outputs->metrics) : STATUS_OK);
    return trainer->run.config.checkpoint.async_save && !is_last ? trainer_save_begin(trainer) : trainer_save(trainer);
}

static bool divides(int64_t interval, int64_t iteration) {
    return interval > 0 && iteration % interval == 0;
}

static int run_iterations(struct trainer *trainer, struct outputs *outputs) {
    const struct run_config *run = &trainer->run.config;
    int status = train_owes_validation(trainer) ? evaluate(trainer, outputs) : train_agree(trainer);
    int stop = trainer->stop;
    bool is_exit = false, is_early = train_is_stopped_early(trainer);
    while (!status && !stop && !is_exit && !is_early && trainer->iteration < run->train.train_iters) {
        struct train_record record;
        status = trainer_step(trainer, &record);
        THEN(status, tell_step(outputs, &record));
        THEN(status, train_agree(trainer));
        if (!status && divides(run->train.eval_interval, trainer->iteration) && !trainer->stop)
            status = evaluate(trainer, outputs);
        stop = trainer->stop;
        is_exit = divides(run->train.exit_interval, trainer->iteration);
        is_early = train_is_stopped_early(trainer);
        bool is_last = stop || is_exit || is_early || trainer->iteration == run->train.train_iters;
        bool wants_save = is_last || divides(run->checkpoint.save_interval, trainer->iteration);
        THEN_IF(status, wants_save && run->checkpoint.save, save(trainer, outputs, is_last));
    }
    TRY(status);
    if (stop && !trainer->iteration)
        log_info("stopped by %s before the first iteration", stop_name(stop));
    else if (stop)
        log_info("stopped by %s after iteration %lld%s", stop_name(stop), (long long)trainer->iteration,
                 run->checkpoint.save ? "" : "; checkpoint.save is not given, so nothing is saved");
    else if (is_early)
        log_info("no better validation loss than %.4f in %lld validations in a row: stopped after iteration %lld",
                 trainer->progress.best_loss, (long long)trainer->progress.bad, (long long)trainer->iteration);
    else if (is_exit && trainer->iteration < run->train.train_iters)
        log_info("exit at iteration %lld, which train.exit_interval %lld divides", (long long)trainer->iteration,
                 (long long)run->train.exit_interval);
    return status;
}

/* Measures the TFLOP/s of matrix products on all ranks at once; 0 if the log does not need it. */
static int measure_ceiling(const struct trainer *trainer, double *tflops) {
    const struct run_config *run = &trainer->run.config;
    int64_t is_wanted = run->log.measure_ceiling || (trainer->world->rank == 0 && log_is_terminal());
    struct comm_data wish = {.send = &is_wanted, .receive = &is_wanted, .count = 1, .dtype = DTYPE_I64};
    double flops = 0;
    struct comm_data sum = {.send = &flops, .receive = &flops, .count = 1, .dtype = DTYPE_F64};
    int status = comm_all_reduce(trainer->world, &wish, COMM_MAX);
    if (!status && is_wanted)
        status = device_measure_gemm(trainer->device, run_dtype(run), trainer->rank.is_tf32, CEILING_SECONDS, &flops);
    THEN(status, comm_all_reduce(trainer->world, &sum, COMM_SUM));
    *tflops = flops / 1e12;
    return status;
}

int trainer_run(struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    struct outputs outputs = {0};
    if (*trainer->run.checkpoint)
        log_info("resuming from %s at iteration %lld of %lld", trainer->run.checkpoint, (long long)trainer->iteration,
                 (long long)run->train.train_iters);
    bool is_early = train_is_stopped_early(trainer), is_skipped = run->train.skip_train;
    if (!is_skipped &&
        (is_early || (trainer->iteration >= run->train.train_iters && !train_owes_validation(trainer)))) {
        if (is_early)
            log_info("the run was stopped by train.early_stop after iteration %lld", (long long)trainer->iteration);
        else
            log_info("all %lld iterations are done", (long long)run->train.train_iters);
        return STATUS_OK;
    }
    double ceiling;
    int status = comm_agree(trainer->world, open_outputs(&outputs, trainer));
    THEN(status, measure_ceiling(trainer, &ceiling));
    if (!status) {
        if (trainer->site.is_first_in_process)
            stop_watch_begin();
        if (outputs.is_reporter)
            report_begin(&outputs.report, trainer, ceiling);
        status = is_skipped ? evaluate_alone(trainer, &outputs) : run_iterations(trainer, &outputs);
        THEN(status, trainer_await_weights(trainer));
        if (outputs.is_reporter)
            report_end(&outputs.report);
        if (trainer->site.is_first_in_process)
            stop_watch_end();
    }
    close_outputs(&outputs);
    return status;
}
