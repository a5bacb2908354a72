/* The executor of pipeline schedules. It walks the steps of this rank's stage: it receives each step's input from a
 * neighbour, lets a worker run the step, and sends the result on. It does not know what a step computes.
 *
 * Activations and gradients are messages of one size. Receives are posted ahead (double-buffered, see schedule.h), and
 * sends run beside later steps. Activations and gradients each have a group, so that neither waits for the other. Over
 * a device channel that holds messages back, they are posted in rounds instead (rounds.h). */
#pragma once

#include "parallel/rank.h"
#include "parallel/rounds.h"
#include "parallel/schedule.h"

struct pipeline_worker {
    /* Runs a step. `in` [elements] is the neighbour's message, valid until the call returns; NULL if none comes, as at
     * the model's end. `out` [elements] receives the message to send; NULL if none is sent. */
    int (*run)(void *context, const struct pipeline_step *step, const void *in, void *out);
    void *context;
};

enum { PIPELINE_KINDS = 2, PIPELINE_SEND_BUFFERS = 2 };

/* The messages of one kind. */
struct pipeline_lane {
    int from;            /* the sending stage, or PIPELINE_NO_MESSAGE */
    int to;              /* the stage that gets what this one sends */
    int receive_buffers; /* 0 if no messages come */
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
    bool has_rounds;
    struct pipeline_rounds rounds, forward_rounds;
    struct pipeline_lane lanes[PIPELINE_KINDS]; /* by enum pipeline_step_kind */
    void *memory;
};

/* Returns the bytes of buffers that pipeline_open allocates on a stage. */
size_t pipeline_bytes(const struct pipeline_shape *shape, int stage, size_t message_bytes);
/* Stores the number of micro batches whose activations the stage holds at once. STATUS_MEMORY. */
int pipeline_stashes(const struct pipeline_shape *shape, int stage, int *stashes);

/* Enters the messages that the rank's stage sends for a global batch into its list of work. STATUS_MEMORY. */
int pipeline_plan(struct rank *rank, const struct pipeline_shape *shape, int64_t elements, enum dtype dtype);

/* Opens a pipeline for the stage at the rank's place. `shape` has passed pipeline_shape_check. The caller closes it.
 * STATUS_MEMORY, or the device's failure. */
int pipeline_open(struct pipeline *pipeline, struct rank *rank, const struct pipeline_shape *shape, int64_t elements,
                  enum dtype dtype);
/* Frees the buffers; no message is under way, or comm_abort was called. */
void pipeline_close(struct pipeline *pipeline);
/* Runs all steps of a global batch, or only the forward ones. All stages call this together. When it returns, no
 * message is under way, except after an error. The errors of the worker and of messages. */
int pipeline_run(struct pipeline *pipeline, bool is_forward_only, const struct pipeline_worker *worker);
