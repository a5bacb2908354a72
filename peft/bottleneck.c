/* Bottleneck adapters: Y = X + S + s (U act(D norm(in) + b1) + b2). S is the output that a half of the block adds to
 * the stream X. Houlsby's (arXiv 1902.00751) follow attention and MLP with in = S. Pfeiffer's (arXiv 2005.00247) follow
 * the MLP with in = X + S. Parallel ones (arXiv 2110.04366) follow the MLP with in = X. U starts as zero, so nothing
 * changes at first.
 *
 * Each tensor rank has the whole adapter and computes it on its rows of the stream. Under sequence parallelism the
 * ranks have different rows, so each makes a part of the gradients; otherwise all make the same. */
#include "bank-internal.h"
#include "bottleneck-internal.h"

#include <math.h>

/* ---- the parameters ---- */

static int add_parameters(struct bottleneck *bottleneck) {
    struct peft_adapter *adapter = bottleneck->adapter;
    const struct peft_config *config = &adapter->config;
    const struct model_family *family = adapter->peft->family;
    int64_t C = adapter->peft->base.hidden_size, m = config->bottleneck;
    bool is_attention = bottleneck->place == ATTACH_AFTER_ATTENTION;
    const char *name = config->adapter_name ? config->adapter_name : "default"; /* AdapterHub's tensors carry it */
    const struct {
        const char *ours, *file;
        int64_t shape[2];
        enum param_init init;
    } rows[PARAMETERS] = {
        [NORM_GAIN] = {"norm.weight", "adapter_down.0.weight", {C, 0}, PARAM_INIT_ONE},
        [NORM_BIAS] = {"norm.bias", "adapter_down.0.bias", {C, 0}, PARAM_INIT_ZERO},
        [DOWN] = {"down.weight",
                  config->adapter_pre_norm ? "adapter_down.1.weight" : "adapter_down.0.weight",
                  {m, C},
                  PARAM_INIT_UNIFORM},
        [DOWN_BIAS] = {"down.bias",
                       config->adapter_pre_norm ? "adapter_down.1.bias" : "adapter_down.0.bias",
                       {m, 0},
                       PARAM_INIT_ZERO},
        [UP] = {"up.weight", "adapter_up.weight", {C, m}, PARAM_INIT_ZERO},
        [UP_BIAS] = {"up.bias", "adapter_up.bias", {C, 0}, PARAM_INIT_ZERO},
    };
    for (int i = 0; i < PARAMETERS; i++) {
        bottleneck->id[i] = PARAM_NONE;
        if (i <= NORM_BIAS && !config->adapter_pre_norm)
            continue;
        struct param row = {.dims = rows[i].shape[1] ? 2 : 1,
                            .shape = {rows[i].shape[0], rows[i].shape[1] ? rows[i].shape[1] : 1},
                            .sums_over_tensor = adapter->peft->rank->is_sequence_parallel,
                            .init = rows[i].init,
                            .init_std = (float)(1 / sqrt((double)C)),
                            .decays = rows[i].shape[1] > 0,
                            .layer = (int)bottleneck->layer};
        snprintf(row.name, sizeof row.name, "layers.%lld.%s.adapter.%s", (long long)bottleneck->layer,
                 is_attention ? "attention" : "mlp", rows[i].ours);
        int n = snprintf(row.slices[0].name, sizeof row.slices[0].name, "%s%s.%lld.%s.adapters.%s.%s",
                         family->files.prefix, family->layers, (long long)bottleneck->layer,
                         is_attention ? "attention_adapters" : "output_adapters", name, rows[i].file);
        if (n < 0 || (size_t)n >= sizeof row.slices[0].name)
            return status_fail(STATUS_INVALID, "the adapter's name %s is too long", name);
        bottleneck->id[i] = peft_add_row(adapter, &row);
        if (bottleneck->id[i] < 0)
            return bottleneck->id[i];
    }
    return STATUS_OK;
}

/* Scratch of the backward: a gradient, and what it computes again. */
struct again {
    void *gradient;     /* [N, C] */
    void *inner;        /* [N, m] the activation's input */
    void *normed;       /* [N, C] after the norm, if there is one */
    float *mean, *rstd; /* [N] */
};

