/* The memory plan, and the shapes that it follows from. */
#include "train-internal.h"

#include <stdlib.h>
#include <string.h>

static const double MEBIBYTE = 1 << 20, GIBIBYTE = 1 << 30;

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

/* The first place of the pipeline with a backward; the last one has the head's. */
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

int train_model_options(const struct train_run *run, const struct rank *rank, const struct trainee_part *trainee,
                        struct model_options *options, struct pipeline_shape *shape) {
    const struct rank_grid *grid = &rank->grid;
    struct pipeline_split split = train_pipeline_split(&run->config, grid);
    *shape = train_pipeline_shape(&run->config, grid);
    *options = (struct model_options){
        .config = run->config.model,
        .dtype = run->config.train.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32,
        .use = MODEL_TRAIN,
        .is_frozen = run->trainee != NULL,
        .hooks = trainee->hooks,
        .recompute = recompute_of(&run->config),
        .max_rows = run->config.train.micro_batch_size * run->config.data.seq_length,
        .chunk_count = shape->chunks,
        .partial_stashes = (int)run->config.parallel.num_microbatches_with_partial_activation_checkpoints,
        .layer_shards = run->config.parallel.use_distributed_optimizer ? grid->data * grid->context : 0,
    };
    int status = find_first_backward(&split, options, shape);
    if (!status)
        status = pipeline_stashes(shape, rank->place.pipeline, &options->stashes);
    for (int c = 0; c < shape->chunks && !status; c++)
        status = pipeline_layers(&split, rank->place.pipeline, c, &options->chunks[c].first, &options->chunks[c].count);
    return status;
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

/* A rank's part of a global batch. */
static size_t batch_bytes(const struct train_run *run, int data_ranks) {
    int64_t rows = run->config.train.global_batch_size / data_ranks * run->config.data.seq_length;
    return (size_t)rows * (6 * sizeof(int32_t) + sizeof(int64_t));
}

static int measure_data(const struct train_run *run, const struct gpt_data *data, struct gpt_data_bytes *bytes) {
    const struct gpt_data_options options = train_data_options(run);
    *bytes = (struct gpt_data_bytes){0};
    return run->tuning ? STATUS_OK : gpt_data_measure(data, &options, bytes);
}

/* A frozen weight has no gradient: of 2 operations forward and 4 backward, 2 are not done. */
static const double frozen_share = 4.0 / 6;

int train_plan_fill(const struct train_run *run, struct rank *rank, const struct gpt_data *data,
                    struct trainee_part *trainee, struct train_plan *plan) {
    struct model_options options;
    struct pipeline_shape shape;
    struct model_plan of_model;
    struct gpt_data_bytes of_data;
    struct model *none;
    rank->is_sequence_parallel = run->config.parallel.sequence_parallel && rank->grid.tensor > 1;
    int status = train_model_options(run, rank, trainee, &options, &shape);
    if (!status && run->trainee)
        status = run->trainee->open(run->trainee->description, &options, rank, trainee);
    if (!status && run->trainee) /* what is held follows from its hooks */
        status = train_model_options(run, rank, trainee, &options, &shape);
    if (!status)
        status = model_open(&options, rank, true, &of_model, &none);
    if (!status)
        status = measure_data(run, data, &of_data);
    if (status)
        return status;
    const struct param_store *adapter = run->trainee ? trainee->store : NULL;
    int64_t trained = adapter ? adapter->flat_elements : of_model.flat_elements;
    optimizer_plan(rank, trained);
    int shards = options.layer_shards ? options.layer_shards : 1;
    double share = adapter ? frozen_share : 1;
    *plan = (struct train_plan){
        .ranks = rank_grid_size(&rank->grid),
        .grid = rank->grid,
        .place = rank->place,
        .weights = of_model.weights + (adapter ? param_weight_bytes(adapter) : 0),
        .gradients = of_model.gradients + (adapter ? param_gradient_bytes(adapter) : 0),
        .optimizer =
            optimizer_bytes(trained / shards, adapter ? adapter->table->count : of_model.table_rows, options.dtype),
        .activations = of_model.activations + pipeline_bytes(&shape, rank->place.pipeline, of_model.stream_bytes) +
                       (adapter ? trainee->bytes : 0),
        .workspace = rank->workspace_needed,
        .data = batch_bytes(run, rank->grid.data) + run->tuning_bytes + of_data.maps + of_data.process,
        .of_data = of_data,
        .parameters = of_model.all_parameters + (adapter ? param_table_elements(adapter->table, false) : 0),
        .trainable_parameters = adapter ? param_table_elements(adapter->table, true) : of_model.parameters,
        .flops_per_token = model_flops_per_token(&run->config.model, run->config.data.seq_length) * share,
        .head_flops_per_token = model_head_flops_per_token(&run->config.model) * share,
    };
    return train_saver_bytes(run, rank, trainee, &plan->checkpoint);
}

/* ---- all ranks ---- */

/* What planning a run's ranks needs, and has found. */
struct survey {
    const struct train_run *run;
    struct rank_grid grid;
    struct rank_seat *seats; /* [ranks] */
    bool is_one_process;
    struct gpt_data data;    /* its files are open, nothing is built */
    struct train_plan *plan; /* of the rank that takes most so far */
};

/* What a second rank of this host does not take again: the ranks are threads of one process, or processes that map the
 * same caches. */
static size_t shared_bytes(const struct survey *survey, const struct train_plan *own) {
    const char *cache = survey->run->config.data.data_cache_path;
    if (survey->is_one_process)
        return own->of_data.maps + own->of_data.process;
    return cache && !*cache ? 0 : own->of_data.maps;
}

static void take_rank(struct survey *survey, const struct train_plan *own, bool is_here) {
    struct train_plan *plan = survey->plan;
    size_t total = train_plan_total(own), shared = plan->ranks_here > 0 ? shared_bytes(survey, own) : 0;
    size_t here = plan->here + (is_here ? total - shared : 0);
    int ranks_here = plan->ranks_here + is_here;
    if (total > train_plan_total(plan))
        *plan = *own;
    plan->here = here;
    plan->ranks_here = ranks_here;
}

/* The first rank of a place of the tensor and pipeline axes, and with it those that have the same part of the model:
 * they differ from it by what they save alone. */
static int plan_place(struct survey *survey, int first) {
    struct device *device = NULL;
    struct rank rank = {0};
    struct trainee_part trainee = {0};
    struct train_plan own;
    const struct rank_grid *grid = &survey->grid;
    int status = device_open(survey->run->config.device, 0, survey->seats[first].threads, &device);
    if (!status)
        status = rank_sketch(&rank, grid, first, device);
    if (!status)
        status = train_plan_fill(survey->run, &rank, &survey->data, &trainee, &own);
    const struct rank_grid place = rank.place;
    for (int r = first; r < rank_grid_size(grid) && !status; r += grid->tensor) {
        rank.place = own.place = rank_grid_place(grid, r);
        if (rank.place.pipeline != place.pipeline)
            break;
        status = r > first ? train_saver_bytes(survey->run, &rank, &trainee, &own.checkpoint) : STATUS_OK;
        if (!status)
            take_rank(survey, &own, survey->seats[r].is_here);
    }
    if (trainee.self)
        survey->run->trainee->close(trainee.self);
    rank_close(&rank);
    if (device)
        device_close(device);
    return status;
}

static int plan_places(struct survey *survey) {
    struct gpt_data_options options = train_data_options(survey->run);
    int status = STATUS_OK;
    for (int split = 0; split < SPLIT_COUNT; split++)
        options.samples[split] = GPT_NOT_WANTED;
    if (!survey->run->tuning)
        status = gpt_data_open(&survey->data, &options);
    int stage = rank_grid_size(&survey->grid) / survey->grid.pipeline;
    for (int p = 0; p < survey->grid.pipeline; p++)
        for (int t = 0; t < survey->grid.tensor && !status; t++)
            status = plan_place(survey, p * stage + t);
    gpt_data_close(&survey->data);
    return status;
}

/* Notes the threads of a rank of this process, and why it has as many. */
static void plan_threads(const struct rank_seat *seat, int asked, struct train_plan *plan) {
    struct cores cores = cores_find("");
    plan->threads = seat->threads;
    cores_explain(&cores, seat->threads, asked, seat->sharing, plan->cores, sizeof plan->cores);
}

int train_plan_make(const struct train_run *run, int ranks, struct comm *world, struct train_plan *plan) {
    struct survey survey = {
        .run = run, .plan = plan, .is_one_process = !world, .seats = calloc((size_t)ranks, sizeof *survey.seats)};
    *plan = (struct train_plan){.ranks = ranks};
    int status = survey.seats ? rank_site_survey(world, ranks, (int)run->config.parallel.threads_per_rank, survey.seats)
                              : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = train_grid(&run->config, ranks, &survey.grid);
    if (!status)
        status = plan_places(&survey);
    if (!status)
        plan_threads(&survey.seats[world ? world->rank : 0], (int)run->config.parallel.threads_per_rank, plan);
    free(survey.seats);
    return status;
}

/* ---- what it says ---- */

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
        fprintf(out, ", rank %d of %d (tensor %d, data %d, pipeline %d), which takes most",
                rank_grid_rank(&plan->grid, &plan->place), plan->ranks, plan->place.tensor, plan->place.data,
                plan->place.pipeline);
    fprintf(out, ", %d thread%s (%s):\n", plan->threads, plan->threads > 1 ? "s" : "", plan->cores);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        fprintf(out, "%s  %-12s %10.1f MiB\n", prefix, parts[i].name, (double)parts[i].bytes / MEBIBYTE);
    if (plan->ranks > 1)
        fprintf(out, "%s  %-12s %10.1f MiB of %d rank%s\n", prefix, "this host", (double)plan->here / MEBIBYTE,
                plan->ranks_here, plan->ranks_here > 1 ? "s" : "");
}

