/* Attach points: a scale and a rank-1 addition as hooks equal the same change folded into the weights. They are equal
 * in loss, in every gradient of the base, and in the gradients of the hook itself. */
#include "model/support.h"
#include "support/passes.h"

#include <math.h>

enum { LAYERS = 2, C = 12, F = 20, V = 31, ROWS = 14, LAYER = 1 };

/* y = y * l + (x . a) b, a hook that needs both halves of the backward. */
struct test_hook {
    int64_t in, out;
    float scale[3 * C + F], a[C + F], b[3 * C + F];
    float dscale[3 * C + F], da[C + F], db[3 * C + F];
    bool has_addition;
};

/* Copies the contents of a place on the device. */
static float *fetch(const struct hook_call *call, const void *from, int64_t count) {
    return test_copy(call->rank->exec.stream, from, (size_t)count * sizeof(float));
}

/* Puts it back, and frees it. */
static int put(const struct hook_call *call, void *to, float *values, int64_t count) {
    int status = test_write(call->rank->exec.stream, to, values, (size_t)count * sizeof(float));
    free(values);
    return status;
}

static int64_t saved_count(const struct hook_call *call) {
    return call->rows * (call->out + 1);
}

static size_t hook_saved_bytes(void *self, const struct hook_call *call) {
    (void)self;
    return (size_t)saved_count(call) * sizeof(float);
}

static int hook_forward(void *self, const struct hook_call *call) {
    struct test_hook *h = self;
    if (call->rank->is_planning)
        return STATUS_OK;
    float *y = fetch(call, call->y, call->rows * call->out), *saved = fetch(call, call->saved, saved_count(call));
    float *x = h->has_addition ? fetch(call, call->x, call->rows * h->in) : NULL;
    for (int64_t i = 0; i < call->rows; i++) {
        float dot = 0;
        for (int64_t j = 0; j < h->in && h->has_addition; j++)
            dot += x[i * h->in + j] * h->a[j];
        saved[call->rows * call->out + i] = dot;
        for (int64_t j = 0; j < call->out; j++) {
            saved[i * call->out + j] = y[i * call->out + j];
            y[i * call->out + j] = y[i * call->out + j] * h->scale[j] + dot * h->b[j];
        }
    }
    free(x);
    int status = put(call, call->y, y, call->rows * call->out), kept = put(call, call->saved, saved, saved_count(call));
    return status ? status : kept;
}

/* The rank-1 part needs dy before it is scaled: it keeps (dy . b) in place of the saved dot products. */
static int hook_backward_output(void *self, const struct hook_call *call) {
    struct test_hook *h = self;
    if (call->rank->is_planning)
        return STATUS_OK;
    float *dy = fetch(call, call->dy, call->rows * call->out), *saved = fetch(call, call->saved, saved_count(call));
    for (int64_t i = 0; i < call->rows; i++) {
        float *dot = &saved[call->rows * call->out + i], back = 0;
        for (int64_t j = 0; j < call->out; j++) {
            float d = dy[i * call->out + j];
            h->dscale[j] += d * saved[i * call->out + j];
            h->db[j] += d * *dot;
            back += d * h->b[j];
            dy[i * call->out + j] = d * h->scale[j];
        }
        *dot = back;
    }
    int status = put(call, call->dy, dy, call->rows * call->out),
        kept = put(call, call->saved, saved, saved_count(call));
    return status ? status : kept;
}

static int hook_backward_input(void *self, const struct hook_call *call) {
    struct test_hook *h = self;
    if (call->rank->is_planning || !h->has_addition)
        return STATUS_OK;
    float *x = fetch(call, call->x, call->rows * h->in), *dx = fetch(call, call->dx, call->rows * h->in);
    float *saved = fetch(call, call->saved, saved_count(call)), *back = saved + call->rows * call->out;
    for (int64_t i = 0; i < call->rows; i++)
        for (int64_t j = 0; j < h->in; j++) {
            h->da[j] += back[i] * x[i * h->in + j];
            dx[i * h->in + j] += back[i] * h->a[j];
        }
    free(x);
    free(saved);
    return put(call, call->dx, dx, call->rows * h->in);
}

