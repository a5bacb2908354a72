/* GGUF: every way in which a file can lie is refused with its name and place. Values of each type are those of
 * llama.cpp's own package, bit for bit. */
#include "base/json.h"
#include "ckpt/gguf.h"
#include "support/test.h"

#include <math.h>
#include <unistd.h>

static char *directory, path[4096];

static int make_directory(void **state) {
    (void)state;
    directory = test_directory();
    snprintf(path, sizeof path, "%s/f.gguf", directory);
    return 0;
}

static int free_directory(void **state) {
    (void)state;
    free(directory);
    return 0;
}

/* ---- writing ---- */

enum { U8 = 0, U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10 };

static void number(struct strbuf *out, uint64_t value, size_t bytes) {
    strbuf_add(out, &value, bytes);
}

static void string(struct strbuf *out, const char *text) {
    number(out, strlen(text), 8);
    strbuf_add_text(out, text);
}

/* The beginning of a file. */
static struct strbuf start(uint32_t version, uint64_t tensors, uint64_t keys) {
    struct strbuf out = STRBUF_INIT;
    strbuf_add_text(&out, "GGUF");
    number(&out, version, 4);
    number(&out, tensors, 8);
    number(&out, keys, 8);
    return out;
}

static void key(struct strbuf *out, const char *name, uint32_t kind) {
    string(out, name);
    number(out, kind, 4);
}

static void integer_key(struct strbuf *out, const char *name, uint64_t value) {
    key(out, name, U32);
    number(out, value, 4);
}

/* A tensor of one or two dimensions, the last one first. */
static void tensor(struct strbuf *out, const char *name, uint64_t columns, uint64_t rows, uint32_t type,
                   uint64_t place) {
    string(out, name);
    number(out, rows ? 2 : 1, 4);
    number(out, columns, 8);
    if (rows)
        number(out, rows, 8);
    number(out, type, 4);
    number(out, place, 8);
}

static void data(struct strbuf *out, size_t alignment, const void *bytes, size_t length) {
    while (out->length % alignment)
        strbuf_add_char(out, 0);
    strbuf_add(out, bytes, length);
}

static int open_bytes(struct strbuf *bytes, struct gguf **file) {
    test_ok(file_write_atomic(path, strbuf_text(bytes), bytes->length));
    strbuf_free(bytes);
    return gguf_open(path, file);
}

/* The file must be refused in one line that names it and has `part` in it. */
static void refuse(struct strbuf bytes, int status, const char *part) {
    struct gguf *file;
    test_fails(open_bytes(&bytes, &file), status, part);
    assert_null(file);
    assert_non_null(strstr(status_text(), directory));
    assert_null(strchr(status_text(), '\n'));
}

static const float ZEROS[64];

/* A file of one tensor of F32 with 64 bytes of data. */
static struct strbuf one_tensor(uint64_t columns, uint64_t rows, uint32_t type, uint64_t place) {
    struct strbuf out = start(3, 1, 0);
    tensor(&out, "w", columns, rows, type, place);
    data(&out, 32, ZEROS, 64);
    return out;
}

/* ---- hostile files ---- */

static void other_files_are_refused(void **state) {
    (void)state;
    struct strbuf bytes = STRBUF_INIT;
    strbuf_add_text(&bytes, "GG");
    refuse(bytes, STATUS_INVALID, "byte 0: 4 bytes are expected here, but the file ends after 2");
    bytes = STRBUF_INIT;
    strbuf_add_text(&bytes, "PK\3\4 and more");
    refuse(bytes, STATUS_INVALID, "is not a GGUF file: it does not begin with GGUF");
    refuse(start(1, 0, 0), STATUS_UNSUPPORTED, "version 1 of GGUF is not read (expected 2 or 3)");
    refuse(start(0x03000000, 0, 0), STATUS_UNSUPPORTED, "this file is big-endian");
    refuse(start(3, UINT64_MAX, 0), STATUS_INVALID, "18446744073709551615 tensors and 0 keys, more than");
    refuse(start(3, 0, 1 << 17), STATUS_INVALID, "0 tensors and 131072 keys, more than");
    refuse(start(3, 0, 1), STATUS_INVALID, "byte 24: 8 bytes are expected here, but the file ends after 0");
    bytes = start(3, 0, 1);
    integer_key(&bytes, "split.count", 3);
    refuse(bytes, STATUS_INVALID, "is one of 3 parts of a model: name the first one, NAME-00001-of-00003.gguf");
}

