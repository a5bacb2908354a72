/* The memory plan, and the shapes that it follows from. */
#include "train-internal.h"

#include <string.h>

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

struct pipeline_split train_pipeline_split(const struct run_config *run, const struct rank_grid *grid) {
    return (struct pipeline_split){.layers = run->model.num_layers,
                                   .stages = grid->pipeline,
                                   .chunks = run->parallel.virtual_pipeline_model_parallel_size,
                                   .first = run->parallel.decoder_first_pipeline_num_layers,
                                   .last = run->parallel.decoder_last_pipeline_num_layers};
}

struct pipeline_shape train_pipeline_shape(const struct run_config *run, const struct rank_grid *grid) {
    return (struct pipeline_shape){
        .stages = grid->pipeline,
        .chunks = (int)run->parallel.virtual_pipeline_model_parallel_size,
        .micro_batches = (int)(run->train.global_batch_size / run->train.micro_batch_size / grid->data),
        .group_size = (int)run->parallel.microbatch_group_size_per_vp_stage,
    };
}

int train_model_options(const struct train_run *run, const struct rank *rank, const struct trainee_part *trainee,
                        struct model_options *options) {
    const struct rank_grid *grid = &rank->grid;
    struct pipeline_shape shape = train_pipeline_shape(&run->config, grid);
    struct pipeline_split split = train_pipeline_split(&run->config, grid);
    *options = (struct model_options){
        .config = run->config.model,
        .dtype = run->config.train.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32,
        .use = MODEL_TRAIN,
        .is_frozen = run->trainee != NULL,
        .hooks = trainee->hooks,
        .recompute = recompute_of(&run->config),
        .max_rows = run->config.train.micro_batch_size * run->config.data.seq_length,
        .chunk_count = shape.chunks,
        .partial_slots = (int)run->config.parallel.num_microbatches_with_partial_activation_checkpoints,
        .layer_shards = run->config.parallel.use_distributed_optimizer ? grid->data * grid->context : 0,
    };
    int status = pipeline_slots(&shape, rank->place.pipeline, &options->slots);
    for (int c = 0; c < shape.chunks && !status; c++)
        status = pipeline_layers(&split, rank->place.pipeline, c, &options->chunks[c].first, &options->chunks[c].count);
    return status;
}

struct gpt_data_options train_data_options(const struct train_run *run) {
    struct gpt_data_options options = gpt_data_options_of_run(&run->config);
    options.rules.eod_id = run->eos_id;
    options.rules.vocab_size = run->config.model.vocab_size;
    /* What the iterations so far took is known; with an unchanged batch size this is train_iters * global_batch_size.
     */
    int64_t left = run->config.train.train_iters - run->iteration;
    options.samples[SPLIT_TRAIN] = run->consumed_samples + (left > 0 ? left : 1) * run->config.train.global_batch_size;
    if (!run->config.train.eval_iters)
        options.samples[SPLIT_VALID] = GPT_NOT_WANTED;
    return options;
}

/* The batches, where each sequence starts, and the index maps: documents and samples of as many epochs as the run
 * needs. */
static size_t data_bytes(const struct train_run *run, int data_ranks, const struct gpt_data *data) {
    const struct gpt_data_options options = train_data_options(run);
    int64_t S = run->config.data.seq_length, rows = run->config.train.global_batch_size / data_ranks * S;
    double bytes = (double)rows * (6 * sizeof(int32_t) + sizeof(int64_t)), sequences = 0, tokens = 0;
    for (int64_t k = 0; k < data->file_count; k++) {
        sequences += (double)data->files[k]->sequences;
        tokens += (double)data->files[k]->tokens;
    }
    bytes += sequences * sizeof(int64_t);
    for (int split = 0; split <= SPLIT_VALID; split++) {
        double samples = options.samples[split] > 0 ? (double)options.samples[split] : 0;
        double epochs = tokens > 0 ? samples * (double)S / tokens : 0;
        double held = samples > 0 && epochs < 1 ? tokens / (double)S : samples;
        bytes += held * (sizeof(struct gpt_position) + sizeof(uint32_t));
        bytes += (samples > 0 && epochs < 1 ? 1 : epochs) * sequences * sizeof(int32_t);
        if (data->file_count > 1)
            bytes += samples * (sizeof(int16_t) + sizeof(int64_t));
    }
    return (size_t)bytes;
}