static float draw(uint32_t i) {
    return (float)rng_unit(philox(7, i, 0, 0, 0).word[0]) - 0.5f;
}

static struct model_config small_config(void) {
    struct model_config config = tiny_model(&(const struct tiny_model){
        .layers = LAYERS, .hidden = C, .heads = 3, .ffn = F, .positions = ROWS, .vocab = V, .init_std = 0.4});
    config.untie_embeddings_and_output_weights = true;
    return config;
}

static void run(struct test_model *t, double *loss) {
    int32_t tokens[ROWS], positions[ROWS], labels[ROWS];
    uint32_t zero[ROWS] = {0}, place[ROWS];
    float weight[ROWS];
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (i * 7) % V;
        labels[i] = (i * 5 + 3) % V;
        positions[i] = i;
        place[i] = (uint32_t)i;
        weight[i] = 1.0f / ROWS;
    }
    struct model_batch batch = {.rows = ROWS,
                                .tokens = tokens,
                                .positions = positions,
                                .sample = zero,
                                .token = place,
                                .segments = 1,
                                .segment_start = (int64_t[]){0, ROWS},
                                .labels = labels,
                                .loss_weight = weight};
    test_ok(test_train_step(t->model, &batch, &(struct model_pass){.is_first_micro_batch = true}));
    test_ok(model_loss(t->model, loss));
}

struct place_case {
    const char *name;
    enum attach_place place;
    enum hook_side side;
    const char *weight, *bias; /* of the linear that the change folds into */
    bool scales_columns;       /* after an activation: the scale folds into the next linear's inputs */
    bool has_addition;
    int64_t in, out;
};

static const struct place_case places[] = {
    {"qkv", ATTACH_QKV, HOOK_BEFORE_ACTIVATION, "attention.qkv.weight", "attention.qkv.bias", false, true, C, 3 * C},
    {"projection", ATTACH_PROJECTION, HOOK_BEFORE_ACTIVATION, "attention.projection.weight",
     "attention.projection.bias", false, true, C, C},
    {"fc1", ATTACH_FC1, HOOK_BEFORE_ACTIVATION, "mlp.fc1.weight", "mlp.fc1.bias", false, true, C, F},
    {"fc2", ATTACH_FC2, HOOK_BEFORE_ACTIVATION, "mlp.fc2.weight", "mlp.fc2.bias", false, true, F, C},
    {"activated fc1", ATTACH_FC1, HOOK_AFTER_ACTIVATION, "mlp.fc2.weight", NULL, true, false, F, F},
    {"after attention", ATTACH_AFTER_ATTENTION, HOOK_BEFORE_ACTIVATION, "attention.projection.weight",
     "attention.projection.bias", false, false, C, C},
    {"after mlp", ATTACH_AFTER_MLP, HOOK_BEFORE_ACTIVATION, "mlp.fc2.weight", "mlp.fc2.bias", false, false, F, C},
};

static const char *layer_name(const char *text) {
    static char name[96];
    snprintf(name, sizeof name, "layers.%d.%s", LAYER, text);
    return name;
}

static void check_close(const char *what, const float *a, const float *b, int64_t n) {
    double scale = 1e-6, error = 0;
    for (int64_t i = 0; i < n; i++) {
        scale = fmax(scale, fabs(b[i]));
        error = fmax(error, fabs((double)a[i] - b[i]));
    }
    if (!(error <= 2e-5 * scale))
        fail_msg("%s: off by %g of the largest", what, error / scale);
}

/* Folds the hook into the plain model's weights: W' = diag(l) W + b a', or W' = W diag(l) after an activation. */
static void fold(struct test_model *plain, const struct place_case *p, const struct test_hook *h, float *kept) {
    struct test_values values = test_model_values(plain);
    float *w = test_weight(&values, layer_name(p->weight));
    int64_t rows = p->scales_columns ? C : p->out, cols = p->scales_columns ? p->out : p->in;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            kept[r * cols + c] = w[r * cols + c];
            w[r * cols + c] =
                w[r * cols + c] * h->scale[p->scales_columns ? c : r] + (h->has_addition ? h->b[r] * h->a[c] : 0);
        }
    for (int64_t r = 0; r < rows && p->bias; r++)
        test_weight(&values, layer_name(p->bias))[r] *= h->scale[r];
    test_ok(test_values_put(&values, plain->rank.exec.stream));
}

