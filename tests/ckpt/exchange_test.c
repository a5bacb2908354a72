/* Directories that PyTorch wrote give the tensors that were saved, to the bit, in pieces of any size. Damaged ones are
 * refused in one line, and code in a pickle never runs. tools/golden/torch_checkpoints.py made the directories. */
#include "ckpt/crc.h"
#include "ckpt/exchange.h"
#include "support/test.h"

#include <zlib.h>

/* A sanitizer keeps what was freed, or a shadow of it. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MOST_MEMORY = 1 << 30 };
#else
enum { MOST_MEMORY = 64 << 20 };
#endif

#define GOLDEN TEST_DATA "/ckpt/golden/dcp"

static char *root, directory[4096];

static int make_directory(void **state) {
    (void)state;
    root = test_directory();
    snprintf(directory, sizeof directory, "%s/d", root);
    return 0;
}

static int free_directory(void **state) {
    (void)state;
    free(root);
    return 0;
}

static struct strbuf read_file(const char *where, const char *name) {
    char path[8192];
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/%s", where, name);
    test_ok(file_read(path, 1 << 24, &text));
    return text;
}

static void write_file(const char *name, const void *bytes, size_t length) {
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

/* ---- recorded directories ---- */

/* Compares all bytes, read in pieces of `at_once` elements. */
static void compare(const struct ckpt_tensors *found, size_t index, const struct safetensors *expected,
                    int64_t at_once) {
    const struct safetensor *a = ckpt_tensor_at(found, index), *b = safetensors_at(expected, index);
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->type, b->type);
    assert_int_equal(a->dims, b->dims);
    assert_memory_equal(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape);
    int64_t bytes = at_once * safetensors_type_bytes(a->type);
    char *x = malloc((size_t)bytes + 1), *y = malloc((size_t)bytes + 1);
    for (int64_t at = 0; at < a->bytes; at += bytes) {
        int64_t n = a->bytes - at < bytes ? a->bytes - at : bytes;
        test_ok(ckpt_read_bytes(found, index, at, n, x));
        test_ok(safetensors_read_bytes(expected, b, at, n, y));
        assert_memory_equal(x, y, (size_t)n);
    }
    free(x);
    free(y);
}

static void compare_directory(const char *where) {
    static const int64_t sizes[] = {1 << 20, 1, 5, 97};
    char path[8192];
    struct safetensors *expected;
    test_ok(file_join(path, sizeof path, where, "expected.safetensors"));
    test_ok(safetensors_open(path, &expected));
    for (int i = 0; i < 4; i++) {
        struct ckpt_tensors *found;
        int64_t objects;
        test_ok(exchange_open_dcp(where, &found, &objects));
        assert_int_equal(ckpt_count(found), safetensors_count(expected));
        for (size_t t = 0; t < ckpt_count(found); t++)
            compare(found, t, expected, sizes[i]);
        ckpt_close(found);
    }
    safetensors_close(expected);
}

static void recorded_directories_give_the_tensors_that_were_saved(void **state) {
    (void)state;
    char **names, path[8192];
    size_t count;
    test_ok(file_list(GOLDEN, &names, &count));
    assert_true(count >= 40);
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, GOLDEN "/%s", names[i]);
        assert_true(exchange_is_dcp(path));
        compare_directory(path);
    }
    file_list_free(names, count);
}

static void objects_are_counted_and_skipped(void **state) {
    (void)state;
    struct ckpt_tensors *found;
    int64_t objects;
    test_ok(exchange_open_dcp(GOLDEN "/objects", &found, &objects));
    assert_int_equal(ckpt_count(found), 1);
    assert_true(objects >= 6);
    ckpt_close(found);
}

