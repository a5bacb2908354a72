/* The walk of schedules: makespans of the literature, the formula of the bubble, and a second simulator, which relaxes
 * the rules of the executor until no time changes. */
#include "support/test.h"

#include "base/base.h"
#include "parallel/pipeline.h"
#include "planner/walk.h"

enum { MOST = 8 };

static double makespan(const struct walk_stages *stages) {
    struct walk walk;
    test_ok(walk_stages(stages, &walk));
    double end = walk.makespan;
    walk_free(&walk);
    return end;
}

static void fill(double *times, int count, double value) {
    for (int i = 0; i < count; i++)
        times[i] = value;
}

static void makespans_are_those_of_the_paper(void **state) {
    (void)state;
    const double expected[] = {33, 28.5, 26.25};
    double forward[4] = {1, 1, 1, 1}, backward[4] = {2, 2, 2, 2};
    for (int i = 0; i < 3; i++) {
        struct walk_stages stages = {{.stages = 4, .chunks = 1 << i, .micro_batches = 8}, forward, backward, 0, 0};
        assert_true(makespan(&stages) == expected[i]);
    }
}

static void idle_time_is_the_formula_of_the_bubble(void **state) {
    (void)state;
    static double forward[64], backward[64];
    fill(forward, 64, 1);
    fill(backward, 64, 2);
    for (int p = 1; p <= 64; p = p < 4 ? p + 1 : 2 * p)
        for (int v = 1; v <= (p > 1 ? 8 : 1); v *= 2) {
            struct walk walk;
            struct walk_stages stages = {{.stages = p, .chunks = v, .micro_batches = 2 * p}, forward, backward, 0, 0};
            test_ok(walk_stages(&stages, &walk));
            for (int stage = 0; stage < p; stage++)
                assert_true(walk.makespan - walk.busy[stage] == (p - 1) * 3.0 / v);
            walk_free(&walk);
        }
}

/* ---- the second simulator ---- */

struct relaxed {
    const struct walk_stages *stages;
    int count;
    struct pipeline_step *steps[MOST];
    double end[MOST][256];           /* of each step */
    double arrival[MOST][2][128];    /* of each message, by its sender and kind */
    int receiver_step[MOST][2][128]; /* by the receiver */
};

static bool raise_to(double *time, double least) {
    bool is_later = least > *time;
    *time = is_later ? least : *time;
    return is_later;
}

static double seconds_of(const struct relaxed *run, int stage, const struct pipeline_step *step) {
    const struct walk_stages *s = run->stages;
    bool has_head = stage == s->shape.stages - 1 && step->chunk == s->shape.chunks - 1;
    return step->kind == PIPELINE_FORWARD ? s->forward[stage] / s->shape.chunks
                                          : s->backward[stage] / s->shape.chunks + (has_head ? s->head : 0);
}

static bool relax_step(struct relaxed *run, int stage, int i) {
    const struct pipeline_step *step = &run->steps[stage][i];
    int kind = step->kind, number = step->send.number;
    double start = i > 0 ? run->end[stage][i - 1] : 0;
    if (step->receive.stage != PIPELINE_NO_MESSAGE)
        raise_to(&start, run->arrival[step->receive.stage][kind][step->receive.number]);
    if (step->send.stage != PIPELINE_NO_MESSAGE && number >= 2)
        raise_to(&start, run->arrival[stage][kind][number - 2]);
    bool has_changed = raise_to(&run->end[stage][i], start + seconds_of(run, stage, step));
    if (step->send.stage == PIPELINE_NO_MESSAGE)
        return has_changed;
    int to = step->send.stage, buffers = pipeline_receive_buffers(&run->stages->shape, to, step->kind);
    double begins = run->end[stage][i];
    if (number >= buffers) /* the receive is posted after the step that used its buffer */
        raise_to(&begins, run->end[to][run->receiver_step[to][kind][number - buffers]]);
    if (number > 0)
        raise_to(&begins, run->arrival[stage][kind][number - 1]);
    return raise_to(&run->arrival[stage][kind][number], begins + run->stages->link) || has_changed;
}

/* Returns the end of the last step. */
static double relax(const struct walk_stages *stages) {
    static struct relaxed run;
    run = (struct relaxed){.stages = stages, .count = pipeline_step_count(&stages->shape)};
    for (int stage = 0; stage < stages->shape.stages; stage++) {
        run.steps[stage] = calloc((size_t)run.count, sizeof **run.steps);
        pipeline_steps(&stages->shape, stage, run.steps[stage]);
        for (int i = 0; i < run.count; i++)
            if (run.steps[stage][i].receive.stage != PIPELINE_NO_MESSAGE)
                run.receiver_step[stage][run.steps[stage][i].kind][run.steps[stage][i].receive.number] = i;
    }
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (int stage = 0; stage < stages->shape.stages; stage++)
            for (int i = 0; i < run.count; i++)
                has_changed |= relax_step(&run, stage, i);
    }
    double end = 0;
    for (int stage = 0; stage < stages->shape.stages; stage++) {
        raise_to(&end, run.end[stage][run.count - 1]);
        free(run.steps[stage]);
    }
    return end;
}

