/* Weights in few bits: any rectangle of codes, scales and order has the values of the whole, and what describes it. The
 * values themselves are checked by tests/commands/quantised_test.py. */
#include "ckpt/codec.h"
#include "tiny_gpt2.h"

enum { ROWS = 24, COLUMNS = 104, PLAIN_ROWS = 8, MOST_BYTES = 1 << 16 };

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

/* The content of a tensor. */
enum content { CODES, SCALES, IN_ORDER, MIXED, SHAPE, TEXT, TABLE };

struct tensor {
    const char *name, *type;
    int dims;
    int64_t shape[2];
    enum content content;
    const char *text;
};

struct form {
    const char *name, *config;
    struct tensor tensors[8];
};

#define GPTQ(bits, group, more) "{\"quant_method\":\"gptq\",\"bits\":" bits ",\"group_size\":" group more "}"
#define PACKED(weights)                                                                                                \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"targets\":"    \
    "[\"Linear\"],\"weights\":{\"num_bits\":4," weights "}}}}"
#define STATE "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[24,104]}"
#define NF4   "{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}"

#define MATRIX(name, type, rows, columns, content)                                                                     \
    { name, type, 2, {rows, columns}, content, NULL }
#define VECTOR(name, type, length, content)                                                                            \
    { name, type, 1, {length, 0}, content, NULL }

static const struct form forms[] = {
    {"gptq",
     GPTQ("4", "32", ",\"sym\":false"),
     {MATRIX("a.qweight", "I32", 13, 24, CODES), MATRIX("a.qzeros", "I32", 4, 3, CODES),
      MATRIX("a.scales", "F16", 4, 24, SCALES)}},
    {"gptq of 8 bits, by order",
     GPTQ("8", "32", ",\"sym\":false"),
     {MATRIX("a.qweight", "I32", 26, 24, CODES), MATRIX("a.qzeros", "I32", 4, 6, CODES),
      MATRIX("a.scales", "F32", 4, 24, SCALES), VECTOR("a.g_idx", "I32", 104, MIXED)}},
    {"gptq in its natural order",
     GPTQ("4", "8", ""),
     {MATRIX("a.qweight", "I32", 13, 24, CODES), MATRIX("a.qzeros", "I32", 13, 3, CODES),
      MATRIX("a.scales", "BF16", 13, 24, SCALES), VECTOR("a.g_idx", "I32", 104, IN_ORDER)}},
    {"awq",
     "{\"quant_method\":\"awq\",\"group_size\":26}",
     {MATRIX("a.qweight", "I32", 104, 3, CODES), MATRIX("a.qzeros", "I32", 4, 3, CODES),
      MATRIX("a.scales", "F16", 4, 24, SCALES)}},
    {"packed",
     PACKED("\"group_size\":13,\"symmetric\":false"),
     {MATRIX("a.weight_packed", "I32", 24, 13, CODES), MATRIX("a.weight_scale", "BF16", 24, 8, SCALES),
      MATRIX("a.weight_zero_point", "I32", 3, 8, CODES), VECTOR("a.weight_shape", "I64", 2, SHAPE)}},
    {"packed by output",
     PACKED("\"strategy\":\"channel\""),
     {MATRIX("a.weight_packed", "I32", 24, 13, CODES), MATRIX("a.weight_scale", "F32", 24, 1, SCALES),
      VECTOR("a.weight_shape", "I64", 2, SHAPE)}},
    {"packed by order",
     PACKED("\"group_size\":26"),
     {MATRIX("a.weight_packed", "I32", 24, 13, CODES), MATRIX("a.weight_scale", "F16", 24, 4, SCALES),
      VECTOR("a.weight_shape", "I64", 2, SHAPE), VECTOR("a.weight_g_idx", "I32", 104, MIXED)}},
    {"fp8 in blocks",
     "{\"quant_method\":\"fp8\",\"weight_block_size\":[10,30]}",
     {MATRIX("a.weight", "F8_E4M3", 24, 104, CODES), MATRIX("a.weight_scale_inv", "F32", 3, 4, SCALES)}},
    {"fp8 by tensor",
     "{\"quant_method\":\"fp8\"}",
     {MATRIX("a.weight", "F8_E4M3", 24, 104, CODES), VECTOR("a.weight_scale", "BF16", 1, SCALES)}},
    {"nf4 across rows",
     NF4,
     {MATRIX("a.weight", "U8", 1248, 1, CODES),
      VECTOR("a.weight.absmax", "F32", 39, SCALES),
      VECTOR("a.weight.quant_map", "F32", 16, TABLE),
      {"a.weight.quant_state.bitsandbytes__nf4", "U8", 1, {sizeof STATE - 1, 0}, TEXT, STATE}}},
    {"int8",
     "{\"quant_method\":\"bitsandbytes\"}",
     {MATRIX("a.weight", "I8", 24, 104, CODES), VECTOR("a.SCB", "F32", 24, SCALES)}},
};
enum { FORM_COUNT = sizeof forms / sizeof *forms };

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

