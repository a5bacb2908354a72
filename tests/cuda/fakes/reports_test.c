/* Faults that the stand-in for NCCL must report. Three ranks call the library itself, in a process of their own, which
 * ends with one line instead of a hang. */
#include "nccl-internal.h"

#include "comm/comm.h"
#include "kernels/handle.h"
#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 8, REPORT_STATUS = 90, REPORT_BYTES = 4096 };

/* A rank, a stream of its GPU, and two communicators of all ranks. */
struct scene {
    struct nccl_library nccl;
    int rank;
    struct stream *stream;
    struct CUstream_st *handle; /* of the stream */
    struct ncclComm *comms[2];
    void *in, *out;
};

static int check(unsigned result) {
    return result ? status_fail(STATUS_IO, "the library gives %u", result) : STATUS_OK;
}

/* Makes the GPU current to the calling thread. */
static int enter(struct scene *s) {
    void *handle = NULL;
    int status = stream_handle(s->stream, &handle);
    s->handle = handle;
    return status;
}

static int open_scene(struct scene *s, struct comm *world, struct device *device) {
    struct nccl_config config = NCCL_CONFIG_UNBLOCKED;
    struct nccl_id id = {{0}};
    *s = (struct scene){.rank = world->rank};
    config.blocking = 1;
    int status = nccl_library_open(&s->nccl);
    if (!status)
        status = stream_open(device, &s->stream);
    if (!status)
        status = enter(s);
    if (!status)
        status = device_alloc_zeroed(device, 4096, &s->in);
    if (!status)
        status = device_alloc_zeroed(device, 4096, &s->out);
    if (!status && s->rank == 0)
        status = check(s->nccl.make_id(&id));
    struct comm_data data = {.send = &id, .receive = &id, .count = sizeof id, .dtype = DTYPE_U8};
    if (!status)
        status = comm_broadcast(world, &data, 0);
    if (!status)
        status = check(s->nccl.join(&s->comms[0], RANKS, id, s->rank, &config));
    return status ? status : check(s->nccl.split(s->comms[0], 0, s->rank, &s->comms[1], &config));
}

/* ---- faults; each function makes one rank's calls ---- */

static unsigned sum(struct scene *s, int comm, size_t count) {
    return s->nccl.all_reduce(s->in, s->out, count, NCCL_FLOAT32, NCCL_SUM, s->comms[comm], s->handle);
}

static unsigned broadcast(struct scene *s, int root) {
    return s->nccl.broadcast(s->in, s->out, COUNT, NCCL_UINT8, root, s->comms[0], s->handle);
}

static unsigned counts(struct scene *s) {
    return sum(s, 0, s->rank == 1 ? COUNT + 1 : COUNT);
}

static unsigned types(struct scene *s) {
    unsigned type = s->rank == 1 ? NCCL_BFLOAT16 : NCCL_FLOAT32;
    return s->nccl.reduce_scatter(s->in, s->out, COUNT, type, NCCL_SUM, s->comms[0], s->handle);
}

static unsigned roots(struct scene *s) {
    return broadcast(s, s->rank == 1 ? 2 : 0);
}

static unsigned orders(struct scene *s) {
    unsigned result = s->rank == 1 ? broadcast(s, 0) : sum(s, 0, COUNT);
    return result ? result : s->rank == 1 ? sum(s, 0, COUNT) : broadcast(s, 0);
}

static unsigned message_counts(struct scene *s) {
    if (s->rank == 0)
        return s->nccl.send(s->in, COUNT, NCCL_UINT8, 1, s->comms[0], s->handle);
    return s->rank == 2 ? NCCL_SUCCESS : s->nccl.receive(s->out, COUNT + 1, NCCL_UINT8, 0, s->comms[0], s->handle);
}

/* Every rank sends before it receives, and not in one group. */
static unsigned ring(struct scene *s) {
    unsigned result = s->nccl.send(s->in, COUNT, NCCL_UINT8, (s->rank + 1) % RANKS, s->comms[0], s->handle);
    return result ? result : s->nccl.receive(s->out, COUNT, NCCL_UINT8, (s->rank + 2) % RANKS, s->comms[0], s->handle);
}

/* Two ranks wait for each other, and the third has ended. */
static unsigned pair(struct scene *s) {
    return s->rank == 2 ? NCCL_SUCCESS : s->nccl.send(s->in, COUNT, NCCL_UINT8, 1 - s->rank, s->comms[0], s->handle);
}

