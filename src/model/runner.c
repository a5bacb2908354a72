/* The common part of training and inference runners: their opening, and the memory of activations. */
#include "model-internal.h"

void runner_begin(struct runner *run, const struct base *base, const struct model_options *options) {
    *run = (struct runner){
        .base = base,
        .rank = options->rank ? options->rank : base->rank,
        .hooks = options->hooks,
        .max_rows = options->max_rows,
        .max_positions = options->max_positions ? options->max_positions : model_positions(&base->options.config),
        .lowest = -1,
    };
}

int runner_plan(struct runner *run, int (*plan)(void *self, int64_t rows), void *self) {
    int status = STATUS_OK;
    rank_unsure(run->rank, true, 1);
    for (int64_t rows = 1; rows < run->max_rows && !status; rows *= 2)
        status = plan(self, rows);
    rank_unsure(run->rank, true, -1);
    return status ? status : plan(self, run->max_rows);
}

int runner_allocate(struct runner *run) {
    int status = device_alloc(run->rank->device, run->activation_bytes, &run->activations);
    return status ? status_wrap(status, "activations") : STATUS_OK;
}

int runner_open_uploads(struct runner *run, size_t bytes) {
    int status = upload_open(&run->upload, run->rank->device, bytes);
    return status ? status : heads_upload_angles(run);
}

void runner_close(struct runner *run) {
    device_free(run->rank->device, run->activations);
    upload_close(&run->upload);
}