static void tensors_are_written_as_they_are(void **state) {
    (void)state;
    static const char *const names[] = {"unsigned", "bytes", "grid", "scalars"};
    for (int i = 0; i < 4; i++) {
        char source[4096], output[8192];
        struct ckpt_tensors *found;
        struct safetensors *expected, *written;
        int64_t objects;
        snprintf(source, sizeof source, GOLDEN "/%s", names[i]);
        snprintf(output, sizeof output, "%s/%s", root, names[i]);
        test_ok(exchange_open_dcp(source, &found, &objects));
        test_ok(exchange_write_tensors(&(struct exchange_files){.directory = output, .tensors = found}));
        strcat(source, "/expected.safetensors");
        strcat(output, "/model.safetensors");
        test_ok(safetensors_open(source, &expected));
        test_ok(safetensors_open(output, &written));
        assert_int_equal(safetensors_count(written), safetensors_count(expected));
        for (size_t t = 0; t < ckpt_count(found); t++)
            compare(found, t, written, 64);
        safetensors_close(expected);
        safetensors_close(written);
        ckpt_close(found);
    }
}

static void what_is_written_for_torch_is_read_again(void **state) {
    (void)state;
    static const char *const names[] = {"floats",     "integers", "unsigned", "bytes",           "scalars",
                                        "dimensions", "names",    "empty",    "fsdp2_optimizer", "transposed"};
    for (int i = 0; i < 10; i++) {
        char source[4096], output[8192];
        struct ckpt_tensors *found, *again;
        struct safetensors *expected;
        int64_t objects;
        snprintf(source, sizeof source, GOLDEN "/%s", names[i]);
        snprintf(output, sizeof output, "%s/%s.dcp", root, names[i]);
        test_ok(exchange_open_dcp(source, &found, &objects));
        test_ok(exchange_write_dcp(&(struct exchange_dcp){.directory = output, .tensors = found, .files = 1 + i % 4}));
        test_ok(exchange_open_dcp(output, &again, &objects));
        test_fails(exchange_write_dcp(&(struct exchange_dcp){.directory = output, .tensors = found, .files = 1}),
                   STATUS_INVALID, "is not empty and no model directory");
        strcat(source, "/expected.safetensors");
        test_ok(safetensors_open(source, &expected));
        assert_int_equal(ckpt_count(again), safetensors_count(expected));
        for (size_t t = 0; t < ckpt_count(again); t++)
            compare(again, t, expected, 1 << 20);
        safetensors_close(expected);
        ckpt_close(found);
        ckpt_close(again);
    }
}

static void shards_have_an_index_and_hold_everything(void **state) {
    (void)state;
    struct ckpt_tensors *found, *again;
    int64_t objects;
    char output[8192];
    snprintf(output, sizeof output, "%s/shards", root);
    test_ok(exchange_open_dcp(GOLDEN "/many", &found, &objects));
    test_ok(
        exchange_write_tensors(&(struct exchange_files){.directory = output, .tensors = found, .max_shard_bytes = 32}));
    test_ok(ckpt_open_model(output, &again));
    assert_int_equal(ckpt_count(again), ckpt_count(found));
    char **names;
    size_t count;
    test_ok(file_list(output, &names, &count));
    assert_true(count > 5);
    file_list_free(names, count);
    ckpt_close(again);
    ckpt_close(found);
}

/* ---- sums ---- */

static void sums_are_those_of_zlib(void **state) {
    (void)state;
    enum { MOST = 400 };
    unsigned char bytes[MOST + 16];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)philox(7, (uint32_t)i, 0, 0, 0).word[0];
    for (size_t length = 0; length <= MOST; length++)
        for (size_t start = 0; start < 16; start++) {
            size_t cut = length * start / 16; /* the sum of both parts, one after the other */
            uint32_t sum = crc_add(crc_add(0, bytes + start, cut), bytes + start + cut, length - cut);
            assert_int_equal(sum, crc32(0, bytes + start, (uInt)length));
        }
}

/* ---- damage ---- */

/* Reads everything; the status of the first failure. */
static int read_all(void) {
    struct ckpt_tensors *found = NULL;
    int64_t objects;
    char values[4096];
    int status = exchange_open_dcp(directory, &found, &objects);
    for (size_t t = 0; !status && t < ckpt_count(found); t++)
        for (int64_t at = 0; at < ckpt_tensor_at(found, t)->bytes && !status; at += 4096) {
            int64_t left = ckpt_tensor_at(found, t)->bytes - at;
            status = ckpt_read_bytes(found, t, at, left < 4096 ? left : 4096, values);
        }
    ckpt_close(found);
    return status;
}

static void refused(const char *part) {
    int status = read_all();
    test_fails(status, STATUS_INVALID, part);
    assert_null(strchr(status_text(), '\n'));
}

