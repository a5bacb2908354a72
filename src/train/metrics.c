/* Writing records, and finding where a resumed run goes on. */
#include "train/metrics.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_BYTES = 1024 };

static const char record_start[] = "{\"iteration\":";

/* The iteration of a record without its line end, or -1 for what is no record. */
static int record_iteration(const char *line, size_t length, int64_t *value) {
    json_t *record;
    json_error_t error;
    *value = -1;
    if (json_read(line, length, JSON_REJECT_DUPLICATES, &record, &error) == STATUS_MEMORY)
        return STATUS_MEMORY;
    const json_t *iteration = json_object_get(record, "iteration");
    if (json_is_integer(iteration))
        *value = json_integer_value(iteration);
    json_decref(record);
    return STATUS_OK;
}

/* Whether a line without its end can be the front part of a record that was being written. */
static bool may_be_torn(const char *line, size_t length) {
    size_t known = sizeof record_start - 1;
    return !memcmp(line, record_start, length < known ? length : known);
}

/* Sets metrics->length to the end of what stays. */
static int find_end(struct metrics_file *metrics, int64_t last_iteration) {
    char buffer[4 * RECORD_BYTES];
    for (int64_t line = 1;; line++) {
        ssize_t n;
        do
            n = pread(metrics->descriptor, buffer, sizeof buffer, metrics->length);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return status_fail_errno("cannot read %s", metrics->path);
        const char *end = memchr(buffer, '\n', (size_t)n);
        if (n == 0 || (!end && n < RECORD_BYTES && may_be_torn(buffer, (size_t)n)))
            return STATUS_OK;
        int64_t iteration = -1;
        int status = end ? record_iteration(buffer, (size_t)(end - buffer), &iteration) : STATUS_OK;
        if (status)
            return status_wrap(status, "%s", metrics->path);
        if (iteration < 0)
            return status_fail(
                STATUS_INVALID,
                "%s:%lld: not a record of a training run; log.metrics_file must name a new file or that of "
                "an earlier run",
                metrics->path, (long long)line);
        if (iteration > last_iteration)
            return STATUS_OK;
        metrics->length += end - buffer + 1;
    }
}

int metrics_open(struct metrics_file *metrics, const char *path, int64_t last_iteration) {
    *metrics = (struct metrics_file){.descriptor = -1, .path = path};
    metrics->descriptor = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (metrics->descriptor < 0) /* a pipe or a terminal that may only be written */
        metrics->descriptor = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    struct stat info;
    if (metrics->descriptor < 0 || fstat(metrics->descriptor, &info)) {
        int status = status_fail_errno("cannot open log.metrics_file %s", path);
        metrics_close(metrics);
        return status;
    }
    metrics->is_regular = S_ISREG(info.st_mode);
    int status = STATUS_OK;
    if (metrics->is_regular)
        status = find_end(metrics, last_iteration);
    if (!status && metrics->is_regular && metrics->length < info.st_size &&
        ftruncate(metrics->descriptor, metrics->length))
        status = status_fail_errno("cannot cut %s", path);
    if (status)
        metrics_close(metrics);
    return status;
}

void metrics_close(struct metrics_file *metrics) {
    if (metrics->descriptor >= 0)
        close(metrics->descriptor);
    metrics->descriptor = -1;
}

static int write_record(struct metrics_file *metrics, const char *text, int length) {
    ssize_t n;
    do
        n = write(metrics->descriptor, text, (size_t)length);
    while (n < 0 && errno == EINTR);
    if (n == length) {
        metrics->length += length;
        return STATUS_OK;
    }
    int status = n < 0 ? status_fail_errno("cannot write %s", metrics->path)
                       : status_fail(STATUS_IO, "cannot write %s: no space left for a record", metrics->path);
    if (n > 0 && metrics->is_regular && ftruncate(metrics->descriptor, metrics->length))
        log_warning("the last line of %s is torn", metrics->path);
    return status;
}

int metrics_write_train(struct metrics_file *metrics, const struct train_record *r) {
    char text[RECORD_BYTES];
    int length = snprintf(text, sizeof text,
                          "%s%lld,\"lm_loss\":%.17g,\"lr\":%.17g,\"grad_norm\":%.17g,\"tokens_per_s\":%.17g,"
                          "\"model_tflops\":%.17g,\"seconds\":%.17g}\n",
                          record_start, (long long)r->iteration, r->lm_loss, r->lr, r->grad_norm, r->tokens_per_s,
                          r->model_tflops, r->seconds);
    return write_record(metrics, text, length);
}

int metrics_write_validation(struct metrics_file *metrics, const struct validation_record *r) {
    char text[RECORD_BYTES];
    int length = snprintf(text, sizeof text, "%s%lld,\"valid_loss\":%.17g,\"seconds\":%.17g}\n", record_start,
                          (long long)r->iteration, r->valid_loss, r->seconds);
    return write_record(metrics, text, length);
}
