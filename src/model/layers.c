/* The common part of blocks, embedding and head: norms and dropout, with this model's keys and types. */
#include "model-internal.h"

/* Completes the caller's arguments for a norm of the model's kind. */
static struct norm norm_of(const struct runner *run, const struct norm *arguments) {
    const struct model_config *c = &run->base->options.config;
    struct norm call = *arguments;
    call.kind = c->normalization == NORMALIZATION_RMS ? NORM_RMS : NORM_LAYER;
    call.cols = call.cols ? call.cols : c->hidden_size;
    call.type = run->base->options.dtype;
    call.epsilon = (float)c->layernorm_epsilon;
    return call;
}

int norm_forward(const struct runner *run, const struct norm_params *norm, const struct norm *arguments) {
    struct norm call = norm_of(run, arguments);
    bool has_bias = norm->bias != PARAM_NONE;
    call.gain = param_borrow(&run->base->store, norm->gain).data;
    call.bias = has_bias ? param_borrow(&run->base->store, norm->bias).data : NULL;
    int status = rank_run(run->rank, PHASE_NORM, norm_forward, &call);
    param_return(&run->base->store, norm->gain);
    if (has_bias)
        param_return(&run->base->store, norm->bias);
    return status;
}

int norm_backward(const struct runner *run, const struct norm_params *norm, const struct norm *arguments) {
    struct norm call = norm_of(run, arguments);
    call.gain = param_borrow(&run->base->store, norm->gain).data;
    call.dgain = param_gradient(&run->base->store, norm->gain);
    call.dbias = norm->bias != PARAM_NONE ? param_gradient(&run->base->store, norm->bias) : NULL;
    int status = rank_run(run->rank, PHASE_NORM, norm_backward, &call);
    param_return(&run->base->store, norm->gain);
    return status;
}

static struct residual_dropout dropout_call(const struct pass *pass, double p, uint32_t site) {
    const struct runner *run = pass->run;
    int64_t first = rank_first_stream_row(run->rank, pass->rows);
    return (struct residual_dropout){
        .rows = rank_stream_rows(run->rank, pass->rows),
        .cols = run->base->options.config.hidden_size,
        .type = run->base->options.dtype,
        .dropout = {.p = (float)p,
                    .seed = run->rank->seed,
                    .site = site,
                    .keys = {.sample = pass->batch->sample + first, .token = pass->batch->token + first}},
    };
}

int dropout_forward(const struct pass *pass, double p, uint32_t site, const void *residual, const void *x, void *y) {
    struct residual_dropout call = dropout_call(pass, p, site);
    call.residual = residual;
    call.x = x;
    call.y = y;
    return rank_run(pass->run->rank, PHASE_NORM, residual_dropout_forward, &call);
}

int dropout_backward(const struct pass *pass, double p, uint32_t site, const void *dy, void *dx) {
    struct residual_dropout call = dropout_call(pass, p, site);
    call.dy = dy;
    call.dx = dx;
    return rank_run(pass->run->rank, PHASE_NORM, residual_dropout_backward, &call);
}
