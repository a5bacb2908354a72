/* AdamW over a parameter store, learning-rate schedules, clipping by global norm.
 *
 * The optimizer owns the moments m and v and, for bf16 weights, the fp32 master weights. In fp32, the weights are the
 * master. All are flat arrays in the store's order, of the pieces that this rank updates: everything, or its share with
 * sharding (ZeRO-1). Norm and clip factor stay on the device. */
#pragma once

#include "parallel/sync.h"

/* ---- schedule ---- */

enum schedule_decay { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_INVERSE_SQUARE_ROOT, SCHEDULE_WSD };
enum schedule_wsd { SCHEDULE_WSD_LINEAR, SCHEDULE_WSD_COSINE, SCHEDULE_WSD_EXPONENTIAL, SCHEDULE_WSD_MINUS_SQRT };

/* A learning-rate schedule, in iterations. As in Megatron-LM's OptimizerParamScheduler, iteration i (from 1) has seen
 * (i - 1) * global_batch_size samples. So the first update of a warm-up from 0 has the rate 0. */
struct schedule {
    enum schedule_decay decay;
    enum schedule_wsd wsd_decay;
    double lr, min_lr, warmup_init;
    int64_t warmup_iters, decay_iters, wsd_decay_iters, global_batch_size;
};
/* Returns the learning rate of an iteration, counted from 1. */
double schedule_lr(const struct schedule *schedule, int64_t iteration);

/* ---- optimizer ---- */

struct optimizer_options {
    double beta1, beta2, epsilon, weight_decay, clip_grad; /* clip_grad 0: off */
};

/* A rank's optimizer state, in the order of the pieces of `sync`. */
struct optimizer {
    struct optimizer_options options;
    struct rank *rank;
    struct param_store *store;
    struct gradient_sync *sync;
    enum dtype weights_type;
    float *master;             /* [local_elements]; NULL in fp32, where the weights are the master */
    float *m, *v;              /* [local_elements] */
    void *scalars;             /* device: sum of squares, norm, factor */
    float *norm;               /* [2] host memory: the norm and the clip factor, once the stream has run */
    struct flat_range *ranges; /* device: this rank's part of each parameter, relative to its piece; turn after turn */
    int64_t *turn_end;         /* [pieces] the number of ranges up to the end of each turn */
    int64_t step;              /* updates done; the bias correction's exponent */
};

/* Returns the bytes of the device that optimizer_open allocates for `elements` elements of a rank and `parameters` rows
 * of its parameter table. */
size_t optimizer_bytes(int64_t elements, int64_t parameters, enum dtype dtype);
/* Enters an update into the rank's list of work, while the rank still plans. The store has `flat_elements` elements of
 * `dtype`, and the rank updates one of `shards` equal shards. STATUS_MEMORY. */
int optimizer_plan(struct rank *rank, int64_t flat_elements, int shards, enum dtype dtype);
/* Opens an optimizer for the pieces of `sync`, which is open and must outlive it. The caller closes it. STATUS_MEMORY,
 * or the device's failure. */
int optimizer_open(struct optimizer *optimizer, const struct optimizer_options *options, struct gradient_sync *sync);
/* Sets other options for the next updates. STATUS_MEMORY, or the device's failure. */
int optimizer_change(struct optimizer *optimizer, const struct optimizer_options *options);
/* Frees what optimizer_open allocated. */
void optimizer_close(struct optimizer *optimizer);
/* Returns the master weights of a piece, in device memory. */
float *optimizer_master(const struct optimizer *optimizer, const struct sync_piece *piece);
/* Call it after weights were initialised, or loaded without optimizer state: sets master = weights, moments 0 and step
 * 0. The device's failure. */
int optimizer_reset(struct optimizer *optimizer);
/* Call it after the master weights of this rank's pieces were loaded: sets weights = rounded master, for the pieces of
 * all ranks. The errors of collectives, or the device's failure. */
int optimizer_round_weights(struct optimizer *optimizer);
/* Waits for the gradients' sums over ranks, then clips and updates with the rate `lr`, in the order of the stream. The
 * errors of collectives, or the device's failure. */
int optimizer_start(struct optimizer *optimizer, double lr);
/* Call it once the stream has run: stores the gradient's norm before clipping. If that is not finite, the device has
 * updated nothing, and the result is STATUS_INVALID. */
int optimizer_finish(struct optimizer *optimizer, double *norm);
/* Calls optimizer_start, waits for the stream, and calls optimizer_finish. */
int optimizer_step(struct optimizer *optimizer, double lr, double *norm);
