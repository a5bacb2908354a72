/* A run's train, validation and test samples: opens the files of the data path, splits each, requests each part's share
 * and blends them (blended_megatron_dataset_builder.py). */
#include "data-internal.h"

#include <math.h>
#include <stdatomic.h>

enum { MAX_PARTS = INT16_MAX - 1 };

/* The split's name in options and messages. */
static const char *data_split_name(enum data_split split) {
    static const char *const names[SPLIT_COUNT] = {"train", "valid", "test"};
    return names[split];
}

struct gpt_data_options gpt_data_options_of_run(const struct run_config *run) {
    int64_t batch = run->train.global_batch_size, evaluations = 0;
    if (run->train.eval_interval > 0)
        evaluations = run->train.train_iters / run->train.eval_interval + 1;
    if (run->train.skip_train)
        evaluations = 1;
    int64_t valid = evaluations * run->train.eval_iters * batch;
    return (struct gpt_data_options){
        .data_path = run->data.data_path,
        .split = run->data.split,
        .seq_length = run->data.seq_length,
        .seed = run->data.seed,
        .samples = {run->train.train_iters * batch, valid > 0 ? valid : GPT_NOT_WANTED, GPT_NOT_WANTED},
        .data_cache_path = run->data.data_cache_path,
        .rules = {.eod_id = -1,
                  .pad_id = -1,
                  .eod_mask_loss = run->data.eod_mask_loss,
                  .reset_position_ids = run->data.reset_position_ids,
                  .reset_attention_mask = run->data.reset_attention_mask},
    };
}

/* Computes ceil(ceil(size * w) * (1 + surplus)) in doubles. The inner value is what the blend will take; the outer one
 * is what a part needs so that rounding never exhausts it. */
static double share(int64_t size, double weight) {
    return ceil((double)size * weight);
}
static const double SURPLUS = 0.005;

struct builder {
    const struct gpt_data_options *options;
    struct gpt_data *data;
    struct indexed_dataset **files; /* of the data */
    const char **prefixes;
    double *weights; /* normalised once; NULL: weighted by length */
    bool is_blend;
};

/* Makes the request for file k in a split. */
static int request_of(const struct builder *builder, enum data_split which, int64_t k,
                      struct gpt_dataset_request *request) {
    const struct gpt_data_options *options = builder->options;
    int64_t first[SPLIT_COUNT], last[SPLIT_COUNT], wanted = options->samples[which];
    struct indexed_dataset *file = builder->files[k];
    TRY(split_parse(options->split, file->sequences, first, last));
    *request = (struct gpt_dataset_request){
        .tokens = file,
        .first = first[which],
        .last = last[which],
        .seq_length = options->seq_length,
        .samples = !builder->is_blend ? wanted
                   : builder->weights ? (int64_t)ceil(share(wanted, builder->weights[k]) * (1 + SURPLUS))
                                      : GPT_ONE_EPOCH,
        .seed = options->seed,
        .cache = options->data_cache_path,
    };
    return STATUS_OK;
}

static int open_parts(const struct builder *builder, enum data_split which) {
    struct gpt_split *split = &builder->data->splits[which];
    for (int64_t k = 0; k < builder->data->file_count; k++) {
        struct gpt_dataset_request request;
        TRY(request_of(builder, which, k, &request));
        TRY(gpt_dataset_open(&split->parts[k], &request));
        split->part_count = k + 1;
    }
    return STATUS_OK;
}

/* Returns the samples of a split: the sum of its parts' shares for a blend by weights, else no more than the parts
 * have. */
static int64_t blend_length(const struct builder *builder, enum data_split which, int64_t parts, int64_t total) {
    int64_t wanted = builder->options->samples[which], size = 0;
    for (int64_t k = 0; builder->weights && k < parts; k++)
        size += (int64_t)share(wanted, builder->weights[k]);
    if (!builder->weights)
        size = wanted == GPT_ONE_EPOCH || total < wanted ? total : wanted;
    return size;
}

/* A part without a sample cannot be drawn from. A weighted share of the training data must have samples. Any other
 * empty part (a validation split of a short file) is dropped with a message. */
static int check_parts(const struct builder *builder, enum data_split which) {
    const struct gpt_split *split = &builder->data->splits[which];
    int64_t empty = 0;
    for (int64_t k = 0; k < split->part_count; k++)
        empty += split->parts[k].length == 0;
    for (int64_t k = 0; k < split->part_count && builder->is_blend && empty < split->part_count; k++) {
        if (split->parts[k].length > 0)
            continue;
        if (builder->weights && which == SPLIT_TRAIN)
            return status_fail(
                STATUS_INVALID, "%s: the training split '%s' gives it no tokens, but its weight in the blend is %g",
                builder->prefixes[k], builder->options->split ? builder->options->split : "", builder->weights[k]);
        log_warning("%s gives the %s split no sample of %lld tokens and is left out of the blend", builder->prefixes[k],
                    data_split_name(which), (long long)split->seq_length);
    }
    if (empty == split->part_count && which == SPLIT_TRAIN && builder->options->samples[which] > 0)
        return status_fail(STATUS_INVALID,
                           "%s: the training split '%s' has no tokens (%lld sequences, %lld tokens in the file)",
                           builder->prefixes[0], builder->options->split ? builder->options->split : "all",
                           (long long)builder->data->files[0]->sequences, (long long)builder->data->files[0]->tokens);
    return STATUS_OK;
}

