/* Model directories: what transformers wrote is read to the bit and written again byte for byte; what is wrong with one
 * is named. */
#include "tiny_gpt2.h"

#include <unistd.h>

static char *root;

static int make_root(void **state) {
    (void)state;
    root = test_directory();
    return 0;
}

static int free_root(void **state) {
    (void)state;
    free(root);
    return 0;
}

static char *golden(const char *name) {
    return tiny_path(TEST_DATA "/ckpt/golden", name);
}

static int read_directory(const char *directory, struct tiny_array *a) {
    struct ckpt_tensors *tensors;
    struct ckpt_array array = tiny_as_array(a, "");
    int status = ckpt_open_model(directory, &tensors);
    if (!status)
        status = ckpt_read(tensors, a->table, &array, 1);
    ckpt_close(tensors);
    return status;
}

/* Returns what the program prints on standard error while `call` runs. */
static struct strbuf heard(int (*call)(const char *, struct tiny_array *), const char *directory, struct tiny_array *a,
                           int *status) {
    char *path = tiny_path(root, "stderr");
    fflush(stderr);
    int saved = dup(2);
    assert_non_null(freopen(path, "w", stderr));
    *status = call(directory, a);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    free(path);
    return tiny_text(root, "stderr");
}

static void directories_of_transformers_are_read_to_the_bit(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool is_tied;
        enum dtype dtype;
    } cases[] = {{"fp32", true, DTYPE_F32},   {"sharded", true, DTYPE_F32}, {"bf16", true, DTYPE_BF16},
                 {"fp16", true, DTYPE_F16},   {"bare", true, DTYPE_F32},    {"untied", false, DTYPE_F32},
                 {"buffers", true, DTYPE_F32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int narrow = 0; narrow < 2; narrow++) {
            char *directory = golden(cases[i].name);
            struct param_table table = tiny_table(cases[i].is_tied);
            struct tiny_array a = tiny_array(&table, narrow ? DTYPE_BF16 : DTYPE_F32);
            struct ckpt_tensors *tensors;
            int status;
            struct strbuf said = heard(read_directory, directory, &a, &status);
            test_ok(status);
            assert_string_equal(strbuf_text(&said), ""); /* nothing is unknown in any of them */
            tiny_check_golden(&a);
            test_ok(ckpt_open_model(directory, &tensors));
            assert_int_equal(ckpt_dtype(tensors), cases[i].dtype);
            assert_true(ckpt_has_prefix(tensors, "transformer.h.0.") ==
                        (strstr("bare buffers", cases[i].name) == NULL));
            ckpt_close(tensors);
            strbuf_free(&said);
            free(a.memory);
            free(table.rows);
            free(directory);
        }
}

static void write_golden(const char *directory, bool is_tied, enum dtype dtype, int64_t max_shard_bytes) {
    struct param_table table = tiny_table(is_tied);
    struct tiny_array a = tiny_array(&table, dtype);
    struct ckpt_array array = tiny_as_array(&a, "");
    struct ckpt_model model = {
        .table = &table, .weights = &array, .config_text = "{}\n", .max_shard_bytes = max_shard_bytes};
    tiny_fill_golden(&a);
    test_ok(ckpt_write_model(directory, &model));
    free(a.memory);
    free(table.rows);
}

static void written_files_equal_those_of_transformers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool is_tied;
        enum dtype dtype;
        int64_t max_shard_bytes;
    } cases[] = {{"fp32", true, DTYPE_F32, 0},
                 {"bf16", true, DTYPE_BF16, 0},
                 {"untied", false, DTYPE_F32, 0},
                 {"sharded", true, DTYPE_F32, 5000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *theirs = golden(cases[i].name), *ours = tiny_path(root, cases[i].name);
        write_golden(ours, cases[i].is_tied, cases[i].dtype, cases[i].max_shard_bytes);
        char **names;
        size_t count, compared = 0;
        test_ok(file_list(theirs, &names, &count));
        for (size_t n = 0; n < count; n++)
            if (strncmp(names[n], "config", 6)) {
                assert_same_files(theirs, ours, names[n]);
                compared++;
            }
        assert_int_equal(compared, cases[i].max_shard_bytes ? 6 : 1);
        file_list_free(names, count);
        test_ok(file_list(ours, &names, &count));
        assert_int_equal(count, compared + 1);
        file_list_free(names, count);
        free(theirs);
        free(ours);
    }
}

