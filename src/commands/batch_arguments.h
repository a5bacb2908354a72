/* Options of commands that run many completions at once: the size of a batch, and the engine's options that follow from
 * it. */
#ifndef CAMBIUM_COMMANDS_BATCH_ARGUMENTS_H
#define CAMBIUM_COMMANDS_BATCH_ARGUMENTS_H

#include "config/config.h"
#include "infer/engine.h"

struct batch_arguments {
    int64_t max_size, max_tokens; /* completions at once; rows of a step */
    int64_t kv_cache_memory;      /* bytes on each rank; 0: not given */
    double prefill_stretch;
    int prefix_cache; /* index into batch_on_off */
};

static const char *const batch_on_off[] = {"on", "off", NULL};

/* The rows of these options, for a command whose struct has its batch_arguments at offset `at`. `of` is put before each
 * help text. */
#define BATCH_ROWS(at, of, cache_default, cache_help)                                                                  \
    {.path = "max-batch-size",                                                                                         \
     .type = CONFIG_INT,                                                                                               \
     .offset = (at) + offsetof(struct batch_arguments, max_size),                                                      \
     .default_text = "64",                                                                                             \
     .minimum = 1,                                                                                                     \
     .maximum = 65536,                                                                                                 \
     .help = of "completions that run at once"},                                                                       \
        {.path = "max-batch-tokens",                                                                                   \
         .type = CONFIG_INT,                                                                                           \
         .offset = (at) + offsetof(struct batch_arguments, max_tokens),                                                \
         .default_text = "512",                                                                                        \
         .minimum = 1,                                                                                                 \
         .maximum = 1 << 20,                                                                                           \
         .help = of "rows of a step, for prompts and completions together"},                                           \
        {.path = "prefill-stretch",                                                                                    \
         .type = CONFIG_FLOAT,                                                                                         \
         .offset = (at) + offsetof(struct batch_arguments, prefill_stretch),                                           \
         .default_text = "2.5",                                                                                        \
         .minimum = 1,                                                                                                 \
         .maximum = 1e6,                                                                                               \
         .help = of "factor by which prompts may lengthen a step while completions run"},                              \
        {.path = "kv-cache-memory",                                                                                    \
         .type = CONFIG_SIZE,                                                                                          \
         .offset = (at) + offsetof(struct batch_arguments, kv_cache_memory),                                           \
         .default_text = cache_default,                                                                                \
         .minimum = 1,                                                                                                 \
         .maximum = 1e15,                                                                                              \
         .help = of cache_help},                                                                                       \
    {                                                                                                                  \
        .path = "prefix-cache", .type = CONFIG_CHOICE,                                                                 \
        .offset = (at) + offsetof(struct batch_arguments, prefix_cache), .default_text = "on",                         \
        .choices = batch_on_off, .help = of "compute a common beginning of prompts once"                               \
    }

/* Checks the options in combination. STATUS_USAGE. */
static inline int batch_check(const struct batch_arguments *batch) {
    return batch->max_tokens >= batch->max_size
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "--max-batch-tokens %lld is less than --max-batch-size %lld",
                             (long long)batch->max_tokens, (long long)batch->max_size);
}

/* Returns the engine's options. Rows with logits are those that draw and those of prompts with log-probabilities. */
static inline struct engine_options batch_engine_options(const struct batch_arguments *batch, size_t adapter_memory) {
    enum { SCORED_ROWS = 256 };
    int64_t scored = batch->max_tokens < SCORED_ROWS ? batch->max_tokens : SCORED_ROWS;
    return (struct engine_options){.max_rows = batch->max_tokens,
                                   .max_logit_rows = batch->max_size > scored ? batch->max_size : scored,
                                   .max_sequences = batch->max_size,
                                   .cache_bytes = (size_t)batch->kv_cache_memory,
                                   .has_no_prefix_cache = batch->prefix_cache == 1,
                                   .adapter_memory = adapter_memory};
}

#endif
