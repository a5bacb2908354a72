/* Pretraining: from a run's configuration to checkpoints.
 *
 * A run is prepared (the files that it names are read: tokenizer, model directory, checkpoint to go on from; its
 * configuration is resolved), planned, opened and run. One iteration is a global batch: micro batches forward and
 * backward, clipping, one update. Seeds are train.seed (initial weights, dropout) and data.seed (order of the samples);
 * with both, every number of a run is determined, and a run that was interrupted and went on gives the same bits as one
 * that was not.
 *
 * On several ranks each has a trainer, and all make the same calls. How the ranks are laid out follows from the section
 * `parallel`; losses, norms and weights do not follow from it, but for rounding. World rank 0 alone writes metrics and
 * progress. After a failed call the caller calls comm_abort before it closes the trainer.
 *
 * A trainer is used by one thread. Nothing here ends the process. Signals: between stop_watch_begin and stop_watch_end
 * (stop.h), and in trainer_run, SIGTERM and SIGINT at any rank are a wish that all stop; a second one has its usual
 * effect. */
#ifndef CAMBIUM_TRAIN_TRAIN_H
#define CAMBIUM_TRAIN_TRAIN_H

#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "config/run.h"
#include "train/events.h"
#include "train/metrics.h"

#include "data/tuning.h"
#include "model/model.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { TRAINEE_NO_DROPOUT = -1 };

/* The part that trains in the place of the model, on a base that is frozen: an adapter, which a room above brings. */
struct trainee_part { /* at one rank */
    void *self;
    const struct hook_table *hooks;        /* for the model */
    struct param_store *store;             /* sketched; start() gives it memory */
    const struct param_table *state_table; /* of the store, with the names that the optimizer's tensors have in files */
    size_t bytes;                          /* that start() takes beside */
};
struct trainee {
    const void *description;
    /* Before the model is planned; `model` is how the base will be opened. */
    int (*open)(const void *description, const struct model_options *model, struct rank *rank,
                struct trainee_part *part);
    void (*close)(void *self);
    /* Once the base has its weights: memory, and initial values. */
    int (*start)(const void *description, void *self, struct model *base, uint64_t seed);
    /* Around the passes of a global batch: gradients are cleared, and finished. `sample`: the number of its first one,
     * a key of dropout; TRAINEE_NO_DROPOUT before a validation. */
    int (*begin)(void *self, int64_t sample);
    int (*end)(void *self);
    /* Files. `values` are fp32, of the rows of the store; a rank may hold some of them alone. */
    /* They keep pointing to `values`; what else they hold is what `refresh` made of the weights. */
    int (*refresh)(void *self);
    int (*parts)(void *self, const struct ckpt_array *values, struct ckpt_part parts[CKPT_MAX_PARTS], int *count);
    int (*load)(void *self, const char *directory, const struct ckpt_array *values);
    /* Writes them alone. `is_shared`: beside what else the directory, which exists, holds; else it is
     * replaced as a whole. All ranks together. */
    int (*export)(void *self, const struct trainee *trainee, const struct ckpt_array *values, const char *directory,
                  bool is_shared);
    const struct ckpt_text *texts; /* in every directory that is written */
    int text_count;
    const char *init_directory; /* of an adapter whose values it starts from; NULL: initial ones */
};

/* The progress of a run. */
struct train_progress {
    bool has_loss;
    double loss;       /* of the last iteration */
    int64_t validated; /* the iteration of the last validation; 0: none */
    int64_t bad;       /* validations in a row that brought no better loss */
    bool has_best;
    double best_loss;
};

/* A run that is ready to be planned and opened. */
struct train_run {
    const struct trainee *trainee;       /* NULL: the model trains */
    const struct tuning_options *tuning; /* what it trains on; NULL: data.data_path */
    size_t tuning_bytes;                 /* that its rows take at each rank, as far as the caller knows: for the plan */
    struct run_config config;            /* resolved; its strings are the caller's */
    struct tokenizer_files *tokenizer;   /* as it was when the run was prepared: goes into checkpoints; NULL: none */
    struct model_text_ends ends;         /* the first: what ends a document */
    char model_directory[PATH_MAX];      /* where the weights (of the base) come from; "": initialised */
    char checkpoint[PATH_MAX];           /* where the run goes on; "": it starts afresh */
    int64_t iteration;                   /* done before */
    int64_t consumed_samples;
    int64_t optimizer_step;
    struct train_progress progress;
};

