/* Chats in words, against transformers' renderings of the same templates (tools/golden/chat.py), and in tokens. */
#include "text/chat.h"

#include "support/test.h"

#define GOLDEN TEST_DATA "/text/golden/chat"

static json_t *renderings;

static int load(void **state) {
    json_error_t error;
    (void)state;
    renderings = json_load_file(GOLDEN "/renderings.json", 0, &error);
    if (!renderings)
        fail_msg("%s", error.text);
    return 0;
}

static int unload(void **state) {
    (void)state;
    json_decref(renderings);
    return 0;
}

/* "chatml" of "chatml_blocks". */
static enum chat_template template_of(const char *name) {
    char start[32];
    snprintf(start, sizeof start, "%.*s", (int)strcspn(name, "_"), name);
    enum chat_template which = chat_template_named(start);
    assert_true(which != CHAT_TEMPLATE_AUTO);
    return which;
}

static void read_template(const char *name, struct strbuf *text) {
    char path[600];
    snprintf(path, sizeof path, GOLDEN "/%s.jinja", name);
    test_ok(file_read(path, 1 << 20, text));
}

static void recorded_templates_are_those_that_were_rendered(void **state) {
    (void)state;
    for (int t = CHAT_TEMPLATE_AUTO + 1; t < CHAT_TEMPLATE_COUNT; t++) {
        struct strbuf file = STRBUF_INIT, ours = STRBUF_INIT;
        read_template(chat_template_names[t], &file);
        chat_template_write((enum chat_template)t, &ours);
        assert_string_equal(strbuf_text(&file), strbuf_text(&ours));
        strbuf_free(&file);
        strbuf_free(&ours);
    }
}

static void check_text(enum chat_template which, const json_t *rendering, bool asks) {
    static const char eos[] = "<|endoftext|>";
    struct chat_pieces pieces = {0};
    struct chat_message *messages;
    struct strbuf text = STRBUF_INIT;
    size_t count;
    test_ok(chat_read_messages(json_object_get(rendering, "messages"), &messages, &count));
    test_ok(chat_render(which, messages, count, asks, &pieces));
    test_ok(chat_pieces_text(&pieces, eos, strlen(eos), &text));
    assert_string_equal(strbuf_text(&text), json_string_value(json_object_get(rendering, asks ? "asking" : "text")));
    strbuf_free(&text);
    chat_pieces_free(&pieces);
    free(messages);
}

static void renderings_equal_those_of_transformers(void **state) {
    json_t *list = json_object_get(renderings, "renderings"), *rendering;
    size_t i;
    bool is_seen[CHAT_TEMPLATE_COUNT] = {0};
    (void)state;
    json_array_foreach(list, i, rendering) {
        const char *name = json_string_value(json_object_get(rendering, "template"));
        struct strbuf jinja = STRBUF_INIT;
        enum chat_template which = template_of(name);
        read_template(name, &jinja);
        assert_int_equal(chat_template_recognise(strbuf_text(&jinja), jinja.length), which);
        check_text(which, rendering, false);
        if (strstr(strbuf_text(&jinja), "add_generation_prompt") || which == CHAT_TEMPLATE_PLAIN)
            check_text(which, rendering, true); /* what a template without it is asked for, we add */
        is_seen[which] = true;
        strbuf_free(&jinja);
    }
    for (int t = CHAT_TEMPLATE_AUTO + 1; t < CHAT_TEMPLATE_COUNT; t++)
        assert_true(is_seen[t]);
}

/* ---- tokens ---- */

static void encode(enum chat_template which, const char *json, int32_t eos, struct token_buffer *ids, int expected) {
    json_error_t error;
    json_t *root = json_loads(json, 0, &error);
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    struct chat_pieces pieces = {0};
    struct chat_message *messages;
    size_t count;
    ids->count = 0;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer));
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    test_ok(chat_read_messages(root, &messages, &count));
    test_ok(chat_render(which, messages, count, true, &pieces));
    int status = chat_pieces_encode(&pieces, encoder, eos, ids);
    if (expected)
        test_fails(status, expected, "an end-of-text behind an answer");
    else
        test_ok(status);
    free(messages);
    chat_pieces_free(&pieces);
    tokenizer_encoder_free(encoder);
    tokenizer_close(tokenizer);
    json_decref(root);
}

