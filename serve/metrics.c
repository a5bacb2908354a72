/* Counting completions, prompts, steps and requests. */
#include "metrics-internal.h"

#include "loop_turns.h"

#include "infer/grammars.h"

static const double first_token_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                            1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double between_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                        .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double whole_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double iteration_bounds[METRICS_STEP_BUCKETS - 1] = {1,   8,    16,   32,   64,   128,  256,
                                                                  512, 1024, 2048, 4096, 8192, 16384};

#define SET_BOUNDS(metrics, kind, list)                                                                                \
    set_bounds(&(metrics)->histograms[kind], list, (int)(sizeof(list) / sizeof *(list)))

static void set_bounds(struct metrics_histogram *histogram, const double *bounds, int count) {
    memcpy(histogram->bounds, bounds, (size_t)count * sizeof *bounds);
    histogram->bound_count = count;
}

/* Sets the bounds 1, 2, 5, 10, 20, 50 and so on up to `most`. */
static void set_decades(struct metrics_histogram *histogram, int64_t most) {
    static const double steps[] = {1, 2, 5};
    double decade = 1;
    for (int i = 0; i < METRICS_BUCKETS && steps[i % 3] * decade <= (double)most; i++) {
        histogram->bounds[i] = steps[i % 3] * decade;
        histogram->bound_count = i + 1;
        if (i % 3 == 2)
            decade *= 10;
    }
}

int metrics_new(const struct metrics_options *options, struct metrics **metrics) {
    struct metrics *opened = calloc(1, sizeof *opened);
    *metrics = NULL;
    if (opened) {
        opened->model_name = strdup(options->model_name);
        opened->cache_dtype = strdup(options->cache_dtype);
        opened->rank_is_up = calloc((size_t)options->ranks, sizeof *opened->rank_is_up);
    }
    if (!opened || !opened->model_name || !opened->cache_dtype || !opened->rank_is_up) {
        metrics_free(opened);
        return status_fail(STATUS_MEMORY, "out of memory for metrics");
    }
    opened->page_tokens = options->page_tokens;
    opened->pages = options->pages;
    opened->max_adapters = options->max_adapters;
    opened->has_prefix_cache = options->has_prefix_cache;
    opened->ranks = options->ranks;
    for (int rank = 0; rank < options->ranks; rank++)
        opened->rank_is_up[rank] = true;
    SET_BOUNDS(opened, METRICS_FIRST_TOKEN, first_token_bounds);
    SET_BOUNDS(opened, METRICS_LOOP_TURN, loop_turn_bounds);
    SET_BOUNDS(opened, METRICS_CONSTRAINT_COMPILE, grammars_bounds);
    SET_BOUNDS(opened, METRICS_CONSTRAINT_MASK, grammars_bounds);
    SET_BOUNDS(opened, METRICS_BETWEEN_TOKENS, between_bounds);
    SET_BOUNDS(opened, METRICS_PER_TOKEN, between_bounds);
    for (int kind = METRICS_WHOLE; kind <= METRICS_INFERENCE; kind++)
        SET_BOUNDS(opened, kind, whole_bounds);
    for (int kind = METRICS_PROMPT_TOKENS; kind <= METRICS_COMPUTED_TOKENS; kind++)
        set_decades(&opened->histograms[kind], options->max_model_len);
    SET_BOUNDS(opened, METRICS_ITERATION, iteration_bounds);
    *metrics = opened;
    return STATUS_OK;
}

void metrics_free(struct metrics *metrics) {
    if (!metrics)
        return;
    for (size_t i = 0; i < metrics->adapter_count; i++) {
        free(metrics->adapters[i].name);
        free(metrics->adapters[i].method);
    }
    free(metrics->adapters);
    free(metrics->rank_is_up);
    free(metrics->cache_dtype);
    free(metrics->model_name);
    free(metrics);
}

/* Returns the first bucket whose upper end is not below the value; the number of bounds when the value is above all. */
static int find_bucket(const double *bounds, int count, double value) {
    int bucket = 0;
    while (bucket < count && value > bounds[bucket])
        bucket++;
    return bucket;
}

