/* Memory of the host in two halves, for values on their way to a device: while the device copies one half, the host
 * fills the other. */
#pragma once

#include "kernels/device.h"

struct halves {
    struct stream *stream; /* NULL: no device copies from the memory, and there is one half */
    char *memory;
    size_t bytes; /* of a half */
    struct event *copied[2];
    int current;
};

/* Allocates the halves, pinned where a stream copies from them. The caller closes them, also after an error.
 * STATUS_MEMORY, or the device's failure. */
int halves_open(struct halves *halves, struct stream *stream, size_t bytes);
/* Returns the other half once the device has copied it. The device's failure. */
int halves_next(struct halves *halves, char **half);
/* Marks the end of the copies that are queued from the half. The device's failure. */
int halves_queued(struct halves *halves);
/* Waits for all copies, and frees the memory. Returns `status`, or the device's failure. */
int halves_close(struct halves *halves, int status);
