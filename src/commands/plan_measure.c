/* plan train --measure: predicted rows next to measured ones. The files have the names and columns of NVIDIA's
 * auto-configurator. */
#include "plan_measure.h"
#include "plan.h"

#include "bench/bench.h"

#include <math.h>

enum { ROUNDS = 3, NAME_BYTES = 160 };

struct measured_row {
    const struct search_row *row;
    char name[NAME_BYTES]; /* of its run file */
    double times[ROUNDS], seconds;
    int64_t rounds; /* measured */
    bool has_failed;
};

struct measuring {
    const struct plan_measuring *plan;
    int64_t nodes;
    struct measured_row *rows; /* [count] */
    int64_t count;
};

/* ---- steps ---- */

static void name_row(const struct measuring *m, struct measured_row *row) {
    const struct search_row *r = row->row;
    const struct run_config *c = &r->run.config;
    char recompute[32] = "selective";
    if (c->parallel.recompute_granularity != GRANULARITY_SELECTIVE)
        snprintf(recompute, sizeof recompute, "%lld",
                 (long long)cost_recomputed_layers(c, c->model.num_layers / (r->grid.pipeline * r->shape.chunks)));
    snprintf(row->name, sizeof row->name, "gpt_%.3gb_%lldnodes_tp_%d_pp_%d_mbs_%lld_act_ckpt_%s_%d", m->plan->billions,
             (long long)m->nodes, r->grid.tensor, r->grid.pipeline, (long long)c->train.micro_batch_size, recompute,
             (int)(row - m->rows) + 1);
}

/* Takes the steps of a round of one row. */
static void measure_row(const struct measuring *m, struct measured_row *row, int64_t steps) {
    char device[32]; /* the backend only: a sketch also names an architecture */
    snprintf(device, sizeof device, "%.*s", (int)strcspn(m->plan->cluster->kind, ":"), m->plan->cluster->kind);
    const struct bench_row one = {
        .run = &row->row->run, .ranks = m->plan->result->ranks, .device = device, .steps = steps};
    int status = bench_measure_row(&one, &row->times[row->rounds]);
    if (status)
        log_error("row %d failed: %s", (int)(row - m->rows) + 1, status_text());
    row->has_failed = status != STATUS_OK;
    row->rounds += !status;
}

/* Rows take turns, so that other programs affect all alike. */
static void measure_all(struct measuring *m) {
    int64_t rounds = m->plan->steps < ROUNDS ? m->plan->steps : ROUNDS;
    for (int64_t round = 0; round < rounds; round++)
        for (int64_t i = 0; i < m->count; i++)
            if (!m->rows[i].has_failed)
                measure_row(m, &m->rows[i], m->plan->steps * (round + 1) / rounds - m->plan->steps * round / rounds);
    for (int64_t i = 0; i < m->count; i++)
        if (!m->rows[i].has_failed)
            m->rows[i].seconds = bench_median(m->rows[i].times, m->rows[i].rounds);
}

static void print(const struct measuring *m) {
    for (int64_t i = 0; i < m->count; i++) {
        const struct measured_row *row = &m->rows[i];
        if (!row->has_failed)
            log_info("row %2lld: %9.4g s measured, %9.4g s predicted, %+6.1f%%: %s", (long long)i + 1, row->seconds,
                     row->row->step.seconds, 100 * (row->row->step.seconds / row->seconds - 1), row->name);
    }
}

/* ---- files ---- */

static int write_text(const struct measuring *m, const char *name, struct strbuf *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", m->plan->output, name);
    return plan_write_made(path, STATUS_OK, text);
}