static struct again place_again(const struct peft_config *config, int64_t rows, int64_t C, enum dtype dtype,
                                struct arena *arena) {
    size_t N = (size_t)rows, width = dtype_bytes(dtype);
    struct again again = {.gradient = arena_take(arena, N * (size_t)C * width),
                          .inner = arena_take(arena, N * (size_t)config->bottleneck * width)};
    if (!config->adapter_pre_norm)
        return again;
    again.normed = arena_take(arena, N * (size_t)C * width);
    again.mean = arena_take(arena, N * sizeof(float));
    again.rstd = arena_take(arena, N * sizeof(float));
    return again;
}

static int describe(struct peft_adapter *adapter) {
    struct peft *peft = adapter->peft;
    const struct peft_config *config = &adapter->config;
    int64_t layers = peft->base.num_layers, C = peft->base.hidden_size;
    struct bottlenecks *all = adapter->state = calloc(1, sizeof *all);
    if (all)
        all->of = calloc(2 * (size_t)layers, sizeof *all->of);
    TRY(status_allocated(all && all->of));
    if (config->bottleneck < 1)
        return status_fail(STATUS_USAGE, "peft.bottleneck %lld: expected at least 1", (long long)config->bottleneck);
    int status = peft_layers_check(adapter);
    for (int64_t layer = 0; layer < layers && !status; layer++)
        for (int is_mlp = config->adapter_style != PEFT_HOULSBY; is_mlp < 2 && !status; is_mlp++) {
            if (!peft_transforms(adapter, layer))
                continue;
            struct bottleneck *bottleneck = &all->of[all->count++];
            *bottleneck = (struct bottleneck){
                .adapter = adapter, .layer = layer, .place = is_mlp ? ATTACH_AFTER_MLP : ATTACH_AFTER_ATTENTION};
            status = add_parameters(bottleneck);
        }
    struct arena arena = ARENA_PLAN;
    place_again(config, rank_stream_rows(peft->rank, peft->max_rows), C, peft->dtype, &arena);
    peft_need_scratch(peft, arena.used);
    return status;
}

static void close_bottlenecks(struct peft_adapter *adapter) {
    struct bottlenecks *all = adapter->state;
    if (all)
        free(all->of);
    free(all);
}

/* ---- what the forward keeps ---- */

struct kept {
    void *in;     /* [N, C], before the norm, unless it is kept elsewhere */
    void *active; /* [N, m] the activation's output; in the backward its gradient and the input's */
};

static const struct peft_config *config_of(const struct bottleneck *bottleneck) {
    return &bottleneck->adapter->config;
}

static struct kept place_kept(const struct bottleneck *bottleneck, const struct hook_call *call, struct arena *arena) {
    const struct peft_config *config = config_of(bottleneck);
    size_t N = (size_t)call->rows, width = dtype_bytes(call->dtype);
    struct kept kept = {0};
    if (config->adapter_style != PEFT_PARALLEL)
        kept.in = arena_take(arena, N * (size_t)call->out * width);
    kept.active = arena_take(arena, N * (size_t)config->bottleneck * width);
    return kept;
}

static size_t saved_bytes(void *self, const struct hook_call *call) {
    struct arena arena = ARENA_PLAN;
    place_kept(self, call, &arena);
    return arena.used;
}

static struct kept kept_of(const struct bottleneck *bottleneck, const struct hook_call *call) {
    struct arena arena = ARENA_PLAN;
    if (call->saved)
        arena = arena_over(call->saved, saved_bytes((void *)bottleneck, call));
    return place_kept(bottleneck, call, &arena);
}

/* Returns the adapter's input, before the norm. */
static const void *input_of(const struct bottleneck *bottleneck, const struct hook_call *call,
                            const struct kept *kept) {
    return config_of(bottleneck)->adapter_style == PEFT_PARALLEL ? call->residual : kept->in;
}

/* ---- the pieces ---- */

static const struct param_store *store_of(const struct bottleneck *bottleneck) {
    return &bottleneck->adapter->peft->store;
}