static void observe(struct metrics *metrics, enum metrics_histogram_kind kind, double value) {
    struct metrics_histogram *histogram = &metrics->histograms[kind];
    histogram->counts[find_bucket(histogram->bounds, histogram->bound_count, value)]++;
    histogram->sum += value;
}

/* The times come from different threads that read the same clock. */
static double span(double from, double to) {
    return to > from ? to - from : 0;
}

/* ---- texts ---- */

void metrics_started(struct metrics *metrics, struct metrics_prompt *prompt, double time) {
    prompt->started = time;
    if (!metrics)
        return;
    metrics->prompt_tokens += (uint64_t)prompt->tokens;
    metrics->cached_tokens += (uint64_t)prompt->cached;
    if (prompt->has_looked_in_cache)
        metrics->cache_queries += (uint64_t)prompt->tokens;
}

void metrics_token(struct metrics *metrics, const struct metrics_prompt *prompt, struct metrics_completion *completion,
                   double time) {
    bool is_first = completion->tokens++ == 0;
    if (metrics) {
        metrics->generation_tokens++;
        if (is_first)
            observe(metrics, METRICS_FIRST_TOKEN, span(prompt->arrived, time));
        else
            observe(metrics, METRICS_BETWEEN_TOKENS, span(completion->last, time));
    }
    if (is_first)
        completion->first = time;
    completion->last = time;
}

void metrics_ended(struct metrics *metrics, const struct metrics_prompt *prompt,
                   const struct metrics_completion *completion, enum metrics_end how, double time) {
    if (!metrics)
        return;
    metrics->ended[how]++;
    if (how != METRICS_STOP && how != METRICS_LENGTH)
        return;
    double first = completion->tokens ? completion->first : time, last = completion->tokens ? completion->last : time;
    observe(metrics, METRICS_WHOLE, span(prompt->arrived, time));
    observe(metrics, METRICS_QUEUE, span(prompt->arrived, prompt->started));
    observe(metrics, METRICS_PREFILL, span(prompt->started, first));
    observe(metrics, METRICS_DECODE, span(first, last));
    observe(metrics, METRICS_INFERENCE, span(prompt->started, last));
    if (completion->tokens > 1)
        observe(metrics, METRICS_PER_TOKEN, span(first, last) / (double)(completion->tokens - 1));
    observe(metrics, METRICS_PROMPT_TOKENS, (double)prompt->tokens);
    observe(metrics, METRICS_GENERATION_TOKENS, (double)completion->tokens);
    observe(metrics, METRICS_COMPUTED_TOKENS, (double)(prompt->tokens - prompt->cached));
}

void metrics_count_step(struct metrics_steps *steps, int64_t tokens) {
    steps->counts[find_bucket(iteration_bounds, METRICS_STEP_BUCKETS - 1, (double)tokens)]++;
    steps->tokens += (uint64_t)tokens;
}

void metrics_add_steps(struct metrics *metrics, const struct metrics_steps *steps) {
    if (!metrics)
        return;
    for (int i = 0; i < METRICS_STEP_BUCKETS; i++)
        metrics->histograms[METRICS_ITERATION].counts[i] += steps->counts[i];
    metrics->histograms[METRICS_ITERATION].sum += (double)steps->tokens;
}

void metrics_tell_engine(struct metrics *metrics, const struct metrics_engine *engine) {
    if (metrics)
        metrics->engine = *engine;
}

void metrics_tell_spans(struct metrics *metrics, uint64_t sent, uint64_t dropped) {
    metrics->spans_sent = sent;
    metrics->spans_dropped = dropped;
}

void metrics_tell_loop(struct metrics *metrics, const struct loop_turns *turns) {
    struct metrics_histogram *histogram;
    if (!metrics)
        return;
    histogram = &metrics->histograms[METRICS_LOOP_TURN];
    memcpy(histogram->counts, turns->counts, sizeof turns->counts);
    histogram->sum = turns->seconds;
    metrics->longest_turn = turns->longest;
}

