/* The counters of metrics.c, as metrics_text.c writes them. */
#pragma once

#include "metrics.h"

enum { METRICS_BUCKETS = 32 };

struct metrics_histogram {
    double bounds[METRICS_BUCKETS];       /* [bound_count] upper ends, ascending */
    uint64_t counts[METRICS_BUCKETS + 1]; /* of each bucket by itself; the last: above all bounds */
    int bound_count;
    double sum;
};

enum metrics_histogram_kind {
    METRICS_FIRST_TOKEN,
    METRICS_BETWEEN_TOKENS,
    METRICS_PER_TOKEN,
    METRICS_WHOLE,
    METRICS_QUEUE,
    METRICS_PREFILL,
    METRICS_DECODE,
    METRICS_INFERENCE,
    METRICS_PROMPT_TOKENS,
    METRICS_GENERATION_TOKENS,
    METRICS_COMPUTED_TOKENS,
    METRICS_ITERATION,
    METRICS_LOOP_TURN,
    METRICS_CONSTRAINT_COMPILE,
    METRICS_CONSTRAINT_MASK,
    METRICS_HISTOGRAM_COUNT
};

struct metrics_adapter {
    char *name, *method;
    uint64_t requests;
    uint64_t gone; /* order in which names were unloaded; 0: still loaded */
};
enum { METRICS_MAX_ADAPTERS = 4096 };

struct metrics {
    char *model_name, *cache_dtype;
    int64_t page_tokens, pages, max_adapters;
    bool has_prefix_cache;
    bool *rank_is_up; /* [ranks] */
    int ranks;
    struct metrics_engine engine;
    double longest_turn; /* of the loop, seconds */
    struct metrics_histogram histograms[METRICS_HISTOGRAM_COUNT];
    uint64_t prompt_tokens, cached_tokens, generation_tokens, cache_queries;
    uint64_t ended[METRICS_END_COUNT];
    uint64_t queue_full[2]; /* of texts, of tokens */
    uint64_t rejected[ERROR_COUNT], cancelled[ERROR_COUNT], loads[ERROR_COUNT];
    struct metrics_adapter *adapters; /* [adapter_count] */
    size_t adapter_count;
    uint64_t spans_sent, spans_dropped;
    uint64_t constraint_hits, constraint_misses, late_masks, constraint_bytes;
    uint64_t last_gone;
    uint64_t other_requests; /* of adapters beyond METRICS_MAX_ADAPTERS */
};
