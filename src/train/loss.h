/* Losses of tuning, as rows of a table. A loss takes the log-probabilities of segments and gives its gradient.
 *
 * It runs on the host, in fp64, over the answers of one sample. Nothing in it depends on the layout: the answers of a
 * sample lie on one rank, and a loss is a mean over the samples of the global batch. The loss sft has no function: it
 * is a weighted sum over tokens, which the model's head computes by itself.
 *
 * dpo: arXiv 2305.18290; orpo: 2403.07691; kto: 2402.01306. Names and defaults are TRL's.
 *
 * Losses of tokens are sums over the tokens of one segment, not means. Every token has its own values beside its
 * log-probability. They are Tinker's, with its names; no row of a file has such values. ppo: arXiv 1707.06347; cispo:
 * 2506.13585. */
#pragma once

#include "base/base.h"
#include "data/tuning.h"

struct loss_options {
    double beta, label_smoothing, sft_weight;
    double clip_low, clip_high; /* bounds of a ratio of probabilities */
};

/* One answer: the tokens of a segment whose loss counts. */
struct loss_segment {
    int64_t count;     /* at least 1 */
    float *values;     /* [count] log-probabilities of the tokens; a loss replaces them by its gradient */
    double reference;  /* the sum of the reference model's log-probabilities; 0 where the loss has no such model */
    bool is_preferred; /* the better one of a pair, or one that is wanted */
    /* For losses of tokens, [count] each; NULL: the loss has no use for it. */
    const float *sampled;    /* log-probabilities when the tokens were drawn */
    const float *advantages; /* of the draws */
    const float *weights;    /* NULL: all are 1 */
};

/* Sums over samples. */
struct loss_figures {
    double loss;
    double reward[2], answers[2]; /* of answers that are not preferred, and of those that are; their numbers */
    double accurate;              /* samples that the model ranks as their row does */
    double samples;
};
enum { LOSS_FIGURES = sizeof(struct loss_figures) / sizeof(double) };

struct loss {
    const char *name;
    enum tuning_form form; /* of its rows: the answers of a sample */
    bool has_reference;
    bool has_shift; /* also needs the mean over prompts with other rows' answers */
    /* A loss of tokens, with one segment in a sample, and without the model's dropout: */
    bool is_of_tokens;
    bool has_advantages; /* it needs `sampled` and `advantages`; else it takes `weights` */
    /* Adds a sample of weight 1 to *figures, and sets the gradients of its segments. `shift`: that mean of log-ratios,
     * not below 0. NULL: sft. */
    void (*run)(const struct loss_options *options, double shift, struct loss_segment *segments,
                struct loss_figures *figures);
};
/* The rows; one without a name ends them. */
extern const struct loss loss_table[];
/* Names of the rows that files can have, which come first; NULL ends them. */
extern const char *const loss_names[];
/* Finds a loss of tokens by its name; NULL: there is none. */
const struct loss *loss_of_tokens(const char *name);
