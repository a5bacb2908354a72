/* Writes records, and finds the place where a resumed run continues. */
#include "train-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_BYTES = 1024, WAIT_MILLISECONDS = 100 };

static const char record_start[] = "{\"iteration\":";

struct metrics_line {
    int64_t iteration;     /* -1: no record */
    bool has_loss, is_end; /* is_end: a run ended with it */
    double loss;
};

/* Reads a record, without its line end. */
static int read_line(const char *text, size_t length, struct metrics_line *line) {
    json_t *record;
    json_error_t error;
    *line = (struct metrics_line){.iteration = -1};
    int status = json_read(text, length, JSON_REJECT_DUPLICATES, &record, &error);
    if (status)
        return status == STATUS_MEMORY ? status : STATUS_OK;
    const json_t *iteration = json_object_get(record, "iteration"), *loss = json_object_get(record, "lm_loss");
    loss = loss ? loss : json_object_get(record, "loss");
    *line = (struct metrics_line){.iteration = json_is_integer(iteration) ? json_integer_value(iteration) : -1,
                                  .has_loss = json_is_number(loss),
                                  .is_end = json_object_get(record, "serving_gap") != NULL,
                                  .loss = json_number_value(loss)};
    json_decref(record);
    return STATUS_OK;
}

/* True when a line without its end can be the beginning of a record whose write was interrupted. */
static bool may_be_torn(const char *line, size_t length) {
    size_t known = sizeof record_start - 1;
    return !memcmp(line, record_start, length < known ? length : known);
}

/* Facts of a file's records so far. */
struct survey {
    const struct metrics_start *start;
    int64_t last; /* the largest iteration that stays; -1: none */
};

static int refuse(const struct metrics_file *metrics, const char *why) {
    return status_fail(
        STATUS_INVALID,
        "%s holds the records of another run (%s): resume from its checkpoint (checkpoint.load), or name "
        "another log.metrics_file",
        metrics->path, why);
}

/* Checks and counts a record that stays. */
static int keep_line(const struct metrics_file *metrics, struct survey *survey, const struct metrics_line *line) {
    const struct metrics_start *start = survey->start;
    bool is_last = start->kind == METRICS_RESUMES && start->has_loss && line->iteration == start->iteration;
    char why[128];
    if (is_last && line->has_loss && line->loss != start->loss) {
        snprintf(why, sizeof why, "the loss of iteration %lld is %.17g there, and %.17g in the checkpoint",
                 (long long)line->iteration, line->loss, start->loss);
        return refuse(metrics, why);
    }
    survey->last = line->iteration > survey->last ? line->iteration : survey->last;
    return STATUS_OK;
}

/* Checks the end of the records that stay; `next` is the iteration of the record after them, or -1. In a file of this
 * run there is no gap. */
static int check_end(const struct metrics_file *metrics, const struct survey *survey, int64_t next) {
    int64_t iteration = survey->start->iteration;
    char why[128];
    if (survey->start->kind == METRICS_FRESH && next >= 0)
        return refuse(metrics, "this one starts afresh");
    if (survey->start->kind != METRICS_RESUMES || survey->last == iteration)
        return STATUS_OK;
    if (survey->last < 0 && (next < 0 || next == iteration + 1))
        return STATUS_OK;
    if (survey->last < 0)
        snprintf(why, sizeof why, "they begin with iteration %lld, and this one with %lld", (long long)next,
                 (long long)iteration + 1);
    else
        snprintf(why, sizeof why, "iteration %lld is the last one, but this run resumes after %lld",
                 (long long)survey->last, (long long)iteration);
    return refuse(metrics, why);
}

/* Sets metrics->length to the end of the records that stay. */
static int find_end(struct metrics_file *metrics, const struct metrics_start *start) {
    struct survey survey = {.start = start, .last = -1};
    char buffer[4 * RECORD_BYTES];
    for (int64_t number = 1;; number++) {
        ssize_t n;
        do
            n = pread(metrics->descriptor, buffer, sizeof buffer, metrics->length);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return status_fail_errno("cannot read %s", metrics->path);
        const char *end = memchr(buffer, '\n', (size_t)n);
        if (n == 0 || (!end && n < RECORD_BYTES && may_be_torn(buffer, (size_t)n)))
            return check_end(metrics, &survey, -1);
        struct metrics_line line = {.iteration = -1};
        int status = end ? read_line(buffer, (size_t)(end - buffer), &line) : STATUS_OK;
        if (status)
            return status_wrap(status, "%s", metrics->path);
        if (line.iteration < 0)
            return status_fail(
                STATUS_INVALID,
                "%s:%lld: not a record of a training run; log.metrics_file must name a new file or that of "
                "an earlier run",
                metrics->path, (long long)number);
        if (start->kind != METRICS_ADDS && (line.iteration > start->iteration || line.is_end))
            return check_end(metrics, &survey, line.iteration);
        TRY(keep_line(metrics, &survey, &line));
        metrics->length += end - buffer + 1;
    }
}

