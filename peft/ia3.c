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

#include "model/family.h"

#include <stdlib.h>

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

/* Returns this rank's share of the outputs of the projection's place. */
static int64_t place_outputs(const struct peft *peft, const struct model_projection *p) {
    struct model_widths widths = model_widths(&peft->base, peft->rank->grid.tensor);
    return p->place == ATTACH_QKV ? widths.qkv : p->place == ATTACH_FC1 ? widths.fc1 : p->out;
}

/* Requests scratch for this rank's share of an input and of the outputs of the place. */
static void need_scratch(const struct scale *scale) {
    struct peft *peft = scale->adapter->peft;
    const struct model_projection *p = &scale->projection;
    int64_t in = peft_is_row(p) ? p->in / peft->rank->grid.tensor : p->in, columns = in + place_outputs(peft, p);
    peft_need_scratch(peft, (size_t)(peft->max_rows * columns) * dtype_bytes(peft->dtype));
}

/* Reports that other adapters would see the unscaled input of the module. */
static int fail_input(const struct model_projection *p, const char *module) {
    while (!ia3_has_input_place(p))
        p++;
    return status_fail(STATUS_USAGE,
                       "peft.feedforward_modules: %s: with other adapters only %s can be scaled at its input", module,
                       p->module);
}

/* Refuses a scaled input in a stack, because the other adapters would see the unscaled one. */
static int check_input(const struct scale *scale) {
    const struct peft *peft = scale->adapter->peft;
    return peft->count == 1 ? STATUS_OK : fail_input(peft->projections, scale->projection.module);
}

static int check_together(const struct peft_bank *bank, const struct peft_image *image) {
    return image->scaled_input ? fail_input(bank->projections, image->scaled_input) : STATUS_OK;
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
    for (int64_t layer = 0; layer < base->num_layers && !status; layer++)
        for (int p = 0; p < projection_count && !status; p++) {
            const struct peft_choice *choice = peft_choice(adapter, layer, &projections[p]);
            if (!choice->is_target)
                continue;
            struct scale *scale = &ia3->scales[ia3->count++];
            *scale = (struct scale){.adapter = adapter, .layer = layer, .projection = projections[p]};
            status = add_scale(adapter, layer, &projections[p], choice->is_feedforward, scale);
            if (choice->is_feedforward && !ia3_has_input_place(&projections[p])) {
                need_scratch(scale);
                status = status ? status : check_input(scale);
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

static struct column_scale arguments(const struct scale *scale, const struct hook_call *call,
                                     const struct matrix_view *view) {
    return (struct column_scale){.rows = call->rows,
                                 .cols = call->out,
                                 .type = call->dtype,
                                 .scale_type = view->type,
                                 .scale = view->data,
                                 .dscale = param_gradient(&scale->adapter->peft->store, scale->id),
                                 .y_stride = call->y_stride,
                                 .dy_stride = call->y_stride,
                                 .dx_stride = call->y_stride};
}

static int forward(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct param_store *store = &scale->adapter->peft->store;
    struct matrix_view view = param_borrow(store, scale->id);
    struct column_scale a = arguments(scale, call, &view);
    a.x = a.y = call->y;
    a.x_stride = call->y_stride;
    a.kept = scale->adapter->peft->trains ? call->saved : NULL;
    int status = rank_run(call->rank, PHASE_NORM, column_scale_forward, &a);
    param_return(store, scale->id);
    return status;
}

static int backward_output(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct param_store *store = &scale->adapter->peft->store;
    struct matrix_view view = param_borrow(store, scale->id);
    struct column_scale a = arguments(scale, call, &view);
    a.x = call->saved;
    a.dy = a.dx = call->dy;
    int status = rank_run(call->rank, PHASE_NORM, column_scale_backward, &a);
    param_return(store, scale->id);
    return status;
}

/* ---- the hook of other inputs ---- */

/* Computes to [N, out] = from times the base's weight, or to [N, in] = from times its transpose in the backward. */
static int multiply(const struct scale *scale, const struct hook_call *call, bool is_forward, const void *from,
                    void *to) {
    const struct param_store *base = scale->adapter->peft->weights;
    bool is_planning = call->rank->is_planning;
    if (!is_planning && !base)
        return status_fail(STATUS_INVALID, "IA3 of an input without the weights of its base");
    int id =
        is_planning ? PARAM_NONE : model_find_linear(base->map.table, scale->layer, scale->projection.place, false);
    struct matrix_view inputs = matrix_plain(call->dtype, is_forward ? from : to, call->rows, call->in);
    struct gemm gemm = {
        .b = peft_borrow_base(scale->adapter->peft, id, call), .b_transposed = is_forward, .mixes_rows = true};
    gemm.a = is_forward ? inputs : matrix_strided(call->dtype, from, call->rows, call->out, call->y_stride);
    gemm.c = is_forward ? matrix_plain(call->dtype, to, call->rows, call->out) : inputs;
    int status = rank_multiply(call->rank, PHASE_GEMM, &gemm);
    if (!is_planning)
        param_return(base, id);
    return status;
}

/* Computes to += (l - 1) from, both [N, in]. */
static int add_difference(const struct scale *scale, const struct hook_call *call, const void *from, void *to) {
    const struct param_store *store = &scale->adapter->peft->store;
    struct matrix_view view = param_borrow(store, scale->id);
    struct column_scale a = {.rows = call->rows,
                             .cols = call->in,
                             .type = call->dtype,
                             .scale_type = view.type,
                             .scale = view.data,
                             .x = from,
                             .adds = true,
                             .y = to};
    int status = rank_run(call->rank, PHASE_NORM, column_scale_forward, &a);
    param_return(store, scale->id);
    return status;
}

/* Adds the result of `multiply` to y. */
static int add_product(const struct hook_call *call, const void *product) {
    struct scale_add sum = {.rows = call->rows,
                            .cols = call->out,
                            .type = call->dtype,
                            .scale = 1,
                            .x = product,
                            .y = call->y,
                            .accumulate = true,
                            .x_stride = call->out,
                            .y_stride = call->y_stride};
    return call->rank->is_planning ? STATUS_OK : rank_run(call->rank, PHASE_NORM, scale_add, &sum);
}

static int input_forward(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    size_t bytes = (size_t)(call->rows * call->in) * dtype_bytes(call->dtype);
    char *input = scale->adapter->peft->scratch, *output = input ? input + bytes : NULL;
    int status = call->rank->is_planning ? STATUS_OK : stream_zero(call->rank->exec.stream, input, bytes);
    THEN(status, add_difference(scale, call, call->x, input));
    THEN(status, multiply(scale, call, true, input, output));
    return status ? status : add_product(call, output);
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
    int status = multiply(scale, call, false, call->dy, gradient);
    rank_unsure(call->rank, call->has_no_dx, 1);
    if (!status && (call->dx || call->rank->is_planning))
        status = add_difference(scale, call, gradient, call->dx);
    rank_unsure(call->rank, call->has_no_dx, -1);
    THEN(status, rank_run(call->rank, PHASE_NORM, column_scale_backward, &a));
    param_return(store, scale->id);
    return status;
}

/* ---- attaching ---- */

static int attach_scale(struct peft *peft, struct scale *scale, bool is_feedforward) {
    const struct model_projection *p = &scale->projection;
    const struct hook at_input = {
        .self = scale, .side = HOOK_BEFORE_ACTIVATION, .forward = input_forward, .backward_input = input_backward};
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
                                     .batched = ia3_batched,
                                     .sites = ia3_sites,
                                     .plan_batched = ia3_plan_batched};
