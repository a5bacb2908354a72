/* Products against fp64, and the promises of their contract. */
#include "op_cases.h"
#include "ordered_products.h"

#include <math.h>
#include <pthread.h>

static void products_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&gemm_family, test_device(), test_is_long()));
}

static void products_do_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    if (!has_ordered_products())
        test_skip("oneDNN has no products in a fixed order on this processor");
    test_ok(op_check_threads(&gemm_family, test_device(), test_is_long()));
}

/* A device with a stream, and its memory: random numbers of a type, or zeros. */
struct scene {
    struct device *device;
    struct exec exec;
};

static struct scene scene_open(int threads) {
    struct scene scene = {0};
    test_ok(device_open("cpu", DEVICE_FIRST, threads, &scene.device));
    test_ok(stream_open(scene.device, &scene.exec.stream));
    return scene;
}

static void scene_close(struct scene *scene) {
    device_free(scene->device, scene->exec.workspace);
    stream_close(scene->exec.stream);
    device_close(scene->device);
}

static void *numbers(struct scene *scene, enum dtype type, int64_t count, uint32_t key) {
    void *memory;
    test_ok(device_alloc(scene->device, (size_t)count * dtype_bytes(type), &memory));
    for (int64_t i = 0; key && i < count; i++) {
        float x = (float)rng_unit(philox(key, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0]) - 0.5f;
        if (type == DTYPE_F32)
            ((float *)memory)[i] = x;
        else
            ((uint16_t *)memory)[i] = bf16_from_float(x);
    }
    return memory;
}

/* Runs with just the workspace asked for. */
static int run(struct scene *scene, const struct ops *ops, const struct gemm *gemm) {
    size_t bytes = ops->gemm_workspace(scene->device, gemm);
    if (bytes > scene->exec.workspace_bytes) {
        device_free(scene->device, scene->exec.workspace);
        test_ok(device_alloc(scene->device, bytes, &scene->exec.workspace));
        scene->exec.workspace_bytes = bytes;
    }
    return ops->gemm(&scene->exec, gemm);
}

static void rows_of_a_packed_product(const char *level, enum dtype type, int64_t n, int64_t k) {
    enum { ROWS = 400 };
    static const int64_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17, 28, 31, 57, 100, 399};
    struct scene scene = scene_open(2);
    const struct ops *ops = ops_for_level(scene.device, level);
    size_t size = dtype_bytes(type);
    void *a = numbers(&scene, type, ROWS * k, 1), *b = numbers(&scene, type, n * k, 2),
         *bias = numbers(&scene, type, n, 3), *all = numbers(&scene, type, ROWS * n, 0),
         *c = numbers(&scene, type, ROWS * n, 0);
    if (ops) {
        struct matrix_view plain = matrix_plain(type, b, n, k);
        void *memory;
        test_ok(device_alloc(scene.device, ops->packed_bytes(scene.device, &plain), &memory));
        test_ok(ops->pack(&scene.exec, &(const struct pack_call){.plain = plain, .out = memory}));
        struct gemm g = {.a = matrix_plain(type, a, ROWS, k),
                         .b = matrix_packed(plain, memory),
                         .b_transposed = true,
                         .c = matrix_plain(type, all, ROWS, n),
                         .bias = bias,
                         .epilogue = EPILOGUE_GELU_TANH};
        test_ok(run(&scene, ops, &g));
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
            int64_t first = (int64_t)i * 7 % (ROWS - some[i] + 1);
            g.a = matrix_rows(matrix_plain(type, a, ROWS, k), first, some[i]);
            g.c = matrix_plain(type, c, some[i], n);
            test_ok(run(&scene, ops, &g));
            if (memcmp(c, (char *)all + (size_t)(first * n) * size, (size_t)(some[i] * n) * size))
                fail_msg("%s %s, n %lld, k %lld: %lld rows differ from the same rows among %d", level, dtype_name(type),
                         (long long)n, (long long)k, (long long)some[i], ROWS);
        }
        device_free(scene.device, memory);
    }
    void *blocks[] = {a, b, bias, all, c};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_free(scene.device, blocks[i]);
    scene_close(&scene);
}

static void the_bits_of_a_row_do_not_depend_on_the_number_of_rows(void **state) {
    (void)state;
    static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
    for (size_t level = 0; level < sizeof levels / sizeof *levels; level++)
        for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
            rows_of_a_packed_product(levels[level], (enum dtype)type, 96, 64);
            rows_of_a_packed_product(levels[level], (enum dtype)type, 53, 131);
            rows_of_a_packed_product(levels[level], (enum dtype)type, 9, 3001);
        }
}

