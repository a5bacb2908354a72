/* Pretraining: from a run's configuration to checkpoints.
 *
 * A run is prepared, planned, opened and run. Preparing reads the files that the run names (tokenizer, model directory,
 * checkpoint to resume from) and resolves its configuration. One iteration is a global batch: micro batches forward and
 * backward, clipping, one update. The seeds are train.seed (initial weights, dropout) and data.seed (order of the
 * samples). They determine every number of a run. A run that was interrupted and resumed gives the same bits as one
 * that was not.
 *
 * On several ranks each has a trainer, and all make the same calls. The section `parallel` decides the layout of the
 * ranks; losses, norms and weights do not depend on it, except for rounding. Only world rank 0 writes metrics and
 * progress. After a failed call the caller calls comm_abort before it closes the trainer.
 *
 * One thread uses a trainer. Nothing here ends the process. Between stop_watch_begin and stop_watch_end (stop.h), and
 * in trainer_run, a first SIGTERM or SIGINT at any rank asks all ranks to stop; a second one has its usual effect.
 *
 * Functions that return a status may return STATUS_MEMORY, STATUS_IO, STATUS_PEER when another rank failed, and the
 * device's errors. Comments name the others. */
#pragma once

#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "config/run.h"
#include "train/events.h"
#include "train/loss.h"
#include "train/metrics.h"

#include "data/tuning.h"
#include "model/model.h"

enum { TUNER_NO_DROPOUT = -1 };

/* A tuner, as in PEFT: the parameters that train on a frozen base, in place of the model. A room above provides it, for
 * adapters. */
struct tuner_part { /* at one rank; `open` fills it */
    void *self;
    const struct hook_table *hooks;        /* for the model */
    struct param_store *store;             /* a sketch until start() gives it memory */
    const struct param_table *state_table; /* the store's table, with the names of the optimizer's tensors in files */
    size_t bytes;                          /* that start() takes in addition to the store */
    /* The model without what trains: its hooks (NULL: the bare base), and what they put before each text. */
    struct tuner_reference {
        const struct hook_table *hooks;
        int64_t virtual_tokens, first_position;
    } reference;
};
struct trainer;
/* Files that are added to each directory of a tuner's files before it appears. */
struct tuner_seal {
    /* Computes them from the current weights; all ranks call it together. *seal stays NULL on other ranks than the
     * first, and where nothing is to be added. NULL: nothing ever is. */
    int (*begin)(void *context, struct trainer *trainer, void **seal);
    int (*write)(void *seal, const char *directory); /* any thread; `seal` may be NULL */
    void (*end)(void *seal);                         /* NULL is allowed */
    void *context;
    size_t bytes; /* of the host that `begin` takes for a while, on each rank */
};
struct tuner {
    const void *description;
    /* Called before the model is planned; `model` has the options with which the base will be opened. */
    int (*open)(const void *description, const struct model_options *model, struct rank *rank, struct tuner_part *part);
    void (*close)(void *self);
    /* Called once the base has its weights: takes the memory, and sets initial values. */
    int (*start)(const void *description, void *self, struct base *base, uint64_t seed);
    /* Called before and after the passes of a global batch: `begin` clears the gradients, `end` finishes them. `sample`
     * is the number of the first sample, a key of dropout; TUNER_NO_DROPOUT before a validation. */
    int (*begin)(void *self, int64_t sample);
    int (*end)(void *self);
    /* Files. `values` are fp32, for the rows of the store; a rank may hold only some of them. `refresh` computes
     * everything that the files hold besides `values`, from the current weights. `parts` describes the files, and the
     * parts keep pointing to `values`. `load` reads `values` from a directory. */
    int (*refresh)(void *self);
    int (*parts)(void *self, const struct ckpt_array *values, struct ckpt_part parts[CKPT_MAX_PARTS], int *count);
    int (*load)(void *self, const char *directory, const struct ckpt_array *values);
    /* Writes the files only; all ranks call it together. `is_shared`: the directory exists and keeps its other files;
     * else it is replaced as a whole. `seal`: of seal.begin. */
    int (*export)(void *self, const struct tuner *tuner, const struct ckpt_array *values, const char *directory,
                  bool is_shared, void *seal);
    struct tuner_seal seal;
    const struct ckpt_text *texts; /* in every directory that is written */
    int text_count;
    const char *init_directory; /* the adapter whose values it starts with; NULL: initial values */
};