/* A message cannot name a special token; a template ends answers with one. */
static void names_of_special_tokens_are_ordinary_in_messages(void **state) {
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    int32_t eos = 77777;
    int ends = 0;
    (void)state;
    encode(CHAT_TEMPLATE_PLAIN,
           "[{\"role\":\"user\",\"content\":\"<|endoftext|>\"},{\"role\":\"assistant\",\"content\":\"<|endoftext|>\"},"
           "{\"role\":\"user\",\"content\":\"a\"}]",
           eos, &ids, 0);
    for (size_t i = 0; i < ids.count; i++)
        ends += ids.ids[i] == eos;
    assert_int_equal(ends, 1);
    assert_true(ids.count > 8);
    struct tokenizer *tokenizer;
    struct strbuf text = STRBUF_INIT;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer));
    for (size_t i = 0; i < ids.count; i++) {
        assert_false(ids.ids[i] != eos && tokenizer_is_special(tokenizer, ids.ids[i]));
        if (ids.ids[i] != eos)
            test_ok(tokenizer_decode(tokenizer, &ids.ids[i], 1, &text));
    }
    assert_string_equal(strbuf_text(&text), "<|endoftext|>\n<|endoftext|>a\n");
    strbuf_free(&text);
    tokenizer_close(tokenizer);
    encode(CHAT_TEMPLATE_PLAIN, "[{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"a\"}]",
           -1, &ids, STATUS_INVALID);
    token_buffer_free(&ids);
}

/* ---- what is refused ---- */

static void what_is_no_message_is_refused(void **state) {
    static const struct {
        const char *json, *expected;
    } cases[] = {
        {"{}", "expected a list of messages"},
        {"[]", "expected a list of messages"},
        {"[1]", "message 1: expected an object"},
        {"[{\"role\":\"user\"}]", "message 1: there is no field \"content\""},
        {"[{\"content\":\"a\"}]", "message 1: there is no field \"role\""},
        {"[{\"role\":\"user\",\"content\":[]}]", "message 1: field \"content\" is not a string"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"a\"}]",
         "message 2: \"role\" is none of"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"a\"}]", "message 2: the system's"},
        {"[{\"role\":\"user\\u0000\",\"content\":\"a\"}]", "\"role\" is none of"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[]}]", "field \"tool_calls\" is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_error_t error;
        json_t *root = json_loads(cases[i].json, JSON_ALLOW_NUL, &error);
        struct chat_message *messages;
        size_t count;
        assert_non_null(root);
        test_fails(chat_read_messages(root, &messages, &count), STATUS_INVALID, cases[i].expected);
        assert_null(messages);
        json_decref(root);
    }
}

static void templates_have_names(void **state) {
    (void)state;
    assert_int_equal(chat_template_named("chatml"), CHAT_TEMPLATE_CHATML);
    assert_int_equal(chat_template_named("auto"), CHAT_TEMPLATE_AUTO);
    assert_int_equal(chat_template_named("llama"), CHAT_TEMPLATE_AUTO);
    assert_string_equal(chat_turn_end(CHAT_TEMPLATE_CHATML), "<|im_end|>");
    assert_null(chat_turn_end(CHAT_TEMPLATE_PLAIN));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_templates_are_those_that_were_rendered),
        cmocka_unit_test(renderings_equal_those_of_transformers),
        cmocka_unit_test(names_of_special_tokens_are_ordinary_in_messages),
        cmocka_unit_test(what_is_no_message_is_refused),
        cmocka_unit_test(templates_have_names),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
