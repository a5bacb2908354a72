/* The bound for bodies that wait: what fits, who gets a share, and that everything is given back. */
#include "support/test.h"

#include "http/gathered.h"

enum { LIMIT = 1 << 20, PIECE = 1 << 10 };

/* Grows a body by pieces until there is no room; its bytes. */
static size_t fill(struct gathered *gathered, bool is_control) {
    size_t own = 0;
    while (gathered_take(gathered, own, PIECE, is_control))
        own += PIECE;
    return own;
}

static void one_body_may_have_nearly_everything(void **state) {
    struct gathered gathered = {.limit = LIMIT};
    (void)state;
    size_t own = fill(&gathered, false);
    assert_in_range(own, LIMIT * 8 / 9 - PIECE, LIMIT * 8 / 9 + PIECE);
    assert_int_equal(gathered.bytes, own);
    gathered_give(&gathered, own);
    assert_int_equal(gathered.bytes, 0);
    assert_int_equal(gathered.given, own);
}

static void many_bodies_leave_room_for_a_short_one(void **state) {
    struct gathered gathered = {.limit = LIMIT};
    size_t own[200] = {0};
    (void)state;
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (int i = 0; i < 200; i++)
            if (gathered_take(&gathered, own[i], 64, false)) {
                own[i] += 64;
                has_changed = true;
            }
    }
    assert_true(gathered.bytes <= LIMIT);
    assert_true(gathered_take(&gathered, 0, 512, false));
    assert_false(gathered_take(&gathered, 0, LIMIT / 100, false));
    assert_true(gathered_take(&gathered, 0, LIMIT / 100, true)); /* control has an eighth beyond it */
}

static void without_a_limit_everything_is_counted_alone(void **state) {
    struct gathered gathered = {0};
    (void)state;
    assert_true(gathered_take(&gathered, 0, (size_t)1 << 40, false));
    gathered_give(&gathered, (size_t)1 << 40);
    assert_int_equal(gathered.bytes, 0);
    assert_true(gathered_take(&gathered, 0, 100, false));
    gathered.given = 0;
    gathered_give(&gathered, 100); /* short bodies are not worth a look at the allocator */
    assert_int_equal(gathered.given, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_body_may_have_nearly_everything),
        cmocka_unit_test(many_bodies_leave_room_for_a_short_one),
        cmocka_unit_test(without_a_limit_everything_is_counted_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
