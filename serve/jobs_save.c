/* Results of a job: saves from which it resumes, checkpoints that are served, and the end.
 *
 * A snapshot is written to checkpoints/step-N, or to adapter/ after the last step. Then job.json names it, then the
 * engine gets the files from memory, then directories that nothing names any more are removed. A process that is
 * killed anywhere in between resumes from what job.json names. */
#include "jobs-internal.h"

#include "log.h"
#include "registry.h"

#include "base/base.h"
#include "base/staging.h"

#include <math.h>
#include <unistd.h>

#define OPTIMIZER_FILE "optimizer.safetensors"

int job_directory(const struct job *job, int64_t step, char path[PATH_MAX]) {
    return step ? jobs_path(job->jobs, path, "jobs/%s/checkpoints/step-%lld", job->id, (long long)step)
                : jobs_path(job->jobs, path, "jobs/%s/adapter", job->id);
}

/* ---- serving ---- */

void job_serve(struct job *job, const char *name, const char *directory) {
    if (registry_know(job->jobs->server, name, directory))
        log_event(job->jobs->server, LOG_WARNING, "tuning", "%s: %s is not served: %s", job->id, name, status_text());
}

static void on_published(void *context, const struct error *error, const struct registry_adapter *adapter) {
    struct job *job = context;
    (void)adapter;
    job->jobs->under_way--;
    if (error->which)
        log_event(job->jobs->server, LOG_WARNING, "tuning", "%s: its first request loads it: %s", job->id, error->text);
}

/* Serves an adapter from memory; its name is known at once. Takes the files. */
static void publish(struct job *job, const char *name, struct adapter_files *files, const char *directory) {
    job_serve(job, name, directory);
    free(files->bytes.directory);
    files->bytes.directory = strdup(directory);
    job->jobs->under_way++;
    registry_start(job->jobs->server, &(struct registry_change){.kind = REGISTRY_LOAD,
                                                                .name = name,
                                                                .files = files,
                                                                .in_place = true,
                                                                .on_done = on_published,
                                                                .context = job});
}

/* ---- removing ---- */

struct removal {
    struct errand errand; /* first */
    struct job *job;      /* whose bytes are counted again */
    char path[PATH_MAX];
};

static int remove_directory(struct errand *errand) {
    return staging_remove(((struct removal *)errand)->path);
}

static int remove_file(struct errand *errand) {
    return unlink(((struct removal *)errand)->path) ? status_fail_errno("cannot remove a file") : STATUS_OK;
}

static void on_removed(struct errand *errand) {
    struct removal *removal = (struct removal *)errand;
    removal->job->writes--;
    free(removal);
}

/* Removes the directory of a step, or the optimizer's state in it. Without memory they stay. */
static void remove_step(struct job *job, int64_t step, bool is_whole) {
    struct removal *removal = calloc(1, sizeof *removal);
    char directory[PATH_MAX];
    if (!removal || job_directory(job, step, directory)) {
        free(removal);
        return;
    }
    if (is_whole)
        memcpy(removal->path, directory, sizeof directory);
    else if (file_join(removal->path, sizeof removal->path, directory, OPTIMIZER_FILE)) {
        free(removal);
        return;
    }
    removal->job = job;
    removal->errand.work = is_whole ? remove_directory : remove_file;
    removal->errand.done = on_removed;
    job->writes++;
    jobs_send(job->jobs, &removal->errand);
}

static int64_t step_of(const json_t *checkpoint) {
    return json_integer_value(json_object_get(checkpoint, "step_number"));
}

static const char *name_of(const json_t *checkpoint) {
    const char *name = json_string_value(json_object_get(checkpoint, "fine_tuned_model_checkpoint"));
    return name ? name : "";
}

static bool is_checkpoint(const struct job *job, int64_t step) {
    size_t i;
    json_t *checkpoint;
    json_array_foreach(job->checkpoints, i, checkpoint) {
        if (step_of(checkpoint) == step)
            return true;
    }
    return false;
}

void job_drop_state(struct job *job) {
    int64_t step = job->saved_step;
    job->saved_step = 0;
    if (step)
        remove_step(job, step, !is_checkpoint(job, step));
}

static void ignore(void *context, const struct error *error, const struct registry_adapter *adapter) {
    (void)error;
    (void)adapter;
    ((struct jobs *)context)->under_way--;
}

static void unload(struct jobs *jobs, const char *name) {
    jobs->under_way++;
    registry_start(jobs->server, &(struct registry_change){
                                     .kind = REGISTRY_UNLOAD, .name = name, .on_done = ignore, .context = jobs});
}

/* Keeps the last checkpoints only. Returns the step whose directory is to be removed; 0: none. */
static int64_t drop_oldest(struct job *job) {
    if (json_array_size(job->checkpoints) <= JOBS_KEPT)
        return 0;
    int64_t step = step_of(json_array_get(job->checkpoints, 0));
    unload(job->jobs, name_of(json_array_get(job->checkpoints, 0)));
    json_array_remove(job->checkpoints, 0);
    return step;
}

/* ---- a save ---- */

