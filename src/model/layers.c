/* The common part of blocks, embedding and head: norms and dropout, with this model's keys and types. */
#include "model-internal.h"

struct norm norm_call(const struct model *model, int64_t rows, int64_t columns) {
    const struct model_config *c = &model->options.config;
    return (struct norm){
        .kind = c->normalization == NORMALIZATION_RMS ? NORM_RMS : NORM_LAYER,
        .rows = rows,
        .cols = columns,
        .type = model->options.dtype,
        .epsilon = (float)c->layernorm_epsilon,
    };
}

int norm_run_forward(const struct model *model, const struct norm_params *norm, struct norm *call) {
    bool has_bias = norm->bias != PARAM_NONE;
    call->gain = param_borrow(&model->store, norm->gain).data;
    call->bias = has_bias ? param_borrow(&model->store, norm->bias).data : NULL;
    int status = rank_run(model->rank, PHASE_NORM, norm_forward, call);
    param_return(&model->store, norm->gain);
    if (has_bias)
        param_return(&model->store, norm->bias);
    return status;
}

int norm_run_backward(const struct model *model, const struct norm_params *norm, struct norm *call) {
    call->gain = param_borrow(&model->store, norm->gain).data;
    call->dgain = param_gradient(&model->store, norm->gain);
    call->dbias = norm->bias != PARAM_NONE ? param_gradient(&model->store, norm->bias) : NULL;
    int status = rank_run(model->rank, PHASE_NORM, norm_backward, call);
    param_return(&model->store, norm->gain);
    return status;
}

/* Completes the caller's arguments for a norm of the residual stream. */
static struct norm stream_norm(const struct model *model, const struct norm *arguments) {
    const struct norm of_model = norm_call(model, arguments->rows, model->options.config.hidden_size);
    struct norm call = *arguments;
    call.kind = of_model.kind;
    call.cols = of_model.cols;
    call.type = of_model.type;
    call.epsilon = of_model.epsilon;
    return call;
}

int norm_forward(const struct model *model, const struct norm_params *norm, const struct norm *arguments) {
    struct norm call = stream_norm(model, arguments);
    return norm_run_forward(model, norm, &call);
}

int norm_backward(const struct model *model, const struct norm_params *norm, const struct norm *arguments) {
    struct norm call = stream_norm(model, arguments);
    return norm_run_backward(model, norm, &call);
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
