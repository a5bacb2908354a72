/* What a backend is: a const table of functions, found by name. device.c calls them for the public functions of
 * device.h and ops.h, which say what each does. A backend's own device and stream begin with the structs below. */
#ifndef CAMBIUM_KERNELS_BACKEND_H
#define CAMBIUM_KERNELS_BACKEND_H

#include "ops.h"

struct backend {
    const char *name;
    bool host_reads_memory; /* device memory is plain memory of the host */

    /* Fails with STATUS_UNSUPPORTED where this machine lacks such a device. */
    int (*open)(int index, int threads, struct device **device);
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
};

extern const struct backend backend_cpu, backend_late;

struct device {
    const struct backend *backend;
    const struct ops *ops;
    int threads;
    char description[96];
};

struct stream {
    struct device *device;
};

struct event {
    struct device *device;
};

#endif
