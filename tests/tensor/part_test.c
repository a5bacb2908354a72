/* The rectangles of a parameter that the ranks hold cover each element once. */
#include "support/test.h"
#include "tensor/param_part.h"

enum { MOST_RANKS = 5, MOST_ELEMENTS = 64 * 64 };

/* A parameter of `slices` slices whose rows do not divide alike. */
static struct param make_row(enum param_shard shard, int64_t rows, int64_t columns, int slices) {
    struct param row = {.shape = {rows, columns}, .dims = columns > 1 ? 2 : 1, .shard = shard, .slice_count = slices};
    for (int i = 0; i < slices; i++) {
        row.slices[i].row = rows * i / slices;
        row.slices[i].rows = rows * (i + 1) / slices - row.slices[i].row;
    }
    return row;
}

/* Counts in seen[] what rank `tensor` of `tensors` holds; its rectangles lie one after the other in its part. */
static void visit(struct param *row, int tensor, int tensors, int seen[MOST_ELEMENTS]) {
    struct param_table table = {.rows = row, .count = 1};
    struct param_part part = {.tensor = tensor, .tensors = tensors};
    struct param_rect rects[PARAM_MAX_SLICES];
    int64_t shape[2], local_row = 0;
    int count = param_part_rects(&part, &table, 0, rects);
    param_part_shape(&part, &table, 0, shape);
    for (int i = 0; i < count; i++) {
        assert_int_equal(rects[i].local_row, local_row);
        assert_int_equal(rects[i].columns, shape[1]);
        assert_true(rects[i].row >= 0 && rects[i].row + rects[i].rows <= row->shape[0]);
        assert_true(rects[i].column >= 0 && rects[i].column + rects[i].columns <= row->shape[1]);
        local_row += rects[i].rows;
        for (int64_t r = 0; r < rects[i].rows; r++)
            for (int64_t c = 0; c < rects[i].columns; c++)
                seen[(rects[i].row + r) * row->shape[1] + rects[i].column + c]++;
    }
    assert_int_equal(local_row, shape[0]);
}

static void check(enum param_shard shard, int64_t rows, int64_t columns, int slices) {
    for (int tensors = 1; tensors <= MOST_RANKS; tensors++) {
        struct param row = make_row(shard, rows, columns, slices);
        int seen[MOST_ELEMENTS] = {0};
        for (int tensor = 0; tensor < tensors; tensor++)
            visit(&row, tensor, tensors, seen);
        for (int64_t i = 0; i < rows * columns; i++)
            assert_int_equal(seen[i], shard == PARAM_REPLICATED ? tensors : 1);
    }
}

static void parts_cover_each_element_once(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{31, 7}, {24, 16}, {4, 9}, {2, 3}, {64, 64}, {1, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int slices = 1; slices <= PARAM_MAX_SLICES; slices++) {
            check(PARAM_SHARD_AXIS0, sizes[i][0], sizes[i][1], slices);
            check(PARAM_SHARD_AXIS1, sizes[i][0], sizes[i][1], slices);
        }
}

static void biases_too(void **state) {
    (void)state;
    for (int64_t rows = 1; rows < 40; rows++)
        check(PARAM_SHARD_AXIS0, rows, 1, rows >= 3 ? 3 : 1);
}

static void copies_are_whole_on_every_rank(void **state) {
    (void)state;
    check(PARAM_REPLICATED, 31, 7, 1);
    check(PARAM_REPLICATED, 30, 7, 3);
}

/* q, k and v are each cut by themselves: a rank has the same heads of all three. */
static void slices_are_cut_each_by_itself(void **state) {
    (void)state;
    struct param row = make_row(PARAM_SHARD_AXIS0, 36, 2, 3);
    struct param_table table = {.rows = &row, .count = 1};
    struct param_rect rects[PARAM_MAX_SLICES];
    struct param_part part = {.tensor = 1, .tensors = 4};
    assert_int_equal(param_part_rects(&part, &table, 0, rects), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rects[i].row, 12 * i + 3);
        assert_int_equal(rects[i].rows, 3);
        assert_int_equal(rects[i].local_row, 3 * i);
    }
}

static void a_stage_has_nothing_of_what_it_does_not_hold(void **state) {
    (void)state;
    struct param rows[2] = {make_row(PARAM_SHARD_AXIS0, 8, 8, 1), make_row(PARAM_SHARD_AXIS1, 8, 8, 1)};
    struct param_table table = {.rows = rows, .count = 2};
    const bool is_held[2] = {false, true};
    struct param_part part = {.tensor = 1, .tensors = 2, .is_held = is_held};
    struct param_rect rects[PARAM_MAX_SLICES];
    int64_t shape[2];
    assert_int_equal(param_part_rects(&part, &table, 0, rects), 0);
    param_part_shape(&part, &table, 0, shape);
    assert_int_equal(shape[0] * shape[1], 0);
    assert_int_equal(param_part_rects(&part, &table, 1, rects), 1);
    param_part_shape(&part, &table, 1, shape);
    assert_int_equal(shape[0], 8);
    assert_int_equal(shape[1], 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_each_element_once),
        cmocka_unit_test(biases_too),
        cmocka_unit_test(copies_are_whole_on_every_rank),
        cmocka_unit_test(slices_are_cut_each_by_itself),
        cmocka_unit_test(a_stage_has_nothing_of_what_it_does_not_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
