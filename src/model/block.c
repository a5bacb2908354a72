/* One transformer block, forward and backward: x + attention(norm1(x)), then + mlp(norm2(.)). Training and inference
 * run the same code; inference keeps keys and values in pages instead of in the batch.
 *
 * Each half of a block is a pair of functions: the backward consumes what the forward saves (struct block_saved). */
#include "model-internal.h"

#include <math.h>

/* ---- calls ---- */

static int64_t stream_rows(const struct block_pass *block) {
    return rank_stream_rows(block->pass->run->rank, block->pass->rows);
}

/* True when the backward recomputes such outputs, because something may have overwritten them. */
static bool is_recomputed(const struct block_pass *block, bool is_chosen) {
    return is_chosen && block->pass->run->recompute.how == RECOMPUTE_SELECTIVE && !block->is_fresh;
}

static const struct hook_list *hooks_at(const struct block_pass *block, enum attach_place place) {
    return hook_table_list(block->pass->run->hooks, block->layer, place);
}

/* Returns the keys of dropout for the rows from `first` on. */
static struct row_keys keys_at(const struct block_pass *block, int64_t first) {
    const struct device_rows *batch = block->pass->batch;
    if (!block->pass->asked.has_dropout || !batch->sample)
        return (struct row_keys){0};
    return (struct row_keys){.sample = batch->sample + first, .token = batch->token + first};
}

static double hidden_dropout(const struct block_pass *block) {
    return block->pass->asked.has_dropout ? block->pass->run->base->options.config.hidden_dropout : 0;
}

static struct hook_call hook_call_at(const struct block_pass *block, enum attach_place place) {
    const struct pass *pass = block->pass;
    return (struct hook_call){
        .rank = pass->run->rank,
        .layer = (int)block->layer,
        .place = place,
        .dtype = pass->run->base->options.dtype,
        .rows = pass->rows,
        .y_dtype = pass->run->base->options.dtype,
        .keys = keys_at(block, 0),
        .saved = block->saved->hooks[place],
    };
}

static struct linear_call linear_call_at(const struct block_pass *block, enum attach_place place) {
    const struct runner *run = block->pass->run;
    return (struct linear_call){
        .rank = run->rank,
        .store = &run->base->store,
        .hooks = hooks_at(block, place),
        .hook = hook_call_at(block, place),
        .dtype = run->base->options.dtype,
        .fp8 = fp8_linear_at(run, block->layer, place),
        .measures_fp8 = block->measures,
        .rows = block->pass->rows,
        .whole = run->scratch.whole,
        .whole_gradient = run->gradients.whole,
        .overwrite_gradients = block->pass->asked.is_first_micro_batch,
    };
}

/* Returns the hook call of a place after a whole half of the block: x is the half's normalised input, y its result. */
static struct hook_call half_hook_call(const struct block_pass *block, enum attach_place place, const void *x,
                                       const void *residual) {
    const struct runner *run = block->pass->run;
    struct hook_call call = hook_call_at(block, place);
    call.rows = stream_rows(block);
    call.keys = keys_at(block, rank_first_stream_row(run->rank, block->pass->rows));
    call.in = call.out = run->base->options.config.hidden_size;
    call.x = x;
    call.y = run->scratch.branch;
    call.y_stride = call.out;
    call.dy = run->scratch.branch;
    call.dx = run->gradients.norm;
    call.residual = residual;
    call.dresidual = block->pass->d;
    return call;
}

size_t block_hook_saved_bytes(const struct runner *run, int64_t layer, enum attach_place place) {
    const struct model_widths *widths = &run->base->part.widths;
    int64_t C = run->base->options.config.hidden_size;
    struct hook_call call = {
        .rank = run->rank,
        .layer = (int)layer,
        .place = place,
        .dtype = run->base->options.dtype,
        .rows = run->max_rows,
        .in = place == ATTACH_FC2          ? widths->ffn
              : place == ATTACH_PROJECTION ? widths->q
                                           : C,
        .out = place == ATTACH_QKV   ? widths->qkv
               : place == ATTACH_FC1 ? widths->fc1
                                     : C,
    };
    return hook_list_saved_bytes(hook_table_list(run->hooks, layer, place), &call);
}

