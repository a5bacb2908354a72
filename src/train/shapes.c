/* Derives shapes from a run's configuration: the pipeline's schedule, each stage's model, the data's samples. Plan and
 * trainer both use them, so the trainer opens exactly what was planned. */
#include "train-internal.h"

#include "parallel/sharded.h"

static struct model_recompute recompute_of(const struct run_config *run) {
    struct model_recompute recompute = {.num_layers = run->parallel.recompute_num_layers};
    if (run->parallel.recompute_granularity == GRANULARITY_SELECTIVE)
        recompute.how = RECOMPUTE_SELECTIVE;
    else if (run->parallel.recompute_granularity == GRANULARITY_FULL)
        recompute.how = run->parallel.recompute_method == METHOD_BLOCK ? RECOMPUTE_BLOCK : RECOMPUTE_UNIFORM;
    for (size_t i = 0; i < run->parallel.recompute_modules.count; i++) {
        recompute.layernorm |= !strcmp(run->parallel.recompute_modules.items[i], "layernorm");
        recompute.mlp_act |= !strcmp(run->parallel.recompute_modules.items[i], "mlp_act");
    }
    return recompute;
}

static struct model_fp8_options fp8_of(const struct run_config *run) {
    return (struct model_fp8_options){.is_on = run->train.precision == PRECISION_FP8,
                                      .is_e4m3 = run->train.fp8_format == FP8_E4M3,
                                      .is_most_recent = run->train.fp8_amax_compute_algo == FP8_AMAX_MOST_RECENT,
                                      .margin = (int)run->train.fp8_margin,
                                      .history_length = run->train.fp8_amax_history_len};
}

struct pipeline_split train_pipeline_split(const struct run_config *run, const struct rank_grid *grid) {
    return (struct pipeline_split){.layers = run->model.num_layers,
                                   .stages = grid->pipeline,
                                   .chunks = run->parallel.virtual_pipeline_model_parallel_size,
                                   .first = run->parallel.decoder_first_pipeline_num_layers,
                                   .last = run->parallel.decoder_last_pipeline_num_layers,
                                   .counts_embedding = run->parallel.account_for_embedding_in_pipeline_split,
                                   .counts_loss = run->parallel.account_for_loss_in_pipeline_split};
}

struct pipeline_shape train_pipeline_shape(const struct run_config *run, const struct rank_grid *grid) {
    return (struct pipeline_shape){
        .stages = grid->pipeline,
        .chunks = (int)run->parallel.virtual_pipeline_model_parallel_size,
        .micro_batches = (int)(run->train.global_batch_size / run->train.micro_batch_size / grid->data),
        .group_size = (int)run->parallel.microbatch_group_size_per_vp_stage,
    };
}

/* Returns the first place of the pipeline with a backward; the last place has one because of the head. */
static int find_first_backward(const struct pipeline_split *split, const struct model_options *options,
                               struct pipeline_shape *shape) {
    int status = STATUS_OK, places = shape->stages * shape->chunks;
    for (int place = 0; place < places && !status; place++) {
        int64_t first, count;
        status = pipeline_layers(split, place % shape->stages, place / shape->stages, &first, &count);
        shape->first_backward = place;
        if (!status && model_has_backward(options, first + count))
            break;
    }
    return status;
}

/* Sets how the ranks with the same weights share them. Adapters are small, so a frozen model only ever shares weights.
 * A base in few bits is packed. STATUS_USAGE where it cannot have the precision. */
static int set_sharding(const struct run_config *run, const struct rank_grid *grid, struct base_options *options) {
    enum sharding sharding = run_sharding(run);
    int shards = grid->data * grid->context;
    options->layer_shards = sharding >= SHARDING_OPTIM ? shards : 0;
    options->kept_units = (int)run->parallel.fsdp_keep_gathered;
    options->gathers_wait = !run->parallel.overlap_param_gather;
    options->sums_wait = !run->parallel.overlap_grad_reduce;
    if (shards > 1 && sharding == SHARDING_OPTIM_GRADS_PARAMS)
        options->storage = &storage_sharded;
    else if (shards > 1 && sharding == SHARDING_OPTIM_GRADS && options->trains)
        options->storage = &storage_sharded_gradients;
    if (!options->encodings)
        return STATUS_OK;
    if (run->train.precision == PRECISION_FP8)
        return status_fail(STATUS_USAGE,
                           "train.precision fp8 rounds weights itself: a base in few bits takes bf16 or fp32");
    options->storage = options->storage ? &storage_sharded_packed : &storage_packed;
    return STATUS_OK;
}

int train_model_options(const struct train_run *run, const struct rank *rank, const struct train_model *model,
                        struct model_options *options, struct pipeline_shape *shape) {
    const struct rank_grid *grid = &rank->grid;
    struct pipeline_split split = train_pipeline_split(&run->config, grid);
    *shape = train_pipeline_shape(&run->config, grid);
    *options = (struct model_options){
        .base.config = run->config.model,
        .base.dtype = run_dtype(&run->config),
        .base.trains = run->tuner == NULL,
        .base.encodings = pretrained_describes(&model->encodings),
        .hooks = model->tuner.hooks,
        .train.recompute = recompute_of(&run->config),
        .train.fp8 = fp8_of(&run->config),
        .max_rows = run->config.train.micro_batch_size * train_sample_rows(&run->config, run->loss),
        .train.has_row_losses = run->loss && run->loss->run,
        .train.segment_rows = run->config.data.seq_length,
        .train.head_rows = run->head_rows,
        .base.chunk_count = shape->chunks,
        .train.partial_stashes = (int)run->config.parallel.num_microbatches_with_partial_activation_checkpoints,
    };
    TRY(set_sharding(&run->config, grid, &options->base));
    int status = find_first_backward(&split, options, shape);
    THEN(status, pipeline_stashes(shape, rank->place.pipeline, &options->train.stashes));
    options->base.is_after_embedding = rank->place.pipeline > 0;
    options->base.is_before_head = rank->place.pipeline < shape->stages - 1;
    for (int c = 0; c < shape->chunks && !status; c++)
        status = pipeline_layers(&split, rank->place.pipeline, c, &options->base.chunks[c].first,
                                 &options->base.chunks[c].count);
    return status;
}

int64_t train_sample_rows(const struct run_config *run, const struct loss *loss) {
    return tuning_sample_rows(loss ? loss->form : TUNING_ANSWERS, run->data.seq_length);
}

struct gpt_data_options train_data_options(const struct train_run *run) {
    struct gpt_data_options options = gpt_data_options_of_run(&run->config);
    options.rules.eod_id = model_first_eos(&run->ends);
    options.rules.vocab_size = run->config.model.vocab_size;
    /* Earlier iterations may have had another batch size; with the same one this is train_iters * global_batch_size. */
    int64_t left = run->config.train.train_iters - run->iteration;
    options.samples[SPLIT_TRAIN] = run->consumed_samples + (left > 0 ? left : 1) * run->config.train.global_batch_size;
    if (!run->config.train.eval_iters)
        options.samples[SPLIT_VALID] = GPT_NOT_WANTED;
    return options;
}
