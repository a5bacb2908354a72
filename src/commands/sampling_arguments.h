/* Options of commands that draw text from a model: the members of struct sampling (infer/sampler.h). */
#pragma once

#include "config/config.h"
#include "infer/sampler.h"

/* The rows of these options, for a command whose struct has its struct sampling at offset `at`. */
#define TEMPERATURE_ROW(at, default_)                                                                                  \
    ROW_FLOAT("temperature", (at) + offsetof(struct sampling, temperature), default_, 0, 100,                          \
              "0 takes the likeliest token")
#define TOP_P_ROW(at, default_)                                                                                        \
    ROW_FLOAT("top-p", (at) + offsetof(struct sampling, top_p), default_, 0, 1,                                        \
              "draw from the likeliest tokens whose probabilities reach p; 0 takes the likeliest token")
#define TOP_K_ROW(at)                                                                                                  \
    ROW_INT("top-k", (at) + offsetof(struct sampling, top_k), "0", -1, 1e9,                                            \
            "draw from the k likeliest tokens; 0 or -1 is off")
#define REPETITION_PENALTY_ROW(at)                                                                                     \
    ROW_FLOAT("repetition-penalty", (at) + offsetof(struct sampling, repetition_penalty), "1", 0.01, 100,              \
              "divides the logits of tokens that occurred before; 1 is off")
#define SEED_ROW(at, help_) ROW_INT("seed", (at) + offsetof(struct sampling, seed), "0", 0, 9e18, help_)
