/* Writes the page of a training plan. */
#include "page-internal.h"

#include "planner/picture.h"

#include <math.h>

enum { WIDTH = PAGE_WIDTH, HEIGHT = PAGE_HEIGHT, MARGIN = PAGE_MARGIN, BAR = 18 };
#define INVISIBLE 0.02 /* width of a bar that no screen shows */

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<style>\n"
    ":root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#999}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181818;--line:#777}}\n"
    "@media print{:root{--ink:#000;--paper:#fff}}\n"
    "body{font:16px/1.5 sans-serif;color:var(--ink);background:var(--paper);max-width:60em;margin:auto;padding:1em}\n"
    "svg{width:100%;height:auto}svg text{font:12px sans-serif;fill:var(--ink)}\n"
    ".wrap{overflow-x:auto;background:" /* a shadow at the right until the end is in sight */
    "linear-gradient(var(--paper),var(--paper)) right/1.5em 100% no-repeat local,"
    "linear-gradient(to left,#8888,transparent) right/1em 100% no-repeat scroll}\n"
    "th,.legend span{white-space:nowrap}table{border-collapse:collapse;font-size:14px}td,th{padding:.2em "
    ".6em;text-align:right}\n"
    "pre{font:12.5px/1.5 monospace;white-space:pre-wrap}.long{min-width:44em}\n" /* 120 columns fit */
    "@media(max-width:62em){pre{white-space:pre}svg text{font-size:15px}.long svg text{font-size:12px}}\n"
    "tr{border-bottom:1px solid var(--line)}line{stroke:var(--line)}.limit{stroke:#c33;stroke-dasharray:4}\n"
    ".grid{opacity:.3}.legend i{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 0}.legend "
    "span{margin-right:1em}\n"
    ".point{fill:#aaa;opacity:.6}.pareto{fill:#5a5}.dot{fill:#4c8bc0}.best{fill:#e08a3c}\n"
    ".p0{fill:#4c8bc0;background:#4c8bc0}.p1{fill:#7ab;background:#7ab}.p2{fill:#bbb;background:#bbb}"
    ".p3{fill:#5a5;background:#5a5}.p4{fill:#a7c;background:#a7c}\n"
    ".p5{fill:#eee;stroke:#999;background:#ccc}.p6{fill:#e08a3c;background:#e08a3c}.p7{fill:#c55;background:#c55}\n"
    "</style>\n";

void page_begin(const char *title, struct strbuf *out) {
    strbuf_format(out, "%s<title>%s</title>\n</head>\n<body>\n<h1>%s</h1>\n", head, title, title);
}

void page_add_escaped(struct strbuf *out, const char *text) {
    for (; *text; text++)
        switch (*text) {
        case '<':
            strbuf_add_text(out, "&lt;");
            break;
        case '>':
            strbuf_add_text(out, "&gt;");
            break;
        case '&':
            strbuf_add_text(out, "&amp;");
            break;
        default:
            strbuf_add_char(out, *text);
        }
}

int page_add_printed(struct strbuf *out, void (*print)(const void *context, FILE *out), const void *context) {
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    TRY(status_allocated(stream));
    print(context, stream);
    bool is_written = !fclose(stream);
    strbuf_add_text(out, "<div class=\"wrap\"><pre>");
    if (is_written)
        page_add_escaped(out, text);
    strbuf_add_text(out, "</pre></div>\n");
    free(text);
    return status_allocated(is_written);
}

static const char *const part_names[] = {"products", "other",  "floor",     "tensor",
                                         "stages",   "bubble", "gradients", "optimizer"};
enum { PARTS = sizeof part_names / sizeof *part_names };

static void parts_of(const struct cost_step *s, double parts[PARTS]) {
    const double all[PARTS] = {s->work.products, s->work.other, s->work.floor, s->work.tensor,
                               s->stages,        s->bubble,     s->gradients,  s->optimizer};
    for (int i = 0; i < PARTS; i++)
        parts[i] = fmax(all[i], 0);
}

/* Explains the colours of bars. */
static void add_legend(const char *const *names, int count, struct strbuf *out) {
    strbuf_add_text(out, "<p class=\"legend\">");
    for (int i = 0; i < count; i++)
        strbuf_format(out, "<span><i class=\"p%d\"></i>%s</span> ", i, names[i]);
    strbuf_add_text(out, "</p>\n");
}

