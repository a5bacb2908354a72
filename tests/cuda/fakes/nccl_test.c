/* Collectives over the stand-in for NCCL, with ranks as threads that each have a GPU. tests/comm/mpi_ranks.c has the
 * same body for processes. */
#include "nccl-internal.h"

#include "comm/cases.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

/* ---- every call ---- */

static int open_channel(struct comm *group, struct device *device) {
    return comm_nccl_open(group, device, 0);
}

static int run_on_own_card(struct comm *world, void *context) {
    struct device_cases cases = {.open_channel = open_channel};
    (void)context;
    int status = device_open("cuda", world->rank, 1, &cases.device);
    if (!status)
        status = cases_on_device(world, &cases);
    if (status)
        comm_abort(world, status_text()); /* before the device goes */
    device_close(cases.device);
    return status;
}

static void every_call_moves_from_card_to_card(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        test_ok(comm_local_run(ranks, run_on_own_card, NULL));
}

/* ---- functions that fail ---- */

static const struct {
    const char *command, *rank, *report; /* no report: nothing fails */
} failures[] = {
    {"ncclGetUniqueId", "rank 0: ", "NCCL cannot begin: unhandled system error (2)"},
    {"ncclCommInitRankConfig@1", "rank 1: ", "joining the ranks over NCCL failed: unhandled system error (2)"},
    {"ncclCommGetAsyncError@1", "rank 1: ", "joining the ranks over NCCL failed: internal error (3)"},
    {"ncclCommSplit@1", "rank 1: ", "making a group over NCCL failed: invalid usage (5)"},
    {"ncclGroupStart", "rank ", "all-reduce (sum) of 1 fp32 over NCCL failed: unhandled system error (2)"},
    {"ncclGroupEnd", "rank ", "all-reduce (sum) of 1 fp32 over NCCL failed: unhandled system error (2)"},
    {"ncclAllReduce@1", "rank 1: ", "all-reduce (sum) of 1 fp32 over NCCL failed: unhandled system error (2)"},
    {"ncclAllGather@1", "rank 1: ", "all-reduce (max) of 1 fp32 over NCCL failed: unhandled system error (2)"},
    {"ncclReduceScatter@1", "rank 1: ", "reduce-scatter of 1 fp32 over NCCL failed: unhandled system error (2)"},
    {"ncclBroadcast@1", "rank 1: ", "broadcast of 1 fp32 from root 1 over NCCL failed: unhandled system error (2)"},
    {"ncclSend@1", "rank 1: ", "receive of 1 fp32 from rank 0 over NCCL failed: unhandled system error (2)"},
    {"ncclRecv@1", "rank 1: ", "receive of 1 fp32 from rank 0 over NCCL failed: unhandled system error (2)"},
    {"ncclCommFinalize", NULL, NULL}, /* the communicator is aborted instead */
    {"ncclCommDestroy", NULL, NULL},  /* nothing uses it any more */
};

enum { FAILING_RANKS = 2 };

/* The GPUs stay open from one failure to the next. */
static int run_on_open_card(struct comm *world, void *context) {
    struct device *const *devices = context;
    struct device_cases cases = {.device = devices[world->rank], .open_channel = open_channel};
    return cases_on_device(world, &cases);
}

static void a_function_that_fails_ends_all_ranks_with_one_line(void **state) {
    struct device *devices[FAILING_RANKS];
    (void)state;
    for (int r = 0; r < FAILING_RANKS; r++)
        test_ok(device_open("cuda", r, 1, &devices[r]));
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        assert_int_equal(setenv("CAMBIUM_NCCL_FAIL", failures[i].command, 1), 0);
        int result = comm_local_run(FAILING_RANKS, run_on_open_card, devices);
        assert_int_equal(unsetenv("CAMBIUM_NCCL_FAIL"), 0);
        const char *rank = failures[i].rank, *report = failures[i].report;
        bool is_right = report ? result && strstr(status_text(), rank) && strstr(status_text(), report) : !result;
        if (!is_right)
            fail_msg("%s: %d, %s", failures[i].command, result, result ? status_text() : "");
    }
    for (int r = 0; r < FAILING_RANKS; r++)
        device_close(devices[r]);
}

static void a_library_that_lacks_a_function_is_refused(void **state) {
    struct nccl_library library;
    (void)state;
    assert_int_equal(nccl_library_open(&library), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_text(), "libnccl.so.2 has no function ncclGetErrorString: " COMM_WITHOUT_NCCL));
}

/* ---- in a program with check_calls.c ---- */

/* Rank 1's call differs from the others'. */
static int differ(struct comm *world, struct device *device, bool is_message) {
    struct stream *stream;
    void *memory;
    int status = stream_open(device, &stream);
    if (status)
        return status;
    status = device_alloc_zeroed(device, 1024, &memory);
    if (status) {
        stream_close(stream);
        return status;
    }
    struct comm_data data = {memory, (char *)memory + 512, world->rank == 1 ? 9 : 8, DTYPE_F32, stream};
    status = !is_message        ? comm_all_reduce(world, &data, COMM_SUM)
             : world->rank == 1 ? comm_receive(world, &data, 0)
                                : comm_send(world, &data, 1);
    stream_close(stream);
    device_free(device, memory);
    return status;
}

static int differ_on_own_card(struct comm *world, void *context) {
    struct device *device;
    int status = device_open("cuda", world->rank, 1, &device);
    if (!status)
        status = comm_nccl_open(world, device, 0);
    if (!status)
        status = differ(world, device, *(bool *)context);
    comm_abort(world, status ? status_text() : "no difference was found");
    comm_leave_device_channel(world);
    device_close(device);
    return status;
}

static void a_difference_is_found_before_data_moves(void **state) {
    bool is_message = false;
    (void)state;
    assert_int_equal(comm_local_run(2, differ_on_own_card, &is_message), STATUS_INVALID);
    assert_non_null(
        strstr(status_text(), "different calls: rank 0 all-reduce (sum) of 8 fp32, rank 1 all-reduce (sum) of 9 fp32"));
    is_message = true;
    assert_int_equal(comm_local_run(2, differ_on_own_card, &is_message), STATUS_INVALID);
    assert_non_null(strstr(status_text(),
                           "different calls: rank 1 receive of 9 fp32 from rank 0, rank 0 send of 8 fp32 to rank 1"));
}

int main(int count, char **words) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_moves_from_card_to_card),
        cmocka_unit_test(a_function_that_fails_ends_all_ranks_with_one_line),
    };
    const struct CMUnitTest lacking[] = {
        cmocka_unit_test(a_library_that_lacks_a_function_is_refused),
    };
    const struct CMUnitTest checked[] = {
        cmocka_unit_test(every_call_moves_from_card_to_card),
        cmocka_unit_test(a_difference_is_found_before_data_moves),
    };
    if (count == 2 && !strcmp(words[1], "checked"))
        return cmocka_run_group_tests(checked, NULL, NULL);
    if (count == 2 && !strcmp(words[1], "lacking"))
        return cmocka_run_group_tests(lacking, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