/* Writes the bytes of a tensor; returns their number. */
static size_t fill(const struct tensor *t, uint32_t *seed, char *out) {
    int64_t count = 1;
    for (int i = 0; i < t->dims; i++)
        count *= t->shape[i];
    size_t width = (size_t)safetensors_type_bytes(t->type), bytes = (size_t)count * width;
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)(next_random(seed) & 0x7e); /* no NaN of E4M3 */
    for (int64_t i = 0; i < count; i++) {
        float scale = (float)(1 + next_random(seed) % 100) / 64;
        int32_t group = (int32_t)(t->content == MIXED ? (i * 5 + i / 7) % 4 : i / 8);
        uint16_t half = !strcmp(t->type, "F16") ? f16_from_float(scale) : bf16_from_float(scale);
        if (t->content == SCALES)
            memcpy(out + (size_t)i * width, width == 2 ? (void *)&half : (void *)&scale, width);
        else if (t->content == MIXED || t->content == IN_ORDER)
            memcpy(out + (size_t)i * width, &group, width);
    }
    if (t->content == SHAPE)
        memcpy(out, (const int64_t[]){ROWS, COLUMNS}, bytes);
    if (t->content == TEXT)
        memcpy(out, t->text, bytes);
    if (t->content == TABLE)
        memcpy(out, encoded_table(CODES_NF4), bytes);
    return bytes;
}