static void hostile_keys_are_refused(void **state) {
    (void)state;
    struct strbuf bytes = start(3, 0, 1);
    number(&bytes, UINT64_MAX, 8);
    refuse(bytes, STATUS_INVALID, "byte 32: 18446744073709551615 bytes are expected here");
    bytes = start(3, 0, 1);
    key(&bytes, "k", 13);
    refuse(bytes, STATUS_INVALID, "unknown type of a value");
    bytes = start(3, 0, 1);
    key(&bytes, "k", ARRAY);
    number(&bytes, ARRAY, 4);
    number(&bytes, 1, 8);
    refuse(bytes, STATUS_INVALID, "an array of arrays");
    bytes = start(3, 0, 1);
    key(&bytes, "k", ARRAY);
    number(&bytes, U64, 4);
    number(&bytes, UINT64_MAX / 8 + 1, 8);
    refuse(bytes, STATUS_INVALID, "more bytes than fit 64 bits");
    bytes = start(3, 0, 1);
    key(&bytes, "k", ARRAY);
    number(&bytes, STRING, 4);
    number(&bytes, UINT64_MAX, 8);
    refuse(bytes, STATUS_INVALID, "but the file ends after 0");
    bytes = start(3, 0, 1);
    key(&bytes, "\xff", U8);
    refuse(bytes, STATUS_INVALID, "a string is not UTF-8 without zero bytes");
    bytes = start(3, 0, 2);
    integer_key(&bytes, "k", 1);
    integer_key(&bytes, "k", 2);
    refuse(bytes, STATUS_INVALID, "the key 'k' is there twice");
    bytes = start(3, 0, 1);
    integer_key(&bytes, "general.alignment", 24);
    refuse(bytes, STATUS_INVALID, "general.alignment 24 is not a power of two");
    bytes = start(3, 0, 1);
    integer_key(&bytes, "general.alignment", 0);
    refuse(bytes, STATUS_INVALID, "'general.alignment' must be an integer from 1 to");
}

