/* Rules between keys: defaults that follow from other keys, and combinations that are refused. resolve_model.c has the
 * rules within a model. */
#include "model_words.h"

#include "base/base.h"

static int resolve_lengths(struct run_config *run) {
    if (!run->model.max_position_embeddings)
        run->model.max_position_embeddings = run->data.seq_length;
    if (!run->data.seq_length)
        run->data.seq_length = run->model.max_position_embeddings;
    if (!run->data.seq_length)
        return status_fail(STATUS_USAGE, "data.seq_length is not given, nor model.max_position_embeddings");
    int64_t positions = model_positions(&run->model);
    if (run->data.seq_length > positions && positions > run->model.max_position_embeddings)
        return status_fail(STATUS_USAGE, "data.seq_length %lld is more than the model's %lld scaled positions",
                           (long long)run->data.seq_length, (long long)positions);
    if (run->data.seq_length > positions)
        return status_fail(STATUS_USAGE, "data.seq_length %lld is more than model.max_position_embeddings %lld",
                           (long long)run->data.seq_length, (long long)positions);
    return STATUS_OK;
}

static int resolve_batch(struct run_config *run) {
    if (run->train.skip_train && !run->train.train_iters)
        run->train.train_iters = 1;
    if (run->train.train_iters <= 0)
        return status_fail(STATUS_USAGE, "train.train_iters is not given");
    if (!run->train.global_batch_size)
        run->train.global_batch_size = run->train.micro_batch_size;
    if (run->train.global_batch_size % run->train.micro_batch_size)
        return status_fail(STATUS_USAGE,
                           "train.global_batch_size %lld is not a multiple of train.micro_batch_size %lld",
                           (long long)run->train.global_batch_size, (long long)run->train.micro_batch_size);
    if (run->train.early_stop && (!run->train.eval_interval || !run->train.eval_iters))
        return status_fail(STATUS_USAGE,
                           "train.early_stop %lld without validations: expected train.eval_interval and "
                           "train.eval_iters above 0",
                           (long long)run->train.early_stop);
    if (run->checkpoint.save_interval && !run->checkpoint.save)
        return status_fail(STATUS_USAGE, "checkpoint.save_interval %lld without checkpoint.save: say where to save",
                           (long long)run->checkpoint.save_interval);
    return STATUS_OK;
}

/* Refuses keys of FP8 that do nothing. */
static int resolve_fp8(struct run_config *run) {
    const struct {
        const char *key;
        bool is_changed;
    } keys[] = {
        {"fp8_format", run->train.fp8_format != FP8_HYBRID},
        {"fp8_margin", run->train.fp8_margin != 0},
        {"fp8_amax_history_len", run->train.fp8_amax_history_len != 0},
        {"fp8_amax_compute_algo", run->train.fp8_amax_compute_algo != FP8_AMAX_MAX},
    };
    if (run->train.precision == PRECISION_FP8) {
        run->train.fp8_amax_history_len = run->train.fp8_amax_history_len ? run->train.fp8_amax_history_len : 1024;
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].is_changed)
            return status_fail(STATUS_USAGE, "train.%s does nothing without train.precision fp8", keys[i].key);
    return STATUS_OK;
}

