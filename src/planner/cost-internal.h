/* Between the files of the cost model. */
#ifndef CAMBIUM_PLANNER_COST_INTERNAL_H
#define CAMBIUM_PLANNER_COST_INTERNAL_H

#include "planner/cost.h"

/* cost_unit.c: the seconds of each unit for one micro batch. The backward of COST_LAYER_AGAIN includes its repeated
 * forward. `selects_attention`: the backward repeats attention's forward, as the stack of 2022 does. */
struct cost_units {
    struct cost_seconds forward[COST_UNITS], backward[COST_UNITS];
};
void cost_units_find(const struct cost_work *work, const struct cluster *cluster, bool selects_attention,
                     struct cost_units *units);

/* A link of a device in one direction. */
struct cost_link {
    double bandwidth, latency;
};
/* Returns the link within a node, or the one between nodes with the bandwidth that is reached. */
struct cost_link cost_link(const struct cluster *cluster, bool is_within);
/* Returns the seconds of a collective of `ranks` ranks in a ring that moves `passes` (2 for an all-reduce, else 1)
 * times `bytes`, the whole operand of a rank. */
double cost_ring(double bytes, int ranks, double passes, struct cost_link link);
static inline double cost_total(const struct cost_seconds *seconds) {
    return seconds->products + seconds->other + seconds->tensor + seconds->floor;
}
/* Adds `factor` times `more` to *sum. */
void cost_add(struct cost_seconds *sum, const struct cost_seconds *more, double factor);

#endif