/* Writes the model of a form: linear `a` in few bits, and a plain `b`. */
static void write_form(const struct form *form, uint32_t seed) {
    static const struct tensor plain = {"b.weight", "F32", 2, {PLAIN_ROWS, COLUMNS}, SCALES, NULL};
    static char data[MOST_BYTES];
    struct strbuf header = STRBUF_INIT, file = STRBUF_INIT;
    size_t at = 0;
    for (int i = -1; i < 8 && (i < 0 || form->tensors[i].name); i++) {
        const struct tensor *t = i < 0 ? &plain : &form->tensors[i];
        size_t bytes = fill(t, &seed, data + at);
        strbuf_format(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i < 0 ? "{" : ",", t->name, t->type);
        for (int d = 0; d < t->dims; d++)
            strbuf_format(&header, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        strbuf_format(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    strbuf_add_text(&header, "}");
    strbuf_add(&file, &(uint64_t){header.length}, 8);
    strbuf_add(&file, header.data, header.length);
    strbuf_add(&file, data, at);
    tiny_write(directory, "model.safetensors", file.data, file.length);
    strbuf_free(&header);
    strbuf_free(&file);
}

static int attach(const struct form *form, struct ckpt_tensors **tensors) {
    char config[2048];
    test_ok(ckpt_open_model(directory, tensors));
    snprintf(config, sizeof config, "{\"quantization_config\":%s}", form->config);
    return ckpt_attach_codec(*tensors, config, "config.json");
}

/* A parameter of both weights: rows of `a`, then of `b`. */
static struct param_table fused_table(struct param *row) {
    *row = (struct param){.name = "w", .dims = 2, .shape = {ROWS + PLAIN_ROWS, COLUMNS}, .slice_count = 2};
    row->slices[0] = (struct param_slice){.name = "a.weight", .rows = ROWS, .file_rows = ROWS};
    row->slices[1] = (struct param_slice){.name = "b.weight", .row = ROWS, .rows = PLAIN_ROWS, .file_rows = PLAIN_ROWS};
    return (struct param_table){.rows = row, .count = 1};
}

static void check_rectangle(const struct ckpt_encodings *e, const struct param_rect *rect, const float *whole) {
    struct encoded_layout layout;
    float values[COLUMNS];
    assert_true(ckpt_describe_encoding(e, e->table->rows, rect, 1, &layout));
    const struct encoded_part *part = &layout.parts[0];
    assert_int_equal(part->rows, rect->rows);
    assert_true(part->encoding.group > 0 && part->positions >= rect->columns);
    void *memory = malloc(encoded_rows_bytes(part));
    struct encoded_rows rows = encoded_rows_place(part, memory);
    test_ok(ckpt_read_encoded(e, 0, rect, &rows));
    for (int64_t r = 0; r < rect->rows; r++) {
        encoded_row_values(&rows, r, values);
        const float *expected = whole + (rect->row + r) * COLUMNS + rect->column;
        assert_memory_equal(values, expected, (size_t)rect->columns * sizeof *values);
    }
    free(memory);
}

static void any_rectangle_has_the_values_of_the_whole(void **state) {
    (void)state;
    static float whole[(ROWS + PLAIN_ROWS) * COLUMNS];
    const struct ckpt_array array = {.prefix = "", .dtype = DTYPE_F32, .must_be_finite = true};
    for (int f = 0; f < FORM_COUNT; f++) {
        struct param row;
        struct param_table table = fused_table(&row);
        struct ckpt_tensors *tensors;
        uint32_t seed = 7;
        write_form(&forms[f], 3);
        test_ok(attach(&forms[f], &tensors));
        const struct ckpt_encodings e = {tensors, &table};
        test_ok(ckpt_check(tensors, &table, &array, 1));
        test_ok(
            ckpt_read_block(tensors, &table, &array, &(struct ckpt_block){0, 0, ROWS + PLAIN_ROWS, 0, COLUMNS}, whole));
        check_rectangle(&e, &(struct param_rect){.rows = ROWS, .columns = COLUMNS}, whole);
        for (int i = 0; i < 200; i++) {
            struct param_rect rect = {.row = next_random(&seed) % ROWS, .column = next_random(&seed) % COLUMNS};
            rect.rows = 1 + next_random(&seed) % (uint32_t)(ROWS - rect.row);
            rect.columns = 1 + next_random(&seed) % (uint32_t)(COLUMNS - rect.column);
            check_rectangle(&e, &rect, whole);
        }
        ckpt_close(tensors);
    }
}

static void slices_of_a_parameter_are_described_one_by_one(void **state) {
    (void)state;
    struct param row;
    struct param_table table = fused_table(&row);
    struct ckpt_tensors *tensors;
    struct encoded_layout layout;
    const struct param_rect rects[] = {{.row = 4, .rows = 8, .columns = COLUMNS},
                                       {.row = ROWS, .rows = PLAIN_ROWS, .columns = COLUMNS, .local_row = 8}};
    write_form(&forms[0], 3);
    test_ok(attach(&forms[0], &tensors));
    const struct ckpt_encodings e = {tensors, &table};
    assert_true(ckpt_describe_encoding(&e, &row, rects, 2, &layout));
    assert_int_equal(layout.count, 2);
    assert_int_equal(layout.parts[0].encoding.codes, CODES_INTEGERS);
    assert_int_equal(layout.parts[0].encoding.group, 32);
    assert_int_equal(layout.parts[1].encoding.codes, CODES_NONE);
    assert_false(ckpt_describe_encoding(&e, &row, rects + 1, 1, &layout));
    row.slices[0].file_rows = ROWS + 1; /* another shape */
    assert_false(ckpt_describe_encoding(&e, &row, rects, 2, &layout));
    ckpt_close(tensors);
}

static void a_cut_that_divides_groups_repeats_their_scales(void **state) {
    (void)state;
    static const struct {
        int form;
        int64_t column, columns, group, positions;
    } cases[] = {
        {0, 0, 64, 32, 64},   {0, 32, 64, 32, 64}, {0, 48, 56, 16, 56}, {0, 8, 20, 20, 20}, /* within one group */
        {0, 8, 64, 8, 64},    {5, 50, 54, 54, 54}, {9, 0, 104, 8, 104}, /* blocks of 64 across rows of 104 */
        {1, 0, 104, 32, 128},                                           /* four groups of 26 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct param row;
        struct param_table table = fused_table(&row);
        struct ckpt_tensors *tensors;
        struct encoded_layout layout;
        const struct param_rect rect = {.rows = ROWS, .column = cases[i].column, .columns = cases[i].columns};
        write_form(&forms[cases[i].form], 3);
        test_ok(attach(&forms[cases[i].form], &tensors));
        assert_true(ckpt_describe_encoding(&(struct ckpt_encodings){tensors, &table}, &row, &rect, 1, &layout));
        assert_int_equal(layout.parts[0].encoding.group, cases[i].group);
        assert_int_equal(layout.parts[0].positions, cases[i].positions);
        ckpt_close(tensors);
    }
}

static void quantisation_is_described_in_words(void **state) {
    (void)state;
    static const char *const texts[FORM_COUNT] = {"gptq, 4 bits, groups of 32",
                                                  "gptq, 8 bits, groups of 32, by act-order",
                                                  "gptq, 4 bits, groups of 8",
                                                  "awq, 4 bits, groups of 26",
                                                  "compressed-tensors, 4 bits, groups of 13",
                                                  "compressed-tensors, 4 bits",
                                                  "compressed-tensors, 4 bits, groups of 26, by act-order",
                                                  "fp8, 8 bits, groups of 30",
                                                  "fp8, 8 bits",
                                                  "bitsandbytes, 4 bits, groups of 64",
                                                  "bitsandbytes, 8 bits"};
    for (int f = 0; f < FORM_COUNT; f++) {
        struct ckpt_tensors *tensors;
        write_form(&forms[f], 3);
        test_ok(attach(&forms[f], &tensors));
        assert_string_equal(ckpt_quantization(tensors)->text, texts[f]);
        assert_int_equal(ckpt_count(tensors), 2);
        ckpt_close(tensors);
    }
}

static void a_digest_covers_the_packed_tensors(void **state) {
    (void)state;
    for (int f = 0; f < FORM_COUNT; f++) {
        uint64_t digests[3];
        for (int i = 0; i < 3; i++) {
            struct ckpt_tensors *tensors;
            struct form form = forms[f];
            write_form(&form, i < 2 ? 3 : 4);
            test_ok(attach(&form, &tensors));
            test_ok(ckpt_digest(tensors, &digests[i]));
            ckpt_close(tensors);
        }
        assert_true(digests[0] == digests[1]);
        assert_true(digests[0] != digests[2]);
    }
}

static void a_model_without_the_key_stays_as_it_is(void **state) {
    (void)state;
    struct ckpt_tensors *tensors;
    write_form(&forms[0], 3);
    test_ok(ckpt_open_model(directory, &tensors));
    test_ok(ckpt_attach_codec(tensors, "{\"quantization_config\":null}", "config.json"));
    assert_int_equal(ckpt_count(tensors), 4);
    assert_null(ckpt_quantization(tensors)->method);
    ckpt_close(tensors);
}

/* The directories that tools/golden/quantised_linears.py wrote with the formats' libraries. */
static const char *const goldens[] = {
    "gptq_4_v1",
    "gptq_4_v2",
    "gptq_8_v1",
    "gptq_8_v2",
    "awq",
    "packed_4",
    "packed_4_asymmetric",
    "int_outputs",
    "nf4",
    "int_asymmetric",
    "nf4_twice",
    "fp4_twice",
    "int8",
    "float_outputs",
    "float_blocks",
    "float_tensor",
    "packed_8_asymmetric_outputs",
};

static void values_are_those_of_the_libraries(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        char path[512];
        struct strbuf config = STRBUF_INIT;
        struct ckpt_tensors *tensors;
        snprintf(path, sizeof path, "%s/ckpt/golden/quantised/%s", TEST_DATA, goldens[i]);
        test_ok(ckpt_read_config(path, &config));
        test_ok(ckpt_open_model(path, &tensors));
        test_ok(ckpt_attach_codec(tensors, strbuf_text(&config), "config.json"));
        const struct safetensor *expected = ckpt_find_tensor(tensors, "expected");
        const struct safetensor *found = ckpt_find_tensor(tensors, "a.weight");
        assert_non_null(found);
        assert_memory_equal(found->shape, expected->shape, 2 * sizeof *found->shape);
        float *values = malloc(2 * (size_t)expected->bytes), *wanted = values + expected->elements;
        test_ok(ckpt_read_numbers(tensors, "a.weight", 0, found->elements, DTYPE_F32, values));
        test_ok(ckpt_read_numbers(tensors, "expected", 0, found->elements, DTYPE_F32, wanted));
        for (int64_t e = 0; e < found->elements; e++)
            if (values[e] != wanted[e])
                fail_msg("%s: element %lld is %.9g, expected %.9g", goldens[i], (long long)e, (double)values[e],
                         (double)wanted[e]);
        free(values);
        strbuf_free(&config);
        ckpt_close(tensors);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_libraries),
        cmocka_unit_test(any_rectangle_has_the_values_of_the_whole),
        cmocka_unit_test(slices_of_a_parameter_are_described_one_by_one),
        cmocka_unit_test(a_cut_that_divides_groups_repeats_their_scales),
        cmocka_unit_test(quantisation_is_described_in_words),
        cmocka_unit_test(a_digest_covers_the_packed_tensors),
        cmocka_unit_test(a_model_without_the_key_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, make_directory, free_directory);
}