/* Two communicators on one stream, whose calls have another order on rank 1. */
static unsigned crossed(struct scene *s) {
    unsigned result = sum(s, s->rank == 1, COUNT);
    return result ? result : sum(s, s->rank != 1, COUNT);
}

static void *call_beside(void *context) {
    struct scene *s = context;
    if (!enter(s))
        broadcast(s, 0);
    return NULL;
}

static unsigned threads(struct scene *s) {
    pthread_t other;
    if (s->rank != 1)
        return NCCL_SUCCESS;
    setenv("CAMBIUM_NCCL_PAUSE", "300", 1);
    pthread_create(&other, NULL, call_beside, s);
    unsigned result = sum(s, 0, COUNT);
    pthread_join(other, NULL);
    return result;
}

/* ---- reports ---- */

static const struct fault {
    const char *name;
    unsigned (*call)(struct scene *s);
    const char *report[4];
} faults[] = {
    {"counts",
     counts,
     {"different calls in communicator 0, call 0: ", "rank 1 all-reduce of 9 float32 (sum)",
      "all-reduce of 8 float32 (sum)"}},
    {"types", types, {"different calls", "rank 1 reduce-scatter of 8 bfloat16 (sum)", "reduce-scatter of 8 float32"}},
    {"roots", roots, {"different calls", "rank 1 broadcast of 8 uint8 from 2", "broadcast of 8 uint8 from 0"}},
    {"orders", orders, {"different calls", "rank 1 broadcast of 8 uint8 from 0", "all-reduce of 8 float32 (sum)"}},
    {"message counts",
     message_counts,
     {"different messages in communicator 0: rank 1 receive of 9 uint8 from 0, rank 0 "
      "send of 8 uint8 to 1"}},
    {"ring",
     ring,
     {"wait for each other: rank 0 stands at send of 8 uint8 to 1 in communicator 0; rank 1 stands at send "
      "of 8 uint8 to 2 in communicator 0; rank 2 stands at send of 8 uint8 to 0"}},
    {"pair",
     pair,
     {"wait for each other: rank 0 stands at send of 8 uint8 to 1 in communicator 0; rank 1 stands at send "
      "of 8 uint8 to 0 in communicator 0\n"}},
    {"crossed",
     crossed,
     {"wait for each other:", "rank 1 stands at all-reduce of 8 float32 (sum) in communicator 1",
      "stands at all-reduce of 8 float32 (sum) in communicator 0"}},
    {"threads", threads, {"rank 1: two threads use communicator 0 at once, in nccl", "ncclAllReduce", "ncclBroadcast"}},
};

/* The GPUs were opened before the process began. */
struct trial {
    const struct fault *fault;
    struct device *devices[RANKS];
};

static int run_rank(struct comm *world, void *context) {
    const struct trial *trial = context;
    struct scene s;
    int status = open_scene(&s, world, trial->devices[world->rank]);
    if (!status)
        status = comm_barrier(world);
    if (!status)
        status = check(trial->fault->call(&s));
    if (!status)
        status = stream_wait(s.stream);
    return status ? status : comm_barrier(world);
}

/* Runs the ranks with standard error on a pipe. */
static pid_t start(struct trial *trial, int *output) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        alarm(60);
        _exit(comm_local_run(RANKS, run_rank, trial) ? 1 : 0);
    }
    close(ends[1]);
    *output = ends[0];
    return child;
}

static void every_fault_is_reported(void **state) {
    struct trial trial;
    (void)state;
    for (int r = 0; r < RANKS; r++)
        test_ok(device_open("cuda", r, 1, &trial.devices[r]));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char report[REPORT_BYTES] = "";
        int output, result;
        trial.fault = &faults[i];
        pid_t child = start(&trial, &output);
        size_t used = 0;
        for (ssize_t bytes; (bytes = read(output, report + used, sizeof report - 1 - used)) > 0;)
            used += (size_t)bytes;
        close(output);
        waitpid(child, &result, 0);
        bool is_right = WIFEXITED(result) && WEXITSTATUS(result) == REPORT_STATUS;
        for (int k = 0; k < 4 && faults[i].report[k]; k++)
            is_right = is_right && strstr(report, faults[i].report[k]);
        if (!is_right)
            fail_msg("%s: status %d, and this report:\n%s", faults[i].name, result, report);
    }
    for (int r = 0; r < RANKS; r++)
        device_close(trial.devices[r]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
