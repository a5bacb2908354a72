/* A backend that tests the callers of device.h and ops.h. It runs the CPU's operations, and promises no more than these
 * headers do.
 *
 * Work is queued, and runs on a thread of the device while the host waits; stream.c decides the order. New device
 * memory is poisoned, and is closed to the whole process except while work runs. Host memory that a queued copy will
 * fill is poisoned, too. A host that reads device memory crashes. A host that reads a result before it has waited, or
 * refills the source of a copy, gets wrong numbers every time. */
#include "late/late-internal.h"

#include <stdlib.h>

static const struct backend backend_late;

static int late_host_alloc(struct device *device, size_t bytes, void **memory) {
    return device_host_alloc(late_cpu(device), bytes, memory);
}

static void late_host_free(struct device *device, void *memory) {
    device_host_free(late_cpu(device), memory);
}

/* ---- copies ---- */

static int run_copy(const struct exec *exec, const void *arguments) {
    return stream_copy_rows(exec->stream, arguments);
}

static int late_copy(struct stream *stream, const struct copy_call *copy) {
    const void *const pointers[] = {copy->kind == COPY_TO_HOST ? NULL : copy->to,
                                    copy->kind == COPY_TO_DEVICE ? NULL : copy->from};
    return late_queue(&(const struct exec){.stream = stream}, &(const struct late_work){.name = "copy",
                                                                                        .kind = LATE_COPY,
                                                                                        .run = run_copy,
                                                                                        .arguments = copy,
                                                                                        .bytes = sizeof *copy,
                                                                                        .pointers = pointers,
                                                                                        .pointer_count = 2});
}

struct zero {
    void *memory;
    size_t bytes;
};

static int run_zero(const struct exec *exec, const void *arguments) {
    const struct zero *zero = arguments;
    return stream_zero(exec->stream, zero->memory, zero->bytes);
}

static int late_zero(struct stream *stream, void *memory, size_t bytes) {
    const void *const pointer = memory;
    struct zero zero = {.memory = memory, .bytes = bytes};
    return late_queue(&(const struct exec){.stream = stream}, &(const struct late_work){.name = "zero",
                                                                                        .run = run_zero,
                                                                                        .arguments = &zero,
                                                                                        .bytes = sizeof zero,
                                                                                        .pointers = &pointer,
                                                                                        .pointer_count = 1});
}

/* ---- the device ---- */

/* Makes a late device over a CPU's device, which it then owns. */
static int open_over(struct device *cpu, struct device **out) {
    struct late_device *own = calloc(1, sizeof *own);
    if (!own) {
        device_close(cpu);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    own->cpu = cpu;
    pthread_mutex_init(&own->lock, NULL);
    pthread_cond_init(&own->changed, NULL);
    own->device = (struct device){.backend = &backend_late,
                                  .ops = &late_ops,
                                  .threads = cpu->threads,
                                  .is_batch_invariant = cpu->is_batch_invariant};
    snprintf(own->device.description, sizeof own->device.description, "late, over %.80s", cpu->description);
    *out = &own->device;
    return STATUS_OK;
}

static int late_sketch(const struct device_facts *facts, struct device **out) {
    struct device_facts below = {.kind = "cpu", .threads = facts->threads};
    struct device *cpu;
    int status = device_sketch(&below, &cpu);
    return status ? status : open_over(cpu, out);
}

static int late_open(int number, int threads, struct device **out) {
    struct device *cpu;
    int status = device_open("cpu", number, threads, &cpu);
    if (!status)
        status = open_over(cpu, out);
    return status ? status : late_start_thread(late(*out));
}

static void late_close(struct device *device) {
    struct late_device *own = late(device);
    late_end_thread(own);
    device_close(own->cpu);
    pthread_cond_destroy(&own->changed);
    pthread_mutex_destroy(&own->lock);
    free(own);
}

/* late has no levels: only the CPU's tests need narrower tables. */
static const struct ops *late_ops_for_level(const struct device *device, const char *level) {
    (void)device;
    (void)level;
    return NULL;
}

static int late_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops) {
    return device_measure_gemm(late_cpu(device), dtype, is_tf32, max_seconds, flops);
}

/* Reads as much memory of the CPU: the host cannot read its own. */
static int late_time_read(struct device *device, size_t bytes, void **memory, double *seconds) {
    void *readable = NULL;
    int status = *memory ? STATUS_OK : late_alloc(device, bytes, false, memory);
    THEN(status, device_time_read(late_cpu(device), bytes, &readable, seconds));
    device_free(late_cpu(device), readable);
    return status;
}

struct late_counts late_counts(const struct device *device) {
    struct late_device *own = late(device);
    pthread_mutex_lock(&own->lock);
    struct late_counts counts = own->counts;
    pthread_mutex_unlock(&own->lock);
    return counts;
}

static const struct backend backend_late = {
    .name = "late",
    .open = late_open,
    .sketch = late_sketch,
    .close = late_close,
    .ops_for_level = late_ops_for_level,
    .alloc = late_alloc,
    .free = late_free,
    .host_alloc = late_host_alloc,
    .host_free = late_host_free,
    .measure_gemm = late_measure_gemm,
    .time_read = late_time_read,
    .stream_open = late_stream_open,
    .stream_close = late_stream_close,
    .stream_wait = late_stream_wait,
    .copy = late_copy,
    .zero = late_zero,
    .event_open = late_event_open,
    .event_close = late_event_close,
    .event_record = late_event_record,
    .event_wait = late_event_wait,
    .event_seconds = late_event_seconds,
    .stream_wait_event = late_stream_wait_event,
    .record_begin = late_record_begin,
    .record_end = late_record_end,
    .replay = late_replay,
    .recording_close = late_recording_close,
};
const struct backend *const backend_for_tests = &backend_late;