/* Biases begin as zeros. */
static void draw_bias(struct test_model *t, const struct place_case *p) {
    struct test_values values = test_model_values(t);
    for (int64_t r = 0; r < p->out && p->bias; r++)
        test_weight(&values, layer_name(p->bias))[r] = draw(3000 + (uint32_t)r);
    test_ok(test_values_put(&values, t->rank.exec.stream));
}

static void check_hook_gradients(const struct test_values *plain, const struct test_values *hooked,
                                 const struct place_case *p, const struct test_hook *h, const float *kept) {
    const float *g = test_gradient(plain, layer_name(p->weight));
    int64_t rows = p->scales_columns ? C : p->out, cols = p->scales_columns ? p->out : p->in;
    float dscale[3 * C + F] = {0}, da[C + F] = {0}, db[3 * C + F] = {0};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            dscale[p->scales_columns ? c : r] += g[r * cols + c] * kept[r * cols + c];
            if (h->has_addition) {
                da[c] += g[r * cols + c] * h->b[r];
                db[r] += g[r * cols + c] * h->a[c];
            }
        }
    for (int64_t r = 0; r < rows && p->bias; r++)
        dscale[r] += test_gradient(plain, layer_name(p->bias))[r] * test_weight(hooked, layer_name(p->bias))[r];
    check_close("scale gradient", h->dscale, dscale, p->out);
    if (h->has_addition) {
        check_close("a gradient", h->da, da, p->in);
        check_close("b gradient", h->db, db, p->out);
    }
}

static void a_hook_equals_folded_weights(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place_case *p = &places[i];
        struct test_hook h = {.in = p->in, .out = p->out, .has_addition = p->has_addition};
        for (uint32_t j = 0; j < 3 * C + F; j++) {
            h.scale[j] = 1 + draw(j);
            h.b[j] = draw(1000 + j);
        }
        for (uint32_t j = 0; j < C + F; j++)
            h.a[j] = draw(2000 + j);
        struct hook_table table;
        test_ok(hook_table_init(&table, LAYERS));
        struct hook hook = {.self = &h,
                            .side = p->side,
                            .saved_bytes = hook_saved_bytes,
                            .forward = hook_forward,
                            .backward_output = hook_backward_output,
                            .backward_input = hook_backward_input};
        test_ok(hook_table_add(&table, LAYER, p->place, &hook));
        struct model_options options = {
            .base.config = small_config(), .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = ROWS};
        struct test_model plain, hooked;
        test_model_open(&plain, options);
        options.hooks = &table;
        test_model_open(&hooked, options);
        test_ok(base_initialise(plain.base, 3));
        test_ok(base_initialise(hooked.base, 3));
        draw_bias(&plain, p);
        draw_bias(&hooked, p);
        float kept[3 * C * F];
        double loss, expected;
        fold(&plain, p, &h, kept);
        run(&plain, &expected);
        run(&hooked, &loss);
        if (!(fabs(loss - expected) <= 2e-6 * expected))
            fail_msg("%s: loss %.9g, folded %.9g", p->name, loss, expected);
        struct test_values folded = test_model_values(&plain), ours = test_model_values(&hooked);
        check_hook_gradients(&folded, &ours, p, &h, kept);
        /* Everything below the hook sees it only through dx. */
        check_close("token embedding", test_gradient(&ours, "embedding.token.weight"),
                    test_gradient(&folded, "embedding.token.weight"), V * C);
        check_close("lower block", test_gradient(&ours, "layers.0.attention.qkv.weight"),
                    test_gradient(&folded, "layers.0.attention.qkv.weight"), 3 * C * C);
        test_values_free(&folded);
        test_values_free(&ours);
        test_model_close(&plain);
        test_model_close(&hooked);
        hook_table_free(&table);
    }
}

