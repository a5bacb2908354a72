/* The placement of ranks: cores that they share are divided between them, one thread each unless told otherwise. */
#include "parallel/site.h"

#include "support/test.h"

#include <sched.h>

enum { MOST = 64 };

/* The site that each rank found, and the cores that its thread may use afterwards. */
struct task {
    int threads;
    struct rank_site site[MOST];
    cpu_set_t set[MOST];
};

static int find(struct comm *world, void *context) {
    struct task *task = context;
    log_quiet(true);
    int status = rank_site_find(world, task->threads, &task->site[world->rank]);
    if (!status && sched_getaffinity(0, sizeof(cpu_set_t), &task->set[world->rank]))
        status = status_fail_errno("sched_getaffinity");
    return status;
}

static int cores_of_thread(cpu_set_t *set) {
    assert_int_equal(sched_getaffinity(0, sizeof *set, set), 0);
    return CPU_COUNT(set) < MOST ? CPU_COUNT(set) : MOST;
}

static void ranks_that_share_cores_get_each_their_own(void **state) {
    (void)state;
    cpu_set_t all, seen, both;
    int cores = cores_of_thread(&all);
    for (int threads = 0; threads <= 2; threads++) {
        int each = threads ? threads : 1, ranks = cores / each;
        struct task task = {.threads = threads};
        if (ranks < 2)
            continue;
        test_ok(comm_local_run(ranks, find, &task));
        CPU_ZERO(&seen);
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(task.site[r].threads, each);
            assert_int_equal(CPU_COUNT(&task.set[r]), each);
            CPU_AND(&both, &seen, &task.set[r]);
            assert_int_equal(CPU_COUNT(&both), 0);
            CPU_AND(&both, &all, &task.set[r]);
            assert_int_equal(CPU_COUNT(&both), each);
            CPU_OR(&seen, &seen, &task.set[r]);
        }
    }
}

static void more_ranks_than_cores_are_not_bound(void **state) {
    (void)state;
    cpu_set_t all;
    int ranks = cores_of_thread(&all) + 1;
    struct task task = {.threads = 0};
    if (ranks > MOST)
        test_skip("more cores than the test has ranks");
    test_ok(comm_local_run(ranks, find, &task));
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(task.site[r].threads, 1);
        assert_true(CPU_EQUAL(&task.set[r], &all));
        assert_string_equal(task.site[r].cores, task.site[0].cores);
    }
}

static void a_rank_alone_has_all_cores(void **state) {
    (void)state;
    cpu_set_t all;
    cores_of_thread(&all);
    for (int threads = 0; threads <= 3; threads += 3) {
        struct task task = {.threads = threads};
        test_ok(comm_local_run(1, find, &task));
        assert_int_equal(task.site[0].threads, threads ? threads : CPU_COUNT(&all));
        assert_true(CPU_EQUAL(&task.set[0], &all));
    }
}

static void the_first_of_host_and_process_is_found(void **state) {
    (void)state;
    struct task task = {.threads = 1};
    test_ok(comm_local_run(4, find, &task));
    for (int r = 0; r < 4; r++) {
        assert_int_equal(task.site[r].in_process, 4);
        assert_int_equal(task.site[r].is_first_in_process, r == 0);
        assert_int_equal(task.site[r].is_first_on_host, r == 0);
        assert_int_equal(task.site[r].place_on_host, r);
    }
}

static void a_survey_says_what_the_ranks_will_find(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks += 3)
        for (int threads = 0; threads <= 2; threads += 2) {
            struct rank_seat seats[4];
            struct task task = {.threads = threads};
            test_ok(rank_site_survey(NULL, ranks, threads, seats));
            test_ok(comm_local_run(ranks, find, &task));
            for (int r = 0; r < ranks; r++) {
                assert_int_equal(seats[r].threads, task.site[r].threads);
                assert_true(seats[r].is_here);
                assert_int_equal(task.site[r].first_on_host, 0);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_share_cores_get_each_their_own),
        cmocka_unit_test(more_ranks_than_cores_are_not_bound),
        cmocka_unit_test(a_rank_alone_has_all_cores),
        cmocka_unit_test(the_first_of_host_and_process_is_found),
        cmocka_unit_test(a_survey_says_what_the_ranks_will_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
