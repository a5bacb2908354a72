/* Histories with calls, rendered by templates of released models and read back. */
#include "openai/tools.h"

#include "support/test.h"

#define GOLDEN TEST_DATA "/text/golden/templates"

/* The rows that the recorded templates select, and whether the row writes calls as the template does. */
static const struct {
    const char *name, *format;
    bool agrees, thinks;
} templates[] = {
    {"Mistral-Small-3.2-24B-Instruct-2506", "mistral-v11", true, false},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral-v11", true, false},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral", true, false},
    {"Qwen3-Coder", "qwen3-xml", true, false},
    {"Qwen3.5-4B", "qwen3-xml", true, true},
    {"Qwen-QwQ-32B", "hermes", true, true},
    {"Qwen-Qwen2.5-7B-Instruct", "hermes", true, false},
    {"Qwen-Qwen3-0.6B", "hermes", true, true},
    {"ibm-granite-granite-4.0", "hermes", true, false},
    {"ibm-granite-granite-4.1", "hermes", true, false},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", true, true},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek", false, true},
    {"ibm-granite-granite-3.3-2B-Instruct", "phi4", false, true},
    {"GLM-4.6", "hermes", false, true},
    {"ByteDance-Seed-OSS", "qwen3-xml", false, false},
    {"Apertus-8B-Instruct", "generic", false, false},
    {"microsoft-Phi-3.5-mini-instruct", "generic", true, false},
    {"HuggingFaceTB-SmolLM3-3B", "generic", true, true},
};

static struct chat_template *open_template(const char *name) {
    char path[600];
    struct strbuf text = STRBUF_INIT;
    struct chat_template *template;
    snprintf(path, sizeof path, GOLDEN "/%s.jinja", name);
    test_ok(file_read(path, 1 << 20, &text));
    test_ok(chat_template_open(text.data, text.length, path, &template));
    strbuf_free(&text);
    return template;
}

static void templates_select_rows(void **state) {
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct chat_template *template = open_template(templates[i].name);
        const char *format = tool_format_of(template)->name;
        if (strcmp(format, templates[i].format) != 0 || chat_may_think(template) != templates[i].thinks)
            fail_msg("%s: %s, %d", templates[i].name, format, chat_may_think(template));
        chat_template_close(template);
    }
}

/* A row reads the calls of its templates. If it cannot, a warning has both texts. */
static void rows_read_what_templates_write(void **state) {
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct chat_template *template = open_template(templates[i].name);
        struct openai_model model = {.ends = {.eos = {0}, .count = 1}};
        struct strbuf difference = STRBUF_INIT;
        test_ok(openai_tools_check(&model, template, &difference));
        if (templates[i].agrees != !difference.length)
            fail_msg("%s: %s", templates[i].name, strbuf_text(&difference));
        strbuf_free(&difference);
        chat_template_close(template);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_select_rows),
        cmocka_unit_test(rows_read_what_templates_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
