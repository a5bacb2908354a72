/* A command with an option of every type and a run's sections. */
#pragma once

#include "config/run.h"

#include "base/base.h"
#include "support/test.h"

struct options {
    const char *config, *output;
    bool dry_run, is_loud;
    struct config_list input, words;
    int64_t vocab_size, room;
    int who;
    double share;
    int kind;
    struct run_config run;
};

static const char *const doors[] = {"shut", "key", "open", NULL};
static const char *const kinds[] = {"plain", "packed", NULL};
static const struct config_row rows[] = {
    {.path = "config", .type = CONFIG_STRING, .offset = offsetof(struct options, config), .help = "YAML file"},
    {.path = "output",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, output),
     .help = "where to write",
     .is_path = true,
     .is_required = true},
    {.path = "dry-run", .type = CONFIG_BOOL, .offset = offsetof(struct options, dry_run), .help = "only print"},
    {.path = "loud",
     .type = CONFIG_BOOL,
     .offset = offsetof(struct options, is_loud),
     .default_text = "true",
     .help = "say much"},
    {.path = "input",
     .type = CONFIG_LIST,
     .offset = offsetof(struct options, input),
     .help = "text files",
     .is_path = true},
    {.path = "vocab-size",
     .type = CONFIG_INT,
     .offset = offsetof(struct options, vocab_size),
     .default_text = "8192",
     .minimum = 257,
     .maximum = 1e6,
     .help = "tokens"},
    {.path = "room",
     .type = CONFIG_SIZE,
     .offset = offsetof(struct options, room),
     .default_text = "1536M",
     .minimum = 1024,
     .maximum = 1e15,
     .help = "memory"},
    {.path = "share",
     .type = CONFIG_FLOAT,
     .offset = offsetof(struct options, share),
     .default_text = "0.5",
     .help = "a share"},
    {.path = "kind",
     .type = CONFIG_CHOICE,
     .offset = offsetof(struct options, kind),
     .choices = kinds,
     .default_text = "packed",
     .help = "a kind"},
    {.path = "who",
     .type = CONFIG_CHOICE,
     .offset = offsetof(struct options, who),
     .choices = doors,
     .default_text = "shut",
     .bare_text = "key",
     .help = "may enter"},
};

static inline struct config_command make_command(bool takes_words) {
    return (struct config_command){
        .name = "try",
        .synopsis = "cambium try --output DIR [OPTIONS]",
        .description = "Tries.",
        .examples = "  cambium try --output a",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = run_rows,
        .section_row_count = run_row_count,
        .section_offset = offsetof(struct options, run),
        .config_flag = "config",
        .takes_words = takes_words,
        .words_offset = offsetof(struct options, words),
    };
}

/* Parses the words after `options`, a NULL-terminated list. */
static inline int parse(struct options *options, struct config **config, bool takes_words, const char *const *words) {
    struct config_command command = make_command(takes_words);
    char *argv[32];
    int argc = 0;
    while (words[argc]) {
        argv[argc] = (char *)words[argc];
        argc++;
    }
    bool is_answered;
    memset(options, 0xa5, sizeof *options); /* nothing may stay as it was */
    return config_parse(&command, argc, argv, options, config, &is_answered);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
