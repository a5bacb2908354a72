#include "op_cases.h"
#include "support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void norms_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&norm_family, test_device(), test_is_long()));
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    test_ok(op_check_gradients(&norm_family, test_device(), test_is_long()));
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    test_ok(op_check_threads(&norm_family, test_device(), test_is_long()));
}

/* ---- rows among few and among many ---- */

enum { ROWS = 300, FEW = 150 }; /* many: a sum of other order often has the same bits */

static void check_few_rows(struct device *device, struct stream *stream, enum norm_kind kind, enum dtype type,
                           int cols) {
    size_t row = (size_t)cols * dtype_bytes(type);
    char *x = test_upload_random(device, stream, type, ROWS * cols, 1, -1, 3), *many = malloc(ROWS * row), *few;
    struct norm a = {.kind = kind,
                     .rows = ROWS,
                     .cols = cols,
                     .type = type,
                     .x = x,
                     .gain = test_upload_random(device, stream, type, cols, 2, -1, 3),
                     .bias = test_upload_random(device, stream, type, cols, 3, -1, 3),
                     .epsilon = 1e-5f};
    assert_non_null(many);
    test_ok(device_alloc(device, ROWS * row, &a.y));
    const struct exec exec = {.stream = stream};
    test_ok(ops_for(device)->norm_forward(&exec, &a));
    test_ok(test_read(stream, many, a.y, ROWS * row));
    a.rows = FEW;
    a.x = x + (ROWS - FEW) * row;
    test_ok(ops_for(device)->norm_forward(&exec, &a));
    few = test_copy(stream, a.y, FEW * row);
    assert_memory_equal(few, many + (ROWS - FEW) * row, FEW * row);
    void *memory[] = {x, (void *)(uintptr_t)a.gain, (void *)(uintptr_t)a.bias, a.y};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(device, memory[i]);
    free(many);
    free(few);
}

static void rows_have_the_same_bits_among_few_and_among_many(void **state) {
    struct device *device;
    struct stream *stream;
    (void)state;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    for (int i = 0; i < 8; i++)
        check_few_rows(device, stream, i % 2 ? NORM_RMS : NORM_LAYER, i / 2 % 2 ? DTYPE_BF16 : DTYPE_F32,
                       i < 4 ? 200 : 840);
    stream_close(stream);
    device_close(device);
}

/* A row whose mean is millions of times its deviations: a sum of it in fp32 is off by about as much as they are. */
static void a_large_mean_leaves_the_variance_accurate(void **state) {
    enum { COLS = 4096 };
    struct device *device;
    struct stream *stream;
    float x[COLS], gain[COLS], bias[COLS] = {0}, rstd;
    (void)state;
    for (int j = 0; j < COLS; j++) {
        x[j] = 99999.4375f + (j % 3 ? -0x1p-6f : 0x1p-5f);
        gain[j] = 1;
    }
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    const float *const inputs[] = {x, gain, bias};
    void *memory[6]; /* x, gain, bias, y, mean, rstd */
    for (int i = 0; i < 6; i++)
        test_ok(device_alloc(device, i < 4 ? sizeof x : sizeof rstd, &memory[i]));
    for (int i = 0; i < 3; i++)
        test_ok(stream_copy_to_device(stream, memory[i], inputs[i], sizeof x));
    struct norm a = {.kind = NORM_LAYER,
                     .rows = 1,
                     .cols = COLS,
                     .type = DTYPE_F32,
                     .x = memory[0],
                     .gain = memory[1],
                     .bias = memory[2],
                     .epsilon = 1e-12f,
                     .y = memory[3],
                     .mean = memory[4],
                     .rstd = memory[5]};
    test_ok(ops_for(device)->norm_forward(&(const struct exec){.stream = stream}, &a));
    test_ok(test_read(stream, &rstd, memory[5], sizeof rstd));
    double expected = 0x1p6 / sqrt(2); /* a third of the deviations is 2^-5, the others are -2^-6 */
    if (fabs((double)rstd - expected) > 1e-2 * expected)
        fail_msg("1 / deviation is %g, not %g", (double)rstd, expected);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(device, memory[i]);
    stream_close(stream);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_equal_fp64),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(rows_have_the_same_bits_among_few_and_among_many),
        cmocka_unit_test(a_large_mean_leaves_the_variance_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
