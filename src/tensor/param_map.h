/* The map of a part: the data type, offset and shape of each parameter, and its units.
 *
 * A map is arithmetic over a table and a part. It needs no device, holds no values and allocates nothing, so a planner
 * can make one for every layout that it considers. */
#pragma once

#include "kernels/ops.h"
#include "tensor/param_part.h"

/* The place of a parameter in the flat arrays of its part. */
struct param_place {
    int64_t offset;   /* elements from the start of a flat array; its address there is aligned to 64 bytes */
    int64_t shape[2]; /* on this rank; {0, 0} if the rank does not hold it */
    enum dtype type;  /* of its weight */
    const struct encoded_layout *encoded; /* the encoding of its values in their source; NULL: they are plain */
};

/* The flat arrays of a part. First come the parameters that are cut over the tensor ranks, then those of which every
 * tensor rank has a copy, both in the table's order. Gaps between parameters belong to the arrays. */
struct param_map {
    const struct param_table *table;
    struct param_part part;
    struct param_place *places; /* [table count] */
    enum dtype type;            /* of the flat array of weights */
    int64_t sharded_elements;   /* elements before the copies */
    int64_t flat_elements;      /* length of the flat arrays, gaps included */
    int64_t unit_multiple;      /* the elements of each unit are a multiple of it */
};

struct param_map_options {
    const struct param_table *table; /* it and what `part` points to must outlive the map */
    const struct param_part *part;   /* NULL: all of the table */
    enum dtype type;                 /* of all weights */
    int layer_shards;                /* each unit can be cut into this number of equal, aligned shards; 0: no cuts */
};

/* Makes a map with its places in `places` [table count], which belongs to the caller and must outlive the map. */
void param_map_make(struct param_map *map, const struct param_map_options *options, struct param_place *places);

/* Returns the elements of a parameter on this rank. */
static inline int64_t param_map_elements(const struct param_map *map, int id) {
    return map->places[id].shape[0] * map->places[id].shape[1];
}

/* A unit: the parameters of a model with the same number in param.layer, which are used and moved together. Unit -1 is
 * the embedding, unit num_layers is the final norm with the head, and the numbers between are the layers. A unit has
 * two runs of elements in the flat arrays, gaps included: [0] of the parameters that are cut over the tensor ranks, [1]
 * of the copies. */
struct param_unit {
    struct {
        int64_t first, count;
    } run[2];
};

enum { PARAM_UNIT_FIRST = -1 };

/* Returns the number of units, the same on all ranks. Unit n is element n - PARAM_UNIT_FIRST of an array of units. */
int param_map_unit_count(const struct param_table *table);
/* Writes all units of a map to `units` [param_map_unit_count]. The table must be in the order of units, as a model's
 * is. The runs cover the flat arrays exactly once; those of a unit that the rank does not hold are empty. */
void param_map_units(const struct param_map *map, struct param_unit *units);

/* Writes the maximum number of elements that a unit among first .. last has in each of its two runs. */
void param_map_largest(const struct param_map *map, int first, int last, int64_t counts[2]);
