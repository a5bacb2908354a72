/* Writes answers as lines of a file or of standard output. A file is only appended to, in whole lines. A killed run
 * therefore leaves complete lines and at most one partial line, which the next run drops. */
#include "requests.h"

#include "requests_batch.h"

#include "base/json.h"
#include "data/json_line.h"
#include "openai/json_in.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int requests_output_check(const char *path, bool resumes) {
    if (!path && resumes)
        return status_fail(STATUS_USAGE, "--resume continues the file of --output: name it");
    if (!path || !file_exists(path))
        return STATUS_OK;
    return resumes ? STATUS_OK
                   : status_fail(STATUS_USAGE, "--output %s exists: continue it with --resume, or name another", path);
}

/* ---- checking an existing file ---- */

static int read_object(const struct lines *lines, json_t **root) {
    const struct strbuf *text = lines_text(lines);
    json_error_t error;
    return json_read(strbuf_text(text), text->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, root, &error);
}

/* Returns the id, or null when there is none, as answers have it. */
static const json_t *id_of(const json_t *root) {
    const json_t *id = json_object_get(root, "id");
    return json_is_string(id) || json_is_integer(id) ? id : NULL;
}

/* The same for the form of OpenAI's batches. */
static bool batch_belongs(const json_t *answer, const json_t *request, int64_t number) {
    const json_t *a = json_object_get(answer, "custom_id"), *b = json_object_get(request, "custom_id");
    char id[48];
    snprintf(id, sizeof id, "batch_req_%lld", (long long)number);
    return json_in_is(json_object_get(answer, "id"), id) && (json_is_string(b) ? json_equal(a, b) : json_is_null(a));
}

static bool is_error(const json_t *answer) {
    const json_t *response = json_object_get(answer, "response");
    return response ? json_integer_value(json_object_get(response, "status_code")) != 200
                    : json_object_get(answer, "error") != NULL;
}

/* True when the answer belongs to the request, which is line `number` of the input. */
static bool belongs(const json_t *answer, const json_t *request, int64_t number) {
    const json_t *error = json_object_get(answer, "error"), *line = json_object_get(answer, "line");
    const json_t *a = id_of(answer), *b = id_of(request);
    if (batch_is(request))
        return batch_belongs(answer, request, number);
    if (error ? json_integer_value(line) != number : !json_is_array(json_object_get(answer, "choices")))
        return false;
    return !a && !b ? true : a && b && json_equal(a, b);
}

/* Checks one complete line of the output against the next line of the input. */
static int check_line(struct requests_output *output, const struct lines *lines, struct lines *input) {
    json_t *answer = NULL, *request = NULL;
    bool is_end;
    int status = lines_next_row(input, &is_end);
    if (!status && is_end)
        return status_fail(STATUS_INVALID, "%s:%lld: there are more answers than requests in %s", output->path,
                           (long long)lines_number(lines), lines_name(input));
    THEN(status, read_object(lines, &answer));
    if (status == STATUS_INVALID)
        status =
            status_fail(status, "%s:%lld: not the line of an answer", output->path, (long long)lines_number(lines));
    if (!status && read_object(input, &request) == STATUS_MEMORY) /* a line that is no JSON was answered by an error */
        status = STATUS_MEMORY;
    if (!status && !belongs(answer, request, lines_number(input)))
        status = status_fail(STATUS_INVALID, "%s:%lld: not the answer to %s:%lld", output->path,
                             (long long)lines_number(lines), lines_name(input), (long long)lines_number(input));
    output->kept_errors += !status && is_error(answer);
    json_decref(answer);
    json_decref(request);
    return status;
}

/* Checks the existing answers; sets *bytes to the length of the complete lines. */
static int check_kept(struct requests_output *output, struct lines *input, int64_t *bytes) {
    struct lines *lines;
    int64_t size = file_size(output->path), at = 0;
    bool is_end = false;
    *bytes = 0;
    int status = size < 0 ? (int)size : lines_open_plain(output->path, SIZE_MAX, &lines);
    TRY(status);
    while (!status && !(status = lines_next(lines, &is_end)) && !is_end) {
        at += (int64_t)lines_text(lines)->length + 1;
        if (at > size) /* the last line is partial */
            break;
        status = check_line(output, lines, input);
        output->kept += !status;
        *bytes = at;
    }
    lines_close(lines);
    return status;
}

/* ---- opening ---- */

static int resume(struct requests_output *output, struct lines *input) {
    int64_t bytes;
    output->descriptor = open(output->path, O_WRONLY | O_CLOEXEC);
    if (output->descriptor < 0)
        return status_fail_errno("cannot open %s", output->path);
    int status = lock_take(output->descriptor, output->path);
    THEN(status, check_kept(output, input, &bytes));
    if (!status && (ftruncate(output->descriptor, bytes) || lseek(output->descriptor, bytes, SEEK_SET) < 0))
        status = status_fail_errno("cannot resume %s", output->path);
    return status;
}

int requests_output_open(struct requests_output *output, const char *path, bool resumes, struct lines *input) {
    *output = (struct requests_output){.path = path, .descriptor = -1};
    if (!path)
        return STATUS_OK;
    if (resumes && file_exists(path))
        return resume(output, input);
    output->descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return output->descriptor < 0 ? status_fail_errno("cannot make %s", path) : lock_take(output->descriptor, path);
}

int requests_output_write(struct requests_output *output, const struct strbuf *text) {
    if (output->path)
        return file_write_all(output->descriptor, strbuf_text(text), text->length, output->path);
    return job_print(strbuf_text(text), text->length);
}

int requests_output_close(struct requests_output *output) {
    int descriptor = output->descriptor, status = STATUS_OK;
    output->descriptor = -1;
    if (descriptor < 0)
        return STATUS_OK;
    if (fsync(descriptor) && errno != EINVAL && errno != EROFS)
        status = status_fail_errno("cannot write %s", output->path);
    if (close(descriptor) && !status)
        status = status_fail_errno("cannot write %s", output->path);
    return status;
}
