/* One transformer block, forward and backward: x + attention(norm1(x)), then + mlp(norm2(.)). Training and inference
 * run the same code; inference keeps keys and values in pages instead of in the batch.
 *
 * Each half of a block is a pair of functions: the backward consumes what the forward saves (struct block_saved). */
#include "model-internal.h"

#include <math.h>

/* ---- calls ---- */

static int64_t stream_rows(const struct block_pass *block) {
    return rank_stream_rows(block->pass->model->rank, block->pass->rows);
}

/* True when the backward recomputes such outputs, because something may have overwritten them. */
static bool is_recomputed(const struct block_pass *block, bool is_chosen) {
    return is_chosen && block->pass->model->options.train.recompute.how == RECOMPUTE_SELECTIVE && !block->is_fresh;
}

static const struct hook_list *hooks_at(const struct block_pass *block, enum attach_place place) {
    return hook_table_list(block->pass->model->options.hooks, block->layer, place);
}

/* Returns the keys of dropout for the rows from `first` on. */
static struct row_keys keys_at(const struct block_pass *block, int64_t first) {
    const struct device_batch *batch = block->pass->batch;
    if (!block->pass->asked.has_dropout || !batch->sample)
        return (struct row_keys){0};
    return (struct row_keys){.sample = batch->sample + first, .token = batch->token + first};
}

static double hidden_dropout(const struct block_pass *block) {
    return block->pass->asked.has_dropout ? block->pass->model->options.config.hidden_dropout : 0;
}

static struct hook_call hook_call_at(const struct block_pass *block, enum attach_place place) {
    const struct pass *pass = block->pass;
    return (struct hook_call){
        .rank = pass->model->rank,
        .layer = (int)block->layer,
        .place = place,
        .dtype = pass->model->options.dtype,
        .rows = pass->rows,
        .y_dtype = pass->model->options.dtype,
        .keys = keys_at(block, 0),
        .saved = block->saved->hooks[place],
    };
}

static struct linear_call linear_call_at(const struct block_pass *block, enum attach_place place) {
    const struct model *model = block->pass->model;
    return (struct linear_call){
        .rank = model->rank,
        .store = &model->store,
        .hooks = hooks_at(block, place),
        .hook = hook_call_at(block, place),
        .dtype = model->options.dtype,
        .fp8 = fp8_linear_at(model, block->layer, place),
        .measures_fp8 = block->measures,
        .mixes_rows = !block->pass->kv,
        .rows = block->pass->rows,
        .whole = model->scratch.whole,
        .whole_gradient = model->gradients.whole,
        .overwrite_gradients = block->pass->asked.is_first_micro_batch,
    };
}

/* Returns the hook call of a place after a whole half of the block: x is the half's normalised input, y its result. */
static struct hook_call half_hook_call(const struct block_pass *block, enum attach_place place, const void *x,
                                       const void *residual) {
    const struct model *model = block->pass->model;
    struct hook_call call = hook_call_at(block, place);
    call.rows = stream_rows(block);
    call.keys = keys_at(block, rank_first_stream_row(model->rank, block->pass->rows));
    call.in = call.out = model->options.config.hidden_size;
    call.x = x;
    call.y = model->scratch.branch;
    call.y_stride = call.out;
    call.dy = model->scratch.branch;
    call.dx = model->gradients.norm;
    call.residual = residual;
    call.dresidual = block->pass->d;
    return call;
}

size_t block_hook_saved_bytes(const struct model *model, int64_t layer, enum attach_place place) {
    const struct model_widths *widths = &model->share.widths;
    int64_t C = model->options.config.hidden_size;
    struct hook_call call = {
        .rank = model->rank,
        .layer = (int)layer,
        .place = place,
        .dtype = model->options.dtype,
        .rows = model->options.max_rows,
        .in = place == ATTACH_FC2          ? widths->ffn
              : place == ATTACH_PROJECTION ? widths->q
                                           : C,
        .out = place == ATTACH_QKV   ? widths->qkv
               : place == ATTACH_FC1 ? widths->fc1
                                     : C,
    };
    return hook_list_saved_bytes(hook_table_list(model->options.hooks, layer, place), &call);
}

/* ---- where the backward ends ---- */

