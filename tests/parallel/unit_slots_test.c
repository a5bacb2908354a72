/* The buffers of units: a layer takes the one that was left longest ago, and what lies in one is not fetched again. */
#include "parallel/unit_slots.h"

#include "support/test.h"

enum { LAYERS = 7, UNITS = LAYERS + 2, MOST = 8, ORDER_MOST = 256 };

/* The order of a rank that has all layers, and a tied head: micro batches forward and backward. */
static int64_t make_order(int micro_batches, int *order) {
    int64_t count = 0;
    for (int m = 0; m < micro_batches; m++) {
        for (int unit = PARAM_UNIT_FIRST; unit < LAYERS; unit++)
            order[count++] = unit;
        order[count++] = LAYERS;
        for (int unit = PARAM_UNIT_FIRST; unit < LAYERS; unit++)
            order[count++] = unit == PARAM_UNIT_FIRST ? unit : LAYERS - 1 - unit;
    }
    return count;
}

static void a_unit_in_a_buffer_is_not_fetched_again(void **state) {
    (void)state;
    struct unit_slot memory[MOST];
    struct unit_slots slots;
    bool is_fetched;
    unit_slots_make(&slots, UNITS, memory, unit_slots_count(2));
    int a = unit_slots_take(&slots, 3, &is_fetched);
    assert_true(is_fetched);
    int b = unit_slots_take(&slots, 4, &is_fetched);
    assert_true(is_fetched && a != b);
    assert_int_equal(unit_slots_take(&slots, 3, &is_fetched), a);
    assert_false(is_fetched);
    assert_int_equal(unit_slots_take(&slots, 5, &is_fetched), b); /* 4 was used before 3 */
    assert_int_equal(unit_slots_find(&slots, 4), UNIT_SLOT_NONE);
    unit_slots_forget(&slots);
    assert_int_equal(unit_slots_find(&slots, 3), UNIT_SLOT_NONE);
    unit_slots_take(&slots, 3, &is_fetched);
    assert_true(is_fetched);
}

static void a_buffer_in_use_is_not_taken(void **state) {
    (void)state;
    struct unit_slot memory[MOST];
    struct unit_slots slots;
    bool is_fetched;
    unit_slots_make(&slots, UNITS, memory, unit_slots_count(2));
    int a = unit_slots_take(&slots, 0, &is_fetched), b = unit_slots_take(&slots, 1, &is_fetched);
    memory[a].is_in_use = true;
    assert_int_equal(unit_slots_take(&slots, 2, &is_fetched), b);
    memory[b].is_in_use = true;
    assert_int_equal(unit_slots_take(&slots, 3, &is_fetched), UNIT_SLOT_NONE);
    assert_int_equal(unit_slots_take(&slots, PARAM_UNIT_FIRST, &is_fetched), UNIT_SLOT_FIRST);
    assert_int_equal(unit_slots_take(&slots, LAYERS, &is_fetched), UNIT_SLOT_LAST);
}

/* As docs/clusters.md says: the ends once for a global batch; of the layers those that no buffer holds when the
 * passes turn around. */
static void layers_are_fetched_as_often_as_the_buffers_allow(void **state) {
    (void)state;
    struct unit_slot memory[MOST];
    int order[ORDER_MOST];
    int64_t fetches[UNITS];
    for (int buffers = 2; buffers <= 4; buffers++)
        for (int micro_batches = 1; micro_batches <= 3; micro_batches++) {
            int64_t of_layers = 0, turns = 2 * micro_batches - 1;
            unit_slots_count_fetches(UNITS, buffers, order, make_order(micro_batches, order), memory, fetches);
            assert_int_equal(fetches[0], 1);
            assert_int_equal(fetches[UNITS - 1], 1);
            for (int u = 1; u <= LAYERS; u++)
                of_layers += fetches[u];
            assert_int_equal(of_layers, LAYERS + turns * (LAYERS - buffers));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unit_in_a_buffer_is_not_fetched_again),
        cmocka_unit_test(a_buffer_in_use_is_not_taken),
        cmocka_unit_test(layers_are_fetched_as_often_as_the_buffers_allow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
