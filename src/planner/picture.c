/* Draws timelines. Colours are classes of a style sheet, so that they follow a reader's dark mode. */
#include "planner/picture.h"

enum { WIDTH = 1000, ROW_HEIGHT = 18, MARGIN = 60 };

static const char *kind_name(const struct walk_event *event) {
    return event->step.kind == PIPELINE_FORWARD ? "forward" : "backward";
}

static void add_bar(const struct walk *walk, int stage, const struct walk_event *event, struct strbuf *out) {
    double scale = walk->makespan > 0 ? (WIDTH - MARGIN) / walk->makespan : 0;
    strbuf_format(out,
                  "<rect class=\"%s%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>stage %d: %s of micro "
                  "batch %d, chunk %d, %.6g to %.6g s</title></rect>\n",
                  kind_name(event), event->step.chunk % 2 ? " odd" : "", MARGIN + event->start * scale,
                  stage * ROW_HEIGHT, (event->end - event->start) * scale, ROW_HEIGHT - 3, stage, kind_name(event),
                  event->step.micro_batch, event->step.chunk, event->start, event->end);
}

int picture_timeline(const struct walk *walk, struct strbuf *out) {
    int height = walk->shape.stages * ROW_HEIGHT + 20;
    strbuf_format(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n"
                  "<title>Timeline of %d stages: a step takes %.6g s</title>\n"
                  "<style>text{font:11px sans-serif;fill:#333}.forward{fill:#4c8bc0}.backward{fill:#e08a3c}"
                  ".odd{opacity:.7}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n",
                  WIDTH, height, walk->shape.stages, walk->makespan);
    for (int stage = 0; stage < walk->shape.stages; stage++) {
        double idle = walk->makespan - walk->busy[stage];
        strbuf_format(out, "<text x=\"0\" y=\"%d\">stage %d<title>idle %.6g s</title></text>\n",
                      stage * ROW_HEIGHT + 12, stage, idle);
        for (int i = 0; i < walk->steps; i++)
            add_bar(walk, stage, walk_event_at(walk, stage, i), out);
    }
    strbuf_format(out, "<text x=\"%d\" y=\"%d\">0 to %.6g s; blue: forward, orange: backward, empty: bubble</text>\n",
                  MARGIN, height - 5, walk->makespan);
    strbuf_add_text(out, "</svg>\n");
    return strbuf_status(out);
}

int picture_trace(const struct walk *walk, struct strbuf *out) {
    strbuf_add_text(out, "{\"traceEvents\": [");
    for (int stage = 0; stage < walk->shape.stages; stage++)
        for (int i = 0; i < walk->steps; i++) {
            const struct walk_event *event = walk_event_at(walk, stage, i);
            strbuf_format(out,
                          "%s\n{\"name\": \"%s %d\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 0, \"tid\": %d, \"ts\": "
                          "%.3f, \"dur\": %.3f, \"args\": {\"chunk\": %d, \"micro_batch\": %d}}",
                          stage || i ? "," : "", event->step.kind == PIPELINE_FORWARD ? "F" : "B",
                          event->step.micro_batch, kind_name(event), stage, event->start * 1e6,
                          (event->end - event->start) * 1e6, event->step.chunk, event->step.micro_batch);
        }
    strbuf_add_text(out, "\n]}\n");
    return strbuf_status(out);
}
