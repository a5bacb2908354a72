/* cambium plan fit: constants of a cluster from step times that people have measured. */
#include "launch.h"
#include "plan.h"

#include "base/json.h"
#include "config/config.h"
#include "planner/fit.h"
#include "planner/report.h"

#include <math.h>

struct options {
    const char *cluster, *rows, *only, *output, *json;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    PLAN_CLUSTER_ROW(AT(cluster), "the cluster whose constants are fitted"),
    ROW_PATH("rows", AT(rows), "FILE.yaml",
             "a list of {config: RUN.yaml, nodes: N, step_seconds: T}, or of latencies; docs/planning.md has the keys",
             .is_required = true),
    ROW_TEXT("output", AT(output), "FILE", "write the cluster file with the fitted constants; - is standard output",
             .is_required = true),
    ROW_TEXT("only", AT(only), "R[,R...]", "fit only these rows, counted from 1; the others are predicted"),
    ROW_TEXT("json", AT(json), "FILE", "write constants and errors as JSON; - is standard output"),
};

/* Marks the rows that are fitted. */
static int choose(const struct options *options, struct fit_rows *fit) {
    double numbers[FIT_MOST_ROWS];
    int count,
        status = options->only ? plan_read_numbers("only", options->only, numbers, FIT_MOST_ROWS, &count) : STATUS_OK;
    if (!options->only || status)
        return status;
    for (int i = 0; i < fit->count; i++)
        fit->rows[i].is_fitted = false;
    for (int i = 0; i < count; i++) {
        if (numbers[i] < 1 || numbers[i] > fit->count || numbers[i] != floor(numbers[i]))
            return status_fail(STATUS_USAGE, "--only %s: expected rows from 1 to %d", options->only, fit->count);
        fit->rows[(int)numbers[i] - 1].is_fitted = true;
    }
    return STATUS_OK;
}

/* Prints each row's error, the largest and the mean of both kinds of rows, and the constants on standard error. */
static void print(const struct fit_rows *fit, const struct cluster *cluster) {
    double largest[2] = {0}, sum[2] = {0};
    int count[2] = {0};
    const struct fit_kind *kind = fit_kind_of(fit);
    for (int i = 0; i < fit->count; i++) {
        const struct fit_row *row = &fit->rows[i];
        double error = fit_error(row);
        log_info("%8.3f s measured, %8.3f s predicted, %+6.1f%%%s: %s", row->seconds, row->step.seconds, 100 * error,
                 row->is_fitted ? "" : ", not fitted", row->label);
        largest[row->is_fitted] = fmax(largest[row->is_fitted], fabs(error));
        sum[row->is_fitted] += fabs(error);
        count[row->is_fitted]++;
    }
    for (int is_fitted = 1; is_fitted >= 0; is_fitted--)
        if (count[is_fitted])
            log_info("%d rows %s: largest error %.1f%%, mean %.1f%%", count[is_fitted],
                     is_fitted ? "fitted" : "not fitted", 100 * largest[is_fitted],
                     100 * sum[is_fitted] / count[is_fitted]);
    for (int i = 0; i < kind->count; i++) {
        const struct config_quantity *constant = &cluster->achieved[kind->constants[i]];
        log_info("%s %.6g%s", cluster_constant_name(kind->constants[i]), constant->value,
                 fit_is_on_bound(constant) ? ", on its bound: the rows do not decide it" : "");
    }
}

static int write_cluster(const struct options *options, const struct fit_rows *fit, const struct cluster *cluster) {
    struct strbuf text = STRBUF_INIT;
    char source[128];
    int fitted = 0;
    for (int i = 0; i < fit->count; i++)
        fitted += fit->rows[i].is_fitted;
    snprintf(source, sizeof source, "fitted on %d of %d rows", fitted, fit->count);
    return plan_write_made(options->output, cluster_write(cluster, source, &text), &text);
}

static int fit_all(const struct options *options, struct cluster *cluster, struct fit_rows *fit) {
    int status = choose(options, fit);
    THEN(status, fit_run(fit, cluster));
    TRY(status);
    print(fit, cluster);
    json_begin();
    if (options->json)
        status = plan_write_json(options->json, report_fit(fit, cluster));
    return status ? status : write_cluster(options, fit, cluster);
}

static int run(const void *values, const struct config *given) {
    const struct options *options = values;
    struct cluster cluster;
    struct fit_rows fit;
    TRY(cluster_open(options->cluster, &cluster));
    int status = fit_rows_read(options->rows, &cluster, &fit);
    if (!status) {
        status = fit_all(options, &cluster, &fit);
        fit_rows_free(&fit);
    }
    cluster_close(&cluster);
    return status;
}

int plan_fit_command(int argc, char **argv) {
    static const struct config_command command = {
        .name = "plan fit",
        .synopsis =
            "cambium plan fit --cluster NAME|FILE --rows FILE.yaml --output FILE [--only R[,R...]] [--json FILE]",
        .description =
            "Fits constants of a cluster file to step times from logs or papers, and writes the file with them. Each "
            "constant stays within its bounds. The error of every row is printed, and a constant on its bound is "
            "named.",
        .examples =
            "  cambium plan fit --cluster a100-80gb --rows rows.yaml --output ours.yaml\n"
            "  cambium plan fit --cluster ours.yaml --rows rows.yaml --only 1,3,5 --output half.yaml --json -\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
    };
    return command_run(&command, argc, argv, &(struct options){0}, run);
}
