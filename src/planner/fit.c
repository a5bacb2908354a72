/* Fits constants by Levenberg and Marquardt's method, on the logarithms of constants and of step times. */
#include "planner/fit.h"

#include <math.h>

enum { MOST_ROUNDS = 60 };

const struct fit_kind *fit_kind_of(const struct fit_rows *rows) {
    static const struct fit_kind training = {
        5, {CLUSTER_PRODUCTS, CLUSTER_SMALL_DIMENSION, CLUSTER_OTHER, CLUSTER_LAYER_FORWARD, CLUSTER_NETWORK}};
    static const struct fit_kind serving = {8,
                                            {CLUSTER_SERVE_PRODUCTS, CLUSTER_SERVE_SMALL_DIMENSION,
                                             CLUSTER_SERVE_MEMORY, CLUSTER_SERVE_HIDDEN, CLUSTER_SERVE_LAYER,
                                             CLUSTER_SERVE_SUM, CLUSTER_SERVE_SUM_RANK, CLUSTER_SERVE_STEP}};
    return rows->is_serving ? &serving : &training;
}

static void set_constant(struct cluster *cluster, enum cluster_constant which, double value) {
    struct config_quantity *constant = &cluster->achieved[which];
    constant->value = fmin(fmax(value, constant->low), constant->high);
    if (which == CLUSTER_LAYER_FORWARD) {
        struct config_quantity *backward = &cluster->achieved[CLUSTER_LAYER_BACKWARD];
        backward->value = fmin(fmax(2 * constant->value, backward->low), backward->high);
    }
}

/* Predicts a row. `walk` as in cost_step. */
static int predict(const struct fit_row *row, const struct cluster *cluster, struct cost_step *step,
                   struct walk *walk) {
    struct serve_times times;
    if (!row->serving.layout.batch)
        return cost_step(&row->run, (int)(row->nodes * cluster->per_node), &row->work, cluster, step, walk);
    serve_times_find(&row->serving, cluster, &times);
    *step = (struct cost_step){.seconds = times.latency};
    return STATUS_OK;
}

int fit_predict(struct fit_rows *rows, const struct cluster *cluster) {
    int status = STATUS_OK;
    for (int i = 0; i < rows->count && !status; i++) {
        struct fit_row *row = &rows->rows[i];
        struct walk walk = {0};
        status = predict(row, cluster, &row->step, &walk);
        walk_free(&walk);
        if (status)
            status_wrap(status, "%s", row->label);
    }
    return status;
}

/* Predicts the marked rows and stores their errors; returns their sum of squares, below 0 for a failure. */
static double errors_of(struct fit_rows *rows, const struct cluster *cluster, double *errors) {
    double sum = 0;
    for (int i = 0; i < rows->count; i++) {
        struct fit_row *row = &rows->rows[i];
        struct cost_step step;
        errors[i] = 0;
        if (!row->is_fitted)
            continue;
        if (predict(row, cluster, &step, NULL))
            return -1;
        errors[i] = log(step.seconds / row->seconds);
        sum += errors[i] * errors[i];
    }
    return sum;
}

/* Solves a x = b by elimination, in place; x comes in b. a is positive definite. */
static void solve(int count, double a[FIT_CONSTANTS][FIT_CONSTANTS], double b[FIT_CONSTANTS]) {
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count; j++) {
            double factor = a[j][i] / a[i][i];
            for (int k = i; k < count; k++)
                a[j][k] -= factor * a[i][k];
            b[j] -= factor * b[i];
        }
    for (int i = count - 1; i >= 0; i--) {
        for (int k = i + 1; k < count; k++)
            b[i] -= a[i][k] * b[k];
        b[i] /= a[i][i];
    }
}

struct fitting {
    struct fit_rows *rows;
    struct cluster *cluster;
    const struct fit_kind *kind;
    double *errors, *moved;        /* [rows] */
    double *slopes[FIT_CONSTANTS]; /* [rows] of the errors, by the logarithm of each constant */
    double sum;                    /* of the squares */
};

