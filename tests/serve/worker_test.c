/* Workers: clients take turns, none fills the queue, and nothing is lost when the worker stops. */
#include "support/test.h"

#include "serve/loop.h"

#include <pthread.h>
#include <stdlib.h>

enum { CAPACITY = 16 };

struct job {
    struct worker_job base;
    char name;
};

static struct loop *loop;
static struct worker *worker;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* the worker's first job waits here */
static char order[64];
static int done_count, freed;

static void work(struct worker_job *base) {
    size_t length = strlen(order);
    pthread_mutex_lock(&gate);
    order[length] = ((struct job *)base)->name;
    pthread_mutex_unlock(&gate);
}

static void done(struct worker_job *base) {
    done_count++;
    free(base);
}

static void drop(struct worker_job *base) {
    freed++;
    free(base);
}

static struct job *new_job(char name, uint64_t owner) {
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->base = (struct worker_job){.work = work, .done = done, .owner = owner};
    job->name = name;
    return job;
}

static bool add(char name, uint64_t owner) {
    struct job *job = new_job(name, owner);
    bool is_taken = worker_add(worker, &job->base);
    if (!is_taken)
        free(job);
    return is_taken;
}

static void begin(void) {
    memset(order, 0, sizeof order);
    done_count = freed = 0;
    test_ok(loop_open(&loop));
    test_ok(loop_start(loop));
    test_ok(worker_open(loop, CAPACITY, &worker));
    pthread_mutex_lock(&gate);
}

static void end(void) {
    pthread_mutex_unlock(&gate);
    worker_stop(worker);
    loop_stop(loop);
    worker_close(worker);
    loop_close(loop);
}

/* The first job may be taken at once or not: it is the first in any case. */
static void clients_take_turns(void **state) {
    (void)state;
    begin();
    assert_true(add('0', 9));
    for (int i = 0; i < 4; i++)
        assert_true(add("abcd"[i], 1));
    assert_true(add('x', 2));
    assert_true(add('y', 2));
    assert_true(add('z', 3));
    end();
    assert_string_equal(order, "0axzbycd");
    assert_int_equal(done_count, 8);
}

static void one_client_never_fills_the_queue(void **state) {
    int taken = 0;
    (void)state;
    begin();
    while (add('a', 1))
        taken++;
    assert_in_range(taken, CAPACITY / 2, CAPACITY / 2 + 1); /* one may be with the worker */
    assert_true(add('b', 2));
    assert_true(add('c', 3));
    assert_false(add('a', 1));
    end();
    assert_int_equal(done_count, taken + 2);
}

static void what_is_dropped_always_finds_a_place(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 3 * CAPACITY; i++) {
        struct job *job = new_job('-', 1);
        job->base.work = drop;
        worker_drop(worker, &job->base);
    }
    pthread_mutex_unlock(&gate);
    worker_stop(worker);
    assert_int_equal(freed, 3 * CAPACITY);
    assert_false(add('a', 1));
    struct job *job = new_job('-', 1);
    job->base.work = drop;
    worker_drop(worker, &job->base); /* here and now */
    assert_int_equal(freed, 3 * CAPACITY + 1);
    loop_stop(loop);
    worker_close(worker);
    loop_close(loop);
}

static void turns_of_the_loop_are_counted(void **state) {
    struct loop_turns turns = {0};
    uint64_t count = 0;
    (void)state;
    loop_turns_count(&turns, 0.0005);
    loop_turns_count(&turns, 0.02);
    loop_turns_count(&turns, 7);
    assert_int_equal(turns.counts[0], 1);
    assert_int_equal(turns.counts[4], 1);
    assert_int_equal(turns.counts[LOOP_TURN_BOUNDS], 1);
    assert_true(turns.longest == 7 && turns.seconds > 7.02 && turns.seconds < 7.03);
    begin();
    assert_true(add('a', 1));
    pthread_mutex_unlock(&gate);
    worker_stop(worker);
    loop_stop(loop);
    for (int i = 0; i <= LOOP_TURN_BOUNDS; i++)
        count += loop_turns(loop)->counts[i];
    assert_true(count > 0);
    worker_close(worker);
    loop_close(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_take_turns),
        cmocka_unit_test(one_client_never_fills_the_queue),
        cmocka_unit_test(what_is_dropped_always_finds_a_place),
        cmocka_unit_test(turns_of_the_loop_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
