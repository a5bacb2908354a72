/* (IA)3 (arXiv 2205.05638): learned vectors that scale activations. At a projection y = l (W x + b), including the
 * bias; at the input of a feed-forward module y = W (l x) + b. All vectors start as ones.
 *
 * The input of the MLP's second projection is the output of an activation, and is scaled there. Other inputs have more
 * readers than the projection. There the product of the difference, W ((l - 1) x), is added after the projection.
 *
 * Over tensor ranks a vector is cut like the activations that it scales, and needs no collective. A row projection's
 * vector scales each rank's part of the sum, so every rank has a part of its gradient. The same holds for a column
 * projection's input. */
#include "bank-internal.h"
#include "ia3-internal.h"
#include "merge-internal.h"

/* ---- the parameters ---- */

static int add_scale(struct peft_adapter *adapter, int64_t layer, const struct model_projection *p, bool is_feedforward,
                     struct scale *scale) {
    bool is_row = peft_is_row(p), is_whole = is_row != is_feedforward; /* whole on every tensor rank */
    struct param row = {.dims = 2,
                        .shape = {is_feedforward ? 1 : p->out, is_feedforward ? p->in : 1},
                        .shard = is_whole         ? PARAM_REPLICATED
                                 : is_feedforward ? PARAM_SHARD_AXIS1
                                                  : PARAM_SHARD_AXIS0,
                        .sums_over_tensor = is_whole,
                        .init = PARAM_INIT_ONE,
                        .layer = (int)layer,
                        .slice_count = 1,
                        .slices = {{.rows = 1, .file_rows = 1}}};
    snprintf(row.name, sizeof row.name, "layers.%lld.%s.ia3_l", (long long)layer, p->module);
    if (!is_feedforward)
        row.slice_count = model_projection_slices(&adapter->peft->base, p, row.slices);
    for (int i = 0; i < row.slice_count; i++)
        peft_tensor_name(adapter->peft, layer, p->module, "ia3_l", row.slices[i].name);
    scale->id = peft_add_row(adapter, &row);
    return scale->id < 0 ? scale->id : STATUS_OK;
}

/* Requests scratch for the gradient of this rank's share of an input. */
static void need_scratch(const struct scale *scale) {
    struct peft *peft = scale->adapter->peft;
    const struct model_projection *p = &scale->projection;
    int64_t in = peft_is_row(p) ? p->in / peft->rank->grid.tensor : p->in;
    peft_need_scratch(peft, (size_t)(peft->max_rows * in) * dtype_bytes(peft->dtype));
}

/* Reports that other adapters would see the unscaled input of the module. */
static int fail_input(const struct model_projection *p, const char *module) {
    while (!ia3_has_input_place(p))
        p++;
    return status_fail(STATUS_USAGE,
                       "peft.feedforward_modules: %s: with other adapters only %s can be scaled at its input", module,
                       p->module);
}

/* True when the vector scales an input that has other readers. */
static bool is_at_input(const struct scale *scale) {
    return peft_choice(scale->adapter, scale->layer, &scale->projection)->is_feedforward &&
           !ia3_has_input_place(&scale->projection);
}

static int check_together(const struct peft_bank *bank, const struct peft_image *image) {
    return image->scaled_input ? fail_input(bank->projections, image->scaled_input) : STATUS_OK;
}

static int check_head(const struct peft_adapter *adapter) {
    const struct model_projection *head = &adapter->peft->projections[adapter->peft->family->projection_count];
    const char *where = adapter->config.where;
    if (!peft_choice(adapter, adapter->peft->base.num_layers, head)->is_target)
        return STATUS_OK;
    int status =
        status_fail(STATUS_USAGE, "peft.target_modules %s: IA3 does not scale the head; LoRA changes it", head->module);
    return where ? status_wrap(status, "%s", where) : status;
}

static int describe(struct peft_adapter *adapter) {
    const struct model_config *base = &adapter->peft->base;
    const struct model_projection *projections = adapter->peft->projections;
    int projection_count = adapter->peft->family->projection_count;
    struct ia3 *ia3 = adapter->state = calloc(1, sizeof *ia3);
    if (ia3)
        ia3->scales = calloc((size_t)(base->num_layers * projection_count), sizeof *ia3->scales);
    TRY(status_allocated(ia3 && ia3->scales));
    int status = peft_choose_targets(adapter);
    THEN(status, peft_check_forwards(adapter));
    THEN(status, check_head(adapter));
    for (int64_t layer = 0; layer < base->num_layers && !status; layer++)
        for (int p = 0; p < projection_count && !status; p++) {
            const struct peft_choice *choice = peft_choice(adapter, layer, &projections[p]);
            if (!choice->is_target)
                continue;
            struct scale *scale = &ia3->scales[ia3->count++];
            *scale = (struct scale){.adapter = adapter, .layer = layer, .projection = projections[p]};
            status = add_scale(adapter, layer, &projections[p], choice->is_feedforward, scale);
            if (is_at_input(scale)) {
                need_scratch(scale);
                if (!status && adapter->peft->count + adapter->peft->others >
                                   1) /* the other adapters would see the unscaled input */
                    status = fail_input(projections, projections[p].module);
            }
        }
    return status;
}

static void close_ia3(struct peft_adapter *adapter) {
    struct ia3 *ia3 = adapter->state;
    if (ia3)
        free(ia3->scales);
    free(ia3);
}

/* ---- the hook ---- */

/* The forward keeps the unscaled y: [N, out]. */
static size_t saved_bytes(void *self, const struct hook_call *call) {
    return (size_t)(call->rows * call->out) * dtype_bytes(call->dtype);
}

