/* Options of commands that run many completions at once: the size of a batch, and the engine's options that follow from
 * it. */
#pragma once

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
    ROW_INT("max-batch-size", (at) + offsetof(struct batch_arguments, max_size), "64", 1, 65536,                       \
            of "completions that run at once"),                                                                        \
        ROW_INT("max-batch-tokens", (at) + offsetof(struct batch_arguments, max_tokens), "512", 1, 1 << 20,            \
                of "rows of a step, for prompts and completions together"),                                            \
        ROW_FLOAT("prefill-stretch", (at) + offsetof(struct batch_arguments, prefill_stretch), "2.5", 1, 1e6,          \
                  of "factor by which prompts may lengthen a step while completions run"),                             \
        ROW_SIZE("kv-cache-memory", (at) + offsetof(struct batch_arguments, kv_cache_memory), cache_default, 1, 1e15,  \
                 of cache_help),                                                                                       \
        ROW_CHOICE("prefix-cache", (at) + offsetof(struct batch_arguments, prefix_cache), "on", batch_on_off,          \
                   of "compute a common beginning of prompts once")

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
