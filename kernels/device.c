/* The backends by name, and the public functions that go through their tables. */
#include "backend.h"

#include <math.h>

static const struct backend *const backends[] = {&backend_cpu, &backend_cuda};
enum { BACKENDS = sizeof backends / sizeof *backends };
enum { DIGITS = 3 }; /* of a device's number, at most: no host has more devices */

const char *device_name_at(int number) {
    const struct backend *backend = number == 0 ? &backend_cpu : number == 1 ? backend_for_tests : NULL;
    return backend ? backend->name : NULL;
}

/* Names the backends that users can choose from: not the one for tests. */
static int fail_unknown(const char *name) {
    char built[128] = "";
    for (int i = 0, used = 0; i < BACKENDS && used < (int)sizeof built; i++)
        if (!backends[i]->how_to_build)
            used += snprintf(built + used, sizeof built - (size_t)used, "%s%s", i ? ", " : "", backends[i]->name);
    return status_fail(STATUS_UNSUPPORTED, "device '%s' is not built in (built: %s)", name, built);
}

/* ---- names ---- */

static const struct backend *find_backend(const char *name) {
    size_t length = name ? strcspn(name, ":") : 0;
    for (int i = 0; i <= BACKENDS; i++) {
        const struct backend *backend = i < BACKENDS ? backends[i] : backend_for_tests;
        if (backend && (!name || (strlen(backend->name) == length && !strncmp(backend->name, name, length))))
            return backend;
    }
    return NULL;
}

/* The same, but fails where this build lacks it. */
static int find_built(const char *name, const struct backend **backend) {
    *backend = find_backend(name);
    if (!*backend)
        return fail_unknown(name);
    if ((*backend)->how_to_build)
        return status_fail(STATUS_UNSUPPORTED, "--device %s: %s", name, (*backend)->how_to_build);
    return STATUS_OK;
}

/* The text after the colon of a name, or NULL. */
static const char *suffix_of(const char *name) {
    const char *colon = name ? strchr(name, ':') : NULL;
    return colon ? colon + 1 : NULL;
}

static bool is_number(const char *text) {
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits <= DIGITS && !text[digits];
}

static bool is_architecture(const char *text) {
    return !strncmp(text, "sm_", 3) && is_number(text + 3);
}

int device_check_name(const char *name) {
    const struct backend *backend = find_backend(name);
    const char *suffix = suffix_of(name);
    if (!backend || !backend->has_numbers || !suffix || is_number(suffix) || is_architecture(suffix))
        return STATUS_OK;
    return status_fail(STATUS_USAGE, "'%s' is not a device: expected %s, or %s: and a number from 0 to 999", name,
                       backend->name, backend->name);
}

/* The number in the name of a device, if it has one, goes into *number. */
static int read_number(const struct backend *backend, const char *name, int *number) {
    int status = device_check_name(name);
    const char *suffix = suffix_of(name);
    if (status || !suffix || !backend->has_numbers)
        return status;
    if (!is_number(suffix))
        return status_fail(STATUS_UNSUPPORTED, "%s is a kind of device to plan for, and no device of this machine",
                           name);
    *number = atoi(suffix);
    return STATUS_OK;
}

static int choose_level(struct device *device, const char *name) {
    const char *level = device->backend->has_numbers ? NULL : suffix_of(name);
    const struct ops *ops = level ? ops_for_level(device, level) : device->ops;
    if (!ops)
        return status_fail(STATUS_UNSUPPORTED, "%s: this machine has no %s", name, level);
    device->ops = ops;
    char *last = level ? strrchr(device->description, ' ') : NULL;
    if (last) /* the instructions of the whole processor */
        snprintf(last + 1, sizeof device->description - (size_t)(last + 1 - device->description), "%s", level);
    if (!*device->kind)
        snprintf(device->kind, sizeof device->kind, "%s", name);
    return STATUS_OK;
}

/* ---- opening ---- */

/* Completes a device after a backend opened or sketched it with `status`; closes it after a failure. */
static int finish(const char *name, int status, struct device **device) {
    THEN(status, choose_level(*device, name ? name : (*device)->backend->name));
    if (status) {
        device_close(*device);
        *device = NULL;
        return status;
    }
    (*device)->filled = *(*device)->ops;
    if (ops_fill(&(*device)->filled))
        (*device)->ops = &(*device)->filled;
    return STATUS_OK;
}

