/* If any allocation fails at any rank, that rank reports it, the others are released, and no memory is leaked. Ranks
 * are threads. */
#include "comm/comm.h"
#include "kernels/device.h"

#include "support/failing.h"
#include "support/test.h"

enum { RANKS = 3, COUNT = 1000, DEADLINE = 60 /* seconds; a rank that waits for ever would need more */ };

/* Makes calls of each kind, in which the others wait for a rank that had no memory for its numbers. */
static int talk(struct comm *world, struct comm *group, float *numbers) {
    int next = (world->rank + 1) % world->size, last = (world->rank + world->size - 1) % world->size;
    struct comm_request request, sending;
    struct comm_data sum = {.send = numbers, .receive = numbers, .count = COUNT, .dtype = DTYPE_F32};
    struct comm_data out = {.send = numbers, .count = COUNT, .dtype = DTYPE_F32};
    struct comm_data in = {.receive = numbers + COUNT, .count = COUNT, .dtype = DTYPE_F32};
    int status = comm_all_reduce_start(world, &sum, COMM_SUM, &request);
    if (!status)
        status = comm_wait(&request);
    if (!status)
        status = comm_receive_start(world, &in, last, &request);
    if (!status)
        status = comm_send_start(world, &out, next, &sending);
    if (!status)
        status = comm_wait(&sending);
    if (!status)
        status = comm_wait(&request);
    if (!status)
        status = comm_broadcast(group, &sum, 0);
    return status ? status : comm_barrier(world);
}

static int open_groups(struct comm *world, struct comm *groups[2]) {
    int all[RANKS] = {2, 0, 1};
    int status = comm_subgroup(world, all, world->size, &groups[0]);
    return status ? status : comm_subgroup(world, &world->rank, 1, &groups[1]);
}

static int be_alike(struct comm *world) {
    struct facts facts = FACTS_INIT;
    int status = facts_add(&facts, FACT_CONFIGURATION, "a fact", "the same", NULL);
    status = comm_agree(world, status);
    if (!status)
        status = comm_same(world, &facts);
    facts_free(&facts);
    return status;
}

static int run_rank(struct comm *world, void *context) {
    struct comm *groups[2] = {0};
    (void)context;
    int status = open_groups(world, groups);
    if (!status)
        status = be_alike(world);
    float *numbers = status ? NULL : calloc(2 * COUNT, sizeof *numbers);
    if (!status && !numbers)
        status = status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = talk(world, groups[0], numbers);
    comm_close(groups[0]);
    comm_close(groups[1]);
    if (status)
        comm_abort(world, status_text()); /* before its numbers go */
    free(numbers);
    return status;
}

static int run_ranks(void *context) {
    (void)context;
    test_ends_within(DEADLINE);
    return comm_local_run(RANKS, run_rank, NULL);
}

static void ranks_never_wait_for_one_that_failed(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(run_ranks, NULL, 1000), 0);
}

static int open_world(void *context) {
    struct comm *comms[RANKS];
    int ranks = *(int *)context, status = comm_local_open(ranks, comms);
    for (int r = 0; r < ranks && !status; r++)
        comm_close(comms[r]);
    return status;
}

static void a_world_opens_and_closes(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks += RANKS - 1)
        assert_int_equal(failing_try_all(open_world, &ranks, 300), 0);
}

/* ---- device memory that the host cannot read ---- */

static int sum(struct comm *group, struct stream *stream, float *numbers, int64_t count) {
    struct comm_data data = {.send = numbers, .receive = numbers, .count = count, .dtype = DTYPE_F32, .stream = stream};
    int status = comm_all_reduce(group, &data, COMM_SUM);
    return status ? status : stream_wait(stream);
}

/* Two sums at once, of any sizes up to COUNT. */
static int step(struct comm *group, struct stream *stream, float *numbers, int64_t count) {
    struct comm_data first = {
        .send = numbers, .receive = numbers, .count = count, .dtype = DTYPE_F32, .stream = stream};
    struct comm_request request;
    int status = comm_all_reduce_start(group, &first, COMM_SUM, &request);
    if (!status)
        status = sum(group, stream, numbers + COUNT, COUNT - count);
    return status ? status : comm_wait(&request);
}

static int run_steps(struct comm *world, struct comm *group, struct device *device) {
    struct stream *stream = NULL;
    void *numbers = NULL;
    long calls = 0;
    int status = stream_open(device, &stream);
    if (!status)
        status = device_alloc_zeroed(device, 2 * COUNT * sizeof(float), &numbers);
    for (int i = 0; i < 2 && !status; i++) /* whole sizes in either place: later ones fit into these blocks */
        status = step(group, stream, numbers, i ? 1 : COUNT - 1);
    if (!status)
        status = comm_barrier(world);
    if (!status && world->rank == 0)
        failing_start(0);
    if (!status)
        status = comm_barrier(world);
    for (int i = 0; i < 10 && !status; i++)
        status = step(group, stream, numbers, 1 + 80 * i);
    if (!status)
        status = comm_barrier(world);
    if (world->rank == 0)
        calls = failing_stop();
    if (stream)
        stream_close(stream);
    device_free(device, numbers);
    return status || !calls ? status : status_fail(STATUS_INVALID, "%ld allocations in ten steps", calls);
}

static int run_on_device(struct comm *world, void *context) {
    struct device *device;
    struct comm *group = NULL;
    int all[2] = {0, 1};
    (void)context;
    int status = device_open("late", DEVICE_FIRST, 1, &device);
    if (!status)
        status = comm_subgroup(world, all, 2, &group);
    if (!status)
        status = run_steps(world, group, device);
    if (status)
        comm_abort(world, status_text());
    comm_close(group);
    device_close(device);
    return status;
}

static void a_group_keeps_the_host_memory_of_its_calls(void **state) {
    (void)state;
    test_ends_within(DEADLINE);
    test_ok(comm_local_run(2, run_on_device, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_world_opens_and_closes),
        cmocka_unit_test(ranks_never_wait_for_one_that_failed),
        cmocka_unit_test(a_group_keeps_the_host_memory_of_its_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
