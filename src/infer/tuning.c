/* Tuning runs: their opening, and their work in slices. A rank does the same whether it leads or follows; the leader
 * first sends what it does. */
#include "tuning-internal.h"

#include <math.h>

enum { STACK_BYTES = 8 << 20 /* of a pass: what no call touches takes no memory */ };

/* ---- a pass and an update, which run in slices ---- */

static int read_batch(const struct train_source *source, struct gpt_batch *batch, const struct train_samples *samples) {
    struct tuning_run *run = (void *)((char *)source - offsetof(struct tuning_run, source));
    const struct train_source *given = run->pass.source;
    int status = run->engine->leader ? given->read(given, batch, samples) : STATUS_OK;
    return tuning_share_batch(run->engine, batch, status);
}

static int check_loss(double loss) {
    return isfinite(loss) ? STATUS_OK : status_fail(STATUS_INVALID, "the loss is %s", dtype_not_finite_name(loss));
}

static int train(struct tuning_run *run) {
    struct stepper *stepper = &run->lent.stepper;
    struct tuning_pass *pass = &run->pass;
    struct stepper_result one;
    if (!pass->adds_gradients || !run->has_begun)
        TRY(stepper_begin(stepper, pass->first));
    run->has_begun = true;
    for (int64_t i = 0; i < pass->batches; i++) {
        TRY(stepper_add(stepper, pass->first + i * run->opening.config.train.global_batch_size, &one));
        TRY(stepper_find_loss(stepper, &one));
        pass->result.tokens += one.tokens;
        pass->result.labels += one.labels;
        pass->result.loss += one.loss / (double)pass->batches;
        for (int f = 0; f < LOSS_FIGURES; f++)
            ((double *)&pass->result.figures)[f] += ((double *)&one.figures)[f];
    }
    return check_loss(pass->result.loss);
}

static int evaluate(struct tuning_run *run) {
    struct stepper *stepper = &run->lent.stepper;
    struct tuning_pass *pass = &run->pass;
    int64_t labels;
    double loss = 0;
    run->has_begun = false;
    stepper->figures = (struct loss_figures){0};
    TRY(run->tuner.begin(run->lent.model.tuner.self, TUNER_NO_DROPOUT));
    for (int64_t i = 0; i < pass->batches; i++) {
        TRY(stepper_evaluate(stepper, pass->first + i * run->opening.config.train.global_batch_size, &labels));
        pass->result.labels += labels;
    }
    TRY(stepper_end_evaluation(stepper, &loss));
    pass->result.loss = pass->result.labels ? loss / (double)pass->result.labels : 0;
    return check_loss(pass->result.loss);
}

static int update(struct tuning_run *run) {
    struct stepper *stepper = &run->lent.stepper;
    struct tuning_update *update = &run->update;
    const struct optimizer_options adamw = {
        .beta1 = update->beta1,
        .beta2 = update->beta2,
        .epsilon = update->eps,
        .weight_decay = update->weight_decay,
        .clip_grad = update->clip,
    };
    if (!run->has_begun)
        TRY(stepper_begin(stepper, 0)); /* no gradient: only the decay */
    run->has_begun = false;
    stepper->optimizer.step = update->iteration;
    TRY(optimizer_change(&stepper->optimizer, &adamw));
    TRY(stepper_end(stepper));
    update->result.loss = run->pass.result.loss;
    return stepper_apply(stepper, update->lr, &update->result.grad_norm);
}

static int run_task(void *context) {
    struct tuning_run *run = context;
    return run->is_update ? update(run) : run->pass.is_forward_only ? evaluate(run) : train(run);
}

/* Clears what a task leaves that failed or was ended. */
static int fail_task(struct tuning_run *run, int status) {
    char reason[1024];
    double loss;
    snprintf(reason, sizeof reason, "%s", status_text());
    run->has_begun = false;
    TRY(model_loss(run->lent.model.runner, &loss));
    return status_fail(status, "%s", reason);
}

static int slice(struct tuning_run *run, const struct slice_limit *limit, bool *is_done) {
    int status;
    *is_done = slice_resume(&run->slice, limit, &status);
    int finished = rank_finish(&run->lent.rank); /* so that a slice has its time */
    slice_add_rest(&run->slice);
    if (!*is_done)
        return finished;
    run->is_under_way = false;
    return status ? fail_task(run, status) : finished;
}

