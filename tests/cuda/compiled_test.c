/* Kernels that nvcc has compiled, from their fat binaries: the dialect that the interpreter must know. */
#include "cuda/fatbin.h"
#include "cuda/support.h"
#include "support/test.h"

#include <math.h>

/* The module of kernels/NAME.cu. */
static struct ptx_module *compiled(struct machine *machine, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.fatbin", CUDA_TEST_KERNELS, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    static char image[1 << 20];
    size_t bytes = fread(image, 1, sizeof image - 1, file), length;
    fclose(file);
    image[bytes] = 0;
    const char *text;
    assert_int_equal(fatbin_ptx(image, 79, &text, &length), -1); /* nothing for a GPU that old */
    assert_int_equal(fatbin_ptx(image, 90, &text, &length), 0);
    char *copy = strndup(text, length);
    struct ptx_module *module = kernel_module(machine, copy);
    free(copy);
    return module;
}

static void saxpy_leaves_the_rest_alone(void **state) {
    (void)state;
    enum { COUNT = 1000, ROOM = 1024 };
    struct machine machine;
    float x[ROOM], y[ROOM], out[ROOM];
    kernel_machine(&machine, 1);
    struct ptx_module *module = compiled(&machine, "saxpy");
    for (int i = 0; i < ROOM; i++) {
        x[i] = (float)i, y[i] = 1;
    }
    const struct {
        int count;
        float a;
        uint64_t x, y;
    } params = {COUNT, 2, kernel_memory(&machine, x, sizeof x), kernel_memory(&machine, y, sizeof y)};
    kernel_ok(&machine, kernel_run(&machine, module, "saxpy", 4, 256, &params));
    assert_int_equal(memory_read(&machine, out, params.y, sizeof out), 0);
    for (int i = 0; i < ROOM; i++) {
        assert_true(out[i] == (i < COUNT ? 2 * x[i] + 1 : 1));
    }
    const struct counts *counts = machine.counts;
    assert_string_equal(counts->name, "saxpy");
    assert_int_equal(counts->load_bytes, 2 * COUNT * 4);
    assert_int_equal(counts->store_bytes, COUNT * 4);
    assert_int_equal(counts->load_sectors, 2 * COUNT * 4 / 32);
    assert_int_equal(counts->least_sectors, 3 * COUNT * 4 / 32);
    ptx_close(module);
    machine_close(&machine);
}

static void sums_and_softmax_are_the_same_under_every_schedule(void **state) {
    (void)state;
    enum { ROWS = 6, COLUMNS = 333 };
    float values[ROWS][COLUMNS], first[ROWS][COLUMNS], sums[ROWS], first_sums[ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        values[i / COLUMNS][i % COLUMNS] = (float)(i * 37 % 101) / 25;
    }
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct machine machine;
        float out[ROWS][COLUMNS];
        kernel_machine(&machine, seed);
        struct ptx_module *module = compiled(&machine, "reduce");
        const struct {
            int columns;
            uint64_t values, sums;
        } params = {COLUMNS, kernel_memory(&machine, values, sizeof values),
                    kernel_memory(&machine, NULL, sizeof sums)};
        kernel_ok(&machine, kernel_run(&machine, module, "reduce", ROWS, 128, &params));
        kernel_ok(&machine, kernel_run(&machine, module, "softmax", ROWS, 32, &params));
        assert_int_equal(memory_read(&machine, out, params.values, sizeof out), 0);
        assert_int_equal(memory_read(&machine, sums, params.sums, sizeof sums), 0);
        if (seed == 0) {
            memcpy(first, out, sizeof out), memcpy(first_sums, sums, sizeof sums);
        }
        assert_memory_equal(first, out, sizeof out);
        assert_memory_equal(first_sums, sums, sizeof sums);
        ptx_close(module);
        machine_close(&machine);
    }
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, total = 0;
        for (int c = 0; c < COLUMNS; c++) {
            sum += values[r][c], total += exp(values[r][c]);
        }
        assert_true(fabs(first_sums[r] - sum) < 1e-5 * sum); /* fp32, 333 terms */
        for (int c = 0; c < COLUMNS; c++) {
            double exact = exp(values[r][c]) / total;
            assert_true(fabs(first[r][c] - exact) < 1e-5 * exact);
        }
    }
}