static int norm(const struct bottleneck *bottleneck, const struct hook_call *call, struct norm *norm_call,
                bool is_backward) {
    const struct param_store *store = store_of(bottleneck);
    struct matrix_view gain = param_borrow(store, bottleneck->id[NORM_GAIN]);
    struct matrix_view bias = param_borrow(store, bottleneck->id[NORM_BIAS]);
    norm_call->kind = NORM_LAYER;
    norm_call->rows = call->rows;
    norm_call->cols = call->out;
    norm_call->type = call->dtype;
    norm_call->gain = gain.data;
    norm_call->bias = bias.data;
    norm_call->epsilon = bottleneck_norm_epsilon;
    norm_call->dgain = param_gradient(store, bottleneck->id[NORM_GAIN]);
    norm_call->dbias = param_gradient(store, bottleneck->id[NORM_BIAS]);
    int status = is_backward ? rank_run(call->rank, PHASE_NORM, norm_backward, norm_call)
                             : rank_run(call->rank, PHASE_NORM, norm_forward, norm_call);
    param_return(store, bottleneck->id[NORM_GAIN]);
    param_return(store, bottleneck->id[NORM_BIAS]);
    return status;
}

/* Computes y[N, out] = x[N, in] W' + b for the pair of parameters that begins with `weight`. */
static int project(const struct bottleneck *bottleneck, const struct hook_call *call, int weight, const void *x,
                   void *y) {
    const struct param_store *store = store_of(bottleneck);
    struct matrix_view w = param_borrow(store, bottleneck->id[weight]),
                       b = param_borrow(store, bottleneck->id[weight + 1]);
    struct gemm gemm = {.a = matrix_plain(call->dtype, x, call->rows, w.columns),
                        .b = w,
                        .b_transposed = true,
                        .c = matrix_plain(call->dtype, y, call->rows, w.rows),
                        .bias = b.data};
    int status = rank_multiply(call->rank, PHASE_GEMM, &gemm);
    param_return(store, bottleneck->id[weight]);
    param_return(store, bottleneck->id[weight + 1]);
    return status;
}

/* Computes the gradients of weight and bias from x and dy, and dx[N, in] = dy W. */
static int project_backward(const struct bottleneck *bottleneck, const struct hook_call *call, int weight,
                            const void *x, const void *dy, void *dx) {
    const struct param_store *store = store_of(bottleneck);
    struct matrix_view w = param_borrow(store, bottleneck->id[weight]);
    struct matrix_view outputs = matrix_plain(call->dtype, dy, call->rows, w.rows);
    struct gemm dw = {.a = outputs,
                      .a_transposed = true,
                      .b = matrix_plain(call->dtype, x, call->rows, w.columns),
                      .c = matrix_plain(DTYPE_F32, param_gradient(store, bottleneck->id[weight]), w.rows, w.columns),
                      .accumulate = true,
                      .bias_gradient = param_gradient(store, bottleneck->id[weight + 1])};
    struct gemm back = {.a = outputs, .b = w, .c = matrix_plain(call->dtype, dx, call->rows, w.columns)};
    bool trains = bottleneck->adapter->peft->trains;
    int status = STATUS_OK;
    if (trains && call->rank->is_planning) /* of the bias gradient, whose pointer is NULL */
        status = rank_need(call->rank,
                           call->rank->ops->column_sum_workspace(
                               call->rank->device, &(const struct column_sum){.rows = call->rows, .cols = w.rows}));
    THEN_IF(status, trains, rank_multiply(call->rank, PHASE_GEMM, &dw));
    THEN(status, rank_multiply(call->rank, PHASE_GEMM, &back));
    param_return(store, bottleneck->id[weight]);
    return status;
}

/* Converts the gradient of the activation's output to that of its input, in kept->active. */
static int activate_backward(const struct bottleneck *bottleneck, const struct hook_call *call, const struct kept *kept,
                             const void *inner) {
    int64_t count = call->rows * config_of(bottleneck)->bottleneck;
    if (config_of(bottleneck)->adapter_activation == PEFT_GELU) {
        struct gelu gelu = {.count = count, .type = call->dtype, .x = inner, .dy = kept->active, .dx = kept->active};
        return rank_run(call->rank, PHASE_NORM, gelu_backward, &gelu);
    }
    struct unit_call unit = {.count = count,
                             .type = call->dtype,
                             .unit = config_of(bottleneck)->adapter_activation == PEFT_RELU ? UNIT_RELU : UNIT_SWISH,
                             .x = inner,
                             .dy = kept->active,
                             .dx = kept->active};
    return rank_run(call->rank, PHASE_NORM, unit_backward, &unit);
}

