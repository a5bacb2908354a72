/* The packed storage holds encoded parameters in their bits, or decoded if the backend does not take them. */
#include "support/device.h"
#include "support/test.h"
#include "tensor/tensor.h"

enum { ROWS = 4, FUSED = 0, TABLE = 1, BIAS = 2, MIXED = 3, COLUMNS = 16, GROUP = 8, TENSORS = 2 };

static const struct param rows[ROWS] = {
    {.name = "fused",
     .dims = 2,
     .shape = {12, COLUMNS},
     .is_linear = true,
     .shard = PARAM_SHARD_AXIS0,
     .slice_count = 2,
     .slices = {{.rows = 8, .file_rows = 8}, {.row = 8, .rows = 4, .file_rows = 4}}},
    {.name = "table", .dims = 2, .shape = {20, COLUMNS}, .slice_count = 1, .slices = {{.rows = 20}}},
    {.name = "bias", .dims = 1, .shape = {12, 1}, .init = PARAM_INIT_ONE, .slice_count = 1, .slices = {{.rows = 12}}},
    {.name = "mixed",
     .dims = 2,
     .shape = {6, COLUMNS},
     .init = PARAM_INIT_ONE,
     .is_linear = true,
     .shard = PARAM_SHARD_AXIS0,
     .slice_count = 2,
     .slices = {{.rows = 4, .file_rows = 4}, {.row = 4, .rows = 2, .file_rows = 2}}},
};

static const struct encoding int4 = {
    .codes = CODES_INTEGERS, .bits = 4, .bias = 8, .scale_type = DTYPE_BF16, .group = GROUP};

struct task {
    struct param table_rows[ROWS];
    struct param_table table;
    struct device *device;
    struct stream *stream;
    struct ops ops; /* the device's, with a form of encoded weights: their codes, a byte each */
    struct param_store store;
    int parts[ROWS], plains[ROWS], fails_at, calls; /* calls: of pack */
};

static struct task *current; /* `pack` has no context */

/* The slice of rows 4 and 5 of "mixed" is plain. */
static bool describe(const void *context, const struct param *param, const struct param_rect *rects, int count,
                     struct encoded_layout *layout) {
    (void)context;
    if (param->dims == 1)
        return false;
    layout->count = count;
    for (int i = 0; i < count; i++) {
        bool is_plain = !strcmp(param->name, "mixed") && rects[i].row >= 4;
        layout->parts[i] =
            (struct encoded_part){.rows = rects[i].rows, .positions = rects[i].columns, .encoding = int4};
        if (is_plain)
            layout->parts[i].encoding = (struct encoding){.codes = CODES_NONE};
    }
    return true;
}

static uint8_t code_of(int64_t row, int64_t column) {
    return (uint8_t)((row * 7 + column * 3) % 16);
}

static float scale_of(int64_t row, int64_t group) {
    return 0.25f * (float)(1 + (row + group) % 3);
}

static float value_of(int64_t row, int64_t column) {
    return scale_of(row, column / GROUP) * (float)(code_of(row, column) - 8);
}

static size_t part_bytes(const struct encoded_layout *layout, int end) {
    size_t bytes = 0;
    for (int i = 0; i < end; i++)
        bytes += (size_t)(layout->parts[i].rows * layout->parts[i].positions);
    return bytes;
}

static size_t taken_bytes(struct device *device, const struct matrix_view *view) {
    return view->encoded ? part_bytes(view->encoded, view->encoded->count)
                         : ops_for(device)->packed_bytes(device, view);
}

static size_t refused_bytes(struct device *device, const struct matrix_view *view) {
    return view->encoded ? 0 : ops_for(device)->packed_bytes(device, view);
}

