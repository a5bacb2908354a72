#include "cases.h"
#include "unordered.h"

#include "support/test.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static void run_cases(int ranks) {
    test_ok(comm_local_run(ranks, cases_run, NULL));
}
static void every_collective_of_1_rank(void **state) {
    (void)state;
    run_cases(1);
}
static void every_collective_of_2_ranks(void **state) {
    (void)state;
    run_cases(2);
}
static void every_collective_of_3_ranks(void **state) {
    (void)state;
    run_cases(3);
}
static void every_collective_of_4_ranks(void **state) {
    (void)state;
    run_cases(4);
}
static void every_collective_of_8_ranks(void **state) {
    (void)state;
    run_cases(8);
}

/* ---- device memory ---- */

static void run_on_device(int (*open_channel)(struct comm *group, struct device *device)) {
    struct device_cases cases = {.open_channel = open_channel};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &cases.device));
    for (int ranks = 1; ranks <= 4; ranks++)
        test_ok(comm_local_run(ranks, cases_on_device, &cases));
    device_close(cases.device);
}

static void device_memory_moves_in_the_order_of_streams(void **state) {
    (void)state;
    run_on_device(NULL);
}

static void a_channel_need_not_promise_the_order_of_ranks(void **state) {
    (void)state;
    run_on_device(unordered_open);
}

/* ---- different calls ---- */

enum difference { OTHER_KIND, OTHER_COUNT, OTHER_TYPE, OTHER_OP, OTHER_ROOT };

static int call_differently(struct comm *world, void *context) {
    enum difference difference = *(enum difference *)context;
    double in[64] = {0}, out[64 * 8];
    bool is_odd = world->rank == 2;
    struct comm_data data = {in, out, is_odd && difference == OTHER_COUNT ? 9 : 8,
                             is_odd && difference == OTHER_TYPE ? DTYPE_BF16 : DTYPE_F32, NULL};
    if (difference == OTHER_ROOT)
        return comm_broadcast(world, &data, is_odd ? 1 : 0);
    if (difference == OTHER_KIND && is_odd)
        return comm_all_gather(world, &data);
    return comm_all_reduce(world, &data, is_odd && difference == OTHER_OP ? COMM_MAX : COMM_SUM);
}

static void different_calls_are_named(void **state) {
    (void)state;
    static const char *const parts[][2] = {
        [OTHER_KIND] = {"rank 0 all-reduce (sum) of 8 fp32", "rank 2 all-gather of 8 fp32"},
        [OTHER_COUNT] = {"rank 0 all-reduce (sum) of 8 fp32", "rank 2 all-reduce (sum) of 9 fp32"},
        [OTHER_TYPE] = {"rank 0 all-reduce (sum) of 8 fp32", "rank 2 all-reduce (sum) of 8 bf16"},
        [OTHER_OP] = {"rank 0 all-reduce (sum) of 8 fp32", "rank 2 all-reduce (max) of 8 fp32"},
        [OTHER_ROOT] = {"rank 0 broadcast of 8 fp32 from root 0", "rank 2 broadcast of 8 fp32 from root 1"},
    };
    for (enum difference d = OTHER_KIND; d <= OTHER_ROOT; d++) {
        int status = comm_local_run(4, call_differently, &d);
        test_fails(status, STATUS_INVALID, parts[d][0]);
        test_fails(status, STATUS_INVALID, parts[d][1]);
    }
}

static int message_differently(struct comm *world, void *context) {
    (void)context;
    float numbers[16] = {0};
    if (world->rank == 1)
        return comm_send(world, &(struct comm_data){numbers, NULL, 8, DTYPE_F32, NULL}, 2);
    if (world->rank == 2)
        return comm_receive(world, &(struct comm_data){NULL, numbers, 9, DTYPE_I32, NULL}, 1);
    return comm_barrier(world);
}

static void a_different_message_is_named(void **state) {
    (void)state;
    test_fails(comm_local_run(3, message_differently, NULL), STATUS_INVALID,
               "rank 1 sends 8 fp32 to rank 2, which receives 9 int32");
}

static int group_differently(struct comm *world, void *context) {
    (void)context;
    struct comm *group;
    return comm_subgroup(world, (int[]){0, 1, 2}, world->rank == 0 ? 2 : 3, &group);
}