static void an_oversized_tensor_has_a_shard_of_its_own(void **state) {
    (void)state;
    char *directory = tiny_path(root, "many");
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    write_golden(directory, true, DTYPE_F32, 100); /* every matrix is larger */
    test_ok(read_directory(directory, &a));
    tiny_check_golden(&a);
    write_golden(directory, true, DTYPE_F32, 0); /* replaces the directory, shards and all */
    char **names;
    size_t count;
    test_ok(file_list(directory, &names, &count));
    assert_int_equal(count, 2);
    file_list_free(names, count);
    free(directory);
    free(a.memory);
    free(table.rows);
}

/* The limit itself still fits: wte and wpe are 3,328 bytes. */
static void a_shard_is_filled_to_its_last_byte(void **state) {
    (void)state;
    static const int64_t limits[2] = {3328, 3327};
    for (int i = 0; i < 2; i++) {
        char *directory = tiny_path(root, "filled"), **names, *first;
        size_t count;
        struct safetensors *file;
        write_golden(directory, true, DTYPE_F32, limits[i]);
        test_ok(file_list(directory, &names, &count));
        first = tiny_path(directory, names[1]); /* after config.json */
        test_ok(safetensors_open(first, &file));
        assert_int_equal(safetensors_count(file), i == 0 ? 2 : 1);
        safetensors_close(file);
        file_list_free(names, count);
        free(first);
        free(directory);
    }
}

/* A table with a matrix of several blocks, larger than CKPT_BLOCK_ELEMENTS in both directions. */
static struct param_table large_table(bool is_transposed, int64_t rows, int64_t columns) {
    struct param_table table = {.rows = calloc(2, sizeof *table.rows), .capacity = 2};
    tiny_add(&table, "bias", 1, rows, 1, "x.bias", false);
    tiny_fuse(tiny_add(&table, "weight", 2, rows, columns, "x.weight", is_transposed));
    return table;
}

static void check_large(bool is_transposed, int64_t rows, int64_t columns, enum dtype dtype) {
    char *directory = tiny_path(root, "large");
    struct param_table table = large_table(is_transposed, rows, columns);
    struct tiny_array a = tiny_array(&table, dtype), b = tiny_array(&table, dtype);
    struct ckpt_array from = tiny_as_array(&a, ""), to = tiny_as_array(&b, "");
    struct ckpt_model model = {.table = &table, .weights = &from, .config_text = "{}"};
    struct ckpt_tensors *tensors;
    for (int64_t i = 0; i < a.elements; i++) {
        uint32_t word = (uint32_t)i * 2654435761u >> 7; /* any bits, NaNs too: nothing may look at them */
        memcpy(a.memory + (size_t)i * dtype_bytes(dtype), &word, dtype_bytes(dtype));
    }
    test_ok(ckpt_write_model(directory, &model));
    test_ok(ckpt_open_model(directory, &tensors));
    test_ok(ckpt_read(tensors, &table, &to, 1));
    assert_memory_equal(a.memory, b.memory, (size_t)a.elements * dtype_bytes(dtype));
    assert_true(a.calls > 3);
    /* rectangles that cross the slices, as ranks of a layout would ask for them */
    for (uint32_t i = 0; i < 20; i++) {
        struct philox r = philox(7, i, 0, 0, (uint32_t)RNG_TEST << 24);
        struct ckpt_block block = {.param = 1, .row = r.word[0] % rows, .column = r.word[1] % columns};
        block.rows = 1 + r.word[2] % (rows - block.row);
        block.columns = 1 + r.word[3] % (columns - block.column < 500 ? columns - block.column : 500);
        char *values = malloc((size_t)(block.rows * block.columns) * dtype_bytes(dtype));
        test_ok(ckpt_read_block(tensors, &table, &to, &block, values));
        for (int64_t row = 0; row < block.rows; row++)
            assert_memory_equal(values + (size_t)(row * block.columns) * dtype_bytes(dtype),
                                tiny_place(&a, &block, row), (size_t)block.columns * dtype_bytes(dtype));
        free(values);
    }
    ckpt_close(tensors);
    free(directory);
    free(a.memory);
    free(b.memory);
    free(table.rows);
}

static void large_tensors_travel_in_bounded_blocks(void **state) {
    (void)state;
    check_large(true, 3000, 2501, DTYPE_F32);
    check_large(false, 3000, 2501, DTYPE_BF16);
    check_large(true, 12, CKPT_BLOCK_ELEMENTS / 3, DTYPE_BF16);
    check_large(false, 6, CKPT_BLOCK_ELEMENTS + 3, DTYPE_F32);
}

