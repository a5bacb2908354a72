/* A base with one runner, opened on a rank that nothing else is opened on. */
#pragma once

#include "model/model.h"

static inline void test_close_training(struct base **base, struct training_runner **training) {
    training_close(*training);
    base_close(*base);
    *training = NULL;
    *base = NULL;
}

/* `plan` may be NULL. */
static inline int test_sketch_training(const struct model_options *options, struct rank *rank, struct model_plan *plan,
                                       struct base **base, struct training_runner **training) {
    struct model_plan own;
    plan = plan ? plan : &own;
    *plan = (struct model_plan){0};
    *training = NULL;
    int status = base_sketch(&options->base, rank, plan, base);
    THEN(status, training_sketch(options, *base, plan, training));
    if (status)
        test_close_training(base, training);
    return status;
}

static inline int test_open_training(const struct model_options *options, struct rank *rank, struct model_plan *plan,
                                     struct base **base, struct training_runner **training) {
    int status = test_sketch_training(options, rank, plan, base, training);
    THEN(status, base_allocate(*base));
    THEN(status, training_allocate(*training));
    THEN(status, rank_allocate_workspace(rank));
    if (status)
        test_close_training(base, training);
    return status;
}

static inline int test_plan_training(const struct model_options *options, struct rank *rank, struct model_plan *plan) {
    struct base *base;
    struct training_runner *training;
    TRY(test_sketch_training(options, rank, plan, &base, &training));
    test_close_training(&base, &training);
    return STATUS_OK;
}

static inline void test_close_inference(struct base **base, struct inference_runner **inference) {
    inference_close(*inference);
    base_close(*base);
    *inference = NULL;
    *base = NULL;
}

/* Packed weights, which base_fill gives, unless the options name a storage. */
static inline int test_open_inference(const struct model_options *options, struct rank *rank, struct model_plan *plan,
                                      struct base **base, struct inference_runner **inference) {
    struct model_options own_options = *options;
    struct model_plan own;
    plan = plan ? plan : &own;
    *plan = (struct model_plan){0};
    *inference = NULL;
    own_options.base.storage = options->base.storage ? options->base.storage : &storage_packed;
    int status = base_sketch(&own_options.base, rank, plan, base);
    THEN(status, inference_sketch(options, *base, plan, inference));
    THEN(status, inference_allocate(*inference));
    THEN(status, rank_allocate_workspace(rank));
    if (status)
        test_close_inference(base, inference);
    return status;
}
