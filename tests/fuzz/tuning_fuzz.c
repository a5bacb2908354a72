/* Any bytes as a file of tuning rows (the first byte chooses the options) or, after "{%" or "{{", as a chat template.
 * They are refused with one line of text, or give batches that keep their promises. */
#include "base/base.h"
#include "data/tuning.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEQ_LENGTH = 48, MICRO_BATCH = 3 };
static char directory[] = "/tmp/cambium-fuzz-XXXXXX";
static char path[64];
static struct tokenizer *tokenizer;
static struct gpt_batch batch;

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "tuning_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void finish(void) {
    file_remove_tree(directory);
    tokenizer_close(tokenizer);
    gpt_batch_free(&batch);
}

static void start(void) {
    check(mkdtemp(directory), "no directory");
    atexit(finish);
    snprintf(path, sizeof path, "%s/rows.jsonl", directory);
    check(!tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer), "no tokenizer");
    check(!gpt_batch_init(&batch, MICRO_BATCH, SEQ_LENGTH), "no batch");
}

/* Segments cover the rows, labels are the next tokens, and the number of labels that count is *trained more. */
static void check_batch(const struct tuning_options *options, int64_t *trained) {
    int64_t multiple = options->row_multiple > 0 ? options->row_multiple : 1;
    check(batch.rows > 0 && batch.rows <= MICRO_BATCH * SEQ_LENGTH && batch.rows % multiple == 0, "number of rows");
    check(batch.segment_start[0] == 0 && batch.segment_start[batch.segments] == batch.rows, "segments");
    for (int64_t s = 0; s < batch.segments; s++) {
        check(batch.segment_start[s] < batch.segment_start[s + 1], "an empty segment");
        for (int64_t i = batch.segment_start[s]; i < batch.segment_start[s + 1]; i++) {
            bool is_last = i + 1 == batch.segment_start[s + 1];
            int32_t label = batch.labels[i];
            check(batch.tokens[i] >= 0 && batch.tokens[i] < options->vocab_size + options->virtual_tokens, "a token");
            check(label >= 0 && label < options->vocab_size, "a label");
            check(batch.loss_mask[i] == 0 || is_last || label == batch.tokens[i + 1], "a label of another token");
            check(batch.positions[i] >= options->first_position && batch.positions[i] < SEQ_LENGTH, "a position");
            check(batch.token[i] < SEQ_LENGTH, "a place");
            *trained += batch.loss_mask[i] != 0;
        }
    }
}

static void check_rows(const struct tuning_options *options) {
    struct tuning_data *data = NULL;
    struct tuning_file_count count;
    int64_t trained = 0;
    status_fail(STATUS_OK, "%s", "");
    if (tuning_data_open(options, &data)) {
        check(!data && *status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
        return;
    }
    check(tuning_data_file(data, 0, &count), "no count");
    int64_t length = tuning_data_length(data, SPLIT_TRAIN);
    check(length == tuning_data_epoch(data, SPLIT_TRAIN), "another length");
    check(options->is_packed ? length <= count.rows - count.empty : length == count.rows - count.empty,
          "rows are lost");
    for (int64_t k = 0; k < length; k += MICRO_BATCH) {
        check(!tuning_batch_read(&batch, data, SPLIT_TRAIN, k), "not read");
        check_batch(options, &trained);
    }
    check(trained == count.trained && trained > 0, "labels are lost");
    tuning_data_close(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!tokenizer)
        start();
    if (size >= 2 && data[0] == '{' && (data[1] == '{' || data[1] == '%')) {
        struct chat_template *template;
        if (!chat_template_open((const char *)data, size, "fuzz", &template))
            chat_template_close(template);
        return 0;
    }
    uint8_t choice = size > 0 ? data[0] : 0;
    const char *paths[] = {path};
    struct tuning_options options = {
        .train = {paths, 1},
        .tokenizer = tokenizer,
        .template = choice % 4 ? chat_template_names[choice % 4 - 1] : NULL,
        .answers = choice & 8 ? CHAT_ANSWERS_LAST : CHAT_ANSWERS_ALL,
        .config_eos = -1,
        .vocab_size = 900,
        .seq_length = SEQ_LENGTH,
        .virtual_tokens = choice & 4 ? 5 : 0,
        .first_position = choice & 8 ? 7 : 0,
        .row_multiple = choice & 16 ? 8 : 0,
        .has_few_sizes = choice & 2,
        .truncation = choice & 32 ? TUNING_TRUNCATE_LEFT : TUNING_TRUNCATE_RIGHT,
        .is_whole_text = choice & 64,
        .is_packed = choice & 128,
        .seed = choice,
    };
    FILE *file = fopen(path, "wb");
    check(file && fwrite(data + (size > 0), 1, size - (size > 0), file) == size - (size > 0) && fclose(file) == 0,
          "no file");
    check_rows(&options);
    return 0;
}
