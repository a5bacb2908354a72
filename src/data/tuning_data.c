/* Opening: checks the options, reads the files, and sets up pools and their samples. */
#include "tuning-internal.h"

static int check_options(const struct tuning_options *options) {
    int64_t S = options->seq_length, V = options->virtual_tokens, P = options->first_position;
    if (options->train.count == 0 && options->valid.count == 0)
        return status_fail(STATUS_USAGE, "no file of rows is given");
    if (S < 1 || S > INT32_MAX || V < 0 || P < 0)
        return status_fail(STATUS_USAGE, "%lld virtual tokens in a sequence length of %lld cannot be", (long long)V,
                           (long long)S);
    if (V > S || P > S || V + P + (V > 0 ? 1 : 2) > S)
        return status_fail(STATUS_USAGE,
                           "num_virtual_tokens %lld leaves no place for a text in a sequence length of %lld",
                           (long long)(V > 0 ? V : P), (long long)S);
    if (options->vocab_size < 1 || options->vocab_size + options->virtual_tokens > INT32_MAX)
        return status_fail(STATUS_USAGE, "a vocabulary of %lld tokens cannot be", (long long)options->vocab_size);
    if (options->row_multiple < 0 || options->row_multiple > S)
        return status_fail(STATUS_USAGE, "batches of a multiple of %lld rows are not 1 to the sequence length of %lld",
                           (long long)options->row_multiple, (long long)S);
    if (options->samples < 0 || options->epochs < 0 || options->epochs > UINT32_MAX - 1)
        return status_fail(STATUS_USAGE, "%lld samples of %lld epochs cannot be", (long long)options->samples,
                           (long long)options->epochs);
    return STATUS_OK;
}

static int find_ends(struct tuning_data *data, const struct tuning_options *options) {
    struct tuning_format *format = &data->format;
    format->eos = tokenizer_eos_id(options->tokenizer);
    if (format->eos < 0)
        format->eos = options->config_eos;
    format->ends = options->ends;
    format->end_count = (size_t)options->end_count;
    format->form = options->form;
    format->answers = options->answers;
    format->special_tokens = options->special_tokens;
    format->template_timeout = options->template_timeout;
    format->tokenizer = options->tokenizer;
    format->tokenizer_files = options->tokenizer_files;
    if (format->eos < 0 || format->eos >= options->vocab_size)
        return status_fail(STATUS_INVALID,
                           "no end-of-text: expected an eos_token of the tokenizer, a token <|endoftext|>, or "
                           "eos_token_id below %lld in config.json",
                           (long long)options->vocab_size);
    return STATUS_OK;
}

/* Reads a split's files; each file becomes one pool when `weights` is not NULL. */
static int read_files(struct tuning_data *data, const struct tuning_options *options, enum data_split which,
                      const char **paths, const double *weights, int64_t count) {
    struct tuning_split *split = &data->splits[which];
    struct tokenizer_encoder *encoder = NULL;
    split->rows.has_int32 = options->vocab_size > UINT16_MAX + 1;
    split->rows.has_pairs = options->form == TUNING_PAIRS;
    int64_t pool_count = weights ? count : 1;
    split->pools = calloc((size_t)pool_count, sizeof *split->pools);
    split->pool_count = split->pools ? pool_count : 0;
    struct tuning_file_count *files = realloc(data->files, (data->file_count + (size_t)count) * sizeof *files);
    if (files)
        data->files = files;
    TRY(status_allocated(files && split->pools));
    int status = tokenizer_encoder_new(options->tokenizer, &encoder);
    for (int64_t f = 0; f < count && !status; f++) {
        struct tuning_file_count *file = &files[data->file_count];
        struct tuning_pool *pool = &split->pools[weights ? f : 0];
        int64_t before = split->rows.count;
        *file = (struct tuning_file_count){.path = strdup(paths[f]), .split = which};
        if (!file->path) {
            status = status_no_memory();
            break;
        }
        data->file_count++;
        status = tuning_rows_read(&split->rows, options, &data->format, encoder, file);
        if (!status && (weights || f + 1 == count) && split->rows.count == (weights ? before : 0))
            status = status_fail(STATUS_INVALID, "%s: %lld rows, none with an answer within %lld tokens", file->path,
                                 (long long)file->rows, (long long)options->seq_length);
        if (pool->rows == 0)
            pool->first_row = before;
        pool->rows = pool->samples = split->rows.count - pool->first_row;
    }
    tokenizer_encoder_free(encoder);
    if (!status)
        tuning_rows_finish(&split->rows);
    return status;
}

