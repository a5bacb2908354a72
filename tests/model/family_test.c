/* Families: how one is found, what is refused, and that each row's projections make up the model's linears. */
#include "model/model.h"
#include "support/test.h"
#include "support/tiny_model.h"

#define SHAPE TINY_GPT2_SIZES(2, 9)

static int read_text(const char *text, struct model_config *config) {
    enum dtype dtype;
    struct model_text_ends ends;
    return model_read_config(text, "f", config, &dtype, &ends);
}

static void a_family_is_found_by_model_type(void **state) {
    (void)state;
    struct model_config config;
    test_ok(read_text("{\"model_type\":\"gpt2\"," SHAPE "}", &config));
    assert_string_equal(model_family(&config)->name, "gpt2");
    assert_int_equal(model_family_find("gpt2"), config.family);
    assert_true(model_family_find("gpt") < 0);
    assert_true(model_family_find("") < 0);
}

static void an_unknown_model_type_is_refused_with_what_is_built(void **state) {
    (void)state;
    struct model_config config;
    test_fails(read_text("{\"model_type\":\"mamba\"," SHAPE "}", &config), STATUS_UNSUPPORTED,
               "f: 'model_type' \"mamba\" is not supported (supported: gpt2, llama, mistral, qwen2, qwen3, phi3)");
    test_fails(read_text("{" SHAPE "}", &config), STATUS_INVALID, "f: 'model_type' is missing");
    test_fails(read_text("{\"model_type\":2," SHAPE "}", &config), STATUS_INVALID, "f: 'model_type' must be a string");
}

/* A small model of a family: its own defaults, and the sizes under either of their names. */
static struct model_config config_of(int family) {
    struct model_config config;
    char text[512];
    snprintf(text, sizeof text,
             "{\"model_type\":\"%s\",\"num_hidden_layers\":2,\"hidden_size\":24,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":2,\"n_inner\":24,\"intermediate_size\":24,\"max_position_embeddings\":4,"
             "\"vocab_size\":9}",
             model_family_at(family)->name);
    test_ok(read_text(text, &config));
    return config;
}

/* For each family, the table has its names, and its projections make up each linear of a block. */
static void check_projections(const struct model_config *config) {
    const struct model_family *family = model_family(config);
    struct model_projection p[MODEL_MAX_PROJECTIONS];
    struct param_table table = {0};
    family->projections(config, p);
    test_ok(model_describe(config, &table));
    assert_ptr_equal(table.files, &family->files);
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++) {
        char name[PARAM_NAME_BYTES];
        int64_t end = 0;
        snprintf(name, sizeof name, "layers.1.%s.weight", model_linear((enum attach_place)place).name);
        const struct param *row = &table.rows[param_table_find(&table, name, 0)];
        for (int i = 0; i < family->projection_count; i++) {
            if (p[i].place != (enum attach_place)place)
                continue;
            assert_int_equal(p[i].first, end);
            assert_int_equal(p[i].in, row->shape[1]);
            end += p[i].out;
            int64_t parts = p[i].parts == 1 ? p[i].out : 0; /* which it has to consist of */
            for (int part = 0; p[i].parts > 1 && part < p[i].parts; part++)
                parts += p[i].part[part];
            assert_int_equal(parts, p[i].out);
        }
        assert_int_equal(end, row->shape[0]);
    }
    param_table_free(&table);
}

static void projections_make_up_each_linear_once(void **state) {
    (void)state;
    for (int number = 0; model_family_at(number); number++) {
        const struct model_config config = config_of(number);
        check_projections(&config);
    }
}

static void what_a_family_writes_it_reads(void **state) {
    (void)state;
    for (int number = 0; model_family_at(number); number++) {
        const struct model_config config = config_of(number);
        struct model_config again;
        char *text, *other;
        test_ok(model_write_config(&config, DTYPE_F32, &(const struct model_text_ends){0}, &text));
        test_ok(read_text(text, &again));
        test_ok(model_write_config(&again, DTYPE_F32, &(const struct model_text_ends){0}, &other));
        assert_string_equal(text, other);
        assert_int_equal(again.family, number);
        assert_int_equal(again.ffn_hidden_size, config.ffn_hidden_size);
        free(text);
        free(other);
    }
}

static void a_module_has_the_path_that_peft_matches(void **state) {
    (void)state;
    char path[PARAM_NAME_BYTES];
    model_module_path(model_family(&(const struct model_config){0}), 11, "mlp.c_proj", path);
    assert_string_equal(path, "transformer.h.11.mlp.c_proj");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_family_is_found_by_model_type),
        cmocka_unit_test(an_unknown_model_type_is_refused_with_what_is_built),
        cmocka_unit_test(projections_make_up_each_linear_once),
        cmocka_unit_test(what_a_family_writes_it_reads),
        cmocka_unit_test(a_module_has_the_path_that_peft_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
