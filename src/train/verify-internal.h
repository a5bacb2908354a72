/* Inside the layout oracle. Functions that return a status have the errors of trainers. */
#pragma once

#include "train-internal.h"
#include "verify.h"

#define VERIFY_WHEN "while it compared layouts" /* for stop_check, which the slow parts call */

/* ---- verify_shrink.c ---- */

/* Random texts of unequal lengths. */
struct verify_texts {
    struct train_source source; /* first */
    uint64_t seed;
    int64_t vocab, virtual_tokens, first_position;
    int64_t multiple; /* of the rows of a batch */
};
struct verify_texts verify_texts_of(const struct verify_layout *job);
/* Returns the run's configuration for one rank. */
struct run_config verify_one_rank(const struct run_config *run);

/* ---- verify_watch.c: what one rank sees of a run ---- */

struct verify_seen {
    struct train_watch watch; /* first */
    struct trainer *trainer;
    int64_t micro_count, layers;
    int64_t output_elements; /* of the largest output of a layer */
    int64_t every;           /* gradients are kept after this number of micro batches, and its multiples */
    float *outputs;          /* [micro_count, layers + 1, output_elements], the embedding's first; owns all floats */
    bool *has_output;        /* [layers + 1] the rank has the layer */
    int64_t *rows;           /* [micro_count] of each batch */
    /* Flat arrays, in the order of the rank's map; elements that the rank does not have are 0. */
    float *gradients; /* [micro_count / every, flat_elements] sums so far, before those over ranks */
    float *sums, *weights, *mean, *square;
    int64_t *places; /* of each element in the flat arrays of one rank; -1: none */
    bool *is_second; /* an earlier tensor rank has the element, too */
    double loss;
    float norm[2]; /* and the clip factor */
};

/* Opens a trainer and watches it. The caller closes it, even after a failure. */
int verify_open(struct verify_seen *seen, const struct train_run *run, struct comm *world, int64_t every);
void verify_close(struct verify_seen *seen);
/* Makes a step, and reads all that it has changed. */
int verify_step(struct verify_seen *seen);
/* Gives a rank its part of the weights and the moments of another run, which has one rank. */
int verify_take(struct verify_seen *seen, const struct verify_seen *one);
/* Returns the output of a layer, -1 for the embedding. */
float *verify_output(const struct verify_seen *seen, int64_t micro_batch, int64_t layer);

/* Finds the places of the rank's elements in another run's flat arrays, which has one rank. */
int verify_find_places(struct verify_seen *seen, const struct verify_seen *one);
/* Copies this rank's part of that run's flat array to `to`. */
void verify_part(const struct verify_seen *seen, const float *from, float *to);

/* ---- verify_compare.c ---- */

enum verify_kind {
    VERIFY_OUTPUT,
    VERIFY_LOSS,
    VERIFY_GRADIENT,
    VERIFY_SUM,
    VERIFY_NORM,
    VERIFY_CLIP,
    VERIFY_WEIGHT,
    VERIFY_MEAN,
    VERIFY_SQUARE,
    VERIFY_REPLICA,
    VERIFY_RESUMED,
    VERIFY_KINDS
};

/* The first difference that a rank found. */
struct verify_difference {
    bool is_found, has_ratio;
    int64_t order; /* checks in the order of a step; the first one is what counts */
    int64_t step, micro_batch, rank, index;
    double one_rank, layout, ratio;
    char check[16], tensor[PARAM_NAME_BYTES];
};

/* The result of the comparisons of a kind. */
struct verify_count {
    int64_t tensors;
    double worst, bound;
};

/* A rank's comparisons. */
struct verify {
    struct verify_layout *job;
    struct comm *world;
    struct verify_seen mine;
    const struct verify_seen *one;
    int64_t step;
    struct verify_texts texts;
    bool is_first; /* of its process: it runs what one rank computes */
    double rate;   /* of the weights */
    struct verify_count counts[VERIFY_KINDS];
    struct verify_difference difference;
};

extern const char *const verify_kind_names[VERIFY_KINDS];
/* Compares the step that both runs have made. */
int verify_compare_step(struct verify *v);
/* Compares weights and moments of two runs that have not made a step since they were loaded. Without `is_exact` by the
 * bounds of a step. */
int verify_compare_state(struct verify *v, const struct verify_seen *seen, bool is_exact);
/* Leaves every rank with the first difference of all. */
int verify_agree(struct verify *v);