/* A frozen weight has no gradient: of 2 operations forward and 4 backward, 2 are not done. */
static const double frozen_share = 4.0 / 6;

int train_plan_fill(const struct train_run *run, struct rank *rank, const struct gpt_data *data,
                    struct trainee_part *trainee, struct train_plan *plan) {
    struct model_options options;
    struct model_plan of_model;
    struct model *none;
    rank->is_sequence_parallel = run->config.parallel.sequence_parallel && rank->grid.tensor > 1;
    int status = train_model_options(run, rank, trainee, &options);
    if (!status && run->trainee)
        status = run->trainee->open(run->trainee->description, &options, rank, trainee);
    options.hooks = trainee->hooks;
    if (!status)
        status = model_open(&options, rank, true, &of_model, &none);
    if (status)
        return status;
    const struct param_store *adapter = run->trainee ? trainee->store : NULL;
    int64_t trained = adapter ? adapter->flat_elements : of_model.flat_elements;
    optimizer_plan(rank, trained);
    struct pipeline_shape shape = train_pipeline_shape(&run->config, &rank->grid);
    int shards = options.layer_shards ? options.layer_shards : 1;
    *plan = (struct train_plan){
        .ranks = rank_grid_size(&rank->grid),
        .weights = of_model.weights + (adapter ? param_weight_bytes(adapter) : 0),
        .gradients = of_model.gradients + (adapter ? param_gradient_bytes(adapter) : 0),
        .optimizer = optimizer_bytes(trained / shards, options.dtype),
        .activations = of_model.activations + pipeline_bytes(&shape, rank->place.pipeline, of_model.stream_bytes) +
                       (adapter ? trainee->bytes : 0),
        .workspace = rank->workspace_needed,
        .data = data_bytes(run, rank->grid.data, data),
        .parameters = of_model.all_parameters + (adapter ? param_table_elements(adapter->table, false) : 0),
        .trainable_parameters = adapter ? param_table_elements(adapter->table, true) : of_model.parameters,
        .flops_per_token =
            model_flops_per_token(&run->config.model, run->config.data.seq_length) * (adapter ? frozen_share : 1),
    };
    return train_saver_bytes(run, rank, trainee, &plan->checkpoint);
}

int train_plan_make(const struct train_run *run, int ranks, struct train_plan *plan) {
    struct rank_grid grid;
    struct gpt_data data = {0};
    struct device *device = NULL;
    struct rank rank = {0};
    struct gpt_data_options options = train_data_options(run);
    for (int split = 0; split < SPLIT_COUNT; split++)
        options.samples[split] = GPT_NOT_WANTED; /* the files are opened and checked, nothing is built */
    struct trainee_part trainee = {0};
    int status = train_grid(&run->config, ranks, &grid);
    if (status)
        return status;
    if (!run->tuning)
        status = gpt_data_open(&data, &options);
    if (!status)
        status = device_open("cpu", 0, 0, &device);
    if (!status)
        status = rank_sketch(&rank, &grid, 0, device);
    if (!status)
        status = train_plan_fill(run, &rank, &data, &trainee, plan);
    if (trainee.self)
        run->trainee->close(trainee.self);
    rank_close(&rank);
    if (device)
        device_close(device);
    gpt_data_close(&data);
    return status;
}

size_t train_plan_total(const struct train_plan *plan) {
    return plan->weights + plan->gradients + plan->optimizer + plan->activations + plan->workspace + plan->data +
           plan->checkpoint;
}

void train_plan_print(const struct train_plan *plan, const char *prefix, FILE *out) {
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {
        {"weights", plan->weights},         {"gradients", plan->gradients},    {"optimizer", plan->optimizer},
        {"activations", plan->activations}, {"workspace", plan->workspace},    {"data", plan->data},
        {"checkpoint", plan->checkpoint},   {"total", train_plan_total(plan)},
    };
    fprintf(out, "%smemory plan of %lld parameters", prefix, (long long)plan->parameters);
    if (plan->ranks > 1)
        fprintf(out, ", rank 0 of %d", plan->ranks);
    fprintf(out, ":\n");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        fprintf(out, "%s  %-12s %10.1f MiB\n", prefix, parts[i].name, (double)parts[i].bytes / 1048576);
}