/* ---- step time over memory ---- */

/* A mark of the scatter: a row, or a point that is none. */
struct mark {
    struct search_point at;
    int64_t row; /* from 1; 0: a point */
};

static struct mark mark_of(const struct search_result *result, int64_t index) {
    int64_t rows = result->counts.listed;
    if (index >= rows)
        return (struct mark){result->points[index - rows], 0};
    return (struct mark){search_point_of(&result->rows[index]), index + 1};
}

/* Returns true if no other mark has both less time and less memory. */
static bool is_pareto(const struct search_result *result, const struct mark *mark) {
    for (int64_t i = 0; i < result->counts.listed + result->point_count; i++) {
        struct search_point at = mark_of(result, i).at;
        if (at.seconds < mark->at.seconds && at.bytes < mark->at.bytes)
            return false;
    }
    return true;
}

/* The axes: memory from 0, and a logarithmic one of time. */
struct axes {
    double bytes, least, most; /* the maximum number of bytes; the minimum and maximum seconds */
};

static double x_of(const struct axes *axes, double bytes) {
    return MARGIN + bytes / axes->bytes * (WIDTH - MARGIN - 20);
}

static double y_of(const struct axes *axes, double seconds) {
    return (HEIGHT - 30) * (1 - log(seconds / axes->least) / log(axes->most / axes->least));
}

static void add_mark(const struct search_result *result, const struct mark *mark, const struct axes *axes,
                     struct strbuf *out) {
    const char *class = mark->row == 1 ? "best" : is_pareto(result, mark) ? "pareto" : mark->row ? "dot" : "point";
    strbuf_format(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"><title>", class,
                  x_of(axes, mark->at.bytes), y_of(axes, mark->at.seconds), mark->row ? 6 : 3);
    if (mark->row)
        strbuf_format(out, "row %lld: ", (long long)mark->row);
    strbuf_format(out, "%.4g s, %.1f GB, tensor %d, pipeline %d%s</title></circle>\n", mark->at.seconds,
                  mark->at.bytes / 1e9, mark->at.tensor, mark->at.pipeline,
                  strcmp(class, "pareto") ? "" : ", in the Pareto set");
}

/* Adds lines with their numbers: seconds at 1, 2 and 5 of each power of ten, and quarters of the limit. */
static void add_ticks(const struct axes *axes, double limit, struct strbuf *out) {
    static const double steps[] = {1, 2, 5};
    for (double power = pow(10, floor(log10(axes->least))); power < axes->most; power *= 10)
        for (int i = 0; i < 3; i++) {
            double seconds = steps[i] * power, y = y_of(axes, seconds);
            if (seconds > axes->least && seconds < axes->most)
                strbuf_format(out,
                              "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                              "<text x=\"0\" y=\"%.1f\">%g s</text>\n",
                              MARGIN, y, WIDTH, y, y + 4, seconds);
        }
    for (int i = 0; limit * i / 4 <= axes->bytes; i++)
        strbuf_format(out, "<text x=\"%.1f\" y=\"%d\">%.3g</text>\n", x_of(axes, limit * i / 4) - 6, HEIGHT - 16,
                      limit * i / 4e9);
}

/* Adds step times over memory, with the limit. Marks beyond twice the limit or a hundred times the best time are left
 * out. */