/* ---- where the backward ends ---- */

/* True when nothing before the place trains, so the gradient of its input is not needed. */
static bool ends_at(const struct block_pass *block, enum attach_place place) {
    static const enum attach_place order[] = {ATTACH_QKV, ATTACH_PROJECTION, ATTACH_AFTER_ATTENTION,
                                              ATTACH_FC1, ATTACH_FC2,        ATTACH_AFTER_MLP};
    bool has_prefix = hook_table_prefixes(block->pass->run->hooks, block->layer)->count;
    for (int i = 0; block->is_lowest && order[i] != place; i++)
        if (hooks_at(block, order[i])->count || has_prefix)
            return false;
    return block->is_lowest;
}

/* ---- attention ---- */

int block_prefix(const struct runner *run, int64_t layer, int image, struct hook_prefix *prefix) {
    const struct prefix_list *hooks = hook_table_prefixes(run->hooks, layer);
    int status = STATUS_OK;
    *prefix = (struct hook_prefix){0};
    for (int i = 0; i < hooks->count && !status; i++)
        status = hooks->hook[i].prefix(hooks->hook[i].self, image, (int)layer, prefix);
    return status;
}

/* Returns how many tokens a row sees; 0: all before it. */
static int64_t window_of(const struct block_pass *block) {
    const struct model_config *c = &block->pass->run->base->options.config;
    return model_layer_is_full(c, block->layer) ? 0 : c->window;
}

static int attention_call(const struct block_pass *block, struct attention *call) {
    const struct runner *run = block->pass->run;
    const struct model_config *c = &run->base->options.config;
    const struct model_widths *widths = &run->base->part.widths;
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
        .type = run->base->options.dtype,
        .is_tf32 = run->rank->is_tf32,
        .q = heads,
        .k = model_element(run, (void *)heads, widths->q),
        .v = model_element(run, block->saved->qkv, widths->q + widths->kv),
        .q_stride = heads_stride,
        .k_stride = heads_stride,
        .v_stride = widths->qkv,
        .window = window_of(block),
        .scale = 1 / sqrtf((float)widths->head),
        .out = block->saved->attention,
        .out_stride = widths->q,
        .lse = block->saved->lse,
        .dropout = {.p = block->pass->asked.has_dropout ? (float)c->attention_dropout : 0,
                    .seed = run->rank->seed,
                    .site = (uint32_t)(block->layer * c->num_attention_heads + run->base->part.first_head),
                    .keys = {.sample = block->pass->batch->sample, .token = block->pass->batch->token}},
    };
    struct hook_prefix prefix;
    int status = block_prefix(run, block->layer, 0, &prefix);
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
    const struct runner *run = pass->run;
    const struct inference_runner *inference = pass->inference;
    const struct model_widths *widths = &run->base->part.widths;
    struct kv_append append = model_kv_append(inference, pass->batch->place, block->layer, pass->rows);
    int64_t heads_stride;
    const void *heads = heads_of(block, &heads_stride);
    append.k = model_element(run, (void *)heads, widths->q);
    append.v = model_element(run, block->saved->qkv, widths->q + widths->kv);
    append.k_stride = heads_stride;
    append.v_stride = widths->qkv;
    int status = rank_run(run->rank, PHASE_ATTENTION, kv_append, &append);
    struct paged_attention attention = {
        .rows = pass->rows,
        .heads = (int)widths->heads,
        .kv_heads = (int)widths->query_groups,
        .head_size = (int)widths->head,
        .type = run->base->options.dtype,
        .q = heads,
        .q_stride = heads_stride,
        .window = window_of(block),
        .scale = 1 / sqrtf((float)widths->head),
        .pages = append.pages,
        .page_stride = append.page_stride,
        .page_table = inference->step.page_table,
        .max_pages = inference->options.max_pages,
        .sequence = pass->batch->sequence,
        .position = pass->batch->cached,
        .out = block->saved->attention,
        .out_stride = widths->q,
        .seen = pass->seen,
    };
    return status ? status : rank_run(run->rank, PHASE_ATTENTION, paged_attention, &attention);
}