/* Finds the backend of a name, and the number in it. */
static int find_device(const char *name, const struct backend **backend, int *number) {
    int status = find_built(name, backend);
    return status ? status : read_number(*backend, name, number);
}

int device_find(const char *name) {
    const struct backend *backend;
    int number = DEVICE_FIRST, status = find_device(name, &backend, &number);
    return status || !backend->find ? status : backend->find(number);
}

int device_count(const char *name) {
    const struct backend *backend = find_backend(name);
    return backend && backend->count ? backend->count() : 0;
}

int device_open(const char *name, int number, int threads, struct device **device) {
    const struct backend *backend;
    *device = NULL;
    TRY(find_device(name, &backend, &number));
    int status = finish(name, backend->open(number, threads, device), device);
    if (!status)
        (*device)->number = number;
    return status;
}

int device_sketch(const struct device_facts *facts, struct device **device) {
    const struct backend *backend;
    *device = NULL;
    TRY(find_built(facts->kind, &backend));
    TRY(device_check_name(facts->kind));
    int status = finish(facts->kind, backend->sketch(facts, device), device);
    if (!status)
        device_set_failure(*device, status_fail(STATUS_UNSUPPORTED, "a sketched device cannot run work"));
    return status;
}

void device_close(struct device *device) {
    if (!device)
        return;
    device->backend->close(device);
}

struct device_facts device_facts(const struct device *device) {
    return (struct device_facts){.kind = device->kind, .threads = device->threads};
}

int device_number(const struct device *device) {
    return device->number;
}

int device_card(const struct device *device) {
    return device->backend->reduce ? device->number : -1;
}

const char *device_description(const struct device *device) {
    return device->description;
}

int device_threads(const struct device *device) {
    return device->threads;
}

bool device_host_reads(const struct device *device) {
    return device->backend->host_reads_memory;
}

const struct ops *ops_for(const struct device *device) {
    return device->ops;
}

const struct ops *ops_for_level(const struct device *device, const char *level) {
    return device->backend->ops_for_level(device, level);
}

size_t device_memory(const struct device *device) {
    return device->backend->memory ? device->backend->memory(device) : 0;
}

int device_free_memory(struct device *device, size_t *bytes) {
    *bytes = 0;
    return device->backend->memory ? device->backend->free_memory(device, bytes) : STATUS_OK;
}

bool device_uses_host_memory(const char *name) {
    const struct backend *backend = find_backend(name);
    return !backend || !backend->memory;
}

int device_status(const struct device *device) {
    int failure = atomic_load(&device->failure);
    return failure ? status_fail(failure, "%s", device->failure_text) : STATUS_OK;
}

void device_set_failure(struct device *device, int status) {
    if (atomic_load(&device->failure))
        return;
    snprintf(device->failure_text, sizeof device->failure_text, "%s", status_text());
    atomic_store(&device->failure, status);
}

int device_alloc(struct device *device, size_t bytes, void **memory) {
    int status = device_status(device);
    return status ? status : device->backend->alloc(device, bytes, false, memory);
}

int device_alloc_zeroed(struct device *device, size_t bytes, void **memory) {
    int status = device_status(device);
    return status ? status : device->backend->alloc(device, bytes, true, memory);
}

void device_free(struct device *device, void *memory) {
    if (memory)
        device->backend->free(device, memory);
}

int device_host_alloc(struct device *device, size_t bytes, void **memory) {
    int status = device_status(device);
    return status ? status : device->backend->host_alloc(device, bytes, memory);
}

void device_host_free(struct device *device, void *memory) {
    if (memory)
        device->backend->host_free(device, memory);
}

int device_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops) {
    int status = device_status(device);
    return status ? status : device->backend->measure_gemm(device, dtype, is_tf32, max_seconds, flops);
}

int device_time_read(struct device *device, size_t bytes, void **memory, double *seconds) {
    int status = device_status(device);
    return status ? status : device->backend->time_read(device, bytes, memory, seconds);
}

