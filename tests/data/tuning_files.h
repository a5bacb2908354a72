/* Tokenizers, files and a way to show batches, for the tests of tuning rows.
 *
 * The tokenizer knows the 256 bytes, <|endoftext|> and, on request, chatml's two marks. It merges nothing, so batches
 * can be read as text. A row is shown as its tokens. "[...]" encloses trained tokens, and "{...}" those of an answer
 * that is not preferred. "~" is a virtual token, "$" the end-of-text, "<" and ">" are chatml's marks; " | " separates
 * segments. */
#pragma once

#include "data/tuning.h"
#include "text/text.h"

#include "support/test.h"

#include <unistd.h>

enum { VOCAB = 300 };
static char *directory;
static struct tokenizer *bytes; /* 257 ids */
static struct tokenizer *marks; /* 259 ids, in DIRECTORY/marks */

static inline char *path_of(const char *name) {
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", directory, name) > 0);
    return path;
}

static inline char *write_file(const char *name, const char *text) {
    char *path = path_of(name);
    FILE *file = fopen(path, "wb");
    assert_true(file && fwrite(text, 1, strlen(text), file) == strlen(text) && fclose(file) == 0);
    return path;
}

static inline void write_into(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    free(write_file(path, text));
}

static inline int make_tokenizers(void **state) {
    (void)state;
    directory = test_directory();
    char *corpus = write_file("corpus.txt", "abcd");
    const char *inputs[] = {corpus};
    struct tokenizer_training training = {.inputs = inputs, .input_count = 1, .vocab_size = 257, .threads = 1};
    test_ok(tokenizer_train(&training, &bytes));
    assert_int_equal(tokenizer_vocab_size(bytes), 257);
    char *folder = path_of("marks");
    test_ok(tokenizer_save(bytes, folder));
    char *json = path_of("marks/tokenizer.json");
    assert_int_equal(unlink(json), 0);
    write_into("marks", "added_tokens.json", "{\"<|im_start|>\": 257, \"<|im_end|>\": 258}");
    write_into("marks", "tokenizer_config.json",
               "{\"eos_token\": \"<|endoftext|>\", \"added_tokens_decoder\": {\"257\": {\"content\": \"<|im_start|>\", "
               "\"special\": true}, \"258\": {\"content\": \"<|im_end|>\", \"special\": true}}}");
    test_ok(tokenizer_open(folder, &marks));
    assert_int_equal(tokenizer_find(marks, "<|im_end|>", 10), 258);
    free(corpus);
    free(folder);
    free(json);
    return 0;
}

static inline int free_tokenizers(void **state) {
    (void)state;
    tokenizer_close(bytes);
    tokenizer_close(marks);
    free(directory);
    return 0;
}

static inline struct tuning_options options_of(const char **paths, size_t count) {
    return (struct tuning_options){
        .train = {paths, count}, .tokenizer = bytes, .config_eos = -1, .vocab_size = VOCAB, .seq_length = 1000};
}

static inline void show_token(struct strbuf *out, int32_t id) {
    size_t length;
    const unsigned char *text = id < 256 ? tokenizer_token_bytes(bytes, id, &length) : NULL;
    if (id >= VOCAB)
        strbuf_add_char(out, '~');
    else
        strbuf_add_char(out, text ? (char)*text : id == 256 ? '$' : id == 257 ? '<' : '>');
}

/* Checks what all batches keep, and shows segments [first, last). */
static inline char *show_segments(const struct gpt_batch *batch, int64_t first, int64_t last) {
    struct strbuf out = STRBUF_INIT;
    assert_int_equal(batch->segment_start[0], 0);
    assert_int_equal(batch->segment_start[batch->segments], batch->rows);
    for (int64_t s = first; s < last; s++) {
        int64_t begin = batch->segment_start[s], end = batch->segment_start[s + 1];
        bool is_open = false;
        char close = ']';
        assert_true(begin < end);
        if (s > first)
            strbuf_add_text(&out, " | ");
        show_token(&out, batch->tokens[begin]);
        for (int64_t i = begin; i < end; i++) {
            bool is_trained = batch->loss_mask[i] != 0, is_virtual = i + 1 < end && batch->tokens[i + 1] >= VOCAB;
            assert_true(batch->loss_mask[i] == 0 || batch->loss_mask[i] == 1 || batch->loss_mask[i] == -1);
            bool is_preferred = batch->loss_mask[i] > 0;
            assert_in_range(batch->labels[i], 0, VOCAB - 1);
            if (is_virtual) {
                assert_false(is_trained);
                assert_int_equal(batch->labels[i], 0);
                assert_int_equal(batch->tokens[i + 1], batch->tokens[i] + 1);
            } else if (i + 1 < end) {
                assert_int_equal(batch->labels[i], batch->tokens[i + 1]);
            }
            assert_int_equal(batch->positions[i], batch->positions[begin] + (int32_t)(i - begin));
            if (is_trained != is_open)
                strbuf_add_char(&out, !is_trained ? close : is_preferred ? '[' : '{');
            is_open = is_trained;
            close = is_preferred ? ']' : '}';
            show_token(&out, is_virtual ? batch->tokens[i + 1] : batch->labels[i]);
        }
        if (is_open)
            strbuf_add_char(&out, close);
    }
    test_ok(strbuf_status(&out));
    return out.data;
}

/* Sample k of the validation or training split. */
static inline char *show_sample(const struct tuning_data *data, enum data_split split, int64_t k, int64_t seq_length) {
    struct gpt_batch batch;
    test_ok(gpt_batch_init(&batch, 1, seq_length));
    test_ok(tuning_batch_read(&batch, data, split, k));
    char *text = show_segments(&batch, 0, batch.segments);
    for (int64_t i = 0; i < batch.rows; i++) {
        assert_int_equal(batch.sample[i], k);
        assert_int_equal(batch.token[i], i);
    }
    gpt_batch_free(&batch);
    return text;
}

/* Validation rows come in order: the file's rows, one after the other. */
static inline void check_rows(const char *text, struct tuning_options options, const char *const *expected) {
    char *path = write_file("rows.jsonl", text);
    const char *paths[] = {path};
    struct tuning_data *data;
    options.train = options.valid = (struct config_list){paths, 1};
    test_ok(tuning_data_open(&options, &data));
    int64_t count = 0;
    while (expected[count])
        count++;
    assert_int_equal(tuning_data_length(data, SPLIT_VALID), count);
    for (int64_t k = 0; k < count; k++) {
        char *shown = show_sample(data, SPLIT_VALID, k, options.seq_length);
        assert_string_equal(shown, expected[k]);
        free(shown);
    }
    tuning_data_close(data);
    free(path);
}

#define ROWS(...) ((const char *const[]){__VA_ARGS__, NULL})
