/* Saves the checkpoints of a run, in the foreground or in the background. */
#include "save-internal.h"

#include "parallel/sharded.h"

struct run_saver {
    struct ckpt_saver *saver;
    struct ckpt_flat flat; /* the weights */
    struct ckpt_array weights;
    struct ckpt_part parts[CKPT_MAX_PARTS]; /* of a tuner, over `weights` */
    struct optimizer_arrays *arrays;
    struct fp8_part fp8;
    char *config_text;
    int64_t iteration; /* of the save in progress */
    double stall;
    bool is_under_way;
    void *seal; /* of the last save that began */
};

/* Describes the part of a save that planning knows too. The files of a tuner hold the master weights; `parts` has room
 * for them. */
static int describe(const struct train_run *run, const struct param_table *table, void *tuner,
                    const struct ckpt_array *weights, struct ckpt_part *parts, struct ckpt_save *save) {
    const struct tuner *kind = run->tuner;
    *save = (struct ckpt_save){
        .root = run->config.checkpoint.save,
        .model = {.table = table,
                  .weights = weights,
                  .tokenizer = kind ? NULL : run->tokenizer,
                  .max_shard_bytes = run->config.checkpoint.max_shard_size * 1000000},
        .optimizer_count = kind || precision_dtype(run->config.train.precision) == DTYPE_F32 ? 2 : 3,
        .keep_last = run->config.checkpoint.keep_last,
        .ours_until = train_ours_until(run),
    };
    if (!kind)
        return STATUS_OK;
    save->model.parts = parts;
    save->model.seal = kind->seal.begin ? kind->seal.write : NULL;
    save->model.texts = kind->texts;
    save->model.text_count = kind->text_count;
    return kind->parts(tuner, weights, parts, &save->model.part_count);
}

/* Returns the memory of receipts at one rank: the first one reads the files of the adapters back. */
static size_t seal_bytes(const struct tuner *tuner, const struct ckpt_model *model, int rank) {
    if (!tuner || !tuner->seal.begin)
        return 0;
    int64_t elements = 0;
    for (int i = 0; i < model->part_count && !rank; i++)
        elements += param_table_elements(model->parts[i].table, model->parts[i].weights->only_trainable);
    return tuner->seal.bytes + (size_t)elements * sizeof(float);
}

int train_saver_bytes(const struct train_run *run, const struct rank *rank, const struct tuner_part *tuner,
                      struct train_bytes *bytes) {
    const struct param_table *table = run->tuner ? tuner->state_table : NULL;
    struct param_table of_model = {0};
    enum dtype dtype = run->tuner ? DTYPE_F32 : run_dtype(&run->config);
    struct ckpt_array weights = {.prefix = "", .dtype = dtype, .only_trainable = run->tuner};
    struct fp8_part fp8 = {0};
    struct ckpt_part parts[CKPT_MAX_PARTS];
    struct ckpt_save save;
    struct ckpt_array optimizer[OPTIMIZER_ARRAYS];
    *bytes = (struct train_bytes){0};
    if (!run->config.checkpoint.save)
        return STATUS_OK;
    for (int i = 0; i < OPTIMIZER_ARRAYS; i++)
        optimizer[i] = optimizer_array_describe(i);
    int status = table ? STATUS_OK : model_describe(&run->config.model, &of_model);
    THEN(status, describe(run, table ? table : &of_model, tuner->self, &weights, parts, &save));
    THEN_IF(status, train_has_fp8(run), train_fp8_describe(run, &fp8));
    save.model.threads = device_threads(rank->device);
    save.optimizer = optimizer;
    save.state = train_has_fp8(run) ? &fp8.part : NULL;
    int ranks = rank_grid_size(&rank->grid), number = rank_grid_rank(&rank->grid, &rank->place);
    size_t of_export = 0, of_device = device_host_reads(rank->device) ? 0 : CKPT_DEVICE_BYTES;
    THEN(status, ckpt_saver_bytes(&save, run->config.checkpoint.async_save, ranks, number, &bytes->host));
    save.model.threads = 0;
    bool is_exported = run->tuning || (train_keeps_best(run) && run->config.train.eval_interval);
    if (!status && is_exported) /* trainer_export writes while the saver is open */
        status = ckpt_model_bytes(&save.model, ranks, number, &of_export);
    if (!status)
        bytes->host += of_export + seal_bytes(run->tuner, &save.model, number);
    bytes->device = is_exported ? 2 * of_device : of_device;
    param_table_free(&of_model);
    param_table_free(&fp8.table);
    return status;
}

