/* Advances the stages in turn, each as far as the times that it depends on are known. Stages that share processors
 * advance together, from one start or end to the next. */
#include "planner/walk.h"

#include "base/base.h"
#include "parallel/pipeline.h"

#include <math.h>

/* The messages of one kind that one stage sends. They all go to one other stage. */
struct lane {
    int receiver, buffers;     /* the receiver's buffers */
    int sent, posted, arrived; /* the number of messages whose time is known, of each kind */
    double *ready, *post, *arrival;
};

struct walker {
    const struct walk_times *times;
    struct walk *walk;
    struct lane *lanes; /* [stages][kinds], by the sender */
    int *next;          /* [stages] */
    double *now;        /* [stages] */
    double *numbers;    /* the memory of the lanes' times */
};

static struct lane *lane_from(const struct walker *walker, int stage, enum pipeline_step_kind kind) {
    return &walker->lanes[PIPELINE_KINDS * stage + (int)kind];
}

/* Finds the arrivals of all messages that are ready at both ends. */
static void deliver(const struct walker *walker, int sender, struct lane *lane) {
    while (lane->arrived < lane->sent && lane->arrived < lane->posted) {
        int n = lane->arrived++;
        double start = lane->ready[n] > lane->post[n] ? lane->ready[n] : lane->post[n];
        if (n > 0 && lane->arrival[n - 1] > start)
            start = lane->arrival[n - 1];
        lane->arrival[n] = start + walker->times->message(walker->times->context, sender, lane->receiver);
    }
}

static struct walk_event *next_event(const struct walker *walker, int stage) {
    return &walker->walk->events[(size_t)stage * (size_t)walker->walk->steps + (size_t)walker->next[stage]];
}

/* Finds when the next step of a stage starts. Returns false while a time that it depends on is unknown. */
static bool find_start(const struct walker *walker, int stage, double *found) {
    const struct pipeline_step *step = &next_event(walker, stage)->step;
    bool receives = step->receive.stage != PIPELINE_NO_MESSAGE, sends = step->send.stage != PIPELINE_NO_MESSAGE;
    const struct lane *in = receives ? lane_from(walker, step->receive.stage, step->kind) : NULL;
    const struct lane *out = lane_from(walker, stage, step->kind);
    int freed = step->send.number - PIPELINE_SEND_BUFFERS; /* the message that had the buffer for sending */
    double start = walker->now[stage];
    if ((receives && in->arrived <= step->receive.number) || (sends && freed >= 0 && out->arrived <= freed))
        return false;
    if (receives && in->arrival[step->receive.number] > start)
        start = in->arrival[step->receive.number];
    if (sends && freed >= 0 && out->arrival[freed] > start)
        start = out->arrival[freed];
    *found = start;
    return true;
}

/* Ends the next step of a stage: it posts a receive, and sends. */
static void end_step(struct walker *walker, int stage, double start, double end) {
    struct walk_event *event = next_event(walker, stage);
    const struct pipeline_step *step = &event->step;
    event->start = start;
    event->end = walker->now[stage] = end;
    walker->walk->busy[stage] += end - start;
    walker->next[stage]++;
    if (step->receive.stage != PIPELINE_NO_MESSAGE) {
        struct lane *in = lane_from(walker, step->receive.stage, step->kind);
        in->post[in->posted++] = end;
        deliver(walker, step->receive.stage, in);
    }
    if (step->send.stage != PIPELINE_NO_MESSAGE) {
        struct lane *out = lane_from(walker, stage, step->kind);
        out->ready[out->sent++] = end;
        deliver(walker, stage, out);
    }
}

static double step_seconds(const struct walker *walker, int stage) {
    return walker->times->step(walker->times->context, stage, &next_event(walker, stage)->step);
}

/* Runs the next step of a stage at full speed. Returns false while a time that it depends on is unknown. */
static bool run_step(struct walker *walker, int stage) {
    double start;
    if (!find_start(walker, stage, &start))
        return false;
    end_step(walker, stage, start, start + step_seconds(walker, stage));
    return true;
}

/* Gives each lane its receiver and its memory. */
static void open_lanes(struct walker *walker) {
    const struct walk *walk = walker->walk;
    double *numbers = walker->numbers;
    for (int stage = 0; stage < walk->shape.stages; stage++)
        for (int kind = 0; kind < PIPELINE_KINDS; kind++) {
            struct lane *lane = lane_from(walker, stage, (enum pipeline_step_kind)kind);
            for (int i = 0; i < walk->steps; i++) {
                const struct pipeline_step *step = &walk_event_at(walk, stage, i)->step;
                if ((int)step->kind == kind && step->send.stage != PIPELINE_NO_MESSAGE)
                    lane->receiver = step->send.stage;
            }
            lane->buffers = pipeline_receive_buffers(&walk->shape, lane->receiver, (enum pipeline_step_kind)kind);
            lane->posted = lane->buffers; /* from the start */
            lane->ready = numbers;
            lane->post = lane->ready + walk->steps;
            lane->arrival = lane->post + walk->steps + lane->buffers;
            numbers = lane->arrival + walk->steps;
        }
}

