/* The state of jobs: their objects and events in memory, and the same on disk.
 *
 * job.json is replaced as a whole. Events and figures are appended, a line each; a line that a killed process left
 * unfinished is cut off. Numbers order the events of both files, so that their ids stay the same after a restart. */
#include "jobs-internal.h"

#include "log.h"

#include "base/base.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { STATE_MOST = 16 << 20, LOG_MOST = 1 << 30 };
static const char not_known[] = "?";

/* ---- jobs in memory ---- */

struct job *job_new(struct jobs *jobs) {
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->jobs = jobs;
    job->weight = 1;
    job->words = json_array();
    job->checkpoints = json_array();
    return job;
}

void job_free(struct job *job) {
    for (size_t i = 0; i < job->event_count; i++)
        free(job->events[i].message);
    free(job->events);
    strbuf_free(&job->event_log.waiting);
    strbuf_free(&job->metric_log.waiting);
    json_decref(job->object);
    json_decref(job->words);
    json_decref(job->checkpoints);
    free(job);
}

const char *job_status(const struct job *job) {
    const char *status = json_string_value(json_object_get(job->object, "status"));
    return status ? status : not_known;
}

bool job_is(const struct job *job, const char *status) {
    return !strcmp(job_status(job), status);
}

bool job_has_ended(const struct job *job) {
    return job_is(job, "succeeded") || job_is(job, "failed") || job_is(job, "cancelled");
}

void job_set(struct job *job, const char *member, json_t *value) {
    json_object_set_new(job->object, member, value ? value : json_null());
}

/* ---- writing ---- */

struct writing {
    struct errand errand; /* first */
    struct job *job;
    char path[PATH_MAX];
    char *text; /* of a whole file */
    struct job_log *log;
    struct strbuf lines;
};

static int write_file(struct errand *errand) {
    struct writing *writing = (struct writing *)errand;
    return file_write_atomic(writing->path, writing->text, strlen(writing->text));
}

