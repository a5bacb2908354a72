/* (IA)3 (arXiv 2205.05638): learned vectors that scale activations. At a projection y = l (W x + b), the bias as well;
 * at a feed-forward module its input, which is the activation's output: y = W (l x) + b. All ones at the beginning.
 *
 * Over tensor ranks a vector is cut like what it scales, and needs no collective. A row projection's vector scales each
 * rank's part of the sum, so every rank has a part of its gradient. */
#include "method-internal.h"

#include <stdlib.h>
#include <string.h>

/* One vector. */
struct scale {
    struct peft_adapter *adapter;
    int id;
};

struct ia3 {
    int count;
    struct scale *scales;
};

/* The one module whose input is a place of its own: that of the activation before it. */
static bool can_scale_input(const struct peft_projection *p) {
    return p->place == ATTACH_FC2;
}

/* ---- the parameters ---- */

static int add_scale(struct peft_adapter *adapter, int64_t layer, const struct peft_projection *p, bool is_feedforward,
                     struct scale *scale) {
    bool is_row = p->split == LINEAR_ROW;
    struct param row = {.dims = 2,
                        .shape = {is_feedforward ? 1 : p->out, is_feedforward ? p->in : 1},
                        .shard = is_feedforward ? PARAM_SHARD_AXIS1
                                 : is_row       ? PARAM_REPLICATED
                                                : PARAM_SHARD_AXIS0,
                        .sums_over_tensor = is_row && !is_feedforward,
                        .init = PARAM_INIT_ONE,
                        .layer = (int)layer,
                        .slice_count = is_feedforward ? 1 : p->parts};
    snprintf(row.name, sizeof row.name, "layers.%lld.%s.ia3_l", (long long)layer, p->name);
    for (int i = 0; i < row.slice_count; i++) {
        int64_t rows = row.shape[0] / row.slice_count;
        row.slices[i] =
            (struct param_slice){.row = i * rows, .rows = rows, .file_start = i * rows, .file_rows = row.shape[0]};
        snprintf(row.slices[i].name, sizeof row.slices[i].name, "base_model.model.transformer.h.%lld.%s.ia3_l",
                 (long long)layer, p->name);
    }
    scale->id = peft_add_row(adapter, &row);
    return scale->id < 0 ? scale->id : STATUS_OK;
}

/* Every entry must be one of the targets, and a module whose input can be scaled. */
static int check_feedforward(const struct peft_adapter *adapter) {
    const struct config_list *list = &adapter->config.feedforward_modules;
    struct peft_projection projections[PEFT_PROJECTIONS];
    peft_projections(&adapter->peft->base, projections);
    for (int64_t layer = 0; layer < adapter->peft->base.num_layers; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS; p++)
            if (peft_is_feedforward(adapter, layer, &projections[p]) && peft_targets(adapter, layer, &projections[p]) &&
                !can_scale_input(&projections[p]))
                return status_fail(STATUS_USAGE,
                                   "peft.feedforward_modules: %s of layer %lld: of the model's modules only mlp.c_proj "
                                   "can be scaled at its input",
                                   projections[p].name, (long long)layer);
    bool is_none = list->count == 1 && !strcmp(list->items[0], "none");
    for (size_t i = 0; i < list->count && !is_none; i++) {
        bool is_target = false;
        struct peft_adapter one = *adapter;
        one.config.feedforward_modules = (struct config_list){list->items + i, 1};
        for (int64_t layer = 0; layer < adapter->peft->base.num_layers; layer++)
            for (int p = 0; p < PEFT_PROJECTIONS; p++)
                is_target = is_target || (peft_is_feedforward(&one, layer, &projections[p]) &&
                                          peft_targets(adapter, layer, &projections[p]));
        if (!is_target)
            return status_fail(STATUS_USAGE, "peft.feedforward_modules %s is none of peft.target_modules",
                               list->items[i]);
    }
    return STATUS_OK;
}

