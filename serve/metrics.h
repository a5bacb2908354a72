/* The server's metrics, as /metrics shows them: vLLM's names and buckets, so that its dashboards work, and some of
 * cambium's.
 *
 * The driver's updates are the source for completions, prompts and steps, with the engine's times. The router counts
 * refusals. Everything runs on the loop's thread. A NULL metrics counts nothing. Each completion (a choice of a prompt)
 * is a request in the histograms; the tokens of a prompt count once, however many choices it has. After metrics_new,
 * memory is allocated only for an adapter's first request. */
#pragma once

#include "infer/receipt.h"
#include "openai/error.h"

struct metrics;
struct strbuf;

struct metrics_options {
    const char *model_name;  /* the name in answers */
    const char *cache_dtype; /* "fp32", "bf16" */
    int64_t max_model_len, page_tokens, pages;
    int64_t max_adapters; /* the maximum number of adapters that one step can mix */
    bool has_prefix_cache;
    int ranks;
};
/* Makes metrics with all ranks up. STATUS_MEMORY. */
int metrics_new(const struct metrics_options *options, struct metrics **metrics);
void metrics_free(struct metrics *metrics);

/* ---- completions: the driver ---- */

/* A prompt and its completions belong to the driver. It zeroes them, sets the commented fields, and makes the calls
 * below in their order. Times are monotonic seconds. */
struct metrics_prompt {
    double arrived;           /* time of submission; the driver sets it before the first token counts */
    double started;           /* time when it first ran */
    int64_t tokens, cached;   /* of its text, without virtual tokens; of these, tokens whose pages were cached */
    bool has_looked_in_cache; /* it may use the prefix cache */
};
struct metrics_completion {
    double first, last; /* times of its first and latest token */
    int64_t tokens;     /* drawn so far */
};
/* Its first completion begins to run: tokens, cached and has_looked_in_cache are set. */
void metrics_started(struct metrics *metrics, struct metrics_prompt *prompt, double time);
/* A token was drawn; an end id counts too. */
void metrics_token(struct metrics *metrics, const struct metrics_prompt *prompt, struct metrics_completion *completion,
                   double time);
/* A completion has ended; its prompt may never have run. Latencies count only completions that ended by themselves. */
enum metrics_end { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_END_COUNT };
void metrics_ended(struct metrics *metrics, const struct metrics_prompt *prompt,
                   const struct metrics_completion *completion, enum metrics_end how, double time);
/* Steps of the engine. Its thread counts them in a separate object, which the loop later adds to the total; a zeroed
 * one is empty. `tokens` are the prompt rows and the drawn tokens of the step. */
enum { METRICS_STEP_BUCKETS = 14 };
struct metrics_steps {
    uint64_t counts[METRICS_STEP_BUCKETS], tokens;
};
/* Counts one step of `tokens` tokens; adds counted steps to the total. */
void metrics_count_step(struct metrics_steps *steps, int64_t tokens);
void metrics_add_steps(struct metrics *metrics, const struct metrics_steps *steps);

/* The engine's state at the last report. */
struct metrics_engine {
    int64_t running, waiting;         /* completions */
    int64_t deferred;                 /* of `waiting`: those that wait for their adapters, not for room */
    int64_t pages_held;               /* by sequences; cached pages and idle prefixes count as free */
    int64_t preemptions;              /* since the start */
    int64_t adapter_bytes;            /* of images on a rank */
    uint64_t receipts[RECEIPT_WORDS]; /* results of replays since the start */
};
/* Sets the engine's state. */
void metrics_tell_engine(struct metrics *metrics, const struct metrics_engine *engine);
/* Sets the spans that a collector has taken, and those that were dropped, since the start. */
void metrics_tell_spans(struct metrics *metrics, uint64_t sent, uint64_t dropped);
/* Sets the loop's turns so far (loop_turns.h). */
struct loop_turns;
void metrics_tell_loop(struct metrics *metrics, const struct loop_turns *turns);
/* Sets the figures of constraints so far. */
struct grammars_figures;
void metrics_tell_constraints(struct metrics *metrics, const struct grammars_figures *figures, int64_t late_masks);
void metrics_tell_rank(struct metrics *metrics, int rank, bool is_up);

/* ---- requests: driver, registry and router ---- */

/* Counts an accepted request that names the adapter. `method` is the registry's: "lora" or "lora,ia3". */
void metrics_adapter_request(struct metrics *metrics, const char *adapter, const char *method);
/* Reports that the name is unknown and that no request has it any more. Counters of the METRICS_MAX_GONE most recent
 * such names stay, so that a scrape still finds them; older ones are removed. */
void metrics_adapter_gone(struct metrics *metrics, const char *adapter);
enum { METRICS_MAX_GONE = 64 };
/* Counts a load or a replacement: ERROR_NONE, or the reason for its failure. */
void metrics_adapter_load(struct metrics *metrics, enum error_case result);
/* Counts a request that was refused before any of it ran. */
void metrics_rejected(struct metrics *metrics, enum error_case why);
/* Counts a full queue, of completions or else of tokens; in addition to metrics_rejected. */
void metrics_queue_full(struct metrics *metrics, bool is_of_tokens);
/* Counts an accepted request that ended early: ERROR_CANCELLED when the client disconnected. */
void metrics_cancelled(struct metrics *metrics, enum error_case why);

/* ---- text ---- */

/* The adapters in use now. */
struct metrics_adapters {
    const char *running, *waiting; /* adapters with running and waiting completions, separated by commas */
    const struct metrics_loaded {
        const char *name;
        bool is_pinned;
    } * loaded; /* [loaded_count] adapters with an image in memory */
    size_t loaded_count;
};
/* Appends the text of /metrics, format 0.0.4. `now` is in seconds of the epoch. */
void metrics_add_text(const struct metrics *metrics, const struct metrics_adapters *adapters, double now,
                      struct strbuf *out);
