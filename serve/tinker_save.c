/* Opening runs, from nothing or from saved weights; saving them, and publishing them to samplers.
 *
 * Weights with a name are kept as PEFT's files. A snapshot for a sampler has files, too, so that its image may leave
 * the memory and come back; they go with its session. */
#include "tinker-internal.h"

#include "registry.h"

#include "base/base.h"

#include <math.h>

enum { LEAST_LONGEST = 16, SNAPSHOT_NAME = 24 };

/* Sets the error of a request from a status. What a client can mend is its own fault. */
static void fail_status(struct tinker_op *op, int status, const char *field) {
    bool is_users = status == STATUS_USAGE || status == STATUS_INVALID || status == STATUS_UNSUPPORTED ||
                    status == STATUS_NOT_FOUND;
    error_of_status(&op->error, is_users ? ERROR_ARGUMENT : ERROR_INTERNAL, field);
    error_hide_paths(&op->error, op->run->tinker->options.root);
}

static struct tinker_op *op_of_job(struct worker_job *job) {
    return (struct tinker_op *)((char *)job - offsetof(struct tinker_op, job));
}

/* ---- opening ---- */

static void describe(struct tinker_op *op) {
    const struct tinker_options *options = &op->run->tinker->options;
    int status = options->describe(options->server, &op->saved.shape, op->longest, &op->described);
    if (status)
        fail_status(op, status, "lora_config");
}

static bool is_served(const struct server *server, const char *base) {
    for (size_t i = 0; i < server->model.name_count; i++)
        if (!strcmp(server->model.names[i], base))
            return true;
    return false;
}

static void load_work(struct worker_job *job) {
    struct tinker_op *op = op_of_job(job);
    const struct tinker *tinker = op->run->tinker;
    char run[TINKER_ID_BYTES], name[TINKER_NAME_BYTES];
    snprintf(run, sizeof run, "%s", op->saved.run);
    snprintf(name, sizeof name, "%s", op->saved.name);
    op->error = (struct error){0};
    int status = tinker_directory(tinker->options.root, &op->saved, op->directory);
    THEN(status, tinker_read(op->directory, op->run->owner, &op->saved));
    if (status)
        error_set(&op->error, status == STATUS_NOT_FOUND ? ERROR_MODEL_NOT_FOUND : ERROR_INTERNAL, "path",
                  "path: there are no weights %s of the run %s", name, run);
    else if (!is_served(tinker->server, op->saved.base))
        error_set(&op->error, ERROR_ARGUMENT, "path", "path: these weights are for the base \"%s\"", op->saved.base);
    else if ((status = tinker_read_files(op->directory, &op->files)))
        fail_status(op, status, "path");
    else if (op->wants_state && (status = tinker_read_state(op->directory, &op->state)))
        error_set(&op->error, ERROR_ARGUMENT, "optimizer", "optimizer: these weights have no state of an optimizer");
    if (!op->error.which)
        describe(op);
}

static void create_work(struct worker_job *job) {
    struct tinker_op *op = op_of_job(job);
    op->error = (struct error){0};
    describe(op);
}

static void after_description(struct tinker_op *op);

/* A run that takes more than the memory is tried again with shorter texts. */
static bool shorten(struct tinker_op *op) {
    if (op->ask.error.which != ERROR_ARGUMENT || !op->ask.open.bytes || op->longest / 2 < LEAST_LONGEST)
        return false;
    op->longest /= 2;
    op->described->free(op->described);
    op->described = NULL;
    tinker_op_work(op, create_work, after_description);
    return true;
}

