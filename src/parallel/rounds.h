/* The messages of a pipeline in rounds, for channels that promise no progress of one message before another, like NCCL.
 *
 * A message has the same round at both ends. A stage posts the messages of one round together, and the rounds in order.
 * Then no stages wait for each other in a cycle, even if no message is buffered. The first round that is not finished
 * only waits for steps whose own messages had earlier rounds.
 *
 * The rounds come from a run of all stages in which each step takes the same time. A message goes to its receiver as
 * soon as it is made and the receiver has a buffer for it. Pure arithmetic; any thread. */
#pragma once

#include "parallel/schedule.h"

/* One end of a message. */
struct pipeline_post {
    int after; /* it is posted when this step of the stage has been queued; -1: before the first */
    int round;
    bool is_receive;
    enum pipeline_step_kind kind;
    int number; /* as in the step's struct pipeline_message */
};

struct pipeline_rounds {
    struct pipeline_post *posts; /* by round, then by kind and number: in the same order at both ends */
    int count;
};

/* Lists the posts of a stage that sends from `send_buffers` buffers of each kind. The caller frees them with
 * pipeline_rounds_free. STATUS_MEMORY. */
int pipeline_rounds_make(const struct pipeline_shape *shape, int stage, int send_buffers,
                         struct pipeline_rounds *rounds);
/* Frees the posts; zeroed rounds are allowed. */
void pipeline_rounds_free(struct pipeline_rounds *rounds);
