/* Tuning runs on an engine: adapters that train on its base while it serves.
 *
 * The engine's rank lends its base. A run adds a training runner, adapters with gradients, and an optimizer. It opens
 * no device, model, group or directory. The runs of an engine share one workspace, of which a rank takes
 * tuning_limits.memory at most. A run is planned before it is accepted.
 *
 * A pass and an update are cut into slices. Only the leader calls these functions. It sends each slice as a plan, so
 * every rank runs the same slices in the same order. Neither slices nor what the engine does between them change a
 * number: files equal those of `cambium finetune` with the same rows and keys. */
#pragma once

#include "infer/adapters.h"
#include "infer/engine.h"
#include "train/stepper.h"

struct tuning_run;

/* A new run. Everything it points to lives until the run is closed, except `start` and `state`, which tuning_open
 * reads. */
struct tuning_run_options {
    /* Resolved, as train_prepare_tuning leaves it: the keys of finetune. Those of the machine (parallel, device,
     * checkpoint, log) do nothing; train.precision is the engine's, data.seq_length is the longest sample. Without
     * dropout keys of the model. */
    const struct run_config *config;
    const struct peft_config *adapters; /* [adapter_count] the stack to train, ordered as finetune orders it */
    int adapter_count;
    const struct ckpt_text *texts; /* [text_count] of its files: peft_texts_make */
    int text_count;
    const struct loss *loss; /* of loss_table; NULL: sft. Passes may have another loss with the same form */
    struct loss_options loss_options;
    const struct peft_bytes *start; /* [start_count] files to start from, with the same configurations; 0: the initial
                                       values of the methods, by train.seed */
    int start_count;
    const void *state; /* as a snapshot has it: its values are then those of the run; NULL: a fresh optimizer */
    size_t state_bytes;
    int64_t weight; /* of its turns among runs; at least 1 */
    size_t bytes;   /* result: that the run takes on this rank, also when it does not fit */
};

/* A pass: global batches of the run's train.global_batch_size, one after the other. */
struct tuning_pass {
    const struct train_source *source; /* read on the engine's thread of the leader */
    int64_t first, batches;            /* number of the first sample; global batches */
    /* An evaluation: the split of the samples is validation. Gradients of passes before it stay; without dropout of
     * the adapters, for it keeps the masks of these passes. */
    bool is_forward_only;
    bool adds_gradients;              /* to those of the passes since the last update */
    const struct loss *loss;          /* NULL: the run's */
    struct loss_options loss_options; /* with `loss` */
    struct stepper_result result;     /* counts are of all batches; the loss is their mean */
};

/* An update with the values of a step, in place of the run's keys. */
struct tuning_update {
    int64_t iteration;                                /* updates before this one */
    double lr, beta1, beta2, eps, weight_decay, clip; /* clip 0: none */
    struct stepper_result result;                     /* the loss of the last pass, and the norm before clipping */
};

struct tuning_snapshot {
    bool wants_state;
    json_t *base; /* of receipt_describe_base: the files get receipts, if there is memory for an image. NULL: none */
    /* Results, the caller's: adapter_files_free and free. */
    struct adapter_files files[PEFT_MAX_STACK]; /* [count] with digests; the files of PEFT */
    int count;
    void *state; /* safetensors: moments and master weights by name, an encoder's included */
    size_t state_bytes;
};

/* ---- for the leader ---- */

/* Opens a run on all ranks. STATUS_UNSUPPORTED on an engine of several stages, or without tuning_memory. STATUS_MEMORY
 * when it does not fit, with the bytes; options->bytes is set then, too. Errors of peft_open, and of the files. */
int tuning_open(struct engine *engine, struct tuning_run_options *options, struct tuning_run **run);
/* Frees a run on all ranks, without a pass or an update under way. NULL is allowed. STATUS_PEER. */
int tuning_close(struct tuning_run *run);
/* Begin a pass or an update, which lives until it is done. Nothing runs before tuning_continue. */
void tuning_begin_pass(struct tuning_run *run, struct tuning_pass *pass);
void tuning_begin_update(struct tuning_run *run, struct tuning_update *update);
/* Runs a slice: the next piece of work, and further ones within the limit. When it sets *is_done, its status
 * is that of the whole pass or update: STATUS_INVALID when its loss or norm is not finite, or the source's. Any other
 * failure is the engine's. */
int tuning_continue(struct tuning_run *run, const struct slice_limit *limit, bool *is_done);
/* Returns the last slice: its work and seconds by kind, and the piece that comes next. next_work 0: nothing is known of
 * it, as before the first slice. */
const struct slice *tuning_slice(const struct tuning_run *run);
/* Ends a pass that has begun, where it is. */
int tuning_cancel(struct tuning_run *run);
/* Takes a snapshot, between passes and updates. STATUS_MEMORY, STATUS_PEER. */
int tuning_take_snapshot(struct tuning_run *run, struct tuning_snapshot *snapshot);
/* Return the service that the run had, in seconds by its weight, and add some. A new run begins with the minimum of all
 * others, so that runs take turns from then on. */
double tuning_service(const struct tuning_run *run);
void tuning_charge(struct tuning_run *run, double seconds);
/* Returns the bytes that all runs take on this rank. */
size_t tuning_bytes(const struct engine *engine);

/* ---- slices beside the steps of a scheduler: tuning_turns.c ---- */

struct tuning_spent {
    int64_t slices;
    double seconds;
};

struct tuning_turns {
    struct scheduler *scheduler;
    struct slice_cost cost;
    double credit; /* seconds that steps have left for slices, and that none has used */
};
/* Runs a slice of the run, whose pass or update has begun, if there is time for its next piece; adds what it took to
 * *spent. While completions decode, each step (`has_stepped`: there was one since the last call) leaves what
 * scheduler_spare returns. Slices then wait until the next piece fits. *has_run false: there was no time. Errors and
 * *is_done as tuning_continue. */
int tuning_turn(struct tuning_turns *turns, struct tuning_run *run, bool has_stepped, struct tuning_spent *spent,
                bool *has_run, bool *is_done);
