/* Measuring planned rows where the plan is made: plan train --measure. */
#pragma once

#include "planner/report.h"

struct plan_measuring {
    const struct cluster *cluster;
    const struct search_result *result;
    int64_t count, steps;
    const char *output; /* a directory; NULL: no files */
    double billions;    /* of the model */
    /* Writes a row's run file. */
    int (*write)(const void *context, const struct search_row *row, const char *path);
    const void *context;
};

/* Trains the first rows on threads of this process, in turns, and prints their predicted and measured times. A row that
 * fails is reported, and the next one runs. Writes final_summary_<n>nodes.csv, optimal_config_<size>b_<n>nodes.yaml,
 * candidate_configs/ and rows.yaml, which plan fit reads. STATUS_INVALID if every row failed; STATUS_IO,
 * STATUS_MEMORY. */
int plan_measure(const struct plan_measuring *measuring);
