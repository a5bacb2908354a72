/* The figures of a run as JSON lines. Each object is one line, and one write(2) right after its iteration, so a killed
 * run leaves at most its last line incomplete. Numbers read back exactly.
 *
 * An iteration is {"iteration","lm_loss","lr","grad_norm","tokens_per_s","model_tflops","seconds"}; with a loss of
 * answers it has "loss" in place of "lm_loss", and "rewards_chosen", "rewards_rejected", "rewards_margin" and
 * "rewards_accuracy" after it. A validation is {"iteration","valid_loss","seconds"}. The last of a run on rows may be
 * {"iteration","serving_gap"}. A number that is not finite is null.
 *
 * A resumed run continues the same file. It first cuts off the records after its checkpoint, so each iteration occurs
 * once. A file that cannot belong to this run is refused, and so is one that another process writes to. */
#pragma once

#include "base/base.h"

struct train_record {
    int64_t iteration; /* from 1 */
    double lm_loss;    /* mean over the label tokens of the global batch; with rewards: over its rows */
    bool has_rewards;  /* a loss of answers: */
    struct train_rewards {
        double chosen, rejected, margin, accuracy; /* means over the global batch; NaN: it has no such answer */
    } rewards;
    double lr;        /* the rate of this update */
    double grad_norm; /* before clipping */
    double tokens_per_s, model_tflops, seconds;
    double work; /* as a multiple of an iteration without forwards of the reference model */
};

struct validation_record {
    int64_t iteration;
    double valid_loss; /* mean over the label tokens of the validation's batches */
    double seconds;
};

struct metrics_file {
    int descriptor;
    const char *path; /* owned by the caller */
    bool is_regular;  /* pipes and terminals are never read or cut */
    bool is_given_up; /* its reader does not read: nothing more is written */
    int64_t length;   /* bytes of whole records */
};

/* How a run starts. It decides which records of a file belong to the run. */
struct metrics_start {
    int64_t iteration; /* finished before this process */
    enum { METRICS_FRESH, METRICS_RESUMES, METRICS_ADDS /* nothing is trained: all records stay */ } kind;
    bool has_loss; /* the checkpoint has the loss of that iteration */
    double loss;
};

/* Opens or creates the file and locks it. Cuts an incomplete last line, and all records after start->iteration (0: all
 * records). The caller's `path` must outlive it. STATUS_INVALID, with the line, when the file holds anything but
 * records, and when this run does not resume the run in it; the file is then unchanged. STATUS_IO, also for a pipe
 * without a reader. */
int metrics_open(struct metrics_file *metrics, const char *path, const struct metrics_start *start);
void metrics_close(struct metrics_file *metrics);
/* Syncs the file to the disk. Called before a checkpoint is saved, so the records of a checkpoint are on the disk.
 * STATUS_IO. */
int metrics_sync(const struct metrics_file *metrics);
/* Append a record. On failure (a full disk) no part of the record remains. If a pipe's reader does not read, they wait
 * until the run is asked to stop, and then drop the record. STATUS_IO. */
int metrics_write_train(struct metrics_file *metrics, const struct train_record *record);
int metrics_write_validation(struct metrics_file *metrics, const struct validation_record *record);
/* `gap`: the largest difference between log-probabilities of training and serving. */
int metrics_write_gap(struct metrics_file *metrics, int64_t iteration, double gap);
