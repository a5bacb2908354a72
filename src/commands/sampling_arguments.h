/* Options of commands that draw text from a model: the members of struct sampling (infer/sampler.h). */
#ifndef CAMBIUM_COMMANDS_SAMPLING_ARGUMENTS_H
#define CAMBIUM_COMMANDS_SAMPLING_ARGUMENTS_H

#include "config/config.h"
#include "infer/sampler.h"

#include <stddef.h>

/* The rows of these options, for a command whose struct has its struct sampling at offset `at`. */
#define TEMPERATURE_ROW(at, default_)                                                                                  \
    {                                                                                                                  \
        .path = "temperature", .type = CONFIG_FLOAT, .offset = (at) + offsetof(struct sampling, temperature),          \
        .default_text = default_, .minimum = 0, .maximum = 100, .help = "0 takes the likeliest token"                  \
    }
#define TOP_P_ROW(at, default_)                                                                                        \
    {                                                                                                                  \
        .path = "top-p", .type = CONFIG_FLOAT, .offset = (at) + offsetof(struct sampling, top_p),                      \
        .default_text = default_, .minimum = 0, .maximum = 1,                                                          \
        .help = "draw from the likeliest tokens whose probabilities reach p; 0 takes the likeliest token"              \
    }
#define TOP_K_ROW(at)                                                                                                  \
    {                                                                                                                  \
        .path = "top-k", .type = CONFIG_INT, .offset = (at) + offsetof(struct sampling, top_k), .default_text = "0",   \
        .minimum = -1, .maximum = 1e9, .help = "draw from the k likeliest tokens; 0 or -1 is off"                      \
    }
#define REPETITION_PENALTY_ROW(at)                                                                                     \
    {                                                                                                                  \
        .path = "repetition-penalty", .type = CONFIG_FLOAT,                                                            \
        .offset = (at) + offsetof(struct sampling, repetition_penalty), .default_text = "1", .minimum = 0.01,          \
        .maximum = 100, .help = "divides the logits of tokens that occurred before; 1 is off"                          \
    }
#define SEED_ROW(at, help_)                                                                                            \
    {                                                                                                                  \
        .path = "seed", .type = CONFIG_INT, .offset = (at) + offsetof(struct sampling, seed), .default_text = "0",     \
        .minimum = 0, .maximum = 9e18, .help = help_                                                                   \
    }

#endif