int train_saver_open(struct trainer *trainer) {
    const struct run_config *run = &trainer->run.config;
    struct param_store *store = trainer->stepper.store;
    if (!run->checkpoint.save)
        return STATUS_OK;
    struct run_saver *saver = trainer->saver = calloc(1, sizeof *saver);
    TRY(status_allocated(saver));
    saver->flat = ckpt_flat_weights(store, trainer->rank.exec.stream);
    saver->flat.leaves = store->map.part.is_copy;
    saver->flat.is_copy = trainer->rank.data->rank > 0 && !sharded_cuts_weights(store);
    saver->flat.copy_of = train_first_copy(&trainer->rank);
    saver->flat.leaves_copies = true;
    saver->flat.threads = device_threads(trainer->device);
    saver->weights = ckpt_flat_array(&saver->flat, "", false);
    const struct ckpt_array *optimizer;
    struct ckpt_save save;
    int status = optimizer_arrays_open(&trainer->stepper, true, &saver->arrays, &optimizer);
    if (!status && trainer->run.tuner)
        saver->weights = optimizer_master_array(optimizer);
    else if (!status)
        status = model_write_config(&run->model, store->map.type, &trainer->run.ends, &saver->config_text);
    THEN(status, describe(&trainer->run, stepper_state_table(&trainer->stepper), trainer->model.tuner.self,
                          &saver->weights, saver->parts, &save));
    save.model.threads = device_threads(trainer->device);
    save.model.world = trainer->world;
    save.model.config_text = saver->config_text;
    save.optimizer = optimizer;
    if (!status && train_has_fp8(&trainer->run)) {
        save.state = &saver->fp8.part;
        status = train_fp8_describe(&trainer->run, &saver->fp8);
        train_fp8_open(trainer, &saver->fp8);
    }
    THEN(status, ckpt_saver_open(&save, run->checkpoint.async_save, &saver->saver));
    if (!status && !run->train.skip_train)
        ckpt_saver_prune(saver->saver);
    if (status)
        train_saver_close(trainer);
    return status;
}

static int begin_seal(struct trainer *trainer, void **seal) {
    const struct tuner *tuner = trainer->run.tuner;
    *seal = NULL;
    return tuner && tuner->seal.begin ? tuner->seal.begin(tuner->seal.context, trainer, seal) : STATUS_OK;
}

static void end_seal(struct trainer *trainer, void *seal) {
    if (seal)
        trainer->run.tuner->seal.end(seal);
}

void train_saver_close(struct trainer *trainer) {
    struct run_saver *saver = trainer->saver;
    if (!saver)
        return;
    ckpt_saver_close(saver->saver);
    end_seal(trainer, saver->seal);
    optimizer_arrays_close(saver->arrays);
    param_table_free(&saver->fp8.table);
    free(saver->config_text);
    free(saver);
    trainer->saver = NULL;
}

/* ---- a save ---- */

enum ckpt_progress train_save_progress(const struct trainer *trainer) {
    return trainer->saver && trainer->saver->is_under_way ? ckpt_saver_progress(trainer->saver->saver) : CKPT_IDLE;
}

static void tell(struct trainer *trainer) {
    struct run_saver *saver = trainer->saver;
    const char *root = trainer->run.config.checkpoint.save;
    saver->is_under_way = false;
    if (trainer->run.config.checkpoint.async_save)
        log_info("saved %s/iter_%07lld (%.1f s; the training stood still for %.2f s)", root,
                 (long long)saver->iteration, ckpt_saver_seconds(saver->saver), saver->stall);
    else
        log_info("saved %s/iter_%07lld (%.1f s)", root, (long long)saver->iteration, saver->stall);
}