static int pack_codes(const struct exec *exec, const struct pack_call *a) {
    const struct encoded_layout *layout = a->plain.encoded;
    if (!layout)
        return ops_for(current->device)->pack(exec, a);
    const struct encoded_part *part = &layout->parts[a->part];
    char *to = (char *)a->out + part_bytes(layout, a->part);
    size_t bytes = (size_t)(part->rows * part->positions);
    if (part->encoding.codes == CODES_NONE) {
        assert_null(a->rows);
        assert_int_equal(a->plain.form, MATRIX_PLAIN);
        assert_int_equal(a->plain.rows, part->rows);
        assert_non_null(a->plain.data);
        return stream_zero(exec->stream, to, bytes);
    }
    assert_true(a->row % PACK_ROWS == 0 && a->row + a->rows->rows <= part->rows);
    current->calls++;
    return stream_copy_to_device(exec->stream, to + a->row * part->positions, a->rows->codes,
                                 (size_t)(a->rows->rows * part->positions));
}

static int fill(void *context, int id) {
    struct task *t = context;
    t->plains[id]++;
    return param_initialise(&t->store, t->stream, 5, id);
}

static int fill_encoded(void *context, int id, int part, const struct param_rect *rect, const struct encoded_rows *to) {
    struct task *t = context;
    assert_true(part == t->parts[id] || part + 1 == t->parts[id]); /* another block of the same part */
    t->parts[id] = part + 1;
    if (id == t->fails_at)
        return status_fail(STATUS_IO, "no codes");
    for (int64_t i = 0; i < to->rows; i++) {
        for (int64_t j = 0; j < to->positions; j++)
            to->codes[i * to->positions + j] = code_of(rect->row + i, rect->column + j);
        for (int64_t g = 0; g < to->positions / GROUP; g++)
            ((uint16_t *)to->scales)[i * (to->positions / GROUP) + g] =
                bf16_from_float(scale_of(rect->row + i, rect->column / GROUP + g));
    }
    return STATUS_OK;
}

static void open_task(struct task *t, enum dtype dtype, bool takes, int tensor, int64_t table_rows) {
    static const struct param_encodings encodings = {.describe = describe};
    *t = (struct task){.table = {.count = ROWS}, .fails_at = -1};
    memcpy(t->table_rows, rows, sizeof rows);
    t->table_rows[TABLE].shape[0] = t->table_rows[TABLE].slices[0].rows = table_rows;
    t->table.rows = t->table_rows;
    current = t;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &t->device));
    test_ok(stream_open(t->device, &t->stream));
    t->ops = *ops_for(t->device);
    t->ops.packed_bytes = takes ? taken_bytes : refused_bytes;
    t->ops.pack = pack_codes;
    const struct param_part part = {.tensor = tensor, .tensors = TENSORS};
    test_ok(param_store_sketch(&t->store, &(const struct param_store_options){.table = &t->table,
                                                                              .part = tensor < 0 ? NULL : &part,
                                                                              .device = t->device,
                                                                              .dtype = dtype,
                                                                              .storage = &storage_packed,
                                                                              .encodings = &encodings}));
    t->store.ops = &t->ops;
}

static int fill_store(struct task *t) {
    return param_store_open(
        &t->store,
        &(const struct param_fill){.stream = t->stream, .fill = fill, .fill_encoded = fill_encoded, .context = t});
}

static void close_task(struct task *t) {
    param_store_close(&t->store);
    stream_close(t->stream);
    device_close(t->device);
}

/* Compares the codes of a parameter's parts with those of its rows in the model. */
static void check_codes(struct task *t, int id) {
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&t->store.map.part, &t->table, id, rects);
    struct matrix_view view = param_borrow_linear(&t->store, id);
    assert_int_equal(view.form, MATRIX_PACKED);
    assert_non_null(view.encoded);
    assert_int_equal(view.encoded->count, count);
    uint8_t *codes = test_copy(t->stream, view.data, part_bytes(view.encoded, count)), *code = codes;
    for (int r = 0; r < count; r++)
        for (int64_t i = 0; i < rects[r].rows; i++)
            for (int64_t j = 0; j < rects[r].columns; j++, code++) {
                bool is_plain = view.encoded->parts[r].encoding.codes == CODES_NONE;
                assert_int_equal(*code, is_plain ? 0 : code_of(rects[r].row + i, rects[r].column + j));
            }
    free(codes);
    param_return(&t->store, id);
}