/* True when nothing before the place trains, so the gradient of its input is not needed. */
static bool ends_at(const struct block_pass *block, enum attach_place place) {
    static const enum attach_place order[] = {ATTACH_QKV, ATTACH_PROJECTION, ATTACH_AFTER_ATTENTION,
                                              ATTACH_FC1, ATTACH_FC2,        ATTACH_AFTER_MLP};
    bool has_prefix = hook_table_prefixes(block->pass->model->options.hooks, block->layer)->count;
    for (int i = 0; block->is_lowest && order[i] != place; i++)
        if (hooks_at(block, order[i])->count || has_prefix)
            return false;
    return block->is_lowest;
}

/* ---- attention ---- */

int block_prefix(const struct model *model, int64_t layer, int image, struct hook_prefix *prefix) {
    const struct prefix_list *hooks = hook_table_prefixes(model->options.hooks, layer);
    int status = STATUS_OK;
    *prefix = (struct hook_prefix){0};
    for (int i = 0; i < hooks->count && !status; i++)
        status = hooks->hook[i].prefix(hooks->hook[i].self, image, (int)layer, prefix);
    return status;
}

/* Returns how many tokens a row sees; 0: all before it. */
static int64_t window_of(const struct block_pass *block) {
    const struct model_config *c = &block->pass->model->options.config;
    return model_layer_is_full(c, block->layer) ? 0 : c->window;
}

static int attention_call(const struct block_pass *block, struct attention *call) {
    const struct model *model = block->pass->model;
    const struct model_config *c = &model->options.config;
    const struct model_widths *widths = &model->share.widths;
    int64_t heads_stride;
    const void *heads = heads_of(block, &heads_stride);
    *call = (struct attention){
        .rows = block->pass->rows,
        .segments = block->pass->batch->segments,
        .segment_start = block->pass->batch->segment_start,
        .longest = block->pass->batch->longest,
        .heads = (int)widths->heads,
        .kv_heads = (int)widths->query_groups,
        .head_size = (int)widths->head,
        .type = model->options.dtype,
        .is_tf32 = model->rank->is_tf32,
        .q = heads,
        .k = model_element(model, (void *)heads, widths->q),
        .v = model_element(model, block->saved->qkv, widths->q + widths->kv),
        .q_stride = heads_stride,
        .k_stride = heads_stride,
        .v_stride = widths->qkv,
        .window = window_of(block),
        .scale = 1 / sqrtf((float)widths->head),
        .out = block->saved->attention,
        .out_stride = widths->q,
        .lse = block->saved->lse,
        .dropout = {.p = block->pass->asked.has_dropout ? (float)c->attention_dropout : 0,
                    .seed = model->rank->seed,
                    .site = (uint32_t)(block->layer * c->num_attention_heads + model->share.first_head),
                    .keys = {.sample = block->pass->batch->sample, .token = block->pass->batch->token}},
    };
    struct hook_prefix prefix;
    int status = block_prefix(model, block->layer, 0, &prefix);
    call->prefix = prefix.tokens;
    call->prefix_k = prefix.k;
    call->prefix_v = prefix.v;
    call->dprefix_k = prefix.dk;
    call->dprefix_v = prefix.dv;
    return status;
}

/* Puts keys and values into the pages; then every row attends to its sequence's pages. */
static int attention_core_paged(const struct block_pass *block) {
    const struct pass *pass = block->pass;
    const struct model *model = pass->model;
    const struct device_step *step = pass->step;
    const struct model_widths *widths = &model->share.widths;
    struct kv_append append = model_kv_append(model, pass->kv, step->place, block->layer, pass->rows);
    int64_t heads_stride;
    const void *heads = heads_of(block, &heads_stride);
    append.k = model_element(model, (void *)heads, widths->q);
    append.v = model_element(model, block->saved->qkv, widths->q + widths->kv);
    append.k_stride = heads_stride;
    append.v_stride = widths->qkv;
    int status = rank_run(model->rank, PHASE_ATTENTION, kv_append, &append);
    struct paged_attention attention = {
        .rows = pass->rows,
        .heads = (int)widths->heads,
        .kv_heads = (int)widths->query_groups,
        .head_size = (int)widths->head,
        .type = model->options.dtype,
        .q = heads,
        .q_stride = heads_stride,
        .window = window_of(block),
        .scale = 1 / sqrtf((float)widths->head),
        .pages = append.pages,
        .page_stride = append.page_stride,
        .page_table = step->page_table,
        .max_pages = pass->max_pages,
        .sequence = step->sequence,
        .position = step->cached,
        .out = block->saved->attention,
        .out_stride = widths->q,
    };
    struct rank *rank = model->rank;
    if (!status && rank->is_planning)
        return rank_note(rank, PHASE_ATTENTION, "paged_attention", paged_attention_work(&attention, pass->seen),
                         rank->ops->paged_attention_workspace(rank->device, &attention));
    return status ? status : rank_run_noted(rank, PHASE_ATTENTION, paged_attention, &attention);
}

