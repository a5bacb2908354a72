/* Pipeline schedules. The orders are compared with megatron-core's and those of the paper. A simulator runs the lists
 * of all stages over bounded channels, with a forward of one unit of time and a backward of two. */
#include "support/test.h"

#include "base/base.h"
#include "parallel/schedule.h"

static struct pipeline_step *steps_of(const struct pipeline_shape *shape, int stage) {
    struct pipeline_step *steps = malloc(sizeof *steps * (size_t)pipeline_step_count(shape));
    assert_non_null(steps);
    pipeline_steps(shape, stage, steps);
    return steps;
}

/* ---- orders ---- */

/* "F0a F1a B0b": kind, micro batch, chunk; without letters where there is one chunk. */
static void order_is(const struct pipeline_shape *shape, int stage, const char *expected) {
    test_ok(pipeline_shape_check(shape));
    struct pipeline_step *steps = steps_of(shape, stage);
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; i < pipeline_step_count(shape); i++) {
        strbuf_format(&text, "%s%c%d", i ? " " : "", steps[i].kind == PIPELINE_FORWARD ? 'F' : 'B',
                      steps[i].micro_batch);
        if (shape->chunks > 1)
            strbuf_add_char(&text, (char)('a' + steps[i].chunk));
    }
    assert_string_equal(strbuf_text(&text), expected);
    strbuf_free(&text);
    free(steps);
}

