/* What blocks, embedding and head share: norms and dropout, keyed and typed as this model's. */
#include "model-internal.h"

int norm_forward(const struct model *model, const struct norm_params *norm, int64_t rows, const void *x, void *y,
                 float *mean, float *rstd) {
    struct weight_view gain = param_borrow(&model->store, norm->gain), bias = param_borrow(&model->store, norm->bias);
    struct norm call = {
        .kind = NORM_LAYER,
        .rows = rows,
        .cols = model->options.config.hidden_size,
        .type = model->options.dtype,
        .x = x,
        .gain = gain.data,
        .bias = bias.data,
        .epsilon = (float)model->options.config.layernorm_epsilon,
        .y = y,
        .mean = mean,
        .rstd = rstd,
    };
    int status = rank_run(model->rank, PHASE_NORM, norm_forward, &call);
    param_return(&model->store, norm->gain);
    param_return(&model->store, norm->bias);
    return status;
}

int norm_backward(const struct model *model, const struct norm_params *norm, int64_t rows, const void *x,
                  const float *mean, const float *rstd, const void *dy, const void *dx_add, void *dx) {
    struct weight_view gain = param_borrow(&model->store, norm->gain);
    struct norm call = {
        .kind = NORM_LAYER,
        .rows = rows,
        .cols = model->options.config.hidden_size,
        .type = model->options.dtype,
        .x = x,
        .gain = gain.data,
        .epsilon = (float)model->options.config.layernorm_epsilon,
        .mean = (float *)mean,
        .rstd = (float *)rstd,
        .dy = dy,
        .dx = dx,
        .dx_add = dx_add,
        .dgain = param_gradient(&model->store, norm->gain),
        .dbias = param_gradient(&model->store, norm->bias),
    };
    int status = rank_run_scratch(model->rank, PHASE_NORM, norm_backward, &call);
    param_return(&model->store, norm->gain);
    return status;
}

static struct residual_dropout dropout_call(const struct pass *pass, double p, uint32_t site) {
    const struct model *model = pass->model;
    int64_t first = rank_first_stream_row(model->rank, pass->rows);
    return (struct residual_dropout){
        .rows = rank_stream_rows(model->rank, pass->rows),
        .cols = model->options.config.hidden_size,
        .type = model->options.dtype,
        .dropout = {.p = (float)p,
                    .seed = model->rank->seed,
                    .site = site,
                    .keys = {.sample = pass->batch->sample + first, .token = pass->batch->token + first}},
    };
}

int dropout_forward(const struct pass *pass, double p, uint32_t site, const void *residual, const void *x, void *y) {
    struct residual_dropout call = dropout_call(pass, p, site);
    call.residual = residual;
    call.x = x;
    call.y = y;
    return rank_run(pass->model->rank, PHASE_NORM, residual_dropout_forward, &call);
}

int dropout_backward(const struct pass *pass, double p, uint32_t site, const void *dy, void *dx) {
    struct residual_dropout call = dropout_call(pass, p, site);
    call.dy = dy;
    call.dx = dx;
    return rank_run(pass->model->rank, PHASE_NORM, residual_dropout_backward, &call);
}
