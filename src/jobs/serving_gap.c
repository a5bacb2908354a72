/* Compares what finetune wrote with the forward that trained it. */
#include "serving_gap.h"

#include "verify_serving.h"

enum { MOST_TEXTS = 8, MOST_TOKENS = 512 }; /* each token takes a row of the vocabulary, in fp32 */

/* The tokens of the first rows; they are freed one by one. */
struct row_texts {
    int32_t *tokens[MOST_TEXTS];
    struct verify_text items[MOST_TEXTS];
    int64_t count, tokens_count;
};

static int read_rows(const struct tuning_options *options, struct row_texts *texts) {
    struct tuning_data *data;
    TRY(tuning_data_open(options, &data));
    int64_t length = tuning_data_length(data, SPLIT_VALID);
    int status = STATUS_OK;
    for (int64_t i = 0; i < length && i < MOST_TEXTS && texts->tokens_count < MOST_TOKENS && !status; i++) {
        bool *trained = NULL;
        struct verify_text *text = &texts->items[i];
        status = tuning_data_row(data, SPLIT_VALID, i, &texts->tokens[i], &trained, &text->count);
        int64_t remaining = MOST_TOKENS - texts->tokens_count;
        text->tokens = texts->tokens[i];
        text->count = status ? 0 : text->count < remaining ? text->count : remaining;
        free(trained);
        texts->count += !status;
        texts->tokens_count += text->count;
    }
    tuning_data_close(data);
    return status;
}

static int write_record(const struct train_run *run, int64_t iteration, double gap) {
    struct metrics_file metrics;
    TRY(metrics_open(&metrics, run->config.log.metrics_file, &(struct metrics_start){.kind = METRICS_ADDS}));
    int status = metrics_write_gap(&metrics, iteration, gap);
    metrics_close(&metrics);
    return status;
}

static int compare(struct comm *ranks, const struct train_run *run, void *context) {
    struct verify_serving *verify = context;
    struct job_model model = job_model_of_run(run, ranks->size);
    size_t frozen = run->tuner ? run->tuner->frozen.count : 0;
    const char **adapters = calloc(frozen + 1, sizeof *adapters);
    TRY(status_allocated(adapters));
    for (size_t i = 0; i < frozen; i++)
        adapters[i] = run->tuner->frozen.items[i];
    adapters[frozen] = run->config.checkpoint.save;
    if (run->tuner)
        model.adapters = (struct config_list){.items = adapters, .count = frozen + 1};
    verify->model = &model;
    int status = verify_serving_run(ranks, verify);
    free(adapters);
    return status;
}

int serving_gap_add(struct comm *world, const struct train_run *run, int64_t iteration) {
    struct row_texts texts = {0};
    struct verify_serving verify = {.texts = texts.items, .is_quiet = true};
    if (!run->tuning->valid.count || !run->config.log.metrics_file || run->config.train.precision == PRECISION_FP8 ||
        run->config.train.skip_train || iteration == run->iteration)
        return STATUS_OK;
    int status = comm_agree(world, world->rank == 0 ? read_rows(run->tuning, &texts) : STATUS_OK);
    bool is_ready = !status;
    verify.text_count = texts.count;
    THEN(status, job_on_tensor_ranks(world, run, compare, &verify));
    if (is_ready && status && status != STATUS_INTERRUPTED && world->rank == 0)
        log_warning("serving_gap is not known: %s", status_text());
    if (is_ready && world->rank == 0)
        status = status ? STATUS_OK : write_record(run, iteration, verify.gap);
    for (int64_t i = 0; i < texts.count; i++)
        free(texts.tokens[i]);
    return status;
}
