/* Steps of training on a base: batches, passes, sums of gradients and updates of what trains.
 *
 * A stepper owns what only its run needs: micro batches, the pipeline's messages, gradient sums and the optimizer. The
 * base with its weights, the rank with its device and groups, and the source of the samples belong to the caller, and
 * outlive it. So a process may have several steppers on one base. A stepper opens no device, file or group.
 *
 * All ranks of the grid make the same calls. Functions that return a status may return STATUS_MEMORY, STATUS_PEER when
 * another rank failed, the device's errors and those of the source. */
#pragma once

#include "data/data.h"
#include "model/model.h"
#include "optim/optim.h"
#include "parallel/pipeline.h"
#include "pretrained/encodings.h"
#include "train/train.h"

/* The model of a rank, and what trains it. */
struct train_model {
    struct pretrained files; /* of a base in few bits, until it is loaded; zeroed: other bases */
    struct pretrained_encodings encodings;
    struct base *base;
    struct tuner_part tuner; /* zeroed: the base itself trains */
    struct training_runner *runner;
};

/* An observer of a rank's passes. It is called on the rank's thread, and a status that it returns ends the step. */
struct train_watch {
    int micro_batch; /* of the pass, set by the stepper */
    /* After the embedding (-1) and each layer of a forward; see model_pass.layer_output. */
    int (*output)(struct train_watch *watch, int layer, const void *x, int64_t rows);
    /* When a backward has added to the gradients of a layer; see model_pass.layer_done. With a tuner it is called once,
     * with WATCH_ALL_LAYERS. The gradients are not summed over the data ranks yet. */
    int (*gradients)(struct train_watch *watch, int layer);
};
enum { WATCH_ALL_LAYERS = INT_MAX };

struct stepper {
    /* Set by the caller, who owns them. The weights are allocated. */
    struct rank *rank;
    const struct run_config *config; /* resolved */
    const struct train_model *model;
    const struct tuner *tuner;         /* of model->tuner; NULL: the base itself trains */
    const struct train_source *source; /* of the samples */
    const struct loss *loss;           /* NULL: sft */
    struct loss_options loss_options;
    struct train_watch *watch; /* NULL: none */
    /* Set by stepper_open. */
    struct param_store *store; /* the parameters that train: the model's or the tuner's */
    int64_t micro_count;       /* micro batches of this rank in a global batch */
    struct gpt_batch *micros; /* [micro_count]: all at once, because a row's loss weight depends on the labels of all */
    struct pipeline pipeline;
    struct unit_order order[2]; /* in a global batch, and in a batch of an evaluation; none if no weights are cut */
    struct gradient_sync sync;
    struct optimizer optimizer;
    /* For a loss of answers; filled on the stage with the head: */
    float *values; /* [rows of a micro batch] the tokens of one sample */
    double
        *references; /* [micro_count][rows of a micro batch] log-probabilities of each segment by the reference model */
    double sum, summed;  /* of all segments of a forward before; their number */
    int64_t micro_batch; /* of the present pass */
    double shift;        /* see struct loss */
    double scale;        /* of the gradients: 1 / samples of the global batch */
    struct loss_figures figures;
    double last_backward; /* seconds of all backwards of last micro batches */
};

/* Returns the learning rates of a resolved run. */
struct schedule stepper_schedule(const struct run_config *run);
/* Opens the rest of `stepper`, whose first part the caller has set. Makes no collective call. STATUS_MEMORY. */
int stepper_open(struct stepper *stepper, const struct pipeline_shape *shape);
void stepper_close(struct stepper *stepper);
/* Returns the bytes on the host that a loss of answers takes. */
size_t stepper_answer_bytes(const struct train_run *run, int data_ranks);

/* The result of a global batch, the same on all ranks. */
struct stepper_result {
    int64_t tokens, labels;      /* rows without padding; rows whose loss counts */
    double loss;                 /* mean over the labels; of a loss of answers: over the rows of the files */
    struct loss_figures figures; /* sums over the global batch; of a loss of answers */
    double grad_norm;            /* before clipping; 0: the loss is not finite */
};
/* Runs forward and backward of the global batch of samples from `first` on. It starts the sums of gradients over the
 * data ranks, and fetches this rank's part of the loss. Sets the counts of *result. */
int stepper_pass(struct stepper *stepper, int64_t first, struct stepper_result *result);
/* The parts of stepper_pass, for passes whose gradients are added up: begin, any number of passes, and end. */
int stepper_begin(struct stepper *stepper, int64_t first);
int stepper_add(struct stepper *stepper, int64_t first, struct stepper_result *result);
int stepper_end(struct stepper *stepper);
/* Waits for the loss of the last pass, and sets that of *result. */
int stepper_find_loss(struct stepper *stepper, struct stepper_result *result);
/* Updates the weights when the losses of all passes are known to be finite. Sets the norm. STATUS_INVALID, with nothing
 * updated, if it is not finite. */
int stepper_apply(struct stepper *stepper, double lr, double *norm);
/* Updates the weights after `iteration` finished iterations. Sets loss and norm of *result. STATUS_INVALID, with
 * nothing updated, if one of them is not finite. */
int stepper_update(struct stepper *stepper, int64_t iteration, double lr, struct stepper_result *result);
/* Waits for weights that are still on their way after an update. */
int stepper_await_weights(struct stepper *stepper);
/* Runs the forward of the global batch of validation samples from `first` on, and adds to the loss. *labels: the
 * number over which this rank's part of the loss is a mean. */
int stepper_evaluate(struct stepper *stepper, int64_t first, int64_t *labels);
/* Ends evaluations: sets *loss to their sum on all ranks. */
int stepper_end_evaluation(struct stepper *stepper, double *loss);

/* ---- the optimizer's state, in fp32: arrays.c ---- */

enum { OPTIMIZER_ARRAYS = 3 };
struct optimizer_arrays;

/* Opens the optimizer's arrays: the moments, then the master weights of a bf16 run. `is_written`: each element belongs
 * to one rank. The arrays live until the close, which must follow even a failed opening. STATUS_MEMORY. */
int optimizer_arrays_open(struct stepper *stepper, bool is_written, struct optimizer_arrays **out,
                          const struct ckpt_array **arrays);
/* Returns the master weights among these (in fp32: the weights), under names without a prefix. */
struct ckpt_array optimizer_master_array(const struct ckpt_array *arrays);
/* Reads them from a file of tensors, which may lack the master weights. Errors of ckpt_read. */
int optimizer_arrays_read(const struct stepper *stepper, const struct ckpt_array *arrays, struct ckpt_tensors *tensors,
                          bool *has_master);
void optimizer_arrays_close(struct optimizer_arrays *arrays);
/* Returns the store's table with the names of these tensors in files. */
const struct param_table *stepper_state_table(const struct stepper *stepper);

/* For passes of another kind. */
/* Returns a batch as the model takes it, without copying. */
struct model_batch stepper_view(const struct gpt_batch *batch);
/* Runs the steps of a batch. Weights that are cut are gathered in the order of their use. */
int stepper_run(struct stepper *stepper, bool is_forward_only, const struct pipeline_worker *worker);
