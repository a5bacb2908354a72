/* The results of inference steps on their way to the host, and the masks of their draws on their way to the device.
 * Results are copied after their step, in the order of the stream, and read once they have arrived. The device may run
 * the next step by then. Masks have their own stream. */
#include "model-internal.h"

bool model_gives_results(const struct inference_runner *inference) {
    return inference->run.base->part.has_head && inference->run.rank->place.tensor == 0;
}

/* Returns the bytes of a step's results and masks on the host. */
static size_t fetch_bytes(const struct inference_runner *inference) {
    return model_results_bytes(inference->options.max_logit_rows, true) + step_masks_bytes(inference);
}

size_t step_fetches_bytes(const struct inference_runner *inference) {
    return model_gives_results(inference) ? MODEL_STEPS * fetch_bytes(inference) : 0;
}

int step_open_fetches(struct inference_runner *inference) {
    struct device *device = inference->run.rank->device;
    size_t results = model_results_bytes(inference->options.max_logit_rows, true);
    int status = STATUS_OK;
    for (int i = 0; i < MODEL_STEPS && !status && model_gives_results(inference); i++) {
        struct step_fetch *fetch = &inference->step.fetches[i];
        status = device_host_alloc(device, fetch_bytes(inference), &fetch->host);
        fetch->masks = status ? NULL : (uint32_t *)((char *)fetch->host + results);
        THEN(status, event_open(device, &fetch->has_arrived));
    }
    if (status || !model_gives_results(inference))
        return status;
    if (inference->options.max_masks) {
        TRY(stream_open(device, &inference->step.up));
        TRY(event_open(device, &inference->step.has_masks));
    }
    inference->step.parts = calloc((size_t)inference->run.rank->grid.tensor, sizeof *inference->step.parts);
    return status_allocated(inference->step.parts);
}

void step_close_fetches(struct inference_runner *inference) {
    stream_close(inference->step.up);
    event_close(inference->step.has_masks);
    for (int i = 0; i < MODEL_STEPS; i++) {
        event_close(inference->step.fetches[i].has_arrived);
        device_host_free(inference->run.rank->device, inference->step.fetches[i].host);
    }
    for (int t = 1; t < inference->run.rank->grid.tensor && inference->step.parts; t++)
        comm_forget(&inference->step.parts[t]);
    free(inference->step.parts);
}

int step_check_fetches(const struct inference_runner *inference) {
    return inference->step.fetched - inference->step.given < MODEL_STEPS
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "the results of %d steps are not read yet", MODEL_STEPS);
}

/* The host's memory is free: the results of the step that used it before were read. The device's is read by draws until
 * the results of the last step have arrived. */
int step_put_masks(struct inference_runner *inference, const struct model_masks *masks) {
    struct device_step *step = &inference->step;
    uint32_t *host = step->fetches[step->fetched % MODEL_STEPS].masks;
    size_t words = (size_t)(masks->count * sample_mask_words(inference->run.base->options.config.vocab_size));
    TRY(masks->fill(masks->self, host));
    TRY(stream_wait_event(step->up, step->fetches[(step->fetched + MODEL_STEPS - 1) % MODEL_STEPS].has_arrived));
    TRY(stream_copy_to_device(step->up, step->masks, host, words * sizeof *host));
    TRY(event_record(step->has_masks, step->up));
    return stream_wait_event(inference->run.rank->exec.stream, step->has_masks);
}

int step_meet_masks(struct inference_runner *inference, const struct model_masks *masks) {
    struct stream *stream = inference->run.rank->exec.stream;
    if (inference->divided) {
        int status = stream_record_end(stream, &inference->divided->before);
        THEN(status, stream_record_begin(stream));
        inference->divided = status ? NULL : inference->divided;
        return status;
    }
    return masks->count ? step_put_masks(inference, masks) : STATUS_OK;
}

int step_fetch(struct inference_runner *inference, const struct model_step *step, const struct step_record *record) {
    struct stream *stream = inference->run.rank->exec.stream;
    struct step_fetch *fetch = &inference->step.fetches[inference->step.fetched % MODEL_STEPS];
    int status = STATUS_OK;
    fetch->rows = step->sample || step->labels ? step->logit_rows : 0;
    fetch->stride = record ? record->rows : fetch->rows;
    fetch->draws = step->sample != NULL;
    fetch->has_top = step->sample && step->has_top;
    fetch->has_labels = step->labels != NULL;
    if (fetch->rows)
        status = stream_copy_to_host(stream, fetch->host, inference->step.results,
                                     model_results_bytes(fetch->stride, fetch->has_top));
    THEN(status, event_record(fetch->has_arrived, stream));
    inference->step.fetched += !status;
    return status;
}

static void give(const struct step_fetch *fetch, const struct model_step_result *result) {
    size_t rows = (size_t)fetch->rows;
    const struct model_step_result from = model_results_at(fetch->host, fetch->stride);
    for (size_t i = 0; i < rows; i++) {
        result->token[i] = fetch->draws ? from.token[i] : -1;
        result->logprob[i] = fetch->draws ? from.logprob[i] : 0;
        result->label_logprob[i] = fetch->has_labels ? -from.label_logprob[i] : 0;
        result->is_greedy[i] = fetch->has_labels ? from.is_greedy[i] : 0;
    }
    if (fetch->has_top) {
        memcpy(result->top_token, from.top_token, rows * SAMPLE_MAX_TOP * sizeof(int32_t));
        memcpy(result->top_logprob, from.top_logprob, rows * SAMPLE_MAX_TOP * sizeof(float));
    }
}

int model_infer_results(struct inference_runner *inference, const struct model_step_result *result) {
    if (inference->step.given == inference->step.fetched)
        return status_fail(STATUS_INVALID, "no step has results to read");
    const struct step_fetch *fetch = &inference->step.fetches[inference->step.given++ % MODEL_STEPS];
    int status = event_wait(fetch->has_arrived);
    THEN_IF(status, inference->run.rank->world, comm_check(inference->run.rank->world));
    if (!status)
        give(fetch, result);
    return status;
}

int64_t model_step_logit_rows(const struct inference_runner *inference) {
    int64_t wanted = inference->options.max_logit_rows, most = model_sizes(&inference->run)->step_rows;
    return wanted < most ? wanted : most;
}

int model_step_logits(struct inference_runner *inference, int64_t rows, float *logits) {
    const struct base *base = inference->run.base;
    struct rank *rank = inference->run.rank;
    bool is_cut = rank->grid.tensor > 1;
    int64_t vocab = base->options.config.vocab_size, most = model_step_logit_rows(inference);
    const struct logits_view view = {.logits = is_cut ? inference->step.whole : inference->step.logits,
                                     .type = DTYPE_F32,
                                     .rows = rows,
                                     .stride = is_cut ? base->part.whole_vocab_stride : base->part.vocab_stride,
                                     .count = vocab};
    if (!model_gives_results(inference) || rows > most)
        return status_fail(STATUS_INVALID, "logits of %lld rows: only %lld are kept", (long long)rows, (long long)most);
    return logits_fetch(rank, &view, vocab, logits);
}
