/* Steps of small models: one block forward and backward, the head, the optimizer, and what overlaps. */
#include "calibrate.h"

#include "model/model.h"

#include <math.h>

enum { STEPS = 2, LEAST_LAYERS = 2 };
static const double uncached_bytes = 256e6; /* more than any cache holds */

static int measure(const struct calibration *c, const struct train_run *run, struct bench_steps *measured) {
    return bench_take_steps(run, (int)c->options->ranks, c->options->world, STEPS, measured);
}

static int predict(const struct calibration *c, const struct train_run *run, const struct cluster *cluster,
                   struct cost_step *step) {
    struct cost_work work;
    TRY(cost_work_make(run, cluster, &work));
    struct walk walk = {0};
    int status = cost_step(run, (int)c->options->ranks, &work, cluster, step, &walk);
    walk_free(&walk);
    cost_work_free(&work);
    return status;
}

/* Returns the run with `layers` layers, one copy of the model on each group of `tensor` ranks, and one micro batch. */
static struct train_run run_of(const struct calibration *c, int64_t layers, int tensor) {
    struct train_run run = c->run;
    run.config.model.num_layers = layers;
    run.config.parallel.tensor_model_parallel_size = tensor;
    run.config.train.global_batch_size = run.config.train.micro_batch_size * c->options->ranks / tensor;
    return run;
}

/* Returns the number of layers of a small model. Its weights, gradients and moments are not in caches, as those of the
 * whole model are not. */
static int64_t few_layers(const struct calibration *c) {
    enum { VALUES = 4 }; /* of a parameter, fp32 */
    double bytes = c->layer_elements * VALUES * sizeof(float);
    int64_t all = c->run.config.model.num_layers, least = LEAST_LAYERS + (int64_t)(uncached_bytes / bytes);
    return all < least ? all : least;
}

/* ---- speeds ---- */

/* The work of a step by phase: FLOPs of products and attention, bytes of others. Products have their measured seconds
 * instead, and column sums are among the norms. */
struct amounts {
    double work[PHASE_COUNT], product_seconds;
};

static const struct calibrate_product *find_product(const struct calibration *c, const int64_t shape[3]) {
    for (int i = 0; i < c->product_count; i++)
        if (!memcmp(c->products[i].shape, shape, sizeof c->products[i].shape))
            return &c->products[i];
    return NULL;
}

static int count_work(const struct calibration *c, const struct train_run *run, struct amounts *amounts) {
    struct train_plan plan;
    struct work_list list = {0};
    int status = train_plan_rank(run, 1, 0, c->cluster.device, &plan, &list);
    for (int i = 0; i < list.count && !status; i++) {
        const struct work_item *item = &list.items[i];
        const struct calibrate_product *product = find_product(c, item->work.shape);
        double count = (double)item->count;
        if (item->group != RANK_ALONE)
            continue;
        if (item->phase == PHASE_GEMM && item->work.flops > 0)
            amounts->product_seconds += count * (product ? product->seconds : 0);
        else if (item->phase == PHASE_ATTENTION && item->work.flops > 0)
            amounts->work[PHASE_ATTENTION] += count * item->work.flops;
        else
            amounts->work[item->phase <= PHASE_ATTENTION ? PHASE_NORM : item->phase] += count * item->work.bytes;
    }
    work_free(&list);
    return status;
}

static int add_speed(struct cluster *cluster, int precision, int phase, double value) {
    return value > 0 && isfinite(value)
               ? cluster_add_speed(
                     cluster, &(const struct cluster_speed){.precision = precision, .phase = phase, .value = value})
               : STATUS_OK;
}

/* Adds the products. Within a step they take `slower` times as long as on their own. The constants are fitted to them,
 * for shapes that are not among them. */
static int add_products(const struct calibration *c, double slower, struct cluster *cluster) {
    struct calibrate_line line = {0};
    double large, small;
    int status = STATUS_OK;
    for (int i = 0; i < c->product_count && !status; i++) {
        const int64_t *s = c->products[i].shape;
        double flops = 2.0 * (double)s[0] * (double)s[1] * (double)s[2], seconds = slower * c->products[i].seconds;
        struct cluster_speed speed = {c->options->precision, PHASE_GEMM, {s[0], s[1], s[2]}, flops / seconds};
        status = cluster_add_speed(cluster, &speed);
        calibrate_line_add(&line, 1, 1 / fmin(fmin((double)s[0], (double)s[1]), (double)s[2]), seconds / flops);
    }
    calibrate_line_find(&line, &large, &small);
    const double found[] = {1 / (large * cluster_peak(cluster, c->options->precision)), small / large};
    for (int i = 0; i < 2; i++) {
        struct config_quantity *constant = &cluster->achieved[i ? CLUSTER_SMALL_DIMENSION : CLUSTER_PRODUCTS];
        constant->value = fmin(fmax(found[i], constant->low), constant->high);
    }
    return status;
}

/* Finds the seconds of one micro batch by phase, and those of a step once: the optimizer's, and in PHASE_REST others.
 */
static void divide_steps(const struct calibration *c, double micro_batch[PHASE_COUNT], double once[PHASE_COUNT]) {
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        micro_batch[phase] = c->alone.many.phases[phase] / CALIBRATE_MICRO_BATCHES;
        once[phase] = 0;
    }
    once[PHASE_OPTIMIZER] = (c->alone.one.phases[PHASE_OPTIMIZER] + c->alone.many.phases[PHASE_OPTIMIZER]) / 2;
    micro_batch[PHASE_REST] =
        fmax(c->alone.many.phases[PHASE_REST] - c->alone.one.phases[PHASE_REST], 0) / (CALIBRATE_MICRO_BATCHES - 1);
    once[PHASE_REST] = fmax(c->alone.one.phases[PHASE_REST] - micro_batch[PHASE_REST], 0);
    micro_batch[PHASE_NORM] += micro_batch[PHASE_REST]; /* between the operations, of which most are small */
}