static void what_is_not_built_is_refused(void **state) {
    (void)state;
    struct scene scene = scene_open(1);
    const struct ops *ops = ops_for(scene.device);
    float x[64] = {0};
    uint16_t h[64] = {0};
    struct matrix_view matrix = matrix_plain(DTYPE_F32, x, 4, 4), half = matrix_plain(DTYPE_BF16, h, 4, 4);
    const struct gemm good = {
        .a = matrix, .b = matrix, .b_transposed = true, .c = matrix_plain(DTYPE_F32, x + 16, 4, 4), .aux = x + 32};
    struct gemm bad[] = {good, good, good, good, good, good, good, good, good, good, good};
    bad[0].a.type = bad[0].b.type = DTYPE_F16;
    bad[1].c.type = DTYPE_BF16;
    bad[2].accumulate = true;
    bad[2].bias = x;
    bad[3].epilogue = EPILOGUE_DGELU_TANH;
    bad[3].aux = NULL;
    bad[4].bias_gradient = x;
    bad[5].a_transposed = true;
    bad[5].a = bad[5].b = bad[5].c = half;
    bad[6].b = half;
    bad[7].b.scale = x;
    bad[8].residual = x;
    bad[8].accumulate = true;
    bad[9].a.type = bad[9].b.type = bad[9].c.type = DTYPE_BF16;
    bad[9].is_tf32 = true;
    bad[10].b.type = DTYPE_I8;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(ops->gemm_supports(scene.device, &bad[i]));
        test_fails(ops->gemm(&scene.exec, &bad[i]), STATUS_UNSUPPORTED, "gemm");
    }
    assert_true(ops->gemm_supports(scene.device, &good));
    struct gemm other = good;
    other.is_tf32 = true;
    assert_false(ops->gemm_supports(scene.device, &other));
    test_fails(ops->gemm(&scene.exec, &other), STATUS_UNSUPPORTED, "gemm: no TF32 on cpu");
    other.is_tf32 = false;
    other.b.rows = 5;
    test_fails(ops->gemm(&scene.exec, &other), STATUS_INVALID, "B is [5, 4], expected [4, 4]");
    other.b.rows = 4;
    other.a.rows = 3;
    test_fails(ops->gemm(&scene.exec, &other), STATUS_INVALID, "A is [3, 4], expected [4, 4]");
    struct gemm packed = good;
    packed.b.form = MATRIX_PACKED;
    test_fails(ops->gemm(&scene.exec, &packed), STATUS_INVALID, "workspace");
    struct gemm empty = good;
    empty.a.rows = empty.c.rows = 0;
    test_ok(ops->gemm(&scene.exec, &empty));
    empty = good;
    empty.a.columns = empty.b.columns = 0;
    test_fails(ops->gemm(&scene.exec, &empty), STATUS_INVALID, "4 x 4 x 0");
    scene_close(&scene);
}

/* Planned for other rows, a product gets by with what there is. */
static void products_run_in_less_workspace(void **state) {
    (void)state;
    enum { ROWS = 101, COLS = 64, DEPTH = 32 };
    struct scene scene = scene_open(2);
    const struct ops *ops = ops_for(scene.device);
    uint16_t *aux[2], *c[2];
    struct gemm gemm = {.a = matrix_plain(DTYPE_BF16, numbers(&scene, DTYPE_BF16, ROWS * DEPTH, 1), ROWS, DEPTH),
                        .b = matrix_plain(DTYPE_BF16, numbers(&scene, DTYPE_BF16, DEPTH * COLS, 2), DEPTH, COLS),
                        .c = matrix_plain(DTYPE_BF16, NULL, ROWS, COLS),
                        .bias = numbers(&scene, DTYPE_BF16, COLS, 3),
                        .epilogue = EPILOGUE_GELU_TANH};
    if (!ops->gemm_supports(scene.device, &gemm)) {
        scene_close(&scene);
        test_skip("oneDNN has no bf16 products on this processor");
    }
    for (int i = 0; i < 2; i++) {
        gemm.aux = aux[i] = numbers(&scene, DTYPE_BF16, ROWS * COLS, 0);
        gemm.c.data = c[i] = numbers(&scene, DTYPE_BF16, ROWS * COLS, 0);
        if (i) {
            struct gemm fewer = gemm;
            fewer.a.rows = fewer.c.rows = ROWS / 8 + 1;
            scene.exec.workspace_bytes = ops->gemm_workspace(scene.device, &fewer);
            assert_true(scene.exec.workspace_bytes < ops->gemm_workspace(scene.device, &gemm));
            test_ok(ops->gemm(&scene.exec, &gemm));
        } else
            test_ok(run(&scene, ops, &gemm));
    }
    for (int i = 0; i < ROWS * COLS; i++) {
        assert_true(fabsf(bf16_to_float(c[0][i]) - bf16_to_float(c[1][i])) <= 0x1p-8f);
        assert_true(fabsf(bf16_to_float(aux[0][i]) - bf16_to_float(aux[1][i])) <= 0x1p-7f);
    }
    void *memory[] = {(void *)gemm.a.data, (void *)gemm.b.data, (void *)gemm.bias, aux[0], aux[1], c[0], c[1]};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(scene.device, memory[i]);
    scene_close(&scene);
}

