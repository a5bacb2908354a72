/* The list of a rank's work, which planning makes: each operation with its number, shape, FLOPs, bytes and scratch, and
 * each collective with its group. The workspace of a rank, the ceilings of benchmarks, and predictions of a step's time
 * are sums and maxima over it.
 *
 * Equal items are one item with a count, so a model of any depth has about a hundred. The list belongs to its rank, and
 * the rank's thread uses it. */
#pragma once

#include "kernels/work.h"

/* The part of a step that an item belongs to, which says how often it is done. */
enum work_part {
    WORK_FORWARD,   /* for each micro batch of a chunk; in inference, for each step */
    WORK_BACKWARD,  /* for each micro batch of a chunk */
    WORK_GRADIENTS, /* once for a global batch: gradients are cleared, and summed within the model */
    WORK_UPDATE     /* once for a global batch: weights change */
};

/* The groups of ranks that collectives run on. */
enum rank_group {
    RANK_ALONE,     /* this rank: the group of operations */
    RANK_TENSOR,    /* ranks that share this rank's layers */
    RANK_SHARERS,   /* neighbours in the tensor group with the same key and value heads */
    RANK_DATA,      /* ranks that share this rank's weights */
    RANK_BUCKETS,   /* the same ranks, for calls that run beside all others */
    RANK_PIPELINE,  /* the stages of one model */
    RANK_EMBEDDING, /* first and last stage, which share tied embeddings */
    RANK_GROUPS
};

/* Work that the ranks of a group do together. */
enum work_message { WORK_NO_MESSAGE, WORK_ALL_REDUCE, WORK_ALL_GATHER, WORK_REDUCE_SCATTER, WORK_SEND };

struct work_item {
    enum op op;                /* OP_COUNT: a message, or workspace without work */
    enum work_message message; /* of a group other than RANK_ALONE */
    int phase;                 /* enum phase */
    enum work_part part;
    int chunk;             /* the rank's chunk, in forward and backward */
    enum rank_group group; /* of a collective; its bytes are those of one rank's whole operand */
    int ranks;             /* number of ranks in the group */
    struct op_work work;   /* of one call */
    size_t scratch;        /* bytes of workspace */
    int64_t count;         /* number of calls; 0: a step may make it, and needs this scratch */
};

struct work_list {
    struct work_item *items;
    int count, capacity;
    /* Set for the items that are added next. */
    enum work_part part;
    int chunk;
    int unsure; /* above 0: a step may do them or not */
};

/* Adds item->count calls; the list's part and chunk become the item's. STATUS_MEMORY. */
int work_note(struct work_list *list, const struct work_item *item);
/* Adds elements of weights to the bytes that the last added operation reads. */
void work_also_reads(struct work_list *list, int64_t elements, enum dtype type);
/* Frees the list; a zeroed one is allowed. */
void work_free(struct work_list *list);

/* Returns the largest scratch of any item, certain or not. */
size_t work_scratch(const struct work_list *list);
/* Sums over calls: FLOPs of matrix products, bytes that operations move, and bytes that no step makes (see struct
 * op_work). Collectives do not count. */
struct work_sum {
    double flops, bytes, lasting;
};
/* Returns the sums over the calls of one part. */
struct work_sum work_sum(const struct work_list *list, enum work_part part);
/* Returns the model FLOPs of a forward: two for each row and weight that multiply each other, and attention's products.
 */
double work_model_flops(const struct work_list *list, enum work_part part);
/* Returns the bytes of this rank's operands in the collectives of a group. */
double work_group_bytes(const struct work_list *list, enum work_part part, enum rank_group group);
