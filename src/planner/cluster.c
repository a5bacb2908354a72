/* Reads cluster files: a table of rows for the parser of config/, and the shipped files. */
#include "cluster-internal.h"

#include "config/run.h"
#include "kernels/ops.h"

#define AT(field) offsetof(struct cluster, field)
/* Bounds keep every prediction finite: nothing that divides is 0, and no time is longer than a thousand seconds. */
#define QUANTITY(path_, field, unit_, least, most, help_)                                                              \
    {                                                                                                                  \
        .path = path_, .type = CONFIG_QUANTITY, .offset = AT(field), .unit = unit_, .minimum = least, .maximum = most, \
        .help = help_                                                                                                  \
    }
#define CONSTANT(number, name, unit_, least, most)                                                                     \
    QUANTITY("achieved." name, achieved[number], unit_, least, most, "a constant of the prediction")
#define MOST_BYTES   1e18
#define MOST_FLOPS   1e21
#define MOST_SECONDS 1e3

const char *const cluster_training_stacks[] = {"cambium", "megatron-2022", NULL};
const char *const cluster_serving_stacks[] = {"cambium", "fastertransformer-2022", NULL};

static const struct config_row rows[] = {
    ROW_TEXT("device.name", AT(name), NULL, "the device's name"),
    ROW_TEXT("device.kind", AT(kind), NULL, "the backend whose arithmetic plans memory", .check = device_check_name),
    ROW_TEXT("device.stand_in", AT(stand_in), NULL, "the backend in place of `kind` where a build lacks that one",
             .check = device_check_name),
    QUANTITY("device.memory", memory, "B", 1, MOST_BYTES, "memory of a device"),
    QUANTITY("device.host_memory", host_memory, "B", 1, MOST_BYTES, "memory of a node's host"),
    ROW_INT("device.per_node", AT(per_node), NULL, 1, 4096, "devices of a node"),
    ROW_INT("device.processors", AT(processors), NULL, 1, 4096,
            "processors of a node, which its devices share; one each when not given"),
    QUANTITY("device.memory_bandwidth", memory_bandwidth, "B/s", 1, MOST_BYTES, "bandwidth of a device's memory"),
    QUANTITY("device.peak_bf16", peak_bf16, "FLOP/s", 1, MOST_FLOPS, "peak of products in bf16"),
    QUANTITY("device.peak_fp32", peak_fp32, "FLOP/s", 1, MOST_FLOPS, "peak of products in fp32"),
    QUANTITY("device.peak_tf32", peak_tf32, "FLOP/s", 1, MOST_FLOPS, "peak of products of fp32 in TF32"),
    QUANTITY("device.peak_fp8", peak_fp8, "FLOP/s", 1, MOST_FLOPS, "peak of products in FP8"),
    QUANTITY("links.node_bandwidth", node_bandwidth, "B/s", 1, MOST_BYTES, "of a device within a node, one direction"),
    QUANTITY("links.node_latency", node_latency, "s", 0, MOST_SECONDS, "of a message within a node"),
    QUANTITY("links.network_bandwidth", network_bandwidth, "B/s", 1, MOST_BYTES,
             "of a device between nodes, one direction"),
    QUANTITY("links.network_latency", network_latency, "s", 0, MOST_SECONDS, "of a message between nodes"),
    ROW_TEXT("achieved.source", AT(source), NULL, "where the constants come from", .default_text = "not calibrated"),
    CONSTANT(CLUSTER_PRODUCTS, "products", "", 1e-6, 100),
    CONSTANT(CLUSTER_SMALL_DIMENSION, "small_dimension", "", 0, 1e6),
    CONSTANT(CLUSTER_ATTENTION, "attention", "", 1e-6, 100),
    CONSTANT(CLUSTER_ATTENTION_DROPOUT, "attention_dropout", "", 1e-6, 1),
    CONSTANT(CLUSTER_OTHER, "other", "", 1e-6, 100),
    CONSTANT(CLUSTER_LAYER_FORWARD, "layer_forward", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_LAYER_BACKWARD, "layer_backward", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_TENSOR_HIDDEN, "tensor_hidden", "", 0, 1),
    CONSTANT(CLUSTER_SUMS_HIDDEN, "sums_hidden", "", 0, 1),
    CONSTANT(CLUSTER_NETWORK, "network", "", 1e-6, 100),
    CONSTANT(CLUSTER_STEP, "step", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_ERROR, "error", "", 0, 1e6),
    CONSTANT(CLUSTER_SERVE_PRODUCTS, "serve_products", "", 1e-6, 100),
    CONSTANT(CLUSTER_SERVE_SMALL_DIMENSION, "serve_small_dimension", "", 0, 1e6),
    CONSTANT(CLUSTER_SERVE_MEMORY, "serve_memory", "", 1e-6, 100),
    CONSTANT(CLUSTER_SERVE_HIDDEN, "serve_hidden", "", 0, 1),
    CONSTANT(CLUSTER_SERVE_LAYER, "serve_layer", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_SERVE_ROW, "serve_row", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_SERVE_SUM, "serve_sum", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_SERVE_SUM_RANK, "serve_sum_rank", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_SERVE_STEP, "serve_step", "s", 0, MOST_SECONDS),
    CONSTANT(CLUSTER_SERVE_ERROR, "serve_error", "", 0, 1e6),
    ROW_LIST("achieved.speeds", AT(speed_texts), NULL, "measured speeds, which take the place of constants"),
    ROW_CHOICE("stack.train", AT(train), "cambium", cluster_training_stacks, "the software that trains"),
    ROW_CHOICE("stack.serve", AT(serve), "cambium", cluster_serving_stacks, "the software that serves"),
};