/* Removes, renames or changes tensors of the golden fp32 directory: the header is edited as text of the same length. */
static char *edited(const char *from, const char *to) {
    char *directory = tiny_path(root, "edited"), *theirs = golden("fp32");
    struct strbuf file = tiny_text(theirs, "model.safetensors");
    test_ok(file_remove_tree(directory));
    test_ok(file_make_directories(directory));
    assert_int_equal(strlen(from), strlen(to));
    char *place = memmem(file.data, file.length, from, strlen(from));
    assert_non_null(place);
    memcpy(place, to, strlen(to));
    tiny_write(directory, "model.safetensors", file.data, file.length);
    strbuf_free(&file);
    free(theirs);
    return directory;
}

static void missing_and_misshapen_tensors_are_named(void **state) {
    (void)state;
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    char *directory = edited("h.0.attn.c_attn.weight", "h.0.attn.c_attn.weighT");
    test_fails(read_directory(directory, &a), STATUS_INVALID, "missing tensors: transformer.h.0.attn.c_attn.weight");
    assert_null(strstr(status_text(), "weight, ")); /* once, though q, k and v are three slices */
    free(directory);
    directory = edited("\"shape\":[16,48]", "\"shape\":[48,16]");
    test_fails(read_directory(directory, &a), STATUS_INVALID,
               "transformer.h.0.attn.c_attn.weight has shape [48, 16] (expected [16, 48])");
    free(directory);
    directory = edited("\"shape\":[40,16]", "\"shape\":[640]  ");
    test_fails(read_directory(directory, &a), STATUS_INVALID, "wte.weight has shape [640] (expected [40, 16])");
    free(directory);
    directory = edited("ln_f.bias\":{\"dtype\":\"F32\"", "ln_f.bias\":{\"dtype\":\"I32\"");
    test_fails(read_directory(directory, &a), STATUS_INVALID,
               "transformer.ln_f.bias has dtype I32 (expected F32, BF16, F16 or F64)");
    assert_int_equal(a.memory[0], (char)0xaa); /* nothing was delivered */
    free(directory);
    free(a.memory);
    free(table.rows);
}

static void a_long_list_of_problems_is_counted(void **state) {
    (void)state;
    char *directory = tiny_path(root, "empty");
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    test_ok(file_make_directories(directory));
    tiny_write(directory, "model.safetensors", "\x02\0\0\0\0\0\0\0{}", 10);
    test_fails(read_directory(directory, &a), STATUS_INVALID, "transformer.wte.weight, transformer.wpe.weight, ");
    test_fails(read_directory(directory, &a), STATUS_INVALID, " and 20 more");
    free(directory);
    free(a.memory);
    free(table.rows);
}

static void unknown_tensors_are_named_once_in_a_warning(void **state) {
    (void)state;
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    int status;
    table.count -= 2; /* ln_f is unknown to this table */
    char *directory = golden("fp32");
    struct strbuf said = heard(read_directory, directory, &a, &status);
    test_ok(status);
    assert_non_null(
        strstr(strbuf_text(&said),
               "2 tensors are not parameters of a model and are ignored, the first is 'transformer.ln_f.bias'\n"));
    strbuf_free(&said);
    free(directory);
    free(a.memory);
    free(table.rows);
}

static void a_head_that_is_not_the_embedding_is_not_dropped(void **state) {
    (void)state;
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    char *directory = golden("untied");
    test_fails(read_directory(directory, &a), STATUS_INVALID,
               "model.safetensors: tensor 'lm_head.weight' differs from 'transformer.wte.weight', but config.json ties "
               "them (\"tie_word_embeddings\"): one of the two is wrong");
    free(directory);
    directory = golden("buffers"); /* with a head that equals the embedding */
    test_ok(read_directory(directory, &a));
    free(directory);
    /* a tied model may hold its one matrix under the head's name; an untied one must hold both */
    directory = edited("transformer.wte.weight\":", "lm_head.weight\":        ");
    test_ok(read_directory(directory, &a));
    for (int i = 0; i < TINY_V * TINY_C; i++)
        assert_true(tiny_value(&a, i) == golden_value("wte.weight", i));
    struct param_table untied = tiny_table(false);
    struct tiny_array b = tiny_array(&untied, DTYPE_F32);
    test_fails(read_directory(directory, &b), STATUS_INVALID, "missing tensors: transformer.wte.weight");
    free(directory);
    free(b.memory);
    free(untied.rows);
    free(a.memory);
    free(table.rows);
}