static void different_lists_of_ranks_are_named(void **state) {
    (void)state;
    test_fails(comm_local_run(3, group_differently, NULL), STATUS_INVALID, "different lists of ranks");
}

/* ---- failures ---- */

enum place { IN_BARRIER, IN_MESSAGE, IN_PATIENCE, IN_SUBGROUP, IN_STARTED, PLACE_COUNT };

struct failure {
    enum place place;
    bool is_error; /* rank 2 fails; else it just ends */
    _Atomic int released;
    char text[8][256]; /* [rank] */
};

static int wait_somewhere(struct comm *world, enum place place) {
    struct comm *group;
    struct comm_request request;
    double value = 1;
    struct comm_data data = {&value, &value, 1, DTYPE_F64, NULL};
    switch (place) {
    case IN_BARRIER:
        return comm_barrier(world);
    case IN_MESSAGE:
        return comm_receive(world, &data, 2);
    case IN_PATIENCE:
        return comm_receive_patient(world, &data, 2);
    case IN_SUBGROUP:
        return comm_subgroup(world, (int[]){0, 1, 2, 3}, 4, &group);
    default:
        expect_ok(comm_all_reduce_start(world, &data, COMM_SUM, &request));
        return comm_wait(&request);
    }
}

static int fail_among_others(struct comm *world, void *context) {
    struct failure *failure = context;
    if (world->rank == 2) {
        usleep(50 * 1000); /* the others sleep by now */
        return failure->is_error ? status_fail(STATUS_IO, "the disk is full") : STATUS_OK;
    }
    int status = wait_somewhere(world, failure->place);
    failure->released += status == STATUS_PEER;
    snprintf(failure->text[world->rank], sizeof failure->text[0], "%s", status_text());
    int again = comm_barrier(world); /* a failed world stays so */
    expect(again == status);
    return status;
}

static void a_failed_rank_releases_the_others(void **state) {
    (void)state;
    for (enum place place = 0; place < PLACE_COUNT; place++) {
        struct failure failure = {.place = place, .is_error = true};
        test_fails(comm_local_run(4, fail_among_others, &failure), STATUS_IO, "rank 2: the disk is full");
        assert_int_equal(failure.released, 3);
        assert_string_equal(failure.text[0], "rank 2 failed: the disk is full");
        assert_string_equal(failure.text[3], failure.text[0]);
    }
}

/* Rank 1 computes; the others wait for it. */
static int give_signs(struct comm *world, void *context) {
    struct comm_signs before[3];
    (void)context;
    if (world->rank != 1)
        return comm_barrier(world);
    for (int r = 0; r < 3; r++)
        before[r] = comm_signs_of(world, r);
    for (int r = 0; r < 3; r += 2)
        while (comm_signs_of(world, r).count < before[r].count + 5)
            usleep(1000);
    struct comm_signs mine = comm_signs_of(world, 1);
    expect(mine.are_known && mine.count == before[1].count && !mine.is_failed);
    int status = comm_barrier(world);
    expect(comm_signs_of(world, 1).count > mine.count);
    comm_abort(world, "enough");
    expect(comm_signs_of(world, 1).is_failed && !comm_signs_of(world, 0).is_failed);
    return status;
}

static void a_rank_that_waits_gives_signs_and_one_that_computes_none(void **state) {
    (void)state;
    test_ok(comm_local_run(3, give_signs, NULL));
}

static void a_rank_that_ends_early_releases_the_others(void **state) {
    (void)state;
    for (enum place place = 0; place < PLACE_COUNT; place++) {
        struct failure failure = {.place = place, .is_error = false};
        test_fails(comm_local_run(4, fail_among_others, &failure), STATUS_PEER, "rank 2 ended while rank");
        assert_int_equal(failure.released, 3);
    }
}