static int attention_core_forward(const struct block_pass *block) {
    if (block->pass->kv)
        return attention_core_paged(block);
    struct attention call;
    int status = attention_call(block, &call);
    return status ? status : rank_run_scratch(block->pass->model->rank, PHASE_ATTENTION, attention_forward, &call);
}

/* True when FP8 products alone read a norm's output. Hooks of its linear and after its half read it in bf16. */
static bool is_norm_in_fp8(const struct block_pass *block, enum attach_place linear, enum attach_place after) {
    return fp8_has_norms(block->pass->model) && !hooks_at(block, linear)->count && !hooks_at(block, after)->count;
}

/* Gives a norm the FP8 matrix that it writes as well, or NULL. By columns, a backward wants what the forward wrote by
 * rows. */
static void set_norm_output(const struct fp8_output *fp8, bool is_alone, struct norm *norm) {
    if (!fp8)
        return;
    norm->fp8 = *fp8;
    norm->is_again = fp8->copies == FP8_BY_COLUMNS;
    norm->is_fp8_alone = norm->is_again || is_alone;
}

/* The writer of qkv's input. */
static int norm1_forward(const void *self, const struct fp8_output *fp8) {
    const struct block_pass *block = self;
    const struct model *model = block->pass->model;
    const struct block_saved *saved = block->saved;
    struct norm norm = {
        .rows = stream_rows(block), .x = saved->x, .y = saved->norm1, .mean = saved->mean1, .rstd = saved->rstd1};
    set_norm_output(fp8, is_norm_in_fp8(block, ATTACH_QKV, ATTACH_AFTER_ATTENTION), &norm);
    return norm_forward(model, &model->blocks[block->layer].norm1, &norm);
}

/* Lets a half's last product add the residual and write `out`, if nothing comes between and the backend can. */
static bool add_residual(const struct block_pass *block, const struct linear *linear, struct linear_call *call,
                         enum attach_place after, const void *residual, void *out) {
    bool is_next = hidden_dropout(block) == 0 && !hook_list_is_active(hooks_at(block, after), HOOK_BEFORE_ACTIVATION);
    call->adds_residual = is_next && linear_can_add(linear, call);
    if (call->adds_residual) {
        call->residual = residual;
        call->y = out;
    }
    return call->adds_residual;
}

static int attention_half_forward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    const struct block_params *params = &model->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    const struct fp8_writer norm1 = {norm1_forward, block};
    struct linear_call qkv = linear_call_at(block, ATTACH_QKV);
    qkv.x = saved->norm1;
    qkv.y = saved->qkv;
    qkv.x_writer = fp8_has_norms(model) ? &norm1 : NULL;
    int status = qkv.x_writer ? STATUS_OK : norm1_forward(block, NULL);
    THEN(status, linear_forward(&params->qkv, &qkv));
    THEN(status, heads_forward(block));
    THEN(status, attention_core_forward(block));
    struct linear_call projection = linear_call_at(block, ATTACH_PROJECTION);
    projection.x = saved->attention;
    projection.y = model->scratch.branch;
    bool is_added =
        add_residual(block, &params->projection, &projection, ATTACH_AFTER_ATTENTION, saved->x, saved->middle);
    THEN(status, linear_forward(&params->projection, &projection));
    if (status || is_added)
        return status;
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_ATTENTION, saved->norm1, saved->x);
    TRY(hook_list_forward(hooks_at(block, ATTACH_AFTER_ATTENTION), HOOK_BEFORE_ACTIVATION, &after));
    return dropout_forward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 0), saved->x,
                           model->scratch.branch, saved->middle);
}