static void add_word(struct strbuf *text, const char *word) {
    strbuf_format(text, "%s%s", text->length ? ", " : "", word);
}

int train_plan_check(const struct train_run *run, const struct train_plan *plan, const struct memory_limit *limit) {
    const struct run_config *config = &run->config;
    struct strbuf help = STRBUF_INIT;
    int copies = plan->grid.data * plan->grid.context;
    if (plan->here <= limit->bytes)
        return STATUS_OK;
    if (config->parallel.recompute_granularity != GRANULARITY_FULL)
        add_word(&help, "parallel.recompute_granularity full");
    if (copies > 1 && !config->parallel.use_distributed_optimizer)
        add_word(&help, "parallel.use_distributed_optimizer");
    if (config->train.micro_batch_size > 1)
        add_word(&help, "a smaller train.micro_batch_size");
    add_word(&help, copies > 1 ? "more tensor or pipeline ranks in place of data ranks"
                               : "tensor or pipeline ranks on more hosts");
    int status = strbuf_status(&help);
    if (!status)
        status = status_fail(STATUS_MEMORY,
                             "not enough memory: %.1f GiB are planned on this host, which %s %.1f GiB; what would "
                             "help: %s",
                             (double)plan->here / GIBIBYTE, limit->is_cgroup ? "allows its control group" : "has",
                             (double)limit->bytes / GIBIBYTE, strbuf_text(&help));
    strbuf_free(&help);
    return status;
}
