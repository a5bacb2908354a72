/* Sums and messages between ranks, by size. */
#include "calibrate.h"

#include <math.h>

enum { SIZES = 4, CALLS_MOST = 100, CALLS_LEAST = 5, KINDS = 2 };
static const int64_t sizes[SIZES] = {1 << 10, 1 << 14, 1 << 18, 1 << 22}; /* bytes */
static const int64_t bytes_of_a_size = 1 << 24;

void calibrate_line_add(struct calibrate_line *line, double x, double y, double seconds) {
    double u = x / seconds, v = y / seconds;
    line->xx += u * u;
    line->xy += u * v;
    line->yy += v * v;
    line->x += u;
    line->y += v;
}

void calibrate_line_find(const struct calibrate_line *l, double *a, double *b) {
    double area = l->xx * l->yy - l->xy * l->xy;
    *a = area > 0 ? (l->x * l->yy - l->y * l->xy) / area : l->x / l->xx;
    *b = area > 0 ? (l->y * l->xx - l->x * l->xy) / area : 0;
    if (*b < 0) { /* the nearest line without it */
        *a = l->x / l->xx;
        *b = 0;
    } else if (*a < 0) {
        *a = 0;
        *b = l->y / l->yy;
    }
}

/* A sum over all ranks, or messages from each even rank to the next. */
static int communicate(struct comm *group, const struct comm_data *data, bool is_message) {
    if (!is_message)
        return comm_all_reduce(group, data, COMM_SUM);
    int peer = group->rank ^ 1;
    if (peer >= group->size)
        return STATUS_OK;
    return group->rank < peer ? comm_send(group, data, peer) : comm_receive(group, data, peer);
}

static int time_size(struct comm *group, const struct comm_data *data, bool is_message, double *seconds) {
    double times[CALLS_MOST];
    int64_t calls = bytes_of_a_size / (data->count * (int64_t)sizeof(float));
    calls = calls > CALLS_MOST ? CALLS_MOST : calls < CALLS_LEAST ? CALLS_LEAST : calls;
    int status = communicate(group, data, is_message);
    for (int64_t i = 0; i < calls && !status; i++) {
        status = comm_barrier(group);
        double start = clock_seconds();
        THEN(status, communicate(group, data, is_message));
        THEN(status, stream_wait(data->stream));
        times[i] = clock_seconds() - start;
    }
    *seconds = status ? 0 : bench_median(times, calls);
    const struct comm_data most = {.send = seconds, .receive = seconds, .count = 1, .dtype = DTYPE_F64};
    return status ? status : comm_all_reduce(group, &most, COMM_MAX);
}

int calibrate_link(struct comm *group, struct stream *stream, struct cost_link *link) {
    struct device *device = stream_device(stream);
    struct calibrate_line line = {0};
    double seconds, per_byte;
    void *memory;
    int status = device_alloc_zeroed(device, (size_t)sizes[SIZES - 1], &memory);
    for (int i = 0; i < SIZES * KINDS && !status; i++) {
        bool is_message = i >= SIZES;
        int64_t size = sizes[i % SIZES];
        const struct comm_data data = {.send = memory,
                                       .receive = memory,
                                       .count = size / (int64_t)sizeof(float),
                                       .dtype = DTYPE_F32,
                                       .stream = stream};
        status = time_size(group, &data, is_message, &seconds);
        const struct cost_link per[] = {{1, 0}, {INFINITY, 1}}; /* to count a ring's bytes, and its latencies */
        if (!status)
            calibrate_line_add(&line, is_message ? (double)size : cost_ring((double)size, group->size, 2, per[0]),
                               is_message ? 1 : cost_ring((double)size, group->size, 2, per[1]), seconds);
    }
    device_free(device, memory);
    TRY(status);
    calibrate_line_find(&line, &per_byte, &link->latency);
    link->bandwidth = per_byte > 0 ? 1 / per_byte : 1e15;
    return STATUS_OK;
}