/* Prefix keys and values of the KV place, with their gradients by central differences. */
enum { PREFIX_TOKENS = 3, PREFIX = PREFIX_TOKENS * C };

static int give_prefix(void *self, int image, int layer, struct hook_prefix *prefix) {
    float *k = *(float **)self; /* then v, dk, dv; NULL while the model is planned */
    (void)image;
    (void)layer;
    *prefix = (struct hook_prefix){.tokens = PREFIX_TOKENS};
    if (k)
        *prefix = (struct hook_prefix){PREFIX_TOKENS, k, k + PREFIX, k + 2 * PREFIX, k + 3 * PREFIX};
    return STATUS_OK;
}

static double loss_with(struct test_model *t, float *device, float value) {
    double loss;
    test_ok(test_write(t->rank.exec.stream, device, &value, sizeof value));
    run(t, &loss);
    return loss;
}

static void prefix_gradients_equal_differences(void **state) {
    (void)state;
    float values[2 * PREFIX], gradients[2 * PREFIX] = {0};
    void *device = NULL;
    for (uint32_t i = 0; i < 2 * PREFIX; i++)
        values[i] = 2 * draw(i < PREFIX ? i : 500 + i - PREFIX);
    struct hook_table table;
    test_ok(hook_table_init(&table, LAYERS));
    test_ok(hook_table_add_prefix(&table, LAYER, &(struct prefix_hook){.self = &device, .prefix = give_prefix}));
    struct test_model t;
    test_model_open(&t, (struct model_options){.base.config = small_config(),
                                               .base.dtype = DTYPE_F32,
                                               .base.trains = true,
                                               .max_rows = ROWS,
                                               .hooks = &table});
    test_ok(base_initialise(t.base, 3));
    test_ok(device_alloc(t.device, sizeof values + sizeof gradients, &device));
    float *at = device;
    test_ok(test_write(t.rank.exec.stream, at, values, sizeof values));
    test_ok(test_write(t.rank.exec.stream, at + 2 * PREFIX, gradients, sizeof gradients));
    double loss;
    run(&t, &loss);
    test_ok(test_read(t.rank.exec.stream, gradients, at + 2 * PREFIX, sizeof gradients));
    for (int i = 0; i < 2 * PREFIX; i += 5) {
        float h = 0.02f;
        double plus = loss_with(&t, at + i, values[i] + h), minus = loss_with(&t, at + i, values[i] - h);
        test_ok(test_write(t.rank.exec.stream, at + i, &values[i], sizeof *values));
        double numeric = (plus - minus) / (2 * (double)h), ours = gradients[i];
        /* fp32 losses around 3 carry 2e-7: the difference quotient is good to about 2e-5. */
        if (!(fabs(numeric - ours) <= 5e-5 + 2e-3 * fabs(ours)))
            fail_msg("prefix value %d: %g, numeric %g", i, ours, numeric);
    }
    device_free(t.device, device);
    test_model_close(&t);
    hook_table_free(&table);
}

static void methods_beyond_the_limit_are_refused(void **state) {
    (void)state;
    struct hook_table table;
    test_ok(hook_table_init(&table, 1));
    for (int i = 0; i < HOOKS_PER_PLACE; i++)
        test_ok(hook_table_add(&table, 0, ATTACH_QKV, &(struct hook){0}));
    test_fails(hook_table_add(&table, 0, ATTACH_QKV, &(struct hook){0}), STATUS_INVALID, "layer 0");
    for (int i = 0; i < HOOKS_PER_PLACE; i++) {
        test_ok(hook_table_add_prefix(&table, 0, &(struct prefix_hook){0}));
        test_ok(hook_table_add_tokens(&table, &(struct token_hook){0}));
    }
    test_fails(hook_table_add_prefix(&table, 0, &(struct prefix_hook){0}), STATUS_INVALID, "layer 0");
    test_fails(hook_table_add_tokens(&table, &(struct token_hook){0}), STATUS_INVALID, "layer 0");
    hook_table_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hook_equals_folded_weights),
        cmocka_unit_test(prefix_gradients_equal_differences),
        cmocka_unit_test(methods_beyond_the_limit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
