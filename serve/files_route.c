/* /v1/files: uploads, which go to the disk piece by piece on the worker, and the files that are there.
 *
 * An upload is read in two passes: its parts as they arrive, then the lines of the file that they made. Bytes that
 * wait for the worker count in the limit of all gathered bodies. */
#include "jobs-internal.h"

#include "http/multipart.h"

#include "base/base.h"
#include "base/staging.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <unistd.h>

enum { PARTS_MOST = 1 << 16 /* bytes of a body besides its file */, LINE_MOST = 64 << 20, PURPOSE_BYTES = 32 };

static const char fine_tune[] = "fine-tune";

/* ---- an upload ---- */

struct file_upload {
    struct errand errand;      /* first */
    struct exchange *exchange; /* NULL: the client has left, or was answered */
    struct server *server;
    struct strbuf arrived; /* the loop's */
    size_t counted;
    int64_t reserved; /* bytes of the body, counted below the root until it has ended */
    bool is_ended;    /* the body is complete */
    bool is_working;
    /* The worker's, while it works: */
    struct strbuf piece;
    bool is_last;
    struct multipart multipart;
    struct staging staging;
    int descriptor;
    struct stored_file file;
    char part[MULTIPART_NAME_BYTES], purpose[PURPOSE_BYTES], expires[PURPOSE_BYTES];
    bool is_stored; /* the file is in its place */
};

static int refuse(struct file_upload *upload, enum error_case which, const char *param, const char *text) {
    error_set(&upload->errand.error, which, param, "%s", text);
    return status_fail(STATUS_INVALID, "%s", text);
}

/* ---- the worker: parts ---- */

static int begin_part(void *context, const char *name, const char *filename) {
    struct file_upload *upload = context;
    char target[PATH_MAX], path[PATH_MAX];
    snprintf(upload->part, sizeof upload->part, "%s", name);
    if (strcmp(name, "file") != 0)
        return STATUS_OK;
    if (upload->descriptor >= 0)
        return refuse(upload, ERROR_ARGUMENT, "file", "file: expected one file");
    snprintf(upload->file.at.filename, sizeof upload->file.at.filename, "%s", *filename ? filename : "upload.jsonl");
    TRY(jobs_path(upload->server->jobs, target, "files/%s", upload->file.at.id));
    TRY(staging_begin(&upload->staging, target));
    TRY(file_join(path, sizeof path, upload->staging.directory, "rows.jsonl"));
    upload->descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return upload->descriptor < 0 ? status_fail_errno("%s: cannot make a file", path) : STATUS_OK;
}

static int add_text(char *to, size_t bytes, const void *from, size_t length) {
    size_t have = strlen(to);
    if (have + length >= bytes || memchr(from, 0, length))
        return -1;
    memcpy(to + have, from, length);
    to[have + length] = 0;
    return 0;
}

static int add_bytes(void *context, const void *bytes, size_t length) {
    struct file_upload *upload = context;
    if (!strcmp(upload->part, "purpose") && add_text(upload->purpose, sizeof upload->purpose, bytes, length))
        return refuse(upload, ERROR_ARGUMENT, "purpose", "purpose: expected fine-tune");
    if (strcmp(upload->part, "file") != 0)
        return STATUS_OK;
    upload->file.at.bytes += (int64_t)length;
    if (upload->file.at.bytes > JOBS_FILE_MOST)
        return refuse(upload, ERROR_BODY_SIZE, "file", "file: a file has at most 512 MiB");
    return file_write_all(upload->descriptor, bytes, length, "rows.jsonl");
}

/* ---- the worker: lines ---- */

static int check_line(struct file_upload *upload, const char *line, size_t length, int64_t number) {
    json_error_t place;
    json_t *root = NULL;
    char text[200];
    size_t valid = utf8_valid_length((const unsigned char *)line, length);
    int status = valid == length ? json_read(line, length, JSON_REJECT_DUPLICATES, &root, &place) : STATUS_INVALID;
    bool is_object = json_is_object(root);
    json_decref(root);
    if (status == STATUS_MEMORY || (!status && is_object))
        return status;
    snprintf(text, sizeof text, "line %lld: expected a JSON object, %.100s", (long long)number,
             valid < length ? "but it is not UTF-8"
             : status       ? place.text
                            : "but it is another value");
    return refuse(upload, ERROR_ARGUMENT, "file", text);
}

