/* Fibers: calls that pause in the middle of others, and fibers that are used again. */
#include "base/fiber.h"

#include "support/test.h"

struct counter {
    struct fiber *fiber;
    int count, end;
};

static void count_down(struct counter *counter, int left) {
    char kept[256];
    memset(kept, left, sizeof kept);
    counter->count++;
    fiber_pause(counter->fiber);
    if (left > 1)
        count_down(counter, left - 1);
    for (size_t i = 0; i < sizeof kept; i++)
        assert_int_equal(kept[i], left);
}

static int run(void *context) {
    struct counter *counter = context;
    count_down(counter, counter->end);
    return counter->end;
}

static void fibers_pause_anywhere_and_take_turns(void **state) {
    (void)state;
    struct counter counters[2] = {{.end = 5}, {.end = 3}};
    int status;
    for (int i = 0; i < 2; i++)
        assert_int_equal(fiber_open(1 << 18, &counters[i].fiber), 0);
    for (int use = 0; use < 3; use++) {
        for (int i = 0; i < 2; i++) {
            counters[i].count = 0;
            fiber_begin(counters[i].fiber, run, &counters[i]);
        }
        for (int turn = 1; turn <= 6; turn++)
            for (int i = 0; i < 2; i++) {
                if (turn > counters[i].end + 1)
                    continue;
                bool is_done = fiber_resume(counters[i].fiber, &status);
                assert_int_equal(is_done, turn > counters[i].end);
                assert_int_equal(counters[i].count, is_done ? counters[i].end : turn);
                if (is_done)
                    assert_int_equal(status, counters[i].end);
            }
    }
    for (int i = 0; i < 2; i++)
        fiber_close(counters[i].fiber);
    fiber_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fibers_pause_anywhere_and_take_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
