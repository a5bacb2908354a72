/* LoRA (arXiv 2106.09685): y += s B A drop(x) at any set of projections, with s = alpha / r, or alpha / sqrt(r)
 * (rsLoRA). DoRA scales the result (dora.c). LoRA+ (arXiv 2402.12354) gives B its own learning rate.
 *
 * Over tensor ranks no forward needs another collective. A column projection has A whole, and B's rows cut like its
 * outputs. A row projection has A's columns cut like its inputs, and B whole; it adds to the part of y that is summed
 * anyway. A whole parameter gets a part of its gradient from each rank (sums_over_tensor). */
#include "bank-internal.h"
#include "lora-internal.h"
#include "merge-internal.h"

#include <math.h>

/* ---- the parameters ---- */

static int add_pair(struct pair *pair) {
    struct peft_adapter *adapter = pair->adapter;
    const struct model_projection *p = &pair->projection;
    int64_t layer = pair->layer;
    bool is_row = pair_is_row(pair);
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
                      .lr_factor = (float)adapter->config.loraplus_lr_ratio,
                      .layer = (int)layer};
    pair_name(pair, "lora_A", a.name);
    pair_name(pair, "lora_B", b.name);
    b.slice_count = model_projection_slices(&adapter->peft->base, p, b.slices);
    for (int i = 0; i < b.slice_count; i++)
        peft_tensor_name(adapter->peft, layer, p->module, "lora_B.weight", b.slices[i].name);
    peft_tensor_name(adapter->peft, layer, p->module, "lora_A.weight", a.slices[0].name);
    pair->a = peft_add_row(adapter, &a);
    pair->b = pair->a < 0 ? pair->a : peft_add_row(adapter, &b);
    if (pair->b < 0)
        return pair->b;
    return adapter->config.use_dora ? dora_add_row(pair) : STATUS_OK;
}

static int check_config(const struct peft_config *config) {
    if (config->r < 1)
        return status_fail(STATUS_USAGE, "peft.r %lld: expected at least 1", (long long)config->r);
    if (!(config->lora_dropout >= 0 && config->lora_dropout < 1))
        return status_fail(STATUS_USAGE, "peft.lora_dropout %g: expected 0 or more, below 1", config->lora_dropout);
    if (!(config->loraplus_lr_ratio >= 0))
        return status_fail(STATUS_USAGE, "peft.loraplus_lr_ratio %g: expected above 0", config->loraplus_lr_ratio);
    return STATUS_OK;
}

/* Ranks come from patterns; those that match any module count. */
static int check_ranks(const struct peft_adapter *adapter) {
    const char *where = adapter->config.where;
    int64_t count = adapter->peft->base.num_layers * adapter->peft->family->projection_count;
    for (int64_t i = 0; i <= count; i++) {
        double r = adapter->choices[i].r;
        int status = r == floor(r) ? STATUS_OK : status_fail(STATUS_USAGE, "peft.rank_pattern: a rank of %g", r);
        if (status)
            return where ? status_wrap(status, "%s", where) : status;
    }
    return STATUS_OK;
}

static float scale_of(const struct peft_config *config, const struct peft_choice *choice) {
    return (float)(choice->alpha / (config->use_rslora ? sqrt(choice->r) : choice->r));
}

enum { DROPOUT_SITES = 1 << 23, HEAD_DROPOUT_SITES = 1 << 24 }; /* the model's sites are below */