/* More forms than the cache of primitives holds, and the first ones again. */
static void products_of_many_forms_stay_right(void **state) {
    (void)state;
    struct scene scene = scene_open(1);
    const struct ops *ops = ops_for(scene.device);
    float a[900], b[3] = {1, 2, 3}, c[900];
    for (int i = 0; i < 900; i++)
        a[i] = (float)(i % 7);
    for (int i = 0; i < 1000; i++) {
        int m = i % 450 + 1;
        struct gemm g = {.a = matrix_plain(DTYPE_F32, a, m, 2),
                         .b = matrix_plain(DTYPE_F32, b, 2, 1),
                         .c = matrix_plain(DTYPE_F32, c, m, 1)};
        test_ok(run(&scene, ops, &g));
        assert_true(c[m - 1] == a[2 * m - 2] + 2 * a[2 * m - 1]);
    }
    scene_close(&scene);
}

struct caller {
    struct device *device;
    int failed;
};

static void *call_many(void *argument) {
    struct caller *caller = argument;
    struct scene scene = {.device = caller->device};
    if (stream_open(scene.device, &scene.exec.stream)) {
        caller->failed = 1;
        return NULL;
    }
    float a[64], b[64], c[64];
    for (int i = 0; i < 64; i++)
        a[i] = (float)(i % 5), b[i] = (float)(i % 3);
    for (int i = 0; i < 300; i++) {
        int m = i % 8 + 1;
        struct gemm g = {.a = matrix_plain(DTYPE_F32, a, m, 8),
                         .b = matrix_plain(DTYPE_F32, b, 8, 8),
                         .c = matrix_plain(DTYPE_F32, c, m, 8)};
        caller->failed |= run(&scene, ops_for(scene.device), &g) != STATUS_OK;
        float want = 0;
        for (int l = 0; l < 8; l++)
            want += a[(m - 1) * 8 + l] * b[l * 8 + 5];
        caller->failed |= c[(m - 1) * 8 + 5] != want;
    }
    device_free(scene.device, scene.exec.workspace);
    stream_close(scene.exec.stream);
    return NULL;
}

static void two_threads_may_share_a_device(void **state) {
    (void)state;
    struct scene scene = scene_open(1);
    struct caller callers[2] = {{.device = scene.device}, {.device = scene.device}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_many, &callers[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].failed, 0);
    }
    scene_close(&scene);
}

/* Rows [FIRST, FIRST + rows) of a weight [out, in], forward and back, from its packed and its plain form. */
static void check_unpacked(struct scene *scene, const struct ops *ops, enum dtype type, int64_t first, int64_t out,
                           int64_t in) {
    enum { M = 70 };
    size_t size = dtype_bytes(type);
    void *x = numbers(scene, type, M * in, 1), *w = numbers(scene, type, (first + out + 3) * in, 2), *form = NULL;
    void *y = numbers(scene, type, M * out, 3), *bias = numbers(scene, type, out, 4);
    void *c[] = {numbers(scene, type, M * (out + in), 0), numbers(scene, type, M * (out + in), 0)};
    struct matrix_view b[] = {matrix_plain(type, w, first + out + 3, in), {0}};
    test_ok(device_alloc(scene->device, ops->packed_bytes(scene->device, &b[0]), &form));
    test_ok(ops->pack(&scene->exec, &(const struct pack_call){.plain = b[0], .out = form}));
    b[1] = matrix_packed(b[0], form);
    for (int i = 0; i < 2; i++) {
        struct gemm forward = {.a = matrix_plain(type, x, M, in),
                               .b = matrix_rows(b[i], first, out),
                               .b_transposed = true,
                               .c = matrix_plain(type, c[i], M, out),
                               .bias = bias};
        struct gemm back = {.a = matrix_plain(type, y, M, out),
                            .b = matrix_rows(b[i], first, out),
                            .c = matrix_plain(type, (char *)c[i] + (size_t)(M * out) * size, M, in)};
        test_ok(run(scene, ops, &forward));
        test_ok(run(scene, ops, &back));
    }
    assert_memory_equal(c[0], c[1], (size_t)(M * (out + in)) * size);
    void *const memory[] = {x, w, form, y, bias, c[0], c[1]};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(scene->device, memory[i]);
}