/* Unwinds a pass. */
static int end_pass(struct tuning_run *run) {
    bool is_done = true;
    if (!run->is_under_way)
        return STATUS_OK;
    run->slice.must_end = true;
    int status = slice(run, &(const struct slice_limit){0}, &is_done);
    run->slice.must_end = false;
    return status == STATUS_INTERRUPTED ? STATUS_OK : status;
}

static void begin(struct tuning_run *run, bool is_update) {
    run->is_under_way = true;
    run->is_update = is_update;
    run->slice.next_work = 0;
    fiber_begin(run->slice.fiber, run_task, run);
}

/* ---- opening and closing, on each rank ---- */

static void clear_pointers(struct run_config *config) {
    const struct config_list none = {0};
    config->model_words.window_size = config->model_words.window_attn_skip_freq = none;
    config->data.data_path = config->parallel.recompute_modules = none;
    config->tokenizer.path = config->device = config->gemm_algorithms = NULL;
    config->data.split = config->data.data_cache_path = NULL;
    config->checkpoint.save = config->checkpoint.load = NULL;
    config->log.metrics_file = config->log.tensorboard_dir = NULL;
}

static int close_run(struct tuning_run *run) {
    int status = run->slice.fiber ? end_pass(run) : STATUS_OK;
    struct engine *engine = run->engine;
    lent_run_close(&run->lent);
    fiber_close(run->slice.fiber);
    tuning_free_opening(run);
    engine->shared->tuned -= run->bytes;
    engine->runs[run->number] = NULL;
    free(run);
    return status;
}

/* Plans the run, and takes its bytes from the limit. */
static int plan_run(struct tuning_run *run) {
    struct engine *engine = run->engine;
    const struct engine_options *o = &engine->shared->bases->options;
    TRY(lent_run_sketch(&run->lent, engine->base, &engine->shared->rank));
    size_t bytes = train_plan_total(&run->lent.plan), used = engine->shared->tuned;
    run->bytes = bytes;
    engine->shared->tuned += bytes;
    return used + bytes <= o->tuning_memory
               ? STATUS_OK
               : status_fail(STATUS_MEMORY,
                             "the run takes %zu bytes on each rank, and %zu of --tuning-memory %zu are free", bytes,
                             o->tuning_memory > used ? o->tuning_memory - used : 0, o->tuning_memory);
}

/* A plan that fails on another rank only is too large there. */
static int agree_on_plan(const struct engine *engine, int status) {
    int agreed = tuning_agree(engine, status);
    return agreed && !status ? status_fail(STATUS_MEMORY, "%s", status_text()) : agreed;
}

static int open_run(struct tuning_run *run) {
    struct engine *engine = run->engine;
    const struct tuning_opening *opening = &run->opening;
    int precision = engine->options.precision;
    run->adapters = (struct tuner_adapters){
        .configs = run->configs, .count = (int)opening->adapter_count, .model = engine->directory};
    run->tuner = tuner_of_adapters(&run->adapters);
    run->source.read = read_batch;
    run->lent.run = (struct train_run){.tuner = &run->tuner,
                                       .source = &run->source,
                                       .loss = opening->loss ? &loss_table[opening->loss] : NULL,
                                       .loss_options = opening->loss_options,
                                       .config = opening->config};
    run->lent.run.config.train.precision = precision >= 0                       ? precision
                                           : engine_dtype(engine) == DTYPE_BF16 ? PRECISION_BF16
                                                                                : PRECISION_FP32;
    TRY(agree_on_plan(engine, plan_run(run)));
    int status = fiber_open(STACK_BYTES, &run->slice.fiber);
    TRY(tuning_agree(engine, status)); /* what follows may sum over ranks */
    status = lent_run_open(&run->lent);
    run->lent.rank.slice = NULL;
    THEN(status, tuning_load(run));
    THEN(status, rank_finish(&run->lent.rank));
    TRY(tuning_agree(engine, status));
    run->lent.rank.slice = &run->slice;
    return STATUS_OK;
}

static int make_run(struct engine *engine, int number, struct tuning_run **out) {
    struct tuning_run *run = *out = calloc(1, sizeof *run);
    TRY(status_allocated(run));
    run->engine = engine;
    run->number = number;
    engine->runs[number] = run;
    return STATUS_OK;
}

