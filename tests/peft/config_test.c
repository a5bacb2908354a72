/* adapter_config.json: what is read of it, what is refused, and that ours says the same. */
#include "peft/peft.h"
#include "pretrained/pretrained.h"
#include "support/test.h"

#define GOLDEN TEST_DATA "/peft/golden"

static struct model_config read_base(void) {
    struct pretrained base;
    test_ok(pretrained_read_config(GOLDEN "/base", &base));
    struct model_config config = base.config;
    pretrained_close(&base);
    return config;
}

static void read_golden(const char *name, struct peft_config *config) {
    char directory[300];
    struct strbuf text = STRBUF_INIT;
    snprintf(directory, sizeof directory, GOLDEN "/%s", name);
    test_ok(ckpt_read_adapter_config(directory, &text));
    test_ok(peft_read_config(strbuf_text(&text), name, config));
    strbuf_free(&text);
}

static void check_list(const struct config_list *list, const char *expected) {
    char text[512] = "";
    for (size_t i = 0; i < list->count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", list->items[i]);
    assert_string_equal(text, expected);
}

static void peft_files_are_read(void **state) {
    (void)state;
    struct peft_config c;
    read_golden("lora_patterns", &c);
    assert_int_equal(c.type, PEFT_LORA);
    assert_int_equal(c.r, 4);
    assert_true(c.lora_alpha == 8 && c.lora_dropout == 0 && c.loraplus_lr_ratio == 1 && !c.use_dora && !c.use_rslora);
    check_list(&c.target_modules, "c_attn c_fc mlp.c_proj");
    check_list(&c.rank_pattern, "c_fc=6 h.1.attn.c_attn=2 h\\.[02]\\.mlp\\.c_proj=3");
    check_list(&c.alpha_pattern, "h.0.attn.c_attn=16 h.2.mlp.c_fc=3");
    assert_string_equal(c.base_name, "base");
    peft_config_free(&c);
    assert_null(c.memory);
    read_golden("lora_one_layer", &c);
    check_list(&c.layers_to_transform, "1");
    peft_config_free(&c);
    read_golden("lora_regex", &c);
    check_list(&c.target_modules, ".*\\.h\\.[02]\\.(attn\\.c_proj|mlp\\.c_fc)");
    peft_config_free(&c);
    read_golden("lora_exclude", &c);
    check_list(&c.exclude_modules, ".*\\.h\\.[\\d]+\\.attn\\.\\w+|.*\\.h\\.1\\..*");
    peft_config_free(&c);
    read_golden("rslora", &c);
    assert_true(c.use_rslora);
    peft_config_free(&c);
    read_golden("ia3_attention", &c);
    assert_int_equal(c.type, PEFT_IA3);
    check_list(&c.feedforward_modules, "none");
    peft_config_free(&c);
    read_golden("ptuning_lstm", &c);
    assert_int_equal(c.type, PEFT_PTUNING);
    assert_int_equal(c.encoder_reparameterization_type, PEFT_LSTM);
    assert_int_equal(c.num_virtual_tokens, 5);
    assert_int_equal(c.encoder_hidden_size, 8);
    peft_config_free(&c);
}

static void adapterhub_files_are_read(void **state) {
    static const struct {
        const char *name;
        int style, activation;
        int64_t width;
        double scaling;
        bool has_norm;
    } cases[] = {{"adapter_double_seq_bn", PEFT_HOULSBY, PEFT_SWISH, 6, 1, false},
                 {"adapter_seq_bn", PEFT_PFEIFFER, PEFT_RELU, 6, 1, false},
                 {"adapter_par_bn", PEFT_PARALLEL, PEFT_RELU, 12, 4, false},
                 {"adapter_pre_norm", PEFT_HOULSBY, PEFT_GELU, 4, 1, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct peft_config c;
        read_golden(cases[i].name, &c);
        assert_int_equal(c.type, PEFT_ADAPTER);
        assert_int_equal(c.adapter_style, cases[i].style);
        assert_int_equal(c.adapter_activation, cases[i].activation);
        assert_int_equal(c.bottleneck, cases[i].width);
        assert_true(c.adapter_scaling == cases[i].scaling && c.adapter_pre_norm == cases[i].has_norm);
        assert_string_equal(c.adapter_name, cases[i].name);
        peft_config_free(&c);
    }
}

#define LORA   "{\"peft_type\":\"LORA\",\"target_modules\":[\"c_attn\"]"
#define PROMPT "{\"peft_type\":\"PROMPT_TUNING\",\"task_type\":\"CAUSAL_LM\",\"num_virtual_tokens\":5"
#define HUB    "{\"name\":\"a\",\"hidden_size\":24,\"config\":{\"reduction_factor\":4,\"non_linearity\":\"relu\","

static void bad_files_are_refused_by_their_key(void **state) {
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "file:1:0: '[' or '{' expected"},
        {"[]", "expected a JSON object"},
        {"{\"r\":8,\"r\":8}", "duplicate object key"},
        {"{\"r\":8}", "\"peft_type\""},
        {"{\"peft_type\":8}", "\"peft_type\": expected one of LORA IA3"},
        {"{\"peft_type\":\"ADALORA\"}", "found \"ADALORA\""},
        {"{\"peft_type\":\"a\\nb\"}", "found \"a?b\""},
        {LORA ",\"r\":0}", "\"r\": expected an integer from 1 to 65536"},
        {LORA ",\"r\":-1}", "\"r\""},
        {LORA ",\"r\":8.0}", "\"r\""},
        {LORA ",\"r\":99999999999}", "\"r\""},
        {LORA ",\"lora_alpha\":-1}", "\"lora_alpha\""},
        {LORA ",\"lora_alpha\":\"8\"}", "\"lora_alpha\""},
        {LORA ",\"lora_dropout\":1}", "\"lora_dropout\""},
        {LORA ",\"use_dora\":1}", "\"use_dora\": expected true or false"},
        {LORA ",\"bias\":\"all\"}", "\"bias\" is set, and not supported"},
        {LORA ",\"modules_to_save\":[\"lm_head\"]}", "\"modules_to_save\""},
        {LORA ",\"enable_lora\":[true,false,true]}", "\"enable_lora\""}, /* GPT-2's in peft 0.2 */
        {LORA ",\"use_qalora\":true}", "\"use_qalora\""},
        {LORA ",\"layer_replication\":[[0,1]]}", "\"layer_replication\""},
        {LORA ",\"megatron_config\":{\"a\":1}}", "\"megatron_config\""},
        {LORA ",\"trainable_token_indices\":[1]}", "\"trainable_token_indices\""},
        {LORA ",\"target_parameters\":[\"a\"]}", "\"target_parameters\""},
        {LORA ",\"alora_invocation_tokens\":[1]}", "\"alora_invocation_tokens\""},
        {LORA ",\"lora_bias\":true}", "\"lora_bias\""},
        {LORA ",\"init_lora_weights\":\"pissa\"}", "\"pissa\" is not supported"},
        {LORA ",\"init_lora_weights\":\"olora\"}", "\"olora\" is not supported"},
        {LORA ",\"init_lora_weights\":3}", "\"init_lora_weights\""},
        {LORA ",\"layers_pattern\":\"blocks\"}", "\"layers_pattern\": expected null or \"h\" or \"layers\""},
        {LORA ",\"layers_to_transform\":[-1]}", "\"layers_to_transform\""},
        {LORA ",\"layers_to_transform\":[]}", "\"layers_to_transform\""},
        {LORA ",\"exclude_modules\":7}", "\"exclude_modules\": expected a list"},
        {LORA ",\"rank_pattern\":{\"c_attn\":0}}", "\"rank_pattern\""},
        {LORA ",\"alpha_pattern\":{\"c_attn\":-1}}", "\"alpha_pattern\""},
        {LORA ",\"rank_pattern\":{\"c_attn\":1.5}}", "\"rank_pattern\""},
        {LORA ",\"alpha_pattern\":[1]}", "\"alpha_pattern\""},
        {LORA ",\"task_type\":\"SEQ_CLS\"}", "\"task_type\": expected CAUSAL_LM"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[1]}", "\"target_modules\""},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[]}", "\"target_modules\": expected at least one"},
        {"{\"peft_type\":\"IA3\",\"target_modules\":[]}", "\"target_modules\": expected at least one"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":\"\"}", "\"target_modules\""},
        {"{\"peft_type\":\"PROMPT_TUNING\",\"task_type\":\"CAUSAL_LM\"}", "\"num_virtual_tokens\""},
        {"{\"peft_type\":\"PROMPT_TUNING\",\"num_virtual_tokens\":5}", "\"task_type\""},
        {PROMPT ",\"num_transformer_submodules\":2}", "\"num_transformer_submodules\""},
        {PROMPT ",\"encoder_reparameterization_type\":\"GRU\"}", "MLP LSTM, found \"GRU\""},
        {"{\"config\":{}}", "\"hidden_size\""},
        {"{\"hidden_size\":24,\"config\":[]}", "\"config\": expected an object"},
        {HUB "\"original_ln_before\":true,\"use_gating\":true}}", "\"use_gating\" is set"},
        {HUB "\"original_ln_before\":true,\"leave_out\":[1]}}", "\"leave_out\""},
        {HUB "\"original_ln_before\":false}}", "\"original_ln_before\""},
        {HUB "\"mh_adapter\":true,\"is_parallel\":true}}", "\"mh_adapter\""},
        {"{\"hidden_size\":24,\"config\":{\"reduction_factor\":{\"default\":2}}}", "\"reduction_factor\""},
        {"{\"hidden_size\":24,\"config\":{\"reduction_factor\":0}}", "\"reduction_factor\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct peft_config config;
        int status = peft_read_config(cases[i].text, "file", &config);
        if (!status)
            fail_msg("not refused: %s", cases[i].text);
        if (!strstr(status_text(), cases[i].expected) || strchr(status_text(), '\n'))
            fail_msg("%s: \"%s\", expected \"%s\"", cases[i].text, status_text(), cases[i].expected);
        const char *first = strstr(status_text(), "or \"layers\"");
        if (first && strstr(first + 1, "or \"layers\""))
            fail_msg("a name twice: %s", status_text());
        assert_null(config.memory);
    }
}

