/* LoRA (arXiv 2106.09685): y += s B A drop(x) at any set of projections, s = alpha / r, or alpha / sqrt(r) (rsLoRA).
 *
 * Over tensor ranks no forward needs a collective of its own. A column projection has A whole and B's rows cut like its
 * outputs; a row projection has A's columns cut like its inputs and B whole, and adds to the part of y that is summed
 * anyway. What is whole gets a part of its gradient from each rank (sums_over_tensor). */
#include "method-internal.h"

#include <math.h>
#include <stdlib.h>

/* One projection's pair. */
struct pair {
    struct peft_adapter *adapter;
    int a, b; /* ids */
    int64_t r;
    float scale;
};

struct lora {
    int count;
    struct pair *pairs;
};

/* ---- the parameters ---- */

static int add_pair(struct peft_adapter *adapter, int64_t layer, const struct peft_projection *p, struct pair *pair) {
    bool is_row = p->split == LINEAR_ROW;
    struct param a = {.dims = 2,
                      .shape = {pair->r, p->in},
                      .shard = is_row ? PARAM_SHARD_AXIS1 : PARAM_REPLICATED,
                      .sums_over_tensor = !is_row,
                      .init = PARAM_INIT_UNIFORM,
                      .init_std = (float)(1 / sqrt((double)p->in)),
                      .decays = true,
                      .layer = (int)layer};
    struct param b = {.dims = 2,
                      .shape = {p->out, pair->r},
                      .shard = is_row ? PARAM_REPLICATED : PARAM_SHARD_AXIS0,
                      .sums_over_tensor = is_row,
                      .init = PARAM_INIT_ZERO,
                      .decays = true,
                      .layer = (int)layer,
                      .slice_count = p->parts};
    snprintf(a.name, sizeof a.name, "layers.%lld.%s.lora_A", (long long)layer, p->name);
    snprintf(b.name, sizeof b.name, "layers.%lld.%s.lora_B", (long long)layer, p->name);
    for (int i = 0; i < p->parts; i++) {
        int64_t rows = p->out / p->parts;
        b.slices[i] = (struct param_slice){.row = i * rows, .rows = rows, .file_start = i * rows, .file_rows = p->out};
        snprintf(b.slices[i].name, sizeof b.slices[i].name, "base_model.model.transformer.h.%lld.%s.lora_B.weight",
                 (long long)layer, p->name);
    }
    snprintf(a.slices[0].name, sizeof a.slices[0].name, "base_model.model.transformer.h.%lld.%s.lora_A.weight",
             (long long)layer, p->name);
    pair->a = peft_add_row(adapter, &a);
    pair->b = pair->a < 0 ? pair->a : peft_add_row(adapter, &b);
    return pair->b < 0 ? pair->b : STATUS_OK;
}

static int describe(struct peft_adapter *adapter) {
    const struct peft_config *config = &adapter->config;
    const struct model_config *base = &adapter->peft->base;
    struct peft_projection projections[PEFT_PROJECTIONS];
    struct lora *lora = adapter->own = calloc(1, sizeof *lora);
    if (lora)
        lora->pairs = calloc((size_t)base->num_layers * PEFT_PROJECTIONS, sizeof *lora->pairs);
    if (!lora || !lora->pairs)
        return status_fail(STATUS_MEMORY, "out of memory");
    if (config->r < 1)
        return status_fail(STATUS_USAGE, "peft.r %lld: expected at least 1", (long long)config->r);
    int status = peft_targets_check(adapter);
    peft_projections(base, projections);
    for (int64_t layer = 0; layer < base->num_layers && !status; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS && !status; p++) {
            if (!peft_targets(adapter, layer, &projections[p]))
                continue;
            struct pair *pair = &lora->pairs[lora->count++];
            double divisor = config->use_rslora ? sqrt((double)config->r) : (double)config->r;
            *pair = (struct pair){.adapter = adapter, .r = config->r, .scale = (float)(config->lora_alpha / divisor)};
            status = add_pair(adapter, layer, &projections[p], pair);
        }
    return status;
}

static void close_lora(struct peft_adapter *adapter) {
    struct lora *lora = adapter->own;
    if (lora)
        free(lora->pairs);
    free(lora);
}

/* ---- the hook ---- */

/* What the forward keeps: s A x [N, r]; behind it the gradient of A x [N, r]. */
static size_t saved_bytes(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    return 2 * (size_t)(call->rows * pair->r) * dtype_bytes(call->dtype);
}