/* Pauses before attention, whose backward is 2.5 times its forward. */
static int pause_before(const struct block_pass *block, const struct attention *call, double times) {
    double work = 2.0 * (double)call->rows * (double)(call->longest ? call->longest : call->rows);
    return rank_pause(block->pass->run->rank, SLICE_ATTENTION, times * work * (double)(call->heads * call->head_size));
}

static int attention_core_forward(const struct block_pass *block) {
    if (!block->pass->batch->segments)
        return attention_core_paged(block);
    struct attention call;
    int status = attention_call(block, &call);
    THEN(status, pause_before(block, &call, 1));
    return status ? status : rank_run(block->pass->run->rank, PHASE_ATTENTION, attention_forward, &call);
}

/* No place in FP8: an operation writes bf16 only. */
static const struct fp8_output bf16_only;

static enum attach_place place_after(enum attach_place linear) {
    return linear == ATTACH_QKV ? ATTACH_AFTER_ATTENTION : ATTACH_AFTER_MLP;
}

/* True when only FP8 products read the output of the norm before a linear. Hooks of the linear and after its half read
 * it in bf16. */
static bool is_norm_in_fp8(const struct block_pass *block, enum attach_place linear) {
    return fp8_has_norms(block->pass->run) && !hooks_at(block, linear)->count &&
           !hooks_at(block, place_after(linear))->count;
}

/* A norm before qkv or fc1: its parameters, and the caller's arguments that both directions need. */
static const struct norm_params *half_norm(const struct block_pass *block, enum attach_place linear,
                                           struct norm *norm) {
    const struct block_params *params = &block->pass->run->base->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    bool is_first = linear == ATTACH_QKV;
    *norm = (struct norm){.rows = stream_rows(block),
                          .x = is_first ? saved->x : saved->middle,
                          .mean = is_first ? saved->mean1 : saved->mean2,
                          .rstd = is_first ? saved->rstd1 : saved->rstd2};
    return is_first ? &params->norm1 : &params->norm2;
}

/* Computes the linear's input, and writes it in FP8 as well if there is a place. By columns, a backward wants in FP8
 * only what the forward wrote by rows. */
static int half_norm_forward(const struct block_pass *block, enum attach_place linear, struct fp8_output fp8) {
    struct norm norm;
    const struct norm_params *params = half_norm(block, linear, &norm);
    norm.y = linear == ATTACH_QKV ? block->saved->norm1 : block->saved->norm2;
    norm.fp8 = fp8;
    norm.is_again = fp8_is_wanted(&fp8) && fp8.copies == FP8_BY_COLUMNS;
    norm.is_fp8_alone = norm.is_again || (fp8_is_wanted(&fp8) && is_norm_in_fp8(block, linear));
    return norm_forward(block->pass->run, params, &norm);
}

/* Adds the gradient of the norm's input to pass->d. */
static int half_norm_backward(const struct block_pass *block, enum attach_place linear) {
    struct norm norm;
    const struct norm_params *params = half_norm(block, linear, &norm);
    norm.dy = block->pass->run->gradients.norm;
    norm.dx_add = norm.dx = block->pass->d;
    return norm_backward(block->pass->run, params, &norm);
}

/* Computes the input again in FP8, before a backward whose weight gradient reads it. */
static int half_norm_again(const struct block_pass *block, enum attach_place place, const struct linear *linear,
                           const struct linear_call *call) {
    struct fp8_output fp8 = linear_input(linear, call, FP8_BY_COLUMNS);
    return fp8_is_wanted(&fp8) ? half_norm_forward(block, place, fp8) : STATUS_OK;
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
    const struct runner *run = block->pass->run;
    const struct block_params *params = &run->base->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    struct linear_call qkv = linear_call_at(block, ATTACH_QKV);
    qkv.x = saved->norm1;
    qkv.y = saved->qkv;
    qkv.x_is_cast = fp8_has_norms(run);
    int status = half_norm_forward(block, ATTACH_QKV, linear_input(&params->qkv, &qkv, FP8_BY_ROWS));
    THEN(status, linear_forward(&params->qkv, &qkv));
    THEN(status, heads_forward(block));
    THEN(status, attention_core_forward(block));
    struct linear_call projection = linear_call_at(block, ATTACH_PROJECTION);
    projection.x = saved->attention;
    projection.y = run->scratch.branch;
    bool is_added =
        add_residual(block, &params->projection, &projection, ATTACH_AFTER_ATTENTION, saved->x, saved->middle);
    THEN(status, linear_forward(&params->projection, &projection));
    if (status || is_added)
        return status;
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_ATTENTION, saved->norm1, saved->x);
    TRY(hook_list_forward(hooks_at(block, ATTACH_AFTER_ATTENTION), HOOK_BEFORE_ACTIVATION, &after));
    return dropout_forward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 0), saved->x,
                           run->scratch.branch, saved->middle);
}