/* Computes the gradient of norm1's output from that of the attention's result, in scratch.branch. */
static int attention_core_backward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    const struct block_params *params = &model->blocks[block->layer];
    struct linear_call projection = linear_call_at(block, ATTACH_PROJECTION);
    bool is_end = ends_at(block, ATTACH_PROJECTION);
    projection.x = block->saved->attention;
    projection.dy = model->scratch.branch;
    projection.has_no_dx = is_end;
    projection.dx = is_end ? NULL : model->gradients.norm; /* it first holds the gradient of the heads' outputs */
    int status = linear_backward(&params->projection, &projection);
    if (status || is_end)
        return status;
    struct attention core;
    status = attention_call(block, &core);
    const struct model_widths *widths = &model->share.widths;
    core.dout = model->gradients.norm;
    core.dq = heads_gradient(model);
    core.dk = model_element(model, core.dq, widths->q);
    core.dv = model_element(model, model->gradients.qkv, widths->q + widths->kv);
    THEN(status, rank_run_scratch(model->rank, PHASE_ATTENTION, attention_backward, &core));
    THEN(status, heads_backward(block));
    const struct fp8_writer norm1 = {norm1_forward, block};
    struct linear_call qkv = linear_call_at(block, ATTACH_QKV);
    qkv.x = block->saved->norm1;
    qkv.x_writer = fp8_has_norms(model) ? &norm1 : NULL;
    qkv.dy = model->gradients.qkv;
    qkv.has_no_dx = block->is_lowest;
    qkv.dx = block->is_lowest ? NULL : model->gradients.norm;
    return status ? status : linear_backward(&params->qkv, &qkv);
}

