/* What a pass or a step wants of the host, in one copy to the device. Arrays are added between begin and end, and are
 * the caller's again at once: they stand in one of two blocks of host memory, which take turns, until they have
 * arrived. Each has its place in `block`, device memory of the size that the upload was opened for, its part rounded up
 * to ARENA_ALIGNMENT. */
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
int upload_open(struct upload *upload, struct device *device, size_t bytes);
void upload_close(struct upload *upload);
int upload_begin(struct upload *upload, void *block);
/* Memory of the host for an array, to be filled before the end; and the place that it will have. */
void *upload_take(struct upload *upload, size_t bytes);
void *upload_place(const struct upload *upload, const void *taken);
void *upload_add(struct upload *upload, const void *from, size_t bytes);
int upload_end(struct upload *upload, struct stream *stream);

#endif
