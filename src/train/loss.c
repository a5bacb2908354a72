/* The losses. s is the logistic function: -log s(x) = softplus(-x), and its derivative is -s(-x). */
#include "train/loss.h"

#include <math.h>
#include <string.h>

static double logistic(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double sum(const struct loss_segment *segment) {
    double total = 0;
    for (int64_t i = 0; i < segment->count; i++)
        total += (double)segment->values[i];
    return total;
}

/* Gives each token of an answer the gradient of the answer's sum. */
static void spread(const struct loss_segment *segment, double gradient) {
    for (int64_t i = 0; i < segment->count; i++)
        segment->values[i] = (float)gradient;
}

static void add(struct loss_figures *figures, double loss, bool is_accurate) {
    figures->loss += loss;
    figures->accurate += is_accurate;
    figures->samples++;
}

static void add_reward(struct loss_figures *figures, const struct loss_segment *segment, double reward) {
    figures->reward[segment->is_preferred] += reward;
    figures->answers[segment->is_preferred]++;
}

static void run_dpo(const struct loss_options *options, double shift, struct loss_segment *segments,
                    struct loss_figures *figures) {
    double beta = options->beta, e = options->label_smoothing, tokens = (double)segments[0].count;
    double chosen = sum(&segments[0]),
           x[2] = {beta * (chosen - segments[0].reference), beta * (sum(&segments[1]) - segments[1].reference)};
    double margin = x[0] - x[1], slope = e * logistic(margin) - (1 - e) * logistic(-margin);
    double loss = (1 - e) * softplus(-margin) + e * softplus(margin) - options->sft_weight * chosen / tokens;
    add(figures, loss, margin > 0);
    add_reward(figures, &segments[0], x[0]);
    add_reward(figures, &segments[1], x[1]);
    spread(&segments[0], beta * slope - options->sft_weight / tokens);
    spread(&segments[1], -beta * slope);
}

/* log(1 - exp(x)) of a mean log-probability below 0. */
static double log_of_rest(double x) {
    return log(-expm1(x));
}

static void run_orpo(const struct loss_options *options, double shift, struct loss_segment *segments,
                     struct loss_figures *figures) {
    const double most = -1e-12; /* of a certain answer, whose odds would be infinite */
    double tokens[2], mean[2], beta = options->beta;
    for (int i = 0; i < 2; i++) {
        tokens[i] = (double)segments[i].count;
        mean[i] = fmin(sum(&segments[i]) / tokens[i], most);
        add_reward(figures, &segments[i], beta * mean[i]);
    }
    double odds = (mean[0] - mean[1]) - (log_of_rest(mean[0]) - log_of_rest(mean[1])), slope = -beta * logistic(-odds);
    add(figures, beta * softplus(-odds) - mean[0], mean[0] > mean[1]);
    spread(&segments[0], (slope / -expm1(mean[0]) - 1) / tokens[0]);
    spread(&segments[1], slope / expm1(mean[1]) / tokens[1]);
}

static void run_kto(const struct loss_options *options, double shift, struct loss_segment *segments,
                    struct loss_figures *figures) {
    double ratio = sum(segments) - segments->reference, sign = segments->is_preferred ? 1 : -1;
    double good = logistic(sign * options->beta * (ratio - shift));
    add(figures, 1 - good, good > 0.5);
    add_reward(figures, segments, options->beta * ratio);
    spread(segments, -sign * options->beta * good * (1 - good));
}

/* ---- losses of tokens: p is a log-probability, q the one when the token was drawn ---- */

static double clip(const struct loss_options *options, double ratio) {
    return fmin(fmax(ratio, options->clip_low), options->clip_high);
}

/* Sets *gradient to that of the log-probability, and returns the loss of a token. */
typedef double token_loss(const struct loss_options *options, double p, double q, double advantage, double *gradient);

static double importance_sampling(const struct loss_options *options, double p, double q, double advantage,
                                  double *gradient) {
    double ratio = exp(p - q);
    *gradient = -ratio * advantage;
    return *gradient;
}

static double ppo(const struct loss_options *options, double p, double q, double advantage, double *gradient) {
    double ratio = exp(p - q), clipped = clip(options, ratio) * advantage;
    bool is_clipped = ratio * advantage > clipped;
    *gradient = is_clipped ? 0 : -ratio * advantage;
    return is_clipped ? -clipped : *gradient;
}

static double cispo(const struct loss_options *options, double p, double q, double advantage, double *gradient) {
    *gradient = -clip(options, exp(p - q)) * advantage;
    return *gradient * p;
}

static double dro(const struct loss_options *options, double p, double q, double advantage, double *gradient) {
    double difference = p - q;
    *gradient = options->beta * difference - advantage;
    return options->beta / 2 * difference * difference - p * advantage;
}

static void run_tokens(token_loss *of, const struct loss_options *options, struct loss_segment *segment,
                       struct loss_figures *figures) {
    double gradient;
    for (int64_t i = 0; i < segment->count; i++) {
        figures->loss += of(options, (double)segment->values[i], (double)segment->sampled[i],
                            (double)segment->advantages[i], &gradient);
        segment->values[i] = (float)gradient;
    }
    figures->samples++;
}

static void run_cross_entropy(const struct loss_options *options, double shift, struct loss_segment *segments,
                              struct loss_figures *figures) {
    for (int64_t i = 0; i < segments->count; i++) {
        double weight = segments->weights ? (double)segments->weights[i] : 1;
        figures->loss -= weight * (double)segments->values[i];
        segments->values[i] = (float)-weight;
    }
    figures->samples++;
}

#define RUN_TOKENS(of)                                                                                                 \
    static void run_##of(const struct loss_options *options, double shift, struct loss_segment *segments,              \
                         struct loss_figures *figures) {                                                               \
        run_tokens(of, options, segments, figures);                                                                    \
    }
RUN_TOKENS(importance_sampling)
RUN_TOKENS(ppo)
RUN_TOKENS(cispo)
RUN_TOKENS(dro)

#define OF_TOKENS(which) .name = #which, .is_of_tokens = true, .run = run_##which

const struct loss loss_table[] = {
    {.name = "sft"},
    {.name = "dpo", .form = TUNING_PAIRS, .has_reference = true, .run = run_dpo},
    {.name = "orpo", .form = TUNING_PAIRS, .run = run_orpo},
    {.name = "kto", .form = TUNING_LABELS, .has_reference = true, .has_shift = true, .run = run_kto},
    {OF_TOKENS(cross_entropy)},
    {OF_TOKENS(importance_sampling), .has_advantages = true},
    {OF_TOKENS(ppo), .has_advantages = true},
    {OF_TOKENS(cispo), .has_advantages = true},
    {OF_TOKENS(dro), .has_advantages = true},
    {.name = NULL},
};
const char *const loss_names[] = {"sft", "dpo", "orpo", "kto", NULL};

const struct loss *loss_of_tokens(const char *name) {
    for (const struct loss *loss = loss_table; loss->name; loss++)
        if (loss->is_of_tokens && !strcmp(loss->name, name))
            return loss;
    return NULL;
}