int device_measure_read(struct device *device, double max_seconds, double *bytes_per_s) {
    static const size_t bytes = 256 << 20; /* more than any cache holds */
    double end = clock_seconds() + max_seconds, best = INFINITY, seconds;
    void *memory = NULL;
    int status = STATUS_OK;
    for (int round = 0; (round < 2 || clock_seconds() < end) && !status; round++) {
        status = device_time_read(device, bytes, &memory, &seconds);
        best = status ? best : fmin(best, seconds);
    }
    device_free(device, memory);
    *bytes_per_s = status ? 0 : (double)bytes / best;
    return status;
}

int stream_open(struct device *device, struct stream **stream) {
    int status = device_status(device);
    return status ? status : device->backend->stream_open(device, stream);
}

void stream_close(struct stream *stream) {
    if (stream)
        stream->device->backend->stream_close(stream);
}

int stream_wait(struct stream *stream) {
    int status = device_status(stream->device);
    return status ? status : stream->device->backend->stream_wait(stream);
}

struct device *stream_device(const struct stream *stream) {
    return stream->device;
}

int stream_copy_rows(struct stream *stream, const struct copy_call *copy) {
    int status = device_status(stream->device);
    return status || !copy->rows || !copy->bytes ? status : stream->device->backend->copy(stream, copy);
}

static int copy_run(struct stream *stream, enum copy_kind kind, void *to, const void *from, size_t bytes) {
    return stream_copy_rows(stream,
                            &(const struct copy_call){.kind = kind, .to = to, .from = from, .rows = 1, .bytes = bytes});
}

int stream_copy_to_device(struct stream *stream, void *device_memory, const void *host, size_t bytes) {
    return copy_run(stream, COPY_TO_DEVICE, device_memory, host, bytes);
}

int stream_copy_to_host(struct stream *stream, void *host, const void *device_memory, size_t bytes) {
    return copy_run(stream, COPY_TO_HOST, host, device_memory, bytes);
}

int stream_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    return copy_run(stream, COPY_ON_DEVICE, to, from, bytes);
}

int stream_zero(struct stream *stream, void *memory, size_t bytes) {
    int status = device_status(stream->device);
    return status || !bytes ? status : stream->device->backend->zero(stream, memory, bytes);
}

int stream_reduce(struct stream *stream, const struct reduce_call *call) {
    const struct backend *backend = stream->device->backend;
    int status = device_status(stream->device);
    THEN_IF(status, !backend->reduce, status_fail(STATUS_UNSUPPORTED, "device '%s' has no reductions", backend->name));
    return status || call->count == 0 ? status : backend->reduce(stream, call);
}

int event_open(struct device *device, struct event **event) {
    int status = device_status(device);
    return status ? status : device->backend->event_open(device, event);
}

void event_close(struct event *event) {
    if (event)
        event->device->backend->event_close(event);
}

int event_record(struct event *event, struct stream *stream) {
    int status = device_status(event->device);
    return status ? status : event->device->backend->event_record(event, stream);
}

int event_wait(struct event *event) {
    int status = device_status(event->device);
    return status ? status : event->device->backend->event_wait(event);
}

int event_seconds(const struct event *from, const struct event *to, double *seconds) {
    return from->device->backend->event_seconds(from, to, seconds);
}

int stream_wait_event(struct stream *stream, struct event *event) {
    int status = device_status(stream->device);
    return status ? status : stream->device->backend->stream_wait_event(stream, event);
}

bool device_records(const struct device *device) {
    return device->backend->record_begin != NULL;
}

static int check_records(const struct device *device) {
    int status = device_status(device);
    return status || device_records(device)
               ? status
               : status_fail(STATUS_UNSUPPORTED, "device '%s' cannot record work", device->backend->name);
}

int stream_record_begin(struct stream *stream) {
    int status = check_records(stream->device);
    return status ? status : stream->device->backend->record_begin(stream);
}

int stream_record_end(struct stream *stream, struct recording **recording) {
    int status = check_records(stream->device);
    *recording = NULL;
    return status ? status : stream->device->backend->record_end(stream, recording);
}

int stream_replay(struct stream *stream, const struct recording *recording) {
    int status = device_status(stream->device);
    return status ? status : stream->device->backend->replay(stream, recording);
}

void recording_close(struct recording *recording) {
    if (recording)
        recording->device->backend->recording_close(recording);
}
