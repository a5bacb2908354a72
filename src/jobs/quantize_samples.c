/* Texts become samples of equal lengths. They are joined, with an end after each, and cut into pieces. */
#include "quantize-internal.h"
#include "text_line.h"

#include "data/lines.h"
#include "data/tuning.h"

enum { LEAST_SAMPLES = 10, LEAST_LENGTH = 16, TEXT_LIMIT = 1 << 30 };

static int end_text(const struct pretrained *model, struct token_buffer *ids) {
    int32_t end = model_first_eos(&model->ends);
    return end >= 0 && end < model->config.vocab_size ? token_buffer_add(ids, end) : STATUS_OK;
}

/* Reads a file of plain text as one. */
static int read_plain(const struct quantize_job *job, struct text_reader *reader, struct token_buffer *ids) {
    struct strbuf text = STRBUF_INIT;
    int status = file_read(job->data, TEXT_LIMIT, &text);
    THEN(status, text_reader_text(reader, strbuf_text(&text), text.length, ids));
    strbuf_free(&text);
    return status;
}

/* Reads rows of chats, as they are tuned on. */
static int read_chats(const struct quantize_job *job, const struct pretrained *model, struct token_buffer *ids) {
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_files files = {0};
    struct tuning_data *data = NULL;
    int status = pretrained_read_tokenizer(model->directory, &files);
    THEN(status, tokenizer_open_files(&files, &tokenizer));
    const char *name = job->data;
    THEN(status, tuning_data_open(&(struct tuning_options){.train = {.items = &name, .count = 1},
                                                           .tokenizer = tokenizer,
                                                           .tokenizer_files = &files,
                                                           .config_eos = model_first_eos(&model->ends),
                                                           .vocab_size = model->config.vocab_size,
                                                           .seq_length = INT32_MAX,
                                                           .is_whole_text = true},
                                  &data));
    for (int64_t row = 0; !status; row++) {
        int32_t *tokens;
        bool *trained;
        int64_t count;
        int found = tuning_data_row(data, SPLIT_TRAIN, row, &tokens, &trained, &count);
        if (found == STATUS_NOT_FOUND)
            break; /* the last one is read */
        status = found;
        for (int64_t i = 0; i < count && !status; i++)
            status = token_buffer_add(ids, tokens[i]);
        if (found)
            continue;
        free(tokens);
        free(trained);
    }
    tuning_data_close(data);
    tokenizer_close(tokenizer);
    tokenizer_files_free(&files);
    return status;
}

/* Reads lines with "text" or "tokens". *has_chats: the first line is of another form. */
static int read_lines(const struct quantize_job *job, const struct pretrained *model, struct text_reader *reader,
                      struct token_buffer *ids, bool *has_chats) {
    struct lines *lines = NULL;
    bool is_end = false;
    int status = lines_open(job->data, TEXT_LIMIT, &lines);
    for (int64_t line = 0; !status; line++) {
        json_t *root = NULL;
        status = lines_next_row(lines, &is_end);
        if (status || is_end)
            break;
        const struct strbuf *text = lines_text(lines);
        status = text_reader_line(reader, strbuf_text(text), text->length, ids, &root);
        *has_chats = line == 0 && status == STATUS_INVALID && json_object_get(root, "messages");
        json_decref(root);
        if (*has_chats)
            status = STATUS_OK;
        if (*has_chats || status)
            break;
        status = end_text(model, ids);
    }
    status = status && lines ? lines_wrap(lines, status) : status;
    lines_close(lines);
    return status;
}

/* Draws pieces of the tokens, without two of the same. */
static int draw_samples(const struct quantize_job *job, const struct token_buffer *ids, int64_t positions,
                        struct samples *samples) {
    int64_t tokens = (int64_t)ids->count, length = job->seq_length < positions ? job->seq_length : positions;
    length = tokens / LEAST_SAMPLES < length ? tokens / LEAST_SAMPLES : length;
    if (length < LEAST_LENGTH)
        return status_fail(STATUS_INVALID, "--data %s has %lld tokens: at least %d are needed", job->data,
                           (long long)tokens, LEAST_SAMPLES * LEAST_LENGTH);
    int64_t pieces = tokens / length, count = job->samples < pieces ? job->samples : pieces;
    int64_t *order = malloc((size_t)pieces * sizeof *order);
    samples->tokens = malloc((size_t)(count * length) * sizeof *samples->tokens);
    int status = status_allocated(order && samples->tokens);
    for (int64_t i = 0; i < pieces && !status; i++)
        order[i] = i;
    for (int64_t i = 0; i < count && !status; i++) {
        struct philox draw = philox((uint64_t)job->seed, (uint32_t)i, 0, 0, 0);
        int64_t other = i + (int64_t)(draw.word[0] % (uint32_t)(pieces - i)), piece = order[other];
        order[other] = order[i];
        memcpy(samples->tokens + i * length, ids->ids + piece * length, (size_t)length * sizeof *samples->tokens);
    }
    samples->count = count;
    samples->length = length;
    samples->held_back = count < LEAST_SAMPLES ? 1 : count / 10;
    free(order);
    return status;
}

int samples_read(const struct quantize_job *job, const struct pretrained *model, struct samples *samples) {
    struct text_reader reader = {.tokenizer = model->directory, .vocab = model->config.vocab_size};
    struct token_buffer ids = {0};
    const char *ending = strrchr(job->data, '.');
    bool is_plain = ending && !strcmp(ending, ".txt"), has_chats = false;
    int status = is_plain ? read_plain(job, &reader, &ids) : read_lines(job, model, &reader, &ids, &has_chats);
    THEN_IF(status, has_chats, read_chats(job, model, &ids));
    THEN(status, draw_samples(job, &ids, model_positions(&model->config), samples));
    text_reader_close(&reader);
    token_buffer_free(&ids);
    return status;
}

void samples_free(struct samples *samples) {
    free(samples->tokens);
}