static size_t aligned(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static void encoded_parameters_are_held_in_their_bits(void **state) {
    (void)state;
    for (int tensor = -1; tensor < TENSORS; tensor++) {
        struct task t;
        open_task(&t, DTYPE_BF16, true, tensor, 20);
        size_t share = tensor < 0 ? 1 : TENSORS;
        size_t bytes = aligned(12 / share * COLUMNS) + aligned((size_t)20 * COLUMNS) + aligned(12 * sizeof(uint16_t)) +
                       aligned(6 / share * COLUMNS);
        assert_int_equal(param_weight_bytes(&t.store), bytes);
        assert_non_null(param_view(&t.store, FUSED, PARAM_LINEAR).encoded);
        test_ok(fill_store(&t));
        check_codes(&t, FUSED);
        check_codes(&t, TABLE);
        check_codes(&t, MIXED);
        assert_int_equal(t.parts[FUSED], 2);
        assert_int_equal(t.parts[MIXED], 1);
        assert_int_equal(t.plains[FUSED] + t.plains[TABLE], 0); /* no plain copy */
        assert_int_equal(t.plains[MIXED], 1);
        close_task(&t);
    }
}

/* Compares "fused", which the backend packs, and "table", which stays plain, with their values. */
static void check_decoded(struct task *t, enum dtype dtype) {
    struct matrix_view table = param_borrow(&t->store, TABLE), fused = param_borrow_linear(&t->store, FUSED);
    assert_null(fused.encoded);
    void *values = test_copy(t->stream, table.data, (size_t)(table.rows * table.columns) * dtype_bytes(dtype));
    for (int64_t i = 0; i < table.rows * table.columns; i++) {
        float expected = value_of(i / COLUMNS, i % COLUMNS);
        assert_true((dtype == DTYPE_F32 ? ((float *)values)[i] : bf16_to_float(((uint16_t *)values)[i])) == expected);
    }
    free(values);
    if (fused.form == MATRIX_PACKED) { /* its rows' squares are those of the values */
        struct row_squares call = {.weight = fused, .rows = fused.rows};
        float *squares = NULL, expected = 0;
        test_ok(device_alloc(t->device, (size_t)fused.rows * sizeof *squares, (void **)&call.squares));
        test_ok(t->ops.row_squares(&(const struct exec){.stream = t->stream}, &call));
        squares = test_copy(t->stream, call.squares, (size_t)fused.rows * sizeof *squares);
        for (int64_t j = 0; j < COLUMNS; j++)
            expected += value_of(11, j) * value_of(11, j);
        assert_true(squares[11] > 0.999f * expected && squares[11] < 1.001f * expected);
        free(squares);
        device_free(t->device, call.squares);
    }
    param_return(&t->store, TABLE);
    param_return(&t->store, FUSED);
}

static void what_the_backend_does_not_take_is_decoded(void **state) {
    (void)state;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        struct task t;
        enum dtype dtype = is_bf16 ? DTYPE_BF16 : DTYPE_F32;
        open_task(&t, dtype, false, -1, 20);
        assert_null(param_view(&t.store, FUSED, PARAM_LINEAR).encoded);
        assert_non_null(t.store.map.places[FUSED].encoded);
        test_ok(fill_store(&t));
        check_decoded(&t, dtype);
        close_task(&t);
    }
}

static void a_large_part_is_packed_in_blocks(void **state) {
    (void)state;
    struct task t;
    open_task(&t, DTYPE_BF16, true, -1, 300001);
    test_ok(fill_store(&t));
    check_codes(&t, TABLE);
    assert_true(t.calls > 4); /* one for each of the other parts */
    close_task(&t);
}

static void a_part_without_codes_ends_it(void **state) {
    (void)state;
    struct task t;
    open_task(&t, DTYPE_F32, true, -1, 20);
    t.fails_at = MIXED;
    test_fails(fill_store(&t), STATUS_IO, "no codes");
    close_task(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoded_parameters_are_held_in_their_bits),
        cmocka_unit_test(what_the_backend_does_not_take_is_decoded),
        cmocka_unit_test(a_large_part_is_packed_in_blocks),
        cmocka_unit_test(a_part_without_codes_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