static struct strbuf metadata, blob;

static void take(const char *name) {
    char source[4096];
    snprintf(source, sizeof source, GOLDEN "/%s", name);
    file_remove_tree(directory);
    test_ok(file_make_directories(directory));
    char **names;
    size_t count;
    test_ok(file_list(source, &names, &count));
    for (size_t i = 0; i < count; i++) {
        char from[8192], to[8192];
        test_ok(file_join(from, sizeof from, source, names[i]));
        test_ok(file_join(to, sizeof to, directory, names[i]));
        test_ok(file_copy(from, to));
    }
    file_list_free(names, count);
    metadata = read_file(source, ".metadata");
    blob = read_file(source, "__0_0.distcp");
    test_ok(read_all());
}

static void give(void) {
    strbuf_free(&metadata);
    strbuf_free(&blob);
}

static size_t find(const struct strbuf *text, const void *bytes, size_t length) {
    const char *at = memmem(text->data, text->length, bytes, length);
    assert_non_null(at);
    return (size_t)(at - text->data);
}

static void a_list_that_ends_early_is_refused(void **state) {
    (void)state;
    static const char *const names[] = {"no_version", "protocol_2"};
    for (int i = 0; i < 2; i++) {
        take(names[i]);
        for (size_t length = 0; length < metadata.length; length += i ? 5 : 1) {
            write_file(".metadata", metadata.data, length);
            refused(".metadata: byte ");
        }
        give();
    }
}

static void damaged_elements_and_descriptions_are_refused(void **state) {
    (void)state;
    int tried = 0;
    take("no_version");
    size_t pickle = find(&blob,
                         "\x80\x02"
                         "ctorch",
                         8),
           data = blob.length - 1;
    while (blob.data[data - 1] != 'Z') /* .data/serialization_id; the elements come before it */
        data--;
    for (size_t at = pickle; at < pickle + 150; at++, tried++) {
        blob.data[at] ^= 0x41;
        write_file("__0_0.distcp", blob.data, blob.length);
        refused("__0_0.distcp: byte ");
        blob.data[at] ^= 0x41;
    }
    for (size_t length = 0; length < blob.length; length += 3, tried++) {
        write_file("__0_0.distcp", blob.data, length);
        refused("__0_0.distcp");
    }
    write_file("__0_0.distcp", blob.data, blob.length);
    test_ok(read_all());
    assert_true(tried > 600);
    give();
}

static void an_element_that_was_changed_is_refused(void **state) {
    (void)state;
    struct ckpt_tensors *found;
    int64_t objects;
    char values[48];
    take("no_version");
    test_ok(exchange_open_dcp(directory, &found, &objects));
    test_ok(ckpt_read_bytes(found, 0, 0, sizeof values, values));
    ckpt_close(found);
    size_t at = find(&blob, values, sizeof values);
    for (size_t i = 0; i < sizeof values; i++) {
        blob.data[at + i] ^= 1;
        write_file("__0_0.distcp", blob.data, blob.length);
        refused("expected bytes with the sum that the archive has for them");
        blob.data[at + i] ^= 1;
    }
    give();
}

/* Replaces bytes of the list, as often as they are there. */
static void replace_bytes(const char *from, const char *to, size_t length, const char *part) {
    struct strbuf copy = STRBUF_INIT;
    strbuf_add(&copy, metadata.data, metadata.length);
    for (char *at = copy.data; (at = memmem(at, (size_t)(copy.data + copy.length - at), from, length)); at += length)
        memcpy(at, to, length);
    assert_memory_not_equal(copy.data, metadata.data, metadata.length);
    write_file(".metadata", copy.data, copy.length);
    refused(part);
    strbuf_free(&copy);
}

#define replace(from, to, part)                                                                                        \
    replace_bytes(from, to, sizeof(from) - 1 + 0 * sizeof(char[sizeof(from) == sizeof(to) ? 1 : -1]), part)

