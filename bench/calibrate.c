/* plan calibrate: measures this machine and writes its cluster file. */
#include "calibrate.h"

#include <fcntl.h>
#include <unistd.h>

static const double busy_from = 0.1; /* of the cores: then the figures are of this machine's share of itself */

/* ---- the file ---- */

/* A cluster file in which nothing is measured yet. */
static int sketch(struct calibration *c) {
    static const char form[] = "device: {kind: \"%s\", memory: 1 B, per_node: 1, memory_bandwidth: 1 B/s, "
                               "peak_bf16: 1 FLOP/s, peak_fp32: 1 FLOP/s, peak_tf32: 1 FLOP/s}\n"
                               "links: {node_bandwidth: 1 B/s, node_latency: 0 s, network_bandwidth: 1 B/s, "
                               "network_latency: 0 s}\n";
    struct strbuf text = STRBUF_INIT;
    strbuf_format(&text, form, c->options->device ? c->options->device : device_name_at(0));
    int status = strbuf_status(&text);
    THEN(status, cluster_open_text("calibrate", strbuf_text(&text), text.length, &c->cluster));
    strbuf_free(&text);
    return status;
}

static void add_links(const struct calibration *c, struct strbuf *out) {
    const struct cost_link assumed = {c->ceilings[0].read, 1e-6};
    const struct cost_link *node = c->node.bandwidth > 0 ? &c->node : &assumed;
    const struct cost_link *network = c->network.bandwidth > 0 ? &c->network : node;
    strbuf_format(out, "links:\n  node_bandwidth: %.5g GB/s # %s\n  node_latency: %.5g us\n", node->bandwidth / 1e9,
                  node == &c->node ? "measured" : "assumed: there was one rank", node->latency * 1e6);
    strbuf_format(out, "  network_bandwidth: %.5g GB/s # %s\n  network_latency: %.5g us\n", network->bandwidth / 1e9,
                  network == &c->network ? "measured" : "assumed: as within a node, for there was one",
                  network->latency * 1e6);
}

static void add_text(const struct calibration *c, struct strbuf *out) {
    struct memory_limit limit = memory_limit_find("");
    double host = (double)limit.bytes, memory = c->memory ? (double)c->memory : host / c->per_node;
    strbuf_format(out, "# Measured by cambium plan calibrate. A device is what one of %lld rank%s has.\n",
                  (long long)c->options->ranks, c->options->ranks == 1 ? "" : "s");
    strbuf_format(out,
                  "device:\n  name: \"%s\"\n  kind: \"%s\"\n  memory: %.6g GB\n  host_memory: %.6g GB\n  per_node: %d\n"
                  "  processors: %d\n",
                  c->device, c->cluster.kind, memory / 1e9, host / 1e9, c->per_node, c->processors);
    strbuf_format(out, "  memory_bandwidth: %.5g GB/s # a streaming read while all ranks read\n",
                  c->ceilings[0].read / 1e9);
    strbuf_format(out, "  peak_bf16: %.5g GFLOP/s # %s\n  peak_fp32: %.5g GFLOP/s # of plain products\n",
                  c->ceilings[PRECISION_BF16].gemm / 1e9,
                  c->has_bf16 ? "of plain products" : "there is none: that of fp32",
                  c->ceilings[PRECISION_FP32].gemm / 1e9);
    if (c->ceilings[PRECISION_TF32].gemm > 0)
        strbuf_format(out, "  peak_tf32: %.5g GFLOP/s\n", c->ceilings[PRECISION_TF32].gemm / 1e9);
    add_links(c, out);
}

/* Reads how busy other programs keep the cores since the last call. A negative number: nobody knows. */
static double read_others(struct calibration *c) {
    int file = c->options->world ? -1 : open("/proc/stat", O_RDONLY | O_CLOEXEC);
    double others = file >= 0 ? cores_meter_read(&c->meter, file) : -1;
    if (file >= 0)
        close(file);
    return others;
}

/* Adds to the source of the numbers that other programs slowed them down, and warns. */
static void note_others(struct calibration *c, char *source, size_t bytes) {
    double others = read_others(c);
    size_t length = strlen(source);
    if (others < busy_from * c->meter.count)
        return;
    snprintf(source + length, bytes - length, "; other programs kept %.1f of %d cores busy", others, c->meter.count);
    log_warning("other programs kept %.1f of %d cores busy: the numbers are too slow; calibrate again without them",
                others, c->meter.count);
}

static int write_file(struct calibration *c, const struct cluster *cluster, const char *output) {
    struct strbuf text = STRBUF_INIT;
    char source[160], day[32] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts))
        strftime(day, sizeof day, "%Y-%m-%d", &parts);
    snprintf(source, sizeof source, "measured on %s, ranks %lld, %s", day, (long long)c->options->ranks,
             precision_names[c->options->precision]);
    note_others(c, source, sizeof source);
    int status = cluster_write(cluster, source, &text);
    struct cluster again;
    THEN(status, cluster_open_text(output, strbuf_text(&text), text.length, &again));
    if (!status) {
        cluster_close(&again);
        status = file_write_atomic(output, strbuf_text(&text), text.length);
    }
    strbuf_free(&text);
    return status;
}

/* ---- all of it ---- */

static int prepare(struct calibration *c, struct bench_options *options, struct bench_dataset *dataset) {
    struct model_config model;
    TRY(bench_model_config(options->model, options->layers, &model));
    options->seq_length = options->seq_length < model_positions(&model) ? options->seq_length : model_positions(&model);
    options->has_dropout = true;
    options->global_batch_size = options->micro_batch_size * options->ranks;
    int status = bench_training_run(options, true, 1, dataset, &c->run);
    if (c->run.config.model.num_layers > CALIBRATE_LAYERS)
        c->run.config.model.num_layers = CALIBRATE_LAYERS;
    THEN(status, sketch(c));
    return status ? status : calibrate_list_products(c);
}

static int measure(struct calibration *c, const char *output) {
    struct strbuf text = STRBUF_INIT;
    struct cluster cluster = {0};
    bool is_first = !c->options->world || c->options->world->rank == 0;
    int status = calibrate_ranks(c);
    if (!status)
        add_text(c, &text);
    THEN(status, strbuf_status(&text));
    THEN(status, cluster_open_text("calibrate", strbuf_text(&text), text.length, &cluster));
    strbuf_free(&text);
    TRY(status);
    log_info("%d products measured; steps follow", c->product_count);
    status = calibrate_steps(c, &cluster);
    THEN(status, calibrate_serving(c, &cluster));
    THEN(status, calibrate_verify(c, &cluster));
    THEN(status, is_first ? write_file(c, &cluster, output) : STATUS_OK);
    cluster_close(&cluster);
    return status;
}

int bench_calibrate(const struct bench_options *options, const char *output) {
    struct bench_options own = *options;
    struct calibration c = {.options = &own};
    struct bench_dataset dataset = {0};
    cores_meter_add(&c.meter);
    read_others(&c);
    int status = prepare(&c, &own, &dataset);
    THEN(status, measure(&c, output));
    if (status && options->world)
        comm_abort(options->world, status_text());
    cluster_close(&c.cluster);
    free(c.products);
    return status;
}
