/* The executor of pipeline schedules: walks the steps of this rank's stage, brings each step what the neighbour made,
 * and sends on what the step makes.
 *
 * Activations and gradients are messages of one size. Receives are posted ahead (double-buffered, see schedule.h),
 * sends run beside the steps that follow; both kinds have a group of their own, so that neither waits for the other.
 * The executor does not know what a step computes: a worker runs it. */
#ifndef CAMBIUM_PARALLEL_PIPELINE_H
#define CAMBIUM_PARALLEL_PIPELINE_H

#include "parallel/rank.h"
#include "parallel/schedule.h"

struct pipeline_worker {
    /* Runs a step. `in` [elements]: what the neighbour sent, until the call returns; NULL at the model's end, and where
     * no gradient comes. `out` [elements]: what the neighbour gets; NULL where nothing is sent. */
    int (*run)(void *context, const struct pipeline_step *step, const void *in, void *out);
    void *context;
};

enum { PIPELINE_KINDS = 2, PIPELINE_SEND_BUFFERS = 2 };

/* The messages of one kind. */
struct pipeline_lane {
    int from;            /* stage; or PIPELINE_NO_MESSAGE */
    int receive_buffers; /* 0 where nothing comes */
    bool has_sends;
    char *received, *sent;                 /* the buffers */
    struct comm_request *receive_requests; /* [receive_buffers] */
    struct comm_request send_requests[PIPELINE_SEND_BUFFERS];
};

struct pipeline {
    struct rank *rank;
    struct pipeline_shape shape; /* with backwards */
    int64_t elements;            /* of a message */
    enum dtype dtype;
    struct pipeline_step *steps, *forward_steps; /* of training and of evaluation */
    struct pipeline_lane lanes[PIPELINE_KINDS];  /* by enum pipeline_step_kind */
    void *memory;
};

/* Bytes of buffers that pipeline_open allocates on a stage. */
size_t pipeline_bytes(const struct pipeline_shape *shape, int stage, size_t message_bytes);
/* The micro batches whose activations the stage holds at once. */
int pipeline_stashes(const struct pipeline_shape *shape, int stage, int *stashes);

/* Enters the messages that the rank's stage sends for a global batch into its list of work. STATUS_MEMORY. */
int pipeline_plan(struct rank *rank, const struct pipeline_shape *shape, int64_t elements, enum dtype dtype);

/* The stage is the rank's place. `shape` has passed pipeline_shape_check. */
int pipeline_open(struct pipeline *pipeline, struct rank *rank, const struct pipeline_shape *shape, int64_t elements,
                  enum dtype dtype);
void pipeline_close(struct pipeline *pipeline);
/* All steps of a global batch, or only the forward ones. All stages call this together. Nothing is under way when it
 * returns, except after an error. */
int pipeline_run(struct pipeline *pipeline, bool is_forward_only, const struct pipeline_worker *worker);

#endif
