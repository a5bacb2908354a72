/* Between the files of the cost model. */
#pragma once

#include "planner/cost.h"

/* cost_unit.c: the seconds of each unit for one micro batch. The backward of COST_LAYER_AGAIN includes its repeated
 * forward. `selects_attention`: the backward repeats attention's forward, as the stack of 2022 does. */
struct cost_units {
    struct cost_seconds forward[COST_UNITS], backward[COST_UNITS];
};
void cost_units_find(const struct cost_work *work, const struct cluster *cluster, bool selects_attention,
                     struct cost_units *units);

/* Returns the link within a node, or the one between nodes with the bandwidth that is reached. */
struct cost_link cost_link(const struct cluster *cluster, bool is_within);
/* Returns the precision of what FP8 leaves as it is: the head's product, attention, and all other operations. */
static inline int cost_plain_precision(int precision) {
    return precision == PRECISION_FP8 ? PRECISION_BF16 : precision;
}
/* Returns the seconds of operations that move bytes, of a phase (enum phase) of a run with this precision: by the
 * measured speed or the constants. */
double cost_bytes_seconds(const struct cluster *cluster, int precision, int phase, double bytes);
static inline double cost_total(const struct cost_seconds *seconds) {
    return seconds->products + seconds->other + seconds->tensor + seconds->floor;
}
/* Adds `factor` times `more` to *sum. */
void cost_add(struct cost_seconds *sum, const struct cost_seconds *more, double factor);
