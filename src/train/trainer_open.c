/* A trainer opens step by step, and closes the same steps in reverse. The table at the end of the opening is the order;
 * each step relies on those above it. Ranks agree where the next step is a collective call or waits for files. */
#include "train-internal.h"

#include "parallel/algorithms.h"
#include "parallel/connect.h"
#include "parallel/sharded.h"

/* ---- the group, and what the run writes ---- */

static int open_world(void *self) {
    struct trainer *trainer = self;
    if (trainer->world)
        return STATUS_OK;
    int status = comm_single_open(&trainer->own_world);
    trainer->world = trainer->own_world;
    return status;
}

static void close_world(void *self) {
    comm_close(((struct trainer *)self)->own_world);
}

static int open_claim(void *self) {
    return train_claim(self);
}

static void close_claim(void *self) {
    train_unclaim(self);
}

static int heed_signals(void *self) {
    return train_agree_to_start(self);
}

static int find_site(void *self) {
    struct trainer *trainer = self;
    return rank_site_find(trainer->world, (int)trainer->run.config.parallel.threads_per_rank, &trainer->site);
}

/* ---- data ---- */

static int open_rows(struct trainer *trainer) {
    int status = tuning_data_open(trainer->run.tuning, &trainer->rows);
    if (!status)
        tuning_data_warn(trainer->rows); /* reports rows that were skipped or cut */
    return status;
}

/* The first rank of a host builds the index caches. The first ranks of its other processes then find them. */
static int open_data_of_host(void *self) {
    struct trainer *trainer = self;
    if (trainer->run.tuning)
        return open_rows(trainer);
    if (trainer->run.source)
        return STATUS_OK;
    const struct gpt_data_options options = train_data_options(&trainer->run);
    return trainer->site.is_first_on_host ? gpt_data_open(&trainer->data, &options) : STATUS_OK;
}

/* Closes the data, whichever steps have opened it. */
static void close_data(void *self) {
    struct trainer *trainer = self;
    gpt_data_close(&trainer->data);
    tuning_data_close(trainer->rows);
}

static int open_data_of_process(void *self) {
    struct trainer *trainer = self;
    const struct rank_site *site = &trainer->site;
    if (trainer->run.tuning || trainer->run.source || site->is_first_on_host || !site->is_first_in_process)
        return STATUS_OK;
    const struct gpt_data_options options = train_data_options(&trainer->run);
    return gpt_data_open(&trainer->data, &options);
}

/* Shares the data that the first rank of a process has opened with its other ranks. */
static int share_data(void *self) {
    struct trainer *trainer = self;
    struct comm *world = trainer->world;
    if (trainer->run.tuning || trainer->run.source || world->size == 1)
        return STATUS_OK;
    int users = trainer->site.is_first_in_process ? trainer->site.in_process : 0;
    struct gpt_data *all = calloc((size_t)world->size, sizeof *all);
    int status = status_allocated(all);
    THEN_IF(status, users, gpt_data_share(&trainer->data, users));
    struct comm_data data = {.send = &trainer->data, .receive = all, .count = sizeof trainer->data, .dtype = DTYPE_U8};
    status = comm_agree(world, status);
    for (int i = 1; status && trainer->data.users && i < users;
         i++) { /* closes the copies that no rank takes after a failure */
        struct gpt_data copy = trainer->data;
        gpt_data_close(&copy);
    }
    THEN(status, comm_all_gather(world, &data));
    if (!status && !users)
        trainer->data = all[trainer->site.first_in_process];
    free(all);
    return status;
}

static int check_validations(void *self) {
    const struct trainer *trainer = self;
    const struct run_config *run = &trainer->run.config;
    if (train_validation_length(trainer))
        return STATUS_OK;
    if (run->train.early_stop)
        return status_fail(STATUS_USAGE, "train.early_stop %lld: there are no samples for validations",
                           (long long)run->train.early_stop);
    if (run->train.eval_interval && run->train.eval_iters && !run->train.skip_train)
        log_warning("train.eval_interval %lld: there are no samples for validations, so none will be made",
                    (long long)run->train.eval_interval);
    return STATUS_OK;
}

