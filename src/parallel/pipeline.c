/* Runs the steps of one stage, and its messages. */
#include "parallel/pipeline.h"

/* ---- buffers ---- */

/* Places the buffers of a stage; on a planning arena, it counts their bytes. */
static void place_buffers(const struct pipeline_shape *shape, int stage, size_t message_bytes, struct arena *arena,
                          struct pipeline_lane lanes[PIPELINE_KINDS]) {
    for (int kind = 0; kind < PIPELINE_KINDS; kind++) {
        struct pipeline_lane *lane = &lanes[kind];
        int before = kind == PIPELINE_FORWARD ? stage - 1 : stage + 1;
        lane->receive_buffers = pipeline_receive_buffers(shape, stage, (enum pipeline_step_kind)kind);
        lane->from = lane->receive_buffers ? (before + shape->stages) % shape->stages : PIPELINE_NO_MESSAGE;
        lane->to = (2 * stage - before + shape->stages) % shape->stages;
        lane->has_sends = pipeline_has_sends(shape, stage, (enum pipeline_step_kind)kind);
        lane->received = arena_take(arena, (size_t)lane->receive_buffers * message_bytes);
        lane->sent = arena_take(arena, lane->has_sends ? PIPELINE_SEND_BUFFERS * message_bytes : 0);
    }
}

size_t pipeline_bytes(const struct pipeline_shape *shape, int stage, size_t message_bytes) {
    struct arena arena = ARENA_PLAN;
    struct pipeline_lane lanes[PIPELINE_KINDS];
    place_buffers(shape, stage, message_bytes, &arena, lanes);
    return arena.used;
}

static int list_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step **steps) {
    *steps = calloc((size_t)pipeline_step_count(shape), sizeof **steps);
    TRY(status_allocated(*steps));
    pipeline_steps(shape, stage, *steps);
    return STATUS_OK;
}

int pipeline_stashes(const struct pipeline_shape *shape, int stage, int *stashes) {
    struct pipeline_step *steps;
    int status = list_steps(shape, stage, &steps);
    if (!status)
        *stashes = pipeline_in_flight(steps, pipeline_step_count(shape), -1);
    free(steps);
    return status;
}

int pipeline_plan(struct rank *rank, const struct pipeline_shape *shape, int64_t elements, enum dtype dtype) {
    struct pipeline_step *steps;
    int64_t sends = 0;
    int status = list_steps(shape, rank->place.pipeline, &steps);
    for (int i = 0; !status && i < pipeline_step_count(shape); i++)
        sends += steps[i].send.stage != PIPELINE_NO_MESSAGE;
    free(steps);
    return status ? status : rank_note_messages(rank, RANK_PIPELINE, WORK_SEND, elements, dtype, sends);
}

static size_t message_bytes(const struct pipeline *pipeline) {
    return (size_t)pipeline->elements * dtype_bytes(pipeline->dtype);
}

static void forget_requests(struct pipeline_lane *lane) {
    for (int i = 0; i < PIPELINE_SEND_BUFFERS; i++)
        comm_forget(&lane->send_requests[i]);
    for (int i = 0; i < lane->receive_buffers && lane->receive_requests; i++)
        comm_forget(&lane->receive_requests[i]);
    free(lane->receive_requests);
}

void pipeline_close(struct pipeline *pipeline) {
    if (!pipeline->rank)
        return;
    for (int kind = 0; kind < PIPELINE_KINDS; kind++)
        forget_requests(&pipeline->lanes[kind]);
    device_free(pipeline->rank->device, pipeline->memory);
    free(pipeline->steps);
    free(pipeline->forward_steps);
    pipeline_rounds_free(&pipeline->rounds);
    pipeline_rounds_free(&pipeline->forward_rounds);
    *pipeline = (struct pipeline){0};
}

/* Lists the steps of training and of evaluation, and the rounds of their messages if the channel wants them. */
static int list_all(struct pipeline *pipeline) {
    int stage = pipeline->rank->place.pipeline;
    struct pipeline_shape forward_only = pipeline->shape;
    forward_only.is_forward_only = true;
    pipeline->has_rounds = comm_holds_messages(pipeline->rank->pipeline[PIPELINE_FORWARD]);
    int status = list_steps(&pipeline->shape, stage, &pipeline->steps);
    THEN(status, list_steps(&forward_only, stage, &pipeline->forward_steps));
    if (!status && pipeline->has_rounds)
        status = pipeline_rounds_make(&pipeline->shape, stage, PIPELINE_SEND_BUFFERS, &pipeline->rounds);
    if (!status && pipeline->has_rounds)
        status = pipeline_rounds_make(&forward_only, stage, PIPELINE_SEND_BUFFERS, &pipeline->forward_rounds);
    return status;
}

int pipeline_open(struct pipeline *pipeline, struct rank *rank, const struct pipeline_shape *shape, int64_t elements,
                  enum dtype dtype) {
    int stage = rank->place.pipeline;
    *pipeline = (struct pipeline){.rank = rank, .shape = *shape, .elements = elements, .dtype = dtype};
    int status = list_all(pipeline);
    size_t bytes = pipeline_bytes(shape, stage, message_bytes(pipeline));
    if (!status && bytes && (status = device_alloc(rank->device, bytes, &pipeline->memory)))
        status_wrap(status, "buffers of the pipeline");
    struct arena arena = arena_over(pipeline->memory, bytes);
    if (!status)
        place_buffers(shape, stage, message_bytes(pipeline), &arena, pipeline->lanes);
    for (int kind = 0; kind < PIPELINE_KINDS && !status; kind++) {
        struct pipeline_lane *lane = &pipeline->lanes[kind];
        lane->receive_requests = calloc((size_t)lane->receive_buffers + 1, sizeof *lane->receive_requests);
        if (!lane->receive_requests)
            status = status_no_memory();
    }
    if (status)
        pipeline_close(pipeline);
    return status;
}