static size_t align(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Requests scratch for x after dropout, and for the gradient before it. In bf16 DoRA needs z in fp32 beside it. The
 * head takes its rows in chunks. */
static void need_scratch(const struct pair *pair) {
    struct peft *peft = pair->adapter->peft;
    int64_t in = pair_is_row(pair) ? pair->projection.in / peft->rank->grid.tensor : pair->projection.in;
    int64_t out =
        pair->adapter->config.use_dora && peft->dtype == DTYPE_BF16 ? peft_range(peft, &pair->projection).columns : 0;
    int64_t rows = peft->max_rows, chunk = peft->rank->ops->sizes(peft->rank->device)->head_rows;
    if (pair->projection.place == ATTACH_HEAD && chunk < rows)
        rows = chunk;
    if (peft->trains && pair->adapter->config.lora_dropout > 0)
        peft_need_scratch(peft,
                          align((size_t)(rows * in) * dtype_bytes(peft->dtype)) + (size_t)(rows * out) * sizeof(float));
}

/* Adds the pair of a projection if it is a target. */
static int describe_pair(struct peft_adapter *adapter, int64_t layer, const struct model_projection *projection,
                         uint32_t dropout_site) {
    const struct peft_choice *choice = peft_choice(adapter, layer, projection);
    struct lora *lora = adapter->state;
    if (!choice->is_target)
        return STATUS_OK;
    struct pair *pair = &lora->pairs[lora->count++];
    *pair = (struct pair){.adapter = adapter,
                          .projection = *projection,
                          .layer = layer,
                          .is_here = peft_has_layer(adapter->peft, layer),
                          .r = (int64_t)choice->r,
                          .scale = scale_of(&adapter->config, choice),
                          .dropout_site = dropout_site};
    need_scratch(pair);
    return add_pair(pair);
}

static int describe(struct peft_adapter *adapter) {
    const struct model_config *base = &adapter->peft->base;
    const struct model_projection *projections = adapter->peft->projections;
    int projection_count = adapter->peft->family->projection_count;
    struct lora *lora = adapter->state = calloc(1, sizeof *lora);
    if (lora)
        lora->pairs = calloc((size_t)(base->num_layers * projection_count + 1), sizeof *lora->pairs);
    TRY(status_allocated(lora && lora->pairs));
    int status = check_config(&adapter->config);
    THEN(status, peft_choose_targets(adapter));
    THEN(status, check_ranks(adapter));
    for (int64_t layer = 0; layer < base->num_layers && !status; layer++)
        for (int p = 0; p < projection_count && !status; p++) {
            int64_t number = (adapter->number * base->num_layers + layer) * projection_count + p;
            status = describe_pair(adapter, layer, &projections[p], DROPOUT_SITES + (uint32_t)number);
        }
    uint32_t head_site = HEAD_DROPOUT_SITES + (uint32_t)adapter->number;
    return status ? status : describe_pair(adapter, base->num_layers, &projections[projection_count], head_site);
}

static void close_lora(struct peft_adapter *adapter) {
    struct lora *lora = adapter->state;
    for (int i = 0; lora && i < lora->count; i++)
        dora_free(&lora->pairs[i]);
    if (lora)
        free(lora->pairs);
    free(lora);
}

/* ---- the hook ---- */

/* The forward keeps s A x [N, r]. After it come the gradient of A x [N, r], and DoRA's unscaled y [N, out]. A frozen
 * pair has only the gradient. */
struct kept {
    void *inner, *dinner, *y;
};

static struct kept place_kept(const struct pair *pair, const struct hook_call *call, struct arena *arena) {
    size_t width = dtype_bytes(call->dtype), inner = (size_t)(call->rows * pair->r) * width;
    struct kept kept = {0};
    const struct peft *peft = pair->adapter->peft;
    kept.inner = peft->trains ? arena_take(arena, inner) : NULL;
    kept.dinner = peft->has_backward ? arena_take(arena, inner) : NULL;
    if (peft->trains && pair->adapter->config.use_dora)
        kept.y = arena_take(arena, (size_t)(call->rows * call->out) * width);
    return kept;
}

static size_t saved_bytes(void *self, const struct hook_call *call) {
    struct arena arena = ARENA_PLAN;
    place_kept(self, call, &arena);
    return arena.used;
}

static struct kept kept_of(const struct pair *pair, const struct hook_call *call) {
    struct arena arena = ARENA_PLAN;
    if (call->saved)
        arena = arena_over(call->saved, saved_bytes((void *)pair, call));
    return place_kept(pair, call, &arena);
}

/* Computes y = residual + dropout(x); residual NULL: none. The mask follows the global columns. */
static int drop(const struct pair *pair, const struct hook_call *call, const void *residual, const void *x, void *y) {
    struct residual_dropout dropout = {.rows = call->rows,
                                       .cols = call->in,
                                       .type = call->dtype,
                                       .residual = residual,
                                       .x = x,
                                       .y = y,
                                       .dropout = {.p = (float)pair->adapter->config.lora_dropout,
                                                   .seed = call->rank->seed,
                                                   .site = pair->dropout_site,
                                                   .keys = call->keys},
                                       .first_col = pair_is_row(pair) ? call->rank->place.tensor * call->in : 0};
    return rank_run(call->rank, PHASE_NORM, residual_dropout_forward, &dropout);
}

static bool may_drop(const struct pair *pair) {
    return pair->adapter->peft->trains && pair->adapter->config.lora_dropout > 0;
}

static bool has_dropout(const struct pair *pair, const struct hook_call *call) {
    return may_drop(pair) && call->keys.sample;
}

/* Planning runs a pass with dropout and one without, because the kind of a later pass is unknown. */
static bool is_done(const struct pair *pair, const struct hook_call *call, bool with_dropout) {
    if (call->rank->is_planning)
        return !with_dropout || may_drop(pair);
    return has_dropout(pair, call) == with_dropout;
}

static int multiply(const struct hook_call *call, const struct gemm *gemm) {
    return rank_multiply(call->rank, PHASE_GEMM, gemm);
}

/* Adds the pair's products to y, and keeps their inner one. DoRA then scales y, unless `is_unscaled`. */
static int add_pair_to(const struct pair *pair, const struct hook_call *call, struct bank_kept kept, bool is_unscaled) {
    return peft_image_forward(
        pair->adapter, call,
        (struct bank_call){.projection = bank_projection(pair->adapter->peft->bank, &pair->projection),
                           .columns = pair->r,
                           .kept = kept,
                           .is_unscaled = is_unscaled});
}

/* With dropout, DoRA needs the base's product of the dropped x, too. It has the type of y, and is then kept. */
static int add_dropped_dora(const struct pair *pair, const struct hook_call *dropped, const struct kept *kept) {
    struct hook_call call = *dropped;
    size_t bytes = align((size_t)(call.rows * call.in) * dtype_bytes(call.dtype));
    bool is_scratch = call.y_dtype != call.dtype;
    char *scratch = pair->adapter->peft->scratch; /* first of the dropped x */
    call.y = is_scratch && scratch ? scratch + bytes : kept->y;
    call.y_stride = call.out;
    const struct cast_call keep = {call.rows * call.out, call.y_dtype, call.dtype, call.y, kept->y};
    TRY(dora_base_product(pair, &call, true, call.x, call.y));
    TRY(add_pair_to(pair, &call, (struct bank_kept){0}, true));
    TRY(dora_add(pair, dropped, call.y));
    return is_scratch ? rank_run(call.rank, PHASE_NORM, cast, &keep) : STATUS_OK;
}

static int forward(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    struct kept kept = kept_of(pair, call);
    struct hook_call input = *call;
    bool is_dropped = has_dropout(pair, call), is_dora = pair->adapter->config.use_dora;
    struct bank_kept keep = {.inner = kept.inner, .y = is_dropped ? NULL : kept.y};
    int status = STATUS_OK;
    if (is_dropped) {
        input.x = pair->adapter->peft->scratch;
        status = drop(pair, call, NULL, call->x, pair->adapter->peft->scratch);
    }
    THEN(status, add_pair_to(pair, &input, keep, is_dropped));
    THEN_IF(status, is_dora && is_done(pair, call, true), add_dropped_dora(pair, &input, &kept));
    return status;
}

/* Computes gradient[left's columns, right's columns] += left' right; both have one row per row of the batch. */
static int add_gradient(const struct hook_call *call, float *gradient, struct matrix_view left,
                        struct matrix_view right) {
    struct gemm gemm = {.a = left,
                        .a_transposed = true,
                        .b = right,
                        .c = matrix_plain(DTYPE_F32, gradient, left.columns, right.columns),
                        .accumulate = true};
    return multiply(call, &gemm);
}

/* Adds to B's gradient, and computes that of A x, from the gradient of the pair's product. */
static int pair_backward(const struct pair *pair, const struct hook_call *call, struct matrix_view dy) {
    const struct param_store *store = &pair->adapter->peft->store;
    struct kept kept = kept_of(pair, call);
    struct gemm back = {.a = dy,
                        .b = param_borrow(store, pair->b),
                        .c = matrix_plain(call->dtype, kept.dinner, call->rows, pair->r),
                        .is_scaled = true,
                        .scale = pair->scale};
    struct matrix_view inner = matrix_plain(call->dtype, kept.inner, call->rows, pair->r);
    int status = STATUS_OK;
    THEN_IF(status, pair->adapter->peft->trains, add_gradient(call, param_gradient(store, pair->b), dy, inner));
    THEN(status, multiply(call, &back));
    param_return(store, pair->b);
    return status;
}

/* With dropout, DoRA's gradient of the pair's product takes the place of z. */
static int dropped_dora_backward(const struct pair *pair, const struct hook_call *call, void *z) {
    struct scale_add less_dy = {.rows = call->rows,
                                .cols = call->out,
                                .type = call->dtype,
                                .scale = -1,
                                .x = call->dy,
                                .y = z,
                                .accumulate = true,
                                .x_stride = call->y_stride};
    int status = dora_dropped_backward(pair, call, z);
    THEN(status, pair_backward(pair, call, matrix_plain(call->dtype, z, call->rows, call->out)));
    /* the gradient for the base's second product: (m / n - 1) dy */
    return status ? status : rank_run(call->rank, PHASE_NORM, scale_add, &less_dy);
}

static int backward_output(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    struct matrix_view dy = matrix_strided(call->dtype, call->dy, call->rows, call->out, call->y_stride);
    void *y = kept_of(pair, call).y;
    bool is_dora = pair->adapter->config.use_dora, is_unsure = is_dora && may_drop(pair);
    int status = STATUS_OK;
    rank_unsure(call->rank, is_unsure, 1);
    if (!is_dora || is_done(pair, call, false)) {
        status = is_dora ? dora_backward(pair, call, y) : STATUS_OK;
        THEN(status, pair_backward(pair, call, dy));
    }
    rank_unsure(call->rank, is_unsure, -1);
    return status || !is_dora || !is_done(pair, call, true) ? status : dropped_dora_backward(pair, call, y);
}

static int backward_input(void *self, const struct hook_call *call) {
    const struct pair *pair = self;
    const struct param_store *store = &pair->adapter->peft->store;
    struct matrix_view a = param_borrow(store, pair->a);
    struct kept kept = kept_of(pair, call);
    bool is_dropped = has_dropout(pair, call);
    void *scratch = pair->adapter->peft->scratch;
    struct matrix_view dinner = matrix_plain(call->dtype, kept.dinner, call->rows, pair->r),
                       x = matrix_plain(call->dtype, is_dropped ? scratch : call->x, call->rows, call->in);
    struct gemm back = {
        .a = dinner, .b = a, .c = matrix_plain(call->dtype, call->dx, call->rows, call->in), .accumulate = true};
    int status = is_dropped ? drop(pair, call, NULL, call->x, scratch) : STATUS_OK;
    THEN_IF(status, pair->adapter->peft->trains, add_gradient(call, param_gradient(store, pair->a), dinner, x));
    bool wants_dx = call->dx || call->rank->is_planning;
    bool is_unsure = may_drop(pair) || call->has_no_dx;
    rank_unsure(call->rank, is_unsure, 1);
    THEN_IF(status, wants_dx && is_done(pair, call, false), multiply(call, &back));
    rank_unsure(call->rank, is_unsure, -1);
    if (!status && wants_dx && is_done(pair, call, true)) {
        rank_unsure(call->rank, call->has_no_dx, 1);
        back.c = matrix_plain(call->dtype, scratch, call->rows, call->in);
        back.accumulate = false;
        status = multiply(call, &back);
        THEN_IF(status, pair->adapter->config.use_dora, dora_base_product(pair, call, false, kept.y, scratch));
        THEN(status, drop(pair, call, call->dx, scratch, call->dx));
        rank_unsure(call->rank, call->has_no_dx, -1);
    }
    param_return(store, pair->a);
    return status;
}

static int attach(struct peft_adapter *adapter) {
    struct lora *lora = adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < lora->count && !status; i++) {
        struct pair *pair = &lora->pairs[i];
        struct hook hook = {.self = pair,
                            .side = HOOK_BEFORE_ACTIVATION,
                            .saved_bytes = saved_bytes,
                            .forward = forward,
                            .backward_output = backward_output,
                            .backward_input = backward_input};
        status = peft_add_hook(adapter->peft, pair->layer, &pair->projection, hook);
    }
    return status;
}

