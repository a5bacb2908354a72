/* The figures of a run as JSON lines: one object a line, each one write(2) right after its iteration, so that a killed
 * run leaves at most its last line torn. Numbers read back exactly.
 *
 * An iteration is {"iteration","lm_loss","lr","grad_norm","tokens_per_s","model_tflops","seconds"}; a validation is a
 * record of its own, {"iteration","valid_loss","seconds"}. A number that is not finite is null. A resumed run goes on
 * in the same file: what the earlier one wrote after the checkpoint is cut first, so that each iteration stands there
 * once. A file that cannot be that run's is refused, and so is one that another process writes to. */
#ifndef CAMBIUM_TRAIN_METRICS_H
#define CAMBIUM_TRAIN_METRICS_H

#include "base/base.h"

#include <stdbool.h>
#include <stdint.h>

struct train_record {
    int64_t iteration; /* from 1 */
    double lm_loss;    /* mean over the label tokens of the global batch */
    double lr;         /* the rate this update used */
    double grad_norm;  /* before clipping */
    double tokens_per_s, model_tflops, seconds;
};

struct validation_record {
    int64_t iteration;
    double valid_loss; /* mean over the label tokens of the validation's batches */
    double seconds;
};

struct metrics_file {
    int descriptor;
    const char *path; /* the caller's */
    bool is_regular;  /* pipes and terminals are only written to */
    bool is_given_up; /* its reader took nothing */
    int64_t length;   /* bytes of whole records */
};

/* The start of a run, which tells its own records from others. */
struct metrics_start {
    int64_t iteration; /* done before */
    enum { METRICS_FRESH, METRICS_GOES_ON, METRICS_ADDS /* nothing is trained: no record goes */ } kind;
    bool has_loss; /* of that iteration, as its checkpoint has it */
    double loss;
};

/* Opens or creates the file, locks it, and cuts everything after the records of start->iteration (0: all of them) and
 * a torn last line. The caller's `path` must outlive it. STATUS_INVALID when the file holds anything but records (with
 * the line), or those of a run that this one does not go on from: it is somebody else's, and stays untouched. A pipe
 * that nobody reads is refused. */
int metrics_open(struct metrics_file *metrics, const char *path, const struct metrics_start *start);
void metrics_close(struct metrics_file *metrics);
/* To the disk: a checkpoint that comes there must find its records. */
int metrics_sync(const struct metrics_file *metrics);
/* On failure (a full disk) no part of the record stays. A pipe whose reader takes nothing is waited for, until the run
 * is asked to stop: then the record is dropped. */
int metrics_write_train(struct metrics_file *metrics, const struct train_record *record);
int metrics_write_validation(struct metrics_file *metrics, const struct validation_record *record);

#endif
