/* A command that takes a run's configuration and nothing else, and what is read, resolved and dumped with it. */
#pragma once

#include "config/run.h"

#include "base/base.h"
#include "support/test.h"

static const struct config_row file_row[] = {
    {.path = "config", .type = CONFIG_STRING, .offset = sizeof(struct run_config), .help = "YAML file"},
};

struct options {
    struct run_config run;
    const char *config;
};

static inline struct config_command make_command(void) {
    return (struct config_command){.name = "try",
                                   .synopsis = "cambium try",
                                   .rows = file_row,
                                   .row_count = 1,
                                   .section_rows = run_rows,
                                   .section_row_count = run_row_count,
                                   .config_flag = "config"};
}

static char *directory;

static inline int read_bytes(struct options *options, struct config **config, const char *text, size_t length) {
    char path[256];
    snprintf(path, sizeof path, "%s/run.yaml", directory);
    test_ok(file_write_atomic(path, text, length));
    struct config_command command = make_command();
    char *argv[] = {"--config", path};
    bool is_answered;
    *options = (struct options){0};
    return config_parse(&command, 2, argv, options, config, &is_answered);
}

static inline int read_text(struct options *options, struct config **config, const char *text) {
    return read_bytes(options, config, text, strlen(text));
}

#define SMALL                                                                                                          \
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 500}\n"                               \
    "data: {seq_length: 32, data_path: a}\ntrain: {train_iters: 10}\noptim: {lr: 1e-3}\n"

/* Reads SMALL with `lines` over it, and resolves. */
static inline int resolve(struct options *options, const char *flags) {
    char path[256], copy[1024], *argv[32] = {"--config", path};
    *options = (struct options){0};
    snprintf(path, sizeof path, "%s/run.yaml", directory);
    test_ok(file_write_atomic(path, SMALL, strlen(SMALL)));
    snprintf(copy, sizeof copy, "%s", flags);
    int argc = 2;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    struct config_command command = make_command();
    struct config *config;
    bool is_answered;
    int status = config_parse(&command, argc, argv, options, &config, &is_answered);
    if (!status)
        status = run_config_resolve(&options->run);
    config_free(config);
    return status;
}

static inline void cannot_be(const char *flags, const char *part) {
    struct options options;
    test_fails(resolve(&options, flags), STATUS_USAGE, part);
}

static inline char *dump(const struct options *options) {
    struct config_command command = make_command();
    char *text = NULL, *copy;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    config_dump(&command, options, out);
    fclose(out);
    copy = strdup(text); /* GCC takes `text` for a pointer to itself */
    free(text);
    return copy;
}

static inline int open_directory(void **state) {
    (void)state;
    directory = test_directory();
    return 0;
}

static inline int forget_directory(void **state) {
    (void)state;
    free(directory);
    return 0;
}