/* ---- DoRA ---- */

static int every_magnitude(struct peft_adapter *adapter, int (*run)(struct pair *pair)) {
    struct lora *lora = adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < lora->count && adapter->config.use_dora && !status; i++)
        if (lora->pairs[i].is_here)
            status = run(&lora->pairs[i]);
    return status;
}

static int allocate(struct peft_adapter *adapter) {
    return every_magnitude(adapter, dora_allocate);
}

static int initialise(struct peft_adapter *adapter, uint64_t seed) {
    return every_magnitude(adapter, dora_initialise);
}

static int begin(struct peft_adapter *adapter) {
    return every_magnitude(adapter, dora_begin);
}

static int image_parts(const struct peft_adapter *adapter) {
    const struct lora *lora = adapter->state;
    return adapter->config.use_dora ? lora->count : 0;
}

static int prepare_part(struct peft_adapter *adapter, int part) {
    struct lora *lora = adapter->state;
    return lora->pairs[part].is_here ? dora_measure(&lora->pairs[part]) : STATUS_OK;
}

static int begin_image(struct peft_adapter *adapter) {
    return every_magnitude(adapter, dora_finish);
}

static const char *measures(const struct peft_config *config) {
    return config->use_dora ? "DoRA" : NULL;
}

/* ---- the base with it ---- */

