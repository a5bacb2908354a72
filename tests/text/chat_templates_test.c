/* Templates of released models, against transformers' renderings (tools/golden/chat_templates.py). */
#include "text/chat.h"

#include "support/test.h"

#define GOLDEN TEST_DATA "/text/golden/templates"

static json_t *golden;

static int load(void **state) {
    json_error_t error;
    (void)state;
    golden = json_load_file(GOLDEN "/renderings.json", 0, &error);
    if (!golden)
        fail_msg("%s", error.text);
    return 0;
}

static int unload(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

/* A tokenizer whose bos and eos are <s> and </s>. */
static struct tokenizer *open_tokenizer(void) {
    static const char *const names[] = {"<s>", "</s>"};
    static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    char *directory = test_directory(), path[600];
    struct tokenizer *small, *tokenizer;
    json_error_t error;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &small));
    snprintf(path, sizeof path, "%s/tokenizer", directory);
    test_ok(tokenizer_save(small, path));
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer.json", directory);
    json_t *root = json_load_file(path, 0, &error), *added = json_object_get(root, "added_tokens");
    for (int i = 0; i < 2; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", tokenizer_vocab_size(small) + i, "content",
                                               names[i], "special", 1));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer_config.json", directory);
    test_ok(file_write_atomic(path, config, sizeof config - 1));
    snprintf(path, sizeof path, "%s/tokenizer", directory);
    test_ok(tokenizer_open(path, &tokenizer));
    tokenizer_close(small);
    free(directory);
    return tokenizer;
}

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

static void check(struct chat_template *template, const char *name, size_t number, bool asks, const json_t *expected,
                  const struct tokenizer *tokenizer) {
    struct tm now = {
        .tm_year = 126, .tm_mon = 2, .tm_mday = 1, .tm_hour = 13, .tm_min = 5, .tm_sec = 9, .tm_isdst = -1};
    struct chat_request request = {
        .tokenizer = tokenizer, .eos = tokenizer_eos_id(tokenizer), .asks = asks, .now = &now};
    struct chat_pieces pieces = {0};
    char digest[24] = "";
    mktime(&now); /* the day of the week */
    test_ok(chat_take_request(json_array_get(json_object_get(golden, "conversations"), number), &request));
    int status = chat_render(template, &request, &pieces);
    if (!status)
        snprintf(digest, sizeof digest, "%016llx",
                 (unsigned long long)digest_bytes(DIGEST_START, strbuf_text(&pieces.text), pieces.text.length));
    if (json_is_null(expected) != (status != 0) || (!status && strcmp(digest, json_string_value(expected)) != 0))
        fail_msg("%s, conversation %zu%s: %s", name, number, asks ? ", asking" : "",
                 status ? status_text() : strbuf_text(&pieces.text));
    chat_pieces_free(&pieces);
}

static void renderings_are_those_of_transformers(void **state) {
    json_t *templates = json_object_get(golden, "templates"), *rows;
    struct tokenizer *tokenizer = open_tokenizer();
    const char *name;
    size_t count = 0;
    (void)state;
    json_object_foreach(templates, name, rows) {
        struct chat_template *template = open_template(name);
        for (size_t i = 0; i < json_array_size(rows); i++, count++)
            check(template, name, i / 2, i % 2, json_array_get(rows, i), tokenizer);
        chat_template_close(template);
    }
    assert_true(count > 1000);
    tokenizer_close(tokenizer);
}

/* The end of a turn in each template. */
static void ends_of_turns_are_found(void **state) {
    static const char *const cases[][2] = {
        {"Qwen-Qwen2.5-7B-Instruct", "<|im_end|>"},     {"Qwen-Qwen3-0.6B", "<|im_end|>"},
        {"microsoft-Phi-3.5-mini-instruct", "<|end|>"}, {"ibm-granite-granite-3.3-2B-Instruct", "<|end_of_text|>"},
        {"mistralai-Mistral-Nemo-Instruct-2407", ""},
    };
    struct tokenizer *tokenizer = open_tokenizer();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_template *template = open_template(cases[i][0]);
        char end[CHAT_TURN_END_BYTES];
        test_ok(chat_find_turn_end(template, tokenizer, tokenizer_eos_id(tokenizer), 0, end));
        assert_string_equal(end, cases[i][1]);
        chat_template_close(template);
    }
    for (int is_far = 0; is_far < 2; is_far++) { /* a template may write as much as it wants */
        struct strbuf text = STRBUF_INIT;
        struct chat_template *template;
        char end[CHAT_TURN_END_BYTES];
        strbuf_format(&text, "{%% for m in messages %%}{{ m.content }}{{ ' x' * %d }}<s>{%% endfor %%}",
                      is_far ? 1000 : 10);
        test_ok(chat_template_open(text.data, text.length, "here", &template));
        test_ok(chat_find_turn_end(template, tokenizer, tokenizer_eos_id(tokenizer), 0, end));
        assert_string_equal(end, is_far ? "" : "<s>");
        chat_template_close(template);
        strbuf_free(&text);
    }
    tokenizer_close(tokenizer);
}