/* Computes the gradient of norm1's output from that of the attention's result, in scratch.branch. */
static int attention_core_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    const struct block_params *params = &run->base->blocks[block->layer];
    struct linear_call projection = linear_call_at(block, ATTACH_PROJECTION);
    bool is_end = ends_at(block, ATTACH_PROJECTION);
    projection.x = block->saved->attention;
    projection.dy = run->scratch.branch;
    projection.has_no_dx = is_end;
    projection.dx = is_end ? NULL : run->gradients.norm; /* it first holds the gradient of the heads' outputs */
    int status = linear_backward(&params->projection, &projection);
    if (status || is_end)
        return status;
    struct attention core;
    status = attention_call(block, &core);
    const struct model_widths *widths = &run->base->part.widths;
    core.dout = run->gradients.norm;
    core.dq = heads_gradient(run);
    core.dk = model_element(run, core.dq, widths->q);
    core.dv = model_element(run, run->gradients.qkv, widths->q + widths->kv);
    THEN(status, pause_before(block, &core, 2.5));
    THEN(status, rank_run(run->rank, PHASE_ATTENTION, attention_backward, &core));
    THEN(status, heads_backward(block));
    struct linear_call qkv = linear_call_at(block, ATTACH_QKV);
    qkv.x = block->saved->norm1;
    qkv.x_is_cast = fp8_has_norms(run);
    qkv.dy = run->gradients.qkv;
    qkv.has_no_dx = block->is_lowest;
    qkv.dx = block->is_lowest ? NULL : run->gradients.norm;
    THEN(status, half_norm_again(block, ATTACH_QKV, &params->qkv, &qkv));
    return status ? status : linear_backward(&params->qkv, &qkv);
}