static void *inner_gradient(const struct pair *pair, const struct hook_call *call) {
    size_t bytes = (size_t)(call->rows * pair->r) * dtype_bytes(call->dtype);
    return call->saved ? (char *)call->saved + bytes : NULL;
}

static int multiply(const struct hook_call *call, const struct gemm *gemm) {
    return rank_run_scratch(call->rank, PHASE_GEMM, gemm, gemm);
}

static int forward(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    const struct param_store *store = &pair->adapter->peft->store;
    struct weight_view a = param_borrow(store, pair->a), b = param_borrow(store, pair->b);
    struct gemm down = {.m = call->rows,
                        .n = pair->r,
                        .k = call->in,
                        .a = call->x,
                        .lda = call->in,
                        .b = a.data,
                        .ldb = call->in,
                        .b_transposed = true,
                        .c = call->saved,
                        .ldc = pair->r,
                        .type = call->dtype,
                        .c_type = call->dtype,
                        .scale = pair->scale};
    struct gemm up = {.m = call->rows,
                      .n = call->out,
                      .k = pair->r,
                      .a = call->saved,
                      .lda = pair->r,
                      .b = b.data,
                      .ldb = pair->r,
                      .b_transposed = true,
                      .c = call->y,
                      .ldc = call->out,
                      .type = call->dtype,
                      .c_type = call->dtype,
                      .accumulate = true};
    int status = multiply(call, &down);
    if (!status)
        status = multiply(call, &up);
    param_return(store, pair->a, a);
    param_return(store, pair->b, b);
    return status;
}

/* gradient[rows, columns] += left' right, over the rows of the batch. */
static int add_gradient(const struct hook_call *call, float *gradient, const void *left, int64_t rows,
                        const void *right, int64_t columns) {
    struct gemm gemm = {.m = rows,
                        .n = columns,
                        .k = call->rows,
                        .a = left,
                        .lda = rows,
                        .a_transposed = true,
                        .b = right,
                        .ldb = columns,
                        .c = gradient,
                        .ldc = columns,
                        .type = call->dtype,
                        .c_type = DTYPE_F32,
                        .accumulate = true};
    return multiply(call, &gemm);
}

static int backward_output(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    const struct param_store *store = &pair->adapter->peft->store;
    struct weight_view b = param_borrow(store, pair->b);
    struct gemm back = {.m = call->rows,
                        .n = pair->r,
                        .k = call->out,
                        .a = call->dy,
                        .lda = call->out,
                        .b = b.data,
                        .ldb = pair->r,
                        .c = inner_gradient(pair, call),
                        .ldc = pair->r,
                        .type = call->dtype,
                        .c_type = call->dtype,
                        .scale = pair->scale};
    int status = add_gradient(call, param_gradient(store, pair->b), call->dy, call->out, call->saved, pair->r);
    if (!status)
        status = multiply(call, &back);
    param_return(store, pair->b, b);
    return status;
}

static int backward_input(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    const struct param_store *store = &pair->adapter->peft->store;
    struct weight_view a = param_borrow(store, pair->a);
    struct gemm back = {.m = call->rows,
                        .n = call->in,
                        .k = pair->r,
                        .a = inner_gradient(pair, call),
                        .lda = pair->r,
                        .b = a.data,
                        .ldb = call->in,
                        .c = call->dx,
                        .ldc = call->in,
                        .type = call->dtype,
                        .c_type = call->dtype,
                        .accumulate = true};
    int status =
        add_gradient(call, param_gradient(store, pair->a), inner_gradient(pair, call), pair->r, call->x, call->in);
    if (!status && (call->dx || call->rank->is_planning))
        status = multiply(call, &back);
    param_return(store, pair->a, a);
    return status;
}

static int attach(struct peft_adapter *adapter) {
    struct peft *peft = adapter->peft;
    struct lora *lora = adapter->own;
    struct peft_projection projections[PEFT_PROJECTIONS];
    int status = STATUS_OK, next = 0;
    peft_projections(&peft->base, projections);
    for (int64_t layer = 0; layer < peft->base.num_layers && !status; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS && !status; p++) {
            if (!peft_targets(adapter, layer, &projections[p]))
                continue;
            struct hook hook = {.self = &lora->pairs[next++],
                                .stage = HOOK_BEFORE_ACTIVATION,
                                .saved_bytes = saved_bytes,
                                .forward = forward,
                                .backward_output = backward_output,
                                .backward_input = backward_input};
            status = hook_table_add(&peft->hooks, layer, projections[p].place, &hook);
        }
    return status;
}

const struct peft_method peft_lora = {.describe = describe, .attach = attach, .close = close_lora};
