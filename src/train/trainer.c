/* One iteration: a global batch in micro batches, the update, and the loss on validation batches. */
#include "train-internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static struct schedule schedule_of_run(const struct run_config *run) {
    static const enum schedule_decay decays[] = {
        [LR_CONSTANT] = SCHEDULE_CONSTANT, [LR_LINEAR] = SCHEDULE_LINEAR,
        [LR_COSINE] = SCHEDULE_COSINE,     [LR_INVERSE_SQUARE_ROOT] = SCHEDULE_INVERSE_SQUARE_ROOT,
        [LR_WSD] = SCHEDULE_WSD,
    };
    static const enum schedule_wsd wsd_decays[] = {
        [LR_WSD_LINEAR] = SCHEDULE_WSD_LINEAR,
        [LR_WSD_COSINE] = SCHEDULE_WSD_COSINE,
        [LR_WSD_EXPONENTIAL] = SCHEDULE_WSD_EXPONENTIAL,
        [LR_WSD_MINUS_SQRT] = SCHEDULE_WSD_MINUS_SQRT,
    };
    return (struct schedule){
        .decay = decays[run->optim.lr_decay_style],
        .wsd_decay = wsd_decays[run->optim.lr_wsd_decay_style],
        .lr = run->optim.lr,
        .min_lr = run->optim.min_lr,
        .warmup_init = run->optim.lr_warmup_init,
        .warmup_iters = run->optim.lr_warmup_iters,
        .decay_iters = run->optim.lr_decay_iters,
        .wsd_decay_iters = run->optim.lr_wsd_decay_iters,
        .global_batch_size = run->train.global_batch_size,
    };
}

static int open_batches(struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    int64_t count = run->train.global_batch_size / run->train.micro_batch_size / trainer->rank.data->size;
    trainer->micros = calloc((size_t)count, sizeof *trainer->micros);
    if (!trainer->micros)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (; trainer->micro_count < count; trainer->micro_count++) {
        int status =
            gpt_batch_init(&trainer->micros[trainer->micro_count], run->train.micro_batch_size, run->data.seq_length);
        if (status)
            return status;
    }
    return STATUS_OK;
}

static int open_model(struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    struct model_options options;
    struct pipeline_shape shape;
    struct optimizer_options adamw = {
        .beta1 = run->optim.adam_beta1,
        .beta2 = run->optim.adam_beta2,
        .epsilon = run->optim.adam_eps,
        .weight_decay = run->optim.weight_decay,
        .clip_grad = run->optim.clip_grad,
    };
    const struct gradient_sync_options sync = {
        .is_sharded = run->parallel.use_distributed_optimizer,
        .overlaps_gradients = run->parallel.overlap_grad_reduce,
        /* a trainee's weights are few, and used before the layers */
        .overlaps_weights = run->parallel.overlap_param_gather && !trainer->run.trainee,
    };
    int status = train_model_options(&trainer->run, &trainer->rank, &trainer->trainee, &options, &shape);
    if (!status)
        status = model_open(&options, &trainer->rank, false, NULL, &trainer->model);
    if (!status)
        status = pipeline_open(&trainer->pipeline, &trainer->rank, &shape, model_stream_elements(trainer->model),
                               options.dtype);
    trainer->store = trainer->run.trainee ? trainer->trainee.store
                     : trainer->model     ? model_store(trainer->model)
                                          : NULL;
    if (!status)
        status = gradient_sync_open(&trainer->sync, &trainer->rank, trainer->store, &sync);
    if (!status && trainer->run.trainee)
        status = train_load_base(trainer);
    if (!status)
        status = optimizer_open(&trainer->optimizer, &adamw, &trainer->sync);
    status = comm_agree(trainer->world, status);
    if (!status)
        status = train_load(trainer);
    return status ? status : train_saver_open(trainer);
}

static int open_rows(struct trainer *trainer) {
    int status = tuning_data_open(trainer->run.tuning, &trainer->rows);
    if (!status)
        tuning_data_warn(trainer->rows); /* what was left out or cut */
    return status;
}

/* The ranks of a process have what its first one opened; `status` is this rank's so far. */
static int share_data(struct trainer *trainer, int status) {
    struct comm *world = trainer->world;
    int users = trainer->site.is_first_in_process ? trainer->site.in_process : 0;
    struct gpt_data *all = calloc((size_t)world->size, sizeof *all);
    if (!status && !all)
        status = status_fail(STATUS_MEMORY, "out of memory");
    if (!status && users)
        status = gpt_data_share(&trainer->data, users);
    struct comm_data data = {.send = &trainer->data, .receive = all, .count = sizeof trainer->data, .dtype = DTYPE_U8};
    status = comm_agree(world, status);
    for (int i = 1; status && trainer->data.users && i < users; i++) { /* copies that nobody takes */
        struct gpt_data copy = trainer->data;
        gpt_data_close(&copy);
    }
    if (!status)
        status = comm_all_gather(world, &data);
    if (!status && !users)
        trainer->data = all[trainer->site.first_in_process];
    free(all);
    return status;
}