static void orders_are_those_of_the_paper(void **state) {
    (void)state;
    struct pipeline_shape plain = {.stages = 4, .chunks = 1, .micro_batches = 8};
    order_is(&plain, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    order_is(&plain, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    struct pipeline_shape interleaved = {.stages = 4, .chunks = 2, .micro_batches = 8};
    order_is(&interleaved, 0,
             "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a B2a B3a B4b B5b "
             "B6b B7b B4a B5a B6a B7a");
    order_is(&interleaved, 3,
             "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a F4b B4b F5b B5b F6b B6b "
             "F7b B7b B4a B5a B6a B7a");
}

static void fewer_micro_batches_than_stages_have_an_order(void **state) {
    (void)state;
    struct pipeline_shape shape = {.stages = 4, .chunks = 1, .micro_batches = 2};
    order_is(&shape, 0, "F0 F1 B0 B1");
    order_is(&shape, 2, "F0 F1 B0 B1");
    order_is(&shape, 3, "F0 B0 F1 B1");
    struct pipeline_shape alone = {.stages = 1, .chunks = 1, .micro_batches = 2};
    order_is(&alone, 0, "F0 B0 F1 B1");
    struct pipeline_shape forward = {.stages = 2, .chunks = 2, .micro_batches = 2, .is_forward_only = true};
    order_is(&forward, 0, "F0a F1a F0b F1b");
}

static void orders_are_megatron_cores(void **state) {
    (void)state;
    FILE *file = fopen(TEST_DATA "/parallel/golden/megatron.txt", "r");
    assert_non_null(file);
    char line[4096];
    int cases = 0;
    while (fgets(line, sizeof line, file)) {
        struct pipeline_shape shape = {0};
        int stage, at = 0;
        if (sscanf(line, "schedule %d %d %d %d %d : %n", &shape.stages, &shape.chunks, &shape.micro_batches,
                   &shape.group_size, &stage, &at) != 5)
            continue;
        line[strcspn(line, "\n")] = 0;
        order_is(&shape, stage, line + at);
        if (shape.group_size == shape.stages) { /* the default */
            shape.group_size = 0;
            order_is(&shape, stage, line + at);
        }
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 33);
}

/* ---- messages ---- */

static void message_is(struct pipeline_message message, int stage, int chunk) {
    assert_int_equal(message.stage, stage);
    assert_int_equal(message.chunk, chunk);
}

static void messages_run_along_the_model_and_back(void **state) {
    (void)state;
    struct pipeline_shape shape = {.stages = 3, .chunks = 2, .micro_batches = 3};
    const int none = PIPELINE_NO_MESSAGE;
    const struct {
        int stage, chunk;
        struct pipeline_message before, behind; /* in the model */
    } places[] = {
        {0, 0, {none, none, 0}, {1, 0, 0}}, {1, 0, {0, 0, 0}, {2, 0, 0}}, {2, 0, {1, 0, 0}, {0, 1, 0}}, /* the wrap */
        {0, 1, {2, 0, 0}, {1, 1, 0}},       {1, 1, {0, 1, 0}, {2, 1, 0}}, {2, 1, {1, 1, 0}, {none, none, 0}},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct pipeline_step *steps = steps_of(&shape, places[i].stage);
        for (int s = 0; s < pipeline_step_count(&shape); s++) {
            if (steps[s].chunk != places[i].chunk)
                continue;
            bool is_forward = steps[s].kind == PIPELINE_FORWARD;
            struct pipeline_message from = is_forward ? places[i].before : places[i].behind;
            struct pipeline_message to = is_forward ? places[i].behind : places[i].before;
            message_is(steps[s].receive, from.stage, from.chunk);
            message_is(steps[s].send, to.stage, to.chunk);
        }
        free(steps);
    }
}

/* ---- the simulator ---- */

struct sent {
    int chunk, micro_batch; /* the receiving chunk */
    double arrives, freed;  /* when the receiver's buffer is free again; negative: not yet */
};

/* The messages of one kind that arrive at one stage. */
struct channel {
    int buffers, count, received; /* sent and used so far */
    struct sent *sent;
};

struct simulation {
    const struct pipeline_shape *shape;
    struct pipeline_step **steps; /* [p] */
    int *next;                    /* [p] step */
    bool *is_computed;            /* [p] the next step only waits to be sent */
    double *now;                  /* [p] */
    struct channel *channels;     /* [2 p]: of stage and kind */
};

static struct channel *channel_of(const struct simulation *run, int stage, enum pipeline_step_kind kind) {
    return &run->channels[2 * stage + (int)kind];
}

/* Waits for the step's message and computes. Returns false if it has not been sent. */
static bool compute(struct simulation *run, int stage, const struct pipeline_step *step) {
    struct channel *channel = channel_of(run, stage, step->kind);
    struct sent *message = NULL;
    if (step->receive.stage != PIPELINE_NO_MESSAGE) {
        if (channel->received == channel->count)
            return false;
        message = &channel->sent[channel->received];
        assert_int_equal(step->receive.number, channel->received);
        assert_int_equal(message->chunk, step->chunk);
        assert_int_equal(message->micro_batch, step->micro_batch);
        run->now[stage] = message->arrives > run->now[stage] ? message->arrives : run->now[stage];
    }
    run->now[stage] += step->kind == PIPELINE_FORWARD ? 1 : 2;
    if (message) {
        message->freed = run->now[stage];
        channel->received++;
    }
    return true;
}

/* Sends the step's result, as a rendezvous: the receiver must have posted a free buffer. Returns false if it has not.
 */
static bool send(struct simulation *run, int stage, const struct pipeline_step *step) {
    if (step->send.stage == PIPELINE_NO_MESSAGE)
        return true;
    struct channel *channel = channel_of(run, step->send.stage, step->kind);
    assert_int_equal(step->send.number, channel->count);
    int before = channel->count - channel->buffers; /* the message that had this buffer */
    if (before >= 0) {
        if (channel->sent[before].freed < 0)
            return false;
        if (channel->sent[before].freed > run->now[stage])
            run->now[stage] = channel->sent[before].freed;
    }
    channel->sent[channel->count++] = (struct sent){step->send.chunk, step->micro_batch, run->now[stage], -1};
    return true;
}

/* Runs as many steps of a stage as possible. Returns true if it made progress. */
static bool advance(struct simulation *run, int stage) {
    bool has_moved = false;
    while (run->next[stage] < pipeline_step_count(run->shape)) {
        const struct pipeline_step *step = &run->steps[stage][run->next[stage]];
        if (!run->is_computed[stage] && !compute(run, stage, step))
            return has_moved;
        has_moved |= !run->is_computed[stage];
        run->is_computed[stage] = true;
        if (!send(run, stage, step))
            return has_moved;
        run->is_computed[stage] = false;
        run->next[stage]++;
        has_moved = true;
    }
    return has_moved;
}

/* Returns the time at which the last stage ends, or -1 for a deadlock. With `has_buffers`, there are as many buffers as
 * the schedule needs; otherwise there are as many as could be used. */
static double simulate(const struct pipeline_shape *shape, bool has_buffers) {
    int p = shape->stages, count = pipeline_step_count(shape);
    size_t n = (size_t)p;
    struct simulation run = {shape,
                             calloc(n, sizeof *run.steps),
                             calloc(n, sizeof *run.next),
                             calloc(n, sizeof *run.is_computed),
                             calloc(n, sizeof *run.now),
                             calloc(2 * n, sizeof *run.channels)};
    for (int stage = 0; stage < p; stage++) {
        run.steps[stage] = steps_of(shape, stage);
        for (int kind = 0; kind < 2; kind++) {
            struct channel *channel = channel_of(&run, stage, kind);
            channel->buffers = has_buffers ? pipeline_receive_buffers(shape, stage, kind) : count;
            channel->sent = calloc((size_t)count, sizeof *channel->sent);
        }
    }
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (int stage = 0; stage < p; stage++)
            has_moved |= advance(&run, stage);
    }
    double end = 0;
    for (int stage = 0; stage < p; stage++) {
        end = run.next[stage] < count ? -1 : end < 0 || end > run.now[stage] ? end : run.now[stage];
        free(run.steps[stage]);
        for (int kind = 0; kind < 2; kind++) {
            struct channel *channel = channel_of(&run, stage, kind);
            if (end >= 0)
                assert_int_equal(channel->received, channel->count);
            free(channel->sent);
        }
    }
    free(run.steps);
    free(run.next);
    free(run.is_computed);
    free(run.now);
    free(run.channels);
    return end;
}

static void makespans_are_those_of_the_paper(void **state) {
    (void)state;
    const double expected[] = {33, 28.5, 26.25};
    for (int i = 0; i < 3; i++) {
        struct pipeline_shape shape = {.stages = 4, .chunks = 1 << i, .micro_batches = 8};
        double time = simulate(&shape, true) / shape.chunks; /* a chunk's forward is 1/v of a stage's */
        assert_true(time == expected[i]);
    }
}

/* ---- properties of every shape ---- */

static void every_step_is_there_once(const struct pipeline_shape *shape, const struct pipeline_step *steps) {
    int all = shape->chunks * shape->micro_batches, count = pipeline_step_count(shape);
    int *seen = calloc((size_t)all, sizeof *seen), *next = calloc(2 * (size_t)shape->chunks, sizeof *next);
    for (int i = 0; i < count; i++) {
        int *times = &seen[steps[i].chunk * shape->micro_batches + steps[i].micro_batch];
        assert_int_equal(*times, (int)steps[i].kind); /* forward, then backward */
        ++*times;
        assert_int_equal(steps[i].micro_batch, next[2 * steps[i].chunk + (int)steps[i].kind]++);
    }
    for (int i = 0; i < all; i++)
        assert_int_equal(seen[i], shape->is_forward_only ? 1 : 2);
    free(seen);
    free(next);
}

static void stashes_are_not_shared(const struct pipeline_shape *shape, const struct pipeline_step *steps) {
    int count = pipeline_step_count(shape), stashes = pipeline_in_flight(steps, count, -1);
    int *holder = calloc((size_t)stashes, sizeof *holder);
    for (int i = 0; i < count; i++) {
        if (steps[i].stash == PIPELINE_NO_STASH)
            continue;
        assert_in_range(steps[i].stash, 0, stashes - 1);
        int what = 1 + steps[i].chunk * shape->micro_batches + steps[i].micro_batch;
        assert_int_equal(holder[steps[i].stash], steps[i].kind == PIPELINE_FORWARD ? 0 : what);
        holder[steps[i].stash] = steps[i].kind == PIPELINE_FORWARD ? what : 0;
    }
    free(holder);
}

/* Returns the number of chunk activations that a stage holds in Megatron-LM's order. */
static int held_by_formula(const struct pipeline_shape *shape, int stage, int largest_group) {
    int p = shape->stages, v = shape->chunks, m = shape->micro_batches;
    int held = v == 1 ? p - stage : 2 * (p - 1 - stage) + (v - 1) * largest_group + 1;
    return held < v * m ? held : v * m;
}

static void shape_holds(const struct pipeline_shape *shape, int largest_group) {
    int p = shape->stages, v = shape->chunks, m = shape->micro_batches, count = pipeline_step_count(shape);
    test_ok(pipeline_shape_check(shape));
    for (int stage = 0; stage < p; stage++) {
        struct pipeline_step *steps = steps_of(shape, stage);
        every_step_is_there_once(shape, steps);
        stashes_are_not_shared(shape, steps);
        int held = held_by_formula(shape, stage, largest_group), of_chunks = 0;
        assert_int_equal(pipeline_in_flight(steps, count, -1), held);
        for (int chunk = 0; chunk < v; chunk++)
            of_chunks += pipeline_in_flight(steps, count, chunk);
        assert_true(of_chunks >= held);
        if (v == 1)
            assert_int_equal(of_chunks, held);
        free(steps);
    }
    /* With at least p micro batches the bubble is (p-1)(t_f + t_b): (p-1)/(v m) of the ideal time. With fewer, the one
     * that runs through p v places sets the pace. */
    double time = 3.0 * ((m < p ? p : m) * v + (m < p ? m : p) - 1);
    assert_true(simulate(shape, false) == time);
    assert_true(simulate(shape, true) == time); /* bounded buffers and blocking sends cost nothing */
}

static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

static void random_shapes_keep_the_formulas(void **state) {
    (void)state;
    uint64_t random = 4;
    int shapes = test_is_long() ? 2000 : 200;
    for (int i = 0; i < shapes; i++) {
        struct pipeline_shape shape = {.stages = 1 + (int)draw(&random, 8), .chunks = 1 + (int)draw(&random, 4)};
        if (shape.stages == 1)
            shape.chunks = 1;
        int p = shape.stages, group = p;
        shape.micro_batches = p * (1 + (int)draw(&random, 4));
        if (draw(&random, 2)) /* larger groups, and a rest where Megatron-LM allows it */ {
            shape.group_size = group = p + (int)draw(&random, (uint32_t)p);
            shape.micro_batches = group * (1 + (int)draw(&random, 3));
            if (group > p && draw(&random, 2))
                shape.micro_batches += p;
        }
        shape_holds(&shape, group);
    }
}

static void any_number_of_micro_batches_keeps_the_bubble(void **state) {
    (void)state;
    for (int p = 2; p <= (test_is_long() ? 9 : 5); p++)
        for (int v = 1; v <= 3; v++)
            for (int m = 1; m <= 4 * p; m++) {
                struct pipeline_shape shape = {.stages = p, .chunks = v, .micro_batches = m};
                int groups = m < p ? 1 : m / p; /* of as equal sizes as can be */
                shape_holds(&shape, (m + groups - 1) / groups);
            }
}

static void forward_only_runs_without_a_bubble(void **state) {
    (void)state;
    for (int p = 1; p <= 5; p++)
        for (int v = 1; v <= (p == 1 ? 1 : 3); v++)
            for (int m = 1; m <= 3 * p; m++) {
                struct pipeline_shape shape = {.stages = p, .chunks = v, .micro_batches = m, .is_forward_only = true};
                for (int stage = 0; stage < p; stage++) {
                    struct pipeline_step *steps = steps_of(&shape, stage);
                    every_step_is_there_once(&shape, steps);
                    assert_int_equal(pipeline_in_flight(steps, v * m, -1), 1);
                    free(steps);
                }
                double time = (m < p ? p : m) * v + (m < p ? m : p) - 1;
                assert_true(simulate(&shape, true) == time);
            }
}

/* Below the first place with a backward, no gradient is sent and no activation is held. The order of steps is the same.
 */
static void check_first_backward(const struct pipeline_shape *shape) {
    int p = shape->stages, v = shape->chunks, m = shape->micro_batches, count = pipeline_step_count(shape);
    struct pipeline_shape whole = *shape;
    int gradients = 0;
    whole.first_backward = 0;
    for (int stage = 0; stage < p; stage++) {
        struct pipeline_step *steps = steps_of(shape, stage), *all = steps_of(&whole, stage);
        int received = 0, sent = 0, held = 0, most = 0;
        for (int i = 0; i < count; i++) {
            bool is_backward = steps[i].kind == PIPELINE_BACKWARD;
            bool is_held = steps[i].chunk * p + stage >= shape->first_backward;
            assert_true(steps[i].kind == all[i].kind && steps[i].chunk == all[i].chunk &&
                        steps[i].micro_batch == all[i].micro_batch);
            assert_int_equal(steps[i].stash == PIPELINE_NO_STASH, !is_held);
            held += !is_held ? 0 : is_backward ? -1 : 1;
            most = held > most ? held : most;
            received += is_backward && steps[i].receive.stage != PIPELINE_NO_MESSAGE;
            sent += is_backward && steps[i].send.stage != PIPELINE_NO_MESSAGE;
        }
        assert_int_equal(pipeline_in_flight(steps, count, -1), most);
        stashes_are_not_shared(shape, steps);
        assert_int_equal(pipeline_receive_buffers(shape, stage, PIPELINE_BACKWARD) > 0, received > 0);
        assert_int_equal(pipeline_has_sends(shape, stage, PIPELINE_BACKWARD), sent > 0);
        gradients += received;
        free(steps);
        free(all);
    }
    assert_int_equal(gradients, (v * p - 1 - shape->first_backward) * m);
    assert_true(simulate(shape, false) >= 0); /* every gradient that is sent is received, in order */
    assert_true(simulate(shape, true) >= 0);
}

static void no_gradient_goes_where_nothing_trains(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++)
        for (int v = 1; v <= 3; v++)
            for (int m = 1; m <= 2 * p + 1; m++)
                for (int first = 0; first < p * v; first++)
                    check_first_backward(&(const struct pipeline_shape){
                        .stages = p, .chunks = v, .micro_batches = m, .first_backward = first});
}