static void add_summary(const struct measuring *m, const struct measured_row *row, struct strbuf *out) {
    struct search_row measured = *row->row;
    const struct run_config *c = &measured.run.config;
    measured.step.seconds = row->seconds;
    int64_t layers = c->model.num_layers;
    double again = (double)cost_recomputed_layers(c, layers / measured.grid.pipeline / measured.shape.chunks) *
                   measured.grid.pipeline * measured.shape.chunks / (double)layers;
    double model = report_flops(&measured, true) / 1e12, hardware = model * (3 + again) / 3;
    double ranks = m->plan->result->ranks;
    strbuf_format(out, "gpt,%.3gb,%d,%d,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,", m->plan->billions,
                  measured.grid.tensor, measured.grid.pipeline, (long long)c->train.micro_batch_size,
                  (long long)llround(again * (double)layers), (long long)layers, (long long)c->model.hidden_size,
                  (long long)c->model.ffn_hidden_size, (long long)c->train.global_batch_size, (long long)m->nodes,
                  (long long)m->plan->cluster->per_node);
    strbuf_format(out, "%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%s.yaml\n", row->seconds,
                  (double)c->train.global_batch_size / row->seconds, model, model * ranks, hardware, hardware * ranks,
                  row->name);
}

static int write_rows(const struct measuring *m, const struct measured_row *const *order, int64_t count) {
    struct strbuf summary = STRBUF_INIT, fit = STRBUF_INIT;
    char path[PATH_MAX], name[NAME_BYTES];
    int status = STATUS_OK;
    strbuf_add_text(&summary,
                    "Model Name,Model Size,TP,PP,MBS,Act Ckpt Layers,Num Layers,Hidden Size,FFN Hidden Size,GBS,Nodes,"
                    "GPUs per Node,Time per Step,Samples per Second,Model TFLOPS / GPU,Model TFLOPS Aggregate,"
                    "HW TFLOPS / GPU,HW TFLOPS Aggregate,Config Name\n");
    for (int64_t i = 0; i < count && !status; i++) {
        add_summary(m, order[i], &summary);
        strbuf_format(&fit, "- {config: candidate_configs/%s.yaml, nodes: %lld, step_seconds: %.9g}\n", order[i]->name,
                      (long long)m->nodes, order[i]->seconds);
        snprintf(path, sizeof path, "%s/candidate_configs/%s.yaml", m->plan->output, order[i]->name);
        status = m->plan->write(m->plan->context, order[i]->row, path);
    }
    snprintf(name, sizeof name, "final_summary_%lldnodes.csv", (long long)m->nodes);
    THEN(status, write_text(m, name, &summary));
    THEN(status, write_text(m, "rows.yaml", &fit));
    snprintf(path, sizeof path, "%s/optimal_config_%.3gb_%lldnodes.yaml", m->plan->output, m->plan->billions,
             (long long)m->nodes);
    strbuf_free(&summary);
    strbuf_free(&fit);
    return status ? status : m->plan->write(m->plan->context, order[0]->row, path);
}

static int by_seconds(const void *a, const void *b) {
    const struct measured_row *const *x = a, *const *y = b;
    return (*x)->seconds < (*y)->seconds ? -1 : (*x)->seconds > (*y)->seconds;
}

/* Writes the rows that were measured, the fastest first. */
static int write_files(const struct measuring *m) {
    const struct measured_row **order = calloc((size_t)m->count, sizeof *order);
    char path[PATH_MAX];
    int64_t count = 0;
    TRY(status_allocated(order));
    for (int64_t i = 0; i < m->count; i++)
        if (!m->rows[i].has_failed)
            order[count++] = &m->rows[i];
    qsort(order, (size_t)count, sizeof *order, by_seconds);
    int status = count ? STATUS_OK : status_fail(STATUS_INVALID, "no row could be measured");
    snprintf(path, sizeof path, "%s/candidate_configs", m->plan->output ? m->plan->output : "");
    THEN_IF(status, m->plan->output, file_make_directories(path));
    THEN_IF(status, m->plan->output, write_rows(m, order, count));
    free(order);
    return status;
}

int plan_measure(const struct plan_measuring *plan) {
    struct measuring m = {.plan = plan,
                          .nodes = (plan->result->ranks + plan->cluster->per_node - 1) / plan->cluster->per_node};
    m.count = plan->count < plan->result->counts.listed ? plan->count : plan->result->counts.listed;
    m.rows = calloc((size_t)m.count + 1, sizeof *m.rows);
    TRY(status_allocated(m.rows));
    for (int64_t i = 0; i < m.count; i++) {
        m.rows[i].row = &plan->result->rows[i];
        name_row(&m, &m.rows[i]);
    }
    measure_all(&m);
    print(&m);
    int status = write_files(&m);
    free(m.rows);
    return status;
}
