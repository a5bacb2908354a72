/* Passes of whole models. The losses of rows lie inside the model, in the order of the head's rows. */
#include "passes.h"

#include "model-internal.h"

int test_train_step(struct training_runner *training, const struct model_batch *batch, const struct model_pass *pass) {
    int status = model_forward(training, batch, pass, NULL, NULL);
    return status ? status : model_backward(training, pass, NULL, NULL);
}

int test_evaluate(struct training_runner *training, const struct model_batch *batch) {
    return model_evaluate_chunk(training, batch, 0, NULL, NULL);
}

int test_row_losses(struct training_runner *training, const struct model_batch *batch, float *losses) {
    const struct runner *run = &training->run;
    int64_t rows = head_rows_count(run, batch), next = 0;
    if (!run->base->part.has_head)
        return STATUS_OK;
    int status =
        stream_copy_to_host(run->rank->exec.stream, losses, run->scratch.losses, (size_t)rows * sizeof *losses);
    THEN(status, rank_finish(run->rank));
    if (status || rows == batch->rows)
        return status;
    for (int64_t i = 0; i < batch->rows; i++)
        next += batch->loss_weight[i] != 0;
    for (int64_t i = batch->rows; i-- > 0;) /* a row's loss lies at its place or before it, so the last goes first */
        losses[i] = batch->loss_weight[i] != 0 ? losses[--next] : 0;
    return STATUS_OK;
}
