/* Pipeline schedules as data: the list of steps of one stage, for 1F1B (one chunk a stage) and interleaved 1F1B
 * (several).
 *
 * Pure arithmetic: no communication, no device, no allocation; any thread. The orders are Megatron-LM's (arXiv
 * 2104.04473). They exist for every number of micro batches, including those that Megatron-LM refuses.
 *
 * An executor walks the list: wait for step.receive if there is one, compute, send step.send. A message carries the
 * activation of a forward step, or the gradient of a backward step. Messages of one kind between two stages arrive in
 * the order in which they were sent. A stage has one sender and one receiver of each kind.
 *
 * The executor keeps pipeline_receive_buffers() receives of each kind posted; message `number` belongs in buffer
 * `number` modulo that. It posts the next one when a buffer becomes free, after the step that used it. With this number
 * of buffers no stage ever waits for one, and even sends that block until a buffer is posted cannot deadlock.
 *
 * In every chunk the micro batches go forward in order 0 .. m-1, and backward in the same order. The backward of micro
 * batch m-1 is therefore the chunk's last, after which its gradients are whole. */
#pragma once

#include <stdbool.h>

struct pipeline_shape {
    int stages;        /* p */
    int chunks;        /* v, model chunks of a stage; 1: plain 1F1B */
    int micro_batches; /* m */
    /* Micro batches that go through one chunk before the next chunk's turn (Megatron-LM's
     * microbatch_group_size_per_vp_stage), from p to m; 0: p. It has no effect with one chunk. */
    int group_size;
    bool is_forward_only; /* evaluation: there are no backward steps, and no activations are held */
    /* The first place with a backward; 0: all have one. A place is a chunk of a stage: chunk * p + stage, ascending
     * along the model. Nothing trains in places below this one: no gradient is sent there, and forwards hold no
     * activations. */
    int first_backward;
};

enum pipeline_step_kind { PIPELINE_FORWARD, PIPELINE_BACKWARD };

enum { PIPELINE_NO_MESSAGE = -1, PIPELINE_NO_STASH = -1 };

struct pipeline_message {
    int stage;  /* the stage at the other end, or PIPELINE_NO_MESSAGE */
    int chunk;  /* of the other end */
    int number; /* 0, 1, 2, ... among the messages of this kind from that sender to that receiver; the same at both ends
                 */
};

struct pipeline_step {
    enum pipeline_step_kind kind; /* of the step, and of its messages */
    int chunk;                    /* of this stage: 0 .. v-1 */
    int micro_batch;              /* 0 .. m-1 */
    /* The stash that holds the activations of (chunk, micro batch): 0 .. pipeline_in_flight() - 1, none shared; or
     * PIPELINE_NO_STASH for a backward that has nothing to do. */
    int stash;
    struct pipeline_message receive, send;
};

/* Checks a shape. STATUS_USAGE, with the numbers, if it has no schedule. The functions below take checked shapes. */
int pipeline_shape_check(const struct pipeline_shape *shape);

/* Returns the number of steps of each stage: 2 v m, or v m if forward only. */
int pipeline_step_count(const struct pipeline_shape *shape);

/* Writes the steps of a stage, 0 <= stage < p, to `steps` [pipeline_step_count]. */
void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *steps);

/* Returns true if a stage sends messages of the kind. */
bool pipeline_has_sends(const struct pipeline_shape *shape, int stage, enum pipeline_step_kind kind);

/* Returns how many receives of one kind a stage keeps posted: 0 when it receives none, else 2. It is more at the end of
 * the wrap-around (the first stage's activations, the last stage's gradients) when groups are larger than p. */
int pipeline_receive_buffers(const struct pipeline_shape *shape, int stage, enum pipeline_step_kind kind);

/* Returns the maximum number of micro batches whose activations are held at once, for one chunk, or with chunk -1 for
 * all chunks together. The latter is the number of stashes; 0 when no place of the stage has a backward. Counted from
 * the list. */
int pipeline_in_flight(const struct pipeline_step *steps, int count, int chunk);
