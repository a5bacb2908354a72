/* The options of every command that runs a trained model. */
#ifndef CAMBIUM_COMMANDS_MODEL_ARGUMENTS_H
#define CAMBIUM_COMMANDS_MODEL_ARGUMENTS_H

#include "config/config.h"

#include <stddef.h>

struct model_arguments {
    const char *model, *tokenizer; /* tokenizer NULL: the model's own */
    int64_t threads;               /* 0: all cores */
    int precision;                 /* of model_precisions; -1 of it is engine_options.precision */
};

static const char *const model_precisions[] = {"auto", "fp32", "bf16", NULL};

/* Rows of a command whose struct has its model_arguments at `at`. */
#define MODEL_ROW(at)                                                                                                  \
    {                                                                                                                  \
        .path = "model", .type = CONFIG_STRING, .offset = (at) + offsetof(struct model_arguments, model),              \
        .metavar = "DIR", .is_path = true, .is_required = true,                                                        \
        .help = "model directory, or a directory of checkpoints (the newest is taken)"                                 \
    }
#define MODEL_TOKENIZER_ROW(at)                                                                                        \
    {                                                                                                                  \
        .path = "tokenizer", .type = CONFIG_STRING, .offset = (at) + offsetof(struct model_arguments, tokenizer),      \
        .metavar = "DIR", .is_path = true, .help = "tokenizer, when it is not in the model directory"                  \
    }
#define MODEL_PRECISION_ROW(at)                                                                                        \
    {                                                                                                                  \
        .path = "precision", .type = CONFIG_CHOICE, .offset = (at) + offsetof(struct model_arguments, precision),      \
        .default_text = "auto", .choices = model_precisions, .help = "to compute in; auto is the files' type"          \
    }
#define MODEL_THREADS_ROW(at)                                                                                          \
    {                                                                                                                  \
        .path = "threads", .type = CONFIG_INT, .offset = (at) + offsetof(struct model_arguments, threads),             \
        .default_text = "0", .minimum = 0, .maximum = 4096, .help = "to compute with; 0 is all cores"                  \
    }

#endif