static int describe(struct peft_adapter *adapter) {
    const struct model_config *base = &adapter->peft->base;
    struct peft_projection projections[PEFT_PROJECTIONS];
    struct ia3 *ia3 = adapter->own = calloc(1, sizeof *ia3);
    if (ia3)
        ia3->scales = calloc((size_t)base->num_layers * PEFT_PROJECTIONS, sizeof *ia3->scales);
    if (!ia3 || !ia3->scales)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = peft_targets_check(adapter);
    if (!status)
        status = check_feedforward(adapter);
    peft_projections(base, projections);
    for (int64_t layer = 0; layer < base->num_layers && !status; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS && !status; p++) {
            if (!peft_targets(adapter, layer, &projections[p]))
                continue;
            struct scale *scale = &ia3->scales[ia3->count++];
            scale->adapter = adapter;
            status =
                add_scale(adapter, layer, &projections[p], peft_is_feedforward(adapter, layer, &projections[p]), scale);
        }
    return status;
}

static void close_ia3(struct peft_adapter *adapter) {
    struct ia3 *ia3 = adapter->own;
    if (ia3)
        free(ia3->scales);
    free(ia3);
}

/* ---- the hook ---- */

/* What the forward keeps: y before it was scaled [N, out]. */
static size_t saved_bytes(void *self, const struct hook_call *call) {
    (void)self;
    return (size_t)(call->rows * call->out) * dtype_bytes(call->dtype);
}

static struct column_scale arguments(const struct scale *scale, const struct hook_call *call,
                                     const struct weight_view *view) {
    return (struct column_scale){.rows = call->rows,
                                 .cols = call->out,
                                 .type = call->dtype,
                                 .scale_type = view->type,
                                 .scale = view->data,
                                 .dscale = param_gradient(&scale->adapter->peft->store, scale->id)};
}

static int forward(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct param_store *store = &scale->adapter->peft->store;
    struct weight_view view = param_borrow(store, scale->id);
    struct column_scale a = arguments(scale, call, &view);
    a.x = a.y = call->y;
    a.kept = scale->adapter->peft->trains ? call->saved : NULL;
    int status = rank_run(call->rank, PHASE_NORM, column_scale_forward, &a);
    param_return(store, scale->id, view);
    return status;
}

static int backward_output(void *self, const struct hook_call *call) {
    const struct scale *scale = self;
    const struct param_store *store = &scale->adapter->peft->store;
    struct weight_view view = param_borrow(store, scale->id);
    struct column_scale a = arguments(scale, call, &view);
    a.x = call->saved;
    a.dy = a.dx = call->dy;
    int status = rank_run_scratch(call->rank, PHASE_NORM, column_scale_backward, &a);
    param_return(store, scale->id, view);
    return status;
}

static int attach(struct peft_adapter *adapter) {
    struct peft *peft = adapter->peft;
    struct ia3 *ia3 = adapter->own;
    struct peft_projection projections[PEFT_PROJECTIONS];
    int status = STATUS_OK, next = 0;
    peft_projections(&peft->base, projections);
    for (int64_t layer = 0; layer < peft->base.num_layers && !status; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS && !status; p++) {
            if (!peft_targets(adapter, layer, &projections[p]))
                continue;
            bool is_feedforward = peft_is_feedforward(adapter, layer, &projections[p]);
            struct hook hook = {.self = &ia3->scales[next++],
                                .stage = is_feedforward ? HOOK_AFTER_ACTIVATION : HOOK_BEFORE_ACTIVATION,
                                .saved_bytes = peft->trains ? saved_bytes : NULL,
                                .forward = forward,
                                .backward_output = backward_output};
            status = hook_table_add(&peft->hooks, layer, is_feedforward ? ATTACH_FC1 : projections[p].place, &hook);
        }
    return status;
}

const struct peft_method peft_ia3 = {.describe = describe, .attach = attach, .close = close_ia3};