/* Replaces the gradient of `middle`, in pass->d, by that of `x`, unless the backward ends here. */
static int attention_half_backward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    const struct block_params *params = &model->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    const struct hook_list *after_hooks = hooks_at(block, ATTACH_AFTER_ATTENTION);
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_ATTENTION, saved->norm1, saved->x);
    int status = STATUS_OK;
    if (block->is_lowest)
        after.dx = NULL;
    if (is_recomputed(block, model->options.train.recompute.layernorm) &&
        !is_norm_in_fp8(block, ATTACH_QKV, ATTACH_AFTER_ATTENTION))
        status = norm1_forward(block, NULL);
    THEN(status, dropout_backward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 0),
                                  block->pass->d, model->scratch.branch));
    THEN(status, hook_list_backward_output(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    if (!status && !ends_at(block, ATTACH_AFTER_ATTENTION))
        status = attention_core_backward(block);
    THEN(status, hook_list_backward_input(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    if (!status && !block->is_lowest)
        status = norm_backward(model, &params->norm1,
                               &(const struct norm){.rows = stream_rows(block),
                                                    .x = saved->x,
                                                    .mean = saved->mean1,
                                                    .rstd = saved->rstd1,
                                                    .dy = model->gradients.norm,
                                                    .dx = block->pass->d,
                                                    .dx_add = block->pass->d});
    return status;
}

/* ---- mlp ---- */

static bool is_tanh(const struct model *model) {
    return model->options.config.activation == ACTIVATION_GELU_TANH;
}

/* Returns the epilogue that replaces `activate` in a product; none when the activation has two inputs. */
static enum gemm_epilogue activation_epilogue(const struct model *model) {
    if (model->options.config.swiglu)
        return EPILOGUE_NONE;
    return is_tanh(model) ? EPILOGUE_GELU_TANH : EPILOGUE_GELU_EXACT;
}

static enum gemm_epilogue activation_backward_epilogue(const struct model *model) {
    return is_tanh(model) ? EPILOGUE_DGELU_TANH : EPILOGUE_DGELU_EXACT;
}

int block_choose_activation(struct model *model) {
    static const struct hook_list no_hooks;
    const struct model_chunk *chunk = &model->options.chunks[0];
    struct linear_call fc1 = {.rank = model->rank,
                              .store = &model->store,
                              .hooks = &no_hooks,
                              .dtype = model->options.dtype,
                              .rows = model->options.max_rows,
                              .epilogue = activation_epilogue(model)};
    bool is_apart = fc1.epilogue == EPILOGUE_NONE || model->fp8.linears; /* in FP8 the activation writes fc2's input */
    if (model->share.lowest <= chunk->first || !chunk->count || is_apart)
        return STATUS_OK;
    TRY(param_unshard(&model->store, (int)chunk->first, PARAM_READ));
    model->share.activates_in_product = linear_can_fuse(&model->blocks[chunk->first].fc1, &fc1);
    return param_reshard_after(&model->store, (int)chunk->first, STATUS_OK);
}

static struct gelu gelu_call(const struct block_pass *block, const struct fp8_output *fp8, bool is_fp8_alone) {
    const struct model *model = block->pass->model;
    return (struct gelu){.count = block->pass->rows * model->share.widths.ffn,
                         .type = model->options.dtype,
                         .is_tanh = is_tanh(model),
                         .x = block->saved->fc1,
                         .y = block->saved->activated,
                         .dy = model->gradients.ffn,
                         .dx = model->gradients.fc1,
                         .cols = model->share.widths.ffn,
                         .fp8 = *fp8,
                         .is_fp8_alone = is_fp8_alone};
}

static struct swiglu swiglu_call(const struct block_pass *block, const struct fp8_output *fp8, bool is_fp8_alone) {
    const struct model *model = block->pass->model;
    return (struct swiglu){.rows = block->pass->rows,
                           .cols = model->share.widths.ffn,
                           .type = model->options.dtype,
                           .x = block->saved->fc1,
                           .y = block->saved->activated,
                           .dy = model->gradients.ffn,
                           .dx = model->gradients.fc1,
                           .fp8 = *fp8,
                           .is_fp8_alone = is_fp8_alone};
}

/* True when the activation is the writer of fc2's input: no hook changes what it computes. */
static bool writes_activation(const struct block_pass *block) {
    return block->pass->model->fp8.linears && !hook_list_has(hooks_at(block, ATTACH_FC1), HOOK_AFTER_ACTIVATION);
}

/* True when FP8 products alone read the activation's output. */
static bool is_activation_in_fp8(const struct block_pass *block) {
    return writes_activation(block) && !hooks_at(block, ATTACH_FC2)->count;
}

/* Computes saved->activated from saved->fc1. `fp8`: receives it as well, for fc2; or NULL. By columns, for the
 * backward, it is computed again. */
static int activate(const void *self, const struct fp8_output *fp8) {
    const struct block_pass *block = self;
    const struct model *model = block->pass->model;
    const struct fp8_output none = {0}, *to = fp8 ? fp8 : &none;
    bool is_alone = fp8 && (fp8->copies == FP8_BY_COLUMNS || is_activation_in_fp8(block));
    if (model->options.config.swiglu) {
        struct swiglu swiglu = swiglu_call(block, to, is_alone);
        return rank_run(model->rank, PHASE_NORM, swiglu_forward, &swiglu);
    }
    struct gelu gelu = gelu_call(block, to, is_alone);
    return rank_run(model->rank, PHASE_NORM, gelu_forward, &gelu);
}

/* True when the activation's gradient is the writer of that of fc1's output: no hook reads or changes it. */
static bool writes_gradient(const struct block_pass *block) {
    return block->pass->model->fp8.linears && !hooks_at(block, ATTACH_FC1)->count;
}

/* Computes gradients.fc1 from gradients.ffn. `fp8`: receives it as well, for fc1; or NULL. */
static int activate_backward(const void *self, const struct fp8_output *fp8) {
    const struct block_pass *block = self;
    const struct model *model = block->pass->model;
    const struct fp8_output none = {0}, *to = fp8 ? fp8 : &none;
    int bias = model->blocks[block->layer].fc1.bias; /* its gradient sums the columns in bf16 */
    bool is_alone = fp8 && (bias == PARAM_NONE || !param_trains(&model->store, bias));
    if (model->options.config.swiglu) {
        struct swiglu swiglu = swiglu_call(block, to, is_alone);
        return rank_run(model->rank, PHASE_NORM, swiglu_backward, &swiglu);
    }
    struct gelu gelu = gelu_call(block, to, is_alone);
    return rank_run(model->rank, PHASE_NORM, gelu_backward, &gelu);
}

/* Returns the hook call of FC1 after its activation. */
static struct hook_call activated_hook_call(const struct block_pass *block) {
    struct hook_call call = hook_call_at(block, ATTACH_FC1);
    call.in = block->pass->model->options.config.hidden_size;
    call.out = block->pass->model->share.widths.ffn;
    call.x = block->saved->norm2;
    call.y = block->saved->activated;
    call.y_stride = call.out;
    call.dy = block->pass->model->gradients.ffn;
    call.dx = block->pass->model->gradients.norm;
    return call;
}

/* Recomputes the activation's output from its input. */
static int activation_again(const struct block_pass *block) {
    struct hook_call activated = activated_hook_call(block);
    int status = activate(block, NULL);
    return status ? status : hook_list_forward(hooks_at(block, ATTACH_FC1), HOOK_AFTER_ACTIVATION, &activated);
}

/* The writer of fc1's input. */
static int norm2_forward(const void *self, const struct fp8_output *fp8) {
    const struct block_pass *block = self;
    const struct model *model = block->pass->model;
    const struct block_saved *saved = block->saved;
    struct norm norm = {
        .rows = stream_rows(block), .x = saved->middle, .y = saved->norm2, .mean = saved->mean2, .rstd = saved->rstd2};
    set_norm_output(fp8, is_norm_in_fp8(block, ATTACH_FC1, ATTACH_AFTER_MLP), &norm);
    return norm_forward(model, &model->blocks[block->layer].norm2, &norm);
}

static int mlp_half_forward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    const struct block_params *params = &model->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    const struct fp8_writer norm2 = {norm2_forward, block}, activation = {activate, block};
    struct linear_call fc1 = linear_call_at(block, ATTACH_FC1);
    fc1.x = saved->norm2;
    fc1.x_writer = fp8_has_norms(model) ? &norm2 : NULL;
    fc1.y = saved->activated;
    fc1.epilogue = activation_epilogue(model);
    fc1.aux = block->pass->kv
                  ? NULL
                  : saved->fc1; /* kept for a backward; NULL in layers without one, and inference has none */
    bool is_written = writes_activation(block);
    bool is_fused = fc1.epilogue != EPILOGUE_NONE && !is_written && linear_can_fuse(&params->fc1, &fc1);
    if (!is_fused) {
        fc1.y = saved->fc1;
        fc1.epilogue = EPILOGUE_NONE;
        fc1.aux = NULL;
    }
    int status = fc1.x_writer ? STATUS_OK : norm2_forward(block, NULL);
    THEN(status, linear_forward(&params->fc1, &fc1));
    if (!status && !is_fused && !is_written)
        status = activate(block, NULL);
    struct hook_call activated = activated_hook_call(block);
    THEN(status, hook_list_forward(fc1.hooks, HOOK_AFTER_ACTIVATION, &activated));
    struct linear_call fc2 = linear_call_at(block, ATTACH_FC2);
    if (block->is_again && !fc2.hooks->count && !hooks_at(block, ATTACH_AFTER_MLP)->count)
        return status; /* nothing after this is kept for the backward */
    fc2.x = saved->activated;
    fc2.x_writer = is_written ? &activation : NULL;
    fc2.y = model->scratch.branch;
    bool is_added = add_residual(block, &params->fc2, &fc2, ATTACH_AFTER_MLP, saved->middle, block->out);
    THEN(status, linear_forward(&params->fc2, &fc2));
    if (status || is_added)
        return status;
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_MLP, saved->norm2, saved->middle);
    TRY(hook_list_forward(hooks_at(block, ATTACH_AFTER_MLP), HOOK_BEFORE_ACTIVATION, &after));
    return dropout_forward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 1), saved->middle,
                           model->scratch.branch, block->out);
}

