/* Promises of the row operations beyond one call against its reference: exact rounding, rows that do not affect each
 * other, untouched tables, many steps. */
#include "levels.h"

#include <math.h>

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- casts ---- */

enum { PATTERNS = 1 << 16 };

/* Random bits, and numbers at or next to the middle between two narrow ones. They are bf16 numbers with any exponent,
 * and fp16 numbers in and around its range, up to where rounding gives infinity. */
static void fill_floats(float *x) {
    for (uint32_t i = 0; i < PATTERNS; i++) {
        struct philox random = philox(1, i, 0, 0, 0);
        uint32_t beside = random.word[1] % 3 - 1, exponent = (95 + random.word[2] % 50) << 23;
        uint32_t sign = random.word[3] & 0x80000000u, bits = random.word[0];
        if (i % 4 == 1)
            bits = (bits & 0xffff0000u) + 0x8000 + beside;
        else if (i % 4 == 2)
            bits = sign | (exponent + (bits & 0x7fe000u) + 0x1000 + beside);
        else if (i % 4 == 3)
            bits = sign | (exponent + 0x7ff000 + beside);
        x[i] = from_bits(bits);
    }
}

static void check_casts(const struct scene *scene) {
    const struct ops *ops = scene->ops;
    float *wide = malloc(PATTERNS * sizeof *wide);
    uint16_t *narrow = malloc(PATTERNS * sizeof *narrow), *other = malloc(PATTERNS * sizeof *other);
    fill_floats(wide);
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_F32, DTYPE_BF16, wide, narrow}));
    for (int i = 0; i < PATTERNS; i++)
        assert_int_equal(narrow[i], bf16_from_float(wide[i]));
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_F32, DTYPE_F16, wide, narrow}));
    for (int i = 0; i < PATTERNS; i++)
        assert_int_equal(narrow[i], f16_from_float(wide[i]));
    for (int i = 0; i < PATTERNS; i++)
        narrow[i] = (uint16_t)i;
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_F16, DTYPE_F32, narrow, wide}));
    for (int i = 0; i < PATTERNS; i++)
        assert_int_equal(to_bits(wide[i]), to_bits(f16_to_float((uint16_t)i)));
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_BF16, DTYPE_F32, narrow, wide}));
    for (int i = 0; i < PATTERNS; i++)
        assert_int_equal(to_bits(wide[i]), (uint32_t)i << 16);
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_BF16, DTYPE_F16, narrow, other}));
    for (int i = 0; i < PATTERNS; i++)
        assert_int_equal(other[i], f16_from_float(bf16_to_float((uint16_t)i)));
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_F16, DTYPE_BF16, narrow, other}));
    for (int i = 0; i < PATTERNS; i++)
        assert_int_equal(other[i], bf16_from_float(f16_to_float((uint16_t)i)));
    test_ok(ops->cast(&scene->exec, &(const struct cast_call){PATTERNS, DTYPE_BF16, DTYPE_BF16, narrow, other}));
    assert_memory_equal(other, narrow, PATTERNS * sizeof *narrow);
    test_fails(ops->cast(&scene->exec, &(const struct cast_call){1, DTYPE_I64, DTYPE_F32, wide, wide}),
               STATUS_UNSUPPORTED, "int64");
    free(wide);
    free(narrow);
    free(other);
}

static void casts_round_to_the_bit(void **state) {
    (void)state;
    every_level(check_casts);
}

static void check_unsupported(const struct scene *scene) {
    struct gelu gelu = {.type = DTYPE_F16};
    struct norm norm = {.type = DTYPE_F64};
    struct swiglu swiglu = {.type = DTYPE_F16};
    struct rotary rotary = {.type = DTYPE_F16}, odd = {.head_size = 8, .rotary = 5};
    struct adamw adamw = {.weights = &adamw, .weights_type = DTYPE_F16, .step = 1};
    test_fails(scene->ops->gelu_forward(&scene->exec, &gelu), STATUS_UNSUPPORTED, "fp16");
    test_fails(scene->ops->swiglu_forward(&scene->exec, &swiglu), STATUS_UNSUPPORTED, "fp16");
    test_fails(scene->ops->swiglu_backward(&scene->exec, &swiglu), STATUS_UNSUPPORTED, "fp16");
    test_fails(scene->ops->rotary(&scene->exec, &rotary), STATUS_UNSUPPORTED, "fp16");
    test_fails(scene->ops->rotary(&scene->exec, &odd), STATUS_INVALID, "5 of a head's 8 features");
    test_fails(scene->ops->norm_forward(&scene->exec, &norm), STATUS_UNSUPPORTED, "fp64");
    test_fails(scene->ops->adamw(&scene->exec, &adamw), STATUS_UNSUPPORTED, "fp16");
}

