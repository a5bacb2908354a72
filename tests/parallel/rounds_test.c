/* The rounds of a pipeline's messages: a simulator runs all stages with no buffer at all between them. */
#include "parallel/rounds.h"
#include "support/test.h"

#include "base/base.h"

enum { STAGES = 8, CHUNKS = 4, MICRO_BATCHES = 32, SEND_BUFFERS = 2, KINDS = 2 };
enum { NUMBERS = MICRO_BATCHES * CHUNKS * 2 }; /* with room for the number of buffers */

struct stage {
    struct pipeline_step *steps;
    struct pipeline_rounds rounds;
    int next, posted; /* steps that have run; posts that are done */
};

/* One end of a message. */
struct end {
    int round, after;
    bool is_posted;
};

struct run {
    struct pipeline_shape shape;
    int count;
    struct stage stages[STAGES];
    struct end ends[STAGES][KINDS][2][NUMBERS]; /* by receiving stage; [1] is the receiver's end */
};

static int receiver_of(const struct run *run, int stage, const struct pipeline_post *post) {
    int to = post->kind == PIPELINE_FORWARD ? stage + 1 : stage - 1;
    return post->is_receive ? stage : (to + run->shape.stages) % run->shape.stages;
}

static struct end *end_of(struct run *run, int stage, const struct pipeline_post *post, bool other) {
    return &run->ends[receiver_of(run, stage, post)][post->kind][post->is_receive != other][post->number];
}

/* Both ends of every message of the steps are there once, in one round, and posted when the message is made and before
 * it is used, with a buffer free. */
static void check_ends(struct run *run, int s) {
    const struct stage *stage = &run->stages[s];
    for (int i = 0; i < run->count; i++) {
        const struct pipeline_step *step = &stage->steps[i];
        int buffers = pipeline_receive_buffers(&run->shape, s, step->kind);
        if (step->receive.stage != PIPELINE_NO_MESSAGE) {
            const struct end(*ends)[NUMBERS] = run->ends[s][step->kind];
            int number = step->receive.number;
            assert_int_equal(ends[1][number].round, ends[0][number].round);
            assert_true(ends[1][number].round > 0);
            assert_true(ends[1][number].after < i);
            /* the next message in this buffer is posted after the step */
            assert_true(!ends[1][number + buffers].round || ends[1][number + buffers].after >= i);
        }
        if (step->send.stage != PIPELINE_NO_MESSAGE) {
            const struct end *ends = run->ends[step->send.stage][step->kind][0];
            int number = step->send.number;
            assert_true(ends[number].round > 0 && ends[number].after >= i);
            assert_true(number < SEND_BUFFERS || ends[number - SEND_BUFFERS].after < i);
        }
    }
}

static void note_ends(struct run *run, int s) {
    const struct pipeline_rounds *rounds = &run->stages[s].rounds;
    for (int i = 0; i < rounds->count; i++) {
        struct end *end = end_of(run, s, &rounds->posts[i], false);
        assert_int_equal(end->round, 0); /* once */
        *end = (struct end){.round = rounds->posts[i].round + 1, .after = rounds->posts[i].after};
        assert_true(i == 0 || rounds->posts[i].after >= rounds->posts[i - 1].after);
    }
}

/* Posts a stage's next round, or runs its next step. A round ends when the other ends of all of its messages are
 * posted. False if the stage waits. */
static bool advance(struct run *run, int s) {
    struct stage *stage = &run->stages[s];
    const struct pipeline_post *posts = stage->rounds.posts;
    int end = stage->posted;
    if (stage->posted == stage->rounds.count || posts[stage->posted].after >= stage->next) {
        stage->next += stage->next < run->count;
        return stage->next < run->count || stage->posted < stage->rounds.count;
    }
    bool is_done = true;
    for (; end < stage->rounds.count && posts[end].round == posts[stage->posted].round; end++) {
        end_of(run, s, &posts[end], false)->is_posted = true;
        is_done = is_done && end_of(run, s, &posts[end], true)->is_posted;
    }
    stage->posted = is_done ? end : stage->posted;
    return is_done;
}

static void run_shape(const struct pipeline_shape *shape) {
    static struct run run;
    memset(&run, 0, sizeof run);
    run.shape = *shape;
    run.count = pipeline_step_count(shape);
    for (int s = 0; s < shape->stages; s++) {
        run.stages[s].steps = calloc((size_t)run.count, sizeof *run.stages[s].steps);
        assert_non_null(run.stages[s].steps);
        pipeline_steps(shape, s, run.stages[s].steps);
        test_ok(pipeline_rounds_make(shape, s, SEND_BUFFERS, &run.stages[s].rounds));
        note_ends(&run, s);
    }
    for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (int s = 0; s < shape->stages; s++)
            has_moved |= advance(&run, s);
    }
    for (int s = 0; s < shape->stages; s++) {
        assert_int_equal(run.stages[s].next, run.count);
        assert_int_equal(run.stages[s].posted, run.stages[s].rounds.count);
        check_ends(&run, s);
        free(run.stages[s].steps);
        pipeline_rounds_free(&run.stages[s].rounds);
    }
}

static void no_shape_has_a_cycle(void **state) {
    (void)state;
    int shapes = 0;
    for (int p = 2; p <= STAGES; p++)
        for (int v = 1; v <= CHUNKS; v++)
            for (int m = 1; m <= MICRO_BATCHES; m++)
                for (int is_forward_only = 0; is_forward_only < 2; is_forward_only++) {
                    struct pipeline_shape shape = {
                        .stages = p, .chunks = v, .micro_batches = m, .is_forward_only = is_forward_only};
                    test_ok(pipeline_shape_check(&shape));
                    run_shape(&shape);
                    shapes++;
                }
    assert_int_equal(shapes, 7 * CHUNKS * MICRO_BATCHES * 2);
}

static void groups_and_places_that_do_not_train_have_none(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++)
        for (int m = p; m <= 12; m++)
            for (int group = p; group <= m; group++)
                for (int first = 0; first < 2 * p; first++) {
                    struct pipeline_shape shape = {
                        .stages = p, .chunks = 2, .micro_batches = m, .group_size = group, .first_backward = first};
                    run_shape(&shape);
                }
}

static void neighbours_of_one_step_have_one_post(void **state) {
    (void)state;
    struct pipeline_rounds rounds;
    struct pipeline_shape shape = {.stages = 2, .chunks = 1, .micro_batches = 2};
    test_ok(pipeline_rounds_make(&shape, 1, SEND_BUFFERS, &rounds));
    /* F0 B0 F1 B1: the first activation before all; the second comes while F0 runs */
    const struct pipeline_post expected[] = {{-1, 0, true, PIPELINE_FORWARD, 0},
                                             {0, 1, true, PIPELINE_FORWARD, 1},
                                             {1, 2, false, PIPELINE_BACKWARD, 0},
                                             {3, 4, false, PIPELINE_BACKWARD, 1}};
    assert_int_equal(rounds.count, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rounds.posts[i].after, expected[i].after);
        assert_int_equal(rounds.posts[i].round, expected[i].round);
        assert_int_equal(rounds.posts[i].is_receive, expected[i].is_receive);
        assert_int_equal(rounds.posts[i].kind, expected[i].kind);
        assert_int_equal(rounds.posts[i].number, expected[i].number);
    }
    pipeline_rounds_free(&rounds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_shape_has_a_cycle),
        cmocka_unit_test(groups_and_places_that_do_not_train_have_none),
        cmocka_unit_test(neighbours_of_one_step_have_one_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
