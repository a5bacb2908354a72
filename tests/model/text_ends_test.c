/* The ends of a completion, as a model's files define them. */
#include "model/family.h"
#include "support/test.h"
#include "support/tiny_model.h"

#include "base/base.h"

#include <jansson.h>

#define GPT2  "{" TINY_GPT2_KEYS(1, 50)
#define LLAMA "{\"model_type\":\"llama\",\"vocab_size\":50"

static struct model_text_ends read_ends(const char *text, struct model_config *config) {
    struct model_text_ends ends;
    enum dtype dtype;
    test_ok(model_read_config(text, "f", config, &dtype, &ends));
    return ends;
}

/* `expected` ends with -1. */
static void check(const char *text, int32_t bos, const int32_t *expected) {
    struct model_config config;
    struct model_text_ends ends = read_ends(text, &config);
    int count = 0;
    while (expected[count] >= 0)
        count++;
    assert_int_equal(ends.has_bos, bos >= 0);
    if (bos >= 0)
        assert_int_equal(ends.bos, bos);
    assert_int_equal(ends.count, count);
    assert_memory_equal(ends.eos, expected, (size_t)count * sizeof *expected);
    assert_int_equal(model_first_eos(&ends), expected[0]);
}

static void an_id_and_a_list_are_read(void **state) {
    (void)state;
    check(GPT2 ",\"bos_token_id\":3,\"eos_token_id\":7}", 3, (int32_t[]){7, -1});
    check(GPT2 ",\"eos_token_id\":[7,9,7,8]}", -1, (int32_t[]){7, 9, 8, -1});
    check(GPT2 ",\"eos_token_id\":[]}", -1, (int32_t[]){-1});
    check(GPT2 ",\"bos_token_id\":null,\"eos_token_id\":null}", -1, (int32_t[]){-1});
    check(GPT2 ",\"bos_token_id\":50,\"eos_token_id\":[50,49,-1,\"x\"]}", -1, (int32_t[]){49, -1}); /* no tokens */
    check(GPT2 ",\"eos_token_id\":[1,2,3,4,5,6,7,8]}", -1, (int32_t[]){1, 2, 3, 4, 5, 6, 7, 8, -1});
    struct model_config config;
    struct model_text_ends ends;
    enum dtype dtype;
    test_fails(model_read_config(GPT2 ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "f", &config, &dtype, &ends),
               STATUS_UNSUPPORTED, "f: 'eos_token_id': more than 8 ends of a text");
}

static void without_the_key_it_is_the_familys(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/model/golden/family_defaults.json", TEST_DATA);
    json_t *facts = json_load_file(path, 0, NULL), *family;
    const char *name;
    assert_non_null(facts);
    json_object_foreach(facts, name, family) {
        const json_t *fact = json_object_get(json_object_get(family, "defaults"), "eos_token_id");
        char text[256];
        snprintf(text, sizeof text, "{\"model_type\":\"%s\",\"vocab_size\":100000}", name);
        check(text, -1, (int32_t[]){json_is_null(fact) ? -1 : (int32_t)json_integer_value(fact), -1});
    }
    json_decref(facts);
    check(GPT2 "}", -1, (int32_t[]){-1});
    check(LLAMA "}", -1, (int32_t[]){2, -1});
    check(LLAMA ",\"eos_token_id\":null}", -1, (int32_t[]){-1});
}

static void a_generation_config_adds_to_them(void **state) {
    (void)state;
    struct model_config config;
    struct model_text_ends ends = read_ends(LLAMA ",\"eos_token_id\":7}", &config);
    test_ok(model_read_generation_config("{\"eos_token_id\":[9,7,8],\"temperature\":0.5}", "g", &config, &ends));
    assert_int_equal(ends.count, 3);
    assert_memory_equal(ends.eos, ((int32_t[]){7, 9, 8}), 3 * sizeof(int32_t));
    test_ok(model_read_generation_config("{}", "g", &config, &ends));
    test_ok(model_read_generation_config("{\"eos_token_id\":5}", "g", &config, &ends));
    assert_int_equal(ends.eos[3], 5);
    test_fails(model_read_generation_config("{", "g", &config, &ends), STATUS_INVALID, "g:1:");
    test_fails(model_read_generation_config("{\"eos_token_id\":[11,12,13,14,15]}", "g", &config, &ends),
               STATUS_UNSUPPORTED, "g: 'eos_token_id': more than 8 ends");
}

static void one_more_goes_first_or_last_once(void **state) {
    (void)state;
    struct model_text_ends ends = {.count = 8, .eos = {1, 2, 3, 4, 5, 6, 7, 8}};
    model_add_eos(&ends, 3, true);
    assert_memory_equal(ends.eos, ((int32_t[]){3, 2, 1, 4}), 4 * sizeof(int32_t));
    model_add_eos(&ends, 9, true);
    assert_int_equal(ends.count, 9);
    assert_memory_equal(ends.eos, ((int32_t[]){9, 3, 2, 1, 4, 5, 6, 7, 8}), 9 * sizeof(int32_t));
    model_add_eos(&ends, 8, false);
    assert_int_equal(ends.count, 9);
    assert_int_equal(ends.eos[8], 8);
}

static void what_is_written_reads_back(void **state) {
    (void)state;
    static const struct model_text_ends all[] = {
        {0},
        {.count = 1, .eos = {7}},
        {.has_bos = true, .bos = 3},
        {.has_bos = true, .bos = 3, .count = 3, .eos = {7, 9, 8}},
    };
    struct model_config config, again;
    read_ends(GPT2 "}", &config);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *text;
        test_ok(model_write_config(&config, DTYPE_F32, &all[i], &text));
        struct model_text_ends ends = read_ends(text, &again);
        assert_int_equal(ends.count, all[i].count);
        assert_memory_equal(ends.eos, all[i].eos, sizeof ends.eos);
        int32_t bos = all[i].has_bos ? all[i].bos : model_first_eos(&all[i]); /* as GPT-2 has it */
        assert_int_equal(ends.has_bos ? ends.bos : -1, bos);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_id_and_a_list_are_read),        cmocka_unit_test(without_the_key_it_is_the_familys),
        cmocka_unit_test(a_generation_config_adds_to_them), cmocka_unit_test(one_more_goes_first_or_last_once),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
