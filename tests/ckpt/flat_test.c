/* Flat arrays on a device: what goes out through the stream comes back, gaps between parameters untouched. */
#include "support/device.h"
#include "tiny_gpt2.h"

static void a_flat_array_travels_through_its_stream(void **state) {
    (void)state;
    struct device *device;
    struct stream *stream;
    struct ckpt_tensors *tensors;
    void *memory[2];
    char *root = test_directory(), *directory = tiny_path(root, "m");
    struct param_table table = {.rows = calloc(2, sizeof *table.rows), .capacity = 2};
    enum { SIDE = 1100, BIAS = 10, GAP = 54 }; /* SIDE * SIDE is more than a block: columns are cut too */
    _Static_assert(SIDE * SIDE > CKPT_BLOCK_ELEMENTS, "one block would do");
    tiny_add(&table, "bias", 1, BIAS, 1, "bias", false);
    tiny_add(&table, "weight", 2, SIDE, SIDE, "weight", true);
    struct param_store store;
    const size_t elements = BIAS + GAP + SIDE * SIDE + GAP;
    float *host = malloc(elements * sizeof *host), *back = malloc(elements * sizeof *back);
    for (size_t i = 0; i < elements; i++)
        host[i] = (float)i;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    for (int i = 0; i < 2; i++)
        test_ok(device_alloc(device, elements * sizeof *host, &memory[i]));
    test_ok(test_write(stream, memory[0], host, elements * sizeof *host));
    test_ok(stream_zero(stream, memory[1], elements * sizeof *host));
    test_ok(param_store_sketch(&store,
                               &(struct param_store_options){.table = &table, .device = device, .dtype = DTYPE_F32}));
    struct param_range ranges[2];
    for (int i = 0; i < 2; i++)
        ranges[i] = (struct param_range){.count = store.map.flat_elements, .data = memory[i], .type = DTYPE_F32};
    struct ckpt_flat from = {.map = &store.map, .stream = stream, .ranges = &ranges[0], .count = 1, .dtype = DTYPE_F32};
    struct ckpt_flat to = from;
    to.ranges = &ranges[1];
    struct ckpt_array out = ckpt_flat_array(&from, "", false), in = ckpt_flat_array(&to, "", false);
    struct ckpt_model model = {.table = &table, .weights = &out, .config_text = "{}"};
    test_ok(ckpt_write_model(directory, &model));
    test_ok(ckpt_open_model(directory, &tensors));
    test_ok(ckpt_read(tensors, &table, &in, 1));
    ckpt_close(tensors);
    test_ok(test_read(stream, back, memory[1], elements * sizeof *back));
    for (size_t i = 0; i < elements; i++) {
        bool is_gap = (i >= BIAS && i < BIAS + GAP) || i >= elements - GAP;
        assert_true(back[i] == (is_gap ? 0 : host[i]));
    }
    for (int i = 0; i < 2; i++)
        device_free(device, memory[i]);
    param_store_close(&store);
    stream_close(stream);
    device_close(device);
    free(host);
    free(back);
    free(table.rows);
    free(directory);
    free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_flat_array_travels_through_its_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
