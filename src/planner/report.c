/* Plans as JSON. */
#include "planner/report.h"

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
