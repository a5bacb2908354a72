/* The ground of tuning by OpenAI's API: errands, names and places, rights and limits, and files. */
#include "jobs-internal.h"

#include "base/base.h"
#include "base/staging.h"

#include <fts.h>
#include <sys/random.h>
#include <sys/stat.h>

/* ---- errands ---- */

static void work(struct worker_job *job) {
    struct errand *errand = (struct errand *)job;
    errand->status = errand->work(errand);
    if (errand->status && !errand->error.which)
        error_of_status(&errand->error, errand->status == STATUS_MEMORY ? ERROR_OVERLOADED : ERROR_INTERNAL, NULL);
    error_hide_paths(&errand->error, errand->jobs->options->tuning_root);
}

static void done(struct worker_job *job) {
    struct errand *errand = (struct errand *)job;
    errand->jobs->under_way--;
    errand->done(errand);
}

void jobs_send(struct jobs *jobs, struct errand *errand) {
    errand->jobs = jobs;
    errand->status = STATUS_OK;
    errand->error = (struct error){0};
    errand->job = (struct worker_job){.work = work, .done = done};
    jobs->under_way++;
    if (!worker_add(jobs->worker, &errand->job)) { /* far more than can wait: the loop then does it by itself */
        work(&errand->job);
        done(&errand->job);
    }
}

/* ---- names and places ---- */

int jobs_path(const struct jobs *jobs, char path[PATH_MAX], const char *format, ...) {
    int length = snprintf(path, PATH_MAX, "%s/", jobs->options->tuning_root);
    va_list list;
    va_start(list, format);
    if (length < PATH_MAX)
        length += vsnprintf(path + length, (size_t)(PATH_MAX - length), format, list);
    va_end(list);
    return length < PATH_MAX ? STATUS_OK : status_fail(STATUS_INVALID, "--tuning-root: the path is too long");
}

void jobs_draw_id(const char *prefix, char id[OPENAI_ID_BYTES]) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    unsigned char drawn[24];
    while (getrandom(drawn, sizeof drawn, 0) != sizeof drawn)
        ;
    size_t length = (size_t)snprintf(id, OPENAI_ID_BYTES, "%s", prefix);
    for (size_t i = 0; i < sizeof drawn; i++)
        id[length++] = letters[drawn[i] & 31];
    id[length] = 0;
}

int64_t jobs_now(void) {
    return (int64_t)clock_wall_seconds();
}

int64_t jobs_tree_bytes(const char *path) {
    char *paths[] = {(char *)path, NULL};
    int64_t bytes = 0;
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *entry; tree && (entry = fts_read(tree));)
        bytes += entry->fts_info == FTS_F ? entry->fts_statp->st_size : 0;
    if (tree)
        fts_close(tree);
    return bytes;
}

/* ---- rights ---- */

bool jobs_may_tune(const struct exchange *exchange, struct error *error) {
    const struct server *server = exchange->request->server;
    if (!server->keys[exchange->head.listener] || exchange->request->client.may_tune)
        return true;
    return error_set(error, ERROR_PERMISSION, NULL, "this key may not tune: its line in --api-key-file lacks 'tune'");
}

const char *jobs_owner(const struct exchange *exchange) {
    return exchange->request->client.name;
}

/* Returns the bytes of a client's files and jobs. */
static int64_t bytes_of(const struct jobs *jobs, const char *owner) {
    const struct stored_file *file;
    const struct job *job;
    int64_t bytes = 0;
    TAILQ_FOREACH(file, &jobs->files, all) {
        bytes += strcmp(file->owner, owner) ? 0 : file->at.bytes;
    }
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        bytes += strcmp(job->owner, owner) ? 0 : job->bytes;
    }
    return bytes;
}

bool jobs_have_room(const struct exchange *exchange, int64_t more, struct error *error) {
    const struct jobs *jobs = exchange->request->server->jobs;
    const struct key_holder *client = &exchange->request->client;
    int64_t own = client->tuning_bytes >= 0 ? bytes_of(jobs, client->name) : 0;
    if (jobs->bytes + more > jobs->options->tuning_disk)
        return error_set(error, ERROR_TUNING_DISK, NULL,
                         "no room: files and jobs have %lld bytes, of the %lld of --tuning-disk",
                         (long long)jobs->bytes, (long long)jobs->options->tuning_disk);
    if (client->tuning_bytes >= 0 && own + more > client->tuning_bytes)
        return error_set(error, ERROR_TUNING_DISK, NULL,
                         "no room: files and jobs of this key have %lld bytes, of the %lld of its tuning_bytes",
                         (long long)own, (long long)client->tuning_bytes);
    return true;
}

struct stored_file *jobs_find_file(const struct exchange *exchange, const char *id) {
    struct stored_file *file;
    TAILQ_FOREACH(file, &exchange->request->server->jobs->files, all) {
        if (!strcmp(file->at.id, id) && !strcmp(file->owner, jobs_owner(exchange)))
            return file;
    }
    return NULL;
}

struct job *jobs_find_job(const struct exchange *exchange, const char *id) {
    struct job *job;
    TAILQ_FOREACH(job, &exchange->request->server->jobs->jobs, all) {
        if (!strcmp(job->id, id) && !strcmp(job->owner, jobs_owner(exchange)) && !(job->run && job->run->only_checks))
            return job;
    }
    return NULL;
}

/* ---- files ---- */

struct stored_file *jobs_add_file(struct jobs *jobs, const struct openai_file *at, const char *owner, int64_t number) {
    struct stored_file *file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->at = *at;
    file->number = number;
    snprintf(file->owner, sizeof file->owner, "%s", owner);
    jobs->bytes += at->bytes;
    struct stored_file *before = TAILQ_LAST(&jobs->files, stored_list);
    while (before && before->number > number)
        before = TAILQ_PREV(before, stored_list, all);
    if (before)
        TAILQ_INSERT_AFTER(&jobs->files, before, file, all);
    else
        TAILQ_INSERT_HEAD(&jobs->files, file, all);
    jobs->next_number = number >= jobs->next_number ? number + 1 : jobs->next_number;
    return file;
}

int jobs_write_file(const char *directory, const struct stored_file *file) {
    char path[PATH_MAX], *text = NULL;
    json_begin();
    json_t *root = json_pack("{s:o,s:s,s:I}", "file", openai_file_object(&file->at), "owner", file->owner, "number",
                             (json_int_t)file->number);
    int status = json_end(root, JSON_COMPACT, &text);
    THEN(status, file_join(path, sizeof path, directory, "file.json"));
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    return status;
}
