/* An opening closes what it has opened, in reverse, whichever step fails, and no rank leaves the others waiting. */
#include "base/opening.h"
#include "base/status.h"
#include "support/test.h"

enum { STEPS = 5, NEVER = -1 };

/* Writes down its calls: A to E open, a to e close, ! fails, + and - are votes for and against. Of a list, the first
 * thing writes for all. */
struct thing {
    struct thing *first, *next;
    int fails_at;   /* a step; NEVER */
    int peer_fails; /* the number of an agreement at which another rank votes against; NEVER */
    int votes;      /* so far */
    char calls[64];
};

static void note(struct thing *thing, char call) {
    thing = thing->first ? thing->first : thing;
    size_t length = strlen(thing->calls);
    assert_true(length + 1 < sizeof thing->calls);
    thing->calls[length] = call;
}

static int open_step(struct thing *thing, int step) {
    note(thing, thing->fails_at == step ? '!' : (char)('A' + step));
    return thing->fails_at == step ? status_fail(STATUS_IO, "step %d", step) : STATUS_OK;
}

static int agree(void *self, int status) {
    struct thing *thing = self;
    bool peer_fails = thing->votes++ == thing->peer_fails;
    note(thing, status ? '-' : '+');
    return !status && peer_fails ? status_fail(STATUS_PEER, "another rank") : status;
}

#define OPEN(number)                                                                                                   \
    static int open_##number(void *self) {                                                                             \
        return open_step(self, number);                                                                                \
    }
#define CLOSE(number)                                                                                                  \
    static void close_##number(void *self) {                                                                           \
        note(self, (char)('a' + number));                                                                              \
    }
OPEN(0)
OPEN(1)
OPEN(2)
OPEN(3)
OPEN(4)
CLOSE(0)
CLOSE(1)
CLOSE(3)
CLOSE(4)

/* The third step has nothing to undo; ranks agree after the second and the fourth. */
static const struct opening_step steps[STEPS] = {
    {.open = open_0, .close = close_0},
    {.open = open_1, .close = close_1, .agrees = true},
    {.open = open_2},
    {.open = open_3, .close = close_3, .agrees = true},
    {.open = open_4, .close = close_4},
};
static const struct opening alone = {.steps = steps, .count = STEPS},
                            together = {.steps = steps, .count = STEPS, .agree = agree};

static void check(const struct opening *opening, int fails_at, int peer_fails, int expected, const char *calls) {
    struct thing thing = {.fails_at = fails_at, .peer_fails = peer_fails};
    assert_int_equal(opening_run(opening, &thing), expected);
    if (!expected)
        opening_undo(opening, &thing);
    assert_string_equal(thing.calls, calls);
    if (expected == STATUS_IO)
        test_fails(expected, STATUS_IO, "step");
}

static void closing_undoes_the_steps_in_reverse(void **state) {
    (void)state;
    check(&alone, NEVER, NEVER, STATUS_OK, "ABCDEedba");
    check(&together, NEVER, NEVER, STATUS_OK, "AB+CD+Eedba");
}

static void a_step_that_fails_closes_those_before_it(void **state) {
    (void)state;
    static const char *const calls[STEPS] = {"!", "A!a", "AB!ba", "ABC!ba", "ABCD!dba"};
    for (int step = 0; step < STEPS; step++)
        check(&alone, step, NEVER, STATUS_IO, calls[step]);
}

static void a_rank_that_failed_meets_the_others_at_the_next_agreement(void **state) {
    (void)state;
    static const char *const calls[STEPS] = {"!-", "A!-a", "AB+!-ba", "AB+C!-ba", "AB+CD+!dba"};
    for (int step = 0; step < STEPS; step++)
        check(&together, step, NEVER, STATUS_IO, calls[step]);
}

static void a_rank_closes_its_steps_when_another_failed(void **state) {
    (void)state;
    check(&together, NEVER, 0, STATUS_PEER, "AB+ba");
    check(&together, NEVER, 1, STATUS_PEER, "AB+CD+dba");
}

static void *next_thing(void *self) {
    return ((struct thing *)self)->next;
}

/* The second step is shared, and opens once. */
static const struct opening_step list_steps[] = {
    {.open = open_0, .close = close_0},
    {.open = open_1, .close = close_1, .agrees = true, .is_shared = true},
    {.open = open_3, .close = close_3, .agrees = true},
};
static const struct opening list = {list_steps, 3, agree, next_thing};

/* Opens two things, of which the second fails at a step. */
static void check_list(int fails_at, const char *calls) {
    struct thing first = {.fails_at = NEVER, .peer_fails = NEVER};
    struct thing second = {.first = &first, .fails_at = fails_at, .peer_fails = NEVER};
    first.next = &second;
    int status = opening_run(&list, &first);
    assert_int_equal(status, fails_at == NEVER ? STATUS_OK : STATUS_IO);
    if (!status)
        opening_undo(&list, &first);
    assert_string_equal(first.calls, calls);
}

static void each_step_opens_all_of_a_list_or_none(void **state) {
    (void)state;
    check_list(NEVER, "AAB+D+D+ddbaa");
    check_list(0, "A!a-");
    check_list(3, "AAB+D+!-dbaa");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closing_undoes_the_steps_in_reverse),
        cmocka_unit_test(a_step_that_fails_closes_those_before_it),
        cmocka_unit_test(a_rank_that_failed_meets_the_others_at_the_next_agreement),
        cmocka_unit_test(a_rank_closes_its_steps_when_another_failed),
        cmocka_unit_test(each_step_opens_all_of_a_list_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