static int resolve_schedule(struct run_config *run) {
    if (run->train.skip_train && run->optim.lr < 0)
        run->optim.lr = run->optim.min_lr;
    if (run->optim.lr < 0)
        return status_fail(STATUS_USAGE, "optim.lr is not given");
    if (run->optim.lr < run->optim.min_lr)
        return status_fail(STATUS_USAGE, "optim.lr %g is below optim.min_lr %g", run->optim.lr, run->optim.min_lr);
    if (run->optim.lr < run->optim.lr_warmup_init)
        return status_fail(STATUS_USAGE, "optim.lr %g is below optim.lr_warmup_init %g", run->optim.lr,
                           run->optim.lr_warmup_init);
    if (!run->optim.lr_decay_iters)
        run->optim.lr_decay_iters = run->train.train_iters;
    if (run->optim.lr_warmup_iters >= run->optim.lr_decay_iters)
        return status_fail(STATUS_USAGE, "optim.lr_warmup_iters %lld is not below optim.lr_decay_iters %lld",
                           (long long)run->optim.lr_warmup_iters, (long long)run->optim.lr_decay_iters);
    if (run->optim.lr_decay_style != LR_WSD)
        return STATUS_OK;
    if (!run->optim.lr_wsd_decay_iters)
        return status_fail(STATUS_USAGE, "optim.lr_decay_style WSD needs optim.lr_wsd_decay_iters");
    if (run->optim.lr_wsd_decay_iters > run->optim.lr_decay_iters - run->optim.lr_warmup_iters)
        return status_fail(
            STATUS_USAGE,
            "optim.lr_wsd_decay_iters %lld is more than the %lld iterations between optim.lr_warmup_iters "
            "%lld and optim.lr_decay_iters %lld",
            (long long)run->optim.lr_wsd_decay_iters,
            (long long)(run->optim.lr_decay_iters - run->optim.lr_warmup_iters), (long long)run->optim.lr_warmup_iters,
            (long long)run->optim.lr_decay_iters);
    return STATUS_OK;
}

static int check_optimizer(const struct run_config *run) {
    const double betas[] = {run->optim.adam_beta1, run->optim.adam_beta2};
    for (int i = 0; i < 2; i++)
        if (betas[i] < 0 || betas[i] >= 1)
            return status_fail(STATUS_USAGE, "optim.adam_beta%d %g: expected at least 0 and below 1", i + 1, betas[i]);
    return STATUS_OK;
}

static int check_parallel(const struct run_config *run) {
    const struct {
        const char *name;
        int64_t size;
    } axes[] = {
        {"context_parallel_size", run->parallel.context_parallel_size},
        {"expert_model_parallel_size", run->parallel.expert_model_parallel_size},
    };
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (axes[i].size > 1)
            return status_fail(STATUS_USAGE, "parallel.%s %lld: this build has only 1", axes[i].name,
                               (long long)axes[i].size);
    return STATUS_OK;
}

static int check_recompute(const struct run_config *run) {
    for (size_t i = 0; i < run->parallel.recompute_modules.count; i++) {
        const char *module = run->parallel.recompute_modules.items[i];
        if (strcmp(module, "core_attn") && strcmp(module, "layernorm") && strcmp(module, "mlp_act"))
            return status_fail(STATUS_USAGE, "parallel.recompute_modules %s: expected core_attn, layernorm or mlp_act",
                               module);
    }
    if (run->parallel.recompute_granularity == GRANULARITY_FULL &&
        run->parallel.recompute_num_layers > run->model.num_layers)
        return status_fail(STATUS_USAGE, "parallel.recompute_num_layers %lld of a model with %lld layers",
                           (long long)run->parallel.recompute_num_layers, (long long)run->model.num_layers);
    if (run->parallel.num_microbatches_with_partial_activation_checkpoints &&
        (run->parallel.recompute_granularity != GRANULARITY_FULL || run->parallel.recompute_method != METHOD_BLOCK))
        return status_fail(STATUS_USAGE,
                           "parallel.num_microbatches_with_partial_activation_checkpoints %lld: expected with "
                           "parallel.recompute_granularity full and parallel.recompute_method block",
                           (long long)run->parallel.num_microbatches_with_partial_activation_checkpoints);
    return STATUS_OK;
}

void run_config_take_model(struct run_config *run, const struct model_config *model) {
    run->model = *model;
    model_words_describe(run);
}

int run_config_resolve(struct run_config *run) {
    int status = check_parallel(run);
    THEN(status, resolve_lengths(run));
    THEN(status, model_words_resolve(run));
    THEN(status, model_config_resolve(&run->model));
    if (!status)
        model_words_describe(run);
    THEN(status, check_recompute(run));
    THEN(status, resolve_batch(run));
    THEN(status, resolve_fp8(run));
    THEN(status, resolve_schedule(run));
    THEN(status, check_optimizer(run));
    return status;
}
