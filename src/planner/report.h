/* Plans as JSON, for programs. The caller owns the values (json_decref); functions that make JSON stand between
 * json_begin and json_end (base/json.h). */
#pragma once

#include "planner/fit.h"
#include "planner/search.h"
#include "planner/serve.h"
#include "planner/walk.h"

#include "base/json.h"

/* Makes {makespan, idle: [stages], steps: [{stage, kind, chunk, micro_batch, start, end}]}. Idle is the makespan less
 * the time in which the stage computes. */
json_t *report_walk(const struct walk *walk);
/* Makes {products, other, floor, tensor, stages, bubble, gradients, optimizer}, in seconds; they add up to the step. */
json_t *report_time(const struct cost_step *step);
/* Makes {constants: {NAME: {value, low, high, is_on_bound}}, rows: [{row, seconds, predicted, error, is_fitted}]}. */
json_t *report_fit(const struct fit_rows *fit, const struct cluster *cluster);

/* FLOP/s of a device in the rule 8TP/(nX). */
#define REPORT_RULE_FLOPS 140e12
/* A training plan: searches for several numbers of nodes. */
struct report_training {
    const struct cluster *cluster;
    const struct search_result *results; /* [count] */
    int count;
    const struct train_run *model; /* any resolved run of it */
    double billions;               /* of its parameters */
    double tokens;                 /* of the whole training; 0: unknown, and there are no days */
    double days;                   /* for which the size was found; 0: it was given */
};
/* Makes {plan, cluster, stack, model, rule, plans}: docs/planning.md. */
json_t *report_training(const struct report_training *report);
/* Returns the FLOP/s of a device in a row. `counts_all`: attention to later tokens counts, as in published rates; else
 * only what is computed counts. */
double report_flops(const struct search_row *row, bool counts_all);
/* Returns the throughput of a device in search `index`, compared with that in the first; 0: one of them has no row. */
double report_efficiency(const struct report_training *report, int index);
/* Returns the days that `tokens` take. */
double report_days(const struct search_row *row, double tokens);
/* Prints the same for people, at most 120 columns wide. */
void report_training_print(const struct report_training *report, FILE *out);

/* Makes {plan, cluster, stack, constants, best, rows}: docs/planning.md. */
json_t *report_serving(const struct serve_result *result, const struct cluster *cluster);
/* Prints the best row and the Pareto set, at most `top` rows. */
void report_serving_print(const struct serve_result *result, int top, FILE *out);

/* A line for people: where the constants come from, and the percentage by which times may be wrong. */
#define REPORT_CONSTANTS "constants: %s; the range is %.3g%% either way\n"
struct report_text {
    char text[48];
};
/* Writes a number of at least 0 with three significant digits. */
struct report_text report_number(double value);
/* Writes the range of a number that may be wrong by the share `error`. */
struct report_text report_range(double value, double error);
