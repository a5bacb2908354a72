/* Inside the backend `cuda`.
 *
 *     driver.c      opens the driver
 *     check.c       checks its results
 *     backend.c     devices and their memory
 *     stream.c      streams, copies and events
 *     graph.c       recordings: the driver's graphs
 *     handle.c      what NVIDIA's other libraries must know
 *     measure.c     ceilings
 *     launch.c      loads and launches kernels
 *     gemm*.c       products (gemm-internal.h)
 *
 * Ranks that are threads share a GPU's primary context. Each function here makes it current to its thread before it
 * calls the driver. */
#pragma once

#include "backend.h"
#include "cuda/cublaslt.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"

#include <pthread.h>

struct cuda_device {
    struct device device;
    struct cuda_driver driver; /* zeroed in a sketch */
    int card;                  /* the driver's handle */
    char place[16];            /* in the machine: "0000:17:00.0" */
    int architecture;          /* 10 * major + minor of the compute capability: 90 */
    bool may_be_newer;         /* a sketch that names no architecture */
    int multiprocessors;
    int spared;                 /* of them, that products leave free */
    int max_pitch;              /* the maximum number of bytes from row to row of a copy */
    size_t memory;              /* bytes of the GPU's memory */
    struct CUctx_st *context;   /* NULL: not retained yet */
    struct CUstream_st *stream; /* for memory that is zeroed when it is allocated */
    struct cuda_kernels kernels;
    struct cuda_gemm_cache *gemm_cache; /* NULL: not opened yet */
    pthread_mutex_t lock;               /* guards the device's failure */
};

struct cuda_stream {
    struct stream stream;
    struct CUstream_st *handle;
    bool is_recording;
    bool is_followed; /* the last work is a kernel, after which the next one may begin early */
};

/* ---- the backend's own structs and handles ---- */

static inline struct cuda_device *cuda(const struct device *device) {
    return (struct cuda_device *)(uintptr_t)device;
}
static inline struct CUstream_st *cuda_stream(const struct stream *stream) {
    return ((const struct cuda_stream *)(const void *)stream)->handle;
}
static inline unsigned long long cuda_address(const void *memory) {
    return (uintptr_t)memory;
}

/* Makes the device's context current to the calling thread. Errors as cuda_check. */
int cuda_enter(struct device *device);
/* Returns STATUS_OK for a success of the driver. Any other result breaks the device (device_set_failure), and the text
 * names the device, `what` failed and the driver's message. A device that was broken before keeps its first text. */
int cuda_check(struct device *device, unsigned result, const char *what);
/* Breaks the device after `what` failed with this text and number of a library, as cuda_check does. */
int cuda_fail(struct device *device, const char *what, const char *text, unsigned number);

/* ---- stream.c: as the functions of device.h ---- */

int cuda_stream_open(struct device *device, struct stream **stream);
int cuda_stream_open_urgent(struct device *device, struct stream **stream); /* as stream_open_urgent of handle.h */
void cuda_stream_close(struct stream *stream);
int cuda_stream_wait(struct stream *stream);
int cuda_copy(struct stream *stream, const struct copy_call *copy);
int cuda_zero(struct stream *stream, void *memory, size_t bytes);
int cuda_reduce(struct stream *stream, const struct reduce_call *call);
int cuda_event_open(struct device *device, struct event **event);
void cuda_event_close(struct event *event);
int cuda_event_record(struct event *event, struct stream *stream);
int cuda_event_wait(struct event *event);
int cuda_event_seconds(const struct event *from, const struct event *to, double *seconds);
int cuda_stream_wait_event(struct stream *stream, struct event *event);

/* ---- graph.c: as the functions of device.h ---- */

int cuda_record_begin(struct stream *stream);
int cuda_record_end(struct stream *stream, struct recording **recording);
int cuda_replay(struct stream *stream, const struct recording *recording);
void cuda_recording_close(struct recording *recording);
/* STATUS_INVALID if the stream is being recorded, for `what`, which a recording cannot have. */
int cuda_check_not_recording(const struct stream *stream, const char *what);

/* ---- gemm_cache.c ---- */

/* Opens cuBLASLt on the device, whose context is current. Errors of cublaslt_open, and as cuda_check. */
int cuda_gemm_cache_open(struct device *device);
/* Closes what was opened, or was not. */
void cuda_gemm_cache_close(struct device *device);

/* ---- measure.c: as device_measure_gemm and device_time_read ---- */

int cuda_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops);
int cuda_time_read(struct device *device, size_t bytes, void **memory, double *seconds);

extern const struct ops cuda_ops;
