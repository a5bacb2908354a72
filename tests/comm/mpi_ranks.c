/* A rank under mpirun: `cases` runs what every backend must do; the others fail in one way each, and the text that they
 * leave is what the test looks for. */
#include "cases.h"
#include "unordered.h"

#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int mismatch(struct comm *world) {
    float in[8] = {0}, out[32];
    struct comm_data data = {in, out, 8, DTYPE_F32, NULL};
    return world->rank == 2 ? comm_all_gather(world, &data) : comm_all_reduce(world, &data, COMM_SUM);
}

static int message(struct comm *world) {
    float numbers[16] = {0};
    if (world->rank == 0)
        expect_ok(comm_send(world, &(struct comm_data){numbers, NULL, 8, DTYPE_F32, NULL}, 1));
    else
        return comm_receive(world, &(struct comm_data){NULL, numbers, 9, DTYPE_I32, NULL}, 0);
    return comm_barrier(world);
}

/* Looks at memory that another thread writes, for a minute. */
static bool becomes(const volatile float *at, float value) {
    for (int i = 0; i < 60000 && *at != value; i++)
        nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL);
    return *at == value;
}

/* Started sums and gathers of several windows, and long messages, arrive while no rank waits or makes a call. No rank
 * continues before all have seen that. */
static int travels(struct comm *world) {
    enum { N = 1 << 20 };
    int next = (world->rank + 1) % world->size, before = (world->rank + world->size - 1) % world->size;
    size_t size = (size_t)world->size;
    float *memory = calloc((6 + 2 * size) * N, sizeof *memory);
    expect(memory);
    float *sum = memory, *part = sum + N, *own = part + N, *out = own + N, *in = out + N, *whole = in + N;
    float *all = whole + size * N;
    for (int64_t i = 0; i < N; i++)
        sum[i] = own[i] = out[i] = 1 + (float)world->rank;
    for (int64_t i = 0; i < N * (int64_t)size; i++)
        whole[i] = 1;
    struct comm_request requests[5];
    expect_ok(comm_barrier(world));
    expect_ok(comm_all_reduce_start(world, &(struct comm_data){sum, sum, N, DTYPE_F32, NULL}, COMM_MAX, &requests[0]));
    expect_ok(comm_reduce_scatter_start(world, &(struct comm_data){whole, part, N, DTYPE_F32, NULL}, &requests[1]));
    expect_ok(comm_all_gather_start(world, &(struct comm_data){own, all, N, DTYPE_F32, NULL}, &requests[2]));
    expect_ok(comm_receive_start(world, &(struct comm_data){NULL, in, N, DTYPE_F32, NULL}, before, &requests[3]));
    expect_ok(comm_send_start(world, &(struct comm_data){out, NULL, N, DTYPE_F32, NULL}, next, &requests[4]));
    expect(becomes(&sum[N - 1], (float)size) && becomes(&sum[0], (float)size));
    expect(becomes(&part[N - 1], (float)size));
    for (size_t r = 0; r < size; r++)
        expect(becomes(&all[r * N + N - 1], 1 + (float)r));
    expect(becomes(&in[N - 1], 1 + (float)before));
    for (int i = 0; i < 5; i++)
        expect_ok(comm_wait(&requests[i]));
    free(memory);
    return comm_barrier(world);
}

/* A rank that waits in one group advances calls that it started in another; otherwise the two would wait for each
 * other.
 */
static int waits_in_two_groups(struct comm *world) {
    enum { N = 1 << 20 };
    int ranks[] = {1, 0};
    struct comm *pair;
    float *sum = calloc(N, sizeof *sum);
    expect(sum);
    expect_ok(comm_subgroup(world, ranks, 2, &pair));
    struct comm_request request;
    expect_ok(comm_all_reduce_start(pair, &(struct comm_data){sum, sum, N, DTYPE_F32, NULL}, COMM_SUM, &request));
    if (world->rank == 0)
        expect_ok(comm_barrier(world));
    expect_ok(comm_wait(&request));
    if (world->rank == 1)
        expect_ok(comm_barrier(world));
    comm_close(pair);
    free(sum);
    return STATUS_OK;
}

/* Measures the whole process: the thread that advances started calls must sleep, too. */
static int patience(struct comm *world) {
    clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    return cases_patience(world, &clock);
}