/* The first rank of a host builds the index caches, which the first ranks of its other processes then find. */
static int read_data(struct trainer *trainer) {
    if (trainer->run.tuning)
        return open_rows(trainer);
    struct gpt_data_options options = train_data_options(&trainer->run);
    int status = STATUS_OK;
    if (trainer->site.is_first_on_host)
        status = gpt_data_open(&trainer->data, &options);
    if ((status = comm_agree(trainer->world, status)))
        return status;
    if (!trainer->site.is_first_on_host && trainer->site.is_first_in_process)
        status = gpt_data_open(&trainer->data, &options);
    return trainer->world->size == 1 ? status : share_data(trainer, status);
}

static int64_t validation_length(const struct trainer *trainer) {
    return trainer->rows ? tuning_data_length(trainer->rows, SPLIT_VALID) : trainer->data.splits[SPLIT_VALID].length;
}

static int open_data(struct trainer *trainer) {
    int status = read_data(trainer);
    if (!status && trainer->run.config.train.early_stop && validation_length(trainer) == 0)
        status = status_fail(STATUS_USAGE, "train.early_stop %lld: there are no samples for validations",
                             (long long)trainer->run.config.train.early_stop);
    return status;
}

int trainer_open(const struct train_run *run, struct comm *world, struct trainer **out) {
    *out = NULL;
    struct rank_grid grid;
    int status = train_grid(&run->config, world ? world->size : 1, &grid);
    if (status)
        return status;
    struct trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer)
        return status_fail(STATUS_MEMORY, "out of memory");
    trainer->run = *run;
    trainer->save_lock = -1;
    trainer->iteration = run->iteration;
    trainer->consumed_samples = run->consumed_samples;
    trainer->progress = run->progress;
    trainer->schedule = schedule_of_run(&run->config);
    if (!world)
        status = comm_single_open(&trainer->own_world);
    trainer->world = world ? world : trainer->own_world;
    if (world && world->size > 1)
        log_info("%d ranks: tensor %d, data %d, pipeline %d", world->size, grid.tensor, grid.data, grid.pipeline);
    if (!status)
        status = train_claim(trainer);
    if (!status)
        status = train_agree_to_start(trainer);
    if (!status)
        status = rank_site_find(trainer->world, (int)run->config.parallel.threads_per_rank, &trainer->site);
    if (!status)
        status = open_data(trainer);
    if (!status)
        status = device_open(run->config.device, trainer->site.place_on_host, trainer->site.threads, &trainer->device);
    if (trainer->world && status != STATUS_INTERRUPTED) /* which all have agreed on */
        status = comm_agree(trainer->world, status);    /* no rank may wait for one that could not open its files */
    if (!status)
        status = train_agree_to_start(trainer);
    if (!status)
        rank_site_warn(trainer->device, trainer->site.threads);
    if (!status)
        status = rank_open(&trainer->rank, &grid, trainer->world, trainer->device, (uint64_t)run->config.train.seed);
    if (!status)
        status = train_plan_fill(run, &trainer->rank, &trainer->data, &trainer->trainee, &trainer->plan);
    if (!status)
        status = open_batches(trainer);
    if (!status)
        status = open_model(trainer);
    if (!status)
        status = train_agree_to_start(trainer);
    if (status)
        trainer_close(trainer);
    else
        *out = trainer;
    return status;
}

void trainer_close(struct trainer *trainer) {
    if (!trainer)
        return;
    train_saver_close(trainer);
    optimizer_close(&trainer->optimizer);
    gradient_sync_close(&trainer->sync);
    pipeline_close(&trainer->pipeline);
    model_close(trainer->model);
    if (trainer->trainee.self)
        trainer->run.trainee->close(trainer->trainee.self);
    rank_close(&trainer->rank);
    if (trainer->device)
        device_close(trainer->device);
    for (int64_t m = 0; m < trainer->micro_count; m++)
        gpt_batch_free(&trainer->micros[m]);
    free(trainer->micros);
    gpt_data_close(&trainer->data);
    tuning_data_close(trainer->rows);
    train_unclaim(trainer);
    comm_close(trainer->own_world);
    free(trainer);
}

struct rank *trainer_rank(struct trainer *trainer) {
    return &trainer->rank;
}

void *trainer_trainee(struct trainer *trainer) {
    return trainer->trainee.self;
}

int64_t trainer_iteration(const struct trainer *trainer) {
    return trainer->iteration;
}

const struct train_plan *trainer_plan(const struct trainer *trainer) {
    return &trainer->plan;
}

const struct rank_site *trainer_site(const struct trainer *trainer) {
    return &trainer->site;
}

