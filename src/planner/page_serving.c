/* Writes the page of a serving plan. */
#include "page-internal.h"

#include <math.h>

enum { WIDTH = PAGE_WIDTH, HEIGHT = PAGE_HEIGHT, MARGIN = PAGE_MARGIN };

static void print_rows(const void *context, FILE *out) {
    const struct serve_result *result = context;
    report_serving_print(result, result->count, out);
}

static double tokens_of(const struct serve_row *row) {
    return row->times.tokens_per_s / (row->layout.tensor * row->layout.pipeline);
}

/* The place of a latency, and of tokens/s of a device, in the picture. Latencies stand on a scale of logarithms. */
struct scale {
    double least, most, tokens;
};

static double x_of(const struct scale *scale, double latency) {
    return MARGIN + 10 + log(latency / scale->least) / log(scale->most / scale->least) * (WIDTH - MARGIN - 30);
}

static double y_of(const struct scale *scale, double tokens) {
    return (HEIGHT - 30) * (1 - tokens / (1.1 * scale->tokens));
}

static void add_row(const struct serve_result *result, int index, const struct scale *scale, struct strbuf *out) {
    const struct serve_row *row = &result->rows[index];
    const char *class = index == result->best ? "best" : row->is_pareto ? "pareto" : row->is_allowed ? "dot" : "point";
    strbuf_format(out,
                  "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"><title>%.4g tokens/s of a device, %.4g ms, "
                  "tensor %d, pipeline %d, batch %lld%s%s</title></circle>\n",
                  class, x_of(scale, row->times.latency), y_of(scale, tokens_of(row)), row->is_pareto ? 6 : 4,
                  tokens_of(row), 1e3 * row->times.latency, row->layout.tensor, row->layout.pipeline,
                  (long long)row->layout.batch, row->is_pareto ? ", in the Pareto set" : "",
                  row->is_allowed ? "" : ", beyond the limits");
}

static void add_limit(const struct scale *scale, double latency, struct strbuf *out) {
    if (latency < scale->least || latency > scale->most)
        return;
    double x = x_of(scale, latency);
    strbuf_format(out,
                  "<line class=\"limit\" x1=\"%.1f\" y1=\"0\" x2=\"%.1f\" y2=\"%d\"><title>limit %.4g ms</title>"
                  "</line>\n",
                  x, x, HEIGHT - 30, 1e3 * latency);
}

static void add_scatter(const struct serve_result *result, const struct page_limits *limits, struct strbuf *out) {
    struct scale scale = {INFINITY, 0, 0};
    for (int i = 0; i < result->count; i++) {
        scale.least = fmin(scale.least, result->rows[i].times.latency);
        scale.most = fmax(scale.most, 1.01 * result->rows[i].times.latency);
        scale.tokens = fmax(scale.tokens, tokens_of(&result->rows[i]));
    }
    strbuf_format(out,
                  "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>Tokens per second of a device over latency</title>\n"
                  "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/><line x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%d\"/>\n",
                  WIDTH, HEIGHT, MARGIN, HEIGHT - 30, WIDTH, HEIGHT - 30, MARGIN, MARGIN, HEIGHT - 30);
    strbuf_format(
        out,
        "<text x=\"%d\" y=\"%d\">latency of a request, %.0f to %.0f ms, on a logarithmic axis</text><text x=\"0\" "
        "y=\"12\">%.0f "
        "tokens/s</text>\n",
        MARGIN, HEIGHT - 8, 1e3 * scale.least, 1e3 * scale.most, 1.1 * scale.tokens);
    add_limit(&scale, limits->latency, out);
    for (int i = result->count; i-- > 0;)
        add_row(result, i, &scale, out);
    strbuf_format(out, "</svg>\n<p>%d layouts; those of the Pareto set are green, and the best is orange.</p>\n",
                  result->count);
}

int page_serving(const struct serve_result *result, const struct cluster *cluster, const struct page_limits *limits,
                 struct strbuf *out) {
    page_begin("Serving plan", out);
    strbuf_add_text(out, "<p>");
    page_add_escaped(out, cluster->name ? cluster->name : "a cluster");
    strbuf_add_text(out, ". Constants: ");
    page_add_escaped(out, cluster->source ? cluster->source : "neutral");
    strbuf_add_text(out, ".");
    if (limits->latency > 0)
        strbuf_format(out, " At most %.4g ms.", 1e3 * limits->latency);
    if (limits->tokens_per_s > 0)
        strbuf_format(out, " At least %.4g tokens/s.", limits->tokens_per_s);
    strbuf_add_text(out, "</p>\n<h2>The best row, and the Pareto set</h2>\n");
    int status = page_add_printed(out, print_rows, result);
    strbuf_add_text(out, "<h2>Tokens per second of a device over latency</h2>\n");
    if (result->count)
        add_scatter(result, limits, out);
    strbuf_add_text(out, "</body>\n</html>\n");
    return status ? status : strbuf_status(out);
}