/* True when the gradient of the activation's input is needed. */
static bool wants_fc1(const struct block_pass *block) {
    return !ends_at(block, ATTACH_FC1) || hook_list_has(hooks_at(block, ATTACH_FC1), HOOK_BEFORE_ACTIVATION);
}

/* Computes the gradient of the activation's input, in gradients.fc1, from that of the MLP's result, in scratch.branch.
 */
static int activation_backward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    const struct hook_list *fc1_hooks = hooks_at(block, ATTACH_FC1);
    const struct linear *linear = &model->blocks[block->layer].fc2;
    struct linear_call fc2 = linear_call_at(block, ATTACH_FC2);
    bool is_end = ends_at(block, ATTACH_FC2);
    const struct fp8_writer activation = {activate, block};
    fc2.x = block->saved->activated;
    fc2.x_writer = writes_activation(block) ? &activation : NULL;
    fc2.dy = model->scratch.branch;
    fc2.has_no_dx = is_end;
    fc2.dx = is_end ? NULL : model->gradients.ffn;
    fc2.epilogue = activation_backward_epilogue(model);
    fc2.aux = block->saved->fc1;
    bool is_fused = !hook_list_has(fc1_hooks, HOOK_AFTER_ACTIVATION) && !fc2.hooks->count &&
                    !model->options.config.swiglu && !writes_gradient(block) &&
                    (is_end || linear_can_fuse_backward(linear, &fc2));
    if (!is_fused) {
        fc2.epilogue = EPILOGUE_NONE;
        fc2.aux = NULL;
    }
    int status = linear_backward(linear, &fc2);
    if (status || is_fused || is_end)
        return status;
    struct hook_call activated = activated_hook_call(block);
    status = hook_list_backward_output(fc1_hooks, HOOK_AFTER_ACTIVATION, &activated);
    return status || !wants_fc1(block) || writes_gradient(block) ? status : activate_backward(block, NULL);
}

