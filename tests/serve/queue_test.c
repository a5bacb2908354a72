/* Shares of the queue: who comes in, who is refused, and who has to make room. */
#include "serve/queue.h"
#include "support/test.h"

enum { PLACES = 256, HEAVY = 1, LIGHT = 2, THIRD = 3 };

static struct queue *opened(void) {
    struct queue *queue;
    test_ok(queue_open(PLACES, &queue));
    return queue;
}

/* Submits single requests as the server does; returns how many were accepted. */
static int64_t fill(struct queue *queue, uint64_t client, double weight, int64_t requests, double now) {
    int64_t taken = 0;
    for (int64_t i = 0; i < requests; i++)
        if (queue_ask(queue, client, weight, 1, now) == QUEUE_HAS_ROOM) {
            test_ok(queue_add(queue, client, weight, 1));
            taken++;
        }
    return taken;
}

static void a_client_alone_may_have_all_places(void **state) {
    (void)state;
    struct queue *queue = opened();
    assert_int_equal(fill(queue, HEAVY, 1, 300, 0), PLACES);
    assert_int_equal(queue_ask(queue, HEAVY, 1, 1, 0), QUEUE_IS_FULL);
    assert_true(queue_excess(queue, HEAVY) == 0);
    queue_remove(queue, HEAVY, PLACES);
    assert_int_equal(queue_used(queue), 0);
    queue_close(queue);
}

/* One has filled it: another has a claim to half of it, and the first makes room until then. */
static void who_has_less_than_its_share_is_made_room_for(void **state) {
    (void)state;
    struct queue *queue = opened();
    int64_t made = 0;
    fill(queue, HEAVY, 1, 300, 0);
    for (enum queue_answer answer; (answer = queue_ask(queue, LIGHT, 1, 1, 1)) != QUEUE_IS_FULL;) {
        if (answer == QUEUE_MUST_MAKE_ROOM) {
            assert_true(queue_excess(queue, HEAVY) > 0 && queue_excess(queue, LIGHT) == 0);
            queue_remove(queue, HEAVY, 1);
            made++;
        } else
            test_ok(queue_add(queue, LIGHT, 1, 1));
    }
    assert_int_equal(made, PLACES / 2);
    assert_int_equal(queue_ask(queue, HEAVY, 1, 1, 1), QUEUE_IS_FULL);
    queue_close(queue);
}

static void shares_go_by_weight(void **state) {
    (void)state;
    struct queue *queue = opened();
    fill(queue, HEAVY, 1, 192, 0);
    fill(queue, LIGHT, 3, 64, 0); /* of weight 3: its share is 192 of 256 */
    assert_int_equal(queue_ask(queue, LIGHT, 3, 128, 0), QUEUE_MUST_MAKE_ROOM);
    assert_int_equal(queue_ask(queue, LIGHT, 3, 129, 0), QUEUE_IS_FULL);
    assert_true(queue_excess(queue, HEAVY) == 192 - 64);
    queue_close(queue);
}

/* Nothing can make room while all of it runs. The next free place is not for the client that has too many. */
static void a_place_that_was_missed_is_kept_for_a_while(void **state) {
    (void)state;
    struct queue *queue = opened();
    fill(queue, HEAVY, 1, 300, 0);
    assert_int_equal(queue_ask(queue, LIGHT, 1, 1, 1), QUEUE_MUST_MAKE_ROOM);
    test_ok(queue_miss(queue, LIGHT, 1, 1));
    queue_remove(queue, HEAVY, 2);
    assert_int_equal(queue_ask(queue, HEAVY, 1, 1, 2), QUEUE_OVER_SHARE);
    assert_int_equal(queue_ask(queue, THIRD, 1, 1, 2), QUEUE_HAS_ROOM); /* it has less than its share, too */
    assert_int_equal(fill(queue, LIGHT, 1, 1, 2), 1);
    assert_int_equal(fill(queue, HEAVY, 1, 5, 2), 1); /* nobody waits for a share any more */
    assert_int_equal(queue_ask(queue, THIRD, 1, 1, 3), QUEUE_MUST_MAKE_ROOM);
    test_ok(queue_miss(queue, THIRD, 1, 3));
    queue_remove(queue, HEAVY, 1);
    assert_int_equal(queue_ask(queue, HEAVY, 1, 1, 4), QUEUE_OVER_SHARE);
    assert_int_equal(queue_ask(queue, HEAVY, 1, 1, 60), QUEUE_HAS_ROOM); /* it has not come back */
    queue_close(queue);
}

/* With more clients than places each still has one. */
static void every_client_has_a_place_at_least(void **state) {
    (void)state;
    struct queue *queue = opened();
    for (uint64_t client = 10; client < 10 + 2 * PLACES; client++)
        fill(queue, client, 1, 1, 0);
    assert_int_equal(queue_used(queue), PLACES);
    queue_remove(queue, 10, 1);
    fill(queue, 11, 1, 1, 0);
    assert_int_equal(queue_ask(queue, 10, 1, 1, 0), QUEUE_MUST_MAKE_ROOM);
    assert_true(queue_excess(queue, 11) == 1 && queue_excess(queue, 12) == 0);
    queue_remove(queue, 11, 2);
    fill(queue, HEAVY, 1000, 2, 0); /* the share of others is less than one place by weight */
    assert_int_equal(queue_ask(queue, LIGHT, 1, 1, 0), QUEUE_MUST_MAKE_ROOM);
    queue_close(queue);
}

static void who_has_left_has_no_share(void **state) {
    (void)state;
    struct queue *queue = opened();
    fill(queue, LIGHT, 1, 2, 0);
    fill(queue, HEAVY, 1, 300, 0);
    assert_true(queue_excess(queue, HEAVY) > 100);
    queue_remove(queue, LIGHT, 2);
    assert_int_equal(queue_ask(queue, HEAVY, 1, 1, 0), QUEUE_HAS_ROOM);
    assert_true(queue_excess(queue, HEAVY) == 0);
    queue_close(queue);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_alone_may_have_all_places),
        cmocka_unit_test(who_has_less_than_its_share_is_made_room_for),
        cmocka_unit_test(shares_go_by_weight),
        cmocka_unit_test(a_place_that_was_missed_is_kept_for_a_while),
        cmocka_unit_test(every_client_has_a_place_at_least),
        cmocka_unit_test(who_has_left_has_no_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