/* ---- messages ---- */

/* Posts the receive of message `number`, in the buffer of message `number - receive_buffers`. */
static int post_receive(struct pipeline *pipeline, enum pipeline_step_kind kind, int number) {
    struct pipeline_lane *lane = &pipeline->lanes[kind];
    int buffer = number % lane->receive_buffers;
    struct comm_data data = {.receive = lane->received + (size_t)buffer * message_bytes(pipeline),
                             .count = pipeline->elements,
                             .dtype = pipeline->dtype,
                             .stream = pipeline->rank->exec.stream};
    return comm_receive_start(pipeline->rank->pipeline[kind], &data, lane->from, &lane->receive_requests[buffer]);
}

/* Posts the first receives, one for each buffer, but no more than the steps will use. */
static int post_first_receives(struct pipeline *pipeline, const struct pipeline_step *steps, int count,
                               int expected[PIPELINE_KINDS]) {
    int status = STATUS_OK;
    expected[PIPELINE_FORWARD] = expected[PIPELINE_BACKWARD] = 0;
    for (int i = 0; i < count; i++)
        expected[steps[i].kind] += steps[i].receive.stage != PIPELINE_NO_MESSAGE;
    for (int kind = 0; kind < PIPELINE_KINDS; kind++)
        for (int n = 0; n < pipeline->lanes[kind].receive_buffers && n < expected[kind] && !status; n++)
            status = post_receive(pipeline, (enum pipeline_step_kind)kind, n);
    return status;
}

static int post_send(struct pipeline *pipeline, enum pipeline_step_kind kind, int number, int to) {
    struct pipeline_lane *lane = &pipeline->lanes[kind];
    struct rank *rank = pipeline->rank;
    int buffer = number % PIPELINE_SEND_BUFFERS;
    struct comm_data data = {.send = lane->sent + (size_t)buffer * message_bytes(pipeline),
                             .count = pipeline->elements,
                             .dtype = pipeline->dtype,
                             .stream = rank->exec.stream};
    int begun = rank_phase_begin(rank);
    int status = comm_send_start(rank->pipeline[kind], &data, to, &lane->send_requests[buffer]);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

/* Posts the rounds from *at on whose turn is after step `after`. */
static int post_rounds(struct pipeline *pipeline, const struct pipeline_rounds *rounds, int after, int *at) {
    int status = STATUS_OK;
    while (*at < rounds->count && rounds->posts[*at].after == after && !status) {
        const struct pipeline_post *first = &rounds->posts[*at];
        for (; *at < rounds->count && !status; ++*at) {
            const struct pipeline_post *post = &rounds->posts[*at];
            if (post->round != first->round)
                break;
            status = post->is_receive ? post_receive(pipeline, post->kind, post->number)
                                      : post_send(pipeline, post->kind, post->number, pipeline->lanes[post->kind].to);
        }
        THEN(status, comm_post(pipeline->rank->pipeline[PIPELINE_FORWARD]));
    }
    return status;
}

static int wait_for(struct rank *rank, struct comm_request *request) {
    int status = rank_wait(rank, request);
    *request = (struct comm_request){0};
    return status;
}

static int run_step(struct pipeline *pipeline, const struct pipeline_step *step, int expected,
                    const struct pipeline_worker *worker) {
    struct rank *rank = pipeline->rank;
    struct pipeline_lane *lane = &pipeline->lanes[step->kind];
    bool receives = step->receive.stage != PIPELINE_NO_MESSAGE, sends = step->send.stage != PIPELINE_NO_MESSAGE;
    int buffer = receives ? step->receive.number % lane->receive_buffers : 0;
    int place = sends ? step->send.number % PIPELINE_SEND_BUFFERS : 0;
    const char *in = receives ? lane->received + (size_t)buffer * message_bytes(pipeline) : NULL;
    char *out = sends ? lane->sent + (size_t)place * message_bytes(pipeline) : NULL;
    int status = sends ? wait_for(rank, &lane->send_requests[place]) : STATUS_OK;
    THEN_IF(status, receives, wait_for(rank, &lane->receive_requests[buffer]));
    THEN(status, worker->run(worker->context, step, in, out));
    if (status || pipeline->has_rounds)
        return status;
    if (receives && step->receive.number + lane->receive_buffers < expected)
        status = post_receive(pipeline, step->kind, step->receive.number + lane->receive_buffers);
    return status || !sends ? status : post_send(pipeline, step->kind, step->send.number, step->send.stage);
}

int pipeline_run(struct pipeline *pipeline, bool is_forward_only, const struct pipeline_worker *worker) {
    const struct pipeline_step *steps = is_forward_only ? pipeline->forward_steps : pipeline->steps;
    int count = pipeline_step_count(&pipeline->shape) / (is_forward_only ? 2 : 1), expected[PIPELINE_KINDS];
    const struct pipeline_rounds *rounds = is_forward_only ? &pipeline->forward_rounds : &pipeline->rounds;
    int posted = 0;
    int status = pipeline->has_rounds ? post_rounds(pipeline, rounds, -1, &posted)
                                      : post_first_receives(pipeline, steps, count, expected);
    for (int i = 0; i < count && !status; i++) {
        status = run_step(pipeline, &steps[i], pipeline->has_rounds ? 0 : expected[steps[i].kind], worker);
        THEN(status, post_rounds(pipeline, rounds, i, &posted));
    }
    for (int kind = 0; kind < PIPELINE_KINDS; kind++)
        for (int i = 0; i < PIPELINE_SEND_BUFFERS && !status; i++)
            status = wait_for(pipeline->rank, &pipeline->lanes[kind].send_requests[i]);
    return status;
}