static void a_list_that_says_something_else_is_refused(void **state) {
    (void)state;
    take("no_version");
    replace("Metadata\x94", "Metadatb\x94", "expected an object of torch.distributed.checkpoint.metadata.Metadata");
    replace("state_dict_metadata", "state_dict_metadatb", "expected the attribute 'state_dict_metadata'");
    replace("TensorStorageMetadata", "TensorStorageMetadatb", "TensorStorageMetadata or BytesStorageMetadata of 'a'");
    replace("ChunkStorageMetadata", "ChunkStorageMetadatb", "expected a ChunkStorageMetadata");
    replace("TensorProperties", "TensorPropertiez", "expected TensorProperties");
    replace("MetadataIndex", "MetadataIndez", "expected a MetadataIndex");
    replace("_StorageInfo", "_StorageInfp", "expected a _StorageInfo");
    replace("float32", "float33", "expected an element type that is read");
    replace("Size\x94", "Sizf\x94", "expected a torch.Size");
    replace("__0_0.distcp", "../0.distcpp", "is not the name of a file in the same directory");
    replace("__0_0.distcp", "__0_1.distcp", "names a missing file");
    replace("K\x03K\x04", "K\x03K\x05", "the type and shape that .metadata has for 'a'");
    replace("chunks", "chunkz", "expected the attribute 'chunks'");
    give();
    take("rows");
    replace("K\x02K\x03", "K\x01K\x03", "do not cover it");
    replace("K\x04K\x03", "K\x03K\x03", "lies outside of it");
    replace("K\x02K\x00", "K\x01K\x00", "overlap");
    give();
}

/* Writes a list of protocol 2. */
static void try_pickle(const void *bytes, size_t length, const char *part) {
    write_file(".metadata", bytes, length);
    refused(part);
}
#define TRY_PICKLE(text, part) try_pickle(text, sizeof(text) - 1, part)

/* Functions that a pickle may call in Python. */
static const char *const callees[] = {
    "os\nsystem",
    "posix\nsystem",
    "nt\nsystem",
    "builtins\neval",
    "builtins\nexec",
    "__builtin__\neval",
    "__builtin__\nexecfile",
    "builtins\n__import__",
    "builtins\ngetattr",
    "builtins\ncompile",
    "builtins\nopen",
    "subprocess\nPopen",
    "subprocess\ncall",
    "subprocess\nrun",
    "os\npopen",
    "os\nexecv",
    "runpy\nrun_path",
    "pty\nspawn",
    "shutil\nrmtree",
    "importlib\nimport_module",
    "torch\nload",
    "pickle\nloads",
    "types\nFunctionType",
    "webbrowser\nopen",
};
enum { CALLEES = sizeof callees / sizeof *callees };

/* Returns a pickle that calls one of them with a command that makes a file. */
static struct strbuf make_call(const char *callee, char marker[4096]) {
    struct strbuf text = STRBUF_INIT;
    char command[8192];
    snprintf(marker, 4096, "%s/ran", root);
    int length = snprintf(command, sizeof command, "touch %s", marker);
    strbuf_format(&text,
                  "\x80\x02"
                  "c%s\nX",
                  callee);
    strbuf_add(&text, &length, 4);
    strbuf_format(&text, "%s\x85R.", command);
    return text;
}

/* Makes a record of the archive hold these bytes and then points, with the sum that it then has. */
static void replace_record(struct strbuf *archive, const char *entry, const struct strbuf *bytes) {
    uint32_t old_sum, length, start;
    memcpy(&old_sum, entry + 16, sizeof old_sum);
    memcpy(&length, entry + 20, sizeof length);
    memcpy(&start, entry + 42, sizeof start);
    uint16_t name, extra;
    memcpy(&name, archive->data + start + 26, sizeof name);
    memcpy(&extra, archive->data + start + 28, sizeof extra);
    char *record = archive->data + start + 30 + name + extra;
    assert_true(bytes->length <= length);
    memset(record, '.', length);
    memcpy(record, bytes->data, bytes->length);
    uint32_t sum = (uint32_t)crc32(0, (const unsigned char *)record, length);
    for (size_t at = 0; at + 4 <= archive->length; at++)
        if (!memcmp(archive->data + at, &old_sum, sizeof sum))
            memcpy(archive->data + at, &sum, sizeof sum);
}

