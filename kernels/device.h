/* Devices, streams, events and memory: what a backend is, apart from its arithmetic.
 *
 * A device is one processor with its own memory (for the CPU: a number of threads of this process). A stream is an
 * order of work on a device; it belongs to one thread at a time. Operations and copies may return before they ran:
 * whoever needs the result on the host waits for the stream, or for an event recorded after them. Work of two streams
 * runs in any order, or at once, except where one waits for an event of the other; so each has a workspace of its own.
 *
 * Work that fails after its call returned breaks the device for good. From then on every call that queues, waits, opens
 * or allocates returns the first failure, with its text. Closing and freeing still work.
 *
 * Above kernels/ nobody dereferences device memory; on the CPU it happens to be host memory, and only
 * device_host_reads may tell. Host memory that a copy reads or writes belongs to that copy alone until the host has
 * waited for it. */
#ifndef CAMBIUM_KERNELS_DEVICE_H
#define CAMBIUM_KERNELS_DEVICE_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct stream;
struct event;
struct recording;

/* The name of a backend that is built, the preferred first: "cpu", "late" (the CPU's operations run as late as they
 * may, on memory that the host cannot read; for tests); NULL after the last. */
const char *device_name_at(int number);

/* Opens a device of the backend `name`; NULL: the first that this machine has. `number`: which of the host's devices, a
 * rank's place on its host (struct rank_site); the CPU is one device, which all numbers share. `threads` workers for
 * the CPU, 0 = all cores that this thread may use; fewer where that number is not sensible, or OpenMP does not give
 * them. "cpu:v3": the narrower operations of ops_for_level. STATUS_UNSUPPORTED names the backends that are built. */
int device_open(const char *name, int number, int threads, struct device **device);
enum { DEVICE_FIRST }; /* the number of a program that is alone on its host */
/* Closes an open device or a sketch. */
void device_close(struct device *device);
int device_number(const struct device *device);

/* The arithmetic of a device depends on this: bytes of workspaces and packed weights, and what products support. */
struct device_facts {
    const char *kind; /* device_open's name; of an open device, the device's */
    int threads;      /* of the CPU; 0: all cores that this thread may use */
};
struct device_facts device_facts(const struct device *device);
/* A device for that arithmetic alone, which takes neither memory nor threads: calls that need more fail with
 * STATUS_UNSUPPORTED. A CPU can be sketched where its instructions run. Errors as device_open. */
int device_sketch(const struct device_facts *facts, struct device **device);
/* One line for people: "cpu, 2 threads, avx512_bf16". */
const char *device_description(const struct device *device);
int device_threads(const struct device *device);
/* Whether device memory is plain memory of the host once the stream has run: what goes through the host (collectives
 * without a library of the device's) needs no copies then. */
bool device_host_reads(const struct device *device);
/* The failure that broke the device, with its text; STATUS_OK where none did. */
int device_status(const struct device *device);

/* Bytes of the device's own memory; 0: its memory is the host's, so that both together must fit there. */
size_t device_memory(const struct device *device);
/* Memory of the device, aligned to 64 bytes (large blocks on huge pages where the system has them); its contents are
 * undefined. STATUS_MEMORY with the size. */
int device_alloc(struct device *device, size_t bytes, void **memory);
/* The same, all zero; on the CPU the system's pages are, and untouched ones take no memory. */
int device_alloc_zeroed(struct device *device, size_t bytes, void **memory);
/* Nothing that will still run uses it. */
void device_free(struct device *device, void *memory);
/* Zeroed memory of the host that copies from and to the device are fastest with (pinned, where the backend has that).
 * STATUS_MEMORY with the size. */
int device_host_alloc(struct device *device, size_t bytes, void **memory);
void device_host_free(struct device *device, void *memory);

/* The machine's ceilings, for benchmarks and the trainer's log: FLOP/s of the plain products of a GPT-2 block in fp32
 * or bf16 (forward, input gradient, weight gradient; the best of several, summed), and bytes/s of a streaming read.
 * Each takes about `max_seconds` and memory that it gives back. */
int device_measure_gemm(struct device *device, enum dtype dtype, double max_seconds, double *flops);
int device_measure_read(struct device *device, double max_seconds, double *bytes_per_s);

int stream_open(struct device *device, struct stream **stream);
/* Work that nobody has waited for, host or stream, may never run. Nobody waits for the stream's events later. */
void stream_close(struct stream *stream);
/* Returns when everything queued has run. */
int stream_wait(struct stream *stream);
struct device *stream_device(const struct stream *stream);

enum copy_kind { COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE };

/* `rows` runs of `bytes` bytes each; strides are bytes from one run to the next. */
struct copy_call {
    enum copy_kind kind;
    void *to;
    const void *from;
    size_t rows, bytes, to_stride, from_stride;
};
int stream_copy_rows(struct stream *stream, const struct copy_call *copy);
int stream_copy_to_device(struct stream *stream, void *device_memory, const void *host, size_t bytes);
int stream_copy_to_host(struct stream *stream, void *host, const void *device_memory, size_t bytes);
int stream_copy(struct stream *stream, void *to, const void *from, size_t bytes);
int stream_zero(struct stream *stream, void *memory, size_t bytes);

/* A mark in a stream. event_wait returns when what was queued before the last event_record has run (at once where there
 * was none). */
int event_open(struct device *device, struct event **event);
void event_close(struct event *event);
int event_record(struct event *event, struct stream *stream);
int event_wait(struct event *event);
/* Later work of the stream runs after the work before the event's last event_record, on whichever stream that was. An
 * event that was never recorded is not waited for. The host does not wait. */
int stream_wait_event(struct stream *stream, struct event *event);
/* Seconds from when the streams ran past one mark to when they ran past the other; both were recorded, and waited for.
 */
int event_seconds(const struct event *from, const struct event *to, double *seconds);

/* Between begin and end, operations and copies queued on the stream are recorded instead of run. Nobody waits for the
 * stream meanwhile, and events are neither recorded nor waited for there. A replay queues all of them, with the same
 * pointers and the contents that those have when it runs. The caller closes the recording when its replays have run.
 * STATUS_UNSUPPORTED where the backend records nothing, as the CPU; STATUS_INVALID for a begin or a replay between
 * begin and end, or an end without begin. */
int stream_record_begin(struct stream *stream);
int stream_record_end(struct stream *stream, struct recording **recording);
int stream_replay(struct stream *stream, const struct recording *recording);
void recording_close(struct recording *recording);

#endif