static void hostile_tensors_are_refused(void **state) {
    (void)state;
    refuse(one_tensor(4, 0, 0, 0x8000000000000000), STATUS_INVALID, "place or size exceeds 64 bits");
    refuse(one_tensor(4, 0, 0, 4), STATUS_INVALID, "tensor 'w' starts at byte 4 of the data, no multiple of 32");
    refuse(one_tensor(4, 0, 0, 64), STATUS_INVALID,
           "of 16 bytes at byte 64 of the data exceeds the file, which has 64");
    refuse(one_tensor(17, 0, 0, 0), STATUS_INVALID, "of 68 bytes at byte 0 of the data exceeds");
    refuse(one_tensor(4, 0, 0, INT64_MAX / 32 * 32), STATUS_INVALID, "exceeds the file");
    refuse(one_tensor(0, 0, 0, 0), STATUS_INVALID, "a size of 0, or more elements than fit 64 bits");
    refuse(one_tensor(UINT64_MAX, 0, 0, 0), STATUS_INVALID, "a size of 0, or more elements than fit 64 bits");
    refuse(one_tensor(1ull << 32, 1ull << 32, 0, 0), STATUS_INVALID, "more elements than fit 64 bits");
    refuse(one_tensor(1ull << 31, 1ull << 31, 0, 0), STATUS_INVALID, "place or size exceeds 64 bits");
    refuse(one_tensor(33, 0, 8, 0), STATUS_INVALID, "rows are not whole blocks of its type");
    refuse(one_tensor(32, 0, 4, 0), STATUS_UNSUPPORTED, "tensor 'w' has the type 4, which is not read (read are: F32");
    refuse(one_tensor(256, 0, 16, 0), STATUS_UNSUPPORTED, "tensor 'w' has the type IQ2_XXS, which is not read");
    refuse(one_tensor(32, 0, 39, 0), STATUS_UNSUPPORTED, "tensor 'w' has the type MXFP4, which is not read");
    struct strbuf bytes = start(3, 1, 0);
    string(&bytes, "w");
    number(&bytes, 5, 4);
    refuse(bytes, STATUS_INVALID, "none or more than 4 dimensions");
    bytes = start(3, 2, 0);
    tensor(&bytes, "a", 16, 0, 0, 0);
    tensor(&bytes, "b", 4, 0, 0, 32);
    data(&bytes, 32, ZEROS, 128);
    refuse(bytes, STATUS_INVALID, "tensor 'b' starts inside tensor 'a'");
    bytes = start(3, 2, 0);
    tensor(&bytes, "a", 4, 0, 0, 0);
    tensor(&bytes, "a", 4, 0, 0, 32);
    data(&bytes, 32, ZEROS, 128);
    refuse(bytes, STATUS_INVALID, "two tensors are called 'a'");
}

static void reads_stay_within_the_tensor_and_are_finite(void **state) {
    (void)state;
    struct strbuf bytes = start(2, 2, 0);
    const float values[] = {1, 2, 3, NAN, 5, INFINITY};
    struct gguf *file;
    float out[8];
    tensor(&bytes, "w", 2, 3, 0, 0);
    tensor(&bytes, "v", 2, 0, 0, 64);
    data(&bytes, 32, values, sizeof values);
    data(&bytes, 32, ZEROS, 64);
    test_ok(open_bytes(&bytes, &file));
    const struct gguf_tensor *w = gguf_find(file, "w");
    assert_int_equal(w->dims, 2);
    assert_int_equal(w->shape[0], 3);
    assert_int_equal(w->shape[1], 2);
    test_ok(gguf_read(w, 1, 2, DTYPE_F32, out));
    assert_true(out[0] == 2 && out[1] == 3);
    test_fails(gguf_read(w, 0, 4, DTYPE_F32, out), STATUS_INVALID, "tensor 'w': element 3 is nan");
    test_fails(gguf_read(w, 4, 2, DTYPE_F32, out), STATUS_INVALID, "tensor 'w': element 5 is inf");
    test_fails(gguf_read(w, 5, 2, DTYPE_F32, out), STATUS_INVALID, "elements [5, +2) asked for, it has 6");
    test_fails(gguf_read(w, -1, 1, DTYPE_F32, out), STATUS_INVALID, "asked for");
    assert_null(gguf_find(file, "u"));
    assert_int_equal(gguf_index(file, w), 1);
    gguf_close(file);
}

/* ---- divided files ---- */

/* Writes part `number`, from 1, of `count`, with one tensor. Its keys say number `no` of `of`, and `total` tensors. */
static void write_part(int number, int count, uint64_t no, uint64_t of, uint64_t total) {
    char file[4200], name[2] = {(char)('a' + number), 0};
    const float values[4] = {(float)number, 2, 3, 4};
    struct strbuf bytes = start(3, 1, 3);
    integer_key(&bytes, "split.no", no);
    integer_key(&bytes, "split.count", of);
    integer_key(&bytes, "split.tensors.count", total);
    tensor(&bytes, name, 4, 0, 0, 0);
    data(&bytes, 32, values, sizeof values);
    snprintf(file, sizeof file, "%s/m-%05d-of-%05d.gguf", directory, number, count);
    test_ok(file_write_atomic(file, strbuf_text(&bytes), bytes.length));
    strbuf_free(&bytes);
}