static void other_types_are_refused_by_name(void **state) {
    (void)state;
    every_level(check_unsupported);
}

/* ---- rows alone ---- */

enum { N = 37, C = 203 };

static void fill(float *x, int count, uint32_t stream) {
    for (int i = 0; i < count; i++)
        x[i] = (float)(4 * rng_unit(philox(2, (uint32_t)i, stream, 0, 0).word[0]) - 2);
}

static void check_norm_rows_alone(const struct scene *scene, enum norm_kind kind) {
    static float x[N * C], gain[C], bias[C], dy[N * C], all[N * C], one[C], mean[N], rstd[N];
    const struct ops *ops = scene->ops;
    fill(x, N * C, 1);
    fill(gain, C, 2);
    fill(bias, C, 3);
    fill(dy, N * C, 4);
    struct norm a = {.kind = kind,
                     .rows = N,
                     .cols = C,
                     .type = DTYPE_F32,
                     .x = x,
                     .gain = gain,
                     .bias = bias,
                     .epsilon = 1e-5f,
                     .y = all,
                     .mean = mean,
                     .rstd = rstd,
                     .dy = dy,
                     .dx = all};
    struct norm b = a;
    test_ok(ops->norm_forward(&scene->exec, &a));
    b.rows = 1;
    b.y = b.dx = one;
    for (int i = 0; i < N; i++) {
        b.x = x + i * C;
        b.mean = b.rstd = NULL;
        test_ok(ops->norm_forward(&scene->exec, &b));
        assert_memory_equal(one, all + i * C, sizeof one);
    }
    test_ok(ops->norm_backward(&scene->exec, &a));
    for (int i = 0; i < N; i++) {
        b.x = x + i * C;
        b.dy = dy + i * C;
        b.mean = mean + i;
        b.rstd = rstd + i;
        test_ok(ops->norm_backward(&scene->exec, &b));
        assert_memory_equal(one, all + i * C, sizeof one);
    }
}

/* A row's bits are the same in a batch and alone. */
static void check_rows_alone(const struct scene *scene) {
    static float x[N * C], all[N * C], one[C];
    const struct ops *ops = scene->ops;
    check_norm_rows_alone(scene, NORM_LAYER);
    check_norm_rows_alone(scene, NORM_RMS);
    fill(x, N * C, 1);
    int32_t label[N];
    float loss[N], loss_alone, weight[N];
    for (int i = 0; i < N; i++) {
        label[i] = i * 5;
        weight[i] = 1;
    }
    memcpy(all, x, sizeof all);
    struct cross_entropy c = {
        .rows = N, .vocab = C - 2, .stride = C, .logits = all, .labels = label, .loss = loss, .dloss = weight};
    test_ok(ops->cross_entropy_fused(&scene->exec, &c));
    for (int i = 0; i < N; i++) {
        memcpy(one, x + i * C, sizeof one);
        struct cross_entropy d = {.rows = 1,
                                  .vocab = C - 2,
                                  .stride = C,
                                  .logits = one,
                                  .labels = label + i,
                                  .loss = &loss_alone,
                                  .dloss = weight};
        test_ok(ops->cross_entropy_fused(&scene->exec, &d));
        assert_memory_equal(one, all + i * C, sizeof one);
        assert_memory_equal(&loss_alone, &loss[i], sizeof loss_alone);
    }
}

static void rows_do_not_see_each_other(void **state) {
    (void)state;
    every_level(check_rows_alone);
}