/* The progress of a run. */
struct train_progress {
    bool has_loss;
    double loss;       /* of the last iteration */
    int64_t validated; /* the iteration of the last validation; 0: none */
    int64_t bad;       /* consecutive validations without a better loss */
    bool has_best;
    double best_loss;
};

/* The samples of a micro batch: from `first` on. */
struct train_samples {
    enum data_split split;
    int64_t first, batch_first, batch_samples; /* its first sample; those of the global batch */
    bool is_reference;                         /* for the reference model: without what trains */
    bool is_mismatched;                        /* each prompt has the answer of the next row of the global batch */
};
struct loss_segment; /* train/loss.h */
/* A source of samples. Any number of threads may read at once. */
struct train_source {
    /* Reads batch->samples samples, as tuning_batch_view does. */
    int (*read)(const struct train_source *source, struct gpt_batch *batch, const struct train_samples *samples);
    /* For losses of tokens: sets what the loss needs besides the log-probabilities of a segment, in which every row
     * counts. It may keep these. On tensor ranks only the first one calls it. NULL: other losses. */
    void (*fill)(const struct train_source *source, const struct gpt_batch *batch, int64_t segment,
                 struct loss_segment *filled);
};

/* A run that is ready to be planned and opened. */
struct train_run {
    const struct tuner *tuner;           /* NULL: the model trains */
    const struct tuning_options *tuning; /* the rows to train on; NULL: data.data_path */
    const struct train_source *source;   /* samples in place of files; NULL: none. It outlives the trainer */
    const struct loss *loss;             /* NULL: sft */
    struct loss_options loss_options;
    int64_t head_rows;                 /* as in struct model_training */
    size_t tuning_bytes;               /* of the rows at each rank, for the plan, as far as the caller knows */
    struct run_config config;          /* resolved; the caller owns its strings */
    struct tokenizer_files *tokenizer; /* as read when the run was prepared; copied into checkpoints; NULL: none */
    struct model_text_ends ends;       /* the first one ends a document */
    bool is_quantised;                 /* the files of the weights are in few bits */
    int load_in;                       /* of the base: index into load_in_names (pretrained/encodings.h) */
    char model_directory[PATH_MAX];    /* the directory of the weights (of the base); "": initial values */
    char checkpoint[PATH_MAX];         /* the checkpoint to resume from; "": a fresh run */
    int64_t iteration;                 /* finished before this process */
    int64_t consumed_samples;
    int64_t optimizer_step;
    struct train_progress progress;
};

/* Prepares `run` from a parsed configuration. Writes nothing. `init_from`, if not NULL, is a model directory, or one of
 * checkpoints; its config.json supplies the whole `model` section. A key that the user gave (`given`, which may be
 * NULL) with another value causes a warning. STATUS_USAGE for impossible configurations; STATUS_NOT_FOUND,
 * STATUS_INVALID and STATUS_UNSUPPORTED for the files. */
int train_prepare(struct train_run *run, const struct run_config *config, const char *init_from,
                  const struct config *given);
/* Frees the memory that preparing took; the names of the directories stay. */
void train_run_free(struct train_run *run);

/* The same for a run on rows, with a tuner on the frozen model of a directory or with all its weights. It leaves the
 * checkpoint to train_resume_tuning, which is called once the number of iterations is known. The caller sets `tuner`
 * and `tuning` before the run is planned. */
int train_prepare_tuning(struct train_run *run, const struct run_config *config, const char *model_directory);

/* Takes the checkpoint that checkpoint.load names, if there is one, and warns about keys that have changed since.
 * STATUS_USAGE without checkpoint.load when checkpoint.save has checkpoints of another run; else the errors of
 * train_prepare. `is_full`: all weights train, so the checkpoint has the model. */
int train_resume_tuning(struct train_run *run, bool is_full);

/* Adds the facts, besides the keys, that must be the same on all ranks of a run: its progress, and the contents of the
 * files that it names. */
int train_facts(const struct train_run *run, struct facts *facts);

struct rank;
struct rank_site;
struct train_plan;
struct trainer;

/* Opens device, data and model, and loads or initialises the weights. Locks checkpoint.save until the close. `run` is
 * copied; the caller owns `world`, which is NULL for a single rank. STATUS_USAGE and STATUS_INVALID for the run and its
 * files; STATUS_INTERRUPTED, on all ranks, when one was asked to stop before training began. */
