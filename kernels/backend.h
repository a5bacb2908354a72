/* A backend: a const table of functions, found by name. device.c calls them for the public functions of device.h and
 * ops.h, where each one is described. The first member of a backend's own device is struct device below; likewise for
 * its streams, events and recordings. */
#ifndef CAMBIUM_KERNELS_BACKEND_H
#define CAMBIUM_KERNELS_BACKEND_H

#include "ops.h"

#include <stdatomic.h>

struct backend {
    const char *name;
    bool host_reads_memory; /* device memory is plain memory of the host */
    bool has_numbers;       /* "NAME:1" is a device's number, "NAME:sm_90" a sketch; otherwise a level follows */
    /* One line for a backend that this build lacks; then nothing below is set. NULL: it is built. */
    const char *how_to_build;

    /* STATUS_UNSUPPORTED if this machine lacks such a device. */
    int (*find)(int number); /* NULL: every machine has it */
    int (*count)(void);      /* NULL: one device serves all numbers; 0 after a failure, without its text */
    int (*open)(int number, int threads, struct device **device);
    int (*sketch)(const struct device_facts *facts, struct device **device);
    void (*close)(struct device *device);
    const struct ops *(*ops_for_level)(const struct device *device, const char *level);

    size_t (*memory)(const struct device *device); /* its own bytes; NULL: it uses the host's */
    int (*free_memory)(struct device *device, size_t *bytes);
    int (*alloc)(struct device *device, size_t bytes, bool is_zeroed, void **memory);
    void (*free)(struct device *device, void *memory);
    int (*host_alloc)(struct device *device, size_t bytes, void **memory);
    void (*host_free)(struct device *device, void *memory);

    int (*measure_gemm)(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops);
    int (*measure_read)(struct device *device, double max_seconds, double *bytes_per_s);

    int (*stream_open)(struct device *device, struct stream **stream);
    void (*stream_close)(struct stream *stream);
    int (*stream_wait)(struct stream *stream);
    int (*copy)(struct stream *stream, const struct copy_call *copy);
    int (*zero)(struct stream *stream, void *memory, size_t bytes);
    int (*reduce)(struct stream *stream, const struct reduce_call *call); /* NULL: devices share nothing */

    int (*event_open)(struct device *device, struct event **event);
    void (*event_close)(struct event *event);
    int (*event_record)(struct event *event, struct stream *stream);
    int (*event_wait)(struct event *event);
    int (*event_seconds)(const struct event *from, const struct event *to, double *seconds);
    int (*stream_wait_event)(struct stream *stream, struct event *event);

    /* All are NULL if the backend cannot record. */
    int (*record_begin)(struct stream *stream);
    int (*record_end)(struct stream *stream, struct recording **recording);
    int (*replay)(struct stream *stream, const struct recording *recording);
    void (*recording_close)(struct recording *recording);
};

/* Fills the places of a table that are NULL with functions of ops_absent. */
void ops_fill(struct ops *ops);

extern const struct backend backend_cpu, backend_cuda;
/* The backend of a build with tests (tests/late/); NULL in any other. */
extern const struct backend *const backend_for_tests;

struct device {
    const struct backend *backend;
    const struct ops *ops; /* the backend's table, or `filled` */
    struct ops *filled;    /* a copy that device.c made and filled, if the backend's table lacks operations; or NULL */
    char kind[32];         /* set by device.c if the backend did not; device.c sets the number */
    int number, threads;
    bool is_batch_invariant; /* device_make_batch_invariant */
    char description[96];
    atomic_int failure; /* the status of the first queued work that failed; 0: none did */
    char failure_text[256];
};

/* Stores a failure of work: `status` and the calling thread's text. The first failure stays. The caller holds the
 * backend's lock, so that no other thread does this at the same time. */
void device_set_failure(struct device *device, int status);

struct stream {
    struct device *device;
};

struct event {
    struct device *device;
};

struct recording {
    struct device *device;
};

#endif
