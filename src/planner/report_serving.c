/* Serving plans, as JSON and as a table. */
#include "planner/report.h"

static json_t *row_json(const struct serve_row *row, const struct cluster *cluster) {
    const struct engine_plan *plan = &row->plan;
    return json_pack("{s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:{s:I, s:I, s:I, s:I, s:I, s:I}}", "tensor",
                     row->layout.tensor, "pipeline", row->layout.pipeline, "batch", (json_int_t)row->layout.batch,
                     "latency_ms", 1e3 * row->times.latency, "prefill_ms", 1e3 * row->times.prompts, "token_ms",
                     1e3 * row->times.token, "tokens_per_s", row->times.tokens_per_s, "requests_per_s_per_device",
                     row->per_device, "is_pareto", (int)row->is_pareto, "is_allowed", (int)row->is_allowed, "memory",
                     "weights", (json_int_t)plan->weights, "cache", (json_int_t)plan->cache, "adapters",
                     (json_int_t)plan->adapters, "workspace", (json_int_t)plan->workspace, "device",
                     (json_int_t)engine_plan_device_bytes(plan), "limit", (json_int_t)cluster->memory.value);
}

json_t *report_serving(const struct serve_result *result, const struct cluster *cluster) {
    json_t *rows = json_array();
    for (int i = 0; i < result->count; i++)
        json_array_append_new(rows, row_json(&result->rows[i], cluster));
    return json_pack("{s:s, s:s, s:s, s:o, s:o}", "plan", "serve", "cluster", cluster->name ? cluster->name : "",
                     "stack", cluster_serving_stacks[cluster->serve], "best",
                     result->best < 0 ? json_null() : json_integer(result->best), "rows", rows);
}

/* Prints the best row, if it is allowed, and the Pareto set. */
void report_serving_print(const struct serve_result *result, int top, FILE *out) {
    fprintf(out, "%d layouts fit, %d without memory, %d refused\n", result->count, result->no_memory, result->refused);
    fprintf(out, "tensor pipe batch  latency, ms  prompts, ms  token, ms  tokens/s  requests/s of a device      GB\n");
    for (int i = 0, printed = 0; i < result->count && printed < top; i++) {
        const struct serve_row *row = &result->rows[i];
        if (!row->is_pareto && i != result->best)
            continue;
        printed++;
        fprintf(out, "%6d %4d %5lld %12.1f %12.1f %10.2f %9.0f %23.2f %7.1f%s\n", row->layout.tensor,
                row->layout.pipeline, (long long)row->layout.batch, 1e3 * row->times.latency, 1e3 * row->times.prompts,
                1e3 * row->times.token, row->times.tokens_per_s, row->per_device,
                (double)engine_plan_device_bytes(&row->plan) / 1e9, i == result->best ? "  best" : "");
    }
}
