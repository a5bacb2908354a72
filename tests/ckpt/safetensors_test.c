/* safetensors: every way a file can lie is refused with its name and place; what is written is what is read. */
#include "tiny_gpt2.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char *directory;

static int make_directory(void **state) {
    (void)state;
    directory = test_directory();
    return 0;
}

static int free_directory(void **state) {
    (void)state;
    free(directory);
    return 0;
}

/* Writes a file of header text and `data_bytes` zeros; `length` -1: the header's own. */
static void write_file(const char *header, int64_t length, size_t data_bytes) {
    struct strbuf text = STRBUF_INIT;
    uint64_t number = length == -1 ? strlen(header) : (uint64_t)length;
    strbuf_add(&text, &number, 8);
    strbuf_add_text(&text, header);
    for (size_t i = 0; i < data_bytes; i++)
        strbuf_add_char(&text, 0);
    tiny_write(directory, "f", text.data, text.length);
    strbuf_free(&text);
}

static int open_file(struct safetensors **file) {
    char *path = tiny_path(directory, "f");
    int status = safetensors_open(path, file);
    free(path);
    return status;
}

/* The file must be refused with a one-line message that names the file and has `part` in it. */
static void refuse(const char *header, int64_t length, size_t data_bytes, const char *part) {
    struct safetensors *file;
    write_file(header, length, data_bytes);
    test_fails(open_file(&file), STATUS_INVALID, part);
    assert_null(file);
    assert_non_null(strstr(status_text(), directory));
    assert_null(strchr(status_text(), '\n'));
}

#define ONE(dtype, shape, offsets) "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                                                                      \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" a "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"          \
    "\"data_offsets\":" b "}}"

static void wrong_header_sizes_are_refused(void **state) {
    (void)state;
    struct safetensors *file;
    tiny_write(directory, "f", "", 0);
    test_fails(open_file(&file), STATUS_INVALID, "0 bytes, but the length of the header takes 8");
    tiny_write(directory, "f", "\x10\0\0\0\0\0\0", 7);
    test_fails(open_file(&file), STATUS_INVALID, "7 bytes");
    refuse("{}", 3, 0, "header of 3 bytes (byte 0), but the file ends 2 bytes after it");
    refuse("{}", 100000000, 0, "but the file ends 2 bytes");
    refuse("{}", 100000001, 0, "header of 100000001 bytes (byte 0), more than the 100000000 allowed");
    refuse("{}", INT64_MAX, 0, "more than the 100000000 allowed");
    refuse("{}", INT64_MIN, 0, "header of 9223372036854775808 bytes");
    refuse("", 0, 0, "damaged JSON at byte 8");
}

static void damaged_json_is_refused_with_its_byte(void **state) {
    (void)state;
    refuse("{\"w\":", -1, 0, "damaged JSON at byte 13");
    refuse("[]", -1, 0, "expected a JSON object at byte 8");
    refuse("{} {}", -1, 0, "damaged JSON at byte");
    refuse("{\"w\":{},\n\"w\":{}}", -1, 0, "duplicate object key");
    refuse("{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", -1, 0, "duplicate object key");
    refuse("{\"\xff\":{}}", -1, 0, "damaged JSON at byte");
    refuse("{\"w\\u0000\":{}}", -1, 0, "damaged JSON at byte");
    refuse("{\"w\n\":{}}", -1, 0, "damaged JSON at byte");
    refuse("{\"w\\n\":{}}", -1, 0, "tensor 'w?': control character 0x0a in its name");
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = 0;
    refuse(deep, -1, 0, "damaged JSON at byte");
    free(deep);
}

