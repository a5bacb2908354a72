/* Training plans, as JSON and as a table. */
#include "planner/report.h"

#include "model/model.h"
#include "planner/sizes.h"

static double samples_per_s(const struct search_row *row) {
    return (double)row->run.config.train.global_batch_size / row->step.seconds;
}

/* Returns FLOPs of one token in which every token sees all others. */
static double all_flops_per_token(const struct model_config *model, int64_t seq_length) {
    struct model_config without = *model;
    without.window = 0;
    double causal = model_flops_per_token(&without, seq_length);
    struct model_widths widths = model_widths(model, 1);
    return causal + 6.0 * (double)(widths.q * model->num_layers) * (double)seq_length;
}

double report_flops(const struct search_row *row, bool counts_all) {
    const struct run_config *c = &row->run.config;
    double flops = counts_all ? all_flops_per_token(&c->model, c->data.seq_length)
                              : model_flops_per_token(&c->model, c->data.seq_length);
    double share = row->run.tuner ? 4.0 / 6 : 1; /* a frozen weight has no gradient */
    return share * flops * (double)c->data.seq_length * samples_per_s(row) / rank_grid_size(&row->grid);
}

double report_days(const struct search_row *row, double tokens) {
    return tokens / (samples_per_s(row) * (double)row->run.config.data.seq_length) / 86400;
}

static double peak_of(const struct cluster *cluster, const struct search_row *row) {
    return cluster_peak(cluster, row->run.config.train.precision);
}

/* Writes the recomputation in words: "block 3/2" for two micro batches that recompute 3 layers while others recompute
 * all. */
static const char *recompute_text(const struct run_config *c, char out[64]) {
    static const char *const modules[] = {"", "norms", "act", "norms+act"};
    int which = 0;
    for (size_t i = 0; i < c->parallel.recompute_modules.count; i++)
        which |= *c->parallel.recompute_modules.items[i] == 'l'   ? 1
                 : *c->parallel.recompute_modules.items[i] == 'm' ? 2
                                                                  : 0;
    if (c->parallel.recompute_granularity == GRANULARITY_NONE)
        return "none";
    if (c->parallel.recompute_granularity == GRANULARITY_SELECTIVE)
        return which ? modules[which] : "selective";
    if (c->parallel.recompute_method == METHOD_UNIFORM)
        return "full";
    int64_t partial = c->parallel.num_microbatches_with_partial_activation_checkpoints;
    int used = snprintf(out, 64, "block %lld", (long long)c->parallel.recompute_num_layers);
    if (partial)
        snprintf(out + used, 64 - (size_t)used, "/%lld", (long long)partial);
    return out;
}

/* ---- JSON ---- */

static json_t *layout_json(const struct search_row *row) {
    const struct run_config *c = &row->run.config;
    char text[64];
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:I, s:i, s:I, s:b, s:b, s:b, s:s, s:s, s:b, s:s}", "tensor", row->grid.tensor,
        "pipeline", row->grid.pipeline, "chunks", row->shape.chunks, "data", row->grid.data, "micro_batch_size",
        (json_int_t)c->train.micro_batch_size, "micro_batches", row->shape.micro_batches, "last_stage_layers",
        (json_int_t)c->parallel.decoder_last_pipeline_num_layers, "account_for_embedding_in_pipeline_split",
        (int)c->parallel.account_for_embedding_in_pipeline_split, "account_for_loss_in_pipeline_split",
        (int)c->parallel.account_for_loss_in_pipeline_split, "sequence_parallel", (int)c->parallel.sequence_parallel,
        "recompute", recompute_text(c, text), "precision", precision_names[c->train.precision], "distributed_optimizer",
        run_sharding(c) >= SHARDING_OPTIM, "sharding", run_shardings[run_sharding(c)]);
}

/* Makes {fp8: {seconds, bytes}, fsdp: ...} of the features that a row has; null: it has none. */
static json_t *saved_json(const struct search_row *row) {
    json_t *saved = NULL;
    for (int i = 0; i < SEARCH_FEATURES; i++) {
        const struct search_saving *saving = &row->saved[i];
        if (!saving->is_known)
            continue;
        saved = saved ? saved : json_object();
        json_object_set_new(saved, search_features[i],
                            json_pack("{s:f, s:f}", "seconds", saving->seconds, "bytes", saving->bytes));
    }
    return saved ? saved : json_null();
}

