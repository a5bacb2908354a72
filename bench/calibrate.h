/* Calibrating: the numbers of a cluster file, measured on this machine. A device is what one rank has while all ranks
 * work. Between the files calibrate*.c. */
#pragma once

#include "training.h"

#include "planner/cost.h"
#include "planner/fit.h"

/* A product that training makes, in one of three forms. */
enum product_form { PRODUCT_FORWARD, PRODUCT_INPUT_GRADIENT, PRODUCT_WEIGHT_GRADIENT };
struct calibrate_product {
    int64_t shape[3]; /* rows, columns, inner dimension */
    enum product_form form;
    double seconds; /* of one call; the mean over the ranks */
};

enum { CALIBRATE_LAYERS = 12, CALIBRATE_REQUESTS = 8, CALIBRATE_MICRO_BATCHES = 4 };

/* Seconds that a rank measures by itself: doubles only. */
struct calibrate_alone {
    struct bench_steps one, many;        /* of a few layers: one micro batch, and CALIBRATE_MICRO_BATCHES */
    double requests[CALIBRATE_REQUESTS]; /* of each batch; 0: not measured */
};

struct calibration {
    const struct bench_options *options;
    struct train_run run;   /* of one rank: the model, and at most CALIBRATE_LAYERS layers */
    double layer_elements;  /* of a whole layer */
    struct cluster cluster; /* before the measurements: only a sketch of the device */
    struct calibrate_product *products;
    int product_count;
    struct bench_ceiling ceilings[PRECISION_TF32 + 1]; /* of one rank by precision; 0: without TF32 */
    bool has_bf16;
    int per_node;
    int processors;                 /* of a node: as many ranks can compute at the same time as alone */
    size_t memory;                  /* of the device itself; 0: it uses the host's */
    struct cost_link node, network; /* within hosts, and between them; 0: there is none */
    struct calibrate_alone alone;   /* medians of several rounds */
    /* Cores that other programs kept busy meanwhile. Ranks that are processes do not know which programs are others. */
    struct cores_meter meter;
    char device[96];
};

/* calibrate_ranks.c: measures ceilings, products and links on all ranks at the same time. Each process of a launch
 * calls it and has the results. Errors of devices and groups. */
int calibrate_ranks(struct calibration *c);
/* calibrate_products.c: lists the products of the run's model for every number of tensor ranks that fits, for one, two
 * and four micro batches. The caller frees c->products. */
int calibrate_list_products(struct calibration *c);
/* Measures one of them on a device, and stores the mean of the calls. STATUS_UNSUPPORTED. */
int calibrate_product(struct stream *stream, int precision, const struct calibrate_product *product, double *seconds);
/* calibrate_links.c: measures sums and messages by size between the ranks of a group, all of which call it. */
int calibrate_link(struct comm *group, struct stream *stream, struct cost_link *link);
/* A rank that measures by itself. */
struct calibrate_place {
    struct comm *world; /* all ranks measure at once */
    const char *device; /* with its number, if there are several */
    int threads;
};
/* calibrate_steps.c: measures steps of a few layers, with this number of micro batches, only on this rank. */
int calibrate_alone(const struct calibration *c, const struct calibrate_place *place, int64_t micro_batches,
                    struct bench_steps *steps);
/* Sets the cluster's speeds from the steps of c->alone, and measures the shares of messages that computation hides. All
 * processes of a launch call it. */
int calibrate_steps(struct calibration *c, struct cluster *cluster);
/* Predicts a step of the whole run with a copy of the model on each rank, measures it, and prints both. Stores the
 * error as the cluster's. */
int calibrate_verify(struct calibration *c, struct cluster *cluster);
/* calibrate_serving.c: measures batches of requests on an engine of this rank. Stores 0 for those that the model has no
 * positions for. */
int calibrate_requests(const struct calibration *c, const struct calibrate_place *place, double *seconds);
/* Fits the constants of serving to the requests of c->alone. */
int calibrate_serving(const struct calibration *c, struct cluster *cluster);
/* A line a * x + b * y through measured times, with a and b at least 0: the squares of the relative errors are minimal.
 */
struct calibrate_line {
    double xx, xy, yy, x, y;
};
/* Adds a measured time. */
void calibrate_line_add(struct calibrate_line *line, double x, double y, double seconds);
/* Finds the line through all that were added. */
void calibrate_line_find(const struct calibrate_line *line, double *a, double *b);