/* The value at which a fit begins, and its bounds. */
static const struct config_quantity neutral[CLUSTER_CONSTANTS] = {
    [CLUSTER_PRODUCTS] = {0.7, 0.3, 1},
    [CLUSTER_SMALL_DIMENSION] = {100, 1, 2000},
    [CLUSTER_ATTENTION] = {1, 0.05, 2},
    [CLUSTER_ATTENTION_DROPOUT] = {1, 0.05, 1},
    [CLUSTER_OTHER] = {0.5, 0.1, 1},
    [CLUSTER_LAYER_FORWARD] = {3e-3, 1e-6, 0.02},
    [CLUSTER_LAYER_BACKWARD] = {6e-3, 1e-6, 0.02},
    [CLUSTER_TENSOR_HIDDEN] = {0.5, 0, 1},
    [CLUSTER_SUMS_HIDDEN] = {1, 0, 1},
    [CLUSTER_NETWORK] = {0.5, 0.05, 1},
    [CLUSTER_STEP] = {0.01, 0, 1},
    [CLUSTER_ERROR] = {0.3, 0, 100},
    [CLUSTER_SERVE_PRODUCTS] = {0.6, 0.1, 1},
    [CLUSTER_SERVE_SMALL_DIMENSION] = {100, 1, 2000},
    [CLUSTER_SERVE_MEMORY] = {0.7, 0.1, 1},
    [CLUSTER_SERVE_HIDDEN] = {1, 1, 1}, /* a GPU's copies run beside its products */
    [CLUSTER_SERVE_LAYER] = {50e-6, 1e-6, 1e-3},
    [CLUSTER_SERVE_ROW] = {0, 0, 1e-3},
    [CLUSTER_SERVE_SUM] = {20e-6, 1e-6, 1e-3},
    [CLUSTER_SERVE_SUM_RANK] = {2e-6, 1e-8, 1e-3},
    [CLUSTER_SERVE_STEP] = {1e-3, 1e-6, 0.05},
    [CLUSTER_SERVE_ERROR] = {0.3, 0, 100},
};

/* ---- shipped files ---- */