static int forward(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct peft *peft = scale->adapter->peft;
    return peft_image_forward(scale->adapter, call,
                              (struct bank_call){.projection = bank_projection(peft->bank, &scale->projection),
                                                 .kept.y = peft->trains && !is_at_input(scale) ? call->saved : NULL});
}

static int backward_output(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct param_store *store = &scale->adapter->peft->store;
    struct matrix_view view = param_borrow(store, scale->id);
    struct column_scale a = {.rows = call->rows,
                             .cols = call->out,
                             .type = call->dtype,
                             .scale_type = view.type,
                             .scale = view.data,
                             .x = call->saved,
                             .dy = call->dy,
                             .dx = call->dy,
                             .dscale = param_gradient(store, scale->id),
                             .dy_stride = call->y_stride,
                             .dx_stride = call->y_stride};
    int status = rank_run(call->rank, PHASE_NORM, column_scale_backward, &a);
    param_return(store, scale->id);
    return status;
}

/* ---- the hook of other inputs ---- */

/* Computes dx += (l - 1) gradient. */
static int add_difference(const struct scale *scale, const struct hook_call *call, const void *gradient) {
    const struct param_store *store = &scale->adapter->peft->store;
    struct matrix_view view = param_borrow(store, scale->id);
    struct column_scale a = {.rows = call->rows,
                             .cols = call->in,
                             .type = call->dtype,
                             .scale_type = view.type,
                             .scale = view.data,
                             .x = gradient,
                             .y = call->dx};
    int status = rank_run(call->rank, PHASE_NORM, column_scale_forward, &a);
    param_return(store, scale->id);
    return status;
}

static int input_backward(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct param_store *store = &scale->adapter->peft->store;
    void *gradient = scale->adapter->peft->scratch; /* of the scaled input */
    struct matrix_view view = param_borrow(store, scale->id);
    struct column_scale a = {.rows = call->rows,
                             .cols = call->in,
                             .type = call->dtype,
                             .scale_type = view.type,
                             .scale = view.data,
                             .x = call->x,
                             .dy = gradient,
                             .dx = gradient,
                             .dscale = param_gradient(store, scale->id)};
    struct gemm gemm = {.a = matrix_strided(call->dtype, call->dy, call->rows, call->out, call->y_stride),
                        .c = matrix_plain(call->dtype, gradient, call->rows, call->in)};
    int status = peft_multiply_base(scale->adapter->peft, scale->layer, call, &gemm);
    rank_unsure(call->rank, call->has_no_dx, 1);
    THEN_IF(status, (call->dx || call->rank->is_planning), add_difference(scale, call, gradient));
    rank_unsure(call->rank, call->has_no_dx, -1);
    THEN(status, rank_run(call->rank, PHASE_NORM, column_scale_backward, &a));
    param_return(store, scale->id);
    return status;
}

/* ---- attaching ---- */

static int attach_scale(struct peft *peft, struct scale *scale, bool is_feedforward) {
    const struct model_projection *p = &scale->projection;
    const struct hook at_input = {
        .self = scale, .side = HOOK_BEFORE_ACTIVATION, .forward = forward, .backward_input = input_backward};
    struct hook at_output = {.self = scale,
                             .side = HOOK_BEFORE_ACTIVATION,
                             .saved_bytes = peft->trains ? saved_bytes : NULL,
                             .forward = forward,
                             .backward_output = backward_output};
    if (!is_feedforward || !ia3_has_input_place(p))
        return peft_add_hook(peft, scale->layer, p, is_feedforward ? at_input : at_output);
    at_output.side = HOOK_AFTER_ACTIVATION;
    at_output.columns = p->in / peft->rank->grid.tensor;
    return hook_table_add(&peft->hooks, scale->layer, ATTACH_FC1, &at_output);
}

static int attach(struct peft_adapter *adapter) {
    struct ia3 *ia3 = adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < ia3->count && !status; i++) {
        struct scale *scale = &ia3->scales[i];
        status =
            attach_scale(adapter->peft, scale, peft_choice(adapter, scale->layer, &scale->projection)->is_feedforward);
    }
    return status;
}

/* ---- the base with it ---- */

static int merge_scales(const struct peft_adapter *adapter, struct merge *merge) {
    const struct ia3 *ia3 = adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < ia3->count && !status; i++) {
        const struct scale *scale = &ia3->scales[i];
        if (peft_choice(adapter, scale->layer, &scale->projection)->is_feedforward) {
            status = merge_scale_columns(merge, scale->layer, &scale->projection, scale->id);
            continue;
        }
        status = merge_scale_rows(merge, scale->layer, &scale->projection, false, scale->id);
        THEN(status, merge_scale_rows(merge, scale->layer, &scale->projection, true, scale->id));
    }
    return status;
}

/* ---- the row ---- */

static const char *const other_names[][2] = {{"ia3_l", "ia3_l.default"}, {0}};

static const char *const *targets(const struct model_family *family) {
    return family->targets.scales;
}

const struct peft_method peft_ia3 = {.title = "IA3",
                                     .format = &ia3_format,
                                     .lr = 5e-3, /* PEFT, method_comparison/MetaMathQA, ia3 */
                                     .targets = targets,
                                     .other_names = other_names,
                                     .merge = merge_scales,
                                     .describe = describe,
                                     .attach = attach,
                                     .close = close_ia3,
                                     .make_image = ia3_make_image,
                                     .check_together = check_together,
                                     .forward = ia3_forward,
                                     .sites = ia3_sites,
                                     .plan_forward = ia3_plan_forward};
