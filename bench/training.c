/* A run of the trainer for measuring: random tokens as a dataset, random weights, the defaults of pretrain. */
#include "training.h"

/* ---- dataset ---- */

static int write_tokens(const char *prefix, int64_t count, int64_t vocab_size) {
    struct indexed_writer writer;
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    TRY(status_allocated(tokens));
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(philox(1, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % (uint32_t)vocab_size);
    int status = indexed_writer_open(&writer, prefix, indexed_token_type(vocab_size), vocab_size);
    if (!status) {
        status = indexed_writer_add_sequence(&writer, tokens, count);
        THEN(status, indexed_writer_end_document(&writer));
        THEN(status, indexed_writer_commit(&writer));
        indexed_writer_abort(&writer);
    }
    free(tokens);
    return status;
}

int bench_make_directory(char directory[BENCH_DIRECTORY_BYTES], const char *purpose) {
    const char *parent = getenv("TMPDIR"); /* as other programs choose a place for temporary files */
    int length =
        snprintf(directory, BENCH_DIRECTORY_BYTES, "%s/cambium-bench-XXXXXX", parent && *parent ? parent : "/tmp");
    if (length >= BENCH_DIRECTORY_BYTES)
        snprintf(directory, BENCH_DIRECTORY_BYTES, "/tmp/cambium-bench-XXXXXX");
    if (mkdtemp(directory))
        return STATUS_OK;
    int status = status_fail_errno("cannot make the directory %s for %s", directory, purpose);
    directory[0] = 0;
    return status;
}

int bench_dataset_open(struct bench_dataset *dataset, int64_t tokens, int64_t vocab_size) {
    TRY(bench_make_directory(dataset->directory, "random tokens"));
    snprintf(dataset->prefix, sizeof dataset->prefix, "%s/tokens", dataset->directory);
    return write_tokens(dataset->prefix, tokens, vocab_size);
}

void bench_dataset_close(struct bench_dataset *dataset) {
    if (dataset->directory[0])
        file_remove_tree(dataset->directory);
    dataset->directory[0] = 0;
}

/* ---- run ---- */

/* Sets pretrain's defaults. */
static int take_defaults(struct run_config *run) {
    const struct config_command command = {
        .name = "bench", .section_rows = run_rows, .section_row_count = run_row_count};
    struct config *config;
    bool is_answered;
    int status = config_parse(&command, 0, NULL, run, &config, &is_answered);
    run->data.split = "1,0,0"; /* the strings of the defaults end here */
    run->parallel.recompute_modules = (struct config_list){0};
    config_free(config);
    return status;
}

int64_t bench_data_ranks(const struct run_config *run, int ranks) {
    struct rank_grid grid = {.tensor = (int)run->parallel.tensor_model_parallel_size,
                             .context = (int)run->parallel.context_parallel_size,
                             .expert = (int)run->parallel.expert_model_parallel_size,
                             .data = 1,
                             .pipeline = (int)run->parallel.pipeline_model_parallel_size};
    return rank_grid_fill(&grid, ranks) ? 1 : grid.data; /* the trainer refuses what is not possible */
}

int bench_training_run(const struct bench_options *options, bool is_one_rank, int64_t iterations,
                       struct bench_dataset *dataset, struct train_run *run) {
    struct run_config config = {0};
    int status = take_defaults(&config);
    THEN(status, bench_model_config(options->model, options->layers, &config.model));
    if (!status && options->seq_length > model_positions(&config.model))
        status = status_fail(STATUS_USAGE, "--seq-length %lld is more than the model's %lld positions",
                             (long long)options->seq_length, (long long)model_positions(&config.model));
    TRY(status);
    if (!options->has_dropout)
        config.model.hidden_dropout = config.model.attention_dropout = config.model.embedding_dropout = 0;
    if (!is_one_rank)
        config.parallel = options->run.parallel;
    config.device = options->device;
    config.gemm_algorithms = options->gemm_algorithms;
    if (!config.parallel.threads_per_rank)
        config.parallel.threads_per_rank = options->threads;
    dataset->item = dataset->prefix;
    config.data.data_path = (struct config_list){&dataset->item, 1};
    config.data.data_cache_path = "";
    config.data.seq_length = options->seq_length;
    config.train.train_iters = iterations;
    config.train.micro_batch_size = options->micro_batch_size;
    config.train.global_batch_size =
        options->global_batch_size
            ? options->global_batch_size
            : options->micro_batch_size * bench_data_ranks(&config, is_one_rank ? 1 : (int)options->ranks);
    config.train.precision = options->precision;
    config.optim.lr = 1e-4;
    return train_prepare(run, &config, NULL, NULL);
}
