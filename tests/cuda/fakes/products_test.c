/* The products of the backend `cuda`, on the interpreter and a stand-in for cuBLASLt (tests/cuda/cublaslt.c). */
#include "op_cases-internal.h"

#include "counts.h"
#include "support/device.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

/* The stand-in's GELU errs by as much as the environment says. */
static void products_are_right_whatever_the_librarys_gelu_hides(void **state) {
    (void)state;
    test_ok(op_check_reference(&gemm_family, "cuda", false)); /* packed ones are refused */
}

/* Only products of packed weights are missing on a GPU. */
static void every_product_of_plain_matrices_is_there(void **state) {
    struct device *device;
    struct stream *stream;
    int count = 0;
    (void)state;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    for (int i = 0; i < gemm_family.count; i++) {
        const struct op_case *c = &gemm_family.cases[i];
        struct op_run run = {0};
        if (!(c->use & OP_TEST) || !strncmp(c->note, "packed", 6))
            continue;
        test_ok(op_run_open(&run, c, device, stream));
        assert_true(c->kind->supports(&run, ops_for(device), device));
        op_run_close(&run, device);
        count++;
    }
    assert_int_equal(count, 94);
    stream_close(stream);
    device_close(device);
}

/* Fills `count` elements of bf16 on a device, from its element `first` on. */
static void upload(struct stream *stream, uint16_t *to, int64_t first, int64_t count) {
    uint16_t *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = bf16_from_float((float)(i % 13 - 6) / 8);
    test_ok(stream_copy_to_device(stream, to + first, values, (size_t)count * sizeof *values));
    test_ok(stream_wait(stream));
    free(values);
}

/* The product [m,n] = [m,k] [n,k]' + bias in bf16, whose four arrays begin at element `first` of their memory. The
 * caller frees it. */
static uint16_t *product_at(struct device *device, struct stream *stream, int64_t first, int64_t m, int64_t n,
                            int64_t k) {
    const int64_t counts[] = {m * k, n * k, n, m * n};
    uint16_t *memory[4], *result = malloc((size_t)(m * n) * sizeof *result);
    struct exec exec = {.stream = stream};
    assert_non_null(result);
    for (int i = 0; i < 4; i++) {
        test_ok(device_alloc(device, (size_t)(first + counts[i]) * sizeof **memory, (void **)&memory[i]));
        upload(stream, memory[i], first, counts[i]);
    }
    struct gemm call = {.a = matrix_plain(DTYPE_BF16, memory[0] + first, m, k),
                        .b = matrix_plain(DTYPE_BF16, memory[1] + first, n, k),
                        .b_transposed = true,
                        .bias = memory[2] + first,
                        .c = matrix_plain(DTYPE_BF16, memory[3] + first, m, n)};
    exec.workspace_bytes = ops_for(device)->gemm_workspace(device, &call);
    test_ok(device_alloc(device, exec.workspace_bytes, &exec.workspace));
    test_ok(ops_for(device)->gemm(&exec, &call));
    test_ok(test_read(stream, result, memory[3] + first, (size_t)(m * n) * sizeof *result));
    device_free(device, exec.workspace);
    for (int i = 0; i < 4; i++)
        device_free(device, memory[i]);
    return result;
}

/* The library takes no bias at an odd address, so a kernel adds it, in the second shape to two pieces of rows. On a
 * GPU the library may choose an algorithm by the address; the stand-in has one order. */
static void products_at_odd_addresses_have_the_same_bits(void **state) {
    static const int64_t shapes[][3] = {{5, 24, 40}, {4100, 2048, 1}};
    struct device *device;
    struct stream *stream;
    (void)state;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    for (int i = 0; i < 2; i++) {
        const int64_t *s = shapes[i];
        uint16_t *even = product_at(device, stream, 0, s[0], s[1], s[2]);
        uint16_t *odd = product_at(device, stream, 1, s[0], s[1], s[2]);
        assert_memory_equal(even, odd, (size_t)(s[0] * s[1]) * sizeof *even);
        free(even);
        free(odd);
    }
    stream_close(stream);
    device_close(device);
}

/* A product of ones and of numbers that fp32 has and TF32 has not. */
static float product_of_fractions(bool is_tf32) {
    enum { SIDE = 16 };
    float values[SIDE * SIDE], result[SIDE * SIDE], *memory[3];
    struct device *device;
    struct exec exec = {0};
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &exec.stream));
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < SIDE * SIDE; j++)
            values[j] = i ? 1 : 1 + 0x1p-12f;
        test_ok(device_alloc(device, sizeof values, (void **)&memory[i]));
        test_ok(stream_copy_to_device(exec.stream, memory[i], values, sizeof values));
        test_ok(stream_wait(exec.stream));
    }
    const struct gemm call = {.a = matrix_plain(DTYPE_F32, memory[0], SIDE, SIDE),
                              .b = matrix_plain(DTYPE_F32, memory[1], SIDE, SIDE),
                              .c = matrix_plain(DTYPE_F32, memory[2], SIDE, SIDE),
                              .is_tf32 = is_tf32};
    exec.workspace_bytes = ops_for(device)->gemm_workspace(device, &call);
    test_ok(device_alloc(device, exec.workspace_bytes, &exec.workspace));
    test_ok(ops_for(device)->gemm(&exec, &call));
    test_ok(test_read(exec.stream, result, memory[2], sizeof result));
    device_free(device, exec.workspace);
    for (int i = 0; i < 3; i++)
        device_free(device, memory[i]);
    stream_close(exec.stream);
    device_close(device);
    return result[0] / SIDE;
}

