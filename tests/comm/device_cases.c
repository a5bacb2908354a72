/* The calls over device memory, of every type and several lengths. */
#include "cases.h"

#include <math.h>
#include <stdlib.h>

/* A rank's buffers, of size * MOST elements each, on the device and on the host. */
struct scene {
    struct comm *comm;
    struct device *device;
    struct stream *stream, *other;
    void *in, *out;        /* device */
    char *host, *expected; /* host */
    size_t bytes;          /* of each */
    bool is_over_host;     /* calls have finished when their wait returns */
    int reordered;         /* sums that have other bits than those of the order of ranks */
};

enum { MOST = 9973 };

static int scene_open(struct scene *s, struct comm *comm, struct device *device) {
    *s = (struct scene){.comm = comm, .device = device, .bytes = (size_t)comm->size * MOST * sizeof(double)};
    s->host = malloc(s->bytes);
    s->expected = malloc(s->bytes);
    expect(s->host && s->expected);
    expect_ok(stream_open(device, &s->stream));
    expect_ok(stream_open(device, &s->other));
    expect_ok(device_alloc(device, s->bytes, &s->in));
    return device_alloc(device, s->bytes, &s->out);
}

static void scene_close(struct scene *s) {
    stream_close(s->stream); /* first: work of a stream may still use the memory */
    stream_close(s->other);
    device_free(s->device, s->in);
    device_free(s->device, s->out);
    free(s->host);
    free(s->expected);
}

/* This rank's values on the device, in the order of the stream; the host waits for no more than its own memory. */
static int put(struct scene *s, int64_t count, enum dtype dtype) {
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    cases_fill(s->host, s->comm->rank, 0, count, dtype);
    expect_ok(stream_zero(s->stream, s->out, s->bytes));
    expect_ok(stream_copy_to_device(s->stream, s->in, s->host, bytes));
    return stream_wait(s->stream);
}

/* Copies what `stream` sees to s->host. */
static int get(struct scene *s, struct stream *stream, const void *from, size_t bytes) {
    memset(s->host, 0x5a, s->bytes);
    expect_ok(stream_copy_to_host(stream, s->host, from, bytes));
    expect_ok(stream_wait(stream));
    return comm_check(s->comm);
}

/* ---- sums ---- */

static double number(const void *memory, int64_t i, enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return ((const float *)memory)[i];
    case DTYPE_BF16:
        return bf16_to_float(((const uint16_t *)memory)[i]);
    case DTYPE_F64:
        return ((const double *)memory)[i];
    default:
        return (double)((const int64_t *)memory)[i];
    }
}

/* Any order of n - 1 additions is within n - 1 roundings of the sum of magnitudes from the exact sum. So two orders
 * differ by at most twice that. A magnitude of cases_fill is at most 64; integers have no rounding. */
static double bound(int size, enum dtype dtype) {
    double unit = dtype == DTYPE_F32 ? 0x1p-24 : dtype == DTYPE_BF16 ? 0x1p-8 : dtype == DTYPE_F64 ? 0x1p-53 : 0;
    return 2 * unit * (size - 1) * size * 64;
}

/* Compares s->host with s->expected. */
static int check_sum(struct scene *s, int64_t count, enum dtype dtype) {
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    bool are_equal = !memcmp(s->host, s->expected, bytes);
    s->reordered += !are_equal;
    expect(are_equal || !comm_is_ordered(s->comm));
    for (int64_t i = 0; i < count; i++)
        expect(fabs(number(s->host, i, dtype) - number(s->expected, i, dtype)) <= bound(s->comm->size, dtype));
    return STATUS_OK;
}

/* Every rank has the bits of rank 0. */
static int check_bits(struct scene *s, int64_t count, enum dtype dtype) {
    memcpy(s->expected, s->host, (size_t)count * dtype_bytes(dtype));
    struct comm_data data = {.send = s->expected, .receive = s->expected, .count = count, .dtype = dtype};
    expect_ok(comm_broadcast(s->comm, &data, 0));
    expect(!memcmp(s->expected, s->host, (size_t)count * dtype_bytes(dtype)));
    return STATUS_OK;
}

/* A stream sees the sum that waits for it, and may then write over what was summed. Over the host, every stream sees
 * it. */
static int all_reduce(struct scene *s, int64_t count, enum dtype dtype, enum comm_op op) {
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    struct comm_request request;
    struct comm_data data = {s->in, s->out, count, dtype, s->stream};
    cases_expected(s->expected, s->comm->size, 0, count, dtype, op);
    expect_ok(put(s, count, dtype));
    expect_ok(comm_all_reduce_start(s->comm, &data, op, &request));
    expect_ok(comm_wait_on(&request, s->other));
    if (s->is_over_host) {
        expect_ok(get(s, s->stream, s->out, bytes));
        expect_ok(check_sum(s, count, dtype));
    }
    expect_ok(stream_zero(s->other, s->in, s->bytes));
    expect_ok(get(s, s->other, s->out, bytes));
    expect_ok(check_sum(s, count, dtype));
    return check_bits(s, count, dtype);
}

/* In place, after work on the stream that the host has not waited for. */
static int reduce_scatter(struct scene *s, int64_t count, enum dtype dtype) {
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    struct comm_request request;
    char *part = (char *)s->out + bytes * (size_t)s->comm->rank;
    cases_expected(s->expected, s->comm->size, count * s->comm->rank, count, dtype, COMM_SUM);
    expect_ok(put(s, count * s->comm->size, dtype));
    expect_ok(stream_copy(s->stream, s->out, s->in, bytes * (size_t)s->comm->size));
    expect_ok(comm_reduce_scatter_start(s->comm, &(struct comm_data){s->out, part, count, dtype, s->stream}, &request));
    expect_ok(comm_wait(&request));
    expect_ok(get(s, s->stream, part, bytes));
    return check_sum(s, count, dtype);
}

