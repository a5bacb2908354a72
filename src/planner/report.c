/* Plans as JSON. */
#include "planner/report.h"

#include <math.h>

json_t *report_walk(const struct walk *walk) {
    json_t *idle = json_array(), *steps = json_array();
    for (int stage = 0; stage < walk->shape.stages; stage++) {
        json_array_append_new(idle, json_real(walk->makespan - walk->busy[stage]));
        for (int i = 0; i < walk->steps; i++) {
            const struct walk_event *event = walk_event_at(walk, stage, i);
            bool is_forward = event->step.kind == PIPELINE_FORWARD;
            json_array_append_new(steps, json_pack("{s:i, s:s, s:i, s:i, s:f, s:f}", "stage", stage, "kind",
                                                   is_forward ? "forward" : "backward", "chunk", event->step.chunk,
                                                   "micro_batch", event->step.micro_batch, "start", event->start, "end",
                                                   event->end));
        }
    }
    return json_pack("{s:f, s:o, s:o}", "makespan", walk->makespan, "idle", idle, "steps", steps);
}

json_t *report_time(const struct cost_step *step) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "products", step->work.products, "other",
                     step->work.other, "floor", step->work.floor, "tensor", step->work.tensor, "stages", step->stages,
                     "bubble", step->bubble, "gradients", step->gradients, "optimizer", step->optimizer);
}

json_t *report_fit(const struct fit_rows *fit, const struct cluster *cluster) {
    json_t *constants = json_object(), *rows = json_array();
    const struct fit_kind *kind = fit_kind_of(fit);
    for (int i = 0; i < kind->count; i++) {
        const struct config_quantity *constant = &cluster->achieved[kind->constants[i]];
        json_object_set_new(constants, cluster_constant_name(kind->constants[i]),
                            json_pack("{s:f, s:f, s:f, s:b}", "value", constant->value, "low", constant->low, "high",
                                      constant->high, "is_on_bound", (int)fit_is_on_bound(constant)));
    }
    for (int i = 0; i < fit->count; i++) {
        const struct fit_row *row = &fit->rows[i];
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:f, s:b, s:o}", "row", row->label, "seconds",
                                              row->seconds, "predicted", row->step.seconds, "error", fit_error(row),
                                              "is_fitted", row->is_fitted, "time", report_time(&row->step)));
    }
    return json_pack("{s:o, s:o}", "constants", constants, "rows", rows);
}

struct report_text report_number(double value) {
    struct report_text number;
    snprintf(number.text, sizeof number.text, "%.2e", value);
    double rounded = strtod(number.text, NULL);
    int digits = 2 - (rounded > 0 ? (int)floor(log10(rounded)) : 0);
    snprintf(number.text, sizeof number.text, "%.*f", digits > 0 ? digits : 0, rounded);
    return number;
}

struct report_text report_range(double value, double error) {
    struct report_text low = report_number(value / (1 + error)), high = report_number(value * (1 + error)), range;
    snprintf(range.text, sizeof range.text, "%.22s-%.22s", low.text, high.text);
    return range;
}