static void products_in_tf32_round_their_factors(void **state) {
    (void)state;
    assert_true(product_of_fractions(false) == 1 + 0x1p-12f);
    assert_true(product_of_fractions(true) == 1);
}

static const struct op_case *case_of(const char *note) {
    for (int i = 0; i < gemm_family.count; i++)
        if (!strcmp(gemm_family.cases[i].note, note))
            return &gemm_family.cases[i];
    fail_msg("no case %s", note);
    return NULL;
}

/* In bf16, sums in fp32 would move twice the bytes, in pieces of which each is a product and a launch. The kernel
 * stores whole accesses: a warp's are at most a tenth more sectors than they must be. */
static void one_kernel_does_what_the_library_lacks(void **state) {
    static const char *const rows[][2] = {
        {"gelu saving, pieces", "gemm_finish_fp32"}, /* in fp32 */
        {"exact gelu saving, whole accesses", "gelu_forward_bf16"},
        {"exact gelu backward, whole accesses", "gelu_backward_bf16"},
        {"fp8, exact gelu", "gelu_forward_bf16"},
        {"fp8, gelu backward", "gelu_backward_bf16"},
        {"fp8, exact gelu backward", "gelu_backward_bf16"},
    };
    struct device *device;
    struct stream *stream;
    (void)state;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct op_case *c = case_of(rows[i][0]);
        struct op_run run = {0};
        struct op_scene scene = {.device = device, .stream = stream, .ops = ops_for(device)};
        test_ok(op_run_open(&run, c, device, stream));
        test_ok(op_scene_enter(&scene, &run));
        const struct counts sums = test_counts_of("gemm_finish_bf16"), before = test_counts_of(rows[i][1]);
        test_ok(c->kind->call(&run, scene.ops, &scene.exec));
        test_ok(stream_wait(stream));
        const struct counts after = test_counts_of(rows[i][1]);
        assert_int_equal(test_counts_of("gemm_finish_bf16").launches, sums.launches);
        assert_int_equal(after.launches, before.launches + 1);
        assert_true(10 * 32 * (after.store_sectors - before.store_sectors) <=
                    11 * (after.store_bytes - before.store_bytes));
        test_ok(op_scene_leave(&scene, &run));
        op_run_close(&run, device);
    }
    stream_close(stream);
    device_close(device);
}

/* ---- products of few rows ---- */

enum { FEW_MOST = 16 };

/* Numbers of rows of all forms of blocks. The depths need more steps than a warp has under way, and the last warp has
 * fewer. */
static void check_few_rows(struct device *device, struct stream *stream, int64_t cols, int64_t depth) {
    static const int counts[] = {FEW_MOST, 9, 8, 5, 4, 1};
    size_t count = (size_t)(FEW_MOST * cols), row_bytes = (size_t)cols * sizeof(float);
    float *whole = malloc(count * sizeof *whole), *few = malloc(count * sizeof *few);
    void *x = test_upload_random(device, stream, DTYPE_BF16, FEW_MOST * depth, 1, -1, 1),
         *w = test_upload_random(device, stream, DTYPE_BF16, cols * depth, 2, -1, 1);
    void *bias = test_upload_random(device, stream, DTYPE_BF16, cols, 3, -1, 1), *c;
    assert_true(whole && few);
    test_ok(device_alloc(device, count * sizeof *whole, &c));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int rows = counts[i], first = FEW_MOST - rows;
        struct gemm call = {.a = matrix_plain(DTYPE_BF16, (uint16_t *)x + first * depth, rows, depth),
                            .b = matrix_plain(DTYPE_BF16, w, cols, depth),
                            .b_transposed = true,
                            .bias = bias,
                            .c = matrix_plain(DTYPE_F32, c, rows, cols)};
        struct exec exec = {.stream = stream, .workspace_bytes = ops_for(device)->gemm_workspace(device, &call)};
        test_ok(device_alloc(device, exec.workspace_bytes, &exec.workspace));
        test_ok(ops_for(device)->gemm(&exec, &call));
        test_ok(test_read(stream, i ? few : whole, c, (size_t)rows * row_bytes));
        device_free(device, exec.workspace);
        if (i)
            assert_memory_equal(few, whole + first * cols, (size_t)rows * row_bytes);
    }
    void *memory[] = {x, w, bias, c};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(device, memory[i]);
    free(whole);
    free(few);
}

static void rows_of_few_have_the_same_bits_whatever_their_number(void **state) {
    struct device *device;
    struct stream *stream;
    (void)state;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    check_few_rows(device, stream, 43, 3624);   /* blocks of 8 warps */
    check_few_rows(device, stream, 2121, 1736); /* and of 4 */
    stream_close(stream);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_whatever_the_librarys_gelu_hides),
        cmocka_unit_test(products_at_odd_addresses_have_the_same_bits),
        cmocka_unit_test(products_in_tf32_round_their_factors),
        cmocka_unit_test(rows_of_few_have_the_same_bits_whatever_their_number),
        cmocka_unit_test(every_product_of_plain_matrices_is_there),
        cmocka_unit_test(one_kernel_does_what_the_library_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
