/* The backends by name, and the public functions that go through their tables. */
#include "backend.h"

#include <stdio.h>
#include <string.h>

static const struct backend *const backends[] = {&backend_cpu, &backend_late};
enum { BACKENDS = sizeof backends / sizeof *backends };

const char *device_name_at(int number) {
    return number < BACKENDS ? backends[number]->name : NULL;
}

static int fail_unknown(const char *name) {
    char built[128] = "";
    for (int i = 0, used = 0; i < BACKENDS && used < (int)sizeof built; i++)
        used += snprintf(built + used, sizeof built - (size_t)used, "%s%s", i ? ", " : "", backends[i]->name);
    return status_fail(STATUS_UNSUPPORTED, "device '%s' is not built in (built: %s)", name, built);
}

static int choose_level(struct device *device, const char *name, const char *level) {
    const struct ops *ops = ops_for_level(device, level);
    if (!ops)
        return status_fail(STATUS_UNSUPPORTED, "%s: this machine has no %s", name, level);
    device->ops = ops;
    return STATUS_OK;
}

int device_open(const char *name, int index, int threads, struct device **device) {
    size_t length = name ? strcspn(name, ":") : 0;
    *device = NULL;
    for (int i = 0; i < BACKENDS; i++) {
        if (name && (strlen(backends[i]->name) != length || strncmp(backends[i]->name, name, length)))
            continue;
        int status = backends[i]->open(index, threads, device);
        if (!status && name && name[length])
            status = choose_level(*device, name, name + length + 1);
        if (status) {
            device_close(*device);
            *device = NULL;
        }
        return status;
    }
    return fail_unknown(name);
}

void device_close(struct device *device) {
    if (device)
        device->backend->close(device);
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

int device_alloc(struct device *device, size_t bytes, void **memory) {
    return device->backend->alloc(device, bytes, false, memory);
}

int device_alloc_zeroed(struct device *device, size_t bytes, void **memory) {
    return device->backend->alloc(device, bytes, true, memory);
}

void device_free(struct device *device, void *memory) {
    if (memory)
        device->backend->free(device, memory);
}

int device_host_alloc(struct device *device, size_t bytes, void **memory) {
    return device->backend->host_alloc(device, bytes, memory);
}

void device_host_free(struct device *device, void *memory) {
    if (memory)
        device->backend->host_free(device, memory);
}

int device_measure_gemm(struct device *device, enum dtype dtype, double max_seconds, double *flops) {
    return device->backend->measure_gemm(device, dtype, max_seconds, flops);
}

int device_measure_read(struct device *device, double max_seconds, double *bytes_per_s) {
    return device->backend->measure_read(device, max_seconds, bytes_per_s);
}

int stream_open(struct device *device, struct stream **stream) {
    return device->backend->stream_open(device, stream);
}

void stream_close(struct stream *stream) {
    if (stream)
        stream->device->backend->stream_close(stream);
}

int stream_wait(struct stream *stream) {
    return stream->device->backend->stream_wait(stream);
}

struct device *stream_device(const struct stream *stream) {
    return stream->device;
}

int stream_copy_rows(struct stream *stream, const struct copy_call *copy) {
    return copy->rows && copy->bytes ? stream->device->backend->copy(stream, copy) : STATUS_OK;
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
    return bytes ? stream->device->backend->zero(stream, memory, bytes) : STATUS_OK;
}

int event_open(struct device *device, struct event **event) {
    return device->backend->event_open(device, event);
}

void event_close(struct event *event) {
    if (event)
        event->device->backend->event_close(event);
}

int event_record(struct event *event, struct stream *stream) {
    return event->device->backend->event_record(event, stream);
}

int event_wait(struct event *event) {
    return event->device->backend->event_wait(event);
}

int event_seconds(const struct event *from, const struct event *to, double *seconds) {
    return from->device->backend->event_seconds(from, to, seconds);
}