static int set_length(struct tuning_split *split, const struct tuning_options *options, double *weights) {
    int64_t epochs = split->is_shuffled && options->epochs > 0 ? options->epochs : 1;
    split->epoch = 0;
    for (int64_t p = 0; p < split->pool_count; p++)
        split->epoch += split->pools[p].samples;
    if (split->is_shuffled && options->samples > 0)
        split->length = options->samples;
    else if (__builtin_mul_overflow(split->epoch, epochs, &split->length))
        return status_fail(STATUS_USAGE, "%lld epochs of %lld samples are too many", (long long)epochs,
                           (long long)split->epoch);
    if (!weights)
        return STATUS_OK;
    int64_t *drawn = calloc((size_t)split->pool_count, sizeof *drawn);
    split->pool_index = calloc((size_t)split->length, sizeof *split->pool_index);
    split->pool_sample_index = calloc((size_t)split->length, sizeof *split->pool_sample_index);
    if (drawn && split->pool_index && split->pool_sample_index) {
        blend_normalize(weights, split->pool_count);
        blend_fill(weights, split->pool_count, split->length, drawn, split->pool_index, split->pool_sample_index);
    }
    bool is_filled = drawn && split->pool_index && split->pool_sample_index;
    free(drawn);
    return is_filled ? STATUS_OK
                     : status_fail(STATUS_MEMORY, "no memory for an order of %lld samples", (long long)split->length);
}

/* The files of a split, and their weights. */
struct split_files {
    const char **paths;
    double *weights; /* NULL: all rows of all files */
    int64_t count;
};

static int read_split(struct tuning_data *data, const struct tuning_options *options, enum data_split which,
                      struct split_files *files) {
    const struct config_list *words = which == SPLIT_TRAIN ? &options->train : &options->valid;
    struct tuning_split *split = &data->splits[which];
    if (!words->count)
        return STATUS_OK;
    split->seed = (uint64_t)options->seed;
    split->is_shuffled = which == SPLIT_TRAIN;
    int status = blend_parse(words, &files->paths, &files->weights, &files->count);
    if (!status && files->weights && which == SPLIT_VALID)
        status = status_fail(STATUS_USAGE, "validation files have no weights: all of their rows are read");
    return status ? status : read_files(data, options, which, files->paths, files->weights, files->count);
}

/* Sets the length of samples to that of the longest row. */
static void fit_rows(struct tuning_data *data, const struct tuning_options *options) {
    int64_t longest = 1, M = data->row_multiple;
    for (int s = 0; s < SPLIT_COUNT; s++)
        for (int64_t i = 0; i < data->splits[s].rows.count; i++) {
            const struct tuning_rows *rows = &data->splits[s].rows;
            int64_t first = tuning_first_length(rows, i), second = tuning_row_length(rows, i) - first;
            longest = first > longest ? first : longest;
            longest = second > longest ? second : longest;
        }
    int64_t fitting = (longest + options->virtual_tokens + options->first_position + M - 1) / M * M;
    data->seq_length = fitting < options->seq_length ? fitting : options->seq_length;
}

static int order_split(struct tuning_data *data, const struct tuning_options *options, enum data_split which,
                       const struct split_files *files) {
    struct tuning_split *split = &data->splits[which];
    int status = STATUS_OK;
    if (!files->count)
        return STATUS_OK;
    if (options->is_packed)
        status = tuning_split_pack(split, options->virtual_tokens + options->first_position - 1,
                                   tuning_sample_rows(options->form, data->seq_length));
    return status ? status : set_length(split, options, files->weights);
}

/* Reads the files of all splits and sets up their samples. */
static int open_splits(struct tuning_data *data, const struct tuning_options *options) {
    struct split_files files[SPLIT_COUNT] = {0};
    int status = STATUS_OK;
    for (int s = SPLIT_TRAIN; s <= SPLIT_VALID && !status; s++)
        status = read_split(data, options, (enum data_split)s, &files[s]);
    if (!status && options->fits_rows)
        fit_rows(data, options);
    for (int s = SPLIT_TRAIN; s <= SPLIT_VALID && !status; s++)
        status = order_split(data, options, (enum data_split)s, &files[s]);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        free(files[s].paths);
        free(files[s].weights);
    }
    return status;
}

int tuning_data_open(const struct tuning_options *options, struct tuning_data **out) {
    *out = NULL;
    TRY(check_options(options));
    struct tuning_data *data = calloc(1, sizeof *data);
    TRY(status_allocated(data));
    data->row_limit = data->seq_length = options->seq_length;
    data->virtual_tokens = options->virtual_tokens;
    data->first_position = options->first_position;
    data->row_multiple = options->row_multiple > 0 ? options->row_multiple : 1;
    data->has_few_sizes = options->has_few_sizes;
    data->is_packed = options->is_packed;
    data->vocab_size = options->vocab_size;
    int status = chat_template_open_option(options->template, &data->format.named);
    THEN(status, find_ends(data, options));
    THEN(status, open_splits(data, options));
    data->format.tokenizer_files = NULL;
    data->format.tokenizer = NULL;
    data->format.ends = NULL;
    if (status) {
        tuning_data_close(data);
        return status;
    }
    *out = data;
    return STATUS_OK;
}

