/* The packed storage is filled with one parameter at a time. Tests the form of each, and that only one is plain
 * meanwhile.
 */
#include "support/device.h"
#include "support/test.h"
#include "tensor/tensor.h"

enum { ROWS = 4, TIED = 0 };

/* A tied embedding, a small linear, a bias, and the largest. */
static const struct param rows[ROWS] = {
    {.name = "tied", .dims = 2, .shape = {300, 8}, .init = PARAM_INIT_NORMAL, .is_linear = true, .is_embedding = true},
    {.name = "small", .dims = 2, .shape = {24, 8}, .init = PARAM_INIT_NORMAL, .is_linear = true},
    {.name = "bias", .dims = 1, .shape = {24, 1}, .init = PARAM_INIT_NORMAL},
    {.name = "large", .dims = 2, .shape = {70, 24}, .init = PARAM_INIT_NORMAL, .is_linear = true},
};

struct task {
    bool packs; /* the backend does; otherwise all weights stay plain */
    struct param table_rows[ROWS];
    struct param_table table;
    struct device *device;
    struct stream *stream;
    struct param_store plain, packed;
    int order[ROWS], filled, fails_at;
};

static void open_task(struct task *t, enum dtype dtype) {
    *t = (struct task){.table = {.count = ROWS}, .fails_at = -1};
    for (int i = 0; i < ROWS; i++) {
        t->table_rows[i] = rows[i];
        t->table_rows[i].init_std = 1;
        t->table_rows[i].slice_count = 1;
        t->table_rows[i].slices[0].rows = t->table_rows[i].slices[0].file_rows = rows[i].shape[0];
    }
    t->table.rows = t->table_rows;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &t->device));
    test_ok(stream_open(t->device, &t->stream));
    struct param_store_options options = {.table = &t->table, .device = t->device, .dtype = dtype};
    test_ok(param_store_sketch(&t->plain, &options));
    test_ok(param_store_open(&t->plain, NULL));
    test_ok(param_store_initialise(&t->plain, t->stream, 5));
    struct matrix_view small = matrix_plain(dtype, NULL, rows[1].shape[0], rows[1].shape[1]);
    t->packs = t->plain.ops->packed_bytes(t->device, &small) > 0;
    options.storage = &storage_packed;
    test_ok(param_store_sketch(&t->packed, &options));
}

static void close_task(struct task *t) {
    param_store_close(&t->plain);
    param_store_close(&t->packed);
    stream_close(t->stream);
    device_close(t->device);
}

static int fill(void *context, int id) {
    struct task *t = context;
    for (int i = 0; i < ROWS; i++) { /* of those that are packed, this one alone is plain */
        const void *plain = param_borrow(&t->packed, i).data;
        param_return(&t->packed, i);
        if (t->packs && rows[i].is_linear)
            assert_int_equal(plain != NULL, i == id);
    }
    struct matrix_view view = param_borrow(&t->packed, id);
    param_return(&t->packed, id);
    assert_non_null(view.data);
    assert_int_equal(view.form, MATRIX_PLAIN);
    assert_int_equal(view.rows * view.columns, param_elements(&rows[id]));
    t->order[t->filled++] = id;
    if (t->filled - 1 == t->fails_at)
        return status_fail(STATUS_IO, "no more");
    return param_initialise(&t->packed, t->stream, 5, id);
}

static void compare(const struct task *t, const void *found, const void *expected, size_t bytes) {
    void *a = test_copy(t->stream, found, bytes), *b = test_copy(t->stream, expected, bytes);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
}

static void check_packed(struct task *t, struct exec *exec, int i, const struct matrix_view *plain) {
    size_t bytes = t->plain.ops->packed_bytes(t->device, plain);
    void *expected;
    assert_true(bytes > 0);
    test_ok(device_alloc(t->device, bytes, &expected));
    test_ok(t->plain.ops->pack(exec, &(const struct pack_call){.plain = *plain, .out = expected}));
    struct matrix_view found = param_borrow_linear(&t->packed, i);
    assert_int_equal(found.form, MATRIX_PACKED);
    compare(t, found.data, expected, bytes);
    device_free(t->device, expected);
    param_return(&t->packed, i);
}

static void check_values(struct task *t) {
    struct exec exec = {.stream = t->stream};
    size_t width = dtype_bytes(t->plain.map.type);
    for (int i = 0; i < ROWS; i++) {
        struct matrix_view plain = param_borrow(&t->plain, i), kept = param_borrow(&t->packed, i);
        assert_int_equal(kept.data != NULL, !t->packs || !rows[i].is_linear);
        if (kept.data)
            compare(t, kept.data, plain.data, (size_t)param_elements(&rows[i]) * width);
        if (t->packs && rows[i].is_linear)
            check_packed(t, &exec, i, &plain);
        param_return(&t->plain, i);
        param_return(&t->packed, i);
    }
}

static int open_packed(struct task *t) {
    return param_store_open(&t->packed, &(const struct param_fill){.stream = t->stream, .fill = fill, .context = t});
}

static void a_store_is_packed_one_parameter_after_the_other(void **state) {
    (void)state;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        struct task t;
        open_task(&t, is_bf16 ? DTYPE_BF16 : DTYPE_F32);
        test_ok(open_packed(&t));
        assert_int_equal(t.filled, ROWS);
        if (t.packs) { /* the largest whose plain values are freed; those that stay plain need no extra room */
            assert_int_equal(t.order[0], TIED);
            assert_int_equal(t.order[1], 3);
            assert_int_equal(t.order[2], 1);
        }
        check_values(&t);
        close_task(&t);
    }
}

static void what_cannot_be_filled_ends_it(void **state) {
    (void)state;
    struct task t;
    open_task(&t, DTYPE_F32);
    t.fails_at = 1;
    test_fails(open_packed(&t), STATUS_IO, "no more");
    assert_int_equal(t.filled, 2);
    close_task(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_is_packed_one_parameter_after_the_other),
        cmocka_unit_test(what_cannot_be_filled_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
