/* TensorBoard event files: scalar curves by step.
 *
 * A file is a sequence of TFRecords (u64 length, masked CRC-32C of it, data, masked CRC-32C of the data) that each hold
 * one protobuf Event of proto/tensorboard.proto. Each record is one write(2). A run that goes on writes a new file
 * whose first step tells TensorBoard to forget what earlier files of the directory say of it and later steps. */
#ifndef CAMBIUM_TRAIN_EVENTS_H
#define CAMBIUM_TRAIN_EVENTS_H

#include "base/base.h"

#include <stdint.h>

struct event_file {
    int descriptor;
    char *path;
};

/* CRC-32C (Castagnoli), and as TFRecords mask it. */
uint32_t events_crc32c(const void *bytes, size_t length);
uint32_t events_masked_crc32c(const void *bytes, size_t length);

/* Creates `directory` where needed and a new file in it for steps from `first_step` on. */
int events_open(struct event_file *events, const char *directory, int64_t first_step);
void events_close(struct event_file *events);

struct event_scalar {
    const char *tag;
    double value; /* kept as float */
};
enum { EVENTS_MAX_SCALARS = 8 };
/* One event with up to EVENTS_MAX_SCALARS curves' values at `step`. */
int events_write(struct event_file *events, int64_t step, const struct event_scalar *scalars, size_t count);

#endif