int trainer_open(const struct train_run *run, struct comm *world, struct trainer **trainer);
void trainer_close(struct trainer *trainer);
/* Returns the rank, which records how its time was spent. */
struct rank *trainer_rank(struct trainer *trainer);
/* Returns the tuner that run.tuner->open made. */
void *trainer_tuner(struct trainer *trainer);
/* Return the number of finished iterations, whether the ranks have agreed to stop for a signal, the plan, and the place
 * of the rank on its host. */
int64_t trainer_iteration(const struct trainer *trainer);
bool trainer_is_stopped(const struct trainer *trainer);
const struct train_plan *trainer_plan(const struct trainer *trainer);
const struct rank_site *trainer_site(const struct trainer *trainer);

/* Runs one iteration; the record is the same on every rank. Allocates nothing after the first one. STATUS_INVALID, with
 * the iteration and the sample numbers, when the loss or the gradient norm is not finite; the weights are then
 * unchanged. */
int trainer_step(struct trainer *trainer, struct train_record *record);
/* Waits for weights that are still on their way after a step. The next step would wait for them; call this before a
 * trainer is closed without an error. trainer_run does so. */
int trainer_await_weights(struct trainer *trainer);
/* Seconds of this rank in all its steps: for waiting for sums of gradients and for weights, and for the backwards of
 * its last micro batches. */
struct trainer_times {
    double waited, last_backward;
};
/* Returns the times so far. */
struct trainer_times trainer_times(const struct trainer *trainer);
/* Short texts, each of which is a segment of the model's batch by itself. */
struct train_texts {
    const struct hook_table *hooks; /* of the passes; NULL: none */
    int64_t count, tokens;
    const int32_t *ids;     /* [count, tokens] */
    int64_t virtual_tokens; /* rows before each text, with ids after the vocabulary */
    int64_t first_position; /* of a text: the length of a prefix */
    float *logits; /* result: [count, tokens + any virtual tokens, V]: after the last of these, and each token */
};
/* Returns whether trainer_logits can run texts of this many rows, the same on all ranks. */
bool trainer_takes_texts(const struct trainer *trainer, int64_t rows);
/* Computes the logits of texts by the forward that trains, without dropout, on all ranks. */
int trainer_logits(struct trainer *trainer, const struct train_texts *texts);
/* Computes the loss on eval_iters global batches of the validation split, which the iteration chooses. All ranks get
 * the first rank's loss, which may be NaN. *is_done is false when there are no such samples, or when a rank was asked
 * to stop. */
int trainer_evaluate(struct trainer *trainer, struct validation_record *record, bool *is_done);
/* Writes checkpoint.save/iter_%07d. STATUS_USAGE when checkpoint.save is not given; STATUS_INVALID; the errors of
 * ckpt_save. */
int trainer_save(struct trainer *trainer);
/* The same with checkpoint.async_save. It returns once it has copied everything to be written. Iterations may continue
 * while a thread writes the copy. trainer_run advances the save after each iteration, and trainer_save_wait waits for
 * it. */
int trainer_save_begin(struct trainer *trainer);
/* Advances the save, for callers that run iterations themselves. *is_saved: no save is in progress any more. */
int trainer_save_poll(struct trainer *trainer, bool *is_saved);
/* Waits until no save is in progress. */
int trainer_save_wait(struct trainer *trainer);
/* Sets the seconds for which the last save stopped the training, and those until this rank's part was on the disk. */
void trainer_save_times(const struct trainer *trainer, double *stall, double *write);

/* Writes the files of the run's tuner for other programs; see tuner.export. Without a tuner it writes a model directory
 * and needs checkpoint.save; `is_shared`: beside the checkpoints there. */
int trainer_export(struct trainer *trainer, const char *directory, bool is_shared);

/* Reports the peak memory of this run on the first rank's host, next to the planned memory. All ranks call it together,
 * right before they close their trainers. `program`: that of the plan of this process (train_plan.program). */
int trainer_tell_memory(struct trainer *trainer, size_t program);

/* Runs everything: iterations, metrics, validation, checkpoints, until the end, train.early_stop, exit_interval or a
 * signal. With checkpoint.save, a run on rows keeps what trains with the best validation loss so far in
 * checkpoint.save/best.
 * STATUS_INVALID when a loss is not finite; STATUS_USAGE. */
int trainer_run(struct trainer *trainer);
