/* Each loss of answers: its value against vectors, and its gradient by finite differences. */
#include "train/loss.h"

#include "support/test.h"

#include <math.h>

static const struct loss *find(const char *name) {
    const struct loss *loss = loss_table;
    while (strcmp(loss->name, name) != 0)
        loss++;
    return loss;
}

enum { MOST = 8 };
/* The answers of a sample: sums of log-probabilities, spread over tokens. */
struct answers {
    double sum[2], reference[2];
    int64_t count[2];
    bool is_preferred[2];
};

/* Runs a loss; `gradient`, if not NULL, receives that of the first token of each answer. */
static struct loss_figures run_loss(const struct loss *loss, const struct loss_options *options, double shift,
                                    const struct answers *answers, float gradient[2]) {
    float values[2][MOST];
    struct loss_segment segments[2];
    struct loss_figures figures = {0};
    for (int i = 0; i < 2; i++) {
        segments[i] = (struct loss_segment){.count = answers->count[i],
                                            .values = values[i],
                                            .reference = answers->reference[i],
                                            .is_preferred = answers->is_preferred[i]};
        for (int64_t t = 0; t < answers->count[i]; t++)
            values[i][t] = (float)(answers->sum[i] / (double)answers->count[i]);
    }
    loss->run(options, shift, segments, &figures);
    for (int i = 0; i < 2 && gradient; i++)
        gradient[i] = values[i][0];
    return figures;
}

/* The numbers are exact in fp32, and the vectors were computed in fp64. */
static void expect(double found, double expected) {
    if (!(fabs(found - expected) <= 1e-7))
        fail_msg("%.10g, expected %.10g", found, expected);
}

static void values_are_those_of_the_formulas(void **state) {
    (void)state;
    const struct answers pair = {{-12.5, -9.75}, {-13, -9}, {4, 2}, {true, false}};
    struct loss_options options = {.beta = 0.3};
    float gradient[2];
    struct loss_figures found = run_loss(find("dpo"), &options, 0, &pair, gradient);
    expect(found.loss, 0.52312326);
    expect(found.reward[1], 0.15);
    expect(found.reward[0], -0.225);
    expect(found.accurate, 1);
    expect((double)gradient[0], -0.12220002);
    expect((double)gradient[1], 0.12220002);
    options.label_smoothing = 0.1;
    expect(run_loss(find("dpo"), &options, 0, &pair, NULL).loss, 0.56062326);
    options.sft_weight = 0.5;
    expect(run_loss(find("dpo"), &options, 0, &pair, NULL).loss, 0.56062326 + 0.5 * 12.5 / 4);
    options = (struct loss_options){.beta = 0.3};
    const struct answers odds = {{-12.5, -9.75}, {0}, {6, 4}, {true, false}};
    found = run_loss(find("orpo"), &options, 0, &odds, NULL);
    expect(found.loss, 2.23775522);
    expect(found.reward[1], 0.3 * -12.5 / 6);
    const struct answers wanted = {{-12.5}, {-13}, {4, 1}, {true}}, other = {{-9.75}, {-9}, {2, 1}, {false}};
    expect(run_loss(find("kto"), &options, 0.2, &wanted, NULL).loss, 0.47751518);
    found = run_loss(find("kto"), &options, 0.2, &other, NULL);
    expect(found.loss, 0.42922839);
    expect(found.answers[0], 1);
    expect(found.answers[1], 0);
}

/* Differences of fp32 sums near 10, over a step of 2^-7, are exact to 1e-6 / 2^-7; the truncation is below 1e-4 of
 * second derivatives, which are below 1. */
static void gradients_are_finite_differences(void **state) {
    (void)state;
    const double step = 0x1p-7, bound = 3e-4;
    const struct loss_options options[] = {{.beta = 0.1}, {.beta = 0.7, .label_smoothing = 0.2, .sft_weight = 0.5}};
    for (const struct loss *loss = &loss_table[1]; loss < loss_table + 4; loss++)
        for (int draw = 0; draw < 40; draw++) {
            struct philox numbers = philox(3, (uint32_t)draw, 0, 0, (uint32_t)RNG_TEST << 24);
            struct answers answers = {.is_preferred = {draw % 2 || loss->form == TUNING_PAIRS, false}};
            for (int i = 0; i < 2; i++) {
                answers.count[i] = 1 + numbers.word[i] % MOST;
                answers.sum[i] = -(double)answers.count[i] * (0.25 + numbers.word[2 + i] % 64 / 16.0);
                answers.reference[i] = answers.sum[i] + ((double)(numbers.word[i] % 32) - 16) / 4;
            }
            float gradient[2];
            run_loss(loss, &options[draw % 2], 0.25, &answers, gradient);
            for (int i = 0; i < (loss->form == TUNING_PAIRS ? 2 : 1); i++) {
                struct answers above = answers, below = answers;
                above.sum[i] += step;
                below.sum[i] -= step;
                double slope = (run_loss(loss, &options[draw % 2], 0.25, &above, NULL).loss -
                                run_loss(loss, &options[draw % 2], 0.25, &below, NULL).loss) /
                               (2 * step);
                if (!(fabs(slope - (double)gradient[i]) <= bound))
                    fail_msg("%s, draw %d, answer %d: gradient %g, difference %g", loss->name, draw, i,
                             (double)gradient[i], slope);
            }
        }
}