void engine_close_runs(void *self) {
    struct engine *engine = self;
    for (int i = 0; i < ENGINE_RUNS; i++)
        if (engine->runs[i])
            close_run(engine->runs[i]);
}

size_t tuning_bytes(const struct engine *engine) {
    return engine->shared->tuned;
}

/* ---- the leader ---- */

static int send_task(struct engine *engine, int run, enum tuning_task task, const struct slice_limit *limit) {
    struct plan plan = {.header = {.kind = PLAN_TUNE, .run = run, .task = task}};
    if (limit)
        plan.header.limit = *limit;
    return engine_send_plan(engine, &plan);
}

static int check_engine(const struct engine *engine, const struct tuning_run_options *options, int *number) {
    const struct engine_options *o = &engine->shared->bases->options;
    for (*number = 0; *number < ENGINE_RUNS && engine->runs[*number];)
        ++*number;
    if (!o->tuning_memory)
        return status_fail(STATUS_UNSUPPORTED, "tuning is off: --tuning-memory is 0");
    if (engine->shared->rank.grid.pipeline > 1)
        return status_fail(STATUS_UNSUPPORTED,
                           "tuning: the model has %d pipeline stages, and a run needs all layers on each rank",
                           engine->shared->rank.grid.pipeline);
    if (options->adapter_count < 1 || options->adapter_count > PEFT_MAX_STACK ||
        (options->start_count && options->start_count != options->adapter_count))
        return status_fail(STATUS_USAGE, "tuning: %d adapters, of which %d have files: expected 1 to %d, all or none",
                           options->adapter_count, options->start_count, PEFT_MAX_STACK);
    return *number < ENGINE_RUNS ? STATUS_OK
                                 : status_fail(STATUS_MEMORY, "tuning: there are %d runs already", ENGINE_RUNS);
}

static double least_service(const struct tuning_run *run) {
    double least = INFINITY;
    for (int i = 0; i < ENGINE_RUNS; i++) {
        const struct tuning_run *other = run->engine->runs[i];
        least = other && other != run && other->service < least ? other->service : least;
    }
    return isfinite(least) ? least : 0;
}

int tuning_open(struct engine *engine, struct tuning_run_options *options, struct tuning_run **out) {
    int number;
    *out = NULL;
    TRY(check_engine(engine, options, &number));
    struct tuning_run *run;
    TRY(make_run(engine, number, &run));
    run->opening = (struct tuning_opening){.config = *options->config,
                                           .loss = options->loss ? options->loss - loss_table : 0,
                                           .loss_options = options->loss_options,
                                           .adapter_count = options->adapter_count,
                                           .start_count = options->start_count,
                                           .state_bytes = (int64_t)options->state_bytes};
    clear_pointers(&run->opening.config);
    memcpy(run->configs, options->adapters, (size_t)options->adapter_count * sizeof *run->configs);
    if (options->start_count)
        memcpy(run->start, options->start, (size_t)options->start_count * sizeof *run->start);
    run->state = options->state;
    run->texts = options->texts;
    run->text_count = options->text_count;
    run->weight = options->weight > 0 ? (double)options->weight : 1;
    run->service = least_service(run);
    int status = send_task(engine, number, TUNING_TASK_OPEN, NULL);
    THEN(status, tuning_share_opening(run));
    THEN(status, open_run(run));
    options->bytes = run->bytes;
    if (status) {
        char reason[1024];
        snprintf(reason, sizeof reason, "%s", status_text());
        close_run(run);
        return status_fail(status, "%s", reason);
    }
    *out = run;
    return STATUS_OK;
}

int tuning_close(struct tuning_run *run) {
    if (!run)
        return STATUS_OK;
    int status = send_task(run->engine, run->number, TUNING_TASK_CLOSE, NULL);
    int closed = close_run(run);
    return status ? status : closed;
}

void tuning_begin_pass(struct tuning_run *run, struct tuning_pass *pass) {
    run->given_pass = pass;
    run->pass = *pass;
    run->pass.result = (struct stepper_result){0};
    run->slice.next_work = 0;
    run->is_update = false;
}

void tuning_begin_update(struct tuning_run *run, struct tuning_update *update) {
    run->given_update = update;
    run->update = *update;
    run->slice.next_work = 0;
    run->is_update = true;
}