static const unsigned char azure_a100[] = {
#include "azure-a100-80gb-2022.yaml.inc"
};
static const unsigned char a100[] = {
#include "a100-80gb.yaml.inc"
};
static const unsigned char h100[] = {
#include "h100.yaml.inc"
};
static const unsigned char h200[] = {
#include "h200.yaml.inc"
};
static const struct {
    const char *name;
    const unsigned char *text;
    size_t length;
} shipped[] = {
    {"azure-a100-80gb-2022", azure_a100, sizeof azure_a100},
    {"a100-80gb", a100, sizeof a100},
    {"h100", h100, sizeof h100},
    {"h200", h200, sizeof h200},
};
enum { SHIPPED = sizeof shipped / sizeof *shipped };

const char *cluster_shipped_name(int number) {
    return number < SHIPPED ? shipped[number].name : NULL;
}

/* ---- reading ---- */

/* Checks what every prediction needs. */
static int check(const char *name, const struct cluster *cluster) {
    static const char *const needed[] = {"device.memory",           "device.memory_bandwidth", "device.peak_bf16",
                                         "device.peak_fp32",        "links.node_bandwidth",    "links.node_latency",
                                         "links.network_bandwidth", "links.network_latency",   "device.per_node"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!config_is_given(cluster->config, needed[i]))
            return status_fail(STATUS_USAGE, "%s: %s is missing", name, needed[i]);
    if (cluster->processors > cluster->per_node)
        return status_fail(STATUS_USAGE, "%s:%zu: device.processors is %lld: expected at most device.per_node, %lld",
                           name, config_line(cluster->config, "device.processors"), (long long)cluster->processors,
                           (long long)cluster->per_node);
    return STATUS_OK;
}

/* Sketches the device that plans memory. */
static int sketch(struct cluster *cluster) {
    struct device_facts facts = {.kind = cluster->kind, .threads = 1, .is_elsewhere = true};
    int status = device_sketch(&facts, &cluster->device);
    if (status != STATUS_UNSUPPORTED || !cluster->stand_in)
        return status;
    facts.kind = cluster->kind = cluster->stand_in;
    return device_sketch(&facts, &cluster->device);
}

int cluster_open_text(const char *name, const char *text, size_t length, struct cluster *cluster) {
    const struct config_command command = {
        .name = "plan", .section_rows = rows, .section_row_count = sizeof rows / sizeof *rows};
    *cluster = (struct cluster){0};
    int status = config_parse_text(&command, name, text, length, cluster, &cluster->config);
    THEN(status, check(name, cluster));
    THEN(status, cluster_read_speeds(name, cluster));
    if (!cluster->kind)
        cluster->kind = device_name_at(0);
    if (!cluster->processors)
        cluster->processors = cluster->per_node;
    for (int i = 0; i < CLUSTER_CONSTANTS && !status; i++) {
        struct config_quantity *constant = &cluster->achieved[i];
        char path[64];
        snprintf(path, sizeof path, "achieved.%s", cluster_constant_name((enum cluster_constant)i));
        if (!config_is_given(cluster->config, path))
            constant->value = neutral[i].value;
        if (constant->high == 0)
            *constant = (struct config_quantity){constant->value, neutral[i].low, neutral[i].high};
    }
    strbuf_add(&cluster->text, text, length);
    THEN(status, strbuf_status(&cluster->text));
    THEN(status, sketch(cluster));
    if (status)
        cluster_close(cluster);
    return status;
}

int cluster_open(const char *name_or_file, struct cluster *cluster) {
    *cluster = (struct cluster){0};
    for (int i = 0; i < SHIPPED; i++)
        if (!strcmp(name_or_file, shipped[i].name))
            return cluster_open_text(shipped[i].name, (const char *)shipped[i].text, shipped[i].length, cluster);
    struct strbuf text = STRBUF_INIT;
    int status = file_read(name_or_file, 1 << 20, &text);
    if (status == STATUS_NOT_FOUND) {
        const char *names[SHIPPED];
        for (int i = 0; i < SHIPPED; i++)
            names[i] = shipped[i].name;
        const char *nearest = config_nearest(name_or_file, names, SHIPPED);
        status = status_fail(STATUS_NOT_FOUND, "%.200s is neither a file nor a shipped cluster (%s, %s, %s, %s)%s%s%s",
                             name_or_file, names[0], names[1], names[2], names[3], nearest ? "; did you mean " : "",
                             nearest ? nearest : "", nearest ? "?" : "");
    }
    THEN(status, cluster_open_text(name_or_file, strbuf_text(&text), text.length, cluster));
    strbuf_free(&text);
    return status;
}