static void add_scatter(const struct report_training *report, const struct search_result *result, struct strbuf *out) {
    double limit = report->cluster->memory.value;
    struct axes axes = {limit, INFINITY, 0};
    int64_t count = result->counts.listed + result->point_count, shown = 0;
    for (int64_t i = 0; i < count; i++)
        axes.least = fmin(axes.least, mark_of(result, i).at.seconds);
    for (int64_t i = 0; i < count; i++) {
        struct search_point at = mark_of(result, i).at;
        axes.bytes = fmax(axes.bytes, fmin(at.bytes, 2 * limit));
        axes.most = fmax(axes.most, fmin(at.seconds, 100 * axes.least));
    }
    const double farthest = axes.most;
    axes.least *= 0.9;
    axes.most *= 1.1;
    double x = x_of(&axes, limit);
    strbuf_format(out,
                  "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>Step time over memory</title>\n"
                  "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/><line x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%d\"/>\n"
                  "<line class=\"limit\" x1=\"%.1f\" y1=\"0\" x2=\"%.1f\" y2=\"%d\"/>\n"
                  "<text x=\"%d\" y=\"%d\">GB of a device; the limit is %.0f</text>\n",
                  WIDTH, HEIGHT, MARGIN, HEIGHT - 30, WIDTH, HEIGHT - 30, MARGIN, MARGIN, HEIGHT - 30, x, x,
                  HEIGHT - 30, MARGIN, HEIGHT - 2, limit / 1e9);
    if (count)
        add_ticks(&axes, limit, out);
    for (int64_t i = count; i-- > 0;) {
        struct mark mark = mark_of(result, i);
        if (mark.at.bytes > axes.bytes || mark.at.seconds > farthest)
            continue;
        add_mark(result, &mark, &axes, out);
        shown++;
    }
    strbuf_format(
        out,
        "</svg>\n<p>%lld of %lld layouts, with seconds on a logarithmic axis. Orange: the best; blue: further "
        "rows; green: the Pareto set; grey: others.</p>\n",
        (long long)shown, (long long)result->counts.all);
}

/* ---- a row's stages ---- */

/* Adds a bar for the memory of each stage, divided by purpose, and the same as a table. */
static void add_stages(const struct report_training *report, const struct page_row *row, struct strbuf *out) {
    static const char *const purposes[] = {"weights", "gradients", "optimizer", "activations", "workspace"};
    int stages = row->walk.shape.stages;
    double scale = (WIDTH - MARGIN) / report->cluster->memory.value;
    struct strbuf table = STRBUF_INIT;
    strbuf_format(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>Memory of each stage</title>\n", WIDTH,
                  stages * BAR + 4);
    for (int stage = 0; stage < stages; stage++) {
        const struct plan_memory *m = &row->memory[stage];
        const size_t bytes[] = {m->weights, m->gradients, m->optimizer, m->activations, m->workspace};
        double x = MARGIN;
        strbuf_format(out, "<text x=\"0\" y=\"%d\">stage %d</text>", stage * BAR + 13, stage);
        strbuf_format(&table, "<tr><td>%d</td>", stage);
        for (int i = 0; i < 5; i++) {
            double width = (double)bytes[i] * scale;
            if (width >= INVISIBLE)
                strbuf_format(
                    out,
                    "<rect class=\"p%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>stage %d, %s: "
                    "%.2f GB</title></rect>\n",
                    i, x, stage * BAR + 1, width, BAR - 3, stage, purposes[i], (double)bytes[i] / 1e9);
            strbuf_format(&table, "<td>%.2f</td>", (double)bytes[i] / 1e9);
            x += width;
        }
        strbuf_format(&table, "<td>%.2f</td></tr>\n", (double)m->device / 1e9);
    }
    strbuf_add_text(out, "</svg>\n");
    add_legend(purposes, 5, out);
    strbuf_add_text(out, "<div class=\"wrap\"><table><tr><th>stage</th>");
    for (int i = 0; i < 5; i++)
        strbuf_format(out, "<th>%s, GB</th>", purposes[i]);
    strbuf_format(out, "<th>device, GB</th></tr>\n%s</table></div>\n", strbuf_text(&table));
    strbuf_free(&table);
}

/* ---- scaling ---- */

/* Adds the efficiency of each number of devices as a bar, and the best step as text. */
static void add_scaling(const struct report_training *report, struct strbuf *out) {
    strbuf_format(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>Scaling</title>\n", WIDTH,
                  report->count * BAR + 4);
    for (int i = 0; i < report->count; i++) {
        const struct search_result *result = &report->results[i];
        double share = report_efficiency(report, i);
        strbuf_format(out, "<text x=\"0\" y=\"%d\">%d</text>", i * BAR + 13, result->ranks);
        if (!result->counts.listed)
            continue;
        strbuf_format(out,
                      "<rect class=\"p0\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>"
                      "<text x=\"%d\" y=\"%d\">%.1f%%, %.4g s a step</text>\n",
                      MARGIN, i * BAR + 1, fmin(share, 1) * (WIDTH - MARGIN), BAR - 3, MARGIN + 4, i * BAR + 13,
                      100 * share, result->rows[0].step.seconds);
    }
    strbuf_add_text(out, "</svg>\n");
}

