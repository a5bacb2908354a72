/* Inside the trainer. Functions that return a status have the errors of train.h. */
#pragma once

#include "train/plan.h"
#include "train/stepper.h"
#include "train/train.h"

#include "base/opening.h"
#include "ckpt/ckpt.h"
#include "parallel/layout.h"
#include "parallel/site.h"

/* Owns the world of a run: its device, group, files and model. The stepper works on them. */
struct trainer {
    struct train_run run;
    struct train_plan plan;
    struct comm *world;
    struct comm *own_world; /* opened if the caller has none */
    struct rank_grid grid;
    struct rank_site site;
    struct device *device;
    struct rank rank;
    struct gpt_data data;
    struct tuning_data *rows;  /* NULL: pretraining */
    struct train_source files; /* reads data or rows */
    struct train_model model;
    struct stepper stepper;
    struct schedule schedule;
    int64_t iteration; /* finished iterations */
    int64_t tokens;    /* in the iterations of this process, without padding */
    int64_t consumed_samples;
    struct run_saver *saver; /* NULL: nothing is saved */
    int save_lock;           /* lock on checkpoint.save, on the first rank; -1: none */
    bool made_save;          /* this run created checkpoint.save */
    struct train_progress progress;
    int stop; /* the signal for which all ranks have agreed to stop, or 0 */
};

/* ranks.c */
/* Makes the grid of `ranks`. STATUS_USAGE for an impossible layout. */
int train_grid(const struct run_config *run, int ranks, struct rank_grid *grid);
/* Sets trainer->stop from the signals of all ranks, and advances a background save by the minimum progress of all. */
int train_agree(struct trainer *trainer);
/* Returns STATUS_INTERRUPTED on all ranks when one was asked to stop. */
int train_agree_to_start(struct trainer *trainer);
/* Sums one number in host memory over the ranks that share this one's weights. */
int train_sum_over_data(const struct rank *rank, void *values, int64_t count, enum dtype dtype);

/* trainer_open.c */
/* Makes a trainer in which no step of the opening has run; the caller frees it. STATUS_USAGE for a layout that
 * is impossible on the ranks of `world` (NULL: one rank), STATUS_MEMORY. */
int train_make(const struct train_run *run, struct comm *world, struct trainer **trainer);
/* The steps of the opening, on a trainer of train_make. A step returns the errors of what it opens. */
extern const struct opening train_opening;

/* claim.c */
/* On the first rank: makes and locks the directory of the checkpoints. Refuses a run that would replace another run's
 * checkpoints. STATUS_INVALID. */
int train_claim(struct trainer *trainer);
void train_unclaim(struct trainer *trainer);
/* Returns the iteration up to which the checkpoints in checkpoint.save belong to this run; -1: none does. */
int64_t train_ours_until(const struct train_run *run);
/* True when the run resumes, perhaps one that was interrupted before its first checkpoint. */
bool train_resumes(const struct train_run *run);

/* batch.c */
/* Reads this rank's part of a global batch. */
int stepper_read(struct stepper *stepper, const struct train_samples *samples);
/* Runs the forward of a step without dropout; `weigh` as in struct model_pass. */
int stepper_evaluate_micro(struct stepper *stepper, const struct pipeline_step *step,
                           int (*weigh)(void *context, int64_t count, float *values), const void *in, void *out);
/* Sums numbers of the last stages over all ranks that have different samples. */
int stepper_sum(struct stepper *stepper, double *values, int64_t count);

/* answers.c: losses of answers. */
static inline bool stepper_has_answers(const struct stepper *stepper) {
    return stepper->loss && stepper->loss->run;
}
int answers_open(struct stepper *stepper);
void answers_close(struct stepper *stepper);
/* Returns the reference's sums of the segments of a micro batch. */
double *stepper_references(const struct stepper *stepper, int64_t micro_batch);
/* Runs the forwards that the loss needs before its own, with the hooks of the tuner as they are. */
int answers_prepare(struct stepper *stepper, const struct train_samples *samples);
/* The head's `weigh` of this loss. `context`: the stepper. */
int answers_weigh(void *context, int64_t count, float *values);

/* references.c */
/* Takes memory for the references of rows that `samples` samples of training, or the validations between them, meet
 * more than once. */