/* Finds the slopes of the errors at the present constants. Returns false after a failure. */
static bool find_slopes(struct fitting *fit) {
    const double by = 1e-3;
    for (int c = 0; c < fit->kind->count; c++) {
        double value = fit->cluster->achieved[fit->kind->constants[c]].value;
        bool is_high = value * (1 + by) > fit->cluster->achieved[fit->kind->constants[c]].high;
        set_constant(fit->cluster, fit->kind->constants[c], is_high ? value / (1 + by) : value * (1 + by));
        double sum = errors_of(fit->rows, fit->cluster, fit->moved);
        set_constant(fit->cluster, fit->kind->constants[c], value);
        for (int i = 0; i < fit->rows->count; i++)
            fit->slopes[c][i] = (fit->moved[i] - fit->errors[i]) / (is_high ? -log1p(by) : log1p(by));
        if (sum < 0)
            return false;
    }
    return true;
}

/* Tries a step that `damping` shortens. Returns true if it makes the errors smaller, and else takes it back. */
static bool try_step(struct fitting *fit, double damping) {
    double a[FIT_CONSTANTS][FIT_CONSTANTS] = {{0}}, b[FIT_CONSTANTS] = {0}, before[FIT_CONSTANTS];
    for (int c = 0; c < fit->kind->count; c++) {
        for (int d = 0; d < fit->kind->count; d++)
            for (int i = 0; i < fit->rows->count; i++)
                a[c][d] += fit->slopes[c][i] * fit->slopes[d][i];
        for (int i = 0; i < fit->rows->count; i++)
            b[c] -= fit->slopes[c][i] * fit->errors[i];
        a[c][c] += damping * (a[c][c] + 1e-3);
        before[c] = fit->cluster->achieved[fit->kind->constants[c]].value;
    }
    solve(fit->kind->count, a, b);
    for (int c = 0; c < fit->kind->count; c++)
        set_constant(fit->cluster, fit->kind->constants[c], before[c] * exp(fmin(fmax(b[c], -0.7), 0.7)));
    double sum = errors_of(fit->rows, fit->cluster, fit->moved);
    if (sum >= 0 && sum < fit->sum) {
        fit->sum = sum;
        memcpy(fit->errors, fit->moved, (size_t)fit->rows->count * sizeof *fit->errors);
        return true;
    }
    for (int c = 0; c < fit->kind->count; c++)
        set_constant(fit->cluster, fit->kind->constants[c], before[c]);
    return false;
}

static void descend(struct fitting *fit) {
    double damping = 1e-2;
    for (int round = 0; round < MOST_ROUNDS && find_slopes(fit); round++) {
        double before = fit->sum;
        bool is_better = false;
        for (int tries = 0; tries < 8 && !is_better; tries++) {
            is_better = try_step(fit, damping);
            damping = is_better ? fmax(damping / 5, 1e-6) : damping * 5;
        }
        if (!is_better || before - fit->sum < 1e-4 * before)
            return;
    }
}

static double largest_error(const struct fit_rows *rows) {
    double largest = 0;
    for (int i = 0; i < rows->count; i++)
        largest = fmax(largest, fabs(fit_error(&rows->rows[i])));
    return largest;
}

int fit_run(struct fit_rows *rows, struct cluster *cluster) {
    double numbers[FIT_CONSTANTS + 2][FIT_MOST_ROWS];
    struct fitting fit = {.rows = rows, .cluster = cluster, .kind = fit_kind_of(rows)};
    if (rows->count > FIT_MOST_ROWS)
        return status_fail(STATUS_USAGE, "%d rows; a fit takes at most %d", rows->count, FIT_MOST_ROWS);
    fit.errors = numbers[FIT_CONSTANTS];
    fit.moved = numbers[FIT_CONSTANTS + 1];
    for (int c = 0; c < fit.kind->count; c++) {
        fit.slopes[c] = numbers[c];
        set_constant(cluster, fit.kind->constants[c], cluster_neutral(fit.kind->constants[c]).value);
    }
    TRY(fit_predict(rows, cluster));
    fit.sum = errors_of(rows, cluster, fit.errors);
    descend(&fit);
    int status = fit_predict(rows, cluster);
    if (!status)
        set_constant(cluster, rows->is_serving ? CLUSTER_SERVE_ERROR : CLUSTER_ERROR, largest_error(rows));
    return status;
}