/* ---- what is trained ---- */

/* The answers of a rendering in brackets. */
static void show_answers(const struct chat_pieces *pieces, struct strbuf *shown) {
    size_t from = 0;
    bool is_answer = false;
    for (size_t i = 0; i < pieces->count; from += pieces->items[i++].length) {
        bool next = pieces->items[i].flags & CHAT_ANSWER;
        if (next != is_answer)
            strbuf_add_char(shown, next ? '[' : ']');
        is_answer = next;
        strbuf_add(shown, pieces->text.data + from, pieces->items[i].length);
    }
    if (is_answer)
        strbuf_add_char(shown, ']');
}

static int render_row(const char *name, const char *messages, enum chat_answers which, struct strbuf *shown) {
    struct tokenizer *tokenizer = open_tokenizer();
    struct chat_template *template = open_template(name);
    json_error_t error;
    json_t *root = json_loads(messages, 0, &error);
    struct chat_request request = {.messages = root, .tokenizer = tokenizer, .eos = tokenizer_eos_id(tokenizer)};
    struct chat_pieces pieces = {0};
    int status = chat_render_row(template, &request, which, &pieces);
    strbuf_clear(shown);
    if (!status)
        show_answers(&pieces, shown);
    chat_pieces_free(&pieces);
    json_decref(root);
    chat_template_close(template);
    tokenizer_close(tokenizer);
    return status;
}

#define TURNS                                                                                                          \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"                               \
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]"
#define THOUGHTS                                                                                                       \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"<think>\\nx\\n</think>\\n\\nb\"},"   \
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"<think>\\ny\\n</think>\\n\\nd\"}]"

static void answers_are_what_a_message_adds(void **state) {
    struct strbuf shown = STRBUF_INIT;
    (void)state;
    test_ok(render_row("microsoft-Phi-3.5-mini-instruct", TURNS, CHAT_ANSWERS_ALL, &shown));
    assert_string_equal(shown.data, "<|user|>\na<|end|>\n<|assistant|>\n[b<|end|>]\n<|user|>\nc<|end|>\n<|assistant|>\n"
                                    "[d<|end|>\n</s>]");
    test_ok(render_row("mistralai-Mistral-Nemo-Instruct-2407", TURNS, CHAT_ANSWERS_ALL, &shown));
    assert_string_equal(shown.data, "<s>[INST]a[/INST][b</s>][INST]c[/INST][d</s>]");
    test_ok(render_row("mistralai-Mistral-Nemo-Instruct-2407", TURNS, CHAT_ANSWERS_LAST, &shown));
    assert_string_equal(shown.data, "<s>[INST]a[/INST]b</s>[INST]c[/INST][d</s>]");
    test_ok(render_row("HuggingFaceTB-SmolLM3-3B", TURNS, CHAT_ANSWERS_LAST, &shown));
    assert_non_null(strstr(shown.data, "[d<|im_end|>"));
    strbuf_free(&shown);
}

static void a_template_that_drops_thoughts_trains_the_last_answer(void **state) {
    struct strbuf shown = STRBUF_INIT;
    (void)state;
    test_fails(render_row("Qwen-Qwen3-0.6B", THOUGHTS, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED,
               "answer 2 differently when more messages follow, so it cannot be trained in its place: set "
               "data.answers to last");
    test_ok(render_row("Qwen-Qwen3-0.6B", THOUGHTS, CHAT_ANSWERS_LAST, &shown));
    assert_string_equal(
        shown.data, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
                    "<|im_start|>assistant\n[<think>\ny\n</think>\n\nd<|im_end|>]\n");
    strbuf_free(&shown);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renderings_are_those_of_transformers),
        cmocka_unit_test(ends_of_turns_are_found),
        cmocka_unit_test(answers_are_what_a_message_adds),
        cmocka_unit_test(a_template_that_drops_thoughts_trains_the_last_answer),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