/* The bf16 gradient of fp32 logits is the fp32 gradient, rounded once; also where it overwrites chunks of a long row.
 */
static void check_rounded_gradient(const struct scene *scene) {
    enum { V = 5003, STRIDE = 5056 };
    static float logits[3 * STRIDE], exact[3 * STRIDE];
    static const int32_t labels[] = {0, 2500, V - 1};
    static const float weight[] = {0.25f, 0, 3};
    float loss[3], lse[3];
    for (int is_fused = 0; is_fused < 2; is_fused++) {
        fill(exact, 3 * STRIDE, 21);
        memcpy(logits, exact, sizeof logits);
        struct cross_entropy a = {
            .rows = 3, .vocab = V, .stride = STRIDE, .labels = labels, .loss = loss, .lse = lse, .dloss = weight};
        for (int i = 0; i < 2; i++) {
            a.logits = i ? logits : exact;
            a.gradient_is_bf16 = i;
            if (!is_fused)
                test_ok(scene->ops->cross_entropy_forward(&scene->exec, &a));
            test_ok(
                (is_fused ? scene->ops->cross_entropy_fused : scene->ops->cross_entropy_backward)(&scene->exec, &a));
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < STRIDE; j++)
                assert_int_equal(((uint16_t *)(void *)logits)[2 * i * STRIDE + j],
                                 bf16_from_float(exact[i * STRIDE + j]));
    }
}

static void a_bf16_gradient_of_the_loss_is_rounded_once(void **state) {
    (void)state;
    every_level(check_rounded_gradient);
}

/* A mean of a hundred thousand deviations: what is left is the rounding of the mean itself. */
static void check_large_mean(const struct scene *scene) {
    enum { COLS = 3001 };
    static float x[COLS], y[COLS], gain[COLS], bias[COLS];
    float mean, rstd;
    double exact = 0, variance = 0;
    fill(x, COLS, 11);
    for (int j = 0; j < COLS; j++) {
        x[j] += 100000;
        gain[j] = 1;
        bias[j] = 0;
        exact += (double)x[j] / COLS;
    }
    for (int j = 0; j < COLS; j++)
        variance += ((double)x[j] - exact) * ((double)x[j] - exact) / COLS;
    struct norm a = {.kind = NORM_LAYER,
                     .rows = 1,
                     .cols = COLS,
                     .type = DTYPE_F32,
                     .x = x,
                     .gain = gain,
                     .bias = bias,
                     .epsilon = 1e-5f,
                     .y = y,
                     .mean = &mean,
                     .rstd = &rstd};
    test_ok(scene->ops->norm_forward(&scene->exec, &a));
    assert_true(fabs((double)mean - exact) <= 0.6 * 0x1p-24 * 131072);
    assert_true(fabs((double)rstd * sqrt(variance + 1e-5) - 1) < 1e-5);
    for (int j = 0; j < COLS; j++)
        assert_true(fabs((double)y[j] - ((double)x[j] - exact) / sqrt(variance + 1e-5)) < 0.008);
}

static void a_large_mean_does_no_harm(void **state) {
    (void)state;
    every_level(check_large_mean);
}

/* ---- losses that are not numbers ---- */

static void check_nan_loss(const struct scene *scene) {
    float logits[64], loss, lse, weight = 1;
    int32_t label = 3;
    struct cross_entropy_part part;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int bad = 0; bad < 3; bad++) {
        for (int i = 0; i < 64; i++)
            logits[i] = (float)i / 10;
        logits[40] = values[bad];
        struct cross_entropy a = {.rows = 1,
                                  .vocab = 64,
                                  .stride = 64,
                                  .logits = logits,
                                  .labels = &label,
                                  .loss = &loss,
                                  .lse = &lse,
                                  .dloss = &weight,
                                  .part = &part};
        test_ok(scene->ops->cross_entropy_forward(&scene->exec, &a));
        assert_false(isfinite(loss));
        test_ok(scene->ops->cross_entropy_part(&scene->exec, &a));
        assert_false(isfinite(part.sum));
        test_ok(scene->ops->cross_entropy_fused(&scene->exec, &a));
        assert_true(values[bad] == -INFINITY || !isfinite(loss));
    }
}