/* Checks that every line is an object. A byte-order mark, line ends of two characters and empty lines are allowed. */
static int check_lines(struct file_upload *upload) {
    FILE *stream = fdopen(upload->descriptor, "r");
    char *line = NULL;
    size_t room = 0;
    int64_t number = 0, objects = 0;
    int status = stream ? STATUS_OK : status_fail_errno("cannot read an upload");
    if (stream) {
        upload->descriptor = -1;
        rewind(stream);
    }
    for (ssize_t length; !status && (length = getline(&line, &room, stream)) >= 0;) {
        const char *at = line;
        number++;
        if (number == 1 && length >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) {
            at += 3;
            length -= 3;
        }
        while (length > 0 && strchr("\r\n \t", at[length - 1]) && at[length - 1])
            length--;
        if (length == 0)
            continue;
        objects++;
        status = length > LINE_MOST ? refuse(upload, ERROR_ARGUMENT, "file", "file: a line has more than 64 MiB")
                                    : check_line(upload, at, (size_t)length, number);
    }
    if (!status && ferror(stream))
        status = status_fail_errno("cannot read an upload");
    if (!status && !objects)
        status = refuse(upload, ERROR_ARGUMENT, "file", "file: it has no line");
    free(line);
    if (stream)
        fclose(stream);
    return status;
}

static int finish(struct file_upload *upload) {
    if (multipart_end(&upload->multipart))
        return refuse(upload, ERROR_ARGUMENT, NULL, "the body ends before its last boundary");
    if (strcmp(upload->purpose, fine_tune) != 0)
        return refuse(upload, ERROR_ARGUMENT, "purpose", "purpose: expected fine-tune");
    if (upload->descriptor < 0)
        return refuse(upload, ERROR_ARGUMENT, "file", "file: there is none");
    if (fsync(upload->descriptor))
        return status_fail_errno("cannot write an upload");
    TRY(check_lines(upload));
    TRY(jobs_write_file(upload->staging.directory, &upload->file));
    return staging_commit(&upload->staging);
}

static int work(struct errand *errand) {
    struct file_upload *upload = (struct file_upload *)errand;
    int status = multipart_read(&upload->multipart, upload->piece.data, upload->piece.length);
    if (status == STATUS_INVALID && !errand->error.which)
        error_of_status(&errand->error, ERROR_ARGUMENT, NULL);
    strbuf_clear(&upload->piece);
    THEN_IF(status, upload->is_last, finish(upload));
    upload->is_stored = !status && upload->is_last;
    return status;
}

/* Removes what an upload has written; on the worker. */
static int discard(struct errand *errand) {
    struct file_upload *upload = (struct file_upload *)errand;
    if (upload->descriptor >= 0)
        close(upload->descriptor);
    staging_abort(&upload->staging);
    multipart_close(&upload->multipart);
    strbuf_free(&upload->piece);
    return STATUS_OK;
}

/* ---- the loop ---- */

static void free_upload(struct errand *errand) {
    struct file_upload *upload = (struct file_upload *)errand;
    gathered_give(&upload->server->gathered, upload->counted);
    upload->server->jobs->bytes -= upload->reserved;
    strbuf_free(&upload->arrived);
    free(upload);
}

static const struct exchange_handler nobody = {.on_close = NULL};

/* Ends an upload on which nobody works: its client gets an answer, or has left. */
static void end(struct file_upload *upload, const struct error *error) {
    struct exchange *exchange = upload->exchange;
    if (exchange) {
        route_continue(exchange, &nobody, NULL);
        if (error)
            route_fail(exchange, error);
    }
    upload->exchange = NULL;
    upload->errand.work = discard;
    upload->errand.done = free_upload;
    jobs_send(upload->server->jobs, &upload->errand);
}

static void proceed(struct file_upload *upload);

static void on_worked(struct errand *errand) {
    struct file_upload *upload = (struct file_upload *)errand;
    struct error error = errand->error;
    upload->is_working = false;
    if (upload->is_stored) {
        struct jobs *jobs = upload->server->jobs;
        struct stored_file *file = jobs_add_file(jobs, &upload->file.at, upload->file.owner, upload->file.number);
        if (!file) /* it appears after a restart */
            error_set(&error, ERROR_OVERLOADED, NULL, "out of memory");
        else if (upload->exchange)
            route_answer_object(upload->exchange, openai_file_object(&file->at));
        end(upload, file ? NULL : &error);
    } else if (error.which || !upload->exchange) {
        end(upload, error.which ? &error : NULL);
    } else
        proceed(upload);
}

