/* Serving plans, as JSON and as a table. */
#include "planner/report.h"

static json_t *row_json(const struct serve_row *row, const struct cluster *cluster) {
    const struct engine_plan *plan = &row->plan;
    double latency = 1e3 * row->times.latency, error = cluster->achieved[CLUSTER_SERVE_ERROR].value;
    return json_pack("{s:i, s:i, s:I, s:f, s:[f, f], s:f, s:f, s:f, s:f, s:b, s:b, s:{s:I, s:I, s:I, s:I, s:I, s:I}}",
                     "tensor", row->layout.tensor, "pipeline", row->layout.pipeline, "batch",
                     (json_int_t)row->layout.batch, "latency_ms", latency, "latency_ms_range", latency / (1 + error),
                     latency * (1 + error), "prefill_ms", 1e3 * row->times.prompts, "token_ms", 1e3 * row->times.token,
                     "tokens_per_s", row->times.tokens_per_s, "requests_per_s_per_device", row->per_device, "is_pareto",
                     (int)row->is_pareto, "is_allowed", (int)row->is_allowed, "memory", "weights",
                     (json_int_t)plan->weights, "cache", (json_int_t)plan->cache, "adapters",
                     (json_int_t)plan->adapters, "workspace", (json_int_t)plan->workspace, "device",
                     (json_int_t)engine_plan_device_bytes(plan), "limit", (json_int_t)cluster->memory.value);
}

json_t *report_serving(const struct serve_result *result, const struct cluster *cluster) {
    json_t *rows = json_array();
    for (int i = 0; i < result->count; i++)
        json_array_append_new(rows, row_json(&result->rows[i], cluster));
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "plan", "serve", "cluster", cluster->name ? cluster->name : "",
                     "stack", cluster_serving_stacks[cluster->serve], "constants", cluster->source, "best",
                     result->best < 0 ? json_null() : json_integer(result->best), "rows", rows);
}

/* Prints the best row, if it is allowed, and the Pareto set. */
void report_serving_print(const struct serve_result *result, int top, FILE *out) {
    double error = result->cluster->achieved[CLUSTER_SERVE_ERROR].value;
    fprintf(out, "%d layouts fit, %d without memory, %d refused\n" REPORT_CONSTANTS, result->count, result->no_memory,
            result->refused, result->cluster->source, 100 * error);
    fprintf(out, "tensor pipe batch  latency, ms        range, ms  prompts, ms  token, ms  tokens/s  requests/s of a "
                 "device      GB\n");
    for (int i = 0, printed = 0; i < result->count && printed < top; i++) {
        const struct serve_row *row = &result->rows[i];
        const struct serve_times *times = &row->times;
        if (!row->is_pareto && i != result->best)
            continue;
        printed++;
        fprintf(out, "%6d %4d %5lld %12s %16s %12s %10s %9s %23s %7.1f%s\n", row->layout.tensor, row->layout.pipeline,
                (long long)row->layout.batch, report_number(1e3 * times->latency).text,
                report_range(1e3 * times->latency, error).text, report_number(1e3 * times->prompts).text,
                report_number(1e3 * times->token).text, report_number(times->tokens_per_s).text,
                report_number(row->per_device).text, (double)engine_plan_device_bytes(&row->plan) / 1e9,
                i == result->best ? "  best" : "");
    }
}
