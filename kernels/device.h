/* Devices, streams, events and memory: a backend apart from its arithmetic.
 *
 * A device is one processor with its own memory; for the CPU, it is a number of threads of this process. A stream is a
 * queue of work on a device, run in order. One thread uses a stream at a time. Operations and copies may return before
 * they run: a caller that needs the result on the host waits for the stream, or for an event recorded after them. Work
 * of two streams runs in any order, or at once, unless one waits for an event of the other. So each stream needs its
 * own workspace.
 *
 * Work that fails after its call returned breaks the device for good. From then on every call that queues, waits, opens
 * or allocates returns the first failure, with its text. Closing and freeing still work.
 *
 * No code above kernels/ dereferences device memory, even on the CPU, where it is host memory: ask device_host_reads
 * first. Host memory that a copy reads or writes belongs to that copy until the host has waited for it.
 *
 * Functions that return int return STATUS_OK or a negative status with its text (base/status.h). */
#pragma once

#include "base/base.h"

struct device;
struct stream;
struct event;
struct recording;

/* Returns the name of backend `number` of those that need no more than the host, the preferred one first; NULL after
 * the last. "cpu" is the CPU. A build with tests has "late" (tests/late/): it runs the CPU's operations as late as it
 * may, on memory that the host cannot read. */
const char *device_name_at(int number);
/* Returns STATUS_USAGE if no device of any machine can have this name, such as "cuda:x" or "cuda:-1". Names of unknown
 * backends pass; device_open refuses them. */
int device_check_name(const char *name);

/* Opens a device of the backend `name`, or the CPU if `name` is NULL. "cuda:1" is the NVIDIA GPU of that number, and
 * "cpu:v3" selects the narrower operations of ops_for_level. If the name has no number, `number` selects one of the
 * host's devices. A rank passes its place on its host (struct rank_site). The CPU is one device, which all numbers
 * share. `threads` is the number of CPU threads, 0 for all cores that this thread may use. The device has fewer if
 * OpenMP gives fewer, or if the number is not sensible. The caller closes *device. STATUS_UNSUPPORTED if there is no
 * such backend, with the names of those that are built, or no such device, with the reason; STATUS_MEMORY. */
int device_open(const char *name, int number, int threads, struct device **device);
enum { DEVICE_FIRST }; /* the number for a program that is the only one on its host */
/* Fails unless this machine has the device, without opening it: a command asks before it reads a model. Errors as
 * device_open. A name without a number asks for any device of its backend. */
int device_find(const char *name);
/* Returns how many devices of a backend this machine has, and 0 if one device serves all numbers (the CPU), or if the
 * backend cannot say. */
int device_count(const char *name);
/* Closes an open device or a sketch; NULL is allowed. Its streams, events and memory are closed and freed before. */
void device_close(struct device *device);
/* Returns the number that the device was opened with. */
int device_number(const struct device *device);
/* Returns the number of the GPU, if all devices that this process opens on it share memory, streams and events, and
 * stream_reduce runs there; otherwise -1. */
int device_card(const struct device *device);

/* The facts that determine a device's arithmetic: bytes of workspaces and packed weights, and supported products. */
struct device_facts {
    const char *kind;  /* the name for device_open; the device owns it if device_facts returned it */
    int threads;       /* of the CPU; 0: all cores that this thread may use */
    bool is_elsewhere; /* of a sketch: it is of another machine, whose CPU has every product */
};
/* Returns the facts of an open device or of a sketch. They are valid while the device exists. */
struct device_facts device_facts(const struct device *device);
/* Makes a device only for that arithmetic, without memory or threads: calls that need more fail with
 * STATUS_UNSUPPORTED. A CPU can be sketched only where its instructions run. A GPU needs no driver, and "cuda:sm_90" is
 * one of that architecture. The caller closes *device. Errors as device_open. */
int device_sketch(const struct device_facts *facts, struct device **device);
/* Returns one line for people, such as "cpu, 2 threads, avx512_bf16". The device owns it. */
const char *device_description(const struct device *device);
/* Returns the number of CPU threads that operations use. */
int device_threads(const struct device *device);
/* Returns true if the host may read device memory once the stream has run. Data that go through the host then need no
 * copies, for example in collectives without a library of the device's. */
bool device_host_reads(const struct device *device);
/* Returns the failure that broke the device, with its text, or STATUS_OK if it works. */
int device_status(const struct device *device);

/* Returns the bytes of the device's own memory. 0 means that it uses the host's memory, so that both must fit there. */
size_t device_memory(const struct device *device);
/* Stores how many of these bytes no one uses, other processes included. 0: the device uses the host's memory. The
 * device's failure. */
int device_free_memory(struct device *device, size_t *bytes);
/* Returns true if devices of this name use the host's memory. */
bool device_uses_host_memory(const char *name);
/* Allocates device memory, aligned to 64 bytes, with undefined contents. Large blocks use huge pages where the system
 * has them. The caller frees it with device_free. STATUS_MEMORY with the size. */
int device_alloc(struct device *device, size_t bytes, void **memory);
/* Like device_alloc, but all bytes are zero. On the CPU, untouched pages take no memory. */
int device_alloc_zeroed(struct device *device, size_t bytes, void **memory);
/* Frees memory that no queued work uses. NULL is allowed. */
void device_free(struct device *device, void *memory);
/* Allocates zeroed host memory that copies from and to the device are fastest with; it is pinned if the backend can do
 * that. The caller frees it with device_host_free. STATUS_MEMORY with the size. */
