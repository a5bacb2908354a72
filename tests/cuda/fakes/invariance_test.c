/* Batch invariance: a row of a product has the same bits among any number of rows. The stand-in's first algorithm adds
 * in an order that follows the number of rows, C's type and the epilogue (CAMBIUM_CUDA_ALGORITHMS), so that a product
 * with another algorithm has other bits. */
#include "kernels/algorithms.h"
#include "kernels/ops.h"

#include "support/device.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 100, MOST = 1030 };

/* Products of the same rows with a weight [n, k]. C's rows begin at a multiple of 8 elements. */
static const struct form {
    int64_t n, k;
    enum dtype type, c_type;
    bool has_bias;
    enum gemm_epilogue epilogue;
} forms[] = {
    {40, 72, DTYPE_F32, DTYPE_F32, true, EPILOGUE_NONE},
    {40, 72, DTYPE_F32, DTYPE_F32, true, EPILOGUE_GELU_TANH},
    {40, 640, DTYPE_BF16, DTYPE_BF16, true, EPILOGUE_NONE},
    {40, 640, DTYPE_BF16, DTYPE_BF16, false, EPILOGUE_NONE},
    {40, 640, DTYPE_BF16, DTYPE_BF16, true, EPILOGUE_GELU_TANH},
    {40, 72, DTYPE_F32, DTYPE_F32, true, EPILOGUE_GELU_EXACT},
    {MOST, 64, DTYPE_BF16, DTYPE_F32, false, EPILOGUE_NONE}, /* the last columns are a product of their own */
    {61, 61, DTYPE_BF16, DTYPE_F32, false, EPILOGUE_NONE},   /* no row begins at an access of 16 bytes */
};
enum { FORMS = sizeof forms / sizeof *forms };

struct scene {
    struct device *device;
    struct exec exec;
    void *a, *b, *bias, *c;
};

static void open_scene(struct scene *s, bool is_invariant) {
    void **arrays[] = {&s->a, &s->b, &s->bias, &s->c};
    float *values = malloc(sizeof *values * MOST * 128);
    assert_non_null(values);
    for (uint32_t i = 0; i < MOST * 128; i++)
        values[i] = (float)(philox(1, i, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % 2001) / 1000 - 1;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &s->device));
    if (is_invariant)
        device_make_batch_invariant(s->device);
    test_ok(stream_open(s->device, &s->exec.stream));
    for (int i = 0; i < 4; i++) {
        test_ok(device_alloc(s->device, sizeof *values * MOST * 128, arrays[i]));
        test_ok(stream_copy_to_device(s->exec.stream, *arrays[i], values, sizeof *values * MOST * 128));
    }
    test_ok(stream_wait(s->exec.stream));
    s->exec.workspace_bytes = (size_t)64 << 20;
    test_ok(device_alloc(s->device, s->exec.workspace_bytes, &s->exec.workspace));
    free(values);
}

static void close_scene(struct scene *s) {
    void *arrays[] = {s->a, s->b, s->bias, s->c, s->exec.workspace};
    for (int i = 0; i < 5; i++)
        device_free(s->device, arrays[i]);
    stream_close(s->exec.stream);
    device_close(s->device);
}

/* Rows [first, first + rows) of a product, in the caller's `c`. In bf16, the numbers are every second half of fp32
 * ones. */
static void multiply(struct scene *s, const struct form *f, int64_t first, int64_t rows, void *c) {
    int64_t stride = (f->n + 7) / 8 * 8;
    const struct gemm call = {
        .a = matrix_rows(matrix_plain(f->type, s->a, ROWS, f->k), first, rows),
        .b = matrix_plain(f->type, s->b, f->n, f->k),
        .b_transposed = true,
        .bias = f->has_bias ? s->bias : NULL,
        .epilogue = f->epilogue,
        .c = matrix_rows(matrix_strided(f->c_type, s->c, ROWS, f->n, stride), first, rows),
    };
    assert_true(ops_for(s->device)->gemm_workspace(s->device, &call) <= s->exec.workspace_bytes);
    test_ok(ops_for(s->device)->gemm(&s->exec, &call));
    size_t bytes = dtype_bytes(f->c_type);
    for (int64_t i = 0; i < rows; i++)
        test_ok(test_read(s->exec.stream, (char *)c + (size_t)(i * f->n) * bytes,
                          (const char *)call.c.data + (size_t)(i * stride) * bytes, (size_t)f->n * bytes));
}

/* Returns the number of cuts of the rows in which a row has other bits than among all rows. */
static int count_differences(struct scene *s, const struct form *f) {
    static const int64_t cuts[][2] = {{0, 1},  {0, 2},  {0, 3},  {0, 8},  {0, 15}, {0, 16}, {0, 17},
                                      {0, 31}, {0, 64}, {0, 65}, {99, 1}, {5, 2},  {7, 16}, {13, 17}};
    size_t width = (size_t)f->n * dtype_bytes(f->c_type);
    char *all = malloc(ROWS * width), *some = malloc(ROWS * width);
    int different = 0;
    assert_true(all && some);
    multiply(s, f, 0, ROWS, all);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        multiply(s, f, cuts[i][0], cuts[i][1], some);
        different += memcmp(all + (size_t)cuts[i][0] * width, some, (size_t)cuts[i][1] * width) != 0;
    }
    free(all);
    free(some);
    return different;
}

/* Off, this test must see other bits. */
static void a_row_has_its_bits_among_any_number_of_rows(void **state) {
    struct scene on = {0}, off = {0};
    (void)state;
    open_scene(&on, true);
    open_scene(&off, false);
    for (int i = 0; i < FORMS; i++) {
        if (count_differences(&on, &forms[i]))
            fail_msg("form %d: a row has other bits among other rows", i);
        if (!count_differences(&off, &forms[i]))
            fail_msg("form %d: without batch invariance this test would see nothing", i);
    }
    close_scene(&on);
    close_scene(&off);
}

/* Beside rows with adapters, a product's C is fp32 and is rounded by a cast. */
static void a_row_has_the_bits_of_sums_in_fp32(void **state) {
    enum { ELEMENTS = ROWS * 40, SOME = 17 };
    const struct form narrow = {40, 640, DTYPE_BF16, DTYPE_BF16, true, EPILOGUE_NONE};
    struct form wide = narrow;
    static uint16_t rounded[ELEMENTS];
    static float sums[ELEMENTS];
    (void)state;
    wide.c_type = DTYPE_F32;
    for (int is_invariant = 0; is_invariant < 2; is_invariant++) {
        struct scene s = {0};
        int different = 0;
        open_scene(&s, is_invariant);
        multiply(&s, &narrow, 0, SOME, rounded);
        multiply(&s, &wide, 0, ROWS, sums);
        for (int i = 0; i < SOME * 40; i++)
            different += rounded[i] != bf16_from_float(sums[i]);
        if (is_invariant != (different == 0))
            fail_msg("%d numbers differ with batch invariance %d", different, is_invariant);
        close_scene(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_its_bits_among_any_number_of_rows),
        cmocka_unit_test(a_row_has_the_bits_of_sums_in_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