/* Ranks fail while their buffers are in use by others, and free them at once: for the sanitizers. */
static int fail_in_the_middle(struct comm *world, void *context) {
    int round = *(int *)context, status = STATUS_OK;
    enum { N = 200000 };
    float *numbers = calloc(N, sizeof *numbers);
    expect(numbers);
    struct comm_request requests[2] = {0};
    struct comm_data data = {numbers, numbers, N / 2, DTYPE_F32, NULL};
    struct comm_data more = {numbers + N / 2, numbers + N / 2, N / 2, DTYPE_F32, NULL};
    for (int i = 0; i < 20 && !status; i++) {
        status = comm_all_reduce_start(world, &data, COMM_SUM, &requests[0]);
        status = status ? status : comm_all_reduce_start(world, &more, COMM_MAX, &requests[1]);
        if (!status && world->rank == round % 3 && i == round % 20)
            status = status_fail(STATUS_IO, "torn off");
        status = status ? status : comm_wait(&requests[0]);
        status = status ? status : comm_wait(&requests[1]);
        int next = (world->rank + 1) % world->size, before = (world->rank + 2) % world->size;
        struct comm_data out = {numbers, NULL, N / 2, DTYPE_F32, NULL},
                         in = {NULL, numbers + N / 2, N / 2, DTYPE_F32, NULL};
        status = status ? status : comm_receive_start(world, &in, before, &requests[0]);
        status = status ? status : comm_send_start(world, &out, next, &requests[1]);
        status = status ? status : comm_wait(&requests[1]);
        status = status ? status : comm_wait(&requests[0]);
    }
    if (status == STATUS_IO)
        comm_abort(world, status_text());
    free(numbers);
    return status;
}

static void a_failed_rank_may_free_its_buffers(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++)
        test_fails(comm_local_run(3, fail_in_the_middle, &round), STATUS_IO, "torn off");
}

/* ---- calls that are refused ---- */

static int refuse(struct comm *world, void *context) {
    (void)context;
    float numbers[64] = {0};
    struct comm *group;
    struct comm_request requests[COMM_STARTED_MAX + 1];
    struct comm_data data = {numbers, numbers, 8, DTYPE_F32, NULL};
    struct comm_data shifted = {numbers, numbers + 1, 8, DTYPE_F32, NULL},
                     unsummed = {numbers, numbers, 8, DTYPE_U8, NULL};
    expect(comm_all_reduce(world, &shifted, COMM_SUM) == STATUS_INVALID && strstr(status_text(), "overlap"));
    expect(comm_all_gather(world, &shifted) == STATUS_INVALID);
    expect(comm_reduce_scatter_start(world, &unsummed, &requests[0]) == STATUS_UNSUPPORTED &&
           strstr(status_text(), "uint8"));
    expect(comm_broadcast(world, &data, 5) == STATUS_INVALID && strstr(status_text(), "ranks 0 to 1"));
    expect(comm_send(world, &data, world->rank) == STATUS_INVALID && strstr(status_text(), "itself"));
    expect(comm_all_reduce(world, &(struct comm_data){numbers, NULL, 8, DTYPE_F32, NULL}, COMM_SUM) == STATUS_INVALID);
    expect(comm_all_reduce(world, &(struct comm_data){numbers, numbers, -1, DTYPE_F32, NULL}, COMM_SUM) ==
           STATUS_INVALID);
    expect(comm_subgroup(world, (int[]){0, 2}, 2, &group) == STATUS_INVALID);
    expect(comm_subgroup(world, (int[]){1, 1}, 2, &group) == STATUS_INVALID);
    expect(comm_subgroup(world, (int[]){1 - world->rank}, 1, &group) == STATUS_INVALID);
    for (int i = 0; i < COMM_STARTED_MAX; i++)
        expect_ok(comm_all_reduce_start(world, &data, COMM_MAX, &requests[i]));
    expect(comm_all_reduce_start(world, &data, COMM_MAX, &requests[COMM_STARTED_MAX]) == STATUS_INVALID);
    for (int i = 0; i < COMM_STARTED_MAX; i++)
        expect_ok(comm_wait(&requests[i]));
    return comm_barrier(world);
}

static void wrong_calls_are_refused_and_harm_nobody(void **state) {
    (void)state;
    test_ok(comm_local_run(2, refuse, NULL));
    test_fails(comm_local_run(0, refuse, NULL), STATUS_INVALID, "0 ranks");
}

/* ---- what all mean ---- */

enum same_case { SAME, OTHER_VALUE, OTHER_NAME, ONE_MORE, ONE_LESS };