static void after_open(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    char path[TINKER_PATH_BYTES];
    if (op->ask.error.which && shorten(op))
        return;
    if (op->ask.error.which) {
        tinker_op_fail(op, &op->ask.error);
        return;
    }
    run->run = op->ask.run;
    run->described = op->described;
    op->described = NULL;
    run->shape = op->saved.shape;
    run->longest = op->longest;
    run->updates = op->wants_state ? op->saved.updates : 0;
    run->has_gradients = false;
    snprintf(path, sizeof path, "tinker://%s/%s/%s", op->saved.run,
             op->saved.is_sampler ? "sampler_weights" : "weights", op->saved.name);
    tinker_op_done(op, op->kind == TINKER_CREATE
                           ? json_pack("{s:s, s:s}", "type", "create_model", "model_id", run->id)
                           : json_pack("{s:s, s:s, s:s}", "type", "load_weights", "path", path, "model_id", run->id));
}

static void open_run(struct tinker_op *op) {
    op->ask.open = *op->described->options;
    op->ask.open.weight = op->run->weight;
    if (op->files.bytes.data) {
        op->ask.open.start = &op->files.bytes;
        op->ask.open.start_count = 1;
    }
    if (op->state.length) {
        op->ask.open.state = op->state.data;
        op->ask.open.state_bytes = op->state.length;
    }
    tinker_op_ask(op, TUNING_OPEN, after_open);
}

/* The run that was open before a load. */
static void after_close(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    run->run = NULL;
    run->described->free(run->described);
    run->described = NULL;
    open_run(op);
}

static void after_description(struct tinker_op *op) {
    if (op->error.which)
        tinker_op_fail(op, &op->error);
    else if (op->run->run)
        tinker_op_ask(op, TUNING_CLOSE, after_close);
    else
        open_run(op);
}

void tinker_begin_open(struct tinker_op *op) {
    op->longest = op->run->tinker->server->model.max_model_len;
    tinker_op_work(op, op->kind == TINKER_LOAD ? load_work : create_work, after_description);
}

/* ---- saving ---- */

/* Names the adapter of a snapshot; `number` -1: of the one that follows the run. */
static void name_snapshot(const struct tinker_run *run, int64_t number, char name[SNAPSHOT_NAME]) {
    uint64_t digest = digest_bytes(DIGEST_START, run->id, strlen(run->id));
    digest = digest_bytes(digest, &number, sizeof number);
    snprintf(name, SNAPSHOT_NAME, "tinker.%016llx", (unsigned long long)digest);
}

static void after_publication(void *context, const struct error *error, const struct registry_adapter *adapter) {
    struct tinker_op *op = context;
    struct tinker_sampler *sampler = NULL;
    op->run->tinker->under_way--;
    if (error->which) {
        tinker_op_fail(op, error);
        return;
    }
    if (op->run->session)
        sampler = tinker_sampler_new(op->run->session, op->sampler_seq, adapter ? adapter->name : "", NULL);
    tinker_op_done(
        op, sampler ? json_pack("{s:s, s:s}", "type", "save_weights_for_sampler", "sampling_session_id", sampler->id)
                    : NULL);
}

static void after_write(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    char path[TINKER_PATH_BYTES], name[SNAPSHOT_NAME];
    if (op->error.which) {
        tinker_op_fail(op, &op->error);
        return;
    }
    if (op->sampler_seq < 0) {
        snprintf(path, sizeof path, "tinker://%s/%s/%s", run->id, op->saved.is_sampler ? "sampler_weights" : "weights",
                 op->saved.name);
        tinker_op_done(op, json_pack("{s:s, s:s}", "type",
                                     op->saved.is_sampler ? "save_weights_for_sampler" : "save_weights", "path", path));
        return;
    }
    name_snapshot(run, op->is_inflight ? -1 : run->snapshots - 1, name);
    run->tinker->under_way++;
    registry_start(run->tinker->server, &(struct registry_change){.kind = REGISTRY_LOAD,
                                                                  .name = name,
                                                                  .files = &op->files,
                                                                  .in_place = true,
                                                                  .on_done = after_publication,
                                                                  .context = op});
}