static int merge_pairs(const struct peft_adapter *adapter, struct merge *merge) {
    const struct lora *lora = adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < lora->count && !status; i++) {
        const struct pair *pair = &lora->pairs[i];
        status = merge_add_product(merge, pair->layer, &pair->projection, pair->a, pair->b, pair->scale);
        if (!status && adapter->config.use_dora)
            status = merge_set_norms(merge, pair->layer, &pair->projection, pair->dora.magnitude);
    }
    return status;
}

static const char *const other_names[][2] = {
    {"lora_A.weight", "lora_A.default.weight"},
    {"lora_B.weight", "lora_B.default.weight"},
    {"lora_magnitude_vector", "lora_magnitude_vector.weight"},
    {"lora_magnitude_vector", "lora_magnitude_vector.default.weight"},
    {0},
};

static const char *const *targets(const struct model_family *family) {
    return family->targets.weights;
}

const struct peft_method peft_lora = {.title = "LoRA",
                                      .format = &lora_format,
                                      .lr = 2e-4, /* of GPT-2 by Hu et al., 2021: microsoft/LoRA, examples/NLG */
                                      .targets = targets,
                                      .other_names = other_names,
                                      .measures = measures,
                                      .merge = merge_pairs,
                                      .describe = describe,
                                      .attach = attach,
                                      .allocate = allocate,
                                      .initialise = initialise,
                                      .begin = begin,
                                      .close = close_lora,
                                      .image_parts = image_parts,
                                      .prepare_part = prepare_part,
                                      .begin_image = begin_image,
                                      .make_image = lora_make_image,
                                      .forward = lora_forward,
                                      .sites = lora_sites};
