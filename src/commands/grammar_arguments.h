/* Options of commands whose requests may have constraints. */
#pragma once

#include "base/memory.h"
#include "config/config.h"
#include "infer/grammars.h"

/* The rows of a struct grammars_options at offset `at`. `of` is put before each help text. */
#define GRAMMAR_ROWS(at, of)                                                                                           \
    ROW_FLOAT("grammar-timeout", (at) + offsetof(struct grammars_options, seconds), "2", 1e-3, 1e6,                    \
              of "seconds that compiling a constraint may take; more is an error"),                                    \
        ROW_SIZE("grammar-memory", (at) + offsetof(struct grammars_options, memory), "256M", 1 << 20, 1e15,            \
                 of                                                                                                    \
                 "memory for compiled constraints and their caches; unused ones make room for others. The default is " \
                 "less where a sixteenth of the free memory is less"),                                                 \
        ROW_INT("grammar-threads", (at) + offsetof(struct grammars_options, threads), "0", 0, 1024,                    \
                of "threads that compile constraints, and as many that follow them; 0: half of the cores, at least 1")

/* Lowers the memory that was not given where the host, or its control group, has little. */
static inline void grammar_choose_memory(struct grammars_options *options, const struct config *config) {
    int64_t least = 1 << 20, share = (int64_t)(memory_limit_find("").available / 16);
    if (!config_is_given(config, "grammar-memory") && share < options->memory)
        options->memory = share > least ? share : least;
}