/* `ranks` patterns of ranks, and as many more of alphas as make `count`. */
static void make_patterns(struct strbuf *text, int ranks, int count) {
    strbuf_clear(text);
    strbuf_add_text(text, LORA ",\"rank_pattern\":{");
    for (int i = 0; i < count; i++)
        strbuf_format(text, "%s\"c%d\":2", i == ranks ? "},\"alpha_pattern\":{" : i ? "," : "", i);
    strbuf_add_text(text, "}}");
    test_ok(strbuf_status(text));
}

static void patterns_are_at_most_256(void **state) {
    static const int ranks[] = {1, 100, 256, 257};
    struct strbuf text = STRBUF_INIT;
    struct peft_config config;
    (void)state;
    for (int i = 0; i < 4; i++) {
        make_patterns(&text, ranks[i], 256);
        test_ok(peft_read_config(strbuf_text(&text), "file", &config));
        test_ok(peft_check_run(&config));
        peft_config_free(&config);
        make_patterns(&text, ranks[i], 257);
        test_fails(peft_read_config(strbuf_text(&text), "file", &config), STATUS_INVALID,
                   "at most 256 patterns with those of rank_pattern, found 257");
    }
    const char *items[257];
    for (int i = 0; i < 257; i++)
        items[i] = "c_attn=2";
    config = (struct peft_config){.type = PEFT_LORA, .rank_pattern = {.items = items, .count = 257}};
    test_fails(peft_check_run(&config), STATUS_USAGE, "257 patterns, at most 256");
    strbuf_free(&text);
}