/* ---- where the time goes ---- */

/* Adds a bar for each row, divided by the causes of its time. */
static void add_bars(const struct search_result *result, struct strbuf *out) {
    double most = 0;
    for (int64_t i = 0; i < result->counts.listed; i++)
        most = fmax(most, result->rows[i].step.seconds);
    strbuf_format(out, "<svg viewBox=\"0 0 %d %lld\" role=\"img\"><title>Where the time goes</title>\n", WIDTH,
                  (long long)result->counts.listed * BAR + 4);
    for (int64_t i = 0; i < result->counts.listed; i++) {
        double parts[PARTS], x = MARGIN;
        parts_of(&result->rows[i].step, parts);
        strbuf_format(out, "<text x=\"0\" y=\"%lld\">row %lld</text>", (long long)i * BAR + 13, (long long)i + 1);
        for (int part = 0; part < PARTS; part++) {
            double width = parts[part] / most * (WIDTH - MARGIN);
            if (width >= INVISIBLE)
                strbuf_format(
                    out,
                    "<rect class=\"p%d\" x=\"%.2f\" y=\"%lld\" width=\"%.2f\" height=\"%d\"><title>row %lld, %s: "
                    "%.4g s</title></rect>\n",
                    part, x, (long long)i * BAR + 1, width, BAR - 3, (long long)i + 1, part_names[part], parts[part]);
            x += width;
        }
    }
    strbuf_add_text(out, "</svg>\n");
    add_legend(part_names, PARTS, out);
}

static void add_times(const struct search_result *result, struct strbuf *out) {
    strbuf_add_text(out, "<div class=\"wrap\"><table><tr><th>row</th>");
    for (int part = 0; part < PARTS; part++)
        strbuf_format(out, "<th>%s, s</th>", part_names[part]);
    strbuf_add_text(out, "</tr>\n");
    for (int64_t i = 0; i < result->counts.listed; i++) {
        double parts[PARTS];
        parts_of(&result->rows[i].step, parts);
        strbuf_format(out, "<tr><td>%lld</td>", (long long)i + 1);
        for (int part = 0; part < PARTS; part++)
            strbuf_format(out, "<td>%.3g</td>", parts[part]);
        strbuf_add_text(out, "</tr>\n");
    }
    strbuf_add_text(out, "</table></div>\n");
}

static void print_report(const void *report, FILE *out) {
    report_training_print(report, out);
}

int page_training(const struct report_training *report, const struct page_row *row, struct strbuf *out) {
    const struct search_result *first = &report->results[0];
    page_begin("Training plan", out);
    strbuf_add_text(out, "<p>");
    page_add_escaped(out, report->cluster->name ? report->cluster->name : "a cluster");
    strbuf_format(out, ", %.3g billion parameters. Constants: ", report->billions);
    page_add_escaped(out, report->cluster->source ? report->cluster->source : "neutral");
    strbuf_add_text(out, ".</p>\n<h2>Layouts</h2>\n");
    int status = page_add_printed(out, print_report, report);
    strbuf_add_text(out, "<h2>Step time over memory</h2>\n");
    add_scatter(report, first, out);
    strbuf_add_text(out, "<h2>Where the time goes</h2>\n");
    add_bars(first, out);
    add_times(first, out);
    strbuf_format(out, "<h2>The timeline of row %lld</h2>\n<div class=\"wrap\"><div class=\"long\">\n",
                  (long long)row->number);
    THEN(status, picture_timeline(&row->walk, out));
    strbuf_add_text(out, "</div></div>\n");
    strbuf_format(out, "<h2>The memory of row %lld</h2>\n", (long long)row->number);
    add_stages(report, row, out);
    strbuf_add_text(out, "<h2>Devices, and the efficiency of each compared with the first number</h2>\n");
    add_scaling(report, out);
    strbuf_add_text(out, "</body>\n</html>\n");
    return status ? status : strbuf_status(out);
}
