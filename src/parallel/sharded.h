/* Storages of which each rank of a data group keeps an equal share: fully sharded data parallel.
 *
 * Each unit is cut by itself: both of its runs (struct param_unit) into as many equal shares as the group has ranks. A
 * unit's weights are gathered into a buffer before they are used, and its gradients are summed out of a buffer after
 * each micro batch. unit_slots.h says which buffer. Between uses a rank has only its shares, which are the storage's
 * ranges: the optimizer, files and initial values work on them and gather nothing.
 *
 * All ranks of a data group unshard the same units in the same order. They need struct param_sharing, and layers that
 * are cut into shards (param_store_options.layer_shards). A storage is used by its rank's thread. */
#pragma once

#include "parallel/rank.h"
#include "tensor/tensor.h"

/* Shares of gradients; weights are whole. */
extern const struct storage storage_sharded_gradients;
/* Shares of weights, and of gradients if there are any. */
extern const struct storage storage_sharded;
/* Shares of a frozen base that is held as in storage_packed. A unit is one message of packed bytes. Every rank packs
 * all units while the store is opened, and keeps its shares; there are no ranges. */
extern const struct storage storage_sharded_packed;

/* Returns true if this rank has only its shares of the weights. */
static inline bool sharded_cuts_weights(const struct param_store *store) {
    return store->storage == &storage_sharded || store->storage == &storage_sharded_packed;
}
/* Writes all units as they are gathered to `units` [param_map_unit_count]: as param_map_units, but packed units are one
 * run of elements of the weights' type. Works on a sketch. */
void sharded_units(const struct param_store *store, struct param_unit *units);
/* Gives a store the units of the coming passes in the order of their use, so that each is gathered while the one before
 * it is in use. `order` [count] must live until the passes end. Uses in another order fail with STATUS_INVALID, except
 * those for PARAM_READ. NULL: no order; units are gathered when they are needed. It does nothing for other storages.
 * Returns the errors of collectives. */
int sharded_follow(const struct param_store *store, const int *order, int64_t count);
/* The messages of a store since its opening. */
struct sharded_counts {
    int64_t gathers, sums;
    double gathered, summed; /* elements of this rank's whole operands */
    double waited_seconds;   /* for all of them */
};
/* Returns the counts of an opened store; zeros for other storages. */
struct sharded_counts sharded_counts(const struct param_store *store);
