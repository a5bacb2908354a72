/* A run on several ranks: the grid that its configuration requests, and the agreements of all ranks. */
#include "train-internal.h"

/* Describes the layout of `ranks`. STATUS_USAGE when the sizes of the other axes do not divide their number. */
static int describe_layout(const struct run_config *run, int ranks, struct parallel_layout *layout) {
    struct rank_grid grid = {.tensor = (int)run->parallel.tensor_model_parallel_size,
                             .context = (int)run->parallel.context_parallel_size,
                             .expert = (int)run->parallel.expert_model_parallel_size,
                             .data = 1,
                             .pipeline = (int)run->parallel.pipeline_model_parallel_size};
    int status = rank_grid_fill(&grid, ranks);
    struct pipeline_split split = train_pipeline_split(run, &grid);
    *layout = (struct parallel_layout){.grid = grid,
                                       .chunks = split.chunks,
                                       .first = split.first,
                                       .last = split.last,
                                       .counts_embedding = split.counts_embedding,
                                       .counts_loss = split.counts_loss,
                                       .sequence_parallel = run->parallel.sequence_parallel,
                                       .layers = run->model.num_layers,
                                       .heads = run->model.num_attention_heads,
                                       .query_groups = run->model.num_query_groups,
                                       .ffn_hidden = run->model.ffn_hidden_size,
                                       .seq_length = run->data.seq_length,
                                       .micro_batch = run->train.micro_batch_size,
                                       .global_batch = run->train.global_batch_size};
    return status;
}

int train_grid(const struct run_config *run, int ranks, struct rank_grid *grid) {
    struct parallel_layout layout;
    int status = describe_layout(run, ranks, &layout);
    THEN(status, parallel_layout_check(&layout));
    *grid = layout.grid;
    struct pipeline_shape shape = train_pipeline_shape(run, grid);
    return status ? status : pipeline_shape_check(&shape);
}

const char *train_plan_obstacle(const struct train_run *run, int ranks) {
    struct parallel_layout layout;
    if (describe_layout(&run->config, ranks, &layout))
        return "the number of devices";
    const char *obstacle = parallel_layout_obstacle(&layout);
    struct pipeline_shape shape = train_pipeline_shape(&run->config, &layout.grid);
    return obstacle || !pipeline_shape_check(&shape) ? obstacle : "parallel.virtual_pipeline_model_parallel_size";
}

/* ---- agreement ---- */

int train_agree(struct trainer *trainer) {
    int64_t words[2] = {stop_requested(), -(int64_t)train_save_progress(trainer)};
    struct comm_data data = {.send = words, .receive = words, .count = 2, .dtype = DTYPE_I64};
    int status = comm_all_reduce(trainer->world, &data, COMM_MAX);
    trainer->stop = (int)words[0];
    return status ? status : train_save_advance(trainer, (enum ckpt_progress) - words[1]);
}

int train_agree_to_start(struct trainer *trainer) {
    int status = train_agree(trainer);
    if (status || !trainer->stop)
        return status;
    return status_fail(STATUS_INTERRUPTED, "stopped by %s before the first iteration", stop_name(trainer->stop));
}

int train_sum_over_data(const struct rank *rank, void *values, int64_t count, enum dtype dtype) {
    struct comm_data data = {.send = values, .receive = values, .count = count, .dtype = dtype};
    return comm_all_reduce(rank->data, &data, COMM_SUM);
}
