/* Opening and closing a run on a lent base. */
#include "train/lent.h"

#include "train-internal.h"

enum { HEAD_ROWS = 64 /* their logits are most of a small model's activations, and more rows are hardly faster */ };

/* No value lives in the workspace between two operations, so the lender's serves both. */
static bool shares_workspace(const struct lent_run *lent) {
    return work_scratch(&lent->rank.work) <= lent->lender->exec.workspace_bytes;
}

static int open_workspace(struct lent_run *lent) {
    if (!shares_workspace(lent))
        return rank_allocate_workspace(&lent->rank);
    lent->rank.exec = lent->lender->exec;
    lent->rank.is_planning = false;
    return STATUS_OK;
}

/* Outputs of norms and activations are computed again: with adapters everywhere they are a third of what a layer keeps,
 * and cost little time. */
static void choose_recomputation(struct lent_run *lent) {
    struct run_config *config = &lent->run.config;
    if (config->parallel.recompute_granularity != GRANULARITY_NONE)
        return;
    config->parallel.recompute_granularity = GRANULARITY_SELECTIVE;
    config->parallel.recompute_modules = (struct config_list){lent->recomputed, 2};
    lent->recomputed[0] = "layernorm";
    lent->recomputed[1] = "mlp_act";
}

int lent_run_sketch(struct lent_run *lent, struct base *base, const struct rank *rank) {
    struct run_config *config = &lent->run.config;
    config->model = *base_config(base);
    config->parallel.tensor_model_parallel_size = rank->grid.tensor;
    config->parallel.pipeline_model_parallel_size = config->parallel.virtual_pipeline_model_parallel_size = 1;
    config->parallel.context_parallel_size = config->parallel.expert_model_parallel_size = 1;
    config->parallel.decoder_first_pipeline_num_layers = config->parallel.decoder_last_pipeline_num_layers = 0;
    config->parallel.sequence_parallel = config->parallel.use_distributed_optimizer = false;
    config->parallel.data_parallel_sharding_strategy = SHARDING_NONE;
    config->checkpoint.save = config->checkpoint.load = NULL;
    choose_recomputation(lent);
    rank_share(&lent->rank, rank, (uint64_t)config->train.seed);
    lent->lender = rank;
    lent->model.base = base;
    lent->run.head_rows = HEAD_ROWS;
    TRY(train_plan_fill(&lent->run, &lent->rank, NULL, &lent->model, &lent->plan));
    if (shares_workspace(lent))
        lent->plan.workspace = 0;
    return STATUS_OK;
}

int lent_run_open(struct lent_run *lent) {
    struct train_model *model = &lent->model;
    struct model_options options;
    struct pipeline_shape shape;
    uint64_t seed = (uint64_t)lent->run.config.train.seed;
    TRY(training_allocate(model->runner));
    TRY(open_workspace(lent));
    TRY(lent->run.tuner->start(lent->run.tuner->description, model->tuner.self, model->base, seed));
    TRY(train_model_options(&lent->run, &lent->rank, model, &options, &shape));
    lent->stepper = (struct stepper){.rank = &lent->rank,
                                     .config = &lent->run.config,
                                     .model = model,
                                     .tuner = lent->run.tuner,
                                     .loss = lent->run.loss,
                                     .loss_options = lent->run.loss_options,
                                     .source = lent->run.source};
    TRY(stepper_open(&lent->stepper, &shape));
    return optimizer_reset(&lent->stepper.optimizer);
}

void lent_run_close(struct lent_run *lent) {
    if (lent->stepper.rank)
        stepper_close(&lent->stepper);
    lent->model.base = NULL;
    train_model_close(&lent->run, &lent->model);
    if (lent->lender && lent->rank.exec.workspace == lent->lender->exec.workspace)
        lent->rank.exec.workspace = NULL;
    rank_unshare(&lent->rank);
}
