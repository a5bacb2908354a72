/* The trainer inside. */
#ifndef CAMBIUM_TRAIN_INTERNAL_H
#define CAMBIUM_TRAIN_INTERNAL_H

#include "train/plan.h"
#include "train/train.h"

#include "ckpt/ckpt.h"
#include "data/data.h"
#include "model/model.h"
#include "optim/optim.h"
#include "parallel/layout.h"
#include "parallel/pipeline.h"
#include "parallel/site.h"

struct trainer {
    struct train_run run;
    struct train_plan plan;
    struct comm *world;
    struct comm *own_world; /* where the caller has none */
    struct rank_grid grid;
    struct rank_site site;
    struct device *device;
    struct rank rank;
    struct gpt_data data;
    double last_backward; /* seconds of all backwards of last micro batches */
    int64_t micro_count;  /* micro batches of this rank in a global batch */
    struct gpt_batch
        *micros; /* [micro_count]: all of them at once, since a row's loss weight needs the labels of all */
    struct tuning_data *rows; /* NULL: of pretraining */
    struct model *model;
    struct trainee_part trainee;
    struct param_store *store; /* what trains: the model's or the trainee's */
    struct pipeline pipeline;
    struct gradient_sync sync;
    struct optimizer optimizer;
    struct schedule schedule;
    int64_t iteration; /* done */
    int64_t tokens;    /* of the iterations of this process, without padding */
    int64_t consumed_samples;
    struct run_saver *saver; /* NULL: nothing is saved */
    int save_lock;           /* of checkpoint.save, at the first rank; -1: none */
    bool made_save;          /* that directory was not there before */
    struct train_progress progress;
    int stop; /* the signal that all ranks have agreed to stop for, or 0 */
};

/* ranks.c */
/* The grid of `ranks`; refuses what cannot be. */
int train_grid(const struct run_config *run, int ranks, struct rank_grid *grid);
/* Sets trainer->stop from the wishes of all ranks, and takes a background save on as far as all have come. */
int train_agree(struct trainer *trainer);
/* STATUS_INTERRUPTED on all ranks when one was asked to stop. */
int train_agree_to_start(struct trainer *trainer);
/* Sums one number in host memory over the ranks that share this one's weights. */
int train_sum_over_data(struct trainer *trainer, void *values, int64_t count, enum dtype dtype);

/* claim.c */
/* The first rank's: makes and locks the directory of the checkpoints, and refuses what would cost another run's. */
int train_claim(struct trainer *trainer);
void train_unclaim(struct trainer *trainer);
/* The checkpoints in checkpoint.save are the run's own up to this iteration; -1: none is. */
int64_t train_ours_until(const struct train_run *run);
/* Whether it is the run that it finds in its directory, perhaps interrupted before its first checkpoint. */
bool train_goes_on(const struct train_run *run);

/* batch.c */
/* Forward and backward of the next global batch, its rows without padding and those whose loss counts. Leaves the
 * gradients' sums over the data ranks started, and this rank's part of the mean loss fetched (model_fetched_loss). */
int train_global_batch(struct trainer *trainer, int64_t *tokens, int64_t *labels);
/* The forward of the global batch of samples from `first` on: adds to the model's loss. *labels: rows of this
 * rank's part that count. */
int train_evaluate_batch(struct trainer *trainer, int64_t first, int64_t *labels);
/* Makes the loss of this rank that of all ranks. */
int train_sum_loss(struct trainer *trainer, double *loss);

/* shapes.c */
struct pipeline_split train_pipeline_split(const struct run_config *run, const struct rank_grid *grid);
struct pipeline_shape train_pipeline_shape(const struct run_config *run, const struct rank_grid *grid);
/* The options of the rank's stage, and the schedule that goes with them: places below what trains have no backward. */
int train_model_options(const struct train_run *run, const struct rank *rank, const struct trainee_part *trainee,
                        struct model_options *options, struct pipeline_shape *shape);
struct gpt_data_options train_data_options(const struct train_run *run);

/* plan.c */
/* Fills `plan`; `rank` is left planning, with the needs of model and optimizer noted. `data` holds the open files. */
int train_plan_fill(const struct train_run *run, struct rank *rank, const struct gpt_data *data,
                    struct trainee_part *trainee, struct train_plan *plan);

/* state.c: trainer_state.json */
/* Allocates *text. */
int train_state_write(const struct trainer *trainer, char **text);
/* Sets the counters of `run` from the text; warns of keys of the run that differ from those it was saved with. */
int train_state_read(struct train_run *run, const char *text, const char *where);

/* trainer.c */
/* Samples of the validation split, or rows. */
int64_t train_validation_length(const struct trainer *trainer);
/* Ends a run in which every rank finds the same failure: the save under way is finished, and all but the first rank
 * wait for its line. */
int train_end_together(struct trainer *trainer);

/* resume.c */
/* The frozen weights under a trainee, which then starts. */
int train_load_base(struct trainer *trainer);
/* Weights, and with a checkpoint the optimizer, from the files that the run names; or initial values. */
int train_load(struct trainer *trainer);

/* save.c */
/* Bytes that saving takes at a rank. */
int train_saver_bytes(const struct train_run *run, const struct rank *rank, const struct trainee_part *trainee,
                      size_t *bytes);
int train_saver_open(struct trainer *trainer);
void train_saver_close(struct trainer *trainer);
/* How far a background save is here; what all ranks have agreed on takes it on. */
enum ckpt_progress train_save_progress(const struct trainer *trainer);
int train_save_advance(struct trainer *trainer, enum ckpt_progress least);

/* validate.c */
/* A validation, and what follows from it for the run: the best trainee is kept. *record as of trainer_evaluate. */
int train_validate(struct trainer *trainer, struct validation_record *record, bool *is_done, bool *is_better);
/* Whether the run goes on from a checkpoint that was saved before the validation of its iteration. */
bool train_owes_validation(const struct trainer *trainer);
/* Whether train.early_stop ends it. */
bool train_is_stopped_early(const struct trainer *trainer);

/* report.c: what people see on standard error. */
struct report {
    struct progress progress;
    const struct trainer *trainer;
    int64_t first_iteration;
    double start, first_end; /* clock_seconds() at the beginning, and after the first iteration */
    double ceiling_tflops;   /* 0: not measured */
};
void report_begin(struct report *report, const struct trainer *trainer, double ceiling_tflops);
void report_step(struct report *report, const struct train_record *record);
/* `is_kept`: it was the best so far, and is kept. */
void report_validation(struct report *report, const struct validation_record *record, bool is_kept);
/* Clears the bar: a line of somebody else's follows. */
void report_pause(struct report *report);
/* The last line: iterations and time. */
void report_end(struct report *report);

#endif