/* ---- the device, the rank and its plan ---- */

static int open_device(void *self) {
    struct trainer *trainer = self;
    const struct rank_site *site = &trainer->site;
    const char *name = trainer->run.config.device;
    return device_open(name, rank_site_device(site, name), site->threads, &trainer->device);
}

static void close_device(void *self) {
    device_close(((struct trainer *)self)->device);
}

static int connect_ranks(void *self) {
    struct trainer *trainer = self;
    const struct run_config *run = &trainer->run.config;
    return rank_connect(trainer->world, trainer->device, (enum collectives)run->collectives,
                        (int)run->parallel.nccl_max_ctas);
}

static int take_algorithms(void *self) {
    struct trainer *trainer = self;
    return algorithms_take(trainer->world, trainer->device, trainer->run.config.gemm_algorithms);
}

static void disconnect_ranks(void *self) {
    rank_disconnect(((struct trainer *)self)->world);
}

static int open_rank(void *self) {
    struct trainer *trainer = self;
    const struct run_config *run = &trainer->run.config;
    rank_site_warn(trainer->device, trainer->site.threads);
    int status = rank_open(&trainer->rank, &trainer->grid, trainer->world, trainer->device, (uint64_t)run->train.seed);
    THEN_IF(status, run->train.precision == PRECISION_TF32, rank_use_tf32(&trainer->rank));
    if (status) {
        rank_close(&trainer->rank);
        return status;
    }
    trainer->rank.gemm_sm_margin = (int)run->parallel.gemm_sm_margin;
    if (run->batch_invariant)
        rank_make_batch_invariant(&trainer->rank);
    return STATUS_OK;
}

static void close_rank(void *self) {
    rank_close(&((struct trainer *)self)->rank);
}

static void close_plan(void *self) {
    struct trainer *trainer = self;
    train_model_close(&trainer->run, &trainer->model);
}

/* Planning sketches the base, the tuner and the runner, which get their memory in open_model. */
static int open_plan(void *self) {
    struct trainer *trainer = self;
    int status = train_plan_fill(&trainer->run, &trainer->rank, &trainer->data, &trainer->model, &trainer->plan);
    if (status)
        close_plan(trainer);
    return status;
}

/* ---- the model, and what trains it ---- */

static int open_model(void *self) {
    struct trainer *trainer = self;
    struct train_model *model = &trainer->model;
    int status = base_allocate(model->base);
    THEN(status, training_allocate(model->runner));
    return status ? status : rank_allocate_workspace(&trainer->rank);
}

static int load_base(void *self) {
    struct trainer *trainer = self;
    return trainer->run.tuner ? train_load_base(trainer) : STATUS_OK;
}

/* Reads samples from the files of the run. */
static int read_files(const struct train_source *source, struct gpt_batch *batch, const struct train_samples *samples) {
    const struct trainer *trainer = (const void *)((const char *)source - offsetof(struct trainer, files));
    const struct tuning_options *rows = trainer->run.tuning;
    if (!rows)
        return gpt_batch_read(batch, &trainer->data.splits[samples->split], samples->first);
    const struct tuner_reference own = {.virtual_tokens = rows->virtual_tokens, .first_position = rows->first_position};
    const struct tuner_reference *before = samples->is_reference ? &trainer->model.tuner.reference : &own;
    const struct tuning_view view = {.virtual_tokens = before->virtual_tokens,
                                     .first_position = before->first_position,
                                     .cycle_first = samples->batch_first,
                                     .cycle = samples->is_mismatched ? samples->batch_samples : 0};
    return tuning_batch_view(batch, trainer->rows, samples->split, samples->first, &view);
}