static void lists_have_an_end(void **state) {
    struct strbuf text = STRBUF_INIT;
    struct peft_config config;
    (void)state;
    for (int more = 0; more < 2; more++) {
        strbuf_clear(&text);
        strbuf_add_text(&text, "{\"peft_type\":\"LORA\",\"target_modules\":[\"a\"");
        for (int i = 1; i < 4096 + more; i++)
            strbuf_add_text(&text, ",\"a\"");
        strbuf_add_text(&text, "]}");
        int status = peft_read_config(strbuf_text(&text), "file", &config);
        if (more)
            test_fails(status, STATUS_INVALID, "\"target_modules\": expected at most 4096 entries, found 4097");
        else
            test_ok(status);
        peft_config_free(&config);
    }
    strbuf_free(&text);
}

static void neutral_and_unknown_keys_are_passed_over(void **state) {
    struct peft_config config;
    (void)state;
    test_ok(peft_read_config(LORA ",\"modules_to_save\":[],\"loftq_config\":{},\"use_qalora\":false,\"new_key\":[1],"
                                  "\"init_lora_weights\":\"gaussian\",\"layers_pattern\":\"h\",\"rank_pattern\":null}",
                             "file", &config));
    assert_int_equal(config.r, 8);
    check_list(&config.rank_pattern, "");
    peft_config_free(&config);
}

static void check_same_list(const struct config_list *one, const struct config_list *other) {
    assert_int_equal(one->count, other->count);
    for (size_t i = 0; i < one->count; i++)
        assert_string_equal(one->items[i], other->items[i]);
}

