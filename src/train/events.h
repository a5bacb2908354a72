/* TensorBoard event files: scalar curves by step.
 *
 * A file is a sequence of TFRecords (u64 length, masked CRC-32C of it, data, masked CRC-32C of the data) that each hold
 * one protobuf Event of proto/tensorboard.proto. Each record is one write(2). A resumed run writes a new file. Its
 * first event makes TensorBoard drop that step and later ones from earlier files of the directory. */
#pragma once

#include "base/base.h"

struct event_file {
    int descriptor;
    char *path;
};

/* Compute the CRC-32C (Castagnoli), and the CRC-32C as TFRecords mask it. */
uint32_t events_crc32c(const void *bytes, size_t length);
uint32_t events_masked_crc32c(const void *bytes, size_t length);

/* Creates `directory` if needed, and a new file in it for steps from `first_step` on. STATUS_IO, STATUS_MEMORY. */
int events_open(struct event_file *events, const char *directory, int64_t first_step);
void events_close(struct event_file *events);

struct event_scalar {
    const char *tag;
    double value; /* stored as float */
};
enum { EVENTS_MAX_SCALARS = 8 };
/* Writes one event with the values of up to EVENTS_MAX_SCALARS curves at `step`. STATUS_IO. */
int events_write(struct event_file *events, int64_t step, const struct event_scalar *scalars, size_t count);