static void a_bad_logit_is_seen_in_the_loss(void **state) {
    (void)state;
    every_level(check_nan_loss);
}

/* ---- dropout ---- */

/* Kept shares and the mean stay within five deviations, and the backward drops what the forward dropped. */
static void check_dropout(const struct scene *scene) {
    enum { ROWS = 64, COLS = 768 };
    static const float ps[] = {0.1f, 0.5f, 0.9f};
    float *ones = malloc(sizeof *ones * ROWS * COLS), *y = malloc(sizeof *y * ROWS * COLS),
          *dx = malloc(sizeof *dx * ROWS * COLS);
    uint32_t sample[ROWS], token[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        sample[i] = 0xfffffff0u + i / 8;
        token[i] = i % 8;
    }
    for (int i = 0; i < ROWS * COLS; i++)
        ones[i] = 1;
    for (int k = 0; k < 3; k++) {
        double p = (double)ps[k], n = ROWS * COLS, kept = 0, sum = 0;
        struct residual_dropout a = {.rows = ROWS,
                                     .cols = COLS,
                                     .type = DTYPE_F32,
                                     .x = ones,
                                     .y = y,
                                     .dy = ones,
                                     .dx = dx,
                                     .dropout = {ps[k], 42, 7, {sample, token}}};
        test_ok(scene->ops->residual_dropout_forward(&scene->exec, &a));
        test_ok(scene->ops->residual_dropout_backward(&scene->exec, &a));
        assert_memory_equal(y, dx, sizeof *y * ROWS * COLS);
        for (int i = 0; i < ROWS * COLS; i++) {
            kept += y[i] != 0;
            sum += (double)y[i];
        }
        assert_true(fabs(kept / n - (1 - p)) < 5 * sqrt(p * (1 - p) / n));
        assert_true(fabs(sum / n - 1) < 5 * sqrt(p / (1 - p) / n));
    }
    free(ones);
    free(y);
    free(dx);
}

static void dropout_keeps_its_share_and_the_mean(void **state) {
    (void)state;
    every_level(check_dropout);
}

/* A row split over shards is the whole row's pieces. */
static void check_shards(const struct scene *scene) {
    static float x[3 * C], whole[3 * C], piece[3 * C];
    uint32_t sample[3] = {5, 5, 9}, token[3] = {0, 1, 0};
    fill(x, 3 * C, 9);
    struct residual_dropout a = {
        .rows = 3, .cols = C, .type = DTYPE_F32, .x = x, .y = whole, .dropout = {0.4f, 42, 7, {sample, token}}};
    test_ok(scene->ops->residual_dropout_forward(&scene->exec, &a));
    for (int first = 0; first < C; first += 29) {
        int cols = C - first < 29 ? C - first : 29;
        for (int i = 0; i < 3; i++)
            memcpy(piece + i * cols, x + i * C + first, (size_t)cols * sizeof *x);
        struct residual_dropout b = a;
        b.cols = cols;
        b.first_col = first;
        b.x = b.y = piece;
        test_ok(scene->ops->residual_dropout_forward(&scene->exec, &b));
        for (int i = 0; i < 3; i++)
            assert_memory_equal(piece + i * cols, whole + i * C + first, (size_t)cols * sizeof *x);
    }
}

static void shards_draw_the_whole_rows_mask(void **state) {
    (void)state;
    every_level(check_shards);
}

/* ---- AdamW ---- */