static void tell_times(struct metrics_histogram *histogram, const struct grammars_times *times) {
    memcpy(histogram->counts, times->counts, sizeof times->counts);
    histogram->sum = times->sum;
}

void metrics_tell_constraints(struct metrics *metrics, const struct grammars_figures *figures, int64_t late_masks) {
    if (!metrics)
        return;
    tell_times(&metrics->histograms[METRICS_CONSTRAINT_COMPILE], &figures->compile);
    tell_times(&metrics->histograms[METRICS_CONSTRAINT_MASK], &figures->mask);
    metrics->constraint_hits = figures->hits;
    metrics->constraint_misses = figures->misses;
    metrics->constraint_bytes = figures->bytes;
    metrics->late_masks = (uint64_t)late_masks;
}

void metrics_tell_rank(struct metrics *metrics, int rank, bool is_up) {
    if (metrics && rank >= 0 && rank < metrics->ranks)
        metrics->rank_is_up[rank] = is_up;
}

/* ---- requests ---- */

static bool add_adapter(struct metrics *metrics, const char *name, const char *method) {
    struct metrics_adapter added = {.requests = 1};
    struct metrics_adapter *adapters = realloc(metrics->adapters, (metrics->adapter_count + 1) * sizeof *adapters);
    if (!adapters)
        return false;
    metrics->adapters = adapters;
    added.name = strdup(name);
    added.method = strdup(method);
    if (!added.name || !added.method) {
        free(added.name);
        free(added.method);
        return false;
    }
    adapters[metrics->adapter_count++] = added;
    return true;
}

void metrics_adapter_request(struct metrics *metrics, const char *adapter, const char *method) {
    if (!metrics)
        return;
    for (size_t i = 0; i < metrics->adapter_count; i++) {
        struct metrics_adapter *known = &metrics->adapters[i];
        if (!strcmp(known->name, adapter) && !strcmp(known->method, method)) {
            known->requests++;
            known->gone = 0;
            return;
        }
    }
    if (metrics->adapter_count == METRICS_MAX_ADAPTERS || !add_adapter(metrics, adapter, method))
        metrics->other_requests++;
}

static size_t count_gone(const struct metrics *metrics, size_t *oldest) {
    size_t count = 0;
    for (size_t i = 0; i < metrics->adapter_count; i++) {
        uint64_t gone = metrics->adapters[i].gone;
        if (gone && (count++ == 0 || gone < metrics->adapters[*oldest].gone))
            *oldest = i;
    }
    return count;
}

static void remove_adapter(struct metrics *metrics, size_t i) {
    free(metrics->adapters[i].name);
    free(metrics->adapters[i].method);
    size_t after = --metrics->adapter_count - i;
    memmove(&metrics->adapters[i], &metrics->adapters[i + 1], after * sizeof *metrics->adapters);
    struct metrics_adapter *fitting =
        metrics->adapter_count ? realloc(metrics->adapters, metrics->adapter_count * sizeof *fitting) : NULL;
    if (fitting)
        metrics->adapters = fitting;
}

void metrics_adapter_gone(struct metrics *metrics, const char *adapter) {
    size_t oldest = 0;
    if (!metrics)
        return;
    for (size_t i = 0; i < metrics->adapter_count; i++)
        if (!strcmp(metrics->adapters[i].name, adapter))
            metrics->adapters[i].gone = ++metrics->last_gone;
    while (count_gone(metrics, &oldest) > METRICS_MAX_GONE)
        remove_adapter(metrics, oldest);
}

void metrics_adapter_load(struct metrics *metrics, enum error_case result) {
    if (metrics)
        metrics->loads[result]++;
}

void metrics_rejected(struct metrics *metrics, enum error_case why) {
    if (metrics)
        metrics->rejected[why]++;
}

void metrics_queue_full(struct metrics *metrics, bool is_of_tokens) {
    if (metrics)
        metrics->queue_full[is_of_tokens]++;
}

void metrics_cancelled(struct metrics *metrics, enum error_case why) {
    if (metrics)
        metrics->cancelled[why]++;
}