void tuning_data_close(struct tuning_data *data) {
    if (!data)
        return;
    for (int s = 0; s < SPLIT_COUNT; s++)
        tuning_split_free(&data->splits[s]);
    for (size_t f = 0; f < data->file_count; f++)
        free((char *)data->files[f].path);
    free(data->files);
    chat_template_close(data->format.named);
    chat_template_close(data->format.used);
    free(data);
}

int64_t tuning_data_length(const struct tuning_data *data, enum data_split split) {
    return data->splits[split].length;
}

int64_t tuning_data_epoch(const struct tuning_data *data, enum data_split split) {
    return data->splits[split].epoch;
}

int64_t tuning_data_rows(const struct tuning_data *data, enum data_split split) {
    return data->splits[split].rows.count;
}

int64_t tuning_data_sample(const struct tuning_data *data, enum data_split split, int64_t k, const uint32_t **packed,
                           int64_t *row) {
    const struct tuning_split *of = &data->splits[split];
    return k < of->length ? tuning_split_sample(of, k, packed, row) : 0;
}

size_t tuning_data_bytes(const struct tuning_data *data, int64_t samples) {
    size_t bytes = sizeof *data + data->file_count * sizeof *data->files;
    for (int s = 0; s < SPLIT_COUNT; s++)
        bytes += tuning_split_bytes(&data->splits[s], samples);
    return bytes;
}

int64_t tuning_sample_rows(enum tuning_form form, int64_t seq_length) {
    return seq_length * tuning_texts(form);
}

int64_t tuning_data_seq_length(const struct tuning_data *data) {
    return data->seq_length;
}

int32_t tuning_data_eos(const struct tuning_data *data) {
    return data->format.eos;
}

struct chat_template *tuning_data_template(const struct tuning_data *data) {
    return data->format.used;
}

int tuning_data_row(const struct tuning_data *data, enum data_split split, int64_t row, int32_t **tokens,
                    bool **trained, int64_t *count) {
    const struct tuning_rows *rows = &data->splits[split].rows;
    if (row < 0 || row >= rows->count)
        return status_fail(STATUS_NOT_FOUND, "row %lld is not there: %lld rows are kept, from 0", (long long)row,
                           (long long)rows->count);
    *count = tuning_first_length(rows, row);
    *tokens = malloc((size_t)*count * sizeof **tokens);
    *trained = malloc((size_t)*count * sizeof **trained);
    if (!*tokens || !*trained) {
        free(*tokens);
        free(*trained);
        return status_no_memory();
    }
    for (int64_t i = 0; i < *count; i++) {
        (*tokens)[i] = tuning_row_token(rows, rows->start[row] + i);
        (*trained)[i] = tuning_row_is_trained(rows, rows->start[row] + i);
    }
    return STATUS_OK;
}

double tuning_data_weight(const struct tuning_data *data, enum data_split split, int64_t row) {
    return (double)data->splits[split].rows.weight[row];
}

bool tuning_data_file(const struct tuning_data *data, size_t f, struct tuning_file_count *count) {
    if (f >= data->file_count)
        return false;
    *count = data->files[f];
    return true;
}

void tuning_data_warn(const struct tuning_data *data) {
    for (size_t f = 0; f < data->file_count; f++) {
        const struct tuning_file_count *file = &data->files[f];
        struct strbuf lines = STRBUF_INIT;
        for (int64_t i = 0; i < file->empty && i < TUNING_LINES_SHOWN; i++)
            strbuf_format(&lines, "%s%lld", i > 0 ? ", " : "", (long long)file->empty_lines[i]);
        if (file->empty > 0)
            log_warning("%s: %lld of %lld rows have no answer within %lld tokens%s and are left out: %s%s %s%s",
                        file->path, (long long)file->empty, (long long)file->rows, (long long)data->row_limit,
                        file->weightless > 0 ? ", or the weight 0," : "", file->has_elements ? "row" : "line",
                        file->empty > 1 ? "s" : "", strbuf_text(&lines),
                        file->empty > TUNING_LINES_SHOWN ? ", ..." : "");
        if (file->truncated > 0)
            log_warning("%s: %lld of %lld rows are longer than %lld tokens and are cut", file->path,
                        (long long)file->truncated, (long long)file->rows, (long long)data->row_limit);
        if (file->endless > 0)
            log_warning("%s: in %lld of %lld rows the template writes no end after earlier answers, so only the last "
                        "answer of these rows trains where to stop",
                        file->path, (long long)file->endless, (long long)file->rows);
        strbuf_free(&lines);
    }
}
