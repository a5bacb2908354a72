/* If any allocation of a table or of a store fails, the failure is reported and no memory is leaked. */
#include "tensor/tensor.h"

#include "support/failing.h"
#include "support/test.h"

enum { PARAMS = 70 /* more than a table has room for at first */, STORED = 4, ROWS = 16, COLUMNS = 8 };

/* The data of each use. */
struct scene {
    struct device *device;
    struct stream *stream;
    struct param_store store;
};

static int describe(struct param_table *table) {
    int added = 0;
    for (int i = 0; i < PARAMS && added >= 0; i++) {
        struct param row = {.dims = 2,
                            .shape = {ROWS, COLUMNS},
                            .init = PARAM_INIT_NORMAL,
                            .init_std = 1,
                            .is_trainable = true,
                            .is_linear = i % 2,
                            .slice_count = 1,
                            .slices = {{.rows = ROWS, .file_rows = ROWS}}};
        snprintf(row.name, sizeof row.name, "param.%d", i);
        added = param_table_add(table, &row);
    }
    return added < 0 ? added : STATUS_OK;
}

/* Half of the linears are in few bits. */
static bool describe_encoding(const void *context, const struct param *param, const struct param_rect *rects, int count,
                              struct encoded_layout *layout) {
    (void)context;
    const struct encoding int4 = {
        .codes = CODES_INTEGERS, .bits = 4, .bias = 8, .scale_type = DTYPE_BF16, .group = COLUMNS};
    *layout = (struct encoded_layout){
        .count = count, .parts = {{.rows = rects[0].rows, .positions = rects[0].columns, .encoding = int4}}};
    return !strcmp(param->name, "param.1");
}

static int fill_encoded(void *context, int id, int part, const struct param_rect *rect, const struct encoded_rows *to) {
    (void)context;
    (void)id;
    (void)part;
    (void)rect;
    memset(to->codes, 7, (size_t)(to->rows * to->positions));
    memset(to->scales, 0, (size_t)to->rows * sizeof(uint16_t));
    return STATUS_OK;
}

static int fill(void *context, int id) {
    struct scene *scene = context;
    return param_initialise(&scene->store, scene->stream, 5, id);
}

static int use_store(struct scene *scene, const struct param_table *table, bool is_packed) {
    static const struct param_encodings encodings = {.describe = describe_encoding};
    struct param_store_options options = {.table = table,
                                          .encodings = is_packed ? &encodings : NULL,
                                          .device = scene->device,
                                          .dtype = is_packed ? DTYPE_BF16 : DTYPE_F32,
                                          .storage = is_packed ? &storage_packed : &storage_whole,
                                          .has_gradients = !is_packed};
    const struct param_fill values = {
        .stream = scene->stream, .fill = fill, .fill_encoded = fill_encoded, .context = scene};
    int status = param_store_sketch(&scene->store, &options);
    if (!status)
        status = param_store_open(&scene->store, &values);
    param_store_close(&scene->store);
    return status;
}

static int describe_and_use(void *context) {
    struct param_table table = {0};
    int status = describe(&table);
    const struct param_table few = {.rows = table.rows, .count = STORED};
    if (!status)
        status = use_store(context, &few, false);
    if (!status)
        status = use_store(context, &few, true);
    param_table_free(&table);
    return status;
}

static void stores_open_and_close(void **state) {
    struct scene scene;
    (void)state;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &scene.device));
    test_ok(stream_open(scene.device, &scene.stream));
    test_ok(describe_and_use(&scene)); /* a stream that queues keeps the memory of its list */
    assert_int_equal(failing_try_all(describe_and_use, &scene, 300), 0);
    stream_close(scene.stream);
    device_close(scene.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
