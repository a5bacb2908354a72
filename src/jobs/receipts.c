/* Writes and replays receipts: each adapter is loaded by itself, and its golden texts run as one step of the engine. */
#include "receipts.h"

#include "infer/images.h"
#include "infer/receipt.h"

bool receipt_is_in(const char *directory) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, PEFT_RECEIPT_FILE) && file_exists(path);
}

static int write_one(struct engine *engine, const struct peft_bytes *bytes, int image, json_t *base) {
    char path[PATH_MAX], *text = NULL;
    int status = engine_make_receipt(engine, bytes, image, base, &text);
    THEN(status, file_join(path, sizeof path, bytes->directory, PEFT_RECEIPT_FILE));
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    return status;
}

/* Loads an adapter by itself, and writes its receipt or replays it (`base` NULL). */
static int run_one(struct engine *engine, const char *directory, json_t *base) {
    struct peft_limits limits = {.bytes = ENGINE_ADAPTER_BYTES, .bank = engine_bank(engine)};
    struct receipt_result result;
    struct peft_bytes bytes;
    TRY(peft_bytes_read_at(&(struct peft_place){.path = directory}, &limits, &bytes));
    bytes.fits_base = !base; /* its files were open before */
    int image = engine_image_load(engine, &bytes);
    int status = image < 0 ? image
                 : base    ? write_one(engine, &bytes, image, base)
                           : engine_replay(engine, &bytes, image, &result);
    peft_bytes_free(&bytes);
    if (image < 0)
        return status;
    int dropped = engine_image_drop(engine, image);
    return status ? status : dropped;
}

static int run_all(const struct receipts_job *job, struct engine *engine) {
    json_t *base = NULL;
    int status = job->replays ? STATUS_OK : receipt_describe_base(engine_directory(engine), &base);
    for (size_t i = 0; i < job->count && !status; i++) {
        if (job->replays || !receipt_is_in(job->directories[i]))
            status = run_one(engine, job->directories[i], base);
        if (status == STATUS_INVALID && job->may_lack) {
            log_warning("no receipt for %s: %s", job->directories[i], status_text());
            status = STATUS_OK;
        }
    }
    json_decref(base);
    return status;
}

/* Finds the memory of the largest image on any rank. */
static int find_memory(const struct receipts_job *job, const struct engine_options *options, size_t *bytes) {
    struct peft_files *files;
    int status = peft_files_open((const char *const *)job->directories, job->count, false, &files);
    for (int i = 0; !status && i < peft_files_count(files); i++) {
        size_t one = 0;
        status = engine_plan_image(options, 0, &peft_files_configs(files)[i], &one);
        *bytes = one > *bytes ? one : *bytes;
    }
    peft_files_close(files);
    return status;
}

int receipts_job_run(struct comm *world, void *context) {
    enum { ROWS = 128 };
    const struct receipts_job *job = context;
    struct job_memory memory = {.help = JOB_MEMORY_RANKS};
    struct engine_options options = {.model = job->model->model,
                                     .grid = job->model->grid,
                                     .precision = job->model->precision - 1,
                                     .device = job->model->device,
                                     .max_rows = ROWS,
                                     .max_logit_rows = ROWS,
                                     .max_sequences = RECEIPT_TEXTS};
    struct engine *engine = NULL;
    log_quiet(world->rank != 0);
    int status = find_memory(job, &options, &options.adapter_memory);
    status = comm_agree(world, status);
    THEN(status, job_model_open(job->model, world, options, &memory, &engine));
    THEN(status, world->rank == 0 ? run_all(job, engine) : engine_follow(engine));
    THEN(status, engine_end(engine));
    if (status)
        comm_fail(world, status);
    engine_close(engine);
    return status;
}

/* ---- the adapters of a run ---- */

/* Adds the adapters of a directory that have no receipt, if there are any. */
static int add_directories(const char *directory, struct receipts_job *job) {
    char **found, **all;
    size_t count;
    int status = file_is_directory(directory) ? peft_find(&directory, 1, &found, &count) : STATUS_NOT_FOUND;
    if (status)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    all = realloc(job->directories, (job->count + count) * sizeof *all);
    status = status_allocated(all);
    for (size_t i = 0; i < count; i++)
        if (!status && !receipt_is_in(found[i]))
            all[job->count++] = found[i];
        else
            free(found[i]);
    free(found);
    job->directories = all ? all : job->directories;
    return status;
}

/* Lists the adapters of the run: the output, its best one, and its checkpoints. */
static int find_directories(const char *output, struct receipts_job *job) {
    char path[PATH_MAX];
    int64_t *iterations = NULL;
    size_t count = 0;
    int status = add_directories(output, job);
    THEN(status, file_join(path, sizeof path, output, "best"));
    THEN(status, add_directories(path, job));
    THEN(status, ckpt_list_above(output, 0, &iterations, &count));
    for (size_t i = 0; i < count && !status; i++) {
        char name[32];
        snprintf(name, sizeof name, "iter_%07lld", (long long)iterations[i]);
        status = file_join(path, sizeof path, output, name);
        THEN(status, add_directories(path, job));
    }
    free(iterations);
    return status;
}

static int run_on_ranks(struct comm *ranks, const struct train_run *run, void *context) {
    struct receipts_job *job = context;
    struct job_model model = job_model_of_run(run, ranks->size);
    model.receipts = job->model ? job->model->receipts : RECEIPTS_CHECK;
    job->model = &model;
    return receipts_job_run(ranks, job);
}

int receipts_add(struct comm *world, const struct train_run *run) {
    struct receipts_job job = {.may_lack = true};
    if (!run->tuner || run->config.train.skip_train)
        return STATUS_OK;
    stop_take(); /* a signal that has ended the training; the next one ends this */
    int status = comm_agree(world, find_directories(run->config.checkpoint.save, &job));
    THEN_IF(status, job.count, job_on_tensor_ranks(world, run, run_on_ranks, &job));
    if (job.directories)
        file_list_free(job.directories, job.count);
    return status ? status_wrap(status, "receipts") : STATUS_OK;
}

/* ---- adapters that are loaded without an engine ---- */

/* Lists the directories of open adapters; the caller frees the list only. */
static int list_files(const struct peft_files *files, struct receipts_job *job) {
    job->directories = calloc((size_t)peft_files_count(files), sizeof *job->directories);
    TRY(status_allocated(job->directories));
    for (; job->count < (size_t)peft_files_count(files); job->count++)
        job->directories[job->count] = (char *)peft_files_directory(files, (int)job->count);
    return STATUS_OK;
}

int receipts_replay(struct comm *world, const struct train_run *run, const struct job_model *model,
                    const struct peft_files *files) {
    struct receipts_job job = {.model = model, .replays = true};
    if (model->receipts == RECEIPTS_OFF) {
        if (world->rank == 0)
            log_warning(JOB_RECEIPTS_OFF);
        return STATUS_OK;
    }
    int status = comm_agree(world, list_files(files, &job));
    THEN(status,
         comm_agree(world, run ? job_on_tensor_ranks(world, run, run_on_ranks, &job) : receipts_job_run(world, &job)));
    free(job.directories);
    return status;
}