static int open_stepper(void *self) {
    struct trainer *trainer = self;
    struct model_options options;
    struct pipeline_shape shape;
    TRY(train_model_options(&trainer->run, &trainer->rank, &trainer->model, &options, &shape));
    trainer->files = (struct train_source){.read = read_files, .rows = trainer->rows};
    trainer->stepper = (struct stepper){.rank = &trainer->rank,
                                        .config = &trainer->run.config,
                                        .model = &trainer->model,
                                        .tuner = trainer->run.tuner,
                                        .loss = trainer->run.loss,
                                        .loss_options = trainer->run.loss_options,
                                        .source = trainer->run.source ? trainer->run.source : &trainer->files};
    const struct run_config *run = &trainer->run.config;
    int status = STATUS_OK;
    if (trainer->run.reference_bytes)
        status =
            references_open(&trainer->files, trainer->run.loss, run->train.train_iters * run->train.global_batch_size);
    THEN(status, stepper_open(&trainer->stepper, &shape));
    if (status)
        references_close(&trainer->files);
    return status;
}

static void close_stepper(void *self) {
    struct trainer *trainer = self;
    stepper_close(&trainer->stepper);
    references_close(&trainer->files);
}

static int load(void *self) {
    return train_load(self);
}

static int open_saver(void *self) {
    return train_saver_open(self);
}

static void close_saver(void *self) {
    train_saver_close(self);
}

/* ---- the table ---- */

static int agree(void *self, int status) {
    struct trainer *trainer = self;
    bool is_known =
        status == STATUS_INTERRUPTED || !trainer->world; /* all ranks have agreed on an interruption already */
    return is_known ? status : comm_agree(trainer->world, status);
}

static const struct opening_step steps[] = {
    {.open = open_world, .close = close_world},
    {.open = open_claim, .close = close_claim, .agrees = true},
    {.open = heed_signals, .agrees = true},
    {.open = find_site, .agrees = true},
    {.open = open_data_of_host, .close = close_data, .agrees = true},
    {.open = open_data_of_process, .agrees = true},
    {.open = share_data},
    {.open = check_validations},
    {.open = open_device, .close = close_device, .agrees = true},
    {.open = connect_ranks, .close = disconnect_ranks, .agrees = true},
    {.open = take_algorithms, .agrees = true},
    {.open = heed_signals, .agrees = true},
    {.open = open_rank, .close = close_rank},
    {.open = open_plan, .close = close_plan},
    {.open = open_model, .agrees = true},
    {.open = load_base},
    {.open = open_stepper, .close = close_stepper, .agrees = true},
    {.open = load},
    {.open = open_saver, .close = close_saver, .agrees = true},
    {.open = heed_signals, .agrees = true},
};
const struct opening train_opening = {.steps = steps, .count = sizeof steps / sizeof *steps, .agree = agree};

int train_make(const struct train_run *run, struct comm *world, struct trainer **out) {
    *out = NULL;
    struct rank_grid grid;
    TRY(train_grid(&run->config, world ? world->size : 1, &grid));
    struct trainer *trainer = *out = calloc(1, sizeof *trainer);
    TRY(status_allocated(trainer));
    trainer->run = *run;
    trainer->world = world;
    trainer->grid = grid;
    trainer->save_lock = -1;
    trainer->iteration = run->iteration;
    trainer->consumed_samples = run->consumed_samples;
    trainer->progress = run->progress;
    trainer->schedule = stepper_schedule(&run->config);
    return STATUS_OK;
}

int trainer_open(const struct train_run *run, struct comm *world, struct trainer **out) {
    int status = train_make(run, world, out);
    TRY(status);
    const struct rank_grid *grid = &(*out)->grid;
    if (world && world->size > 1)
        log_info("%d ranks: tensor %d, data %d, pipeline %d", world->size, grid->tensor, grid->data, grid->pipeline);
    if ((status = opening_run(&train_opening, *out))) {
        free(*out);
        *out = NULL;
    }
    return status;
}

void trainer_close(struct trainer *trainer) {
    if (!trainer)
        return;
    opening_undo(&train_opening, trainer);
    free(trainer);
}