/* Rank 2 of three has something else. */
static int compare_facts(struct comm *world, void *context) {
    enum same_case which = *(enum same_case *)context;
    bool is_other = world->rank == 2 && which != SAME;
    struct facts facts = FACTS_INIT;
    expect_ok(facts_add(&facts, FACT_CONFIGURATION, "train.seed", "1", NULL));
    expect_ok(facts_add(&facts, FACT_FILES, "tokenizer", world->rank ? "/b" : "/a", "1 path"));
    if (is_other && which == OTHER_VALUE)
        expect_ok(facts_add(&facts, FACT_CONFIGURATION, "optim.lr", "0.2", NULL));
    else if (!is_other || which != ONE_LESS)
        expect_ok(facts_add(&facts, FACT_CONFIGURATION, is_other && which == OTHER_NAME ? "--help" : "optim.lr", "0.1",
                            NULL));
    if (is_other && which == ONE_MORE)
        expect_ok(facts_add(&facts, FACT_FILES, "--data, path 2", "b.jsonl", NULL));
    int status = comm_same(world, &facts);
    facts_free(&facts);
    expect(is_other ? status == STATUS_INVALID : !status);
    return status ? status : comm_barrier(world);
}

static void the_first_fact_that_differs_is_named_by_its_rank(void **state) {
    (void)state;
    static const char *const texts[] = {
        [OTHER_VALUE] = "rank 2: optim.lr is 0.2, rank 0 has 0.1: all ranks need the same configuration",
        [OTHER_NAME] = "rank 2: --help is 0.1, where rank 0 has optim.lr 0.1: all ranks need the same configuration",
        [ONE_MORE] = "rank 2: --data, path 2 is b.jsonl, rank 0 has none: all ranks need the same files",
        [ONE_LESS] = "rank 2: optim.lr is missing, rank 0 has 0.1: all ranks need the same configuration"};
    enum same_case which = SAME;
    test_ok(comm_local_run(3, compare_facts, &which));
    for (which = OTHER_VALUE; which <= ONE_LESS; which++)
        test_fails(comm_local_run(3, compare_facts, &which), STATUS_INVALID, texts[which]);
}

static void patience_takes_no_core(void **state) {
    static clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
    (void)state;
    test_ok(comm_local_run(3, cases_patience, &clock));
}

static void a_single_process_is_not_launched(void **state) {
    (void)state;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMIX_RANK");
    unsetenv("SLURM_STEP_NUM_TASKS");
    assert_false(comm_mpi_is_launched());
    setenv("SLURM_NTASKS", "4", 1); /* of a batch script, which is one process */
    assert_false(comm_mpi_is_launched());
    setenv("PMIX_RANK", "0", 1);
    assert_true(comm_mpi_is_launched());
    setenv("SLURM_STEP_NUM_TASKS", "1", 1);
    assert_false(comm_mpi_is_launched());
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_true(comm_mpi_is_launched());
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1); /* mpirun -n 1 */
    assert_false(comm_mpi_is_launched());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_of_1_rank),
        cmocka_unit_test(every_collective_of_2_ranks),
        cmocka_unit_test(every_collective_of_3_ranks),
        cmocka_unit_test(every_collective_of_4_ranks),
        cmocka_unit_test(every_collective_of_8_ranks),
        cmocka_unit_test(device_memory_moves_in_the_order_of_streams),
        cmocka_unit_test(a_channel_need_not_promise_the_order_of_ranks),
        cmocka_unit_test(different_calls_are_named),
        cmocka_unit_test(a_different_message_is_named),
        cmocka_unit_test(different_lists_of_ranks_are_named),
        cmocka_unit_test(a_failed_rank_releases_the_others),
        cmocka_unit_test(a_rank_that_waits_gives_signs_and_one_that_computes_none),
        cmocka_unit_test(a_rank_that_ends_early_releases_the_others),
        cmocka_unit_test(a_failed_rank_may_free_its_buffers),
        cmocka_unit_test(wrong_calls_are_refused_and_harm_nobody),
        cmocka_unit_test(the_first_fact_that_differs_is_named_by_its_rank),
        cmocka_unit_test(patience_takes_no_core),
        cmocka_unit_test(a_single_process_is_not_launched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