static void parts_are_opened_by_the_first(void **state) {
    char first[4200], second[4200];
    struct gguf *file;
    float out[4];
    (void)state;
    snprintf(first, sizeof first, "%s/m-00001-of-00003.gguf", directory);
    snprintf(second, sizeof second, "%s/m-00002-of-00003.gguf", directory);
    write_part(1, 3, 0, 3, 3);
    write_part(2, 3, 1, 3, 3);
    test_fails(gguf_open(first, &file), STATUS_INVALID, "part 3 of 3 is missing: there is no");
    write_part(3, 3, 2, 3, 3);
    test_ok(gguf_open(first, &file));
    assert_int_equal(gguf_count(file), 3);
    for (int number = 1; number <= 3; number++) {
        const char name[2] = {(char)('a' + number), 0};
        test_ok(gguf_read(gguf_find(file, name), 0, 4, DTYPE_F32, out));
        assert_true(out[0] == (float)number && out[3] == 4);
    }
    gguf_close(file);
    test_fails(gguf_open(second, &file), STATUS_INVALID,
               "is one of 3 parts of a model: name the first one, NAME-00001");
    write_part(2, 3, 2, 3, 3);
    test_fails(gguf_open(first, &file), STATUS_INVALID, "is part 3 of 3 by its keys, but part 2 of 3 is needed here");
    write_part(2, 3, 1, 4, 3);
    test_fails(gguf_open(first, &file), STATUS_INVALID, "is part 2 of 4 by its keys, but part 2 of 3 is needed here");
    write_part(2, 3, 1, 3, 3);
    write_part(1, 3, 0, 3, 4);
    test_fails(gguf_open(first, &file), STATUS_INVALID,
               "its parts have 3 tensors, but the key 'split.tensors.count' is 4");
    write_part(1, 3, 1, 3, 3);
    test_fails(gguf_open(first, &file), STATUS_INVALID, "is part 2 of 3 by its keys, but part 1 of 3 is needed here");
    write_part(1, 3, 0, 3, 3);
    test_ok(truncate(second, 100));
    test_fails(gguf_open(first, &file), STATUS_INVALID, "m-00002-of-00003.gguf: byte");
}

/* ---- values of keys ---- */

static void values_have_their_types_and_ranges(void **state) {
    (void)state;
    struct strbuf bytes = start(3, 0, 5);
    const float epsilon = 1e-5f;
    struct gguf *file;
    size_t count;
    integer_key(&bytes, "a.count", 7);
    key(&bytes, "a.epsilon", F32);
    strbuf_add(&bytes, &epsilon, 4);
    key(&bytes, "a.name", STRING);
    string(&bytes, "text");
    key(&bytes, "a.list", ARRAY);
    number(&bytes, STRING, 4);
    number(&bytes, 2, 8);
    string(&bytes, "one");
    string(&bytes, "");
    key(&bytes, "a.big", U64);
    number(&bytes, UINT64_MAX, 8);
    test_ok(open_bytes(&bytes, &file));
    struct gguf_keys keys = gguf_keys(file, "a.");
    assert_int_equal(gguf_integer(&keys, "count", 0, 1, 7), 7);
    assert_int_equal(gguf_integer(&keys, "absent", 3, 1, 7), 3);
    assert_true(gguf_number(&keys, "epsilon", 0, 0, 1) == 1e-5); /* not the double next to the fp32 number */
    assert_string_equal(gguf_string(&keys, "name", ""), "text");
    assert_string_equal(gguf_key_at(&keys, 4), "name");
    assert_null(gguf_key_at(&keys, 5));
    struct gguf_text *texts = gguf_texts(&keys, "list", &count);
    assert_int_equal(count, 2);
    assert_true(texts[0].length == 3 && !memcmp(texts[0].bytes, "one", 3) && texts[1].length == 0);
    free(texts);
    test_ok(keys.status);
    assert_int_equal(gguf_integer(&keys, "count", 0, 8, 9), 0);
    test_fails(keys.status, STATUS_INVALID, "the key 'a.count' must be an integer from 8 to 9");
    keys.status = 0;
    gguf_integer(&keys, "big", 0, 0, INT64_MAX - 1);
    test_fails(keys.status, STATUS_INVALID, "the key 'a.big' must be");
    keys.status = 0;
    gguf_integer(&keys, "list", 0, 0, 9);
    test_fails(keys.status, STATUS_INVALID, "the key 'a.list' must be an integer");
    keys.status = 0;
    assert_null(gguf_numbers(&keys, "list", &count));
    test_fails(keys.status, STATUS_INVALID, "the key 'a.list' must be an array of numbers");
    keys.status = 0;
    assert_false(gguf_bool(&keys, "count", false));
    test_fails(keys.status, STATUS_INVALID, "the key 'a.count' must be true or false");
    keys.status = 0;
    gguf_need(&keys, "absent");
    test_fails(keys.status, STATUS_INVALID, "the key 'a.absent' is missing");
    gguf_close(file);
}