/* Opening must not wait, because a pipe without a reader would never open. */
static int open_descriptor(const char *path) {
    struct stat info;
    bool is_other = !stat(path, &info) && !S_ISREG(info.st_mode);
    int flags = O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    int descriptor = open(path, flags | (is_other ? O_WRONLY : O_RDWR | O_CREAT), 0666);
    if (descriptor >= 0)
        return descriptor;
    if (is_other && errno == ENXIO && S_ISFIFO(info.st_mode))
        status_fail(STATUS_IO, "nobody reads the pipe log.metrics_file %s: start its reader first", path);
    else
        status_fail_errno("cannot open log.metrics_file %s", path);
    return -1;
}

int metrics_open(struct metrics_file *metrics, const char *path, const struct metrics_start *start) {
    *metrics = (struct metrics_file){.descriptor = open_descriptor(path), .path = path};
    if (metrics->descriptor < 0)
        return STATUS_IO;
    struct stat info;
    int status = fstat(metrics->descriptor, &info) ? status_fail_errno("cannot stat %s", path) : STATUS_OK;
    metrics->is_regular = !status && S_ISREG(info.st_mode);
    if (metrics->is_regular)
        status = lock_take(metrics->descriptor, path);
    THEN_IF(status, metrics->is_regular, find_end(metrics, start));
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

int metrics_sync(const struct metrics_file *metrics) {
    if (!metrics->is_regular || !fdatasync(metrics->descriptor))
        return STATUS_OK;
    return status_fail_errno("cannot sync %s", metrics->path);
}

/* write(2) to a pipe. If its reader is gone, that is an error and does not end the process. */
static ssize_t write_pipe(int descriptor, const char *text, size_t length) {
    sigset_t broken, before;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    ssize_t n = write(descriptor, text, length);
    int error = errno;
    if (n < 0 && error == EPIPE)
        sigtimedwait(&broken, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return n;
}

/* Waits for a slow reader until the run is asked to stop. */
static ssize_t write_waiting(struct metrics_file *metrics, const char *text, size_t length) {
    for (;;) {
        ssize_t n = write_pipe(metrics->descriptor, text, length);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            return n;
        if (stop_requested()) {
            if (!metrics->is_given_up)
                log_warning("nobody reads %s any more: the last records are lost", metrics->path);
            metrics->is_given_up = true;
            return (ssize_t)length;
        }
        poll(&(struct pollfd){.fd = metrics->descriptor, .events = POLLOUT}, 1, WAIT_MILLISECONDS);
    }
}

static int write_record(struct metrics_file *metrics, const char *text, int length) {
    ssize_t n;
    if (!metrics->is_regular)
        n = write_waiting(metrics, text, (size_t)length);
    else
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

/* Appends ,"NAME":VALUE to `text`; JSON has no number that is not finite, so it becomes null. */
static void add_number(char *text, const char *name, double value) {
    size_t used = strlen(text);
    int n = snprintf(text + used, RECORD_BYTES - used, ",\"%s\":", name);
    if (isfinite(value))
        snprintf(text + used + n, RECORD_BYTES - used - (size_t)n, "%.17g", value);
    else
        snprintf(text + used + n, RECORD_BYTES - used - (size_t)n, "null");
}

static int end_record(struct metrics_file *metrics, char *text) {
    strcat(text, "}\n");
    return write_record(metrics, text, (int)strlen(text));
}

int metrics_write_train(struct metrics_file *metrics, const struct train_record *r) {
    char text[RECORD_BYTES];
    snprintf(text, sizeof text, "%s%lld", record_start, (long long)r->iteration);
    add_number(text, r->has_rewards ? "loss" : "lm_loss", r->lm_loss);
    if (r->has_rewards) {
        add_number(text, "rewards_chosen", r->rewards.chosen);
        add_number(text, "rewards_rejected", r->rewards.rejected);
        add_number(text, "rewards_margin", r->rewards.margin);
        add_number(text, "rewards_accuracy", r->rewards.accuracy);
    }
    add_number(text, "lr", r->lr);
    add_number(text, "grad_norm", r->grad_norm);
    add_number(text, "tokens_per_s", r->tokens_per_s);
    add_number(text, "model_tflops", r->model_tflops);
    add_number(text, "seconds", r->seconds);
    return end_record(metrics, text);
}

int metrics_write_validation(struct metrics_file *metrics, const struct validation_record *r) {
    char text[RECORD_BYTES];
    snprintf(text, sizeof text, "%s%lld", record_start, (long long)r->iteration);
    add_number(text, "valid_loss", r->valid_loss);
    add_number(text, "seconds", r->seconds);
    return end_record(metrics, text);
}

int metrics_write_gap(struct metrics_file *metrics, int64_t iteration, double gap) {
    char text[RECORD_BYTES];
    snprintf(text, sizeof text, "%s%lld", record_start, (long long)iteration);
    add_number(text, "serving_gap", gap);
    return end_record(metrics, text);
}