double cluster_peak(const struct cluster *cluster, int precision) {
    return precision == PRECISION_FP32   ? cluster->peak_fp32.value
           : precision == PRECISION_TF32 ? cluster->peak_tf32.value
           : precision == PRECISION_FP8  ? cluster->peak_fp8.value
                                         : cluster->peak_bf16.value;
}

double cluster_attention_peak(const struct cluster *cluster, int precision, int64_t head_size) {
    bool is_fp32 = precision == PRECISION_TF32 && !attention_has_tf32(head_size);
    return cluster_peak(cluster, is_fp32 ? PRECISION_FP32 : precision);
}

double cluster_paged_attention_peak(const struct cluster *cluster, int precision) {
    return cluster_peak(cluster, precision == PRECISION_TF32 ? PRECISION_FP32 : precision);
}

int cluster_check_precision(const struct cluster *cluster, int precision) {
    return cluster_peak(cluster, precision) > 0
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "precision %s: the cluster file has no device.peak_%s",
                             precision_names[precision], precision_names[precision]);
}

void cluster_close(struct cluster *cluster) {
    device_close(cluster->device);
    config_free(cluster->config);
    strbuf_free(&cluster->text);
    free(cluster->speeds);
    *cluster = (struct cluster){0};
}

/* ---- constants ---- */

static const struct config_row *constant_row(enum cluster_constant constant) {
    size_t i = 0;
    while (rows[i].offset != AT(achieved) + (size_t)constant * sizeof(struct config_quantity))
        i++;
    return &rows[i];
}

const char *cluster_constant_name(enum cluster_constant constant) {
    return constant_row(constant)->path + strlen("achieved.");
}

struct config_quantity cluster_neutral(enum cluster_constant constant) {
    return neutral[constant];
}

/* Adds a number with the prefix that suits its size. */
static void add_number(struct strbuf *out, double value, const char *unit) {
    bool is_time = !strcmp(unit, "s") && value > 0;
    bool is_small = is_time && value < 1e-3;
    strbuf_format(out, "%.5g%s%s",
                  is_small  ? value * 1e6
                  : is_time ? value * 1e3
                            : value,
                  *unit ? (is_small  ? " u"
                           : is_time ? " m"
                                     : " ")
                        : "",
                  unit);
}

static void add_constants(const struct cluster *cluster, const char *source, struct strbuf *out) {
    strbuf_format(out, "achieved:\n  source: \"%s\"\n", source);
    for (int i = 0; i < CLUSTER_CONSTANTS; i++) {
        const struct config_row *row = constant_row((enum cluster_constant)i);
        strbuf_format(out, "  %s: ", row->path + strlen("achieved."));
        add_number(out, cluster->achieved[i].value, row->unit);
        strbuf_add_text(out, " (");
        add_number(out, cluster->achieved[i].low, row->unit);
        strbuf_add_text(out, " to ");
        add_number(out, cluster->achieved[i].high, row->unit);
        strbuf_add_text(out, ")\n");
    }
    cluster_write_speeds(cluster, out);
}

int cluster_write(const struct cluster *cluster, const char *source, struct strbuf *out) {
    bool is_within = false, is_written = false;
    for (const char *line = strbuf_text(&cluster->text), *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        end += *end == '\n';
        bool is_key = *line != ' ' && *line != '#' && *line != '\n';
        if (is_key)
            is_within = !strncmp(line, "achieved:", 9);
        if (is_within && is_key && !is_written) {
            add_constants(cluster, source, out);
            is_written = true;
        }
        if (!is_within)
            strbuf_add(out, line, (size_t)(end - line));
    }
    if (!is_written)
        add_constants(cluster, source, out);
    return strbuf_status(out);
}
