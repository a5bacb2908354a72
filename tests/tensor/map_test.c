/* A map places each parameter of a part once. Its units hold whole parameters and can be cut into shards. */
#include "tensor/param_map.h"

#include "support/allocations.h"
#include "support/test.h"

#include <string.h>

enum { LAYERS = 96, LAYER_ROWS = 6, ROWS = LAYERS * LAYER_ROWS + 3, ALIGNMENT = 64, MANY = 10000 };

/* ---- a table in the order of units ---- */

/* Sizes that are no multiples of the alignment. */
static struct param make_row(int layer, int number) {
    int64_t rows = 24 + number * 2, columns = number % 2 ? 1 : 17 + number;
    return (struct param){.dims = columns > 1 ? 2 : 1,
                          .shape = {rows, columns},
                          .shard = number % 3 == 0 ? PARAM_REPLICATED : PARAM_SHARD_AXIS0,
                          .layer = layer,
                          .slice_count = 1,
                          .slices = {{.rows = rows}}};
}

static void describe(struct param rows[ROWS], struct param_table *table) {
    int count = 0;
    rows[count++] = make_row(PARAM_UNIT_FIRST, 1);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < LAYER_ROWS; i++)
            rows[count++] = make_row(layer, i + 2);
    rows[count++] = make_row(LAYERS, 3);
    rows[count++] = make_row(LAYERS, 4);
    *table = (struct param_table){.rows = rows, .count = count};
}

/* Checks the maps of each last tensor rank, with every number of shards; the stage holds layers 10 to 40, or all. */
static void for_all_maps(void (*check)(const struct param_map *map, int shards)) {
    static struct param rows[ROWS];
    static struct param_place places[ROWS];
    static bool is_held[ROWS];
    struct param_table table;
    describe(rows, &table);
    for (int i = 0; i < ROWS; i++)
        is_held[i] = rows[i].layer >= 10 && rows[i].layer <= 40;
    for (int tensors = 1; tensors <= 4; tensors++)
        for (int shards = 0; shards <= 5; shards++)
            for (int is_stage = 0; is_stage < 2; is_stage++) {
                struct param_part part = {
                    .tensor = tensors - 1, .tensors = tensors, .is_held = is_stage ? is_held : NULL};
                struct param_map_options options = {
                    .table = &table, .part = &part, .type = DTYPE_BF16, .layer_shards = shards};
                struct param_map map;
                param_map_make(&map, &options, places);
                check(&map, shards);
            }
}

/* ---- places ---- */

/* The end of the parameters that are cut over the tensor ranks, or of the copies, which begin at `end`. */
static int64_t check_places(const struct param_map *map, bool of_copies, int64_t end) {
    for (int id = 0; id < map->table->count; id++) {
        const struct param_place *place = &map->places[id];
        int64_t shape[2];
        if ((map->table->rows[id].shard == PARAM_REPLICATED) != of_copies)
            continue;
        param_part_shape(&map->part, map->table, id, shape);
        assert_memory_equal(place->shape, shape, sizeof shape);
        assert_int_equal(place->type, DTYPE_BF16);
        assert_int_equal(place->offset % ALIGNMENT, 0);
        assert_true(place->offset >= end);
        end = place->offset + param_map_elements(map, id);
    }
    return end;
}

static void check_order(const struct param_map *map, int shards) {
    int64_t multiple = ALIGNMENT * (shards ? shards : 1);
    int64_t end = check_places(map, false, 0);
    assert_in_range(map->sharded_elements, end, end + multiple - 1);
    end = check_places(map, true, map->sharded_elements);
    assert_in_range(map->flat_elements, end, end + multiple - 1);
}

static void cut_parameters_come_before_copies_and_none_overlap(void **state) {
    (void)state;
    for_all_maps(check_order);
}

/* ---- units ---- */

/* Every parameter lies in its unit's run. The runs follow one another without a gap, and each is a multiple of the
 * shards. */
static void check_units(const struct param_map *map, int shards) {
    static struct param_unit units[LAYERS + 2];
    int count = param_map_unit_count(map->table);
    int64_t multiple = ALIGNMENT * (shards ? shards : 1), end = 0;
    assert_int_equal(count, LAYERS + 2);
    param_map_units(map, units);
    for (int run = 0; run < 2; run++) {
        for (int u = 0; u < count; u++) {
            if (!units[u].run[run].count)
                continue;
            assert_int_equal(units[u].run[run].first, end);
            assert_int_equal(units[u].run[run].count % multiple, 0);
            end += units[u].run[run].count;
        }
        assert_int_equal(end, run ? map->flat_elements : map->sharded_elements);
    }
    for (int id = 0; id < map->table->count; id++) {
        const struct param *row = &map->table->rows[id];
        const struct param_unit *unit = &units[row->layer - PARAM_UNIT_FIRST];
        int run = row->shard == PARAM_REPLICATED;
        int64_t elements = param_map_elements(map, id), first = map->places[id].offset;
        if (elements)
            assert_true(first >= unit->run[run].first &&
                        first + elements <= unit->run[run].first + unit->run[run].count);
    }
}

static void units_cover_the_flat_arrays_and_can_be_cut(void **state) {
    (void)state;
    for_all_maps(check_units);
}

/* ---- for a planner ---- */

static void ten_thousand_maps_allocate_nothing(void **state) {
    (void)state;
    static struct param rows[ROWS];
    static struct param_place places[ROWS];
    static struct param_unit units[LAYERS + 2];
    struct param_table table;
    int64_t elements = 0;
    if (!allocations_can_be_counted())
        test_skip("this build does not count allocations");
    describe(rows, &table);
    allocations_start();
    for (int i = 0; i < MANY; i++) {
        struct param_part part = {.tensor = i % 8, .tensors = 8};
        struct param_map map;
        param_map_make(&map, &(struct param_map_options){.table = &table, .part = &part, .layer_shards = i % 4},
                       places);
        param_map_units(&map, units);
        elements += map.flat_elements;
    }
    assert_int_equal(allocations_stop(), 0);
    assert_true(elements > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_parameters_come_before_copies_and_none_overlap),
        cmocka_unit_test(units_cover_the_flat_arrays_and_can_be_cut),
        cmocka_unit_test(ten_thousand_maps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
