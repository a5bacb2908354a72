/* Offsets in the flat arrays of a part, and the runs of its units. */
#include "tensor/param_map.h"

enum { ALIGN_ELEMENTS = 64 }; /* at least 64 bytes in every element type; cuts of shards are multiples of it */

static int64_t round_up(int64_t elements, int64_t multiple) {
    return (elements + multiple - 1) / multiple * multiple;
}

static bool is_cut(const struct param *row) {
    return row->shard != PARAM_REPLICATED;
}

/* Sets the offsets of the parameters that are cut over the tensor ranks, or of the others, from flat_elements on. */
static void place(struct param_map *map, bool of_cut) {
    int layer = 0;
    for (int i = 0; i < map->table->count; i++) {
        const struct param *row = &map->table->rows[i];
        if (is_cut(row) != of_cut)
            continue;
        if (row->layer != layer)
            map->flat_elements = round_up(map->flat_elements, map->unit_multiple);
        layer = row->layer;
        map->places[i].offset = map->flat_elements;
        map->flat_elements = round_up(map->flat_elements + param_map_elements(map, i), ALIGN_ELEMENTS);
    }
    map->flat_elements = round_up(map->flat_elements, map->unit_multiple);
}

void param_map_make(struct param_map *map, const struct param_map_options *options, struct param_place *places) {
    *map = (struct param_map){.table = options->table,
                              .part = options->part ? *options->part : (struct param_part){.tensors = 1},
                              .places = places,
                              .type = options->type,
                              .unit_multiple = ALIGN_ELEMENTS * (options->layer_shards ? options->layer_shards : 1)};
    for (int i = 0; i < options->table->count; i++) {
        places[i] = (struct param_place){.type = options->type};
        param_part_shape(&map->part, options->table, i, places[i].shape);
    }
    place(map, true);
    map->sharded_elements = map->flat_elements;
    place(map, false);
}

int param_map_unit_count(const struct param_table *table) {
    int last = PARAM_UNIT_FIRST;
    for (int i = 0; i < table->count; i++)
        last = table->rows[i].layer > last ? table->rows[i].layer : last;
    return last - PARAM_UNIT_FIRST + 1;
}

/* Adds a parameter that the rank holds to its unit. */
static void extend(const struct param_map *map, int id, struct param_unit *unit) {
    int run = is_cut(&map->table->rows[id]) ? 0 : 1;
    int64_t elements = param_map_elements(map, id), offset = map->places[id].offset;
    if (!elements)
        return;
    if (!unit->run[run].count)
        unit->run[run].first = offset;
    unit->run[run].count = round_up(offset + elements - unit->run[run].first, map->unit_multiple);
}

void param_map_units(const struct param_map *map, struct param_unit *units) {
    int count = param_map_unit_count(map->table);
    for (int u = 0; u < count; u++)
        units[u] = (struct param_unit){0};
    for (int i = 0; i < map->table->count; i++)
        extend(map, i, &units[map->table->rows[i].layer - PARAM_UNIT_FIRST]);
}

void param_map_largest(const struct param_map *map, int first, int last, int64_t counts[2]) {
    struct param_unit unit = {0};
    counts[0] = counts[1] = 0;
    for (int i = 0; i < map->table->count; i++) {
        int layer = map->table->rows[i].layer;
        if (layer < first || layer > last)
            continue;
        if (i && map->table->rows[i - 1].layer != layer)
            unit = (struct param_unit){0};
        extend(map, i, &unit);
        for (int run = 0; run < 2; run++)
            counts[run] = unit.run[run].count > counts[run] ? unit.run[run].count : counts[run];
    }
}