static json_t *row_json(const struct report_training *report, const struct search_row *row) {
    double seconds = row->step.seconds, flops = report_flops(row, true);
    double error = report->cluster->achieved[CLUSTER_ERROR].value;
    const struct plan_memory *m = &row->memory;
    json_t *json = json_pack(
        "{s:o, s:b, s:f, s:[f, f], s:f, s:f, s:f, s:o, s:o, s:o}", "layout", layout_json(row), "is_built", 1,
        "step_seconds", seconds, "step_seconds_range", seconds / (1 + error), seconds * (1 + error), "tflops",
        flops / 1e12, "tflops_causal", report_flops(row, false) / 1e12, "share_of_peak",
        flops / peak_of(report->cluster, row), "memory",
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "stage", m->stage, "weights", (json_int_t)m->weights,
                  "gradients", (json_int_t)m->gradients, "optimizer", (json_int_t)m->optimizer, "activations",
                  (json_int_t)m->activations, "workspace", (json_int_t)m->workspace, "device", (json_int_t)m->device,
                  "limit", (json_int_t)report->cluster->memory.value, "host", (json_int_t)m->host),
        "time", report_time(&row->step), "saved", saved_json(row));
    if (report->tokens > 0)
        json_object_set_new(json, "days", json_real(report_days(row, report->tokens)));
    return json;
}

double report_efficiency(const struct report_training *report, int index) {
    const struct search_result *first = &report->results[0], *result = &report->results[index];
    if (!first->counts.listed || !result->counts.listed)
        return 0;
    return samples_per_s(&result->rows[0]) / result->ranks / (samples_per_s(&first->rows[0]) / first->ranks);
}

static json_t *result_json(const struct report_training *report, int index) {
    const struct search_result *result = &report->results[index];
    const struct search_counts *c = &result->counts;
    json_t *rows = json_array();
    for (int64_t i = 0; i < c->listed; i++)
        json_array_append_new(rows, row_json(report, &result->rows[i]));
    json_t *refused_by = json_object(), *works = json_array();
    for (int i = 0; i < SEARCH_REFUSALS && c->refusals[i].name; i++)
        json_object_set_new(refused_by, c->refusals[i].name, json_integer((json_int_t)c->refusals[i].count));
    for (int i = 0; i < 2; i++)
        if (result->works[i])
            json_array_append_new(works, json_integer(result->works[i]));
    json_t *closest = result->has_nearest ? row_json(report, &result->nearest) : json_null();
    json_t *fit = result->fit_ranks
                      ? json_pack("{s:i, s:o}", "devices", result->fit_ranks, "row", row_json(report, &result->fit))
                      : json_null();
    return json_pack("{s:f, s:i, s:f, s:f, s:{s:I, s:I, s:o, s:I, s:I, s:I}, s:o, s:o, s:o, s:o}", "nodes",
                     (double)result->ranks / (double)report->cluster->per_node, "devices", result->ranks, "efficiency",
                     report_efficiency(report, index), "search_seconds", result->seconds, "candidates", "all",
                     (json_int_t)c->all, "refused", (json_int_t)c->refused, "refused_by", refused_by, "no_memory",
                     (json_int_t)c->no_memory, "slower", (json_int_t)c->slower, "listed", (json_int_t)c->listed, "rows",
                     rows, "nearest", fit, "closest", closest, "devices_that_work", works);
}

/* Returns the size that ends in the plan's days by the rule. */
static double rule_billions(const struct report_training *report) {
    return size_rule_billions(report->days, report->tokens, report->results[0].ranks, REPORT_RULE_FLOPS);
}

json_t *report_training(const struct report_training *report) {
    json_t *plans = json_array();
    for (int i = 0; i < report->count; i++)
        json_array_append_new(plans, result_json(report, i));
    const struct run_config *c = &report->model->config;
    double billions = report->billions;
    const struct search_result *first = &report->results[0];
    double days = report->tokens > 0 ? size_rule_days(billions, report->tokens, first->ranks, REPORT_RULE_FLOPS) : 0;
    double of_rule = report->days > 0 ? rule_billions(report) : billions;
    return json_pack("{s:s, s:s, s:s, s:s, s:{s:f, s:I, s:I, s:I}, s:{s:f, s:f, s:f}, s:o}", "plan", "train", "cluster",
                     report->cluster->name ? report->cluster->name : "", "stack",
                     cluster_training_stacks[report->cluster->train], "constants", report->cluster->source, "model",
                     "parameters", billions * 1e9, "num_layers", (json_int_t)c->model.num_layers, "hidden_size",
                     (json_int_t)c->model.hidden_size, "num_attention_heads", (json_int_t)c->model.num_attention_heads,
                     "rule", "tflops", REPORT_RULE_FLOPS / 1e12, "billions", of_rule, "days",
                     report->days > 0 ? report->days : days, "plans", plans);
}

/* ---- the table ---- */

static void print_row(const struct report_training *report, const struct search_row *row, int64_t number, FILE *out) {
    static const char *const ends[] = {"-", "emb", "loss", "both"}; /* that count as layers */
    const struct run_config *c = &row->run.config;
    int counted =
        c->parallel.account_for_embedding_in_pipeline_split + 2 * c->parallel.account_for_loss_in_pipeline_split;
    char text[64];
    fprintf(out, "%3lld %6d %5d %6d %4s %5d %5lld %5d %3s %-18s %-10s", (long long)number, row->grid.tensor,
            row->grid.pipeline, row->shape.chunks, ends[counted], row->grid.data, (long long)c->train.micro_batch_size,
            row->shape.micro_batches, c->parallel.sequence_parallel ? "yes" : "-", run_shardings[run_sharding(c)],
            recompute_text(c, text));
    double flops = report_flops(row, true);
    fprintf(out, " %9s %7s %5s", report_number(row->step.seconds).text, report_number(flops / 1e12).text,
            report_number(100 * flops / peak_of(report->cluster, row)).text);
    if (report->tokens > 0)
        fprintf(out, " %7s", report_number(report_days(row, report->tokens)).text);
    fprintf(out, " %7.1f\n", (double)row->memory.device / 1e9);
}