static void wrong_types_and_shapes_are_refused(void **state) {
    (void)state;
    refuse("{\"w\":[]}", -1, 0, "tensor 'w': must be an object");
    refuse("{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4, "tensor 'w': unknown dtype '(no text)'");
    refuse(ONE("\"F33\"", "[1]", "[0,4]"), -1, 4, "tensor 'w': unknown dtype 'F33' (expected F32");
    refuse(ONE("\"F\\n3\"", "[1]", "[0,4]"), -1, 4, "unknown dtype 'F?3'");
    refuse(ONE("7", "[1]", "[0,4]"), -1, 4, "unknown dtype");
    refuse(ONE("\"F32\"", "1", "[0,4]"), -1, 4, "shape must be a list of at most 8 sizes");
    refuse(ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), -1, 4, "shape must be a list of at most 8 sizes");
    refuse(ONE("\"F32\"", "[1,-1]", "[0,4]"), -1, 4, "size 1 of the shape must be an integer of at least 0");
    refuse(ONE("\"F32\"", "[1.0]", "[0,4]"), -1, 4, "size 0 of the shape must be an integer");
    refuse(ONE("\"F32\"", "[99999999999999999999]", "[0,4]"), -1, 4, "damaged JSON");
    refuse(ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), -1, 0, "more elements than fit 64 bits (size 1 is");
    refuse(ONE("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"), -1, 0, "more elements than fit 64 bits");
    refuse(ONE("\"F32\"", "[4611686018427387904]", "[0,0]"), -1, 0, "more bytes than fit 64 bits");
    refuse(ONE("\"F32\"", "[2]", "[0,4]"), -1, 4, "4 bytes at byte 62, but its dtype and shape make 8");
    refuse(ONE("\"BF16\"", "[2]", "[0,8]"), -1, 8, "8 bytes at byte 63, but its dtype and shape make 4");
}