/* Replaces the gradient of `middle`, in pass->d, by that of `x`, unless the backward ends here. */
static int attention_half_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    const struct block_saved *saved = block->saved;
    const struct hook_list *after_hooks = hooks_at(block, ATTACH_AFTER_ATTENTION);
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_ATTENTION, saved->norm1, saved->x);
    int status = STATUS_OK;
    if (block->is_lowest)
        after.dx = NULL;
    if (is_recomputed(block, run->recompute.layernorm) && !is_norm_in_fp8(block, ATTACH_QKV))
        status = half_norm_forward(block, ATTACH_QKV, bf16_only);
    THEN(status, dropout_backward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 0),
                                  block->pass->d, run->scratch.branch));
    THEN(status, hook_list_backward_output(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    THEN_IF(status, !ends_at(block, ATTACH_AFTER_ATTENTION), attention_core_backward(block));
    THEN(status, hook_list_backward_input(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    THEN_IF(status, !block->is_lowest, half_norm_backward(block, ATTACH_QKV));
    return status;
}

/* ---- mlp ---- */

static bool is_tanh(const struct runner *run) {
    return run->base->options.config.activation == ACTIVATION_GELU_TANH;
}

/* Returns the epilogue that replaces `activate` in a product; none when the activation has two inputs. */
static enum gemm_epilogue activation_epilogue(const struct runner *run) {
    if (run->base->options.config.swiglu)
        return EPILOGUE_NONE;
    return is_tanh(run) ? EPILOGUE_GELU_TANH : EPILOGUE_GELU_EXACT;
}

static enum gemm_epilogue activation_backward_epilogue(const struct runner *run) {
    return is_tanh(run) ? EPILOGUE_DGELU_TANH : EPILOGUE_DGELU_EXACT;
}

int block_choose_activation(struct runner *run) {
    static const struct hook_list no_hooks;
    const struct model_chunk *chunk = &run->base->options.chunks[0];
    struct linear_call fc1 = {.rank = run->rank,
                              .store = &run->base->store,
                              .hooks = &no_hooks,
                              .dtype = run->base->options.dtype,
                              .rows = run->max_rows,
                              .epilogue = activation_epilogue(run)};
    bool is_apart = fc1.epilogue == EPILOGUE_NONE || run->fp8; /* in FP8 the activation writes fc2's input */
    if (run->lowest <= chunk->first || !chunk->count || is_apart)
        return STATUS_OK;
    TRY(param_unshard(&run->base->store, (int)chunk->first, PARAM_READ));
    run->activates_in_product = linear_can_fuse(&run->base->blocks[chunk->first].fc1, &fc1);
    return param_reshard_after(&run->base->store, (int)chunk->first, STATUS_OK);
}

static struct gelu gelu_call(const struct block_pass *block, struct fp8_output fp8, bool is_fp8_alone) {
    const struct runner *run = block->pass->run;
    return (struct gelu){.count = block->pass->rows * run->base->part.widths.ffn,
                         .type = run->base->options.dtype,
                         .is_tanh = is_tanh(run),
                         .x = block->saved->fc1,
                         .y = block->saved->activated,
                         .dy = run->gradients.ffn,
                         .dx = run->gradients.fc1,
                         .cols = run->base->part.widths.ffn,
                         .fp8 = fp8,
                         .is_fp8_alone = is_fp8_alone};
}

static struct swiglu swiglu_call(const struct block_pass *block, struct fp8_output fp8, bool is_fp8_alone) {
    const struct runner *run = block->pass->run;
    return (struct swiglu){.rows = block->pass->rows,
                           .cols = run->base->part.widths.ffn,
                           .type = run->base->options.dtype,
                           .x = block->saved->fc1,
                           .y = block->saved->activated,
                           .dy = run->gradients.ffn,
                           .dx = run->gradients.fc1,
                           .fp8 = fp8,
                           .is_fp8_alone = is_fp8_alone};
}

/* True when the activation writes fc2's input in FP8: no hook changes what it computes. */
static bool writes_activation(const struct block_pass *block) {
    return block->pass->run->fp8 && !hook_list_has(hooks_at(block, ATTACH_FC1), HOOK_AFTER_ACTIVATION);
}

/* True when only FP8 products read the activation's output. */
static bool is_activation_in_fp8(const struct block_pass *block) {
    return writes_activation(block) && !hooks_at(block, ATTACH_FC2)->count;
}

/* Computes saved->activated from saved->fc1, and writes it in FP8 as well, for fc2, if there is a place. By columns,
 * for the backward, it is computed again. */
static int activate(const struct block_pass *block, struct fp8_output fp8) {
    const struct runner *run = block->pass->run;
    bool is_alone = fp8_is_wanted(&fp8) && (fp8.copies == FP8_BY_COLUMNS || is_activation_in_fp8(block));
    if (run->base->options.config.swiglu) {
        struct swiglu swiglu = swiglu_call(block, fp8, is_alone);
        return rank_run(run->rank, PHASE_NORM, swiglu_forward, &swiglu);
    }
    struct gelu gelu = gelu_call(block, fp8, is_alone);
    return rank_run(run->rank, PHASE_NORM, gelu_forward, &gelu);
}

/* True when the activation's backward writes the gradient of fc1's output in FP8: no hook reads or changes it. */
static bool writes_gradient(const struct block_pass *block) {
    return block->pass->run->fp8 && !hooks_at(block, ATTACH_FC1)->count;
}

/* Computes gradients.fc1 from gradients.ffn, and writes it in FP8 as well, for fc1, if there is a place. */
static int activate_backward(const struct block_pass *block, struct fp8_output fp8) {
    const struct runner *run = block->pass->run;
    int bias = run->base->blocks[block->layer].fc1.bias; /* its gradient sums the columns in bf16 */
    bool is_alone = fp8_is_wanted(&fp8) && (bias == PARAM_NONE || !param_trains(&run->base->store, bias));
    if (run->base->options.config.swiglu) {
        struct swiglu swiglu = swiglu_call(block, fp8, is_alone);
        return rank_run(run->rank, PHASE_NORM, swiglu_backward, &swiglu);
    }
    struct gelu gelu = gelu_call(block, fp8, is_alone);
    return rank_run(run->rank, PHASE_NORM, gelu_backward, &gelu);
}

/* Returns the hook call of FC1 after its activation. */
static struct hook_call activated_hook_call(const struct block_pass *block) {
    struct hook_call call = hook_call_at(block, ATTACH_FC1);
    call.in = block->pass->run->base->options.config.hidden_size;
    call.out = block->pass->run->base->part.widths.ffn;
    call.x = block->saved->norm2;
    call.y = block->saved->activated;
    call.y_stride = call.out;
    call.dy = block->pass->run->gradients.ffn;
    call.dx = block->pass->run->gradients.norm;
    return call;
}

/* Recomputes the activation's output from its input. */
static int activation_again(const struct block_pass *block) {
    struct hook_call activated = activated_hook_call(block);
    int status = activate(block, bf16_only);
    return status ? status : hook_list_forward(hooks_at(block, ATTACH_FC1), HOOK_AFTER_ACTIVATION, &activated);
}

static int mlp_half_forward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    const struct block_params *params = &run->base->blocks[block->layer];
    const struct block_saved *saved = block->saved;
    struct linear_call fc1 = linear_call_at(block, ATTACH_FC1);
    fc1.x = saved->norm2;
    fc1.x_is_cast = fp8_has_norms(run);
    fc1.y = saved->activated;
    fc1.epilogue = activation_epilogue(run);
    fc1.aux = block->pass->inference
                  ? NULL
                  : saved->fc1; /* kept for a backward; NULL in layers without one, and inference has none */
    bool is_written = writes_activation(block);
    bool is_fused = fc1.epilogue != EPILOGUE_NONE && !is_written && linear_can_fuse(&params->fc1, &fc1);
    if (!is_fused) {
        fc1.y = saved->fc1;
        fc1.epilogue = EPILOGUE_NONE;
        fc1.aux = NULL;
    }
    int status = half_norm_forward(block, ATTACH_FC1, linear_input(&params->fc1, &fc1, FP8_BY_ROWS));
    THEN(status, linear_forward(&params->fc1, &fc1));
    struct linear_call fc2 = linear_call_at(block, ATTACH_FC2);
    bool is_end = block->is_again && !fc2.hooks->count && !hooks_at(block, ATTACH_AFTER_MLP)->count;
    fc2.x_is_cast = is_written;
    if (!status && !is_fused && !(is_written && is_end))
        status = activate(block, linear_input(&params->fc2, &fc2, FP8_BY_ROWS));
    struct hook_call activated = activated_hook_call(block);
    THEN(status, hook_list_forward(fc1.hooks, HOOK_AFTER_ACTIVATION, &activated));
    if (is_end)
        return status; /* nothing after this is kept for the backward */
    fc2.x = saved->activated;
    fc2.y = run->scratch.branch;
    bool is_added = add_residual(block, &params->fc2, &fc2, ATTACH_AFTER_MLP, saved->middle, block->out);
    THEN(status, linear_forward(&params->fc2, &fc2));
    if (status || is_added)
        return status;
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_MLP, saved->norm2, saved->middle);
    TRY(hook_list_forward(hooks_at(block, ATTACH_AFTER_MLP), HOOK_BEFORE_ACTIVATION, &after));
    return dropout_forward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 1), saved->middle,
                           run->scratch.branch, block->out);
}