int device_host_alloc(struct device *device, size_t bytes, void **memory);
/* Frees host memory that no queued copy uses. NULL is allowed. */
void device_host_free(struct device *device, void *memory);

/* ---- ceilings of the machine, for benchmarks and the trainer's log ---- */

/* Measures the FLOP/s of the plain products of a GPT-2 block: forward, input gradient and weight gradient, summed, each
 * the best of several runs. They are in fp32, in TF32 or in bf16. It takes about `max_seconds`, and frees the memory
 * that it uses. STATUS_UNSUPPORTED, STATUS_MEMORY. */
int device_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops);
/* Measures the seconds of one streaming read of device memory: of *memory, which has `bytes` bytes, or if it is NULL of
 * fresh memory, which the caller frees. A GPU copies one half to the other instead. STATUS_MEMORY. */
int device_time_read(struct device *device, size_t bytes, void **memory, double *seconds);
/* Measures the bytes/s of a streaming read of 256 MiB, the best of at least two. It takes about `max_seconds`, and
 * frees the memory that it uses. STATUS_MEMORY. */
int device_measure_read(struct device *device, double max_seconds, double *bytes_per_s);

/* ---- streams ---- */

/* Opens a stream of the device, which must outlive it. The caller closes it. STATUS_MEMORY, or the device's failure. */
int stream_open(struct device *device, struct stream **stream);
/* Closes the stream; NULL is allowed. Queued work that neither the host nor a stream has waited for may never run. No
 * one may wait for the stream's events afterwards. */
void stream_close(struct stream *stream);
/* Returns when all queued work has run. The device's failure. */
int stream_wait(struct stream *stream);
/* Returns the device that the stream was opened on. */
struct device *stream_device(const struct stream *stream);

/* ---- copies: they may return before they run; STATUS_MEMORY, or the device's failure ---- */

enum copy_kind { COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE };

/* A copy of `rows` runs of `bytes` bytes each. A stride is the number of bytes from one run to the next. */
struct copy_call {
    enum copy_kind kind;
    void *to;
    const void *from;
    size_t rows, bytes, to_stride, from_stride;
};
/* Queues a copy of several runs. */
int stream_copy_rows(struct stream *stream, const struct copy_call *copy);
/* Queues a copy of `bytes` bytes from the host to the device. */
int stream_copy_to_device(struct stream *stream, void *device_memory, const void *host, size_t bytes);
/* Queues a copy of `bytes` bytes from the device to the host. */
int stream_copy_to_host(struct stream *stream, void *host, const void *device_memory, size_t bytes);
/* Queues a copy of `bytes` bytes within device memory; the two places must not overlap. */
int stream_copy(struct stream *stream, void *to, const void *from, size_t bytes);
/* Queues zeroing of `bytes` bytes of device memory. */
int stream_zero(struct stream *stream, void *memory, size_t bytes);

/* ---- sums over arrays, of several ranks on one GPU ---- */

enum { REDUCE_MOST = 32 };
/* Element i is from[0][i] + from[1][i] + ... in this order, or the largest; a NaN wins. Elements of bf16 are added in
 * fp32 and rounded once. With part 0, every target gets all elements; otherwise to[t] gets the elements from
 * t * part on, as to[t][0 .. part). A target may be a source, or its part of the source. */
struct reduce_call {
    const void *from[REDUCE_MOST]; /* [sources] of [count] */
    void *to[REDUCE_MOST];         /* [targets] */
    int sources, targets;
    int64_t count, part;
    enum dtype dtype; /* fp32, bf16, fp64 or int64 */
    bool is_max;
};
/* Queues a reduction on a device that has a GPU. STATUS_UNSUPPORTED if it has none; else the device's failure. */
int stream_reduce(struct stream *stream, const struct reduce_call *call);

/* ---- events: marks in streams ---- */

/* Opens an event of the device, which must outlive it. The caller closes it. STATUS_MEMORY, or the device's failure. */
int event_open(struct device *device, struct event **event);
/* Closes the event; NULL is allowed. */
void event_close(struct event *event);
/* Marks the present end of the stream's queue. A second call moves the mark. STATUS_MEMORY, or the device's failure;
 * STATUS_INVALID on `late` while the stream is being recorded. */
int event_record(struct event *event, struct stream *stream);
/* Returns when all work before the mark has run; at once if the event was never recorded. The device's failure. */
int event_wait(struct event *event);
/* Makes later work of the stream run after all work before the event's mark, on whichever stream that is. It has no
 * effect if the event was never recorded. The host does not wait. Errors as event_record. */
int stream_wait_event(struct stream *stream, struct event *event);
/* Stores the seconds between the moments when two marks were reached. Both events were recorded and waited for. */
int event_seconds(const struct event *from, const struct event *to, double *seconds);

/* ---- recordings ----
 *
 * Between begin and end, work queued on the stream is recorded instead of run, and no host waits for it. A stream that
 * waits for an event of it is recorded too, until it waits for one of that stream; `late` refuses these events. A
 * replay queues the work with the same pointers, and reads what they hold when it runs. The caller closes it after its
 * replays have run. STATUS_UNSUPPORTED if the backend cannot record, like the CPU. STATUS_INVALID for a begin or a
 * replay between begin and end, or for an end without begin. */
bool device_records(const struct device *device); /* true if the backend can record */
int stream_record_begin(struct stream *stream);
int stream_record_end(struct stream *stream, struct recording **recording);
int stream_replay(struct stream *stream, const struct recording *recording);
void recording_close(struct recording *recording);