struct save {
    struct errand errand; /* first */
    struct job_run *run;
    struct tuning_snapshot snapshot;
    int64_t step, tokens;
    bool is_epoch, is_last;
    struct openai_figures figures;
    char directory[PATH_MAX];
    struct stored_file result; /* of the last step */
    struct strbuf csv;
    int64_t bytes;
};

static int write_result(const struct save *save) {
    char target[PATH_MAX], path[PATH_MAX];
    struct staging staging = {.mark = -1};
    int status = jobs_path(save->run->job->jobs, target, "files/%s", save->result.at.id);
    THEN(status, staging_begin(&staging, target));
    THEN(status, file_join(path, sizeof path, staging.directory, "rows.jsonl"));
    THEN(status, file_write_atomic(path, strbuf_text(&save->csv), save->csv.length));
    THEN(status, jobs_write_file(staging.directory, &save->result));
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    return status;
}

/* Writes the files of an adapter into a directory. */
static int write_adapter(const struct peft_bytes *bytes, const char *directory) {
    struct peft_member file;
    char path[PATH_MAX];
    int status = STATUS_OK;
    for (int i = 0; !status && peft_bytes_file(bytes, i, &file); i++) {
        status = file_join(path, sizeof path, directory, file.name);
        THEN(status, file_write_atomic(path, file.data, file.length));
    }
    return status;
}

static int write_all(struct errand *errand) {
    struct save *save = (struct save *)errand;
    char path[PATH_MAX];
    struct staging staging = {.mark = -1};
    int status = strbuf_status(&save->csv);
    THEN(status, staging_begin(&staging, save->directory));
    THEN(status, write_adapter(&save->snapshot.files[0].bytes, staging.directory));
    if (!status && save->snapshot.state) {
        status = file_join(path, sizeof path, staging.directory, OPTIMIZER_FILE);
        THEN(status, file_write_atomic(path, save->snapshot.state, save->snapshot.state_bytes));
    }
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    THEN_IF(status, save->is_last, write_result(save));
    if (!status && !jobs_path(errand->jobs, path, "jobs/%s", save->run->job->id))
        save->bytes = jobs_tree_bytes(path);
    return status;
}

/* For a save that has no room. */
static int leave_out(struct errand *errand) {
    (void)errand;
    return STATUS_OK;
}

static void add_checkpoint(struct job *job, const struct save *save, const char *name) {
    char id[OPENAI_ID_BYTES];
    jobs_draw_id("ftckpt_", id);
    json_array_append_new(job->checkpoints,
                          json_pack("{s:s,s:s,s:I,s:s,s:s,s:o,s:I}", "id", id, "object", "fine_tuning.job.checkpoint",
                                    "created_at", (json_int_t)jobs_now(), "fine_tuned_model_checkpoint", name,
                                    "fine_tuning_job_id", job->id, "metrics", openai_figures_object(&save->figures),
                                    "step_number", (json_int_t)save->step));
}

/* The job has its last adapter. */
static void succeed(struct job *job, struct save *save, const char *name) {
    struct jobs *jobs = job->jobs;
    job_set(job, "fine_tuned_model", json_string(name));
    job_set(job, "trained_tokens", json_integer(save->tokens));
    if (jobs_add_file(jobs, &save->result.at, save->result.owner, save->result.number))
        json_array_append_new(json_object_get(job->object, "result_files"), json_string(save->result.at.id));
    job_change(job, "succeeded", "info", NULL);
}

static void on_saved(struct errand *errand) {
    struct save *save = (struct save *)errand;
    struct job_run *run = save->run;
    struct job *job = run->job;
    struct jobs *jobs = job->jobs;
    char name[OPENAI_MODEL_BYTES];
    int64_t before = job->saved_step, oldest = 0;
    run->is_saving = false;
    if (errand->error.which)
        run->error = errand->error;
    if (!run->error.which) {
        jobs->bytes += save->bytes - job->bytes;
        job->bytes = save->bytes;
        job->saved_step = save->is_last ? 0 : save->step;
        job->saved_tokens = save->tokens;
        const char *suffix = json_string_value(json_object_get(job->object, "user_provided_suffix"));
        openai_job_model(jobs->server->model.name, suffix, job->id, save->is_last ? 0 : save->step, name);
        if (save->is_epoch) {
            add_checkpoint(job, save, name);
            oldest = drop_oldest(job);
            job_tell(job, "info", "Checkpoint created at step %lld: %s", (long long)save->step, name);
            publish(job, name, &save->snapshot.files[0], save->directory);
        }
        if (save->is_last)
            succeed(job, save, name);
        else
            job_write(job);
        if (before && before != save->step)
            remove_step(job, before, !is_checkpoint(job, before));
        if (oldest && oldest != before)
            remove_step(job, oldest, true);
    }
    for (int i = 0; i < save->snapshot.count; i++)
        adapter_files_free(&save->snapshot.files[i]);
    free(save->snapshot.state);
    strbuf_free(&save->csv);
    free(save);
    /* The run waits for this save when it has nothing else to do. */
    if (run->waits)
        run->proceed(run);
}

