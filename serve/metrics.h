/* What the server counts, as /metrics tells it: vLLM's names and buckets, so that its dashboards work, and ours.
 *
 * The driver counts texts, prompts and steps as news of them arrives, with the times of the engine; the router counts
 * what it turns away. Everything is the loop's thread. A metrics of NULL counts nothing. Each text (a choice of a
 * prompt) is a request in the histograms; a prompt's own tokens count once, whatever its choices. Nothing is allocated
 * behind metrics_new but for an adapter's first request. */
#ifndef CAMBIUM_SERVE_METRICS_H
#define CAMBIUM_SERVE_METRICS_H

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct metrics;
struct strbuf;

struct metrics_options {
    const char *model_name;  /* that answers report */
    const char *cache_dtype; /* "fp32", "bf16" */
    int64_t max_model_len, page_tokens, pages;
    int64_t max_adapters; /* that one step can mix */
    bool has_prefix_cache;
    int ranks;
};
/* All ranks are up. STATUS_MEMORY. */
int metrics_new(const struct metrics_options *options, struct metrics **metrics);
void metrics_free(struct metrics *metrics);

/* ---- texts: the driver ---- */

/* A prompt and its texts are the driver's: it zeroes them, sets what is said, and calls in this order. Times are of the
 * monotonic clock. */
struct metrics_prompt {
    double arrived;           /* when the call was submitted; the driver sets it, and the token counts */
    double started;           /* when it was first taken up */
    int64_t tokens, cached;   /* of its text, without virtual ones; of them, those whose pages were there */
    bool has_looked_in_cache; /* it may read the prefix cache */
};
struct metrics_text {
    double first, last; /* when its first and its latest token came */
    int64_t tokens;     /* drawn so far */
};
/* Its first text is taken up: tokens, cached and has_looked_in_cache are set. */
void metrics_started(struct metrics *metrics, struct metrics_prompt *prompt, double time);
/* A token was drawn, an end id too. */
void metrics_token(struct metrics *metrics, const struct metrics_prompt *prompt, struct metrics_text *text,
                   double time);
/* A text is over; `prompt` may never have been started. Latencies are those of texts that ended by themselves. */
enum metrics_end { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_END_COUNT };
void metrics_ended(struct metrics *metrics, const struct metrics_prompt *prompt, const struct metrics_text *text,
                   enum metrics_end how, double time);
/* Steps of the engine, which its thread counts in an object of its own until the loop adds it to the rest; zeroed, it
 * is empty. `tokens`: prompt rows that the step ran and tokens that it drew, together. */
enum { METRICS_STEP_BUCKETS = 14 };
struct metrics_steps {
    uint64_t counts[METRICS_STEP_BUCKETS], tokens;
};
void metrics_count_step(struct metrics_steps *steps, int64_t tokens);
void metrics_add_steps(struct metrics *metrics, const struct metrics_steps *steps);

/* The engine's state, as it was last told. */
struct metrics_engine {
    int64_t running, waiting; /* texts */
    int64_t deferred;         /* of the waiting texts: those that wait for their adapters, not for room */
    int64_t pages_held;       /* by sequences; cached pages and idle stems are free */
    int64_t preemptions;      /* since the opening */
    int64_t adapter_bytes;    /* of images on a rank */
};
void metrics_tell_engine(struct metrics *metrics, const struct metrics_engine *engine);
/* Spans of requests that a collector has taken, and those that were dropped, since the opening. */
void metrics_tell_spans(struct metrics *metrics, uint64_t sent, uint64_t dropped);
/* The loop's turns until now (loop_turns.h). */
struct loop_turns;
void metrics_tell_loop(struct metrics *metrics, const struct loop_turns *turns);
void metrics_tell_rank(struct metrics *metrics, int rank, bool is_up);

/* ---- requests: driver, registry and router ---- */

/* A request was accepted that names the adapter; `method` as the registry has it, "lora" or "lora,ia3". */
void metrics_adapter_request(struct metrics *metrics, const char *adapter, const char *method);
/* The name is unknown and no request has it any more. The counters of the METRICS_MAX_GONE names that went last stay,
 * so that a scrape still finds them; those of older ones leave the text and the memory. */
void metrics_adapter_gone(struct metrics *metrics, const char *adapter);
enum { METRICS_MAX_GONE = 64 };
/* A load or a replacement is done: ERROR_NONE, or why not. */
void metrics_adapter_load(struct metrics *metrics, enum error_case result);
/* A request was answered with an error before anything of it ran. */
void metrics_rejected(struct metrics *metrics, enum error_case why);
/* The queue was full, of texts or else of tokens; beside metrics_rejected. */
void metrics_queue_full(struct metrics *metrics, bool is_of_tokens);
/* A request that was accepted ended before its time: ERROR_CANCELLED where the client left. */
void metrics_cancelled(struct metrics *metrics, enum error_case why);

/* ---- text ---- */

/* Adapters now. */
struct metrics_adapters {
    const char *running, *waiting; /* with texts that do, with commas between */
    const struct metrics_loaded {
        const char *name;
        bool is_pinned;
    } * loaded; /* [loaded_count] whose images are in memory */
    size_t loaded_count;
};
/* Appends the text of /metrics, format 0.0.4. `now`: seconds of the epoch. */
void metrics_add_text(const struct metrics *metrics, const struct metrics_adapters *adapters, double now,
                      struct strbuf *out);

#endif