/* Removes the empty parts, so that the blend can draw from every part; `numbers` keeps their places in the list. */
static int64_t keep_filled(const struct gpt_split *split, const double *given, int64_t *numbers, int64_t *lengths,
                           double *weights) {
    int64_t count = 0;
    for (int64_t k = 0; k < split->part_count; k++)
        if ((lengths[k] = split->parts[k].length) > 0) {
            numbers[count] = k;
            weights[count] = given ? given[k] : (double)lengths[k];
            lengths[count++] = lengths[k];
        }
    return count;
}

struct blend_scratch {
    int64_t *numbers, *lengths, *drawn;
    double *weights;
};

static int fill_blend(const struct builder *builder, enum data_split which, const struct blend_scratch *scratch) {
    struct gpt_split *split = &builder->data->splits[which];
    int64_t wanted = builder->options->samples[which], total = 0;
    int64_t count = keep_filled(split, builder->weights, scratch->numbers, scratch->lengths, scratch->weights);
    if (count == 0)
        return STATUS_OK;
    for (int64_t k = 0; k < count; k++)
        total += scratch->lengths[k];
    bool is_exhaustive = !builder->weights && wanted == GPT_ONE_EPOCH;
    int64_t size = blend_length(builder, which, split->part_count, total);
    split->dataset_index = malloc((size_t)(size + 1) * sizeof *split->dataset_index);
    split->dataset_sample_index = malloc((size_t)(size + 1) * sizeof *split->dataset_sample_index);
    if (!split->dataset_index || !split->dataset_sample_index)
        return status_fail(STATUS_MEMORY, "no memory for a blend of %lld samples", (long long)size);
    if (is_exhaustive) {
        blend_fill_exhaustive(scratch->lengths, count, scratch->drawn, split->dataset_index,
                              split->dataset_sample_index);
    } else {
        blend_normalize(scratch->weights, count); /* normalises given weights a second time */
        blend_fill(scratch->weights, count, size, scratch->drawn, split->dataset_index, split->dataset_sample_index);
    }
    for (int64_t k = 0; k < count; k++)
        if (scratch->drawn[k] > scratch->lengths[k])
            return status_fail(STATUS_INVALID, "the %s blend draws %lld samples of %s, which has %lld",
                               data_split_name(which), (long long)scratch->drawn[k],
                               builder->prefixes[scratch->numbers[k]], (long long)scratch->lengths[k]);
    for (int64_t i = 0; i < size && count < split->part_count; i++)
        split->dataset_index[i] = (int16_t)scratch->numbers[split->dataset_index[i]];
    split->length = size;
    return STATUS_OK;
}

static int build_blend(const struct builder *builder, enum data_split which) {
    size_t count = (size_t)builder->data->file_count;
    struct blend_scratch scratch = {
        .numbers = calloc(count, sizeof *scratch.numbers),
        .lengths = calloc(count, sizeof *scratch.lengths),
        .drawn = calloc(count, sizeof *scratch.drawn),
        .weights = calloc(count, sizeof *scratch.weights),
    };
    int status = STATUS_OK;
    if (!scratch.numbers || !scratch.lengths || !scratch.drawn || !scratch.weights)
        status = status_no_memory();
    else
        status = fill_blend(builder, which, &scratch);
    free(scratch.numbers);
    free(scratch.lengths);
    free(scratch.drawn);
    free(scratch.weights);
    return status;
}

static int build_split(const struct builder *builder, enum data_split which) {
    const struct gpt_data_options *options = builder->options;
    struct gpt_split *split = &builder->data->splits[which];
    *split =
        (struct gpt_split){.seq_length = options->seq_length, .rules = options->rules, .is_blend = builder->is_blend};
    if (options->samples[which] == GPT_NOT_WANTED)
        return STATUS_OK;
    if (builder->weights && options->samples[which] == GPT_ONE_EPOCH)
        return status_fail(STATUS_USAGE, "a blend by weights needs a number of samples");
    split->parts = calloc((size_t)builder->data->file_count, sizeof *split->parts);
    TRY(status_allocated(split->parts));
    TRY(open_parts(builder, which));
    TRY(check_parts(builder, which));
    if (builder->is_blend)
        return build_blend(builder, which);
    split->length = split->parts[0].length;
    return STATUS_OK;
}