/* Rank 1 fails while the others wait for a message that never comes. */
static int patience_ends(struct comm *world) {
    int32_t word;
    expect_ok(comm_barrier(world));
    if (world->rank != 1)
        return comm_receive_patient(world, &(struct comm_data){NULL, &word, 1, DTYPE_I32, NULL},
                                    world->rank ? 0 : world->size - 1);
    nanosleep(&(const struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    return status_fail(STATUS_INVALID, "it was told to");
}

static int told_to_fail(struct comm *world) {
    return world->rank == 1 ? status_fail(STATUS_INVALID, "it was told to") : comm_barrier(world);
}

static int on_device(struct comm *world, int (*open_channel)(struct comm *group, struct device *device)) {
    struct device_cases cases = {.open_channel = open_channel};
    int status = device_open(test_device(), world->rank, 1, &cases.device);
    if (!status)
        status = cases_on_device(world, &cases);
    if (status)
        comm_abort(world, status_text()); /* before the device goes */
    device_close(cases.device);
    return status;
}

/* ---- between GPUs ---- */

static int nccl_open(struct comm *group, struct device *device) {
    return comm_nccl_open(group, device, 0);
}

enum { VICTIM = 1 };

/* A call with the rank that is lost; of a message, the other ranks each have one with it. */
static int meet_victim(struct comm *world, const char *kind, const struct comm_data *data) {
    struct comm_request request = {0};
    int status;
    if (!strcmp(kind, "reduce-scatter"))
        status = comm_reduce_scatter_start(world, data, &request);
    else if (!strcmp(kind, "gather"))
        status = comm_all_gather(world, data);
    else if (!strcmp(kind, "send"))
        status = comm_send(world, data, VICTIM);
    else if (!strcmp(kind, "receive"))
        status = comm_receive(world, data, VICTIM);
    else
        status = comm_all_reduce(world, data, strcmp(kind, "max") ? COMM_SUM : COMM_MAX);
    if (!status)
        status = comm_wait(&request);
    return status ? status : stream_wait(data->stream);
}

/* The victim dies or stops while the others wait for it in a call on their GPUs. They find it by their watch. */
static int lose(struct comm *world, const char *kind, int sign) {
    enum { N = 1000 };
    struct device *device;
    struct stream *stream;
    void *in, *out;
    struct comm_watch_options watch = {.seconds = 2};
    expect_ok(comm_agree(world, comm_watch(world, &watch)));
    expect_ok(device_open("cuda", world->rank, 1, &device));
    expect_ok(nccl_open(world, device));
    expect_ok(stream_open(device, &stream));
    expect_ok(device_alloc_zeroed(device, (size_t)world->size * N * sizeof(float), &in));
    expect_ok(device_alloc_zeroed(device, (size_t)world->size * N * sizeof(float), &out));
    expect_ok(comm_barrier(world));
    if (world->rank == VICTIM)
        raise(sign);
    while (world->rank == VICTIM) /* mpirun continues a stopped rank before it ends it */
        pause();
    return meet_victim(world, kind, &(struct comm_data){in, out, N, DTYPE_F32, stream});
}

int main(int count, char **words) {
    struct comm *world;
    const char *name = count >= 2 ? words[1] : "";
    if (!comm_mpi_is_launched()) {
        printf("no launcher started this as one of several ranks\n");
        return 2;
    }
    int status = comm_mpi_open(&world);
    if (status) {
        printf("%s\n", status_text());
        return 1;
    }
    if (!strcmp(name, "cases"))
        status = cases_run(world, NULL);
    else if (!strcmp(name, "device"))
        status = on_device(world, NULL);
    else if (!strcmp(name, "unordered"))
        status = on_device(world, unordered_open);
    else if (!strcmp(name, "nccl"))
        status = on_device(world, nccl_open);
    else if (!strcmp(name, "travels"))
        status = travels(world);
    else if (!strcmp(name, "groups"))
        status = waits_in_two_groups(world);
    else if (!strcmp(name, "patience"))
        status = patience(world);
    else if (!strcmp(name, "patience_ends"))
        status = patience_ends(world);
    else if (!strcmp(name, "mismatch"))
        status = mismatch(world);
    else if (!strcmp(name, "message"))
        status = message(world);
    else if (!strcmp(name, "killed") && count == 3)
        status = lose(world, words[2], SIGKILL);
    else if (!strcmp(name, "stopped") && count == 3)
        status = lose(world, words[2], SIGSTOP);
    else
        status = told_to_fail(world);
    if (status)
        comm_abort(world, status_text());
    comm_close(world);
    return status ? 1 : 0;
}