static int allocate(struct walker *walker, struct walk *walk) {
    size_t stages = (size_t)walk->shape.stages, steps = (size_t)walk->steps, lanes = stages * PIPELINE_KINDS;
    walk->busy = calloc(stages, sizeof *walk->busy);
    walk->events = calloc(stages * steps, sizeof *walk->events);
    walker->lanes = calloc(lanes, sizeof *walker->lanes);
    walker->next = calloc(stages, sizeof *walker->next);
    walker->now = calloc(stages, sizeof *walker->now);
    size_t posted_ahead = (size_t)walk->shape.micro_batches + 2; /* at most, in a lane */
    walker->numbers = calloc(lanes * (3 * steps + posted_ahead), sizeof *walker->numbers);
    bool is_there = walk->busy && walk->events && walker->lanes && walker->next && walker->now && walker->numbers;
    return status_allocated(is_there);
}

static int list_steps(struct walk *walk) {
    struct pipeline_step *steps = calloc((size_t)walk->steps, sizeof *steps);
    TRY(status_allocated(steps));
    for (int stage = 0; stage < walk->shape.stages; stage++) {
        pipeline_steps(&walk->shape, stage, steps);
        for (int i = 0; i < walk->steps; i++)
            walk->events[(size_t)stage * (size_t)walk->steps + (size_t)i].step = steps[i];
    }
    free(steps);
    return STATUS_OK;
}

/* A step in progress, of stages that share processors. */
struct running {
    bool is_working;
    double start, remaining; /* seconds, at the rate 1 */
};

/* Starts the steps that can start at `now`. Returns the number of working stages; *next is when the first of the other
 * stages can start, as far as that is known. */
static int start_steps(const struct walker *walker, struct running *progress, double now, double *next) {
    int working = 0;
    for (int stage = 0; stage < walker->walk->shape.stages; stage++) {
        struct running *p = &progress[stage];
        double start;
        if (!p->is_working && walker->next[stage] < walker->walk->steps && find_start(walker, stage, &start)) {
            if (start <= now)
                *p = (struct running){true, now, step_seconds(walker, stage)};
            else
                *next = start < *next ? start : *next;
        }
        working += p->is_working;
    }
    return working;
}

/* Runs all steps in the order of time: each start and end changes the rate of all that are in progress. */
static void run_shared(struct walker *walker, struct running *progress) {
    for (double now = 0, next = INFINITY;; now = next, next = INFINITY) {
        int stages = walker->walk->shape.stages, working = start_steps(walker, progress, now, &next), ending = -1;
        if (!working && next == INFINITY)
            return;
        double rate = working ? walker->times->rate(walker->times->context, working) : 1;
        for (int stage = 0; stage < stages; stage++)
            if (progress[stage].is_working && now + progress[stage].remaining / rate <= next) {
                ending = stage;
                next = now + progress[stage].remaining / rate;
            }
        for (int stage = 0; stage < stages; stage++)
            progress[stage].remaining = fmax(progress[stage].remaining - (next - now) * rate, 0);
        if (ending < 0)
            continue;
        progress[ending].is_working = false;
        end_step(walker, ending, progress[ending].start, next);
    }
}

static int run_all(struct walker *walker) {
    struct walk *walk = walker->walk;
    struct running *progress = walker->times->rate ? calloc((size_t)walk->shape.stages, sizeof *progress) : NULL;
    if (walker->times->rate && !progress)
        return status_no_memory();
    if (progress)
        run_shared(walker, progress);
    for (bool has_moved = !progress; has_moved;) { /* in rounds over the stages */
        has_moved = false;
        for (int stage = 0; stage < walk->shape.stages; stage++)
            while (walker->next[stage] < walk->steps && run_step(walker, stage))
                has_moved = true;
    }
    free(progress);
    for (int stage = 0; stage < walk->shape.stages; stage++)
        walk->makespan = walker->now[stage] > walk->makespan ? walker->now[stage] : walk->makespan;
    return STATUS_OK;
}

int walk_run(const struct pipeline_shape *shape, const struct walk_times *times, struct walk *walk) {
    struct walker walker = {.times = times, .walk = walk};
    *walk = (struct walk){.shape = *shape};
    TRY(pipeline_shape_check(shape));
    walk->steps = pipeline_step_count(shape);
    int status = allocate(&walker, walk);
    THEN(status, list_steps(walk));
    if (!status) {
        open_lanes(&walker);
        status = run_all(&walker);
    }
    free(walker.lanes);
    free(walker.next);
    free(walker.now);
    free(walker.numbers);
    if (status)
        walk_free(walk);
    return status;
}

void walk_free(struct walk *walk) {
    free(walk->busy);
    free(walk->events);
    *walk = (struct walk){0};
}

/* ---- stages of given times ---- */

static double step_of_stages(const void *context, int stage, const struct pipeline_step *step) {
    const struct walk_stages *stages = context;
    int last = stages->shape.stages - 1, last_chunk = stages->shape.chunks - 1;
    if (step->kind == PIPELINE_FORWARD)
        return stages->forward[stage] / stages->shape.chunks;
    bool has_head = stage == last && step->chunk == last_chunk;
    return stages->backward[stage] / stages->shape.chunks + (has_head ? stages->head : 0);
}

static double message_of_stages(const void *context, int from, int to) {
    return ((const struct walk_stages *)context)->link;
}

int walk_stages(const struct walk_stages *stages, struct walk *walk) {
    const struct walk_times times = {.step = step_of_stages, .message = message_of_stages, .context = stages};
    return walk_run(&stages->shape, &times, walk);
}