/* True when the gradient of the activation's input is needed. */
static bool wants_fc1(const struct block_pass *block) {
    return !ends_at(block, ATTACH_FC1) || hook_list_has(hooks_at(block, ATTACH_FC1), HOOK_BEFORE_ACTIVATION);
}

/* Computes the gradient of the activation's input, in gradients.fc1, from that of the MLP's result, in scratch.branch.
 */
static int activation_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    const struct hook_list *fc1_hooks = hooks_at(block, ATTACH_FC1);
    const struct linear *linear = &run->base->blocks[block->layer].fc2;
    struct linear_call fc2 = linear_call_at(block, ATTACH_FC2);
    bool is_end = ends_at(block, ATTACH_FC2);
    fc2.x = block->saved->activated;
    fc2.x_is_cast = writes_activation(block);
    fc2.dy = run->scratch.branch;
    fc2.has_no_dx = is_end;
    fc2.dx = is_end ? NULL : run->gradients.ffn;
    fc2.epilogue = activation_backward_epilogue(run);
    fc2.aux = block->saved->fc1;
    bool is_fused = !hook_list_has(fc1_hooks, HOOK_AFTER_ACTIVATION) && !fc2.hooks->count &&
                    !run->base->options.config.swiglu && !writes_gradient(block) &&
                    (is_end || linear_can_fuse_backward(linear, &fc2));
    if (!is_fused) {
        fc2.epilogue = EPILOGUE_NONE;
        fc2.aux = NULL;
    }
    struct fp8_output again = linear_input(linear, &fc2, FP8_BY_COLUMNS);
    int status = fp8_is_wanted(&again) ? activate(block, again) : STATUS_OK;
    THEN(status, linear_backward(linear, &fc2));
    if (status || is_fused || is_end)
        return status;
    struct hook_call activated = activated_hook_call(block);
    status = hook_list_backward_output(fc1_hooks, HOOK_AFTER_ACTIVATION, &activated);
    return status || !wants_fc1(block) || writes_gradient(block) ? status : activate_backward(block, bf16_only);
}

