/* cambium tokenizer train: learns a byte-level BPE vocabulary. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"
#include "text/text.h"

struct options {
    struct config_list input;
    const char *output;
    int64_t vocab_size, min_frequency, workers;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    ROW_PATHS("input", AT(input), "FILE...", "text files to learn from, uncompressed or gzip (names in .gz)",
              .is_required = true),
    ROW_INT("vocab-size", AT(vocab_size), NULL, 257, 1 << 24,
            "number of tokens: 256 bytes, the merges, and <|endoftext|> as the last token", .is_required = true),
    ROW_PATH("output", AT(output), "DIR",
             "directory for tokenizer.json, vocab.json, merges.txt and tokenizer_config.json", .is_required = true),
    ROW_INT("min-frequency", AT(min_frequency), "1", 1, 1000000000,
            "number of times that a pair must occur to become a token"),
    ROW_INT("workers", AT(workers), "0", 0, 256,
            "threads that count words; 0: one for each processor. The result does not depend on it"),
};

static const struct config_command train_command = {
    .name = "tokenizer train",
    .synopsis = "cambium tokenizer train --input FILE... --vocab-size N --output DIR",
    .description = "Learns a byte-level BPE tokenizer with the word rules of GPT-2 from text files, each as one text. "
                   "Hugging Face transformers and tokenizers open the directory and give equal ids. A text too small "
                   "for N tokens gives fewer, with a warning.",
    .examples = "  cambium tokenizer train --input corpus.txt --vocab-size 8192 --output tokenizer\n"
                "  cambium tokenizer train --input a.txt b.txt.gz --vocab-size 50257 --output tokenizer\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static int train(const void *values, const struct config *given) {
    const struct options *options = values;
    if (file_exists(options->output) && !file_is_directory(options->output))
        return status_fail(STATUS_INVALID, "--output %s already exists, and is not a directory", options->output);
    struct tokenizer *tokenizer = NULL;
    double start = clock_seconds();
    int status = tokenizer_check_output(options->output);
    if (status)
        return status_wrap(status, "--output");
    status = tokenizer_train(
        &(struct tokenizer_training){
            .inputs = options->input.items,
            .input_count = options->input.count,
            .vocab_size = options->vocab_size,
            .min_frequency = options->min_frequency,
            .threads = (int)options->workers,
        },
        &tokenizer);
    THEN(status, tokenizer_save(tokenizer, options->output));
    if (!status) {
        int32_t size = tokenizer_vocab_size(tokenizer);
        if (size < options->vocab_size)
            log_warning("the text has no more than %d tokens to learn, fewer than the %lld asked for", size,
                        (long long)options->vocab_size);
        log_info("%s: %d tokens, learned in %.1f s", options->output, size, clock_seconds() - start);
    }
    tokenizer_close(tokenizer);
    return status;
}

int command_tokenizer(int argc, char **argv) {
    if (argc == 0)
        return command_exit_status(
            status_fail(STATUS_USAGE, "'cambium tokenizer' lacks its word: %s", train_command.synopsis));
    bool is_train = !strcmp(argv[0], "train");
    if (!is_train && argv[0][0] != '-')
        return command_exit_status(status_fail(
            STATUS_USAGE, "unknown command 'tokenizer %s' (did you mean 'cambium tokenizer train'?)", argv[0]));
    return command_run(&train_command, argc - is_train, argv + is_train, &(struct options){0}, train);
}