static void wrong_places_are_refused(void **state) {
    (void)state;
    refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", -1, 4, "data_offsets must be two integers");
    refuse(ONE("\"F32\"", "[1]", "[0]"), -1, 4, "data_offsets must be two integers");
    refuse(ONE("\"F32\"", "[1]", "[0,4,8]"), -1, 4, "data_offsets must be two integers");
    refuse(ONE("\"F32\"", "[1]", "[0,\"4\"]"), -1, 4, "data_offsets must be two integers");
    refuse(ONE("\"F32\"", "[1]", "[-4,0]"), -1, 4, "data_offsets [-4, 0] are outside the 4 bytes of data from byte 63");
    refuse(ONE("\"F32\"", "[1]", "[4,0]"), -1, 4, "are outside the 4 bytes");
    refuse(ONE("\"F32\"", "[1]", "[0,4]"), -1, 3, "data_offsets [0, 4] are outside the 3 bytes");
    refuse(ONE("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), -1, 4, "are outside the 4 bytes");
    refuse(ONE("\"F32\"", "[1]", "[4,8]"), -1, 8, "tensor 'w': starts at byte 66, 4 bytes after the end of the data");
    refuse(ONE("\"F32\"", "[1]", "[0,4]"), -1, 7, "3 bytes after the last tensor, which ends at byte 66");
    refuse("{}", -1, 5, "5 bytes after the last tensor, which ends at byte 10");
    refuse(TWO("[0,8]", "[4,12]"), -1, 12, "tensor 'b': starts at byte 120 inside tensor 'a', which ends at byte 124");
    refuse(TWO("[0,8]", "[0,8]"), -1, 8, "inside tensor");
    refuse(TWO("[0,8]", "[12,20]"), -1, 20, "tensor 'b': starts at byte 129, 4 bytes after the end of the data before");
    refuse(TWO("[8,16]", "[0,8]"), -1, 20, "4 bytes after the last tensor, which ends at byte 132");
}

static void wrong_metadata_is_refused(void **state) {
    (void)state;
    refuse("{\"__metadata__\":[]}", -1, 0, "__metadata__ must be an object");
    refuse("{\"__metadata__\":{\"format\":1}}", -1, 0, "value of 'format' in __metadata__ must be a string");
}

static void what_is_no_file_is_refused(void **state) {
    (void)state;
    struct safetensors *file;
    char *path = tiny_path(directory, "none");
    test_fails(safetensors_open(path, &file), STATUS_NOT_FOUND, "No such file");
    test_fails(safetensors_open(directory, &file), STATUS_INVALID, "is not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    test_fails(safetensors_open(path, &file), STATUS_INVALID, "is not a regular file");
    free(path);
}

/* Cut at every length, a whole file must never pass. */
static void a_truncated_file_is_refused_at_every_length(void **state) {
    (void)state;
    struct safetensors *file;
    struct strbuf whole = tiny_text(TEST_DATA "/ckpt/golden/bf16", "model.safetensors");
    for (size_t n = 0; n < whole.length; n += n < 64 ? 1 : 61) {
        tiny_write(directory, "f", whole.data, n);
        assert_int_equal(open_file(&file), STATUS_INVALID);
    }
    strbuf_free(&whole);
}

static void well_formed_corners_are_accepted(void **state) {
    (void)state;
    struct safetensors *file;
    write_file("{}      ", -1, 0);
    test_ok(open_file(&file));
    assert_int_equal(safetensors_count(file), 0);
    assert_null(safetensors_find(file, "w"));
    safetensors_close(file);
    write_file("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[8,9]},"
               "\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
               "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]}}",
               -1, 9);
    test_ok(open_file(&file));
    assert_int_equal(safetensors_count(file), 3);
    assert_string_equal(safetensors_at(file, 0)->name, "a");
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    assert_null(safetensors_metadata(file, "other"));
    const struct safetensor *scalar = safetensors_find(file, "b");
    assert_int_equal(scalar->dims, 0);
    assert_int_equal(scalar->elements, 1);
    assert_int_equal(scalar->dtype, DTYPE_COUNT);
    float f;
    int64_t i;
    test_fails(safetensors_read(file, scalar, 0, 1, DTYPE_F32, &f), STATUS_UNSUPPORTED,
               "type BOOL cannot be read as fp32");
    test_ok(safetensors_read(file, safetensors_find(file, "a"), 0, 1, DTYPE_I64, &i));
    test_fails(safetensors_read(file, safetensors_find(file, "a"), 1, 1, DTYPE_I64, &i), STATUS_INVALID, "it has 1");
    safetensors_close(file);
}

/* A file of one tensor. */
static void write_values(const char *name, enum dtype dtype, const void *values, int64_t count) {
    struct safetensors_header *header;
    char *path = tiny_path(directory, name);
    test_ok(safetensors_header_new(&header));
    assert_int_equal(safetensors_header_add(header, "w", safetensors_type_name(dtype), 1, &count), 0);
    test_ok(tiny_write_tensors(header, path, &values, 1, (size_t)count * dtype_bytes(dtype)));
    safetensors_header_free(header);
    free(path);
}

static void every_float_type_is_read_as_fp32_and_bf16(void **state) {
    (void)state;
    enum { COUNT = 700000 }; /* more than one core reads */
    static float f32[COUNT], out32[COUNT];
    static double f64[COUNT];
    static uint16_t f16[COUNT], bf16[COUNT], out16[COUNT];
    for (int i = 0; i < COUNT; i++) {
        f64[i] = (double)sinf((float)i) * 100 / 3;
        f32[i] = (float)f64[i];
        f16[i] = f16_from_float(f32[i]);
        bf16[i] = bf16_from_float(f32[i]);
    }
    const struct {
        enum dtype dtype;
        const void *values;
    } cases[] = {{DTYPE_F32, f32}, {DTYPE_F64, f64}, {DTYPE_F16, f16}, {DTYPE_BF16, bf16}};
    for (int c = 0; c < 4; c++) {
        struct safetensors *file;
        write_values("f", cases[c].dtype, cases[c].values, COUNT);
        test_ok(open_file(&file));
        const struct safetensor *tensor = safetensors_find(file, "w");
        assert_int_equal(tensor->dtype, cases[c].dtype);
        enum { FIRST = 777, PART = COUNT - 1000 };
        test_ok(safetensors_read(file, tensor, FIRST, PART, DTYPE_F32, out32));
        test_ok(safetensors_read(file, tensor, FIRST, PART, DTYPE_BF16, out16));
        for (int i = 0; i < PART; i++) {
            float expected = cases[c].dtype == DTYPE_F16    ? f16_to_float(f16[i + FIRST])
                             : cases[c].dtype == DTYPE_BF16 ? bf16_to_float(bf16[i + FIRST])
                                                            : f32[i + FIRST];
            assert_true(out32[i] == expected);
            assert_int_equal(out16[i], bf16_from_float(expected));
        }
        safetensors_close(file);
    }
}

/* Opened, then cut: whichever core finds it, the caller has the text. */
static void a_file_that_shrinks_is_an_error(void **state) {
    (void)state;
    enum { COUNT = 700000 };
    static float values[COUNT], out[COUNT];
    struct safetensors *file;
    char *path = tiny_path(directory, "f");
    write_values("f", DTYPE_F32, values, COUNT);
    test_ok(open_file(&file));
    assert_int_equal(truncate(path, COUNT * 3), 0);
    for (int type = 0; type < 2; type++) {
        test_fails(safetensors_read(file, safetensors_find(file, "w"), 0, COUNT, type ? DTYPE_BF16 : DTYPE_F32, out),
                   STATUS_INVALID, path);
        assert_null(strchr(status_text(), '\n'));
    }
    safetensors_close(file);
    free(path);
}

static void a_written_file_is_ordered_by_width_then_name(void **state) {
    (void)state;
    struct safetensors_header *header;
    struct safetensors *file;
    char *path = tiny_path(directory, "f");
    enum { COUNT = 15, BYTES = COUNT * 4 };
    const int64_t shape[2] = {3, 5}, wide[2] = {3, 10}; /* of the same bytes */
    float y[COUNT], z[COUNT], out[COUNT];
    uint16_t a[2 * COUNT], out_narrow[2 * COUNT];
    for (int i = 0; i < 2 * COUNT; i++) {
        y[i / 2] = (float)i;
        z[i / 2] = (float)(100 + i);
        a[i] = bf16_from_float((float)-i);
    }
    test_ok(safetensors_header_new(&header));
    assert_int_equal(safetensors_header_add(header, "a \"quoted\"", safetensors_type_name(DTYPE_BF16), 2, wide), 0);
    assert_int_equal(safetensors_header_add(header, "z", safetensors_type_name(DTYPE_F32), 2, shape), 1);
    assert_int_equal(safetensors_header_add(header, "y", safetensors_type_name(DTYPE_F32), 2, shape), 2);
    test_ok(tiny_write_tensors(header, path, (const void *const[]){a, z, y}, 3, BYTES));
    safetensors_header_free(header);
    test_ok(safetensors_open(path, &file));
    const struct safetensor *read_y = safetensors_find(file, "y"), *read_z = safetensors_find(file, "z"),
                            *read_a = safetensors_find(file, "a \"quoted\"");
    assert_true(read_y->start < read_z->start && read_z->start < read_a->start);
    assert_int_equal(read_y->start % 8, 0);
    test_ok(safetensors_read(file, read_z, 0, COUNT, DTYPE_F32, out));
    assert_memory_equal(out, z, BYTES);
    test_ok(safetensors_read(file, read_a, 0, 2 * COUNT, DTYPE_BF16, out_narrow));
    assert_memory_equal(out_narrow, a, BYTES);
    safetensors_close(file);
    free(path);
}

static void impossible_headers_are_refused(void **state) {
    (void)state;
    struct safetensors_header *header;
    test_ok(safetensors_header_new(&header));
    assert_int_equal(safetensors_header_add(header, "w", safetensors_type_name(DTYPE_F32), 1, (int64_t[]){INT64_MAX}),
                     STATUS_INVALID);
    assert_int_equal(safetensors_header_add(header, "w", safetensors_type_name(DTYPE_F32), 9, (int64_t[9]){1}),
                     STATUS_INVALID);
    assert_int_equal(safetensors_header_add(header, "w", safetensors_type_name(DTYPE_F32), 1, (int64_t[]){1}), 0);
    assert_int_equal(safetensors_header_add(header, "w", safetensors_type_name(DTYPE_BF16), 1, (int64_t[]){1}), 1);
    test_fails(safetensors_header_place(header, "g"), STATUS_INVALID, "g: tensor 'w' is planned twice");
    safetensors_header_free(header);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_header_sizes_are_refused),
        cmocka_unit_test(damaged_json_is_refused_with_its_byte),
        cmocka_unit_test(wrong_types_and_shapes_are_refused),
        cmocka_unit_test(wrong_places_are_refused),
        cmocka_unit_test(wrong_metadata_is_refused),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(a_truncated_file_is_refused_at_every_length),
        cmocka_unit_test(well_formed_corners_are_accepted),
        cmocka_unit_test(every_float_type_is_read_as_fp32_and_bf16),
        cmocka_unit_test(a_file_that_shrinks_is_an_error),
        cmocka_unit_test(a_written_file_is_ordered_by_width_then_name),
        cmocka_unit_test(impossible_headers_are_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, free_directory);
}