static int check_rules(const struct gpt_rules *rules) {
    if (rules->eod_id < 0 && (rules->eod_mask_loss || rules->reset_position_ids || rules->reset_attention_mask))
        return status_fail(STATUS_USAGE, "eod_mask_loss, reset_position_ids and reset_attention_mask need the id of "
                                         "the end-of-document token: give a tokenizer");
    return STATUS_OK;
}

static int open_files(struct builder *builder, int64_t count) {
    struct gpt_data *data = builder->data;
    builder->files = data->files = calloc((size_t)count, sizeof(struct indexed_dataset *));
    TRY(status_allocated(data->files));
    for (int64_t k = 0; k < count; k++) {
        TRY(indexed_dataset_open(builder->prefixes[k], &data->files[k]));
        data->file_count = k + 1;
    }
    return STATUS_OK;
}

/* Reads the data path. The caller frees the prefixes and the weights. */
static int parse_path(struct builder *builder, int64_t *count) {
    int status = blend_parse(&builder->options->data_path, &builder->prefixes, &builder->weights, count);
    if (!status && *count > MAX_PARTS)
        status =
            status_fail(STATUS_USAGE, "a blend of %lld datasets, expected at most %d", (long long)*count, MAX_PARTS);
    builder->is_blend = !status && (*count > 1 || builder->weights);
    if (!status && builder->weights)
        blend_normalize(builder->weights, *count);
    return status;
}

int gpt_data_open(struct gpt_data *data, const struct gpt_data_options *options) {
    struct builder builder = {.options = options, .data = data};
    int64_t count, first[SPLIT_COUNT], last[SPLIT_COUNT];
    *data = (struct gpt_data){0};
    int status = check_rules(&options->rules);
    THEN(status, split_parse(options->split, 0, first, last));
    THEN(status, parse_path(&builder, &count));
    THEN(status, open_files(&builder, count));
    for (int i = 0; i < SPLIT_COUNT && !status; i++)
        status = build_split(&builder, (enum data_split)i);
    free(builder.prefixes);
    free(builder.weights);
    if (status)
        gpt_data_close(data);
    return status;
}

/* ---- what it takes ---- */

static int measure_split(const struct builder *builder, enum data_split which, int64_t files,
                         struct gpt_data_bytes *bytes) {
    int64_t total = 0;
    for (int64_t k = 0; k < files; k++) {
        struct gpt_dataset_request request;
        struct gpt_dataset part;
        size_t maps = 0;
        TRY(request_of(builder, which, k, &request));
        TRY(gpt_dataset_measure(&part, &request, &maps));
        total += part.length;
        bytes->maps += maps;
    }
    if (builder->is_blend)
        bytes->process += (size_t)blend_length(builder, which, files, total) * (sizeof(int16_t) + sizeof(int64_t));
    return STATUS_OK;
}

int gpt_data_measure(const struct gpt_data *data, const struct gpt_data_options *options,
                     struct gpt_data_bytes *bytes) {
    struct builder builder = {.options = options, .files = data->files};
    int64_t count;
    *bytes = (struct gpt_data_bytes){0};
    int status = parse_path(&builder, &count);
    for (int64_t k = 0; k < data->file_count; k++)
        bytes->process += (size_t)(data->files[k]->sequences + 1) * sizeof *data->files[k]->starts;
    for (int i = 0; i < SPLIT_COUNT && !status; i++)
        if (options->samples[i] != GPT_NOT_WANTED)
            status = measure_split(&builder, (enum data_split)i, data->file_count, bytes);
    free(builder.prefixes);
    free(builder.weights);
    return status;
}

/* ---- its users ---- */

struct gpt_data_users {
    atomic_int left;
};

int gpt_data_share(struct gpt_data *data, int users) {
    data->users = malloc(sizeof *data->users);
    TRY(status_allocated(data->users));
    atomic_init(&data->users->left, users);
    return STATUS_OK;
}

void gpt_data_close(struct gpt_data *data) {
    if (data->users && atomic_fetch_sub(&data->users->left, 1) > 1) {
        *data = (struct gpt_data){0};
        return;
    }
    free(data->users);
    for (int i = 0; i < SPLIT_COUNT; i++) {
        struct gpt_split *split = &data->splits[i];
        for (int64_t k = 0; k < split->part_count; k++)
            gpt_dataset_close(&split->parts[k]);
        free(split->parts);
        free(split->dataset_index);
        free(split->dataset_sample_index);
    }
    for (int64_t k = 0; k < data->file_count; k++)
        indexed_dataset_close(data->files[k]);
    free(data->files);
    *data = (struct gpt_data){0};
}