static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void a_tile_by_cp_async_ldmatrix_and_mma(void **state) {
    (void)state;
    enum { K = 96 };
    uint16_t a[16][K], b[8][K];
    float exact_a[16][K], exact_b[8][K], d[16][8];
    for (int i = 0; i < 16 * K; i++) {
        exact_a[i / K][i % K] = (float)(i * 7 % 13 - 6) / 4;
        a[i / K][i % K] = bf16_of(exact_a[i / K][i % K]);
    }
    for (int i = 0; i < 8 * K; i++) {
        exact_b[i / K][i % K] = (float)(i * 5 % 17 - 8) / 8;
        b[i / K][i % K] = bf16_of(exact_b[i / K][i % K]);
    }
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct machine machine;
        kernel_machine(&machine, seed);
        struct ptx_module *module = compiled(&machine, "tile");
        const struct {
            int k;
            uint64_t a, b, d;
        } params = {K, kernel_memory(&machine, a, sizeof a), kernel_memory(&machine, b, sizeof b),
                    kernel_memory(&machine, NULL, sizeof d)};
        kernel_ok(&machine, kernel_run(&machine, module, "tile", 1, 32, &params));
        assert_int_equal(memory_read(&machine, d, params.d, sizeof d), 0);
        for (int i = 0; i < 16 * 8; i++) {
            double sum = 0;
            for (int k = 0; k < K; k++) {
                sum += (double)exact_a[i / 8][k] * exact_b[i % 8][k];
            }
            assert_true(d[i / 8][i % 8] == (float)sum); /* small fractions: exact in any order */
        }
        assert_int_equal(machine.counts->products, K / 16);
        ptx_close(module);
        machine_close(&machine);
    }
}

/* Waits and barriers of kernels/tile.cu, taken out of its PTX one by one. */
static void each_wait_of_the_tile_is_needed(void **state) {
    (void)state;
    static const char *const removed[] = {"cp.async.wait_group 1;", "bar.warp.sync -1;"};
    for (size_t r = 0; r < sizeof removed / sizeof *removed; r++) {
        struct machine machine;
        kernel_machine(&machine, 1);
        char path[512];
        static char image[1 << 20];
        snprintf(path, sizeof path, "%s/tile.fatbin", CUDA_TEST_KERNELS);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        image[fread(image, 1, sizeof image - 1, file)] = 0;
        fclose(file);
        const char *text;
        size_t length, found = 0;
        assert_int_equal(fatbin_ptx(image, 80, &text, &length), 0);
        char *copy = strndup(text, length);
        for (char *at = copy; (at = strstr(at, removed[r])); found++) {
            memset(at, ' ', strlen(removed[r]));
        }
        assert_true(found > 0);
        struct ptx_module *module = kernel_module(&machine, copy);
        uint16_t zeros[24 * 64] = {0};
        uint64_t values = kernel_memory(&machine, zeros, sizeof zeros);
        const struct {
            int k;
            uint64_t a, b, d;
        } params = {64, values, values + 16 * 64 * 2, kernel_memory(&machine, NULL, 512)};
        assert_int_equal(kernel_run(&machine, module, "tile", 1, 32, &params), -1);
        assert_non_null(strstr(machine.message, r == 0 ? "a cp.async has not filled yet" : "race in shared memory"));
        free(copy);
        ptx_close(module);
        machine_close(&machine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saxpy_leaves_the_rest_alone),
        cmocka_unit_test(sums_and_softmax_are_the_same_under_every_schedule),
        cmocka_unit_test(a_tile_by_cp_async_ldmatrix_and_mma),
        cmocka_unit_test(each_wait_of_the_tile_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
