/* One iteration: a global batch in micro batches, the update, and the loss on validation batches. */
#include "train-internal.h"

#include "parallel/sharded.h"

#include <math.h>

struct rank *trainer_rank(struct trainer *trainer) {
    return &trainer->rank;
}

void *trainer_tuner(struct trainer *trainer) {
    return trainer->model.tuner.self;
}

int64_t trainer_iteration(const struct trainer *trainer) {
    return trainer->iteration;
}

bool trainer_is_stopped(const struct trainer *trainer) {
    return trainer->stop != 0;
}

const struct train_plan *trainer_plan(const struct trainer *trainer) {
    return &trainer->plan;
}

const struct rank_site *trainer_site(const struct trainer *trainer) {
    return &trainer->site;
}

struct trainer_times trainer_times(const struct trainer *trainer) {
    double of_units = sharded_counts(base_store(trainer->model.base)).waited_seconds;
    return (struct trainer_times){.waited = trainer->stepper.sync.waited_seconds + of_units,
                                  .last_backward = trainer->stepper.last_backward};
}

/* ---- an iteration ---- */

int trainer_await_weights(struct trainer *trainer) {
    return stepper_await_weights(&trainer->stepper);
}

/* The first rank's failure ends the others' wait. A save in progress has earlier weights, which are good. */
int train_end_together(struct trainer *trainer) {
    if (trainer_save_wait(trainer))
        log_warning("%s", status_text());
    return trainer->world->rank > 0 ? comm_barrier(trainer->world) : STATUS_OK;
}

static int fail_not_finite(struct trainer *trainer, const char *what, double value) {
    TRY(train_end_together(trainer));
    int64_t first = trainer->consumed_samples, count = trainer->run.config.train.global_batch_size;
    return status_fail(
        STATUS_INVALID,
        "iteration %lld: the %s is %s; its samples are %lld to %lld of the training split; stopped, with "
        "nothing saved (a lower optim.lr may help)",
        (long long)trainer->iteration + 1, what, dtype_not_finite_name(value), (long long)first,
        (long long)(first + count - 1));
}

static double flops_of(const struct train_plan *plan, int64_t tokens, int64_t labels) {
    double head = plan->head_flops_per_token;
    return (double)tokens * (plan->flops_per_token - head) + (double)labels * head;
}

/* Returns the work of an iteration with this number of further forwards, as a multiple of one without. A forward is
 * half of the work where the base is frozen, else a third. */
static double work_of(const struct trainer *trainer, int forwards) {
    return 1 + forwards * (trainer->run.tuner ? 1.0 / 2 : 1.0 / 3);
}

double train_work_left(const struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    const struct loss *loss = trainer->run.loss;
    int64_t left = run->train.train_iters - trainer->iteration, once = left, batch = run->train.global_batch_size;
    int forwards = !loss ? 0 : loss->has_reference + 2 * loss->has_shift;
    if (trainer->files.references[SPLIT_TRAIN]) {
        int64_t done = (trainer->iteration - trainer->run.iteration) * batch,
                unknown = tuning_data_epoch(trainer->rows, SPLIT_TRAIN) - done;
        once = unknown > 0 ? (unknown + batch - 1) / batch : 0;
        once = once < left ? once : left;
    }
    return (double)once * work_of(trainer, forwards) +
           (double)(left - once) * work_of(trainer, forwards > 0 ? forwards - 1 : 0);
}

static struct train_rewards rewards_of(const struct loss_figures *figures) {
    double rejected = figures->reward[0] / figures->answers[0], chosen = figures->reward[1] / figures->answers[1];
    return (struct train_rewards){chosen, rejected, chosen - rejected, figures->accurate / figures->samples};
}