static void a_packed_weight_has_the_bits_of_a_plain_one(void **state) {
    (void)state;
    static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
    static const int64_t shapes[][3] = {{0, 64, 96}, {0, 33, 65}, {5, 40, 31}, {32, 64, 600},
                                        {7, 1, 1},   {0, 700, 8}, {3, 5000, 8}};
    struct scene scene = scene_open(2);
    struct matrix_view half = matrix_plain(DTYPE_BF16, NULL, 8, 8);
    struct gemm bf16 = {.a = half, .b = half, .c = half};
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        const struct ops *ops = ops_for_level(scene.device, levels[l]);
        for (size_t i = 0; ops && i < sizeof shapes / sizeof *shapes; i++) {
            check_unpacked(&scene, ops, DTYPE_F32, shapes[i][0], shapes[i][1], shapes[i][2]);
            if (ops->gemm_supports(scene.device, &bf16))
                check_unpacked(&scene, ops, DTYPE_BF16, shapes[i][0], shapes[i][1], shapes[i][2]);
        }
    }
    scene_close(&scene);
}

/* The input's gradient of a long weight needs memory for a part of it. The numbers are small and whole, so that sums of
 * pieces are exact. */
static void a_long_packed_weight_is_unpacked_in_pieces(void **state) {
    (void)state;
    enum { M = 2, OUT = 131072, IN = 192 };
    struct scene scene = scene_open(2);
    const struct ops *ops = ops_for(scene.device);
    float *y = numbers(&scene, DTYPE_F32, M * OUT, 0), *w = numbers(&scene, DTYPE_F32, OUT * IN, 0);
    float *c[] = {numbers(&scene, DTYPE_F32, M * IN, 0), numbers(&scene, DTYPE_F32, M * IN, 0)};
    void *form = NULL;
    for (int64_t i = 0; i < M * OUT; i++)
        y[i] = (float)(i % 3 - 1);
    for (int64_t i = 0; i < OUT * IN; i++)
        w[i] = (float)(i % 5 - 2);
    struct matrix_view plain = matrix_plain(DTYPE_F32, w, OUT, IN);
    test_ok(device_alloc(scene.device, ops->packed_bytes(scene.device, &plain), &form));
    test_ok(ops->pack(&scene.exec, &(const struct pack_call){.plain = plain, .out = form}));
    struct gemm back = {.a = matrix_plain(DTYPE_F32, y, M, OUT), .b = plain, .c = matrix_plain(DTYPE_F32, c[0], M, IN)};
    test_ok(run(&scene, ops, &back));
    back.b = matrix_packed(plain, form);
    back.c.data = c[1];
    assert_true(ops->gemm_workspace(scene.device, &back) < OUT * IN * sizeof(float) / 2);
    test_ok(run(&scene, ops, &back));
    assert_memory_equal(c[0], c[1], M * IN * sizeof(float));
    void *const memory[] = {y, w, c[0], c[1], form};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(scene.device, memory[i]);
    scene_close(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_fp64),
        cmocka_unit_test(products_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(the_bits_of_a_row_do_not_depend_on_the_number_of_rows),
        cmocka_unit_test(what_is_not_built_is_refused),
        cmocka_unit_test(products_run_in_less_workspace),
        cmocka_unit_test(products_of_many_forms_stay_right),
        cmocka_unit_test(two_threads_may_share_a_device),
        cmocka_unit_test(a_packed_weight_has_the_bits_of_a_plain_one),
        cmocka_unit_test(a_long_packed_weight_is_unpacked_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