/* Passes what has arrived to the worker. */
static void proceed(struct file_upload *upload) {
    if (upload->is_working || (!upload->arrived.length && !upload->is_ended))
        return;
    struct strbuf empty = upload->piece;
    upload->piece = upload->arrived;
    upload->arrived = empty;
    upload->is_last = upload->is_ended;
    gathered_give(&upload->server->gathered, upload->counted);
    upload->counted = 0;
    upload->is_working = true;
    upload->errand.work = work;
    upload->errand.done = on_worked;
    jobs_send(upload->server->jobs, &upload->errand);
}

static void leave(struct file_upload *upload, const struct error *error) {
    struct exchange *exchange = upload->exchange;
    if (!upload->is_working) {
        end(upload, error);
        return;
    }
    upload->exchange = NULL; /* the worker's errand ends it */
    route_continue(exchange, &nobody, NULL);
    if (error)
        route_fail(exchange, error);
}

static void on_body(struct exchange *exchange, const unsigned char *bytes, size_t length) {
    struct file_upload *upload = exchange->context;
    struct error error = {0};
    if (!gathered_take(&upload->server->gathered, upload->counted, length, false))
        error_set(&error, ERROR_OVERLOADED, NULL, "the upload arrives faster than the disk takes it");
    else {
        upload->counted += length;
        strbuf_add(&upload->arrived, bytes, length);
    }
    if (upload->arrived.failed)
        error_set(&error, ERROR_OVERLOADED, NULL, "out of memory");
    if (!error.which)
        jobs_have_room(exchange, (int64_t)length, &error);
    upload->reserved += (int64_t)length;
    upload->server->jobs->bytes += (int64_t)length;
    if (error.which)
        leave(upload, &error);
    else
        proceed(upload);
}

static void on_end(struct exchange *exchange) {
    struct file_upload *upload = exchange->context;
    upload->is_ended = true;
    proceed(upload);
}

static void on_close(struct exchange *exchange) {
    struct file_upload *upload = exchange->context;
    if (upload->is_working)
        upload->exchange = NULL;
    else {
        upload->exchange = NULL;
        end(upload, NULL);
    }
}

static const struct exchange_handler uploading = {.on_body = on_body, .on_end = on_end, .on_close = on_close};

