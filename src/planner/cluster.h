/* A cluster, as its file describes it: devices, links, what of their speed is achieved, and the software's ways.
 *
 * A cluster file is YAML of two levels. Each number is a text with its unit; counts and shares are plain. Fitted
 * constants have their bounds after them: "0.62 (0.3 to 0.9)". Shipped files are part of the program. Numbers of a
 * struct cluster are in bytes, seconds, FLOP/s and bytes/s. */
#pragma once

#include "base/base.h"
#include "config/config.h"

/* The constants that measurements decide. They say how much of a datasheet's speed the software reaches. */
enum cluster_constant {
    /* of training */
    CLUSTER_PRODUCTS,          /* share of the peak that large products reach */
    CLUSTER_SMALL_DIMENSION,   /* smallest dimension of a product at which half of that share is reached */
    CLUSTER_ATTENTION,         /* share of these products' speed that attention reaches */
    CLUSTER_ATTENTION_DROPOUT, /* share of attention's speed that remains with dropout */
    CLUSTER_OTHER,             /* share of the memory's bandwidth that other operations reach */
    CLUSTER_LAYER_FORWARD,     /* minimum seconds of a layer's forward, however little it computes */
    CLUSTER_LAYER_BACKWARD,    /* minimum seconds of its backward, without recomputation */
    CLUSTER_TENSOR_HIDDEN,     /* share of the backward's messages between tensor ranks that computation hides */
    CLUSTER_SUMS_HIDDEN,       /* share of what computation may hide of the data ranks' messages that it does hide */
    CLUSTER_NETWORK,           /* share of the bandwidth between nodes that is reached */
    CLUSTER_STEP,              /* seconds of a step besides all of this */
    CLUSTER_ERROR,             /* largest error of a predicted step, as a share of it */
    /* of serving */
    CLUSTER_SERVE_PRODUCTS,        /* share of the peak that products of prompts reach */
    CLUSTER_SERVE_SMALL_DIMENSION, /* smallest dimension at which half of it is reached */
    CLUSTER_SERVE_MEMORY,          /* share of the memory's bandwidth that weights and pages are read with */
    CLUSTER_SERVE_HIDDEN,          /* share of the shorter of reading and multiplying that the longer hides */
    CLUSTER_SERVE_LAYER,           /* seconds of a layer in one step besides its operations: their launches and ends */
    CLUSTER_SERVE_ROW,             /* seconds of a step for each of its rows, which the host prepares */
    CLUSTER_SERVE_SUM,             /* seconds of a sum over two tensor ranks, without its bytes */
    CLUSTER_SERVE_SUM_RANK,        /* seconds that each further tensor rank adds to it */
    CLUSTER_SERVE_STEP,            /* seconds of a step besides all of this */
    CLUSTER_SERVE_ERROR,           /* largest error of a predicted time, as a share of it */
    CLUSTER_CONSTANTS
};
enum { CLUSTER_FIRST_OF_SERVING = CLUSTER_SERVE_PRODUCTS };

enum cluster_training { CLUSTER_TRAINS_CAMBIUM, CLUSTER_TRAINS_MEGATRON_2022 };
enum cluster_serving { CLUSTER_SERVES_CAMBIUM, CLUSTER_SERVES_FASTERTRANSFORMER_2022 };
/* Their names in cluster files, ended by NULL. */
extern const char *const cluster_training_stacks[], *const cluster_serving_stacks[];

/* A speed that was measured: of products of one shape, of attention, or of the other operations of a phase. */
struct cluster_speed {
    int precision;    /* enum precision, without FP8 */
    int phase;        /* enum phase */
    int64_t shape[3]; /* of products: rows, columns, inner dimension; else 0 */
    double value;     /* FLOP/s of products and attention; bytes/s of others */
};

struct cluster {
    struct config *config;     /* owns the texts */
    struct strbuf text;        /* the file as it is */
    const char *name, *source; /* source: where the numbers of `achieved` come from */
    const char *kind;          /* the backend whose arithmetic plans memory: the file's, or its stand-in */
    const char *stand_in;      /* the one for a build without that of the file; NULL: none */
    int64_t per_node;          /* devices of a node */
    int64_t processors;        /* of a node, which its devices share: at most per_node */
    struct config_quantity memory, host_memory, memory_bandwidth, peak_bf16, peak_fp32, peak_tf32,
        peak_fp8;                                                                            /* of a device; the
                                                                     host's memory is that of a node */
    struct config_quantity node_bandwidth, node_latency, network_bandwidth, network_latency; /* one direction */
    struct config_quantity achieved[CLUSTER_CONSTANTS];
    struct config_list speed_texts; /* `speeds` as the file has them */
    struct cluster_speed *speeds;   /* [speed_count] they take the place of constants; none: not calibrated */
    int speed_count;
    struct device *device; /* a sketch of `kind`, for plans of memory */
    int train, serve;      /* enum cluster_training, enum cluster_serving */
};

/* Opens a shipped cluster by its name, or else a file. The caller closes it. STATUS_USAGE for a mistake in the file,
 * with its line and the nearest name. STATUS_UNSUPPORTED if this build lacks the backend `kind`. STATUS_NOT_FOUND, with
 * the names of shipped clusters; STATUS_IO, STATUS_MEMORY. */
int cluster_open(const char *name_or_file, struct cluster *cluster);
/* Opens the text of a cluster file; errors call it `name`. */
int cluster_open_text(const char *name, const char *text, size_t length, struct cluster *cluster);
void cluster_close(struct cluster *cluster);
/* Returns a device's peak of products in FLOP/s in an enum precision; 0 for tf32 or fp8 if the file has none. */
double cluster_peak(const struct cluster *cluster, int precision);
/* Returns that of attention in training, with heads of this size. In tf32, the sizes that
 * attention_has_tf32 refuses have fp32's. */
double cluster_attention_peak(const struct cluster *cluster, int precision, int64_t head_size);
/* Returns that of attention over the KV cache. In tf32 it is fp32's. */
double cluster_paged_attention_peak(const struct cluster *cluster, int precision);
/* Refuses a precision of which the file has no peak: STATUS_USAGE. */
int cluster_check_precision(const struct cluster *cluster, int precision);

/* Returns the key of a constant in the section `achieved`. */
const char *cluster_constant_name(enum cluster_constant constant);
/* Returns the value at which a fit begins, with the bounds of a file that has none. */
struct config_quantity cluster_neutral(enum cluster_constant constant);
/* Adds a measured speed. STATUS_MEMORY. */
int cluster_add_speed(struct cluster *cluster, const struct cluster_speed *speed);
/* Returns the measured speed of work in a phase; 0: the file has none in this precision. `shape` [3] is that of a
 * product, and NULL for other work. A product of another shape than those of the file has the speed of the nearest one,
 * corrected by `small_dimension`. */
double cluster_speed(const struct cluster *cluster, int precision, int phase, const int64_t *shape);
/* Writes the cluster's file with the constants that `achieved` now has, in which `source` explains them. The lines of
 * other sections and their comments stay. STATUS_MEMORY. */
int cluster_write(const struct cluster *cluster, const char *source, struct strbuf *out);
/* Returns shipped name `number`, from 0; NULL after the last. */
const char *cluster_shipped_name(int number);
