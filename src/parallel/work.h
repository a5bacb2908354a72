/* The list of what a rank would do, which planning makes: each operation with its name, shape, FLOPs, bytes and
 * scratch, and each collective with its group. The workspace of a rank, the ceilings of benchmarks and predictions of a
 * step's time are sums and maxima over it.
 *
 * Alike items are one with a count: a model of any depth makes some hundred. The list belongs to its rank, and to the
 * rank's thread. */
#ifndef CAMBIUM_PARALLEL_WORK_H
#define CAMBIUM_PARALLEL_WORK_H

#include "kernels/work.h"

/* How often an item is done. Forward and backward: for each micro batch of a chunk; inference has a forward for each
 * step. Gradients and update: once for a global batch. The model clears and sums its own gradients in the first, and
 * weights change in the second. */
enum work_part { WORK_FORWARD, WORK_BACKWARD, WORK_GRADIENTS, WORK_UPDATE };

/* The groups of ranks that collectives run on. */
enum rank_group {
    RANK_ALONE,     /* an operation: no other rank is asked */
    RANK_TENSOR,    /* that share this one's layers */
    RANK_SHARERS,   /* neighbours of the tensor group with the same key and value heads */
    RANK_DATA,      /* that share its weights */
    RANK_BUCKETS,   /* those again, for what travels beside everything else */
    RANK_PIPELINE,  /* the stages that make up one model */
    RANK_EMBEDDING, /* first and last stage, which share tied embeddings */
    RANK_GROUPS
};

struct work_item {
    const char *name; /* of the operation in ops.h; "all_reduce", "all_gather", "reduce_scatter", "send" */
    int phase;        /* enum phase */
    enum work_part part;
    int chunk;             /* of the rank's, in forward and backward */
    enum rank_group group; /* of a collective; its bytes are those of one rank's whole operand */
    int ranks;             /* of the group */
    struct op_work work;   /* of one call */
    size_t scratch;        /* bytes of workspace */
    int64_t count;         /* calls; 0: some step may make it, with this scratch */
};

struct work_list {
    struct work_item *items;
    int count, capacity;
    /* The next notes belong to these. */
    enum work_part part;
    int chunk;
    int unsure; /* above 0: a step may do it, or not */
};

/* Adds item->count calls; the list's part and chunk become the item's. STATUS_MEMORY. */
int work_note(struct work_list *list, const struct work_item *item);
/* The operation noted last reads these elements of weights as well. */
void work_also_reads(struct work_list *list, int64_t elements, enum dtype type);
/* No call of the part counts any more; the scratch stays: what was planned is walked again. */
void work_forget(struct work_list *list, enum work_part part);
void work_free(struct work_list *list);

/* The most scratch of any item, certain or not. */
size_t work_scratch(const struct work_list *list);
/* Sums over calls: of matrix products, of all bytes that operations move, and of the bytes that no step makes (see
 * struct op_work). Collectives are left out. */
struct work_sum {
    double flops, bytes, lasting;
};
/* Sums the calls of one part. */
struct work_sum work_sum(const struct work_list *list, enum work_part part);
/* Model FLOPs of a part that is a forward: two for each row and weight that it meets, and the products of attention. */
double work_model_flops(const struct work_list *list, enum work_part part);
/* Bytes of this rank's operands in the collectives of a group. */
double work_group_bytes(const struct work_list *list, enum work_part part, enum rank_group group);

#endif