static int append(struct errand *errand) {
    struct writing *writing = (struct writing *)errand;
    int descriptor = open(writing->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return status_fail_errno("%s: cannot open", writing->path);
    int status = file_write_all(descriptor, writing->lines.data, writing->lines.length, writing->path);
    close(descriptor);
    return status;
}

static void flush(struct job *job, struct job_log *log);

static void on_written(struct errand *errand) {
    struct writing *writing = (struct writing *)errand;
    struct job *job = writing->job;
    struct job_log *log = writing->log;
    job->writes--;
    if (errand->error.which)
        log_event(job->jobs->server, LOG_ERROR, "tuning", "%s: %s", job->id, errand->error.text);
    free(writing->text);
    strbuf_free(&writing->lines);
    free(writing);
    if (!log)
        return;
    log->is_writing = false;
    flush(job, log);
}

/* Sends a writing of the job; without memory it is left out, and the next one tells all. */
static struct writing *send_writing(struct job *job, const char *name, int (*work)(struct errand *)) {
    struct writing *writing = calloc(1, sizeof *writing);
    if (!writing || jobs_path(job->jobs, writing->path, "jobs/%s/%s", job->id, name)) {
        free(writing);
        return NULL;
    }
    writing->job = job;
    writing->errand.work = work;
    writing->errand.done = on_written;
    job->writes++;
    return writing;
}

static void flush(struct job *job, struct job_log *log) {
    if (log->is_writing || !log->waiting.length)
        return;
    struct writing *writing = send_writing(job, log == &job->event_log ? "events.jsonl" : "metrics.jsonl", append);
    if (!writing)
        return;
    writing->lines = log->waiting;
    log->waiting = STRBUF_INIT;
    writing->log = log;
    log->is_writing = true;
    jobs_send(job->jobs, &writing->errand);
}

int job_text(const struct job *job, char **text) {
    json_begin();
    json_t *root =
        json_pack("{s:I,s:s,s:f,s:I,s:I,s:O,s:O,s:O}", "number", (json_int_t)job->number, "owner", job->owner, "weight",
                  job->weight, "step", (json_int_t)job->saved_step, "tokens", (json_int_t)job->saved_tokens, "job",
                  job->object, "words", job->words, "checkpoints", job->checkpoints);
    return json_end(root, JSON_COMPACT, text);
}

void job_write(struct job *job) {
    char *text;
    if (job_text(job, &text))
        return;
    struct writing *writing = send_writing(job, "job.json", write_file);
    if (!writing) {
        free(text);
        return;
    }
    writing->text = text;
    jobs_send(job->jobs, &writing->errand);
}

/* ---- events ---- */

void job_event_id(const struct job *job, const struct job_event *event, char id[OPENAI_ID_BYTES]) {
    snprintf(id, OPENAI_ID_BYTES, "ftevent-%s-%lld", job->id + strlen(job->id) - 8, (long long)event->number);
}

static struct job_event *add_event(struct job *job) {
    if (job->event_count == job->event_capacity) {
        size_t capacity = job->event_capacity ? 2 * job->event_capacity : 16;
        struct job_event *grown = realloc(job->events, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        job->events = grown;
        job->event_capacity = capacity;
    }
    struct job_event *event = &job->events[job->event_count++];
    *event = (struct job_event){.number = job->next_event++, .created = jobs_now(), .level = "info"};
    return event;
}

void job_tell(struct job *job, const char *level, const char *format, ...) {
    struct strbuf text = STRBUF_INIT;
    char line[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    struct job_event *event = add_event(job);
    if (!event)
        return;
    event->level = level;
    event->message = strdup(line);
    strbuf_format(&text, "{\"n\":%lld,\"created_at\":%lld,\"level\":\"%s\",\"message\":", (long long)event->number,
                  (long long)event->created, level);
    json_add_string(&text, line, strlen(line));
    strbuf_add_text(&text, "}\n");
    if (!text.failed)
        strbuf_add(&job->event_log.waiting, text.data, text.length);
    strbuf_free(&text);
    flush(job, &job->event_log);
}

void job_tell_step(struct job *job, const struct openai_figures *figures, const char *line) {
    struct job_event *event = figures->step > job->logged_step ? add_event(job) : NULL;
    if (!event)
        return;
    job->logged_step = figures->step;
    event->figures = *figures;
    strbuf_format(&job->metric_log.waiting,
                  "{\"n\":%lld,\"created_at\":%lld,\"step\":%lld,\"total_steps\":%lld,\"train_loss\":%.17g",
                  (long long)event->number, (long long)event->created, (long long)figures->step,
                  (long long)figures->total, figures->train_loss);
    if (!isnan(figures->valid_loss))
        strbuf_format(&job->metric_log.waiting, ",\"valid_loss\":%.17g", figures->valid_loss);
    strbuf_format(&job->metric_log.waiting, "%s}\n", line);
    flush(job, &job->metric_log);
}

void job_change(struct job *job, const char *status, const char *level, const char *message) {
    struct log_line line;
    job_set(job, "status", json_string(status));
    if (job_has_ended(job))
        job_set(job, "finished_at", json_integer(jobs_now()));
    job_tell(job, level, message ? "Job is %s: %s" : "Job is %s", status, message);
    log_line_begin(&line, job->jobs->server, strcmp(level, "error") ? LOG_INFO : LOG_WARNING, "tuning");
    log_line_text(&line, "job", job->id);
    log_line_text(&line, "status", status);
    if (message)
        log_line_text(&line, "message", message);
    log_line_end(&line);
    job_write(job);
}

void job_fail(struct job *job, const char *code, const char *param, const char *message) {
    job_set(job, "error", json_pack("{s:s,s:s,s:s?}", "code", code, "message", message, "param", param));
    job_change(job, "failed", "error", message);
}

/* ---- reading ---- */

static int read_json(const char *path, json_t **root) {
    struct strbuf text = STRBUF_INIT;
    json_error_t place;
    *root = NULL;
    int status = file_read(path, STATE_MOST, &text);
    if (!status) {
        status = json_read(text.data, text.length, JSON_REJECT_DUPLICATES, root, &place);
        if (status == STATUS_INVALID)
            status_fail(status, "%s: %s", path, place.text);
    }
    strbuf_free(&text);
    return status;
}

/* Reads the lines of a log, and cuts off an unfinished one. */
static int read_log(const char *path, struct job *job, void (*take)(struct job *job, const json_t *line)) {
    struct strbuf text = STRBUF_INIT;
    json_error_t place;
    if (!file_exists(path))
        return STATUS_OK;
    int status = file_read(path, LOG_MOST, &text);
    const char *at = strbuf_text(&text), *end = at + text.length;
    for (const char *newline; !status && (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1) {
        json_t *line;
        status = json_read(at, (size_t)(newline - at), 0, &line, &place);
        if (status)
            status = status_fail(status, "%s: a line is no JSON", path);
        else
            take(job, line);
        json_decref(line);
    }
    if (!status && at < end && truncate(path, (off_t)(at - strbuf_text(&text))))
        status = status_fail_errno("%s: cannot cut off an unfinished line", path);
    strbuf_free(&text);
    return status;
}

static struct job_event *take_event(struct job *job, const json_t *line) {
    struct job_event *event = add_event(job);
    if (!event)
        return NULL;
    event->number = json_integer_value(json_object_get(line, "n"));
    event->created = json_integer_value(json_object_get(line, "created_at"));
    return event;
}

static void take_message(struct job *job, const json_t *line) {
    const char *message = json_string_value(json_object_get(line, "message"));
    const char *level = json_string_value(json_object_get(line, "level"));
    struct job_event *event = message ? take_event(job, line) : NULL;
    if (!event)
        return;
    event->level = level && !strcmp(level, "error") ? "error" : level && !strcmp(level, "warn") ? "warn" : "info";
    event->message = strdup(message);
}

static void take_step(struct job *job, const json_t *line) {
    const json_t *valid = json_object_get(line, "valid_loss");
    struct job_event *event = take_event(job, line);
    if (!event)
        return;
    event->figures = (struct openai_figures){.step = json_integer_value(json_object_get(line, "step")),
                                             .total = json_integer_value(json_object_get(line, "total_steps")),
                                             .train_loss = json_number_value(json_object_get(line, "train_loss")),
                                             .valid_loss = valid ? json_number_value(valid) : (double)NAN};
    job->logged_step = event->figures.step > job->logged_step ? event->figures.step : job->logged_step;
}

static int order_events(const void *a, const void *b) {
    int64_t first = ((const struct job_event *)a)->number, second = ((const struct job_event *)b)->number;
    return (first > second) - (first < second);
}

static int read_logs(struct job *job) {
    char path[PATH_MAX];
    int status = jobs_path(job->jobs, path, "jobs/%s/events.jsonl", job->id);
    THEN(status, read_log(path, job, take_message));
    THEN(status, jobs_path(job->jobs, path, "jobs/%s/metrics.jsonl", job->id));
    THEN(status, read_log(path, job, take_step));
    if (job->event_count) {
        qsort(job->events, job->event_count, sizeof *job->events, order_events);
        job->next_event = job->events[job->event_count - 1].number + 1;
    }
    return status;
}

/* Reads what only the server keeps about a job. */
static int take_state(struct job *job, const json_t *root) {
    const char *owner = json_string_value(json_object_get(root, "owner"));
    json_t *object = json_object_get(root, "job"), *words = json_object_get(root, "words");
    json_t *checkpoints = json_object_get(root, "checkpoints");
    const char *id = json_string_value(json_object_get(object, "id"));
    if (!owner || !id || strcmp(id, job->id) != 0 || !json_is_array(words) || !json_is_array(checkpoints) ||
        !json_is_string(json_object_get(object, "status")) || strlen(owner) > KEYS_NAME_BYTES)
        return status_fail(STATUS_INVALID, "job.json lacks a member");
    snprintf(job->owner, sizeof job->owner, "%s", owner);
    job->number = json_integer_value(json_object_get(root, "number"));
    job->weight = json_number_value(json_object_get(root, "weight"));
    job->saved_step = json_integer_value(json_object_get(root, "step"));
    job->saved_tokens = json_integer_value(json_object_get(root, "tokens"));
    json_object_update(job->object, object);
    json_array_extend(job->words, words);
    json_array_extend(job->checkpoints, checkpoints);
    return STATUS_OK;
}

/* A job that cannot be read keeps its id, and says why. */
static void make_damaged(struct job *job) {
    char line[512];
    snprintf(line, sizeof line, "the job's state is damaged: %s", status_text());
    json_t *object = json_pack("{s:s}", "message", line);
    json_object_set_new(job->object, "status", json_string("failed"));
    json_object_set_new(object, "code", json_string("damaged_job"));
    json_object_set_new(object, "param", json_null());
    json_object_set_new(job->object, "error", object);
    log_warning("--tuning-root: %s: %s", job->id, line);
}

static int load_job(struct jobs *jobs, const char *id) {
    const struct openai_job unknown = {.model = "", .training_file = ""};
    struct job *job = job_new(jobs), *before = TAILQ_LAST(&jobs->jobs, job_list);
    char path[PATH_MAX];
    json_t *root = NULL;
    TRY(status_allocated(job));
    snprintf(job->id, sizeof job->id, "%s", id);
    job->object = openai_job_object(&unknown, id, 0);
    int status = jobs_path(jobs, path, "jobs/%s/job.json", id);
    THEN(status, read_json(path, &root));
    THEN(status, take_state(job, root));
    THEN(status, read_logs(job));
    if (status && status != STATUS_MEMORY)
        make_damaged(job);
    json_decref(root);
    if (!jobs_path(jobs, path, "jobs/%s", id))
        job->bytes = jobs_tree_bytes(path);
    while (before && before->number > job->number)
        before = TAILQ_PREV(before, job_list, all);
    if (before)
        TAILQ_INSERT_AFTER(&jobs->jobs, before, job, all);
    else
        TAILQ_INSERT_HEAD(&jobs->jobs, job, all);
    jobs->next_number = job->number >= jobs->next_number ? job->number + 1 : jobs->next_number;
    return status == STATUS_MEMORY ? status : STATUS_OK;
}

static int load_file(struct jobs *jobs, const char *id) {
    char path[PATH_MAX];
    json_t *root = NULL;
    int status = jobs_path(jobs, path, "files/%s/file.json", id);
    THEN(status, read_json(path, &root));
    const json_t *object = json_object_get(root, "file");
    const char *name = json_string_value(json_object_get(object, "filename"));
    const char *purpose = json_string_value(json_object_get(object, "purpose"));
    const char *owner = json_string_value(json_object_get(root, "owner"));
    if (!status && (!name || !purpose || !owner))
        status = status_fail(STATUS_INVALID, "%s: it lacks a member", path);
    if (!status) {
        struct openai_file at = {.bytes = json_integer_value(json_object_get(object, "bytes")),
                                 .created = json_integer_value(json_object_get(object, "created_at")),
                                 .purpose = !strcmp(purpose, "fine-tune") ? "fine-tune" : "fine-tune-results"};
        snprintf(at.id, sizeof at.id, "%s", id);
        snprintf(at.filename, sizeof at.filename, "%s", name);
        status = status_allocated(
            jobs_add_file(jobs, &at, owner, json_integer_value(json_object_get(root, "number"))) != NULL);
    }
    json_decref(root);
    if (status && status != STATUS_MEMORY)
        log_warning("--tuning-root: %s: the file is left out", status_text());
    return status == STATUS_MEMORY ? status : STATUS_OK;
}

static int load_all(struct jobs *jobs, const char *directory, const char *prefix,
                    int (*load)(struct jobs *jobs, const char *id)) {
    char path[PATH_MAX], **names;
    size_t count;
    int status = jobs_path(jobs, path, "%s", directory);
    THEN(status, file_list(path, &names, &count));
    if (status)
        return status;
    for (size_t i = 0; i < count && !status; i++)
        if (!strncmp(names[i], prefix, strlen(prefix)) && strlen(names[i]) < OPENAI_ID_BYTES &&
            strlen(names[i]) > strlen(prefix) + 8)
            status = load(jobs, names[i]);
    file_list_free(names, count);
    return status;
}

int jobs_load(struct jobs *jobs) {
    int status = load_all(jobs, "files", "file-", load_file);
    return status ? status : load_all(jobs, "jobs", "ftjob-", load_job);
}
