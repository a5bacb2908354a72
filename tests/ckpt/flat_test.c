/* Flat arrays on a device: what goes out through the stream comes back, gaps between parameters untouched, and the host
 * waits no more often than it must. */
#include "support/device.h"
#include "tiny_gpt2.h"

#include "late/late.h"

enum {
    SIDE = 1100, /* SIDE * SIDE is more than a block: columns are cut too */
    BIAS = 10,
    GAP = 54,
    ELEMENTS = BIAS + GAP + SIDE * SIDE + GAP,
};
_Static_assert(SIDE *SIDE > CKPT_BLOCK_ELEMENTS, "one block would do");

/* A bias and a matrix, twice in memory of a device: one to write, with known values, and one to read into. */
struct travel {
    struct device *device;
    struct stream *stream;
    struct param_table table;
    struct param_store store;
    void *memory[2];
    struct param_range ranges[2];
    struct ckpt_flat flats[2];
    struct ckpt_array out, in;
    char *root;
};

static void open_travel(struct travel *t, const char *device, bool is_transposed) {
    size_t bytes = ELEMENTS * sizeof(float);
    float *host = malloc(bytes);
    *t = (struct travel){.root = test_directory(), .table = {.rows = calloc(2, sizeof(struct param)), .capacity = 2}};
    for (size_t i = 0; i < ELEMENTS; i++)
        host[i] = (float)i;
    tiny_add(&t->table, "bias", 1, BIAS, 1, "bias", false);
    tiny_add(&t->table, "weight", 2, SIDE, SIDE, "weight", is_transposed);
    test_ok(device_open(device, DEVICE_FIRST, 1, &t->device));
    test_ok(stream_open(t->device, &t->stream));
    test_ok(param_store_sketch(
        &t->store, &(struct param_store_options){.table = &t->table, .device = t->device, .dtype = DTYPE_F32}));
    for (int i = 0; i < 2; i++) {
        test_ok(device_alloc(t->device, bytes, &t->memory[i]));
        t->ranges[i] =
            (struct param_range){.count = t->store.map.flat_elements, .data = t->memory[i], .type = DTYPE_F32};
        t->flats[i] = (struct ckpt_flat){
            .map = &t->store.map, .stream = t->stream, .ranges = &t->ranges[i], .count = 1, .dtype = DTYPE_F32};
    }
    test_ok(test_write(t->stream, t->memory[0], host, bytes));
    test_ok(stream_zero(t->stream, t->memory[1], bytes));
    test_ok(stream_wait(t->stream));
    t->out = ckpt_flat_array(&t->flats[0], "", false);
    t->in = ckpt_flat_array(&t->flats[1], "", false);
    free(host);
}

static void close_travel(struct travel *t) {
    for (int i = 0; i < 2; i++)
        device_free(t->device, t->memory[i]);
    param_store_close(&t->store);
    stream_close(t->stream);
    device_close(t->device);
    free(t->table.rows);
    free(t->root);
}

/* Reads a directory into the other memory, which must then hold what was written. */
static void check_came_back(struct travel *t, const char *directory) {
    struct ckpt_tensors *tensors;
    float *back = malloc(ELEMENTS * sizeof *back);
    test_ok(ckpt_open_model(directory, &tensors));
    test_ok(ckpt_read(tensors, &t->table, &t->in, 1));
    ckpt_close(tensors);
    test_ok(test_read(t->stream, back, t->memory[1], ELEMENTS * sizeof *back));
    for (size_t i = 0; i < ELEMENTS; i++) {
        bool is_gap = (i >= BIAS && i < BIAS + GAP) || i >= ELEMENTS - GAP;
        assert_true(back[i] == (is_gap ? 0 : (float)i));
    }
    free(back);
}

static void a_flat_array_travels_through_its_stream(void **state) {
    (void)state;
    for (int is_transposed = 0; is_transposed < 2; is_transposed++) {
        struct travel t;
        open_travel(&t, test_device(), is_transposed);
        char *directory = tiny_path(t.root, "m");
        test_ok(ckpt_write_model(directory,
                                 &(struct ckpt_model){.table = &t.table, .weights = &t.out, .config_text = "{}"}));
        check_came_back(&t, directory);
        free(directory);
        close_travel(&t);
    }
}

/* The device may change the arrays as soon as the save has begun. */
static void a_background_save_waits_once(void **state) {
    (void)state;
    struct travel t;
    open_travel(&t, "late", true);
    struct ckpt_array moments[] = {t.out, t.out};
    moments[0].prefix = "exp_avg.";
    moments[1].prefix = "exp_avg_sq.";
    const struct ckpt_save save = {.root = t.root,
                                   .model = {.table = &t.table, .weights = &t.out, .config_text = "{}"},
                                   .optimizer = moments,
                                   .optimizer_count = 2,
                                   .ours_until = -1};
    struct ckpt_saver *saver;
    int64_t bytes = late_counts(t.device).allocated;
    test_ok(ckpt_saver_open(&save, true, &saver));
    assert_int_equal(late_counts(t.device).allocated - bytes, CKPT_DEVICE_BYTES);
    struct late_counts before = late_counts(t.device);
    test_ok(ckpt_saver_begin(saver, 1, "{}\n"));
    struct late_counts after = late_counts(t.device);
    assert_int_equal(after.waits - before.waits, 1);
    assert_int_equal(after.uploads, before.uploads);
    test_ok(stream_zero(t.stream, t.memory[0], ELEMENTS * sizeof(float)));
    test_ok(stream_wait(t.stream));
    test_ok(ckpt_saver_wait(saver));
    ckpt_saver_close(saver);
    assert_int_equal(late_counts(t.device).allocated, bytes);
    char *directory = tiny_path(t.root, "iter_0000001");
    check_came_back(&t, directory);
    free(directory);
    close_travel(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flat_array_travels_through_its_stream),
        cmocka_unit_test(a_background_save_waits_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