/* ---- moves ---- */

static int gather(struct scene *s, int64_t count, enum dtype dtype) {
    size_t bytes = (size_t)count * dtype_bytes(dtype), size = (size_t)s->comm->size;
    struct comm_request request;
    for (size_t r = 0; r < size; r++)
        cases_fill(s->expected + bytes * r, (int)r, 0, count, dtype);
    expect_ok(put(s, count, dtype));
    expect_ok(comm_all_gather_start(s->comm, &(struct comm_data){s->in, s->out, count, dtype, s->stream}, &request));
    expect_ok(comm_wait_on(&request, s->other));
    expect_ok(get(s, s->other, s->out, bytes * size));
    expect(!memcmp(s->host, s->expected, bytes * size));

    int root = s->comm->size - 1;
    expect_ok(put(s, count, dtype));
    expect_ok(comm_broadcast(s->comm, &(struct comm_data){s->in, s->out, count, dtype, s->stream}, root));
    expect_ok(get(s, s->stream, s->out, bytes));
    expect(!memcmp(s->host, s->expected + bytes * (size_t)root, bytes));
    return STATUS_OK;
}

/* Two messages around the ring at once, waited for in the other order; a buffer that was sent is written over. */
static int messages(struct scene *s, int64_t count, enum dtype dtype) {
    int size = s->comm->size, to = (s->comm->rank + 1) % size, from = (s->comm->rank + size - 1) % size;
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    struct comm_request sends[2], receives[2];
    char *out = s->out;
    if (size == 1)
        return STATUS_OK;
    cases_fill(s->expected, from, 0, count, dtype);
    expect_ok(put(s, count, dtype));
    for (int i = 0; i < 2; i++) {
        struct comm_data in = {NULL, out + bytes * (size_t)i, count, dtype, s->stream};
        expect_ok(comm_receive_start(s->comm, &in, from, &receives[i]));
        expect_ok(comm_send_start(s->comm, &(struct comm_data){s->in, NULL, count, dtype, s->stream}, to, &sends[i]));
    }
    for (int i = 1; i >= 0; i--) {
        expect_ok(comm_wait_on(&receives[i], s->other));
        expect_ok(comm_wait(&sends[i]));
    }
    expect_ok(stream_zero(s->stream, s->in, bytes));
    for (size_t i = 0; i < 2; i++) {
        expect_ok(get(s, s->other, out + bytes * i, bytes));
        expect(!memcmp(s->host, s->expected, bytes));
    }
    return STATUS_OK;
}

static int patience_is_the_hosts(struct scene *s) {
    struct comm_data data = {NULL, s->out, 1, DTYPE_F32, s->stream};
    int status = comm_receive_patient(s->comm, &data, (s->comm->rank + 1) % s->comm->size);
    expect(status == STATUS_INVALID && strstr(status_text(), "device memory"));
    return STATUS_OK;
}

/* ---- all of it ---- */

static int every_call(struct scene *s) {
    static const int64_t counts[] = {0, 1, 17, MOST};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I64};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            expect_ok(all_reduce(s, counts[c], types[t], COMM_SUM));
            expect_ok(all_reduce(s, counts[c], types[t], COMM_MAX));
            expect_ok(reduce_scatter(s, counts[c], types[t]));
            expect_ok(gather(s, counts[c], types[t]));
            if (counts[c])
                expect_ok(messages(s, counts[c] / 2 + 1, types[t]));
        }
    return patience_is_the_hosts(s);
}

static int open_group(struct comm *parent, struct comm **group) {
    int ranks[64];
    for (int r = 0; r < parent->size; r++)
        ranks[r] = r;
    return comm_subgroup(parent, ranks, parent->size, group);
}

/* A scene in a group of all ranks, which has the device channel of `parent`. */
static int run_group(struct comm *parent, const struct device_cases *cases, bool wants_order) {
    struct scene s;
    struct comm *group;
    expect_ok(open_group(parent, &group));
    if (wants_order)
        comm_request_order(group);
    bool is_ordered = wants_order || !cases->open_channel || parent->size == 1;
    expect(comm_is_ordered(group) == is_ordered);
    int status = scene_open(&s, group, cases->device);
    s.is_over_host = !cases->open_channel && !wants_order; /* before the group knows its device */
    if (!status)
        status = every_call(&s);
    if (status)
        comm_abort(parent, status_text()); /* before the buffers go */
    else if (parent->size > 2)             /* of two numbers both orders have the same sum */
        status = is_ordered == !s.reordered ? STATUS_OK : status_fail(STATUS_INVALID, "%d reordered", s.reordered);
    scene_close(&s);
    comm_close(group);
    return status;
}

static int run_groups(struct comm *parent, const struct device_cases *cases) {
    if (cases->open_channel)
        expect_ok(cases->open_channel(parent, cases->device));
    expect_ok(run_group(parent, cases, false));
    if (!cases->open_channel) /* on a GPU, without the host */
        expect_ok(comm_use_device(parent, cases->device));
    return run_group(parent, cases, true);
}

int cases_on_device(struct comm *world, void *context) {
    struct comm *parent;
    expect_ok(open_group(world, &parent));
    int status = run_groups(parent, context);
    if (status)
        comm_abort(parent, status_text()); /* others may wait in its channel */
    comm_close(parent);
    return status ? status : comm_barrier(world);
}
