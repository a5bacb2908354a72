/* The figures of a run as JSON lines: one object a line, each one write(2) right after its iteration, so that a killed
 * run leaves at most its last line torn. Numbers read back exactly.
 *
 * An iteration is {"iteration","lm_loss","lr","grad_norm","tokens_per_s","model_tflops","seconds"}; a validation is a
 * record of its own, {"iteration","valid_loss","seconds"}. A resumed run goes on in the same file: what the earlier one
 * wrote behind the checkpoint is cut first, so that each iteration stands there once. */
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
    int64_t length;   /* bytes of whole records */
};

/* Opens or creates the file and cuts everything behind the records of `last_iteration` (0: all of them) and a torn last
 * line. The caller's `path` must outlive it. STATUS_INVALID, with the line, when the file holds anything but records:
 * it is somebody else's, and stays untouched. */
int metrics_open(struct metrics_file *metrics, const char *path, int64_t last_iteration);
void metrics_close(struct metrics_file *metrics);
/* On failure (a full disk) no part of the record stays. */
int metrics_write_train(struct metrics_file *metrics, const struct train_record *record);
int metrics_write_validation(struct metrics_file *metrics, const struct validation_record *record);

#endif