/* Prints what FP8 and sharded weights save in the rows that have them. */
static void print_savings(const struct search_result *result, FILE *out) {
    bool has_header = false;
    for (int64_t r = 0; r < result->counts.listed; r++)
        for (int i = 0; i < SEARCH_FEATURES; i++) {
            const struct search_row *row = &result->rows[r];
            const struct search_saving *saving = &row->saved[i];
            if (!saving->is_known)
                continue;
            if (!has_header)
                fprintf(out, "row with  time saved, %%  memory saved, GB   (against the same layout without)\n");
            has_header = true;
            fprintf(out, "%3lld %-4s %14.1f %17.1f\n", (long long)r + 1, search_features[i],
                    100 * saving->seconds / (row->step.seconds + saving->seconds), saving->bytes / 1e9);
        }
}

/* Prints the numbers of devices, or of nodes, that have a layout. */
static void print_works(const struct search_result *result, const struct cluster *cluster, FILE *out) {
    bool are_nodes = result->ranks % cluster->per_node == 0;
    int below = result->works[0], above = result->works[1], per = are_nodes ? (int)cluster->per_node : 1;
    if (below || above)
        fprintf(out, "no layout divides %d %s; nearest that work: ", result->ranks / per,
                are_nodes ? "nodes" : "devices");
    if (below)
        fprintf(out, "%d%s", below / per, above ? " and " : "\n");
    if (above)
        fprintf(out, "%d\n", above / per);
}

/* Prints the layout of a row after a word, and the memory that it takes. */
static void print_layout(const struct search_row *row, FILE *out) {
    char text[64];
    fprintf(out, "tensor %d, pipeline %d, micro batch %lld, recomputation %s takes %.1f GB", row->grid.tensor,
            row->grid.pipeline, (long long)row->run.config.train.micro_batch_size,
            recompute_text(&row->run.config, text), (double)row->memory.device / 1e9);
}

void report_training_print(const struct report_training *report, FILE *out) {
    double error = report->cluster->achieved[CLUSTER_ERROR].value;
    if (report->days > 0)
        fprintf(out,
                "%.3g billion parameters are the most that end in %g days; by the rule 8TP/(nX) at %g TFLOP/s they are "
                "%.3g\n",
                report->billions, report->days, REPORT_RULE_FLOPS / 1e12, rule_billions(report));
    fprintf(out, REPORT_CONSTANTS, report->cluster->source, 100 * report->cluster->achieved[CLUSTER_ERROR].value);
    for (int i = 0; i < report->count; i++) {
        const struct search_result *result = &report->results[i];
        const struct search_counts *c = &result->counts;
        fprintf(out, "%s%d devices: %lld layouts, %lld refused", i ? "\n" : "", result->ranks, (long long)c->all,
                (long long)c->refused);
        if (!c->listed) {
            for (int k = 0; k < SEARCH_REFUSALS && c->refusals[k].name; k++)
                fprintf(out, "%s%lld by %s", k ? ", " : " (", (long long)c->refusals[k].count, c->refusals[k].name);
            fprintf(out, "%s", c->refused ? ")" : "");
        }
        fprintf(out, ", %lld without memory, %lld slower, %lld listed (%.1f s); efficiency %.1f%%\n",
                (long long)c->no_memory, (long long)c->slower, (long long)c->listed, result->seconds,
                100 * report_efficiency(report, i));
        print_works(result, report->cluster, out);
        if (result->has_nearest) {
            fprintf(out, "nothing fits; nearest: ");
            print_layout(&result->nearest, out);
            fprintf(out, " of %.1f GB\n", report->cluster->memory.value / 1e9);
        }
        if (result->fit_ranks) {
            fprintf(out, "this fits: %d devices, ", result->fit_ranks);
            print_layout(&result->fit, out);
            fprintf(out, " and %s s\n", report_number(result->fit.step.seconds).text);
        }
        if (!c->listed)
            continue;
        fprintf(out, "the step of row 1 takes %s s\n", report_range(result->rows[0].step.seconds, error).text);
        fprintf(out,
                "row tensor  pipe chunks ends  data micro steps seq sharding           recompute    step, s TFLOP/s  "
                "peak%s mem, GB\n",
                report->tokens > 0 ? "    days" : "");
        for (int64_t r = 0; r < c->listed; r++)
            print_row(report, &result->rows[r], r + 1, out);
        print_savings(result, out);
    }
}
