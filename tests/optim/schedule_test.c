/* optim: learning rates by iteration, against numbers worked out by hand from Megatron-LM's rules. */
#include "optim/optim.h"

#include "support/test.h"

#include <math.h>

/* Up from 0.1 to 1 in 4 iterations of 4 samples, down to 0.2 at the 20th. */
static struct schedule make(enum schedule_decay decay, enum schedule_wsd wsd) {
    return (struct schedule){.decay = decay,
                             .wsd_decay = wsd,
                             .lr = 1,
                             .min_lr = 0.2,
                             .warmup_init = 0.1,
                             .warmup_iters = 4,
                             .decay_iters = 20,
                             .wsd_decay_iters = 8,
                             .global_batch_size = 4};
}

struct point {
    int64_t iteration;
    double lr;
};

static void follows(struct schedule schedule, const struct point *points, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double lr = schedule_lr(&schedule, points[i].iteration);
        if (!(fabs(lr - points[i].lr) <= 1e-14))
            fail_msg("decay %d, %d: iteration %lld has %.17g, expected %.17g", (int)schedule.decay,
                     (int)schedule.wsd_decay, (long long)points[i].iteration, lr, points[i].lr);
    }
}

#define FOLLOWS(schedule, ...)                                                                                         \
    follows(schedule, (const struct point[]){__VA_ARGS__}, sizeof(struct point[]){__VA_ARGS__} / sizeof(struct point))

static void the_warm_up_rises_in_a_line(void **state) {
    (void)state;
    for (enum schedule_decay decay = SCHEDULE_CONSTANT; decay <= SCHEDULE_WSD; decay++)
        FOLLOWS(make(decay, SCHEDULE_WSD_LINEAR), {1, 0.1}, {2, 0.325}, {3, 0.55}, {4, 0.775}, {5, 1});
}

static void each_style_falls_as_it_should(void **state) {
    (void)state;
    FOLLOWS(make(SCHEDULE_CONSTANT, 0), {6, 1}, {20, 1}, {21, 1}, {1000000, 1});
    FOLLOWS(make(SCHEDULE_LINEAR, 0), {6, 0.95}, {13, 0.6}, {20, 0.25}, {21, 0.2}, {22, 0.2}, {1000, 0.2});
    FOLLOWS(make(SCHEDULE_COSINE, 0), {9, 0.2 + 0.4 * (1 + M_SQRT1_2)}, {13, 0.6}, {17, 0.2 + 0.4 * (1 - M_SQRT1_2)},
            {21, 0.2}, {22, 0.2});
    /* sqrt(16 samples of warm-up / samples seen); the lowest rate after the end */
    FOLLOWS(make(SCHEDULE_INVERSE_SQUARE_ROOT, 0), {9, M_SQRT1_2}, {17, 0.5}, {21, 1 / sqrt(5)}, {22, 0.2});
}

static void without_a_warm_up_the_first_rate_is_the_highest(void **state) {
    (void)state;
    for (enum schedule_decay decay = SCHEDULE_CONSTANT; decay <= SCHEDULE_WSD; decay++) {
        struct schedule schedule = make(decay, SCHEDULE_WSD_LINEAR);
        schedule.warmup_iters = 0;
        FOLLOWS(schedule, {1, 1});
    }
    struct schedule schedule = make(SCHEDULE_INVERSE_SQUARE_ROOT, 0);
    schedule.warmup_iters = 0; /* counts as one sample */
    FOLLOWS(schedule, {2, 0.5}, {5, 0.25}, {8, 0.2}, {20, 0.2});
    schedule = make(SCHEDULE_LINEAR, 0);
    schedule.warmup_iters = 0;
    FOLLOWS(schedule, {11, 0.6}, {21, 0.2});
}

static void a_wsd_schedule_falls_at_its_end(void **state) {
    (void)state;
    for (enum schedule_wsd wsd = SCHEDULE_WSD_LINEAR; wsd <= SCHEDULE_WSD_MINUS_SQRT; wsd++)
        FOLLOWS(make(SCHEDULE_WSD, wsd), {6, 1}, {13, 1}, {21, 0.2}, {22, 0.2});
    FOLLOWS(make(SCHEDULE_WSD, SCHEDULE_WSD_LINEAR), {15, 0.8}, {17, 0.6});
    FOLLOWS(make(SCHEDULE_WSD, SCHEDULE_WSD_COSINE), {15, 0.2 + 0.4 * (1 + M_SQRT1_2)}, {17, 0.6});
    FOLLOWS(make(SCHEDULE_WSD, SCHEDULE_WSD_EXPONENTIAL), {17, 0.2 + 0.8 * (M_SQRT2 - 1)});
    FOLLOWS(make(SCHEDULE_WSD, SCHEDULE_WSD_MINUS_SQRT), {15, 0.6}, {17, 0.2 + 0.8 * (1 - M_SQRT1_2)});
}

static void the_batch_size_changes_nothing_behind_a_warm_up(void **state) {
    (void)state;
    for (enum schedule_decay decay = SCHEDULE_CONSTANT; decay <= SCHEDULE_WSD; decay++)
        for (int64_t i = 1; i <= 24; i++) {
            struct schedule small = make(decay, SCHEDULE_WSD_COSINE), large = small;
            large.global_batch_size = 512;
            assert_true(fabs(schedule_lr(&small, i) - schedule_lr(&large, i)) < 1e-12);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_warm_up_rises_in_a_line),
        cmocka_unit_test(each_style_falls_as_it_should),
        cmocka_unit_test(without_a_warm_up_the_first_rate_is_the_highest),
        cmocka_unit_test(a_wsd_schedule_falls_at_its_end),
        cmocka_unit_test(the_batch_size_changes_nothing_behind_a_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