int train_save_advance(struct trainer *trainer, enum ckpt_progress least) {
    bool is_saved = false;
    if (!trainer->saver || !trainer->saver->is_under_way)
        return STATUS_OK;
    int status = ckpt_saver_advance(trainer->saver->saver, least, &is_saved);
    if (is_saved)
        tell(trainer);
    return status;
}

int trainer_save_begin(struct trainer *trainer) {
    struct run_saver *saver = trainer->saver;
    char *state_text = NULL;
    int status = saver ? trainer_save_wait(trainer)
                       : status_fail(STATUS_USAGE, "checkpoint.save is not given: there is no place to save in");
    THEN(status, trainer_await_weights(trainer));
    THEN(status, train_state_write(trainer, &state_text));
    THEN_IF(status, trainer->run.tuner, trainer->run.tuner->refresh(trainer->model.tuner.self));
    if (!status) {
        end_seal(trainer, saver->seal);
        status = begin_seal(trainer, &saver->seal);
    }
    if (!status) {
        double start = clock_seconds();
        ckpt_saver_set_seal(saver->saver, saver->seal);
        status = ckpt_saver_begin(saver->saver, trainer->iteration, state_text);
        saver->stall = clock_seconds() - start;
        saver->iteration = trainer->iteration;
        saver->is_under_way = !status;
    }
    free(state_text);
    return status;
}

int trainer_save_poll(struct trainer *trainer, bool *is_saved) {
    int64_t word = -(int64_t)train_save_progress(trainer);
    struct comm_data data = {.send = &word, .receive = &word, .count = 1, .dtype = DTYPE_I64};
    int status = comm_all_reduce(trainer->world, &data, COMM_MAX);
    THEN(status, train_save_advance(trainer, (enum ckpt_progress) - word));
    *is_saved = train_save_progress(trainer) == CKPT_IDLE;
    return status;
}

void trainer_save_times(const struct trainer *trainer, double *stall, double *write) {
    *stall = trainer->saver->stall;
    *write = ckpt_saver_seconds(trainer->saver->saver);
}

int trainer_save_wait(struct trainer *trainer) {
    struct run_saver *saver = trainer->saver;
    if (!saver || !saver->is_under_way)
        return STATUS_OK;
    double start = clock_seconds();
    int status = ckpt_saver_wait(saver->saver);
    saver->stall += clock_seconds() - start;
    if (!status)
        tell(trainer);
    return status;
}

int trainer_save(struct trainer *trainer) {
    int status = trainer_save_begin(trainer);
    return status ? status : trainer_save_wait(trainer);
}

/* ---- what others read ---- */

static int export_model(struct trainer *trainer, const char *directory, bool is_shared) {
    struct run_saver *saver = trainer->saver;
    struct ckpt_save save;
    int status = describe(&trainer->run, stepper_state_table(&trainer->stepper), NULL, &saver->weights, NULL, &save);
    save.model.config_text = saver->config_text;
    save.model.world = trainer->world;
    TRY(status);
    return is_shared ? ckpt_write_beside(directory, &save.model) : ckpt_write_model(directory, &save.model);
}

int trainer_export(struct trainer *trainer, const char *directory, bool is_shared) {
    const struct tuner *tuner = trainer->run.tuner;
    if (!tuner)
        return export_model(trainer, directory, is_shared);
    const struct ckpt_array *arrays;
    struct optimizer_arrays *state;
    int status = optimizer_arrays_open(&trainer->stepper, true, &state, &arrays);
    struct ckpt_array values = status ? (struct ckpt_array){0} : optimizer_master_array(arrays);
    void *seal = NULL;
    THEN(status, begin_seal(trainer, &seal));
    THEN(status, tuner->export(trainer->model.tuner.self, tuner, &values, directory, is_shared, seal));
    end_seal(trainer, seal);
    optimizer_arrays_close(state);
    return status;
}