static void shapes_without_a_schedule_are_refused(void **state) {
    (void)state;
    struct pipeline_shape shape = {.stages = 1, .chunks = 2, .micro_batches = 4};
    test_fails(pipeline_shape_check(&shape), STATUS_USAGE, "virtual_pipeline_model_parallel_size 2");
    shape = (struct pipeline_shape){.stages = 4, .chunks = 2, .micro_batches = 8, .group_size = 3};
    test_fails(pipeline_shape_check(&shape), STATUS_USAGE, "groups of 3 micro batches");
    shape.group_size = 9;
    test_fails(pipeline_shape_check(&shape), STATUS_USAGE, "expected 4 to 8");
    shape = (struct pipeline_shape){.stages = 4, .chunks = 1};
    test_fails(pipeline_shape_check(&shape), STATUS_USAGE, "0 micro batches");
    shape = (struct pipeline_shape){.stages = 2, .chunks = 65536, .micro_batches = 65536};
    test_fails(pipeline_shape_check(&shape), STATUS_USAGE, "65536 micro batches in 65536 chunks");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_are_those_of_the_paper),
        cmocka_unit_test(fewer_micro_batches_than_stages_have_an_order),
        cmocka_unit_test(orders_are_megatron_cores),
        cmocka_unit_test(messages_run_along_the_model_and_back),
        cmocka_unit_test(makespans_are_those_of_the_paper),
        cmocka_unit_test(random_shapes_keep_the_formulas),
        cmocka_unit_test(any_number_of_micro_batches_keeps_the_bubble),
        cmocka_unit_test(forward_only_runs_without_a_bubble),
        cmocka_unit_test(no_gradient_goes_where_nothing_trains),
        cmocka_unit_test(shapes_without_a_schedule_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