/* ---- types ---- */

/* Turns a text of hexadecimal digits into bytes, which the caller frees. */
static unsigned char *from_hex(const char *text, size_t *length) {
    *length = strlen(text) / 2;
    unsigned char *bytes = malloc(*length + 1);
    for (size_t i = 0; i < *length; i++) {
        unsigned byte;
        assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
        bytes[i] = (unsigned char)byte;
    }
    return bytes;
}

/* Reads columns of a row in their bits; they mean the same values. */
static void check_encoded(const struct gguf_tensor *tensor, int64_t column, int64_t columns, const float *expected) {
    struct encoded_part part = {.rows = 2, .positions = columns};
    if (!gguf_describe(tensor, column, columns, &part.encoding)) {
        assert_true(gguf_type_dtype(tensor->type) != DTYPE_COUNT);
        return;
    }
    void *memory = malloc(encoded_rows_bytes(&part));
    float *out = calloc((size_t)columns, sizeof *out);
    assert_true(memory && out);
    const struct encoded_rows rows = encoded_rows_place(&part, memory);
    test_ok(gguf_read_encoded(tensor, &(const struct gguf_rows){(const int64_t[]){0, 0}, 2, column, 0}, &rows));
    for (int64_t row = 0; row < 2; row++) {
        encoded_row_values(&rows, row, out);
        assert_memory_equal(out, expected + column, (size_t)columns * sizeof *out);
    }
    free(memory);
    free(out);
}

/* Reads a tensor as a whole, and in parts that begin and end inside blocks. */
static void check_type(const char *name, const json_t *type) {
    size_t length, value_bytes;
    unsigned char *blocks = from_hex(json_string_value(json_object_get(type, "bytes")), &length);
    unsigned char *expected = from_hex(json_string_value(json_object_get(type, "values")), &value_bytes);
    int64_t count = (int64_t)(value_bytes / sizeof(float));
    struct strbuf bytes = start(3, 1, 0);
    struct gguf *file;
    tensor(&bytes, "w", (uint64_t)count, 0, (uint32_t)json_integer_value(json_object_get(type, "number")), 0);
    data(&bytes, 32, blocks, length);
    test_ok(open_bytes(&bytes, &file));
    float *out = calloc((size_t)count, sizeof *out);
    assert_string_equal(gguf_type_name(gguf_at(file, 0)->type), name);
    assert_ptr_equal(gguf_main_type(file), gguf_at(file, 0)->type);
    test_ok(gguf_read(gguf_at(file, 0), 0, count, DTYPE_F32, out));
    assert_memory_equal(out, expected, value_bytes);
    for (int64_t first = 0; first < count; first += count / 5 + 1) {
        int64_t n = count - first < count / 3 ? count - first : count / 3;
        test_ok(gguf_read(gguf_at(file, 0), first, n, DTYPE_F32, out));
        assert_memory_equal(out, expected + (size_t)first * sizeof *out, (size_t)n * sizeof *out);
        check_encoded(gguf_at(file, 0), first, n, (const float *)(const void *)expected);
    }
    for (int64_t first = 0; first < count; first += 16)
        check_encoded(gguf_at(file, 0), first, first + 64 < count ? 64 : count - first,
                      (const float *)(const void *)expected);
    check_encoded(gguf_at(file, 0), 0, count, (const float *)(const void *)expected);
    enum dtype own = gguf_type_dtype(gguf_at(file, 0)->type);
    if (own != DTYPE_COUNT) { /* plain values are also read as they are */
        test_ok(gguf_read(gguf_at(file, 0), 0, count, own, out));
        assert_memory_equal(out, blocks, length);
    }
    gguf_close(file);
    free(out);
    free(blocks);
    free(expected);
}

