/* Draws timelines. Where there are more steps than MOST_BARS, neighbours too small to see are drawn as one. Colours are
 * classes of a style sheet, so that they follow a reader's dark mode. */
#include "planner/picture.h"

enum { WIDTH = 1000, ROW_HEIGHT = 18, MARGIN = 60, MOST_BARS = 3000 };

static const char *kind_name(const struct walk_event *event) {
    return event->step.kind == PIPELINE_FORWARD ? "forward" : "backward";
}

static double scale_of(const struct walk *walk) {
    return walk->makespan > 0 ? (WIDTH - MARGIN) / walk->makespan : 0;
}

static void add_bar(const struct walk *walk, int stage, const struct walk_event *event, struct strbuf *out) {
    double scale = scale_of(walk);
    strbuf_format(out,
                  "<rect class=\"%s%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>stage %d: %s of micro "
                  "batch %d, chunk %d, %.6g to %.6g s</title></rect>\n",
                  kind_name(event), event->step.chunk % 2 ? " odd" : "", MARGIN + event->start * scale,
                  stage * ROW_HEIGHT, (event->end - event->start) * scale, ROW_HEIGHT - 3, stage, kind_name(event),
                  event->step.micro_batch, event->step.chunk, event->start, event->end);
}

/* Draws steps first .. last as two bars: the time of all forwards, then that of all backwards. */
static void add_merged(const struct walk *walk, int stage, int first, int last, struct strbuf *out) {
    double scale = scale_of(walk), seconds[2] = {0}, x = MARGIN + walk_event_at(walk, stage, first)->start * scale;
    int counts[2] = {0};
    for (int i = first; i <= last; i++) {
        const struct walk_event *event = walk_event_at(walk, stage, i);
        seconds[event->step.kind] += event->end - event->start;
        counts[event->step.kind]++;
    }
    for (int kind = 0; kind < 2; kind++) {
        if (counts[kind])
            strbuf_format(out,
                          "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>stage %d: %d "
                          "%ss, %.4g s</title></rect>\n",
                          kind == PIPELINE_FORWARD ? "forward" : "backward", x, stage * ROW_HEIGHT,
                          seconds[kind] * scale, ROW_HEIGHT - 3, stage, counts[kind],
                          kind == PIPELINE_FORWARD ? "forward" : "backward", seconds[kind]);
        x += seconds[kind] * scale;
    }
}

/* Draws the steps of a stage. Neighbours narrower than `least` are drawn together until they have that width. Gaps of a
 * third of it stay where they are; smaller ones follow the bars. */
static void add_stage(const struct walk *walk, int stage, double least, struct strbuf *out) {
    double scale = scale_of(walk);
    for (int first = 0, last; first < walk->steps; first = last + 1) {
        const struct walk_event *event = walk_event_at(walk, stage, first), *next;
        double end = event->end;
        for (last = first; last + 1 < walk->steps && (end - event->start) * scale < least; last++) {
            next = walk_event_at(walk, stage, last + 1);
            if ((next->start - end) * scale > least / 3 || (next->end - next->start) * scale >= least)
                break;
            end = next->end;
        }
        if (last == first)
            add_bar(walk, stage, event, out);
        else
            add_merged(walk, stage, first, last, out);
    }
}

int picture_timeline(const struct walk *walk, struct strbuf *out) {
    int height = walk->shape.stages * ROW_HEIGHT + 20;
    double bars = (double)walk->shape.stages * walk->steps;
    double least = bars > MOST_BARS ? 2.0 * walk->shape.stages * (WIDTH - MARGIN) / MOST_BARS : 0;
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
        add_stage(walk, stage, least, out);
    }
    strbuf_format(out, "<text x=\"%d\" y=\"%d\">0 to %.6g s; blue: forward, orange: backward, empty: bubble%s</text>\n",
                  MARGIN, height - 5, walk->makespan, least > 0 ? "; short steps are drawn together" : "");
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