struct trainer_times trainer_times(const struct trainer *trainer) {
    return (struct trainer_times){.waited = trainer->sync.waited_seconds, .last_backward = trainer->last_backward};
}

/* ---- an iteration ---- */

int trainer_await_weights(struct trainer *trainer) {
    return gradient_sync_gather_wait(&trainer->sync, INT_MAX);
}

/* The first rank's failure ends the others' wait. What is being saved is from before, and good. */
int train_end_together(struct trainer *trainer) {
    if (trainer_save_wait(trainer))
        log_warning("%s", status_text());
    return trainer->world->rank > 0 ? comm_barrier(trainer->world) : STATUS_OK;
}

static int fail_not_finite(struct trainer *trainer, const char *what, double value) {
    int status = gradient_sync_finish(&trainer->sync);
    if (!status)
        status = trainer_await_weights(trainer);
    if (!status)
        status = train_end_together(trainer);
    if (status)
        return status;
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

int trainer_step(struct trainer *trainer, struct train_record *record) {
    const struct run_config *run = &trainer->run.config;
    double start = clock_seconds(), loss, norm = 0;
    int64_t tokens, labels;
    double lr = schedule_lr(&trainer->schedule, trainer->iteration + 1);
    int status = train_global_batch(trainer, &tokens, &labels);
    if (!status)
        status = optimizer_start(&trainer->optimizer, lr);
    if (!status)
        status = stream_wait(trainer->rank.exec.stream);
    loss = model_fetched_loss(trainer->model);
    if (!status)
        status = train_sum_loss(trainer, &loss);
    if (status)
        return status;
    if (!isfinite(loss))
        return fail_not_finite(trainer, "loss", loss);
    status = optimizer_finish(&trainer->optimizer, &norm);
    if (status && !isfinite(norm))
        return fail_not_finite(trainer, "gradient norm", norm);
    if (status)
        return status;
    trainer->iteration++;
    trainer->consumed_samples += run->train.global_batch_size;
    trainer->progress.has_loss = true;
    trainer->progress.loss = loss;
    double seconds = clock_seconds() - start;
    double tokens_per_s = (double)tokens / seconds;
    trainer->tokens += tokens;
    *record = (struct train_record){
        .iteration = trainer->iteration,
        .lm_loss = loss,
        .lr = lr,
        .grad_norm = norm,
        .tokens_per_s = tokens_per_s,
        .model_tflops = flops_of(&trainer->plan, tokens, labels) / seconds / 1e12,
        .seconds = seconds,
    };
    return STATUS_OK;
}

int trainer_evaluate(struct trainer *trainer, struct validation_record *record, bool *is_done) {
    const struct run_config *run = &trainer->run.config;
    int64_t length = validation_length(trainer);
    double start = clock_seconds(), loss = 0;
    int64_t labels = 0, more, batch_size = run->train.global_batch_size;
    *is_done = false;
    if ((!run->train.eval_interval && !run->train.skip_train) || length == 0)
        return STATUS_OK;
    /* Text is counted as Megatron does: each validation goes on where the one before it ended. Rows are all taken, at
     * most eval_iters batches of them, or without a training all. */
    int64_t number = run->train.eval_interval ? trainer->iteration / run->train.eval_interval : 1;
    int64_t first = (number - 1) * run->train.eval_iters * batch_size;
    int64_t all = (length + batch_size - 1) / batch_size, count = run->train.eval_iters;
    if (trainer->rows || run->train.skip_train)
        first = 0;
    if (trainer->rows)
        count = all < count || run->train.skip_train ? all : count;
    int status = train_agree(trainer);
    if (!status)
        status = trainer_await_weights(trainer);
    if (!status && trainer->run.trainee) /* its weights have changed */
        status = trainer->run.trainee->begin(trainer->trainee.self, TRAINEE_NO_DROPOUT);
    for (int64_t i = 0; i < count && !status && !trainer->stop; i++) {
        status = train_evaluate_batch(trainer, first + i * batch_size, &more);
        labels += more;
        if (!status)
            status = train_agree(trainer);
    }
    if (!status)
        status = model_loss(trainer->model, &loss);
    if (!status)
        status = train_sum_loss(trainer, &loss);
    if (!status)
        status = train_sum_over_data(trainer, &labels, 1, DTYPE_I64);
    double mean = labels > 0 ? loss / (double)labels : 0;
    struct comm_data data = {.send = &mean, .receive = &mean, .count = 1, .dtype = DTYPE_F64};
    if (!status)
        status = comm_broadcast(trainer->world, &data, 0);
    if (status)
        return status;
    *is_done = !trainer->stop;
    *record = (struct validation_record){
        .iteration = trainer->iteration,
        .valid_loss = mean,
        .seconds = clock_seconds() - start,
    };
    return STATUS_OK;
}