/* The values of four tokens, as rows of the losses' vectors have them. */
struct tokens {
    float p[4], sampled[4], advantages[4], weights[4];
};
static const struct tokens four = {
    {-1.25f, -0.5f, -3, -2}, {-1, -1, -2.5f, -2}, {1, -0.5f, 2, 0.25f}, {1, 0, -0.5f, 2}};

static double run_tokens(const char *name, const struct loss_options *options, const struct tokens *tokens,
                         float gradient[4]) {
    struct tokens copy = *tokens;
    struct loss_figures figures = {0};
    const struct loss *loss = loss_of_tokens(name);
    struct loss_segment segment = {.count = 4, .values = copy.p};
    if (loss->has_advantages) {
        segment.sampled = copy.sampled;
        segment.advantages = copy.advantages;
    } else
        segment.weights = copy.weights;
    loss->run(options, 0, &segment, &figures);
    for (int i = 0; i < 4 && gradient; i++)
        gradient[i] = copy.p[i];
    return figures.loss;
}

static void losses_of_tokens_are_sums_of_the_formulas(void **state) {
    (void)state;
    const struct loss_options wide = {.clip_low = 0.8, .clip_high = 1.2}, open = {.clip_low = 0, .clip_high = 4},
                              narrow = {.clip_low = 0.9, .clip_high = 1.1}, dro = {.beta = 0.05};
    struct tokens other = four;
    const float advantages[] = {1, 0.5f, -2, 0.25f};
    float gradient[4];
    memcpy(other.advantages, advantages, sizeof advantages);
    expect(run_tokens("importance_sampling", &wide, &four, gradient), -1.41750147);
    expect((double)gradient[0], -0.77880078);
    expect((double)gradient[2], -2 * 0.60653066);
    expect(run_tokens("ppo", &wide, &four, NULL), -1.41750147);
    expect(run_tokens("ppo", &wide, &other, gradient), -0.02880078);
    expect((double)gradient[0], -0.77880078);
    expect((double)gradient[1], 0);
    expect((double)gradient[2], 0);
    expect(run_tokens("cispo", &open, &four, NULL), 4.70050462);
    expect(run_tokens("cispo", &narrow, &four, gradient), 6.75);
    expect((double)gradient[1], 0.55);
    expect(run_tokens("dro", &dro, &four, NULL), 7.5140625);
    expect(run_tokens("cross_entropy", &wide, &four, gradient), 1.25 - 1.5 + 4);
    expect((double)gradient[2], 0.5);
    assert_null(loss_of_tokens("dpo"));
    assert_null(loss_of_tokens("gspo"));
}

/* The clipped ratio of cispo has no gradient, so its difference is taken where it is clipped. The step and the bound
 * are those above; tokens away from the corners of the clip. */
static void gradients_of_tokens_are_finite_differences(void **state) {
    (void)state;
    static const char *const names[] = {"cross_entropy", "importance_sampling", "ppo", "cispo", "dro"};
    const double step = 0x1p-7, bound = 3e-4;
    const struct loss_options options = {.beta = 0.3, .clip_low = 0.95, .clip_high = 0.99};
    for (int n = 0; n < 5; n++)
        for (int i = 0; i < 4; i++) {
            struct tokens above = four, below = four;
            float gradient[4];
            above.p[i] += (float)step;
            below.p[i] -= (float)step;
            run_tokens(names[n], &options, &four, gradient);
            double slope =
                (run_tokens(names[n], &options, &above, NULL) - run_tokens(names[n], &options, &below, NULL)) /
                (2 * step);
            if (!(fabs(slope - (double)gradient[i]) <= bound))
                fail_msg("%s, token %d: gradient %g, difference %g", names[n], i, (double)gradient[i], slope);
        }
}

static void a_certain_answer_has_a_finite_loss(void **state) {
    (void)state;
    const struct loss_options options = {.beta = 0.1};
    const double sums[] = {0, -1e-30, -1e4};
    for (int i = 0; i < 9; i++)
        for (const struct loss *loss = &loss_table[1]; loss < loss_table + 4; loss++) {
            const struct answers answers = {
                {sums[i / 3], sums[i % 3]}, {-5, -5}, {2, 3}, {true, loss->form != TUNING_PAIRS}};
            float gradient[2];
            assert_true(isfinite(run_loss(loss, &options, 0, &answers, gradient).loss));
            assert_true(isfinite(gradient[0]) && isfinite(gradient[1]));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_formulas),
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(losses_of_tokens_are_sums_of_the_formulas),
        cmocka_unit_test(gradients_of_tokens_are_finite_differences),
        cmocka_unit_test(a_certain_answer_has_a_finite_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