static void values_are_those_of_the_definition(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    json_error_t error;
    json_t *root, *type;
    const char *name;
    test_ok(file_read(TEST_DATA "/ckpt/golden/gguf.json", 1 << 20, &text));
    test_ok(json_read(strbuf_text(&text), text.length, 0, &root, &error));
    assert_int_equal(json_object_size(json_object_get(root, "types")), 15);
    json_object_foreach(json_object_get(root, "types"), name, type) check_type(name, type);
    json_decref(root);
    strbuf_free(&text);
}

/* Reads one block of a type. */
static void read_block(uint32_t type, const unsigned char *block, size_t bytes, uint64_t elements, float *out) {
    struct strbuf file_bytes = start(3, 1, 0);
    struct gguf *file;
    tensor(&file_bytes, "w", elements, 0, type, 0);
    data(&file_bytes, 32, block, bytes);
    test_ok(open_bytes(&file_bytes, &file));
    test_ok(gguf_read(gguf_at(file, 0), 0, (int64_t)elements, DTYPE_F32, out));
    gguf_close(file);
}

static void blocks_worked_out_by_hand(void **state) {
    static const int places[] = {0, 31, 32, 64, 128, 160, 224, 255};
    static const float expected[] = {157.75F, 80.25F, 4, 210.25F, 211.5F, 262.5F, 0.25F, 24.25F};
    unsigned char q4_0[18] = {0x00, 0x38}, q4_k[144]; /* scales of 0.5, and 0.25 */
    float out[256];
    (void)state;
    for (int i = 0; i < 16; i++)
        q4_0[2 + i] = (unsigned char)(2 + i);
    read_block(2, q4_0, sizeof q4_0, 32, out);
    for (int i = 0; i < 16; i++) {
        assert_true(out[i] == 0.5F * (float)((2 + i) % 16 - 8));
        assert_true(out[16 + i] == (i < 14 ? -4.0F : -3.5F));
    }
    for (int i = 0; i < 144; i++)
        q4_k[i] = (unsigned char)(37 * i + 11);
    memcpy(q4_k, (unsigned char[]){0x00, 0x38, 0x00, 0x34}, 4);
    read_block(12, q4_k, sizeof q4_k, 256, out);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        assert_true(out[places[i]] == expected[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(hostile_keys_are_refused),
        cmocka_unit_test(hostile_tensors_are_refused),
        cmocka_unit_test(reads_stay_within_the_tensor_and_are_finite),
        cmocka_unit_test(parts_are_opened_by_the_first),
        cmocka_unit_test(values_have_their_types_and_ranges),
        cmocka_unit_test(values_are_those_of_the_definition),
        cmocka_unit_test(blocks_worked_out_by_hand),
    };
    return cmocka_run_group_tests(tests, make_directory, free_directory);
}
