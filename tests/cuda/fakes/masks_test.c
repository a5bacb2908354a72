/* Masks of dropout on the interpreter, bit for bit. Those of attention are in its op cases. LD_LIBRARY_PATH leads to
 * the interpreter's libcuda.so.1. */
#include "kernels/ops.h"

#include "support/test.h"

enum { ROWS = 9, COLUMNS = 200, KEYS = 2 * ROWS };

/* Drops ones, and writes the result to `mask`. */
static void draw_mask(const char *backend, enum dtype type, int64_t first_col, int64_t cols, void *mask) {
    struct device *device;
    struct stream *stream;
    uint32_t keys[KEYS];
    float ones[ROWS * COLUMNS];
    void *there, *there_keys;
    size_t bytes = sizeof ones;
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = 1000003 * i;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (type == DTYPE_F32)
            ones[i] = 1;
        else
            ((uint16_t *)ones)[i] = bf16_from_float(1);
    test_ok(device_open(backend, DEVICE_FIRST, 2, &device));
    test_ok(stream_open(device, &stream));
    test_ok(device_alloc(device, bytes, &there));
    test_ok(device_alloc(device, sizeof keys, &there_keys));
    test_ok(stream_copy_to_device(stream, there, ones, bytes));
    test_ok(stream_copy_to_device(stream, there_keys, keys, sizeof keys));
    const uint32_t *sample = there_keys;
    struct residual_dropout a = {.rows = ROWS,
                                 .cols = cols,
                                 .type = type,
                                 .x = there,
                                 .y = there,
                                 .dropout = {0.3f, 123456789012345, 77, {sample, sample + ROWS}},
                                 .first_col = first_col};
    test_ok(ops_for(device)->residual_dropout_forward(&(struct exec){.stream = stream}, &a));
    test_ok(stream_copy_to_host(stream, mask, there, bytes));
    test_ok(stream_wait(stream));
    device_free(device, there);
    device_free(device, there_keys);
    stream_close(stream);
    device_close(device);
}

static void masks_of_dropout_equal_the_cpus(void **state) {
    static const struct {
        int64_t first_col, cols;
    } shapes[] = {{0, 200}, {0, 64}, {64, 128}, {40, 200}, {77, 131}, {13, 1}};
    float there[ROWS * COLUMNS], here[ROWS * COLUMNS];
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (enum dtype type = DTYPE_F32; type <= DTYPE_BF16; type++) {
            draw_mask("cuda", type, shapes[i].first_col, shapes[i].cols, there);
            draw_mask("cpu", type, shapes[i].first_col, shapes[i].cols, here);
            assert_memory_equal(there, here, sizeof here);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks_of_dropout_equal_the_cpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
