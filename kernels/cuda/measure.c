/* A GPU's ceilings. */
#include "cuda/cuda-internal.h"

#include <math.h>

/* Work that a call queues, to be timed. */
struct timed {
    int (*call)(const struct exec *exec, const void *context);
    const void *context;
};

static int time_call(const struct exec *exec, const struct timed *timed, struct event *const event[2],
                     double *seconds) {
    int status = event_record(event[0], exec->stream);
    THEN(status, timed->call(exec, timed->context));
    THEN(status, event_record(event[1], exec->stream));
    THEN(status, event_wait(event[1]));
    return status ? status : event_seconds(event[0], event[1], seconds);
}

/* Stores the best time of at least two calls; more follow until `max_seconds` are over. */
static int best_time(const struct exec *exec, const struct timed *timed, double max_seconds, double *best) {
    struct event *event[2] = {NULL, NULL};
    double end = clock_seconds() + max_seconds, seconds = INFINITY;
    int status = STATUS_OK;
    *best = INFINITY;
    for (int i = 0; i < 2 && !status; i++)
        status = event_open(exec->stream->device, &event[i]);
    for (int round = 0; (round < 2 || clock_seconds() < end) && !status; round++) {
        status = time_call(exec, timed, event, &seconds);
        *best = fmin(*best, seconds);
    }
    for (int i = 0; i < 2; i++)
        event_close(event[i]);
    return status;
}

/* ---- products: one of square matrices ---- */

enum { SIDE = 8192, DRAWN = 16384 };

/* Fills a matrix with copies of one block of random numbers. Products of zeros would be faster than others. */
static int fill(struct stream *stream, enum dtype dtype, char *matrix) {
    static const size_t whole = (size_t)SIDE * SIDE;
    union {
        float fp32[DRAWN];
        uint16_t bf16[DRAWN];
    } *drawn = malloc(sizeof *drawn);
    size_t bytes = DRAWN * dtype_bytes(dtype);
    TRY(status_allocated(drawn));
    for (uint32_t i = 0; i < DRAWN; i++) {
        float value = (float)rng_unit(philox(1, i, 0, 0, (uint32_t)RNG_TEST << 24).word[0]) - 0.5f;
        if (dtype == DTYPE_BF16)
            drawn->bf16[i] = bf16_from_float(value);
        else
            drawn->fp32[i] = value;
    }
    int status = stream_copy_to_device(stream, matrix, drawn, bytes);
    for (size_t block = 1; block < whole / DRAWN && !status; block++)
        status = stream_copy(stream, matrix + block * bytes, matrix, bytes);
    int waited = stream_wait(stream);
    free(drawn);
    return status ? status : waited;
}

static int multiply(const struct exec *exec, const void *context) {
    return exec->stream->device->ops->gemm(exec, context);
}

int cuda_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops) {
    void *memory[4] = {NULL};
    struct exec exec = {0};
    double best = INFINITY;
    *flops = 0;
    int status = stream_open(device, &exec.stream);
    for (int i = 0; i < 3 && !status; i++)
        status = device_alloc(device, (size_t)SIDE * SIDE * dtype_bytes(dtype), &memory[i]);
    for (int i = 0; i < 2 && !status; i++)
        status = fill(exec.stream, dtype, memory[i]);
    struct gemm call = {.a = matrix_plain(dtype, memory[0], SIDE, SIDE),
                        .b = matrix_plain(dtype, memory[1], SIDE, SIDE),
                        .b_transposed = true,
                        .c = matrix_plain(dtype, memory[2], SIDE, SIDE),
                        .is_tf32 = is_tf32};
    exec.workspace_bytes = device->ops->gemm_workspace(device, &call);
    THEN(status, device_alloc(device, exec.workspace_bytes, &memory[3]));
    exec.workspace = memory[3];
    if (!status)
        status = best_time(&exec, &(const struct timed){multiply, &call}, max_seconds, &best);
    for (int i = 0; i < 4; i++)
        device_free(device, memory[i]);
    stream_close(exec.stream);
    *flops = status ? 0 : 2.0 * SIDE * SIDE * SIDE / best;
    return status;
}

/* ---- copies ---- */

struct halves {
    char *memory;
    size_t bytes; /* of one */
};

static int copy_half(const struct exec *exec, const void *context) {
    const struct halves *halves = context;
    return stream_copy(exec->stream, halves->memory, halves->memory + halves->bytes, halves->bytes);
}

/* Measures a copy within the GPU. It reads as many bytes as it writes, and both count. */
int cuda_time_read(struct device *device, size_t bytes, void **memory, double *seconds) {
    struct exec exec = {0};
    TRY(*memory ? STATUS_OK : device_alloc_zeroed(device, bytes, memory));
    TRY(stream_open(device, &exec.stream));
    const struct halves halves = {*memory, bytes / 2};
    int status = best_time(&exec, &(const struct timed){copy_half, &halves}, 0, seconds);
    stream_close(exec.stream);
    return status;
}