/* Computes the gradient of norm2's output from that of the MLP's result, in scratch.branch. */
static int mlp_backward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    struct linear_call fc1 = linear_call_at(block, ATTACH_FC1);
    struct hook_call activated = activated_hook_call(block);
    const struct fp8_writer norm2 = {norm2_forward, block}, gradient = {activate_backward, block};
    fc1.x = block->saved->norm2;
    fc1.x_writer = fp8_has_norms(model) ? &norm2 : NULL;
    fc1.dy = model->gradients.fc1;
    fc1.dy_writer = writes_gradient(block) ? &gradient : NULL;
    fc1.has_no_dx = activated.has_no_dx = ends_at(block, ATTACH_FC1);
    fc1.dx = activated.dx = fc1.has_no_dx ? NULL : model->gradients.norm;
    int status = activation_backward(block);
    if (!status && wants_fc1(block))
        status = linear_backward(&model->blocks[block->layer].fc1, &fc1);
    return status ? status : hook_list_backward_input(fc1.hooks, HOOK_AFTER_ACTIVATION, &activated);
}

/* Replaces the gradient of the block's output, in pass->d, by that of `middle`, unless the backward ends here. */
static int mlp_half_backward(const struct block_pass *block) {
    const struct model *model = block->pass->model;
    const struct block_params *params = &model->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    const struct hook_list *after_hooks = hooks_at(block, ATTACH_AFTER_MLP);
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_MLP, saved->norm2, saved->middle);
    bool is_end = ends_at(block, ATTACH_FC1);
    int status = STATUS_OK;
    if (is_end)
        after.dx = NULL;
    if (is_recomputed(block, model->options.train.recompute.layernorm) &&
        !is_norm_in_fp8(block, ATTACH_FC1, ATTACH_AFTER_MLP))
        status = norm2_forward(block, NULL);
    if (!status && is_recomputed(block, model->options.train.recompute.mlp_act) && !is_activation_in_fp8(block))
        status = activation_again(block);
    THEN(status, dropout_backward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 1),
                                  block->pass->d, model->scratch.branch));
    THEN(status, hook_list_backward_output(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    if (!status && !ends_at(block, ATTACH_AFTER_MLP))
        status = mlp_backward(block);
    THEN(status, hook_list_backward_input(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    if (!status && !is_end)
        status = norm_backward(model, &params->norm2,
                               &(const struct norm){.rows = stream_rows(block),
                                                    .x = saved->middle,
                                                    .mean = saved->mean2,
                                                    .rstd = saved->rstd2,
                                                    .dy = model->gradients.norm,
                                                    .dx = block->pass->d,
                                                    .dx_add = block->pass->d});
    return status;
}

int block_forward(const struct block_pass *block) {
    int status = attention_half_forward(block);
    return status ? status : mlp_half_forward(block);
}

int block_backward(const struct block_pass *block) {
    int status = mlp_half_backward(block);
    return status || ends_at(block, ATTACH_FC1) ? status : attention_half_backward(block);
}
