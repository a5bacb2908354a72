/* Uploads all arrays that a pass or a step needs from the host in one copy to the device.
 *
 * Arrays are added between begin and end, and the caller may reuse them at once. Until they have arrived, they are in
 * one of two blocks of host memory, which alternate. Each array gets a place in `block`, device memory of the caller,
 * whose size is that of the upload rounded up to ARENA_ALIGNMENT. */
#pragma once

#include "base/base.h"
#include "kernels/device.h"

enum { UPLOAD_TURNS = 2 };
struct upload {
    struct device *device;
    void *host[UPLOAD_TURNS];
    struct event *has_arrived[UPLOAD_TURNS];
    size_t bytes;
    int turn;
    char *block;
    struct arena arena; /* over host[turn] */
};
/* Opens an upload of at most `bytes` bytes. The caller closes it. STATUS_MEMORY, or the device's failure. */
int upload_open(struct upload *upload, struct device *device, size_t bytes);
/* Frees the host memory, after the last upload has arrived. */
void upload_close(struct upload *upload);
/* Begins to add arrays, after it has waited for the upload before the last one. The device's failure. */
int upload_begin(struct upload *upload, void *block);
/* Returns host memory for an array, to be filled before the end. */
void *upload_take(struct upload *upload, size_t bytes);
/* Returns the place in device memory of such an array. */
void *upload_place(const struct upload *upload, const void *taken);
/* Adds a copy of an array. Returns its place in device memory. */
void *upload_add(struct upload *upload, const void *from, size_t bytes);
/* Queues the copy to the device. The device's failure. */
int upload_end(struct upload *upload, struct stream *stream);
