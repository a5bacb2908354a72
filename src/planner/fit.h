/* Constants of a cluster from figures that people have: logs, papers, measurements. */
#pragma once

#include "planner/cost.h"
#include "planner/run_file.h"
#include "planner/serve.h"

/* The seconds of a training step, or of a batch of requests, that somebody measured. */
struct fit_row {
    char *label; /* the row in words: its file and keys */
    struct run_file file;
    struct train_run run;
    struct cost_work work; /* of training */
    struct serve_work serving;
    int64_t nodes;
    double seconds;
    struct cost_step step; /* predicted; of serving, only its seconds */
    bool is_fitted;
};
struct fit_rows {
    struct fit_row *rows;
    int count;
    bool is_serving; /* else of training */
};

/* Returns the error of a row's prediction, as a share of what was measured. */
static inline double fit_error(const struct fit_row *row) {
    return row->step.seconds / row->seconds - 1;
}

/* The constants that are fitted. The floor of the backward is that of the forward, doubled. */
enum { FIT_CONSTANTS = 8, FIT_MOST_ROWS = 1024 };
struct fit_kind {
    int count;
    enum cluster_constant constants[FIT_CONSTANTS];
};
/* Returns the constants of training or of serving. */
const struct fit_kind *fit_kind_of(const struct fit_rows *rows);
/* Returns true if a constant that may move is on one of its bounds, so that the rows do not decide it. */
static inline bool fit_is_on_bound(const struct config_quantity *constant) {
    return constant->low < constant->high && (constant->value == constant->low || constant->value == constant->high);
}

/* Reads a YAML list of {config: FILE, nodes: N, step_seconds: T}, or for serving of {config: FILE, tensor: T, pipeline:
 * P, batch: B, input_len: I, output_len: O, latency_ms: L}. All rows are of one kind. A file's path is relative to the
 * list's. Further keys of a row override those of its file ("parallel.KEY: VALUE"). The caller frees *rows.
 * STATUS_USAGE with the line; STATUS_IO, STATUS_MEMORY. */
int fit_rows_read(const char *path, const struct cluster *cluster, struct fit_rows *rows);
void fit_rows_free(struct fit_rows *rows);
/* Predicts all rows. The errors of cost_step, with the row. */
int fit_predict(struct fit_rows *rows, const struct cluster *cluster);
/* Fits the constants to the rows that are marked, from neutral starts, within the bounds of cluster->achieved. The sum
 * of squares of the relative errors (as logarithms) is minimal. Then predicts all rows, and with rows of
 * training stores the largest error as the cluster's. */
int fit_run(struct fit_rows *rows, struct cluster *cluster);
