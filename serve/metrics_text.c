/* The text of /metrics: https://prometheus.io/docs/instrumenting/exposition_formats, format 0.0.4. Names, labels and
 * buckets of vllm: are vLLM's. */
#include "metrics-internal.h"

#include "base/utf8.h"

struct writer {
    struct strbuf *out;
    const char *name;       /* of the family */
    const char *common;     /* labels on all of vLLM's metrics: model_name="...",engine="0" */
    const char *only_model; /* model_name="..." */
};

static void begin(struct writer *writer, const char *name, const char *type, const char *help) {
    writer->name = name;
    strbuf_format(writer->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Writes the fewest digits that restore the number. */
static void add_number(struct strbuf *out, double value) {
    char text[32];
    for (int digits = 15; digits <= 17; digits += 2) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    strbuf_add_text(out, text);
}

/* Writes a label's value, which may be any name of a model. */
static void add_escaped(struct strbuf *out, const char *value) {
    struct strbuf mended = STRBUF_INIT;
    utf8_add_repaired(&mended, value, strlen(value));
    for (const char *at = strbuf_text(&mended); *at; at++) {
        if (*at == '\n')
            strbuf_add_text(out, "\\n");
        else if (*at == '\\' || *at == '"')
            strbuf_format(out, "\\%c", *at);
        else
            strbuf_add_char(out, *at);
    }
    out->failed |= mended.failed;
    strbuf_free(&mended);
}

static void add_label(struct strbuf *out, const char *name, const char *value) {
    strbuf_format(out, "%s%s=\"", out->length ? "," : "", name);
    add_escaped(out, value);
    strbuf_add_char(out, '"');
}

/* Writes a sample of the family with these labels; "" for none. */
static void add_labelled(struct writer *writer, const char *suffix, const char *labels, double value) {
    strbuf_format(writer->out, *labels ? "%s%s{%s} " : "%s%s%s ", writer->name, suffix, labels);
    add_number(writer->out, value);
    strbuf_add_char(writer->out, '\n');
}

static void add(struct writer *writer, double value) {
    add_labelled(writer, "", writer->common, value);
}

/* Writes the common labels and one more, whose value needs no escaping. */
static void add_by(struct writer *writer, const char *suffix, const char *labels, const char *name, const char *value,
                   double number) {
    struct strbuf all = STRBUF_INIT;
    strbuf_format(&all, "%s%s%s=\"%s\"", labels, *labels ? "," : "", name, value);
    add_labelled(writer, suffix, strbuf_text(&all), number);
    writer->out->failed |= all.failed;
    strbuf_free(&all);
}

static void add_single(struct writer *writer, const char *name, const char *type, const char *help, double value) {
    begin(writer, name, type, help);
    add(writer, value);
}

/* ---- histograms ---- */

static const struct {
    const char *name, *help;
} histograms[METRICS_HISTOGRAM_COUNT] = {
    [METRICS_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds", "Time from a request's arrival to its first token."},
    [METRICS_BETWEEN_TOKENS] = {"vllm:inter_token_latency_seconds", "Time between two tokens of a completion."},
    [METRICS_PER_TOKEN] = {"vllm:request_time_per_output_token_seconds",
                           "Mean time between the tokens of a completion that has more than one."},
    [METRICS_WHOLE] = {"vllm:e2e_request_latency_seconds",
                       "Time from a request's arrival to the end of its completion."},
    [METRICS_QUEUE] = {"vllm:request_queue_time_seconds", "Time that a request waited."},
    [METRICS_PREFILL] = {"vllm:request_prefill_time_seconds",
                         "Time from when a request was taken up to its first token."},
    [METRICS_DECODE] = {"vllm:request_decode_time_seconds", "Time from the first token of a completion to its last."},
    [METRICS_INFERENCE] = {"vllm:request_inference_time_seconds",
                           "Time from when a request was taken up to its last token."},
    [METRICS_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Tokens of a request's prompt."},
    [METRICS_GENERATION_TOKENS] = {"vllm:request_generation_tokens", "Tokens of a completion."},
    [METRICS_COMPUTED_TOKENS] = {"vllm:request_prefill_kv_computed_tokens",
                                 "Tokens of a request's prompt that were not cached."},
    [METRICS_ITERATION] = {"vllm:iteration_tokens_total",
                           "Prompt tokens run and tokens written in a step of the engine."},
    [METRICS_CONSTRAINT_COMPILE] = {"cambium_constraint_compile_seconds", "Time to compile a constraint."},
    [METRICS_CONSTRAINT_MASK] = {"cambium_constraint_mask_seconds", "Time to find the tokens that may come next."},
    [METRICS_LOOP_TURN] = {"cambium:loop_turn_seconds", "CPU time of the loop's thread from one wait to the next."},
};

static void add_histogram(struct writer *writer, const struct metrics *metrics, enum metrics_histogram_kind kind) {
    const struct metrics_histogram *histogram = &metrics->histograms[kind];
    const char *labels = kind >= METRICS_LOOP_TURN ? "" : writer->common;
    uint64_t count = 0;
    begin(writer, histograms[kind].name, "histogram", histograms[kind].help);
    for (int i = 0; i <= histogram->bound_count; i++) {
        char bound[32] = "+Inf";
        if (i < histogram->bound_count) {
            snprintf(bound, sizeof bound, "%.15g", histogram->bounds[i]);
            if (!strchr(bound, '.')) /* in the form of Python's client: queries name buckets by their text */
                strcat(bound, ".0");
        }
        count += histogram->counts[i];
        add_by(writer, "_bucket", labels, "le", bound, (double)count);
    }
    add_labelled(writer, "_sum", labels, histogram->sum);
    add_labelled(writer, "_count", labels, (double)count);
}

/* ---- vLLM's ---- */

static void add_engine(struct writer *writer, const struct metrics *metrics) {
    const struct metrics_engine *engine = &metrics->engine;
    add_single(writer, "vllm:num_requests_running", "gauge", "Texts that are being written.", (double)engine->running);
    add_single(writer, "vllm:num_requests_waiting", "gauge", "Texts that wait to be taken up.",
               (double)engine->waiting);
    begin(writer, "vllm:num_requests_waiting_by_reason", "gauge",
          "Texts that wait for room (capacity), or for their adapters (deferred).");
    add_by(writer, "", writer->common, "reason", "capacity", (double)(engine->waiting - engine->deferred));
    add_by(writer, "", writer->common, "reason", "deferred", (double)engine->deferred);
    add_single(writer, "vllm:kv_cache_usage_perc", "gauge",
               "Pages of keys and values that completions hold, as a part of all: 1 is all of them.",
               metrics->pages ? (double)engine->pages_held / (double)metrics->pages : 0);
    add_single(writer, "vllm:num_preemptions_total", "counter", "Texts that gave their pages back and resume later.",
               (double)engine->preemptions);
}

static void add_tokens(struct writer *writer, const struct metrics *metrics) {
    add_single(writer, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the cache.",
               (double)metrics->cache_queries);
    add_single(writer, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were found in the cache.",
               (double)metrics->cached_tokens);
    add_single(writer, "vllm:prompt_tokens_total", "counter", "Prompt tokens, cached or not.",
               (double)metrics->prompt_tokens);
    add_single(writer, "vllm:prompt_tokens_cached_total", "counter", "Prompt tokens that were cached.",
               (double)metrics->cached_tokens);
    begin(writer, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where their keys came from.");
    add_by(writer, "", writer->common, "source", "local_compute",
           (double)(metrics->prompt_tokens - metrics->cached_tokens));
    add_by(writer, "", writer->common, "source", "local_cache_hit", (double)metrics->cached_tokens);
    add_by(writer, "", writer->common, "source", "external_kv_transfer", 0);
    add_single(writer, "vllm:generation_tokens_total", "counter", "Tokens written.",
               (double)metrics->generation_tokens);
}

static void add_ends(struct writer *writer, const struct metrics *metrics) {
    static const char *const ends[METRICS_END_COUNT] = {"stop", "length", "abort", "error"};
    begin(writer, "vllm:request_success_total", "counter", "Texts that are over, by how they ended.");
    for (int how = 0; how < METRICS_END_COUNT; how++)
        add_by(writer, "", writer->common, "finished_reason", ends[how], (double)metrics->ended[how]);
    add_by(writer, "", writer->common, "finished_reason", "repetition", 0);
    begin(writer, "vllm:admission_rejections_total", "counter", "Requests for which the queue had no room.");
    add_by(writer, "", writer->only_model, "reason", "max_num_queued_reqs", (double)metrics->queue_full[false]);
    add_by(writer, "", writer->only_model, "reason", "max_num_queued_tokens", (double)metrics->queue_full[true]);
}

/* The form that is coming to vLLM: a series for each adapter in the memory that steps read. vLLM calls it gpu, whatever
 * the device. */
static void add_loaded(struct writer *writer, const struct metrics_adapters *adapters) {
    begin(writer, "vllm:lora_adapter_loaded", "gauge", "Adapters that are in the device's memory.");
    for (size_t i = 0; i < adapters->loaded_count; i++) {
        struct strbuf labels = STRBUF_INIT;
        add_label(&labels, "adapter_name", adapters->loaded[i].name);
        add_label(&labels, "level", "gpu");
        add_label(&labels, "pinned", adapters->loaded[i].is_pinned ? "true" : "false");
        strbuf_format(&labels, ",%s", writer->common);
        add_labelled(writer, "", strbuf_text(&labels), 1);
        writer->out->failed |= labels.failed;
        strbuf_free(&labels);
    }
}

static void add_infos(struct writer *writer, const struct metrics *metrics, const struct metrics_adapters *adapters,
                      double now) {
    char number[32];
    struct strbuf labels = STRBUF_INIT;
    snprintf(number, sizeof number, "%lld", (long long)metrics->max_adapters);
    add_label(&labels, "max_lora", number);
    add_label(&labels, "waiting_lora_adapters", adapters->waiting);
    add_label(&labels, "running_lora_adapters", adapters->running);
    begin(writer, "vllm:lora_requests_info", "gauge",
          "Adapters of completions that run or wait; the value is the time.");
    add_labelled(writer, "", strbuf_text(&labels), now);

    strbuf_clear(&labels);
    strbuf_format(&labels,
                  "%s,block_size=\"%lld\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\",num_gpu_blocks=\"%lld\"",
                  writer->common, (long long)metrics->page_tokens, metrics->cache_dtype,
                  metrics->has_prefix_cache ? "True" : "False", (long long)metrics->pages);
    begin(writer, "vllm:cache_config_info", "gauge", "The cache of keys and values: tokens of a page, pages.");
    add_labelled(writer, "", strbuf_text(&labels), 1);
    writer->out->failed |= labels.failed;
    strbuf_free(&labels);
}

/* ---- cambium's ---- */

static const char *reason(enum error_case which) {
    const char *code = error_row(which)->code;
    return which == ERROR_NONE ? "success" : code ? code : "invalid_request";
}

static bool is_any(enum error_case which, const enum error_case *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (list[i] == which)
            return true;
    return false;
}

/* The listed cases exist from the start, so that a rate can be computed from the first one. */
static void add_cases(struct writer *writer, const char *label, const uint64_t *counts, const enum error_case *always,
                      size_t always_count) {
    for (int which = 0; which < ERROR_COUNT; which++)
        if (counts[which] || is_any((enum error_case)which, always, always_count))
            add_by(writer, "", "", label, reason((enum error_case)which), (double)counts[which]);
}

static void add_adapters(struct writer *writer, const struct metrics *metrics) {
    static const enum error_case results[] = {ERROR_NONE, ERROR_ADAPTER_INVALID, ERROR_ADAPTER_MEMORY};
    begin(writer, "cambium:adapter_requests_total", "counter", "Requests that named an adapter.");
    for (size_t i = 0; i < metrics->adapter_count; i++) {
        struct strbuf labels = STRBUF_INIT;
        add_label(&labels, "adapter", metrics->adapters[i].name);
        add_label(&labels, "method", metrics->adapters[i].method);
        add_labelled(writer, "", strbuf_text(&labels), (double)metrics->adapters[i].requests);
        writer->out->failed |= labels.failed;
        strbuf_free(&labels);
    }
    if (metrics->other_requests) /* no adapter's name begins with a dot */
        add_labelled(writer, "", "adapter=\".others\",method=\"\"", (double)metrics->other_requests);
    begin(writer, "cambium:adapter_loads_total", "counter", "Adapters loaded or replaced, and why they were not.");
    add_cases(writer, "result", metrics->loads, results, sizeof results / sizeof *results);
    begin(writer, "cambium:adapter_receipts_total", "counter", "Replays of adapters' receipts, by their results.");
    for (int word = 0; word < RECEIPT_WORDS; word++)
        add_by(writer, "", "", "result", receipt_words[word], (double)metrics->engine.receipts[word]);
    begin(writer, "cambium:adapter_memory_bytes", "gauge", "Memory of adapters on each rank.");
    add_labelled(writer, "", "", (double)metrics->engine.adapter_bytes);
}

static void add_constraints(struct writer *writer, const struct metrics *metrics) {
    const struct {
        const char *name, *kind, *help;
        uint64_t value;
    } rows[] = {
        {"cambium_constraint_cache_bytes", "gauge", "Memory of compiled constraints.", metrics->constraint_bytes},
        {"cambium_constraint_cache_hits_total", "counter", "Requests whose constraint was compiled already.",
         metrics->constraint_hits},
        {"cambium_constraint_cache_misses_total", "counter", "Requests whose constraint was not.",
         metrics->constraint_misses},
        {"cambium_constraint_late_masks_total", "counter", "Rows that ran once more because their mask was late.",
         metrics->late_masks},
    };
    add_histogram(writer, metrics, METRICS_CONSTRAINT_COMPILE);
    add_histogram(writer, metrics, METRICS_CONSTRAINT_MASK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin(writer, rows[i].name, rows[i].kind, rows[i].help);
        add_labelled(writer, "", "", (double)rows[i].value);
    }
}

static void add_requests(struct writer *writer, const struct metrics *metrics) {
    static const enum error_case refusals[] = {ERROR_ARGUMENT, ERROR_CONTEXT_LENGTH, ERROR_KEY, ERROR_OVERLOADED,
                                               ERROR_DRAINING};
    static const enum error_case ends[] = {ERROR_CANCELLED, ERROR_DEADLINE, ERROR_SLOW_READER, ERROR_DRAINING,
                                           ERROR_ENGINE_FAILED};
    begin(writer, "cambium:requests_rejected_total", "counter", "Requests that were answered with an error at once.");
    add_cases(writer, "reason", metrics->rejected, refusals, sizeof refusals / sizeof *refusals);
    begin(writer, "cambium:requests_cancelled_total", "counter", "Requests that were broken off, and why.");
    add_cases(writer, "reason", metrics->cancelled, ends, sizeof ends / sizeof *ends);
}

void metrics_add_text(const struct metrics *metrics, const struct metrics_adapters *adapters, double now,
                      struct strbuf *out) {
    struct strbuf model = STRBUF_INIT, common = STRBUF_INIT;
    add_label(&model, "model_name", metrics->model_name);
    strbuf_format(&common, "%s,engine=\"0\"", strbuf_text(&model));
    struct writer writer = {.out = out, .common = strbuf_text(&common), .only_model = strbuf_text(&model)};
    add_engine(&writer, metrics);
    add_tokens(&writer, metrics);
    add_ends(&writer, metrics);
    for (int kind = 0; kind < METRICS_LOOP_TURN; kind++)
        add_histogram(&writer, metrics, (enum metrics_histogram_kind)kind);
    add_infos(&writer, metrics, adapters, now);
    add_loaded(&writer, adapters);
    add_adapters(&writer, metrics);
    add_requests(&writer, metrics);
    begin(&writer, "cambium:otlp_spans_total", "counter",
          "Spans of requests that the collector took, or that were lost.");
    add_by(&writer, "", "", "result", "sent", (double)metrics->spans_sent);
    add_by(&writer, "", "", "result", "dropped", (double)metrics->spans_dropped);
    begin(&writer, "cambium:rank_up", "gauge", "Whether a rank is there.");
    for (int rank = 0; rank < metrics->ranks; rank++) {
        char number[16];
        snprintf(number, sizeof number, "%d", rank);
        add_by(&writer, "", "", "rank", number, metrics->rank_is_up[rank]);
    }
    add_constraints(&writer, metrics);
    add_histogram(&writer, metrics, METRICS_LOOP_TURN);
    begin(&writer, "cambium:loop_turn_seconds_max", "gauge", "The longest of these turns so far.");
    add_labelled(&writer, "", "", metrics->longest_turn);
    out->failed |= model.failed | common.failed;
    strbuf_free(&common);
    strbuf_free(&model);
}