/* Chooses the loss of a pass. */
static void take_loss(struct tuning_run *run) {
    struct stepper *stepper = &run->lent.stepper;
    stepper->loss = run->pass.loss ? run->pass.loss : run->lent.run.loss;
    stepper->loss_options = run->pass.loss ? run->pass.loss_options : run->opening.loss_options;
}

/* Sends the pass or update to all ranks, and begins it. */
static int share_task(struct tuning_run *run) {
    int64_t loss = run->pass.loss ? run->pass.loss - loss_table : -1;
    TRY(run->is_update ? tuning_share(run->engine, &run->update, sizeof run->update)
                       : tuning_share(run->engine, &run->pass, sizeof run->pass));
    TRY(tuning_share(run->engine, &loss, sizeof loss));
    run->pass.loss = loss < 0 ? NULL : &loss_table[loss];
    take_loss(run);
    begin(run, run->is_update);
    return STATUS_OK;
}

int tuning_continue(struct tuning_run *run, const struct slice_limit *limit, bool *is_done) {
    enum tuning_task task = run->is_update ? TUNING_TASK_UPDATE : TUNING_TASK_PASS;
    *is_done = true;
    if (!run->is_under_way) {
        TRY(send_task(run->engine, run->number, task, NULL));
        TRY(share_task(run));
    }
    TRY(send_task(run->engine, run->number, TUNING_TASK_SLICE, limit));
    int status = slice(run, limit, is_done);
    if (*is_done && run->is_update)
        run->given_update->result = run->update.result;
    else if (*is_done)
        run->given_pass->result = run->pass.result;
    return status;
}

const struct slice *tuning_slice(const struct tuning_run *run) {
    return &run->slice;
}

double tuning_service(const struct tuning_run *run) {
    return run->service;
}

void tuning_charge(struct tuning_run *run, double seconds) {
    run->service += seconds / run->weight;
}

int tuning_cancel(struct tuning_run *run) {
    if (!run->is_under_way)
        return STATUS_OK;
    int status = send_task(run->engine, run->number, TUNING_TASK_END, NULL);
    return status ? status : end_pass(run);
}

int tuning_take_snapshot(struct tuning_run *run, struct tuning_snapshot *snapshot) {
    TRY(send_task(run->engine, run->number, TUNING_TASK_SNAPSHOT, NULL));
    run->lent.rank.slice = NULL;
    int status = tuning_make_snapshot(run, snapshot);
    run->lent.rank.slice = &run->slice;
    return status || !snapshot->base ? status : tuning_add_receipts(run, snapshot);
}

/* ---- the ranks that follow ---- */

static int follow_open(struct engine *engine, int number) {
    struct tuning_run *run;
    int status = make_run(engine, number, &run);
    THEN(status, tuning_share_opening(run));
    TRY(status);
    if (open_run(run))
        close_run(run); /* all ranks have agreed, and the leader reports it */
    return STATUS_OK;
}

int engine_tune(struct engine *engine, const struct plan_header *header) {
    struct tuning_run *run = header->run >= 0 && header->run < ENGINE_RUNS ? engine->runs[header->run] : NULL;
    struct tuning_snapshot snapshot = {0};
    bool is_done;
    int status;
    if (!run != (header->task == TUNING_TASK_OPEN))
        return status_fail(STATUS_INVALID, "plan %lld is of no tuning run: its ranks do not run one program",
                           (long long)header->number);
    switch ((enum tuning_task)header->task) {
    case TUNING_TASK_OPEN:
        return follow_open(engine, header->run);
    case TUNING_TASK_PASS:
    case TUNING_TASK_UPDATE:
        run->is_update = header->task == TUNING_TASK_UPDATE;
        return share_task(run);
    case TUNING_TASK_SLICE:
        status = slice(run, &header->limit, &is_done);
        return status == STATUS_INVALID ? STATUS_OK : status; /* the leader has it, too */
    case TUNING_TASK_END:
        return end_pass(run);
    case TUNING_TASK_SNAPSHOT:
        run->lent.rank.slice = NULL;
        status = tuning_make_snapshot(run, &snapshot);
        run->lent.rank.slice = &run->slice;
        return status;
    case TUNING_TASK_CLOSE:
        return close_run(run);
    }
    return status_fail(STATUS_INVALID, "plan %lld: a task of no kind", (long long)header->number);
}
