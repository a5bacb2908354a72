/* The gradients of ranks that share their weights, summed in buckets. A bucket's sum starts as soon as its layers are
 * final. Between processes it travels while the backward continues; ranks that are threads of one process move it when
 * they wait for it.
 *
 * Without sharding, every rank of the data group ends with the whole sum and updates everything. With it (ZeRO-1) each
 * bucket is reduce-scattered. A rank ends with one equal piece of every bucket, keeps the optimizer's state only for
 * these pieces, and updates their weights. The pieces are then gathered in the order in which a forward needs them,
 * while it runs. Pieces cut through parameters; buckets do not.
 *
 * The order of the calls on the group is the same on all of its ranks. A rank without others in its data group has
 * nothing to sum, and its pieces hold everything. */
#ifndef CAMBIUM_PARALLEL_SYNC_H
#define CAMBIUM_PARALLEL_SYNC_H

#include "parallel/rank.h"
#include "tensor/tensor.h"

/* Elements [first, first + count) of a store's flat arrays: whole layers, the last of which to be final is `layer`, and
 * the first that a forward needs is `needed`. */
struct sync_bucket {
    int64_t first, count;
    int layer, needed;
};

/* A part of the store that this rank updates: elements [first, first + count) of the flat arrays, which stand at
 * `local` in arrays that hold only pieces. It was cut from the bucket. */
struct sync_piece {
    int64_t first, count, local;
    int64_t bucket_first, bucket_count;
    int needed;
};

struct gradient_sync_options {
    bool is_sharded;         /* ZeRO-1; alone in the data group it changes nothing */
    bool overlaps_gradients; /* sums are started during the backward; else after it */
    bool overlaps_weights;   /* gathers are waited for by the forward; else by who starts the last one */
};

struct gradient_sync {
    struct rank *rank;
    struct param_store *store;
    struct gradient_sync_options options;
    bool is_sharded;
    int64_t local_elements; /* of all pieces */
    int piece_count;
    struct sync_piece *pieces;        /* ascending */
    int *turns;                       /* [piece_count] the pieces in the order in which a forward needs them */
    int updated, gathering, gathered; /* turns whose weights are set; are on their way; have arrived */
    struct comm_request *gathers;     /* [piece_count] */
    int bucket_count, started, waited;
    struct sync_bucket *buckets; /* in the order in which they become final; none where nothing is summed */
    struct comm_request *requests;
    double waited_seconds; /* this rank has waited so long for sums and weights, in all */
};

/* Sharding wants a store whose layers are cut into as many shards as the data group has ranks
 * (param_store_options.layer_shards). */
int gradient_sync_open(struct gradient_sync *sync, struct rank *rank, struct param_store *store,
                       const struct gradient_sync_options *options);
/* Enters the sums and gathers of a global batch into the rank's list of work, all buckets as one call. The store has
 * `elements` elements of `dtype`. STATUS_MEMORY. */
int gradient_sync_plan(struct rank *rank, int64_t elements, bool is_sharded, enum dtype dtype);
/* Nothing is on its way, or comm_abort was called. */
void gradient_sync_close(struct gradient_sync *sync);

/* Sums over the tensor ranks the gradients that each of them has a part of (param.sums_over_tensor,
 * param_rect.is_shared), for the parameters of `layer`, before the sums over the data ranks. */
int gradient_sum_over_tensor(struct rank *rank, const struct param_store *store, int layer);

/* The gradients of `layer` and all above it are final: starts the sums of the buckets that are now complete. */
int gradient_sync_layer(struct gradient_sync *sync, int layer);
/* Starts what is left and waits for all: the sums stand in the store's gradients; with sharding, in this rank's
 * pieces of them. */
int gradient_sync_finish(struct gradient_sync *sync);
/* ---- the weights, with sharding; without it these do nothing ---- */

/* This rank has set the weights of pieces[turns[turn]], turn after turn: they start for the other ranks. */
int gradient_sync_gather_start(struct gradient_sync *sync, int turn);
/* Waits for the weights that a forward needs up to `layer`; for all with INT_MAX. */
int gradient_sync_gather_wait(struct gradient_sync *sync, int layer);
/* Both, for all pieces. */
int gradient_sync_gather_weights(struct gradient_sync *sync);

#endif
