/* A pipeline's schedule in time: walks the real lists of steps of all stages with given durations.
 *
 * The rules are the executor's (parallel/pipeline.h). A step waits until its buffer for sending is free and its message
 * has arrived; it posts the next receive when it ends. A message travels beside later steps, one after the other
 * between two stages, and starts when its receive is posted. There is no formula for the bubble: a change of the
 * schedule changes the walk. Pure arithmetic; any thread. */
#pragma once

#include "parallel/schedule.h"

#include <stddef.h>

struct walk_times {
    /* Return the seconds of a step without its messages, and of a message from a stage to another. */
    double (*step)(const void *context, int stage, const struct pipeline_step *step);
    double (*message)(const void *context, int from, int to);
    /* Returns how fast each of `working` stages runs compared with the durations of `step`. NULL: stages share nothing,
     * and each always runs at 1. */
    double (*rate)(const void *context, int working);
    const void *context;
};

struct walk_event {
    struct pipeline_step step;
    double start, end;
};

struct walk {
    struct pipeline_shape shape;
    int steps;                 /* of each stage */
    double makespan;           /* the end of the last step of any stage */
    double *busy;              /* [stages] seconds in which a stage computes */
    struct walk_event *events; /* [stages][steps] */
};

/* Walks all steps of a global batch. The caller frees *walk with walk_free. STATUS_USAGE for a shape without a
 * schedule; STATUS_MEMORY. */
int walk_run(const struct pipeline_shape *shape, const struct walk_times *times, struct walk *walk);
void walk_free(struct walk *walk);
/* The same for stages of given times. `forward` and `backward` [stages] are those of a whole stage, of which each chunk
 * has an equal part. `head` is added to the backward of the last chunk of the last stage. A message takes `link`. */
struct walk_stages {
    struct pipeline_shape shape;
    const double *forward, *backward;
    double head, link;
};
/* Walks them. Errors as walk_run; the caller frees *walk with walk_free. */
int walk_stages(const struct walk_stages *stages, struct walk *walk);
/* Returns event `number` of a stage. */
static inline const struct walk_event *walk_event_at(const struct walk *walk, int stage, int number) {
    return &walk->events[(size_t)stage * (size_t)walk->steps + (size_t)number];
}
