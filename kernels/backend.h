/* A backend: a const table of functions, found by name. device.c calls them for the public functions of
 * device.h and ops.h, which say what each does. A backend's own device and stream begin with the structs below. */
#ifndef CAMBIUM_KERNELS_BACKEND_H
#define CAMBIUM_KERNELS_BACKEND_H

#include "ops.h"

#include <stdatomic.h>

struct backend {
    const char *name;
    bool host_reads_memory; /* device memory is plain memory of the host */

    /* Fails with STATUS_UNSUPPORTED where this machine lacks such a device. */
    int (*open)(int number, int threads, struct device **device);
    int (*sketch)(const struct device_facts *facts, struct device **device);
    void (*close)(struct device *device);
    const struct ops *(*ops_for_level)(const struct device *device, const char *level);

    size_t (*memory)(const struct device *device); /* of its own; NULL: it is the host's */
    int (*alloc)(struct device *device, size_t bytes, bool is_zeroed, void **memory);
    void (*free)(struct device *device, void *memory);
    int (*host_alloc)(struct device *device, size_t bytes, void **memory);
    void (*host_free)(struct device *device, void *memory);

    int (*measure_gemm)(struct device *device, enum dtype dtype, double max_seconds, double *flops);
    int (*measure_read)(struct device *device, double max_seconds, double *bytes_per_s);

    int (*stream_open)(struct device *device, struct stream **stream);
    void (*stream_close)(struct stream *stream);
    int (*stream_wait)(struct stream *stream);
    int (*copy)(struct stream *stream, const struct copy_call *copy);
    int (*zero)(struct stream *stream, void *memory, size_t bytes);

    int (*event_open)(struct device *device, struct event **event);
    void (*event_close)(struct event *event);
    int (*event_record)(struct event *event, struct stream *stream);
    int (*event_wait)(struct event *event);
    int (*event_seconds)(const struct event *from, const struct event *to, double *seconds);
    int (*stream_wait_event)(struct stream *stream, struct event *event);

    /* All NULL where the backend records nothing. */
    int (*record_begin)(struct stream *stream);
    int (*record_end)(struct stream *stream, struct recording **recording);
    int (*replay)(struct stream *stream, const struct recording *recording);
    void (*recording_close)(struct recording *recording);
};

/* Puts functions of ops_absent in the places of a table that are NULL. */
void ops_fill(struct ops *ops);

extern const struct backend backend_cpu, backend_late;

struct device {
    const struct backend *backend;
    const struct ops *ops; /* as the backend has it; device.c fills what is missing */
    struct ops *filled;    /* a table with nothing missing, or NULL */
    char kind[32];         /* device.c sets it, and the number */
    int number, threads;
    char description[96];
    atomic_int failure; /* of work that had been queued; 0: none yet */
    char failure_text[256];
};

/* Work has failed with `status` and the calling thread's text: the first failure stays. The backend's lock, which keeps
 * other threads from doing the same, is held. */
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