static void pickles_and_empty_directories_are_refused_by_name(void **state) {
    (void)state;
    struct ckpt_tensors *tensors;
    char *directory = tiny_path(root, "pickle");
    test_fails(ckpt_open_model(directory, &tensors), STATUS_NOT_FOUND, "holds no model.safetensors");
    test_ok(file_make_directories(directory));
    test_fails(ckpt_open_model(directory, &tensors), STATUS_NOT_FOUND, "holds no model.safetensors");
    tiny_write(directory, "pytorch_model.bin", "PK", 2);
    test_fails(ckpt_open_model(directory, &tensors), STATUS_UNSUPPORTED, "pytorch_model.bin, a pickle");
    assert_null(tensors);
    free(directory);
}

static void damaged_indexes_are_refused_with_their_place(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *part;
    } cases[] = {
        {"", STATUS_INVALID, "damaged JSON at byte"},
        {"{\"weight_map\":{\"a\":\"b\"", STATUS_INVALID, "damaged JSON at byte 22"},
        {"[]", STATUS_INVALID, "expected a JSON object"},
        {"{\"metadata\":{}}", STATUS_INVALID, "expected an object \"weight_map\""},
        {"{\"weight_map\":[]}", STATUS_INVALID, "expected an object \"weight_map\""},
        {"{\"weight_map\":{\"a\":\"s.safetensors\",\"a\":\"s.safetensors\"}}", STATUS_INVALID, "duplicate object key"},
        {"{\"weight_map\":{\"a\":1}}", STATUS_INVALID, "weight_map of 'a' must be the name of a file"},
        {"{\"weight_map\":{\"a\":\"../s.safetensors\"}}", STATUS_INVALID,
         "'../s.safetensors' is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", STATUS_INVALID, "is not the name of a file in the same directory"},
        {"{\"weight_map\":{\"a\":\"\"}}", STATUS_INVALID, "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"..\"}}", STATUS_INVALID, "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"none.safetensors\"}}", STATUS_INVALID, "names a missing shard"},
        {"{\"weight_map\":{\"b\":\"s.safetensors\"}}", STATUS_INVALID, "tensor 'b' is not in "},
        {"{\"weight_map\":{\"a\":\"s.safetensors\"}}", STATUS_OK, ""},
        {"{\"weight_map\":{}}", STATUS_OK, ""},
    };
    char *directory = tiny_path(root, "index");
    struct ckpt_tensors *tensors;
    static const char shard[] =
        "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0";
    test_ok(file_make_directories(directory));
    tiny_write(directory, "s.safetensors", shard, sizeof shard);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_write(directory, "model.safetensors.index.json", cases[i].text, strlen(cases[i].text));
        int status = ckpt_open_model(directory, &tensors);
        if (cases[i].status) {
            test_fails(status, cases[i].status, cases[i].part);
            assert_non_null(strstr(status_text(), "/index/"));
        } else {
            test_ok(status);
        }
        ckpt_close(tensors);
    }
    free(directory);
}

static void a_failing_source_leaves_nothing_behind(void **state) {
    (void)state;
    char *parent = tiny_path(root, "failing"), *directory = tiny_path(parent, "model");
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    struct ckpt_array array = tiny_as_array(&a, "");
    struct ckpt_model model = {.table = &table, .weights = &array, .config_text = "{}"};
    a.fail_at = 9;
    test_fails(ckpt_write_model(directory, &model), STATUS_IO, "was not written: the device was lost");
    char **names;
    size_t count;
    test_ok(file_list(parent, &names, &count));
    assert_int_equal(count, 0);
    file_list_free(names, count);
    free(parent);
    free(directory);
    free(a.memory);
    free(table.rows);
}

static void only_a_model_directory_is_replaced(void **state) {
    (void)state;
    char *directory = tiny_path(root, "home");
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    struct ckpt_array array = tiny_as_array(&a, "");
    struct ckpt_model model = {.table = &table, .weights = &array, .config_text = "{}"};
    test_ok(file_make_directories(directory));
    tiny_write(directory, "thesis.tex", "x", 1);
    test_fails(ckpt_write_model(directory, &model), STATUS_INVALID, "is not empty and no model directory");
    char *file = tiny_path(directory, "thesis.tex");
    assert_true(file_exists(file));
    assert_int_equal(unlink(file), 0);
    test_ok(ckpt_write_model(directory, &model)); /* an empty one is taken */
    free(file);
    free(directory);
    free(a.memory);
    free(table.rows);
}