static void check_same(const struct peft_config *one, const struct peft_config *other) {
    assert_int_equal(one->type, other->type);
    check_same_list(&one->target_modules, &other->target_modules);
    check_same_list(&one->exclude_modules, &other->exclude_modules);
    check_same_list(&one->layers_to_transform, &other->layers_to_transform);
    check_same_list(&one->feedforward_modules, &other->feedforward_modules);
    check_same_list(&one->rank_pattern, &other->rank_pattern);
    check_same_list(&one->alpha_pattern, &other->alpha_pattern);
    assert_int_equal(one->r, other->r);
    assert_true(one->lora_alpha == other->lora_alpha && one->lora_dropout == other->lora_dropout);
    assert_true(one->use_rslora == other->use_rslora && one->use_dora == other->use_dora);
    assert_int_equal(one->bottleneck, other->bottleneck);
    assert_int_equal(one->adapter_style, other->adapter_style);
    assert_int_equal(one->adapter_activation, other->adapter_activation);
    assert_true(one->adapter_pre_norm == other->adapter_pre_norm && one->adapter_scaling == other->adapter_scaling);
    assert_int_equal(one->num_virtual_tokens, other->num_virtual_tokens);
    assert_int_equal(one->encoder_reparameterization_type, other->encoder_reparameterization_type);
    assert_int_equal(one->encoder_hidden_size, other->encoder_hidden_size);
    assert_int_equal(one->encoder_num_layers, other->encoder_num_layers);
    assert_true(one->encoder_dropout == other->encoder_dropout);
}

/* None of them is the value that a reader would take where the file says nothing. */
static void values_that_are_no_defaults_read_back(void **state) {
    static const char *const texts[] = {
        LORA
        ",\"r\":5,\"lora_alpha\":3.5,\"lora_dropout\":0.25,\"use_rslora\":true,\"layers_to_transform\":[0,2],"
        "\"exclude_modules\":[\"c_proj\",\"c_fc\"],\"rank_pattern\":{\"c_attn\":3},\"alpha_pattern\":{\"c_attn\":0.5}}",
        LORA ",\"lora_alpha\":0,\"use_dora\":true,\"alpha_pattern\":{\"c_attn\":0}}",
        "{\"peft_type\":\"IA3\",\"target_modules\":[\"c_fc\"],\"feedforward_modules\":[\"c_fc\"],\"exclude_modules\":"
        "\"h.1.*\"}",
        "{\"peft_type\":\"P_TUNING\",\"task_type\":\"CAUSAL_LM\",\"num_virtual_tokens\":7,\"encoder_hidden_size\":9,"
        "\"encoder_reparameterization_type\":\"LSTM\",\"encoder_num_layers\":3,\"encoder_dropout\":0.5}",
        HUB "\"mh_adapter\":true,\"ln_before\":true,\"scaling\":2.5}}",
        HUB "\"is_parallel\":true,\"scaling\":0}}",
    };
    (void)state;
    const struct model_config base = read_base();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct peft_config one, other;
        char *text;
        test_ok(peft_read_config(texts[i], "file", &one));
        test_ok(peft_write_config(&one, &base, GOLDEN "/base", &text));
        test_ok(peft_read_config(text, "written", &other));
        check_same(&one, &other);
        free(text);
        peft_config_free(&one);
        peft_config_free(&other);
    }
}

static void what_is_written_reads_back(void **state) {
    static const char *const names[] = {"lora_patterns",
                                        "lora_all_linear",
                                        "lora_one_layer",
                                        "lora_regex",
                                        "dora",
                                        "rslora",
                                        "ia3",
                                        "ia3_attention",
                                        "ia3_inputs",
                                        "lora_exclude",
                                        "prompt",
                                        "ptuning_mlp",
                                        "ptuning_lstm",
                                        "prefix",
                                        "adapter_seq_bn",
                                        "adapter_par_bn",
                                        "adapter_double_seq_bn"};
    (void)state;
    const struct model_config base = read_base();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct peft_config one, other;
        char *text, *again;
        read_golden(names[i], &one);
        test_ok(peft_write_config(&one, &base, GOLDEN "/base", &text));
        test_ok(peft_read_config(text, names[i], &other));
        test_ok(peft_write_config(&other, &base, GOLDEN "/base", &again));
        assert_string_equal(text, again);
        check_same(&one, &other);
        free(text);
        free(again);
        peft_config_free(&one);
        peft_config_free(&other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peft_files_are_read),
        cmocka_unit_test(adapterhub_files_are_read),
        cmocka_unit_test(bad_files_are_refused_by_their_key),
        cmocka_unit_test(patterns_are_at_most_256),
        cmocka_unit_test(lists_have_an_end),
        cmocka_unit_test(neutral_and_unknown_keys_are_passed_over),
        cmocka_unit_test(values_that_are_no_defaults_read_back),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
