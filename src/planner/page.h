/* A plan as one page, which needs no other file and no network. It reads well on a phone, on paper and in dark mode.
 * Every figure is there as text, too. */
#pragma once

#include "planner/report.h"

#include "base/base.h"

/* A row of the first search in detail. */
struct page_row {
    int64_t number; /* from 1 */
    struct walk walk;
    const struct plan_memory *memory; /* [walk.shape.stages] */
};
/* Adds the page. The first search has points, and its scatter shows them. STATUS_MEMORY. */
int page_training(const struct report_training *report, const struct page_row *row, struct strbuf *out);

/* The limits of a serving plan: seconds, and tokens/s of a layout; 0: none. */
struct page_limits {
    double latency, tokens_per_s;
};
/* Adds the page of a serving plan: tokens per second of a device over latency. STATUS_MEMORY. */
int page_serving(const struct serve_result *result, const struct cluster *cluster, const struct page_limits *limits,
                 struct strbuf *out);