static void write_work(struct worker_job *job) {
    struct tinker_op *op = op_of_job(job);
    op->error = (struct error){0};
    int status = op->sampler_seq < 0 ? tinker_write(op->directory, &op->saved, &op->files,
                                                    op->saved.is_sampler ? NULL : &op->state, op->overwrites)
                                     : tinker_write_plain(op->directory, &op->files);
    if (status)
        fail_status(op, status, "path");
}

/* The files are known by the directory to which they are about to be written. */
static int take_snapshot(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    struct tuning_snapshot *snapshot = &op->ask.snapshot;
    const char *root = run->tinker->options.root;
    op->files = snapshot->files[0];
    op->state =
        (struct strbuf){.data = snapshot->state, .length = snapshot->state_bytes, .capacity = snapshot->state_bytes};
    for (int i = 1; i < snapshot->count; i++)
        adapter_files_free(&snapshot->files[i]);
    if (op->sampler_seq < 0) {
        TRY(tinker_directory(root, &op->saved, op->directory));
    } else if (snprintf(op->directory, sizeof op->directory, "%s/%s/snapshots/%lld", root, run->id,
                        (long long)run->snapshots++) >= (int)sizeof op->directory)
        return status_fail(STATUS_INVALID, "the path of a snapshot is too long");
    free(op->files.bytes.directory);
    op->files.bytes.directory = strdup(op->directory);
    return status_allocated(op->files.bytes.directory);
}

static void after_snapshot(struct tinker_op *op) {
    int status;
    if (op->ask.error.which) {
        tinker_op_fail(op, &op->ask.error);
    } else if ((status = take_snapshot(op))) {
        fail_status(op, status, "path");
        tinker_op_fail(op, &op->error);
    } else
        tinker_op_work(op, write_work, after_write);
}

void tinker_begin_save(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    op->saved.shape = run->shape;
    op->saved.updates = run->updates;
    snprintf(op->saved.base, sizeof op->saved.base, "%s", run->tinker->server->model.name);
    snprintf(op->saved.owner, sizeof op->saved.owner, "%s", run->owner);
    op->ask.snapshot = (struct tuning_snapshot){.wants_state = op->kind == TINKER_SAVE};
    tinker_op_ask(op, TUNING_SNAPSHOT, after_snapshot);
}

/* ---- the end of snapshots ---- */

struct forgetting {
    struct worker_job job; /* the first */
    struct tinker *tinker;
    char directory[PATH_MAX];
};

static void after_unloading(void *context, const struct error *error, const struct registry_adapter *adapter) {
    ((struct tinker *)context)->under_way--;
}

/* Completions that use it end on their generation. */
static void unload(struct tinker *tinker, const struct tinker_run *run, int64_t number) {
    char name[SNAPSHOT_NAME];
    struct registry_adapter adapter;
    name_snapshot(run, number, name);
    if (!registry_find(tinker->server, name, &adapter))
        return;
    tinker->under_way++;
    registry_start(tinker->server,
                   &(struct registry_change){
                       .kind = REGISTRY_UNLOAD, .name = name, .on_done = after_unloading, .context = tinker});
}

static void remove_work(struct worker_job *job) {
    if (file_remove_tree(((struct forgetting *)job)->directory))
        log_warning("%s", status_text());
}

static void after_removal(struct worker_job *job) {
    ((struct forgetting *)job)->tinker->under_way--;
    free(job);
}

void tinker_forget_snapshots(struct tinker_run *run) {
    struct forgetting *forgetting = run->snapshots ? calloc(1, sizeof *forgetting) : NULL;
    for (int64_t i = -1; i < run->snapshots && run->snapshots; i++)
        unload(run->tinker, run, i);
    if (!forgetting)
        return;
    forgetting->tinker = run->tinker;
    forgetting->job = (struct worker_job){.work = remove_work, .done = after_removal};
    snprintf(forgetting->directory, sizeof forgetting->directory, "%.3000s/%s/snapshots", run->tinker->options.root,
             run->id);
    tinker_work(run->tinker, &forgetting->job);
}
