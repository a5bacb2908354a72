/* Threads that wait for each other: when they spin, when they sleep, and that libgomp does what is chosen. */
#include "cpu/waits.h"

#include "support/processor_time.h"
#include "support/test.h"

#include "base/base.h"
#include "kernels/device.h"

#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the choice ---- */

/* Looks that all say the same; returns how many it took until the choice changed, 0 where it did not. */
static int look(struct waits_choice *choice, double others, int cores, int threads) {
    bool before = choice->is_asleep;
    for (int looks = 1; looks <= 3 * WAITS_IDLE_LOOKS; looks++)
        if (waits_choose(choice, others, cores, threads) != before)
            return looks;
    return 0;
}

static void threads_sleep_while_others_want_their_cores(void **state) {
    (void)state;
    struct waits_choice choice = {0};
    assert_int_equal(look(&choice, 0.1, 2, 2), 0);
    assert_int_equal(look(&choice, 1, 2, 2), WAITS_BUSY_LOOKS);
    assert_int_equal(look(&choice, 0.3, 2, 2), 0); /* neither busy nor idle: the choice stays */
    assert_int_equal(look(&choice, 0.05, 2, 2), WAITS_IDLE_LOOKS);
    assert_int_equal(look(&choice, 0.3, 2, 2), 0);
}

static void cores_that_are_left_over_may_be_busy(void **state) {
    (void)state;
    struct waits_choice choice = {0};
    assert_int_equal(look(&choice, 30, 64, 32), 0);
    assert_int_equal(look(&choice, 33, 64, 32), WAITS_BUSY_LOOKS);
    assert_int_equal(look(&choice, 30, 64, 32), WAITS_IDLE_LOOKS);
}

static void a_single_busy_look_changes_nothing(void **state) {
    (void)state;
    struct waits_choice choice = {0};
    for (int i = 0; i < 30; i++) {
        assert_false(waits_choose(&choice, 2, 2, 2));
        assert_false(waits_choose(&choice, 0, 2, 2));
    }
}

static void threads_spin_where_the_system_does_not_say(void **state) {
    (void)state;
    struct waits_choice choice = {0};
    assert_int_equal(look(&choice, -1, 2, 2), 0);
    assert_int_equal(look(&choice, 2, 2, 2), WAITS_BUSY_LOOKS);
    assert_int_equal(look(&choice, -1, 2, 2), WAITS_IDLE_LOOKS);
}

/* ---- the teams ---- */

static void *open_device(void *context) {
    assert_int_equal(device_open("cpu", DEVICE_FIRST, 2, context), STATUS_OK);
    return NULL;
}

/* bench finetune and plan calibrate have two trainers on one thread. With their threads added up, an idle machine would
 * count as busy, and each step would take up to 1.7 times as long. */
static void devices_of_one_thread_count_once_and_those_of_two_threads_twice(void **state) {
    (void)state;
    struct device *first, *second, *elsewhere;
    pthread_t thread;
    open_device(&first);
    if (device_threads(first) < 2) {
        device_close(first);
        test_skip("OpenMP gives one thread");
    }
    assert_int_equal(waits_threads(), 2);
    open_device(&second);
    assert_int_equal(waits_threads(), 2);
    assert_int_equal(pthread_create(&thread, NULL, open_device, &elsewhere), 0);
    pthread_join(thread, NULL);
    assert_int_equal(waits_threads(), 4);
    device_close(first);
    assert_int_equal(waits_threads(), 4);
    device_close(second);
    assert_int_equal(waits_threads(), 2);
    device_close(elsewhere); /* opened by a thread that has ended */
    assert_int_equal(waits_threads(), 0);
}

static void the_largest_device_of_a_thread_counts(void **state) {
    (void)state;
    struct waits_team teams[3];
    static const int threads[] = {2, 4, 3};
    for (int i = 0; i < 3; i++)
        waits_begin(&teams[i], threads[i]);
    assert_int_equal(waits_threads(), 4);
    waits_end(&teams[1]);
    assert_int_equal(waits_threads(), 3);
    waits_end(&teams[0]);
    waits_end(&teams[2]);
    assert_int_equal(waits_threads(), 0);
}

/* ---- libgomp ---- */

/* A thread that spins for this long, in seconds of its own processor time, does not go to sleep after the few
 * microseconds of libgomp's short spinning. The machine's other work does not count. */
static const double spinning = 2e-4;

enum { SECTIONS = 100 };

static void *hog(void *context) {
    for (volatile bool is_endless = true; is_endless;)
        continue;
    return context;
}

/* Returns true if the system says that this thread sleeps. */
static bool is_sleeping(pid_t thread) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
    fclose(file);
    return state == 'S';
}

/* How often the second thread of a team went to sleep right after a section. */
static int count_sleeps(void) {
    int sleeps = 0;
    for (int i = 0; i < SECTIONS; i++) {
        pid_t second = 0;
        clockid_t clock = CLOCK_MONOTONIC;
        double begin = 0;
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 1) {
            second = gettid();
            pthread_getcpuclockid(pthread_self(), &clock);
            begin = processor_seconds(clock);
        }
        assert_true(second);
        bool is_asleep = false, has_spun = false;
        while (!is_asleep && !has_spun) {
            is_asleep = is_sleeping(second);
            has_spun = processor_seconds(clock) > begin + spinning; /* and may sleep since */
        }
        sleeps += !has_spun;
    }
    return sleeps;
}

/* Looks until the threads sleep: the watch needs a few looks of its own. */
static bool do_threads_sleep(void) {
    for (int i = 0; i < 300; i++) {
        if (count_sleeps() > SECTIONS / 2)
            return true;
        usleep(100000);
    }
    return false;
}

/* Another process is what the watch looks for: a child that takes every core. */
static pid_t start_hogs(void) {
    pid_t child = fork();
    if (child)
        return child;
    pthread_t thread;
    for (int i = 1; i < usable_cores(); i++)
        pthread_create(&thread, NULL, hog, NULL);
    hog(NULL);
    _exit(0);
}

static void busy_machines_make_the_threads_sleep_and_idle_ones_let_them_spin(void **state) {
    (void)state;
#ifndef _OPENMP
    test_skip("a build without OpenMP");
#endif
    if (usable_cores() < 2)
        test_skip("a single core");
    struct waits_team team;
    waits_begin(&team, usable_cores());
    pid_t child = start_hogs();
    assert_true(child > 0);
    bool slept = do_threads_sleep();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    waits_end(&team);
    assert_true(slept);
    assert_true(count_sleeps() < SECTIONS / 10); /* without the watch, libgomp's own choice is back */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_sleep_while_others_want_their_cores),
        cmocka_unit_test(cores_that_are_left_over_may_be_busy),
        cmocka_unit_test(a_single_busy_look_changes_nothing),
        cmocka_unit_test(threads_spin_where_the_system_does_not_say),
        cmocka_unit_test(devices_of_one_thread_count_once_and_those_of_two_threads_twice),
        cmocka_unit_test(the_largest_device_of_a_thread_counts),
        cmocka_unit_test(busy_machines_make_the_threads_sleep_and_idle_ones_let_them_spin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
