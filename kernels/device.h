/* Devices, streams and memory: what a backend is, apart from its arithmetic.
 *
 * A device is one processor with its own memory (for the CPU: a number of threads of this process). A stream is an
 * order of work on a device; it belongs to one thread at a time. Operations may return before they ran: whoever needs
 * the result on the host waits for the stream. Above kernels/ nobody dereferences device memory; on the CPU it happens
 * to be host memory, and only tests may know. */
#ifndef CAMBIUM_KERNELS_DEVICE_H
#define CAMBIUM_KERNELS_DEVICE_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct stream;

/* Opens a device of backend `kind` ("cpu"). `threads` workers for the CPU, 0 = all cores that this thread may use;
 * fewer where so many are not sensible, or OpenMP does not give them. STATUS_UNSUPPORTED names the kinds that are
 * built. */
int device_open(const char *kind, int index, int threads, struct device **device);
void device_close(struct device *device);
/* One line for people: "cpu, 2 threads, avx512_bf16". */
const char *device_description(const struct device *device);
int device_threads(const struct device *device);

/* Zeroed memory aligned to 64 bytes (large blocks on huge pages where the system has them). STATUS_MEMORY with the
 * size. */
int device_alloc(struct device *device, size_t bytes, void **memory);
void device_free(struct device *device, void *memory);

/* The machine's ceilings, for benchmarks and the trainer's log: FLOP/s of the plain products of a GPT-2 block in fp32
 * or bf16 (forward, input gradient, weight gradient; the best of several, summed), and bytes/s of a streaming read.
 * Each takes about `max_seconds` and memory that it gives back. */
int device_measure_gemm(struct device *device, enum dtype dtype, double max_seconds, double *flops);
int device_measure_read(struct device *device, double max_seconds, double *bytes_per_s);

int stream_open(struct device *device, struct stream **stream);
void stream_close(struct stream *stream);
/* Returns when everything queued has run; the first error of it. */
int stream_wait(struct stream *stream);
struct device *stream_device(const struct stream *stream);

int stream_copy_to_device(struct stream *stream, void *device_memory, const void *host, size_t bytes);
int stream_copy_to_host(struct stream *stream, void *host, const void *device_memory, size_t bytes);
int stream_copy(struct stream *stream, void *to, const void *from, size_t bytes);
int stream_zero(struct stream *stream, void *memory, size_t bytes);

#endif
