/* Sums the gradients of ranks that share their weights, in buckets. A bucket's sum starts as soon as its layers are
 * final. Between processes, it travels while the backward continues. Ranks that are threads of one process move it when
 * they wait for it.
 *
 * Without sharding, every rank of the data group ends with the whole sum and updates everything. With it (ZeRO-1) each
 * bucket is reduce-scattered. A rank ends with one equal piece of every bucket, keeps the optimizer's state only for
 * these pieces, and updates their weights. The pieces are then gathered in the order in which a forward needs them,
 * while it runs. A piece may begin or end inside a parameter; a bucket has whole parameters.
 *
 * A store may keep only shares of its gradients (sharded.h). Then it sums them by itself, each unit after each micro
 * batch, and the pieces here are its shares. If it keeps only shares of its weights, there is nothing to gather here.
 *
 * The order of the calls on the group is the same on all of its ranks. A rank without others in its data group has
 * nothing to sum, and its pieces hold everything. */
#pragma once

#include "parallel/rank.h"
#include "tensor/tensor.h"

/* Elements [first, first + count) of a store's flat arrays, which are whole layers. `layer` is the last of them whose
 * gradients become final. `needed` is the first of them that a forward needs. */
struct sync_bucket {
    int64_t first, count;
    int layer, needed;
};

/* A part of the store that this rank updates: elements [first, first + count) of the flat arrays. In arrays that hold
 * only pieces, it starts at `local`. The bucket is the one that it is a part of. */
struct sync_piece {
    int64_t first, count, local;
    int64_t bucket_first, bucket_count;
    int needed;
};

struct gradient_sync_options {
    bool is_sharded;         /* ZeRO-1; it has no effect for a single rank in its data group */
    bool overlaps_gradients; /* sums start during the backward; else after it */
    bool overlaps_weights;   /* the forward waits for gathers; else the call that starts the last one does */
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
    int updated, gathering, gathered; /* numbers of turns whose weights are set; have started; have arrived */
    struct comm_request *gathers;     /* [piece_count] */
    int bucket_count, started, waited;
    struct sync_bucket *buckets; /* in the order in which they become final; none if nothing is summed */
    struct comm_request *requests;
    double waited_seconds; /* total time that this rank has waited for sums and weights */
};

/* Opens the sums of a store, which must outlive them. With sharding, the store's layers must be cut into as many shards
 * as the data group has ranks (param_store_options.layer_shards). The caller closes it. STATUS_MEMORY. */
int gradient_sync_open(struct gradient_sync *sync, struct rank *rank, struct param_store *store,
                       const struct gradient_sync_options *options);
/* The messages of a global batch among the ranks that share weights, in elements of a rank's whole operands. */
struct gradient_sync_traffic {
    int64_t reduced;   /* gradients whose sum every rank gets */
    int64_t scattered; /* gradients of whose sum each rank gets its share */
    int64_t gathered;  /* weights */
    enum dtype dtype;  /* of the weights */
};
/* Adds the messages of a global batch to the rank's list of work, all of a kind as one call. STATUS_MEMORY. */
int gradient_sync_plan(struct rank *rank, const struct gradient_sync_traffic *traffic);
/* Frees it. No call is under way, or comm_abort was called. */
void gradient_sync_close(struct gradient_sync *sync);

/* Sums the gradient of a parameter over a group of ranks; if gradients are cut, the share of it that each keeps. The
 * errors of collectives. */
int gradient_sum(struct rank *rank, enum rank_group group, const struct param_store *store, int id);
/* Sums gradients of `layer` of which each tensor rank has a part (param.sums_over_tensor, param_rect.is_shared) over
 * these ranks. It must come before the sums over the data ranks, or if gradients are cut, after them. The errors of
 * collectives. */
int gradient_sum_over_tensor(struct rank *rank, const struct param_store *store, int layer);
/* The same for all layers. */
int gradient_sum_all_over_tensor(struct rank *rank, const struct param_store *store);

/* Call it when the gradients of `layer` and all layers above it are final: starts the sums of the buckets that are now
 * complete. The errors of collectives. */
int gradient_sync_layer(struct gradient_sync *sync, int layer);
/* Starts the remaining sums, and waits for all. The store's gradients are then the sums; with sharding, only in this
 * rank's pieces. The errors of collectives. */
int gradient_sync_finish(struct gradient_sync *sync);

/* ---- weights with sharding; without it these do nothing. Errors are those of collectives ---- */

/* Call it after this rank has set the weights of pieces[turns[turn]], turn after turn: starts to gather them. */
int gradient_sync_gather_start(struct gradient_sync *sync, int turn);
/* Waits for the weights that a forward needs up to `layer`; INT_MAX waits for all. */
int gradient_sync_gather_wait(struct gradient_sync *sync, int layer);
/* Does both, for all pieces. */
int gradient_sync_gather_weights(struct gradient_sync *sync);
