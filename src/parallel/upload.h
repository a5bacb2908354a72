/* Everything that a pass or a step needs from the host, in one copy to the device. Arrays are added between begin and
 * end, and belong to the caller again at once. Until they have arrived they are in one of two blocks of host memory,
 * which alternate. Each array has its place in `block`, device memory of the size for which the upload was opened,
 * rounded up to ARENA_ALIGNMENT. */
#ifndef CAMBIUM_PARALLEL_UPLOAD_H
#define CAMBIUM_PARALLEL_UPLOAD_H

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
/* Makes an upload of at most `bytes` bytes. The device's errors. upload_close ends it. */
int upload_open(struct upload *upload, struct device *device, size_t bytes);
void upload_close(struct upload *upload);
/* Begins to add arrays. */
int upload_begin(struct upload *upload, void *block);
/* Memory of the host for an array, to be filled before the end; and the place that it will have. */
void *upload_take(struct upload *upload, size_t bytes);
void *upload_place(const struct upload *upload, const void *taken);
void *upload_add(struct upload *upload, const void *from, size_t bytes);
int upload_end(struct upload *upload, struct stream *stream);

#endif
