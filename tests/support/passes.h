/* Passes of a model of one chunk with both ends, and the losses of its rows. */
#pragma once

#include "model/model.h"

/* Runs forward and backward. The errors of model_forward. */
int test_train_step(struct training_runner *training, const struct model_batch *batch, const struct model_pass *pass);
/* The same without a backward. */
int test_evaluate(struct training_runner *training, const struct model_batch *batch);
/* Copies -log p(label) of each row of `batch` whose loss counts to host memory [N]; the other rows get 0. The batch
 * must be the last one that went through one of these. */
int test_row_losses(struct training_runner *training, const struct model_batch *batch, float *losses);