/* Prepares `run` from a parsed configuration. `init_from`: a model directory (or one of checkpoints) whose config.json
 * supplies the whole `model` section, or NULL; keys of it that `given` says were typed and that differ are warned of
 * (`given` may be NULL). STATUS_USAGE for what cannot be, else as the files are. Writes nothing. */
int train_prepare(struct train_run *run, const struct run_config *config, const char *init_from,
                  const struct config *given);
/* Frees what preparing took; the directories' names stay. */
void train_run_free(struct train_run *run);

/* The same for a run that trains something on the frozen model of a directory, but for its checkpoint, which
 * train_resume_tuning takes once the number of iterations is known; `trainee` and `tuning` are the caller's to set
 * before the run is planned. */
int train_prepare_tuning(struct train_run *run, const struct run_config *config, const char *model_directory);

/* Takes the checkpoint that checkpoint.load names, if there is one, and warns of keys that have changed since.
 * STATUS_USAGE without checkpoint.load where checkpoint.save has checkpoints of another run; else as the files are. */
int train_resume_tuning(struct train_run *run);

/* Adds the facts that all ranks of a run must have alike beside its keys: how far it is, and what is in the files that
 * it names. */
int train_facts(const struct train_run *run, struct facts *facts);

struct rank;
struct rank_site;
struct train_plan;
struct trainer;

/* Opens device, data and model, and loads or initialises the weights. Locks checkpoint.save until the close. `run` is
 * copied; `world` is the caller's, or NULL for a rank alone. STATUS_INTERRUPTED, on all ranks, when one was asked to
 * stop: nothing has begun. */
int trainer_open(const struct train_run *run, struct comm *world, struct trainer **trainer);
void trainer_close(struct trainer *trainer);
/* For who measures: the rank, which books what its time went to, and the plan and place of it. */
struct rank *trainer_rank(struct trainer *trainer);
/* The object that run.trainee->open gave. */
void *trainer_trainee(struct trainer *trainer);
int64_t trainer_iteration(const struct trainer *trainer);
const struct train_plan *trainer_plan(const struct trainer *trainer);
const struct rank_site *trainer_site(const struct trainer *trainer);

/* One iteration; the record is the same on every rank. Allocates nothing once the first one is through. A loss or a
 * gradient norm that is not finite is STATUS_INVALID, with the iteration and the sample numbers; the weights are then
 * those before it. */
int trainer_step(struct trainer *trainer, struct train_record *record);
/* Waits for the weights that a step left travelling, and which else the next one waits for: before the trainer is
 * closed in good order. trainer_run does it. */
int trainer_await_weights(struct trainer *trainer);
/* Seconds in which this rank, in all its steps, waited for gradients' sums and for weights, and ran the backwards of
 * its last micro batches. */
struct trainer_times {
    double waited, last_backward;
};
struct trainer_times trainer_times(const struct trainer *trainer);
/* The loss on eval_iters global batches of the validation split; which ones follows from the iteration. It is the first
 * rank's on all of them, and may be none (NaN). Where there are no such samples, or somebody asked to stop, *is_done is
 * false. */
int trainer_evaluate(struct trainer *trainer, struct validation_record *record, bool *is_done);
/* Writes checkpoint.save/iter_%07d. */
int trainer_save(struct trainer *trainer);
/* The same with checkpoint.async_save: returns when there is a copy of all that is to be written, so that iterations
 * may follow; a thread writes it. trainer_run takes it on at the end of each, and trainer_save_wait waits for it. */
int trainer_save_begin(struct trainer *trainer);
/* Between iterations of a caller's own: takes it on. *is_saved: nothing is under way any more. */
int trainer_save_poll(struct trainer *trainer, bool *is_saved);
int trainer_save_wait(struct trainer *trainer);
/* Seconds for which the training stood still at the last save, and until this rank's part was on the disk. */
void trainer_save_times(const struct trainer *trainer, double *stall, double *write);

/* Writes the files of the run's trainee as others read them; see trainee.export. */
int trainer_export(struct trainer *trainer, const char *directory, bool is_shared);

/* Tells the most memory that the first rank's host has held for this run, beside what was planned: the last thing
 * before a trainer is closed, of all ranks together. */
int trainer_tell_memory(struct trainer *trainer);

/* The whole run: iterations, metrics, validation, checkpoints, until the end, train.early_stop, exit_interval or a
 * signal. With checkpoint.save, the files of a trainee that gave the best validation loss so far are kept in
 * checkpoint.save/best. */
int trainer_run(struct trainer *trainer);

#endif