void files_create(struct exchange *exchange) {
    struct server *server = exchange->request->server;
    struct error error;
    const char *promised = exchange_field(exchange, "content-length");
    int64_t bytes = promised ? strtoll(promised, NULL, 10) : 0;
    struct file_upload *upload = calloc(1, sizeof *upload);
    if (!upload) {
        route_fail(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
        return;
    }
    const struct multipart_sink sink = {.begin = begin_part, .add = add_bytes, .context = upload};
    bool is_good = jobs_may_tune(exchange, &error);
    if (is_good && bytes > (int64_t)JOBS_FILE_MOST + PARTS_MOST)
        is_good = error_set(&error, ERROR_BODY_SIZE, "file", "file: a file has at most 512 MiB");
    is_good = is_good && jobs_have_room(exchange, bytes, &error);
    if (is_good && multipart_open(&upload->multipart, exchange_field(exchange, "content-type"), &sink))
        is_good = error_of_status(&error, ERROR_MEDIA_TYPE, NULL);
    if (!is_good) {
        multipart_close(&upload->multipart);
        free(upload);
        route_fail(exchange, &error);
        return;
    }
    upload->exchange = exchange;
    upload->server = server;
    upload->descriptor = -1;
    upload->staging.mark = -1;
    upload->file.at.purpose = fine_tune;
    upload->file.at.created = jobs_now();
    upload->file.number = server->jobs->next_number++;
    snprintf(upload->file.owner, sizeof upload->file.owner, "%s", jobs_owner(exchange));
    jobs_draw_id("file-", upload->file.at.id);
    exchange->body_bytes = (int64_t)JOBS_FILE_MOST + PARTS_MOST;
    exchange->handler = &uploading;
    exchange->context = upload;
}

/* ---- files that are there ---- */

void files_list(struct exchange *exchange) {
    struct jobs *jobs = exchange->request->server->jobs;
    struct openai_page page;
    struct openai_list list;
    struct error error;
    if (!jobs_may_tune(exchange, &error) || !openai_page_read(exchange->head.query, 10000, 10000, &page, &error)) {
        route_fail(exchange, &error);
        return;
    }
    openai_list_begin(&list, &page);
    struct stored_file *file = page.is_ascending ? TAILQ_FIRST(&jobs->files) : TAILQ_LAST(&jobs->files, stored_list);
    while (file) {
        bool is_wanted =
            !strcmp(file->owner, jobs_owner(exchange)) && (!*page.purpose || !strcmp(page.purpose, file->at.purpose));
        if (is_wanted && openai_list_takes(&list, file->at.id)) {
            json_t *object = openai_file_object(&file->at);
            json_add(&list.out, object);
            json_decref(object);
        }
        file = page.is_ascending ? TAILQ_NEXT(file, all) : TAILQ_PREV(file, stored_list, all);
    }
    openai_list_end(&list);
    route_answer_json(exchange, &list.out);
}

/* Finds the file of a path, with what follows its id; answers with an error otherwise. */
static struct stored_file *find(struct exchange *exchange, const char **rest) {
    char id[2 * OPENAI_ID_BYTES] = "";
    struct error error;
    struct stored_file *file = NULL;
    static const char content[] = "content";
    *rest = "";
    if (jobs_may_tune(exchange, &error)) {
        bool is_id = route_rest(exchange, "/files/", id, sizeof id);
        char *slash = strchr(id, '/');
        if (slash) {
            *slash = 0;
            *rest = !strcmp(slash + 1, content) && !strcmp(exchange->head.method, "GET") ? content : NULL;
        }
        file = is_id && *rest ? jobs_find_file(exchange, id) : NULL;
        error_set(&error, ERROR_OBJECT_NOT_FOUND, "id", "there is no file %.64s", id);
    }
    if (!file)
        route_fail(exchange, &error);
    return file;
}

struct reading {
    struct errand errand; /* first */
    struct exchange *exchange;
    char path[PATH_MAX];
    struct strbuf text;
};

static int read_content(struct errand *errand) {
    struct reading *reading = (struct reading *)errand;
    return file_read(reading->path, JOBS_FILE_MOST, &reading->text);
}

static void on_content(struct errand *errand) {
    struct reading *reading = (struct reading *)errand;
    if (reading->exchange) {
        route_continue(reading->exchange, &nobody, NULL);
        if (errand->error.which)
            route_fail(reading->exchange, &errand->error);
        else
            exchange_answer(reading->exchange, 200, "application/octet-stream", strbuf_text(&reading->text),
                            reading->text.length);
    }
    strbuf_free(&reading->text);
    free(reading);
}

static void on_left(struct exchange *exchange) {
    ((struct reading *)exchange->context)->exchange = NULL;
}

static const struct exchange_handler reading_content = {.on_close = on_left};

void files_get(struct exchange *exchange) {
    const char *rest;
    struct stored_file *file = find(exchange, &rest);
    struct jobs *jobs = exchange->request->server->jobs;
    if (!file)
        return;
    if (!*rest) {
        route_answer_object(exchange, openai_file_object(&file->at));
        return;
    }
    struct reading *reading = calloc(1, sizeof *reading);
    if (!reading || jobs_path(jobs, reading->path, "files/%s/rows.jsonl", file->at.id)) {
        free(reading);
        route_fail(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
        return;
    }
    reading->exchange = exchange;
    reading->errand.work = read_content;
    reading->errand.done = on_content;
    route_continue(exchange, &reading_content, reading);
    jobs_send(jobs, &reading->errand);
}

static int remove_directory(struct errand *errand) {
    return staging_remove(((struct reading *)errand)->path);
}

static void free_reading(struct errand *errand) {
    free(errand);
}

/* True when a job that has not ended reads the file. */
static bool is_in_use(const struct jobs *jobs, const char *id) {
    const struct job *job;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        const char *train = json_string_value(json_object_get(job->object, "training_file"));
        const char *valid = json_string_value(json_object_get(job->object, "validation_file"));
        if (!job_has_ended(job) && ((train && !strcmp(train, id)) || (valid && !strcmp(valid, id))))
            return true;
    }
    return false;
}

void files_delete(struct exchange *exchange) {
    const char *rest;
    struct stored_file *file = find(exchange, &rest);
    struct jobs *jobs = exchange->request->server->jobs;
    struct reading *removal = file ? calloc(1, sizeof *removal) : NULL;
    if (!file)
        return;
    if (is_in_use(jobs, file->at.id) || !removal || jobs_path(jobs, removal->path, "files/%s", file->at.id)) {
        free(removal);
        route_fail(exchange, AN_ERROR(ERROR_ARGUMENT, "id", "a job that has not ended reads this file"));
        return;
    }
    removal->errand.work = remove_directory;
    removal->errand.done = free_reading;
    route_answer_object(exchange, json_pack("{s:s,s:s,s:b}", "id", file->at.id, "object", "file", "deleted", 1));
    jobs->bytes -= file->at.bytes;
    TAILQ_REMOVE(&jobs->files, file, all);
    free(file);
    jobs_send(jobs, &removal->errand);
}