int trainer_step(struct trainer *trainer, struct train_record *record) {
    const struct run_config *run = &trainer->run.config;
    struct stepper_result result = {0};
    double start = clock_seconds(), lr = schedule_lr(&trainer->schedule, trainer->iteration + 1);
    int status = stepper_pass(&trainer->stepper, trainer->consumed_samples, &result);
    THEN(status, stepper_update(&trainer->stepper, trainer->iteration, lr, &result));
    if (status == STATUS_INVALID && !isfinite(result.loss))
        return fail_not_finite(trainer, "loss", result.loss);
    if (status == STATUS_INVALID && !isfinite(result.grad_norm))
        return fail_not_finite(trainer, "gradient norm", result.grad_norm);
    TRY(status);
    trainer->iteration++;
    trainer->consumed_samples += run->train.global_batch_size;
    trainer->progress.has_loss = true;
    trainer->progress.loss = result.loss;
    double seconds = clock_seconds() - start;
    double tokens_per_s = (double)result.tokens / seconds, work = work_of(trainer, result.forwards);
    trainer->tokens += result.tokens;
    *record = (struct train_record){
        .iteration = trainer->iteration,
        .lm_loss = result.loss,
        .has_rewards = stepper_has_answers(&trainer->stepper),
        .lr = lr,
        .grad_norm = result.grad_norm,
        .tokens_per_s = tokens_per_s,
        .model_tflops = flops_of(&trainer->plan, result.tokens, result.labels) * work / seconds / 1e12,
        .work = work,
        .seconds = seconds,
    };
    if (record->has_rewards)
        record->rewards = rewards_of(&result.figures);
    return STATUS_OK;
}

int64_t train_validation_length(const struct trainer *trainer) {
    return trainer->rows ? tuning_data_length(trainer->rows, SPLIT_VALID) : trainer->data.splits[SPLIT_VALID].length;
}

int trainer_evaluate(struct trainer *trainer, struct validation_record *record, bool *is_done) {
    const struct run_config *run = &trainer->run.config;
    int64_t length = train_validation_length(trainer);
    double start = clock_seconds(), loss = 0;
    int64_t labels = 0, more, batch_size = run->train.global_batch_size;
    *is_done = false;
    if ((!run->train.eval_interval && !run->train.skip_train) || length == 0)
        return STATUS_OK;
    /* Samples of text are chosen as in Megatron: each validation continues where the previous one ended. Rows are taken
     * from the first on, at most eval_iters batches; without training, all rows. */
    int64_t number = run->train.eval_interval ? trainer->iteration / run->train.eval_interval : 1;
    int64_t first = (number - 1) * run->train.eval_iters * batch_size;
    int64_t all = (length + batch_size - 1) / batch_size, count = run->train.eval_iters;
    if (trainer->rows || run->train.skip_train)
        first = 0;
    if (trainer->rows)
        count = all < count || run->train.skip_train ? all : count;
    int status = train_agree(trainer);
    THEN(status, trainer_await_weights(trainer));
    if (!status && trainer->run.tuner) /* the tuner's weights have changed */
        status = trainer->run.tuner->begin(trainer->model.tuner.self, TUNER_NO_DROPOUT);
    for (int64_t i = 0; i < count && !status && !trainer->stop; i++) {
        status = stepper_evaluate(&trainer->stepper, first + i * batch_size, &more);
        labels += more;
        THEN(status, train_agree(trainer));
    }
    THEN(status, stepper_end_evaluation(&trainer->stepper, &loss));
    THEN(status, train_sum_over_data(&trainer->rank, &labels, 1, DTYPE_I64));
    double mean = labels > 0 ? loss / (double)labels : 0;
    struct comm_data data = {.send = &mean, .receive = &mean, .count = 1, .dtype = DTYPE_F64};
    THEN(status, comm_broadcast(trainer->world, &data, 0));
    TRY(status);
    *is_done = !trainer->stop;
    *record = (struct validation_record){
        .iteration = trainer->iteration,
        .valid_loss = mean,
        .seconds = clock_seconds() - start,
    };
    return STATUS_OK;
}