/* Writes the figures of all steps. */
static void write_csv(const struct job *job, struct strbuf *out) {
    bool is_validated = json_is_string(json_object_get(job->object, "validation_file"));
    strbuf_add_text(out, is_validated ? "step,train_loss,full_valid_loss\n" : "step,train_loss\n");
    for (size_t i = 0; i < job->event_count; i++) {
        const struct openai_figures *figures = &job->events[i].figures;
        if (job->events[i].message)
            continue;
        strbuf_format(out, "%lld,%.9g", (long long)figures->step, figures->train_loss);
        if (is_validated && isnan(figures->valid_loss))
            strbuf_add_char(out, ',');
        else if (is_validated)
            strbuf_format(out, ",%.9g", figures->valid_loss);
        strbuf_add_char(out, '\n');
    }
}

void run_save(struct job_run *run, struct tuning_snapshot *snapshot) {
    struct job *job = run->job;
    struct jobs *jobs = job->jobs;
    struct save *save = calloc(1, sizeof *save);
    bool is_last = run->step == run->total;
    if (!save || job_directory(job, is_last ? 0 : run->step, save->directory)) {
        free(save);
        error_set(&run->error, ERROR_OVERLOADED, NULL, "out of memory");
        return;
    }
    save->run = run;
    save->snapshot = *snapshot;
    save->step = run->step;
    save->tokens = run->tokens;
    save->is_last = is_last;
    save->is_epoch = run_is_epoch(run);
    save->figures = run->last;
    if (is_last) {
        write_csv(job, &save->csv);
        jobs_draw_id("file-", save->result.at.id);
        save->result.number = jobs->next_number++;
        save->result.at.created = jobs_now();
        save->result.at.purpose = "fine-tune-results";
        save->result.at.bytes = (int64_t)save->csv.length;
        snprintf(save->result.at.filename, sizeof save->result.at.filename, "step_metrics.csv");
        snprintf(save->result.owner, sizeof save->result.owner, "%s", job->owner);
    }
    if (jobs->bytes + (int64_t)snapshot->files[0].bytes.length + (int64_t)snapshot->state_bytes >
        jobs->options->tuning_disk)
        error_set(&run->error, ERROR_TUNING_DISK, NULL, "no room for a save: --tuning-disk is full");
    run->saved = clock_seconds();
    run->is_saving = true;
    save->errand.work = run->error.which ? leave_out : write_all;
    save->errand.done = on_saved;
    jobs_send(jobs, &save->errand);
}

/* ---- DELETE /v1/models/NAME ---- */

struct deletion {
    struct jobs *jobs;
    struct exchange *exchange; /* NULL: the client has left */
    char name[OPENAI_MODEL_BYTES];
};

static void on_left(struct exchange *exchange) {
    ((struct deletion *)exchange->context)->exchange = NULL;
}

static const struct exchange_handler nobody = {.on_close = NULL}, deleting = {.on_close = on_left};

/* Requests cannot name the model any more, whether it was in memory or not. */
static void on_unloaded(void *context, const struct error *error, const struct registry_adapter *adapter) {
    struct deletion *deletion = context;
    (void)error;
    (void)adapter;
    deletion->jobs->under_way--;
    if (deletion->exchange) {
        route_continue(deletion->exchange, &nobody, NULL);
        route_answer_object(deletion->exchange,
                            json_pack("{s:s,s:s,s:b}", "id", deletion->name, "object", "model", "deleted", 1));
    }
    free(deletion);
}

static bool begin_deletion(struct exchange *exchange, const char *name) {
    struct jobs *jobs = exchange->request->server->jobs;
    struct deletion *deletion = calloc(1, sizeof *deletion);
    if (!deletion)
        return false;
    *deletion = (struct deletion){.jobs = jobs, .exchange = exchange};
    snprintf(deletion->name, sizeof deletion->name, "%s", name);
    route_continue(exchange, &deleting, deletion);
    jobs->under_way++;
    registry_start(jobs->server,
                   &(struct registry_change){
                       .kind = REGISTRY_UNLOAD, .name = deletion->name, .on_done = on_unloaded, .context = deletion});
    return true;
}

bool jobs_delete_model(struct exchange *exchange, const char *name) {
    struct jobs *jobs = exchange->request->server->jobs;
    struct job *job;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        const char *whole = json_string_value(json_object_get(job->object, "fine_tuned_model"));
        bool is_whole = whole && !strcmp(whole, name);
        size_t i;
        json_t *checkpoint;
        if (strcmp(job->owner, jobs_owner(exchange)) != 0)
            continue;
        json_array_foreach(job->checkpoints, i, checkpoint) {
            int64_t step = step_of(checkpoint);
            if (strcmp(name_of(checkpoint), name) != 0)
                continue;
            if (!begin_deletion(exchange, name))
                return false;
            json_array_remove(job->checkpoints, i);
            job_write(job);
            if (is_whole || step != job->saved_step)
                remove_step(job, is_whole ? 0 : step, true);
            return true;
        }
    }
    return false;
}