/* A hundred steps stay near the same steps in fp64, and the working copy is the rounded master to the bit. */
static void check_many_steps(const struct scene *scene) {
    enum { COUNT = 515 };
    float master[COUNT], m[COUNT] = {0}, v[COUNT] = {0}, gradient[COUNT], scale = 0.5f;
    double p[COUNT], dm[COUNT] = {0}, dv[COUNT] = {0};
    uint16_t weights[COUNT];
    fill(master, COUNT, 1);
    for (int i = 0; i < COUNT; i++)
        p[i] = (double)master[i];
    const struct flat_range range = {.count = COUNT, .weight_decay = 0.1f};
    struct adamw a = {.ranges = &range,
                      .range_count = 1,
                      .master = master,
                      .m = m,
                      .v = v,
                      .gradient = gradient,
                      .gradient_scale = &scale,
                      .weights = weights,
                      .weights_type = DTYPE_BF16,
                      .lr = 1e-2,
                      .beta1 = 0.9f,
                      .beta2 = 0.999f,
                      .epsilon = 1e-8f,
                      .zero_gradient = true};
    double beta1 = a.beta1, beta2 = a.beta2, lr = (float)a.lr;
    for (a.step = 1; a.step <= 100; a.step++) {
        fill(gradient, COUNT, (uint32_t)a.step + 50);
        for (int i = 0; i < COUNT; i++) {
            double g = 0.5 * (double)gradient[i];
            p[i] *= 1 - lr * (double)range.weight_decay;
            dm[i] = beta1 * dm[i] + (1 - beta1) * g;
            dv[i] = beta2 * dv[i] + (1 - beta2) * g * g;
            p[i] -= lr / (1 - pow(beta1, (double)a.step)) * dm[i] /
                    (sqrt(dv[i] / (1 - pow(beta2, (double)a.step))) + (double)a.epsilon);
        }
        test_ok(scene->ops->adamw(&scene->exec, &a));
        for (int i = 0; i < COUNT; i++) {
            assert_true(gradient[i] == 0);
            assert_int_equal(weights[i], bf16_from_float(master[i]));
        }
    }
    assert_true(test_max_error(master, p, COUNT) < 2e-6);
    assert_true(test_max_error(m, dm, COUNT) < 2e-6);
    assert_true(test_max_error(v, dv, COUNT) < 2e-6);
}

/* When the clip factor is not a number, a step does not take place. */
static void check_no_step(const struct scene *scene) {
    float master = 1, m = 2, v = 3, gradient = 4, scale = NAN;
    uint16_t weight = 5;
    const struct flat_range range = {.count = 1};
    struct adamw a = {.ranges = &range,
                      .range_count = 1,
                      .master = &master,
                      .m = &m,
                      .v = &v,
                      .gradient = &gradient,
                      .gradient_scale = &scale,
                      .weights = &weight,
                      .weights_type = DTYPE_BF16,
                      .lr = 1,
                      .step = 1,
                      .zero_gradient = true};
    test_ok(scene->ops->adamw(&scene->exec, &a));
    assert_true(master == 1 && m == 2 && v == 3 && gradient == 4 && weight == 5);
}

static void a_step_without_a_factor_changes_nothing(void **state) {
    (void)state;
    every_level(check_no_step);
}

static void many_steps_follow_fp64(void **state) {
    (void)state;
    every_level(check_many_steps);
}

/* A norm that is not a number or not finite must not turn into a healthy factor. */
static void check_bad_norm(const struct scene *scene) {
    double sum = NAN;
    float norm, factor;
    struct clip_factor a = {.sum_of_squares = &sum, .max_norm = 1, .norm = &norm, .factor = &factor};
    test_ok(scene->ops->clip_factor(&scene->exec, &a));
    assert_true(isnan(norm) && isnan(factor));
    sum = INFINITY;
    test_ok(scene->ops->clip_factor(&scene->exec, &a));
    assert_true(isinf(norm) && isnan(factor));
}

static void a_bad_norm_is_seen_in_the_factor(void **state) {
    (void)state;
    every_level(check_bad_norm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_round_to_the_bit),
        cmocka_unit_test(other_types_are_refused_by_name),
        cmocka_unit_test(rows_do_not_see_each_other),
        cmocka_unit_test(a_bf16_gradient_of_the_loss_is_rounded_once),
        cmocka_unit_test(a_large_mean_does_no_harm),
        cmocka_unit_test(a_bad_logit_is_seen_in_the_loss),
        cmocka_unit_test(dropout_keeps_its_share_and_the_mean),
        cmocka_unit_test(shards_draw_the_whole_rows_mask),
        cmocka_unit_test(many_steps_follow_fp64),
        cmocka_unit_test(a_step_without_a_factor_changes_nothing),
        cmocka_unit_test(a_bad_norm_is_seen_in_the_factor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