int references_open(struct train_source *source, const struct loss *loss, int64_t samples);
void references_close(struct train_source *source);
/* Sets the references of a global batch if they are known, the same on all ranks. */
int references_find(struct stepper *stepper, const struct train_samples *samples, bool *are_known);
/* Keeps those that were just computed. */
int references_keep(struct stepper *stepper, const struct train_samples *samples);

/* shapes.c */
/* Returns the pipeline's schedule. */
struct pipeline_shape train_pipeline_shape(const struct run_config *run, const struct rank_grid *grid);
/* Sets the options of the rank's stage, and the schedule that belongs to them: places below everything that trains have
 * no backward. */
int train_model_options(const struct train_run *run, const struct rank *rank, const struct train_model *model,
                        struct model_options *options, struct pipeline_shape *shape);
/* Returns the largest number of rows of a sample. */
int64_t train_sample_rows(const struct run_config *run, const struct loss *loss);
struct gpt_data_options train_data_options(const struct train_run *run);

/* plan.c */
/* Sketches the model and fills `plan`. Afterwards `rank` is still planning, and has noted the needs of model and
 * optimizer. `data` has the open files; NULL: they are not counted. The caller closes the model, even after a failure.
 */
int train_plan_fill(const struct train_run *run, struct rank *rank, const struct gpt_data *data,
                    struct train_model *model, struct train_plan *plan);
/* Closes the files of a base in few bits. */
void train_close_files(struct train_model *model);
void train_model_close(const struct train_run *run, struct train_model *model);

/* state.c: trainer_state.json */
/* Makes the text; the caller frees *text. STATUS_MEMORY. */
int train_state_write(const struct trainer *trainer, char **text);
/* Sets the counters of `run` from the text, and warns about keys that differ from those in the text. STATUS_INVALID. */
int train_state_read(struct train_run *run, const char *text, const char *where);

/* trainer.c */
/* Returns the work of the remaining iterations, in those without forwards of the reference model. */
double train_work_left(const struct trainer *trainer);
/* Returns the number of samples, or rows, of the validation split. */
int64_t train_validation_length(const struct trainer *trainer);
/* Ends a run after a failure that every rank finds. It finishes a save that is in progress, and the other ranks wait
 * until the first one has reported the failure. */
int train_end_together(struct trainer *trainer);

/* resume.c */
/* Loads the frozen weights under a tuner, and starts the tuner. */
int train_load_base(struct trainer *trainer);
/* Loads the weights, and with a checkpoint the optimizer, from the files that the run names; or sets initial values.
 * STATUS_INVALID for bad files. */
int train_load(struct trainer *trainer);

/* save.c */
/* Computes the bytes that saving takes at a rank. */
int train_saver_bytes(const struct train_run *run, const struct rank *rank, const struct tuner_part *tuner,
                      struct train_bytes *bytes);
int train_saver_open(struct trainer *trainer);
void train_saver_close(struct trainer *trainer);
/* Return the progress of a background save on this rank, and advance it by the minimum progress of all ranks. */
enum ckpt_progress train_save_progress(const struct trainer *trainer);
int train_save_advance(struct trainer *trainer, enum ckpt_progress least);

/* validate.c */
/* True when the run keeps what trains with the best validation loss. */
bool train_keeps_best(const struct train_run *run);
/* Runs a validation and keeps what trains if it is the best so far. *record and *is_done: see trainer_evaluate. */
int train_validate(struct trainer *trainer, struct validation_record *record, bool *is_done, bool *is_better);
/* True when the run resumes from a checkpoint that was saved before the validation of its iteration. */
bool train_owes_validation(const struct trainer *trainer);
/* True when train.early_stop ends the run. */
bool train_is_stopped_early(const struct trainer *trainer);

/* report.c: reports on standard error. */
struct report {
    struct progress progress;
    const struct trainer *trainer;
    int64_t first_iteration;
    double start, first_end; /* clock_seconds() at the beginning, and after the first iteration */
    double work;             /* of the iterations after the first one */
    double ceiling_tflops;   /* 0: not measured */
};
void report_begin(struct report *report, const struct trainer *trainer, double ceiling_tflops);
void report_step(struct report *report, const struct train_record *record);
/* `is_kept`: it was the best so far, so its weights are kept. */
void report_validation(struct report *report, const struct validation_record *record, bool is_kept);
/* Clears the bar, so that another line can follow. */
void report_pause(struct report *report);
/* Writes the last line: iterations and time. */
void report_end(struct report *report);
