/* Templates of released models, against transformers' renderings (tools/golden/chat_templates.py). */
#include "text/chat.h"
#include "text/tool_format.h"

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

/* A template by its name, or by its text. */
static struct chat_template *open_template(const char *name) {
    char path[600];
    struct strbuf text = STRBUF_INIT;
    struct chat_template *template;
    if (strchr(name, '{')) {
        test_ok(chat_template_open(name, strlen(name), "here", &template));
        return template;
    }
    snprintf(path, sizeof path, GOLDEN "/%s.jinja", name);
    test_ok(file_read(path, 1 << 20, &text));
    test_ok(chat_template_open(text.data, text.length, path, &template));
    strbuf_free(&text);
    return template;
}

/* True when a conversation has tools, or results of tools. */
static bool has_tools(size_t number) {
    json_t *conversation = json_array_get(json_object_get(golden, "conversations"), number), *message;
    size_t i;
    bool found = json_object_get(conversation, "tools") != NULL;
    json_array_foreach(json_object_get(conversation, "messages"), i, message) found |=
        json_array_size(json_object_get(message, "tool_calls")) > 0;
    return found;
}

static void check(struct chat_template *template, const char *name, size_t number, bool asks, const json_t *expected,
                  const struct tokenizer *tokenizer) {
    struct tm now = {
        .tm_year = 126, .tm_mon = 2, .tm_mday = 1, .tm_hour = 13, .tm_min = 5, .tm_sec = 9, .tm_isdst = -1};
    struct chat_request request = {
        .tokenizer = tokenizer, .eos = tokenizer_eos_id(tokenizer), .asks = asks, .now = &now};
    struct chat_pieces pieces = {0};
    char digest[24] = "";
    mktime(&now);                                         /* the day of the week */
    if (has_tools(number) && !chat_knows_tools(template)) /* transformers leaves them out: chat_test.c */
        return;
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

static json_t *row_tools;   /* of the next rows */
static size_t last_endless; /* of the last row */

static int render_row(const char *name, const char *messages, enum chat_answers which, struct strbuf *shown) {
    struct tokenizer *tokenizer = open_tokenizer();
    struct chat_template *template = open_template(name);
    json_error_t error;
    json_t *root = json_loads(messages, 0, &error);
    struct chat_request request = {.messages = root, .tokenizer = tokenizer, .eos = tokenizer_eos_id(tokenizer)};
    struct chat_pieces pieces = {0};
    request.tools = row_tools;
    int status = chat_render_row(template, &request, which, &pieces);
    last_endless = pieces.endless;
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
    /* without thoughts, earlier answers are what their prompts ask for */
    test_ok(render_row("Qwen-Qwen3-0.6B", TURNS, CHAT_ANSWERS_ALL, &shown));
    assert_string_equal(shown.data,
                        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n<|im_start|>user\n"
                        "c<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nd<|im_end|>]\n");
    strbuf_free(&shown);
}

#define R1                                                                                                             \
    "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}<A>{{ "                               \
    "m.content.split('</think>')[-1] }}"                                                                               \
    "</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<A><think>\n{% endif %}"
#define ASK "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"

/* The text that asks for an answer may end with the beginning of thoughts, which messages have not. */
static void thoughts_are_trained_as_given(void **state) {
    static const struct {
        const char *name, *messages, *expected;
    } cases[] = {
        {R1, ASK "\"b\"}]", "<U>a<A>[b</s>]"},
        {R1, ASK "\"<think>\\nx\\n</think>\\n\\nb\"}]", "<U>a<A>[<think>\nx\n</think>\n\nb</s>]"},
        {R1, ASK "\"x\\n</think>\\n\\nb\"}]", "<U>a<A><think>\n[x\n</think>\n\nb</s>]"},
        {R1, ASK "\"b\",\"reasoning_content\":\"x\"}]", "<U>a<A>[<think>\nx\n</think>\n\nb</s>]"},
        {R1, TURNS, "<U>a<A>[b</s>]<U>c<A>[d</s>]"},
        {"GLM-4.7-Flash", ASK "\"b\"}]", "[gMASK]<sop><|user|>a<|assistant|><[/think>b]"},
        {"GLM-4.7-Flash", ASK "\"<think>x</think>b\"}]", "[gMASK]<sop><|user|>a<|assistant|><think>[x</think>b]"},
        {"MiniMax-M2", ASK "\"<think>\\nx\\n</think>\\n\\nb\"}]", "ai\n<think>\n[x\n</think>\n\nb[e~[]\n"},
        {"{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}<A><R>{{ m.content }}</s>{% "
         "endif %}"
         "{% endfor %}<A><T>",
         ASK "\"b\"}]", "<U>a<A><[R>b</s><A><T>]"}, /* it always asks */
        {"deepseek-ai-DeepSeek-V3.1", ASK "\"b\"}]", "</think>[b<｜end▁of▁sentence｜>]"},
    };
    struct strbuf shown = STRBUF_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_ok(render_row(cases[i].name, cases[i].messages, CHAT_ANSWERS_ALL, &shown));
        size_t length = strlen(cases[i].expected);
        assert_true(shown.length >= length);
        assert_string_equal(shown.data + shown.length - length, cases[i].expected);
    }
    test_fails(render_row(R1, THOUGHTS, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED, "set data.answers to last");
    test_ok(render_row(R1, THOUGHTS, CHAT_ANSWERS_LAST, &shown));
    assert_string_equal(shown.data, "<U>a<A>\n\nb</s><U>c<A>[<think>\ny\n</think>\n\nd</s>]");
    /* words that change later end no answer early */
    static const char later[] = "{% for m in messages %}{{ '<A>' if m.role == 'assistant' else '<U>' }}{{ m.content }}"
                                "{{ ', 2' }}{{ '}' if loop.last else '; 3}' }}</s>{% endfor %}"
                                "{% if add_generation_prompt %}<A>{% endif %}";
    test_fails(render_row(later, TURNS, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED, "set data.answers to last");
    /* another header than the one that asks is no part of an answer */
    static const char bot[] = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
                              "{% if add_generation_prompt %}bot:{% endif %}";
    test_ok(render_row(bot, ASK "\"b\"}]", CHAT_ANSWERS_ALL, &shown));
    assert_string_equal(shown.data, "user:a;bot:[b;]");
    test_fails(render_row(bot, TURNS, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED, "set data.answers to last");
    test_fails(render_row(bot, ASK "\"\",\"tool_calls\":[{\"function\":{\"name\":\"r\"}}]}]", CHAT_ANSWERS_ALL, &shown),
               STATUS_UNSUPPORTED, "cannot be found: name a template that writes it alike by --tuning.template FILE");
    strbuf_free(&shown);
}

/* The token at which a generator stops belongs to the answer, even if it begins the next turn. */
static void ends_of_answers_are_trained(void **state) {
    static const struct {
        const char *name, *messages, *expected;
        size_t endless;
    } cases[] = {
        {"{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif "
         "%}",
         TURNS, "<u>a<a>[b]<u>c<a>[d]", 1}, /* no tokens there */
        {"{% for m in messages %}{{ '<s>' if m.role == 'user' else ':' }}{{ m.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}:{% endif %}",
         TURNS, "<s>a\n:[b\n<s>]c\n:[d\n<s>]", 0},
        {"{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}# "
         "assistant\n"
         "{% endif %}",
         TURNS, "# user\na\n\n# assistant\n[b]\n\n# user\nc\n\n# assistant\n[d]\n\n[]", 1},
        {"{% for m in messages %}{% if m.role == 'user' %}Q {{ m.content }}{% else %}A {% generation %}{{ m.content }}"
         "{% endgeneration %}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}A {% endif %}",
         TURNS, "Q aA [b</s>]Q cA [d</s>]", 0},
        {"{% for m in messages %}{{ '</s>' if m.role == 'user' else ':' }}{{ m.content }}{{ '<s>' if m.role == "
         "'assistant' }}"
         "{% endfor %}{% if add_generation_prompt %}:{% endif %}",
         TURNS, "</s>a:[b<s>]</s>c:[d<s>]", 0},
        {"openai-gpt-oss-120b", TURNS, "<|channel|>final<|message|>d<|return|>]", 1},
    };
    struct strbuf shown = STRBUF_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_ok(render_row(cases[i].name, cases[i].messages, CHAT_ANSWERS_ALL, &shown));
        size_t length = strlen(cases[i].expected);
        assert_true(shown.length >= length);
        assert_string_equal(shown.data + shown.length - length, cases[i].expected);
        assert_int_equal(last_endless, cases[i].endless);
    }
    strbuf_free(&shown);
}

#define WEIGHED(fields)                                                                                                \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"," fields "},"                    \
    "{\"role\":\"user\",\"content\":\"c\",\"weight\":null},{\"role\":\"assistant\",\"content\":\"d\",\"weight\":1}]"

static void answers_of_weight_zero_are_not_trained(void **state) {
    static const char blocks[] =
        "{% for m in messages %}{% if m.role == 'user' %}Q {{ m.content }}{% else %}A {% generation %}{{ m.content "
        "}}</s>"
        "{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}A {% endif %}";
    static const char *const silent[] = {WEIGHED("\"weight\":0"), WEIGHED("\"weight\":0.0"), WEIGHED("\"train\":false"),
                                         WEIGHED("\"train\":false,\"weight\":0")};
    static const char *const refused[][2] = {
        {WEIGHED("\"weight\":2"), "message 2: field \"weight\" is neither 0 nor 1"},
        {WEIGHED("\"weight\":0.5"), "message 2: field \"weight\" is neither 0 nor 1"},
        {WEIGHED("\"weight\":\"0\""), "message 2: field \"weight\" is neither 0 nor 1"},
        {WEIGHED("\"weight\":true"), "message 2: field \"weight\" is neither 0 nor 1"},
        {WEIGHED("\"train\":0"), "message 2: field \"train\" is neither true nor false"},
        {WEIGHED("\"train\":true,\"weight\":0"), "message 2: fields \"weight\" and \"train\" contradict each other"},
        {WEIGHED("\"loss_weight\":1"), "message 2: field \"loss_weight\" is not supported"},
        {WEIGHED("\"train_detail\":[]"), "message 2: field \"train_detail\" is not supported"},
        {"[{\"role\":\"user\",\"content\":\"a\",\"weight\":1},{\"role\":\"assistant\",\"content\":\"b\"}]",
         "message 1: field \"weight\": only the assistant's messages are trained"},
    };
    struct strbuf shown = STRBUF_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        test_ok(render_row("mistralai-Mistral-Nemo-Instruct-2407", silent[i], CHAT_ANSWERS_ALL, &shown));
        assert_string_equal(shown.data, "<s>[INST]a[/INST]b</s>[INST]c[/INST][d</s>]");
        test_ok(render_row(blocks, silent[i], CHAT_ANSWERS_ALL, &shown));
        assert_string_equal(shown.data, "Q aA b</s>Q cA [d</s>]");
    }
    test_ok(render_row(blocks, WEIGHED("\"train\":true"), CHAT_ANSWERS_ALL, &shown));
    assert_string_equal(shown.data, "Q aA [b</s>]Q cA [d</s>]");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        test_fails(render_row(blocks, refused[i][0], CHAT_ANSWERS_ALL, &shown), STATUS_INVALID, refused[i][1]);
    strbuf_free(&shown);
}

/* A row whose tools the template leaves out is refused. */
static void tools_that_are_left_out_are_refused(void **state) {
    static const char call[] = ASK "\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"get_time\","
                                   "\"arguments\":{}}}]}]";
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"description\":\"d\","
                                "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    static const char bare[] = ASK "null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"get_time\","
                                   "\"arguments\":{}}}]}]";
    static const char named[] = "[{\"role\":\"user\",\"content\":\"Use get_time.\"},"
                                "{\"role\":\"assistant\",\"content\":\"No.\"}]";
    struct strbuf shown = STRBUF_INIT;
    json_error_t error;
    (void)state;
    test_fails(render_row("microsoft-Phi-3.5-mini-instruct", bare, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED,
               "message 2: field \"tool_calls\": the template of this model renders no tools");
    test_ok(render_row("Qwen-Qwen2.5-7B-Instruct", bare, CHAT_ANSWERS_ALL, &shown));
    test_fails(render_row("microsoft-Phi-3.5-mini-instruct", call, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED,
               "message 2: field \"tool_calls\": the template of this model renders no tools");
    test_ok(render_row("Qwen-Qwen2.5-7B-Instruct", call, CHAT_ANSWERS_ALL, &shown));
    row_tools = json_loads(tools, 0, &error);
    test_fails(render_row("microsoft-Phi-3.5-mini-instruct", TURNS, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED,
               "field \"tools\": the template of this model renders no tools");
    test_fails(render_row("microsoft-Phi-3.5-mini-instruct", named, CHAT_ANSWERS_ALL, &shown), STATUS_UNSUPPORTED,
               "field \"tools\": the template of this model renders no tools"); /* the text has the tool's name */
    test_ok(render_row("Qwen-Qwen2.5-7B-Instruct", call, CHAT_ANSWERS_ALL, &shown));
    json_decref(row_tools);
    row_tools = NULL;
    strbuf_free(&shown);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renderings_are_those_of_transformers),
        cmocka_unit_test(ends_of_turns_are_found),
        cmocka_unit_test(answers_are_what_a_message_adds),
        cmocka_unit_test(a_template_that_drops_thoughts_trains_the_last_answer),
        cmocka_unit_test(thoughts_are_trained_as_given),
        cmocka_unit_test(ends_of_answers_are_trained),
        cmocka_unit_test(answers_of_weight_zero_are_not_trained),
        cmocka_unit_test(tools_that_are_left_out_are_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
