/* A card's ceilings. */
#include "cuda/cuda-internal.h"

#include <math.h>

/* Products are the library's; ops_absent says so. */
int cuda_measure_gemm(struct device *device, enum dtype dtype, double max_seconds, double *flops) {
    struct exec exec = {0};
    (void)dtype;
    (void)max_seconds;
    *flops = 0;
    int status = stream_open(device, &exec.stream);
    if (status)
        return status;
    status = ops_absent.gemm(&exec, NULL);
    stream_close(exec.stream);
    return status;
}

enum { BLOCK_BYTES = 256 << 20 }; /* more than any cache holds */

static int time_copy(struct stream *stream, char *memory, struct event *const event[2], double *seconds) {
    int status = event_record(event[0], stream);
    if (!status)
        status = stream_copy(stream, memory, memory + BLOCK_BYTES, BLOCK_BYTES);
    if (!status)
        status = event_record(event[1], stream);
    if (!status)
        status = event_wait(event[1]);
    return status ? status : event_seconds(event[0], event[1], seconds);
}

/* Measures a copy within the card. It reads as many bytes as it writes, and both count. */
int cuda_measure_read(struct device *device, double max_seconds, double *bytes_per_s) {
    void *memory = NULL;
    struct stream *stream = NULL;
    struct event *event[2] = {NULL, NULL};
    double end = clock_seconds() + max_seconds, best = INFINITY, seconds = INFINITY;
    int status = device_alloc_zeroed(device, 2 * (size_t)BLOCK_BYTES, &memory);
    if (!status)
        status = stream_open(device, &stream);
    for (int i = 0; i < 2 && !status; i++)
        status = event_open(device, &event[i]);
    for (int round = 0; (round < 2 || clock_seconds() < end) && !status; round++) {
        status = time_copy(stream, memory, event, &seconds);
        best = fmin(best, seconds);
    }
    for (int i = 0; i < 2; i++)
        event_close(event[i]);
    stream_close(stream);
    device_free(device, memory);
    *bytes_per_s = status ? 0 : 2.0 * BLOCK_BYTES / best;
    return status;
}
