/* The activations where they are tiny: relative to the value itself, not to the largest. */
#include "levels.h"

#include <math.h>

/* ---- GELU's tail ---- */

/* Relative to the value itself, not to the largest: x Phi(x) is tiny there, and should still be right. */
static void check_tails(const struct scene *scene) {
    enum { POINTS = 4001 };
    float x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++)
        x[i] = -12.5f + 0.005f * (float)i;
    struct gelu a = {.count = POINTS, .type = DTYPE_F32, .x = x, .y = y};
    test_ok(scene->ops->gelu_forward(&scene->exec, &a));
    for (int i = 0; i < POINTS; i++) {
        double want = 0.5 * (double)x[i] * erfc(-(double)x[i] * 0.7071067811865476);
        assert_true(fabs((double)y[i] - want) <= 8e-7 * fabs(want));
    }
    a.is_tanh = true;
    test_ok(scene->ops->gelu_forward(&scene->exec, &a));
    for (int i = 0; i < POINTS; i++) {
        double u = 0.7978845608028654 * ((double)x[i] + 0.044715 * pow((double)x[i], 3));
        double want = (double)x[i] / (1 + exp(-2 * u));
        /* the exponent carries its own rounding: |2u| 2^-24, a few times */
        if (fabs(want) > 1e-36)
            assert_true(fabs((double)y[i] - want) <= (4e-7 + 3.5e-7 * fabs(2 * u)) * fabs(want));
    }
    const float special[] = {0, INFINITY, 300, -300, 88, -88, 1e-40f};
    for (int i = 0; i < 7; i++)
        x[i] = special[i];
    for (int form = 0; form < 2; form++) {
        a.is_tanh = form;
        a.count = 7;
        test_ok(scene->ops->gelu_forward(&scene->exec, &a));
        assert_true(y[0] == 0 && !isfinite(y[1]) && y[2] == 300 && y[3] == 0 && y[4] == 88 && y[5] == 0);
        assert_true(fabsf(y[6]) <= 1e-40f);
        x[0] = NAN;
        test_ok(scene->ops->gelu_forward(&scene->exec, &a));
        assert_true(isnan(y[0]));
        x[0] = 0;
    }
}

static void gelu_is_right_in_its_tails(void **state) {
    (void)state;
    every_level(check_tails);
}

/* ---- SwiGLU's tail ---- */

/* Relative to the value itself; the exponent carries its own rounding. */
static void check_swiglu_tails(const struct scene *scene) {
    enum { POINTS = 1601 };
    static float x[2 * POINTS], y[POINTS], dy[POINTS], dx[2 * POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = -80 + 0.1f * (float)i;
        x[POINTS + i] = 3;
        dy[i] = 0.5f;
    }
    struct swiglu a = {.rows = 1, .cols = POINTS, .type = DTYPE_F32, .x = x, .y = y, .dy = dy, .dx = dx};
    test_ok(scene->ops->swiglu_forward(&scene->exec, &a));
    test_ok(scene->ops->swiglu_backward(&scene->exec, &a));
    for (int i = 0; i < POINTS; i++) {
        double g = (double)x[i], s = 1 / (1 + exp(-g)), bound = 4e-7 + 1.2e-7 * fabs(g);
        double dgate = 1.5 * s * (1 + g / (1 + exp(g)));
        assert_true(fabs((double)y[i] - 3 * g * s) <= bound * fabs(3 * g * s));
        assert_true(fabs((double)dx[POINTS + i] - 0.5 * g * s) <= bound * fabs(0.5 * g * s));
        assert_true(fabs((double)dx[i] - dgate) <= bound * (fabs(dgate) + 1.5 * s));
    }
    const float special[] = {0, 300, -300, INFINITY, NAN};
    memcpy(x, special, sizeof special);
    a.cols = sizeof special / sizeof *special;
    for (int64_t i = 0; i < a.cols; i++)
        x[a.cols + i] = 1;
    test_ok(scene->ops->swiglu_forward(&scene->exec, &a));
    assert_true(y[0] == 0 && y[1] == 300 && fabsf(y[2]) < 1e-35f && isinf(y[3]) && isnan(y[4]));
}

static void swiglu_is_right_in_its_tails(void **state) {
    (void)state;
    every_level(check_swiglu_tails);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_is_right_in_its_tails),
        cmocka_unit_test(swiglu_is_right_in_its_tails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
