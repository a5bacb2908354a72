/* A scale of 0 is 0 in training, in serving and in merging, as in PEFT. The adapter, or the part of it that the key
 * names, then changes nothing. */
#include "stacks.h"

#include <jansson.h>

enum { COUNT = 9 };

struct scaled {
    const char *name, *key, *value; /* the key of the golden adapter's configuration becomes the value, a JSON text */
    bool is_merged;                 /* or cannot be: a bottleneck adapter */
    bool is_base;                   /* nothing is left of the adapter */
};

static const struct scaled cases[] = {
    {"lora", "lora_alpha", "0", true, true},
    {"lora_all_linear", "lora_alpha", "0.0", true, true},
    {"rslora", "lora_alpha", "0", true, true},
    {"rslora", "alpha_pattern", "{\"attn.c_proj\": 0}", true, false},
    {"rslora", "alpha_pattern", "{\"c_proj\": 0}", true, true},
    {"lora_patterns", "alpha_pattern", "{\"c_attn\": 0, \"h.2.mlp.c_fc\": 3}", true, false},
    {"dora", "lora_alpha", "0", true, false}, /* its magnitudes stay */
    {"dora_all_linear", "alpha_pattern", "{\"c_fc\": 0}", true, false},
    {"adapter_par_bn", "scaling", "0", false, true},
    {"adapter_double_seq_bn", "scaling", "0.0", false, true},
    {"adapter_seq_bn", "scaling", "0", false, true},
};

/* A copy of the golden adapter with the case's value. */
static void make_scaled(const struct scaled *c, const char *directory) {
    char golden[300], path[400], from[400];
    static const char *const files[] = {"adapter_model.safetensors", "adapter.safetensors"};
    snprintf(golden, sizeof golden, TEST_DATA "/peft/golden/%s", c->name);
    test_ok(file_make_directories(directory));
    for (int i = 0; i < 2; i++) {
        test_ok(file_join(from, sizeof from, golden, files[i]));
        test_ok(file_join(path, sizeof path, directory, files[i]));
        if (file_exists(from))
            test_ok(file_copy(from, path));
    }
    test_ok(file_join(from, sizeof from, golden, "adapter_config.json"));
    json_t *config = json_load_file(from, 0, NULL), *value = json_loads(c->value, JSON_DECODE_ANY, NULL);
    assert_non_null(config);
    assert_non_null(value);
    json_t *object = c->is_merged ? config : json_object_get(config, "config");
    assert_int_equal(json_object_set_new(object, c->key, value), 0);
    test_ok(file_join(path, sizeof path, directory, "adapter_config.json"));
    assert_int_equal(json_dump_file(config, path, JSON_INDENT(2)), 0);
    json_decref(config);
}

static void score_model(const char *model, float *logprobs) {
    struct engine *engine;
    test_ok(engine_open(&(struct engine_options){.device = test_device(),
                                                 .model = model,
                                                 .threads = 1,
                                                 .max_rows = 16,
                                                 .max_logit_rows = 16,
                                                 .max_sequences = 1},
                        &engine));
    test_ok(score(engine, 1, COUNT, logprobs));
    engine_close(engine);
}

static void merge(const char *adapter, const char *output) {
    struct peft_files *files;
    test_ok(peft_files_open(&adapter, 1, false, &files));
    test_ok(peft_merge(
        &(struct peft_merge){.device = test_device(), .model = base_directory(), .files = files, .output = output}));
    peft_files_close(files);
}

static void check_near(const struct scaled *c, const char *what, const float *ours, const float *expected) {
    for (int i = 1; i < COUNT; i++)
        if (!is_near(ours[i], expected[i]))
            fail_msg("%s, %s %s, token %d: %.9g %s, %.9g trained", c->name, c->key, c->value, i, (double)ours[i], what,
                     (double)expected[i]);
}

static void a_scale_of_0_is_0_everywhere(void **state) {
    (void)state;
    float base[COUNT];
    char *root = test_directory();
    score_model(base_directory(), base);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char adapter[400], merged[400];
        float trained[COUNT], served[COUNT], folded[COUNT];
        struct trained t;
        snprintf(adapter, sizeof adapter, "%s/adapter%zu", root, i);
        snprintf(merged, sizeof merged, "%s/merged%zu", root, i);
        make_scaled(&cases[i], adapter);
        struct stack stack = {.parts = {adapter}, .count = 1};
        trained_open(&t, &stack);
        trained_logprobs(&t, &stack, 1, COUNT, trained);
        trained_close(&t);
        struct engine *engine =
            open_engine(&stack, (struct engine_options){.threads = 1, .max_rows = 16, .max_sequences = 1});
        test_ok(score(engine, 1, COUNT, served));
        engine_close(engine);
        check_near(&cases[i], "served", served, trained);
        if (cases[i].is_merged) {
            merge(adapter, merged);
            score_model(merged, folded);
            check_near(&cases[i], "merged", folded, trained);
        }
        double apart = 0;
        for (int k = 1; k < COUNT; k++)
            apart = fmax(apart, fabs((double)trained[k] - (double)base[k]));
        if (cases[i].is_base != (apart < 1e-5))
            fail_msg("%s, %s %s: %g from the base", cases[i].name, cases[i].key, cases[i].value, apart);
    }
    free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_scale_of_0_is_0_everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