/* Computes the gradient of norm2's output from that of the MLP's result, in scratch.branch. */
static int mlp_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    struct linear_call fc1 = linear_call_at(block, ATTACH_FC1);
    struct hook_call activated = activated_hook_call(block);
    const struct linear *linear = &run->base->blocks[block->layer].fc1;
    fc1.x = block->saved->norm2;
    fc1.x_is_cast = fp8_has_norms(run);
    fc1.dy = run->gradients.fc1;
    fc1.dy_is_cast = writes_gradient(block);
    fc1.has_no_dx = activated.has_no_dx = ends_at(block, ATTACH_FC1);
    fc1.dx = activated.dx = fc1.has_no_dx ? NULL : run->gradients.norm;
    struct fp8_output gradient = linear_gradient(linear, &fc1);
    int status = activation_backward(block);
    if (!status && wants_fc1(block)) {
        status = fp8_is_wanted(&gradient) ? activate_backward(block, gradient) : STATUS_OK;
        THEN(status, half_norm_again(block, ATTACH_FC1, linear, &fc1));
        THEN(status, linear_backward(linear, &fc1));
    }
    return status ? status : hook_list_backward_input(fc1.hooks, HOOK_AFTER_ACTIVATION, &activated);
}

/* Replaces the gradient of the block's output, in pass->d, by that of `middle`, unless the backward ends here. */
static int mlp_half_backward(const struct block_pass *block) {
    const struct runner *run = block->pass->run;
    const struct block_saved *saved = block->saved;
    const struct hook_list *after_hooks = hooks_at(block, ATTACH_AFTER_MLP);
    struct hook_call after = half_hook_call(block, ATTACH_AFTER_MLP, saved->norm2, saved->middle);
    bool is_end = ends_at(block, ATTACH_FC1);
    int status = STATUS_OK;
    if (is_end)
        after.dx = NULL;
    if (is_recomputed(block, run->recompute.layernorm) && !is_norm_in_fp8(block, ATTACH_FC1))
        status = half_norm_forward(block, ATTACH_FC1, bf16_only);
    if (!status && is_recomputed(block, run->recompute.mlp_act) && !is_activation_in_fp8(block))
        status = activation_again(block);
    THEN(status, dropout_backward(block->pass, hidden_dropout(block), model_dropout_site(block->layer, 1),
                                  block->pass->d, run->scratch.branch));
    THEN(status, hook_list_backward_output(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    THEN_IF(status, !ends_at(block, ATTACH_AFTER_MLP), mlp_backward(block));
    THEN(status, hook_list_backward_input(after_hooks, HOOK_BEFORE_ACTIVATION, &after));
    THEN_IF(status, !is_end, half_norm_backward(block, ATTACH_FC1));
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
