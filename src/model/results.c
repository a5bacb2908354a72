/* The results of inference steps on their way to the host. They are copied after their step, in the order of the
 * stream, and read once they have arrived. The device may run the next step by then. */
#include "model-internal.h"

#include <stdlib.h>
#include <string.h>

bool model_gives_results(const struct model *model) {
    return model->share.has_head && model->rank->place.tensor == 0;
}

size_t step_fetches_bytes(const struct model *model) {
    return model_gives_results(model) ? MODEL_STEPS * model_results_bytes(model->options.infer.max_logit_rows, true)
                                      : 0;
}

int step_open_fetches(struct model *model) {
    struct device *device = model->rank->device;
    size_t bytes = model_results_bytes(model->options.infer.max_logit_rows, true);
    int status = STATUS_OK;
    for (int i = 0; i < MODEL_STEPS && !status && model_gives_results(model); i++) {
        status = device_host_alloc(device, bytes, &model->step.fetches[i].host);
        THEN(status, event_open(device, &model->step.fetches[i].has_arrived));
    }
    if (status || !model_gives_results(model))
        return status;
    model->step.parts = calloc((size_t)model->rank->grid.tensor, sizeof *model->step.parts);
    return status_allocated(model->step.parts);
}

void step_close_fetches(struct model *model) {
    for (int i = 0; i < MODEL_STEPS; i++) {
        event_close(model->step.fetches[i].has_arrived);
        device_host_free(model->rank->device, model->step.fetches[i].host);
    }
    for (int t = 1; t < model->rank->grid.tensor && model->step.parts; t++)
        comm_forget(&model->step.parts[t]);
    free(model->step.parts);
}

int step_check_fetches(const struct model *model) {
    return model->step.fetched - model->step.given < MODEL_STEPS
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "the results of %d steps are not read yet", MODEL_STEPS);
}

int step_fetch(struct model *model, const struct model_step *step, const struct step_record *record) {
    struct stream *stream = model->rank->exec.stream;
    struct step_fetch *fetch = &model->step.fetches[model->step.fetched % MODEL_STEPS];
    int status = STATUS_OK;
    fetch->rows = step->sample || step->labels ? step->logit_rows : 0;
    fetch->stride = record ? record->rows : fetch->rows;
    fetch->draws = step->sample != NULL;
    fetch->has_top = step->sample && step->has_top;
    fetch->has_labels = step->labels != NULL;
    if (fetch->rows)
        status = stream_copy_to_host(stream, fetch->host, model->step.results,
                                     model_results_bytes(fetch->stride, fetch->has_top));
    THEN(status, event_record(fetch->has_arrived, stream));
    model->step.fetched += !status;
    return status;
}

static void give(const struct step_fetch *fetch, const struct model_step_result *result) {
    size_t rows = (size_t)fetch->rows, stride = (size_t)fetch->stride;
    const int32_t *token = fetch->host;
    const float *logprob = (const float *)token + stride, *label_loss = logprob + stride;
    const int32_t *is_greedy = (const int32_t *)(label_loss + stride);
    for (size_t i = 0; i < rows; i++) {
        result->token[i] = fetch->draws ? token[i] : -1;
        result->logprob[i] = fetch->draws ? logprob[i] : 0;
        result->label_logprob[i] = fetch->has_labels ? -label_loss[i] : 0;
        result->is_greedy[i] = fetch->has_labels ? is_greedy[i] : 0;
    }
    if (fetch->has_top) {
        memcpy(result->top_token, is_greedy + stride, rows * SAMPLE_MAX_TOP * sizeof(int32_t));
        memcpy(result->top_logprob, is_greedy + stride + stride * SAMPLE_MAX_TOP,
               rows * SAMPLE_MAX_TOP * sizeof(float));
    }
}

int model_infer_results(struct model *model, const struct model_step_result *result) {
    if (model->step.given == model->step.fetched)
        return status_fail(STATUS_INVALID, "no step has results to read");
    const struct step_fetch *fetch = &model->step.fetches[model->step.given++ % MODEL_STEPS];
    int status = event_wait(fetch->has_arrived);
    if (!status && model->rank->world)
        status = comm_check(model->rank->world);
    if (!status)
        give(fetch, result);
    return status;
}