/* Two adapters: a table each, of which the other one's rows are frozen. */
static void parts_stand_in_directories_of_their_own(void **state) {
    (void)state;
    char *directory = tiny_path(root, "parts"), *inside = tiny_path(root, "parts/two");
    struct param_table tables[2] = {tiny_table(true), tiny_table(true)};
    struct tiny_array a[2] = {tiny_array(&tables[0], DTYPE_F32), tiny_array(&tables[1], DTYPE_F32)};
    struct ckpt_array arrays[2] = {tiny_as_array(&a[0], ""), tiny_as_array(&a[1], "")};
    for (int i = 0; i < 2; i++) {
        tiny_fill_golden(&a[i]);
        arrays[i].only_trainable = true;
        for (int row = 0; row < tables[i].count; row++)
            tables[i].rows[row].is_trainable = row % 2 == i;
    }
    const struct ckpt_part parts[] = {{"one/adapter_model", &tables[0], &arrays[0]},
                                      {"two/adapter_model", &tables[1], &arrays[1]}};
    const struct ckpt_text texts[] = {{"one/adapter_config.json", "{}"}, {"two/adapter_config.json", "{\"two\": 2}"}};
    struct ckpt_model model = {
        .table = &tables[0], .parts = parts, .part_count = 2, .texts = texts, .text_count = 2, .max_shard_bytes = 5000};
    test_ok(ckpt_write_model(directory, &model));
    struct strbuf text = tiny_text(inside, "adapter_config.json");
    assert_string_equal(strbuf_text(&text), "{\"two\": 2}");
    strbuf_free(&text);
    struct ckpt_tensors *tensors;
    test_ok(ckpt_open_adapter(inside, &tensors)); /* one file, however large */
    assert_int_equal(ckpt_count(tensors), tables[1].count / 2);
    test_ok(ckpt_read(tensors, &tables[1], &arrays[1], 1));
    ckpt_close(tensors);
    /* It is a directory with other things in it, unless the caller knows better. */
    test_fails(ckpt_write_model(directory, &model), STATUS_INVALID, "is not empty and no model directory");
    model.is_replaced = true;
    model.part_count = model.text_count = 1;
    test_ok(ckpt_write_model(directory, &model));
    assert_false(file_exists(inside));
    for (int i = 0; i < 2; i++) {
        free(a[i].memory);
        free(tables[i].rows);
    }
    free(inside);
    free(directory);
}

static void tables_that_leave_holes_are_refused(void **state) {
    (void)state;
    char *directory = tiny_path(root, "holes");
    struct param_table table = tiny_table(true);
    struct tiny_array a = tiny_array(&table, DTYPE_F32);
    struct ckpt_array array = tiny_as_array(&a, "");
    struct ckpt_model model = {.table = &table, .weights = &array, .config_text = "{}"};
    struct param *qkv = &table.rows[4];
    qkv->slices[1].file_start = qkv->slices[0].file_start; /* two thirds of the file tensor from one place */
    test_fails(ckpt_write_model(directory, &model), STATUS_INVALID, "leaves holes in it");
    qkv->slices[1].file_start = 0;
    qkv->slice_count = 2;
    test_fails(ckpt_write_model(directory, &model), STATUS_INVALID, "slices cover 32 of 48 rows");
    assert_false(file_exists(directory));
    free(directory);
    free(a.memory);
    free(table.rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directories_of_transformers_are_read_to_the_bit),
        cmocka_unit_test(written_files_equal_those_of_transformers),
        cmocka_unit_test(an_oversized_tensor_has_a_shard_of_its_own),
        cmocka_unit_test(a_shard_is_filled_to_its_last_byte),
        cmocka_unit_test(large_tensors_travel_in_bounded_blocks),
        cmocka_unit_test(missing_and_misshapen_tensors_are_named),
        cmocka_unit_test(a_long_list_of_problems_is_counted),
        cmocka_unit_test(unknown_tensors_are_named_once_in_a_warning),
        cmocka_unit_test(a_head_that_is_not_the_embedding_is_not_dropped),
        cmocka_unit_test(pickles_and_empty_directories_are_refused_by_name),
        cmocka_unit_test(damaged_indexes_are_refused_with_their_place),
        cmocka_unit_test(a_failing_source_leaves_nothing_behind),
        cmocka_unit_test(only_a_model_directory_is_replaced),
        cmocka_unit_test(parts_stand_in_directories_of_their_own),
        cmocka_unit_test(tables_that_leave_holes_are_refused),
    };
    return cmocka_run_group_tests(tests, make_root, free_root);
}