static void descriptions_that_call_something_are_refused_and_nothing_runs(void **state) {
    (void)state;
    take("no_version");
    for (int i = 0; i < CALLEES; i++) {
        char marker[4096];
        struct strbuf text = make_call(callees[i], marker);
        replace_record(&blob, blob.data + find(&blob, "PK\x01\x02", 4), &text); /* the first one is data.pkl */
        write_file("__0_0.distcp", blob.data, blob.length);
        refused("expected a tensor");
        assert_false(file_exists(marker));
        strbuf_free(&text);
    }
    give();
}

static void pickles_that_call_something_are_refused_and_nothing_runs(void **state) {
    (void)state;
    take("no_version");
    for (int i = 0; i < CALLEES; i++) {
        char marker[4096];
        struct strbuf text = make_call(callees[i], marker);
        try_pickle(text.data, text.length, "expected an object of torch.distributed.checkpoint.metadata.Metadata");
        assert_false(file_exists(marker));
        strbuf_free(&text);
    }
    give();
}

static void limits_hold_before_memory_is_taken(void **state) {
    (void)state;
    enum { MANY = 1 << 20 };
    char *many = malloc(MANY + 8);
    take("no_version");
    size_t before = memory_peak();
    many[0] = '\x80';
    many[1] = 2;
    memset(many + 2, '(', MANY);
    try_pickle(many, MANY, "expected fewer containers within each other");
    memset(many + 2, ']', MANY);
    try_pickle(many, MANY, "expected ");
    memset(many + 2, 'N', MANY);
    memcpy(many + MANY - 1, "N.", 2);
    try_pickle(many, MANY + 1, "expected ");
    TRY_PICKLE("\x80\x02X\xff\xff\xff\xff"
               "abc.",
               "expected more bytes, but the pickle ends");
    TRY_PICKLE("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"
               "abc.",
               "expected an opcode of torch's files, found 0x8d");
    TRY_PICKLE("\x80\x02Nr\xff\xff\xff\x7f.", "expected the next number of the memo");
    TRY_PICKLE("\x80\x02h\x00.", "expected a number that the memo has");
    TRY_PICKLE("\x80\x02\x8a\x09"
               "123456789.",
               "expected an integer of 64 bits");
    TRY_PICKLE("\x80\x02X\x01\x00\x00\x00\xff.", "expected a text in UTF-8");
    TRY_PICKLE("\x80\x02NN.", "expected one value at the end");
    TRY_PICKLE("\x80\x02.", "expected a value on the stack");
    TRY_PICKLE("\x80\x02K\x01K\x02\x93.", "expected the names of a module and of a class or function");
    TRY_PICKLE("\x80\x02K\x01)R.", "expected the name of a class or function, and a tuple of arguments");
    TRY_PICKLE("\x80\x02]K\x01K\x02s.", "expected a dict, and keys with values");
    TRY_PICKLE("\x80\x02}K\x01"
               "a.",
               "expected a list");
    TRY_PICKLE("\x80\x02NNb.", "expected an object without a state");
    TRY_PICKLE("\x80\x02t.", "expected a mark before this opcode");
    TRY_PICKLE("\x80\x01N.", "expected protocol 2, 3, 4 or 5");
    TRY_PICKLE("\x80\x02i", "expected an opcode of torch's files, found 0x69");
    assert_true(memory_peak() - before < MOST_MEMORY);
    free(many);
    give();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_directories_give_the_tensors_that_were_saved),
        cmocka_unit_test(objects_are_counted_and_skipped),
        cmocka_unit_test(tensors_are_written_as_they_are),
        cmocka_unit_test(what_is_written_for_torch_is_read_again),
        cmocka_unit_test(shards_have_an_index_and_hold_everything),
        cmocka_unit_test(sums_are_those_of_zlib),
        cmocka_unit_test(a_list_that_ends_early_is_refused),
        cmocka_unit_test(damaged_elements_and_descriptions_are_refused),
        cmocka_unit_test(an_element_that_was_changed_is_refused),
        cmocka_unit_test(a_list_that_says_something_else_is_refused),
        cmocka_unit_test(descriptions_that_call_something_are_refused_and_nothing_runs),
        cmocka_unit_test(pickles_that_call_something_are_refused_and_nothing_runs),
        cmocka_unit_test(limits_hold_before_memory_is_taken),
    };
    return cmocka_run_group_tests(tests, make_directory, free_directory);
}