static int add_scaled(const struct hook_call *call, double scale, const void *x, bool accumulate, void *y) {
    struct scale_add a = {.rows = call->rows,
                          .cols = call->out,
                          .type = call->dtype,
                          .scale = (float)scale,
                          .x = x,
                          .y = y,
                          .accumulate = accumulate};
    return rank_run(call->rank, PHASE_NORM, scale_add, &a);
}

/* ---- the hook ---- */

static int forward(void *self, const struct hook_call *call) {
    const struct bottleneck *bottleneck = self;
    struct kept kept = kept_of(bottleneck, call);
    return peft_image_forward(bottleneck->adapter, call,
                              (struct bank_call){.columns = config_of(bottleneck)->bottleneck,
                                                 .kept = {.in = kept.in, .inner = kept.active}});
}

/* Converts the gradient of the adapter's result, in again->gradient, to that of its input, in *din. */
static int backward_within(const struct bottleneck *bottleneck, const struct hook_call *call, const struct kept *kept,
                           const struct again *again, const void **din) {
    bool has_norm = config_of(bottleneck)->adapter_pre_norm;
    const void *x = input_of(bottleneck, call, kept), *normed = has_norm ? again->normed : x;
    struct norm before = {.x = x, .y = again->normed, .mean = again->mean, .rstd = again->rstd};
    int status = has_norm ? norm(bottleneck, call, &before, false) : STATUS_OK;
    THEN(status, project(bottleneck, call, DOWN, normed, again->inner));
    /* The input's gradient overwrites a matrix that the weight's gradient reads, so it comes after it. */
    THEN(status, project_backward(bottleneck, call, UP, kept->active, again->gradient, kept->active));
    THEN(status, activate_backward(bottleneck, call, kept, again->inner));
    THEN(status, project_backward(bottleneck, call, DOWN, normed, kept->active, again->gradient));
    *din = has_norm ? again->normed : again->gradient;
    before.dy = again->gradient;
    before.dx = again->normed;
    THEN_IF(status, has_norm, norm(bottleneck, call, &before, true));
    return status;
}

static int backward_output(void *self, const struct hook_call *call) {
    const struct bottleneck *bottleneck = self;
    const struct peft_config *config = config_of(bottleneck);
    struct kept kept = kept_of(bottleneck, call);
    const struct peft *peft = bottleneck->adapter->peft;
    const void *din = NULL;
    struct arena arena = peft->scratch ? arena_over(peft->scratch, peft->scratch_bytes) : ARENA_PLAN;
    struct again again = place_again(config, call->rows, call->out, call->dtype, &arena);
    if (call->rows == 0) /* a planned batch with fewer rows than tensor ranks */
        return STATUS_OK;
    int status = add_scaled(call, config->adapter_scaling, call->dy, false, again.gradient);
    THEN(status, backward_within(bottleneck, call, &kept, &again, &din));
    THEN_IF(status, config->adapter_style != PEFT_HOULSBY, add_scaled(call, 1, din, true, call->dresidual));
    THEN_IF(status, config->adapter_style != PEFT_PARALLEL, add_scaled(call, 1, din, true, call->dy));
    return status;
}

static int attach(struct peft_adapter *adapter) {
    const struct bottlenecks *all = adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < all->count && !status; i++) {
        struct hook hook = {.self = &all->of[i],
                            .side = HOOK_BEFORE_ACTIVATION,
                            .saved_bytes = saved_bytes,
                            .forward = forward,
                            .backward_output = backward_output};
        status = hook_table_add(&adapter->peft->hooks, all->of[i].layer, all->of[i].place, &hook);
    }
    return status;
}

const struct peft_method peft_bottleneck = {.title = "bottleneck adapter",
                                            .noun = "a bottleneck adapter",
                                            .format = &bottleneck_format,
                                            .lr = 1e-4, /* AdapterHub, docs/training.md: for most settings */
                                            .file = CKPT_HUB_PART,
                                            .describe = describe,
                                            .attach = attach,
                                            .close = close_bottlenecks,
                                            .make_image = bottleneck_make_image,
                                            .forward = bottleneck_forward,
                                            .sites = bottleneck_sites};