/* Gradients are cleared at the memory's speed. A step takes the rest of its seconds whatever its size. */
static int add_rest(double bytes, double seconds, int precision, struct cluster *cluster) {
    double least = bytes / cluster->memory_bandwidth.value;
    struct config_quantity *step = &cluster->achieved[CLUSTER_STEP];
    step->value = fmin(fmax(seconds - least, step->low), step->high);
    return add_speed(cluster, precision, PHASE_REST, cluster->memory_bandwidth.value);
}

/* Finds the speeds with which the measured phases have their work. */
static int find_speeds(const struct calibration *c, const struct train_run *run, struct cluster *cluster) {
    struct amounts amounts = {{0}, 0};
    double micro_batch[PHASE_COUNT], once[PHASE_COUNT];
    divide_steps(c, micro_batch, once);
    int status = count_work(c, run, &amounts);
    if (!status && amounts.product_seconds > 0)
        status = add_products(c, micro_batch[PHASE_GEMM] / amounts.product_seconds, cluster);
    for (int phase = PHASE_ATTENTION; phase < PHASE_OPTIMIZER && !status; phase++)
        status = add_speed(cluster, c->options->precision, phase, amounts.work[phase] / micro_batch[phase]);
    THEN(status, add_speed(cluster, c->options->precision, PHASE_OPTIMIZER,
                           amounts.work[PHASE_OPTIMIZER] / once[PHASE_OPTIMIZER]));
    THEN(status, add_rest(amounts.work[PHASE_REST], once[PHASE_REST], c->options->precision, cluster));
    struct config_quantity *other = &cluster->achieved[CLUSTER_OTHER];
    double share = amounts.work[PHASE_NORM] / micro_batch[PHASE_NORM] / cluster->memory_bandwidth.value;
    other->value = fmin(fmax(share, other->low), other->high);
    return status;
}

/* ---- overlap ---- */

/* Sets a share of messages that computation hides, so that a step takes as long as it was measured. */
static int find_hidden(const struct calibration *c, const struct train_run *run, const struct bench_steps *measured,
                       enum cluster_constant which, struct cluster *cluster) {
    struct cost_step step;
    double seconds[2] = {0};
    int status = STATUS_OK;
    for (int i = 0; i < 2 && !status; i++) {
        cluster->achieved[which].value = i;
        status = predict(c, run, cluster, &step);
        seconds[i] = step.seconds;
    }
    double hideable = seconds[0] - seconds[1];
    double share = hideable > 0 ? (seconds[0] - measured->seconds) / hideable : 0;
    cluster->achieved[which].value = fmin(fmax(share, 0), 1);
    return status;
}

/* Measures what tensor ranks hide, if the ranks can divide the model. */
static int measure_tensor(const struct calibration *c, struct cluster *cluster) {
    struct train_run run = run_of(c, few_layers(c), (int)c->options->ranks);
    struct bench_steps measured = {0};
    if (train_plan_obstacle(&run, (int)c->options->ranks))
        return STATUS_OK;
    int status = measure(c, &run, &measured);
    return status || !measured.seconds ? status : find_hidden(c, &run, &measured, CLUSTER_TENSOR_HIDDEN, cluster);
}

int calibrate_alone(const struct calibration *c, const struct calibrate_place *place, int64_t micro_batches,
                    struct bench_steps *steps) {
    struct train_run run = run_of(c, few_layers(c), 1);
    run.config.device = place->device;
    run.config.train.global_batch_size = micro_batches * run.config.train.micro_batch_size;
    run.config.parallel.threads_per_rank = place->threads;
    int status = comm_barrier(place->world);
    return status ? status : bench_take_steps(&run, 1, NULL, micro_batches > 1 ? 1 : STEPS, steps);
}

int calibrate_steps(struct calibration *c, struct cluster *cluster) {
    struct train_run run = run_of(c, few_layers(c), 1), alone = run;
    struct bench_steps measured = {0};
    alone.config.train.global_batch_size = alone.config.train.micro_batch_size;
    /* Takes what serves no purpose where speeds are measured out of the prediction. */
    for (int i = CLUSTER_LAYER_FORWARD; i <= CLUSTER_LAYER_BACKWARD; i++)
        cluster->achieved[i].value = cluster->achieved[i].low;
    cluster->achieved[CLUSTER_NETWORK].value = 1;
    int status = find_speeds(c, &alone, cluster);
    THEN(status, c->options->ranks > 1 ? measure(c, &run, &measured) : STATUS_OK);
    THEN(status, measured.seconds > 0 ? find_hidden(c, &run, &measured, CLUSTER_SUMS_HIDDEN, cluster) : STATUS_OK);
    return status || c->options->ranks == 1 ? status : measure_tensor(c, cluster);
}

int calibrate_verify(struct calibration *c, struct cluster *cluster) {
    struct train_run run = run_of(c, c->run.config.model.num_layers, 1);
    struct bench_steps measured = {0};
    struct cost_step step;
    int status = measure(c, &run, &measured);
    if (status || !measured.seconds)
        return status;
    TRY(predict(c, &run, cluster, &step));
    double error = step.seconds / measured.seconds - 1;
    cluster->achieved[CLUSTER_ERROR].value = fmax(fabs(error), 0.01);
    log_info("a step of %lld layers%s: %.4g s measured, %.4g s predicted, %+.1f%%",
             (long long)run.config.model.num_layers, c->options->ranks > 1 ? " on each rank" : " on one rank",
             measured.seconds, step.seconds, 100 * error);
    return STATUS_OK;
}