static void a_slow_stage_a_link_and_a_head_move_the_makespan(void **state) {
    (void)state;
    const struct {
        int slow;
        double by, head, link;
    } cases[] = {{0, 0, 0, 0},   {1, 0.5, 0, 0}, {3, 2, 0, 0}, {0, 0, 0, 0.25},
                 {0, 0, 1.5, 0}, {2, 1, 1, 1},   {0, 0, 0, 6}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int chunks = 1; chunks <= 3; chunks++) {
            double forward[4], backward[4];
            fill(forward, 4, 1);
            fill(backward, 4, 2);
            forward[cases[c].slow] += cases[c].by;
            backward[cases[c].slow] += cases[c].by;
            struct walk_stages stages = {
                {.stages = 4, .chunks = chunks, .micro_batches = 12}, forward, backward, cases[c].head, cases[c].link};
            double plain = 3.0 * (12 + 3.0 / chunks), end = makespan(&stages);
            assert_true(end > relax(&stages) - 1e-9 && end < relax(&stages) + 1e-9);
            assert_true(c == 0 ? end > plain - 1e-9 && end < plain + 1e-9 : end > plain + 1e-9);
        }
}

static void shapes_without_a_schedule_are_refused(void **state) {
    (void)state;
    struct walk walk;
    double time = 1;
    struct walk_stages stages = {{.stages = 1, .chunks = 2, .micro_batches = 8}, &time, &time, 0, 0};
    test_fails(walk_stages(&stages, &walk), STATUS_USAGE, "");
}

/* ---- stages that share processors ---- */

struct shared {
    int stages, processors;
    double link;
};

static double shared_step(const void *context, int stage, const struct pipeline_step *step) {
    (void)context;
    return (step->kind == PIPELINE_FORWARD ? 1 : 2) + 0.25 * stage;
}

static double shared_message(const void *context, int from, int to) {
    (void)from;
    (void)to;
    return ((const struct shared *)context)->link;
}

/* The durations are those while all stages work. */
static double shared_rate(const void *context, int working) {
    const struct shared *s = context;
    return (double)s->stages / (working > s->processors ? working : s->processors);
}

static double shared_makespan(const struct shared *shared, int micro_batches, bool is_shared) {
    struct pipeline_shape shape = {.stages = shared->stages, .chunks = 1, .micro_batches = micro_batches};
    const struct walk_times times = {shared_step, shared_message, is_shared ? shared_rate : NULL, shared};
    struct walk walk;
    test_ok(walk_run(&shape, &times, &walk));
    double end = walk.makespan;
    for (int stage = 0; stage < shared->stages; stage++) /* in order, and all of them */
        for (int i = 0; i < walk.steps; i++) {
            const struct walk_event *event = walk_event_at(&walk, stage, i);
            assert_true(event->end >= event->start && event->end <= end);
            assert_true(i == 0 || event->start >= walk_event_at(&walk, stage, i - 1)->end);
        }
    walk_free(&walk);
    return end;
}

static bool is_near(double a, double b) {
    return a > b - 1e-9 && a < b + 1e-9;
}

static void stages_that_share_processors_fill_each_others_bubbles(void **state) {
    (void)state;
    for (int micro_batches = 1; micro_batches <= 8; micro_batches++)
        for (int processors = 1; processors <= 4; processors++) {
            const struct shared shared = {4, processors, 0}, late = {4, processors, 0.5};
            double work = micro_batches * (4 * 3.0 + 2 * 0.25 * (0 + 1 + 2 + 3));
            double end = shared_makespan(&shared, micro_batches, true);
            double plain = shared_makespan(&shared, micro_batches, false);
            if (processors == 1) /* it always has work, and divides itself */
                assert_true(is_near(end, work / 4));
            if (processors == 4 || micro_batches == 1) /* no stage waits for a processor */
                assert_true(is_near(end, plain * processors / 4));
            assert_true(end > work / 4 - 1e-9 && end > plain * processors / 4 - 1e-9 && end < plain + 1e-9);
            assert_true(shared_makespan(&late, micro_batches, true) > end);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makespans_are_those_of_the_paper),
        cmocka_unit_test(idle_time_is_the_formula_of_the_bubble),
        cmocka_unit_test(a_slow_stage_a_link_and_a_head_move_the_makespan),
        cmocka_unit_test(shapes_without_a_schedule_are_refused),
        cmocka_unit_test(stages_that_share_processors_fill_each_others_bubbles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
