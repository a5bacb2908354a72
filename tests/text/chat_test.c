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

static void read_template(const char *name, struct strbuf *text) {
    char path[600];
    snprintf(path, sizeof path, GOLDEN "/%s.jinja", name);
    test_ok(file_read(path, 1 << 20, text));
}

static void recorded_templates_are_those_that_were_rendered(void **state) {
    (void)state;
    for (int t = 0; chat_template_names[t]; t++) {
        struct strbuf file = STRBUF_INIT;
        struct chat_template *template, *read;
        read_template(chat_template_names[t], &file);
        test_ok(chat_template_open_named(chat_template_names[t], &template));
        assert_string_equal(strbuf_text(&file), strbuf_text(chat_template_text(template)));
        test_ok(chat_template_open(file.data, file.length, "a file", &read));
        assert_string_equal(chat_template_name(read), chat_template_names[t]);
        assert_true(chat_template_is_same(template, read));
        chat_template_close(read);
        chat_template_close(template);
        strbuf_free(&file);
    }
}

static int render(const char *jinja, const json_t *messages, int32_t eos, const struct tokenizer *tokenizer, bool asks,
                  struct chat_pieces *pieces) {
    struct chat_template *template;
    struct chat_request request = {.messages = messages, .asks = asks, .eos = eos, .tokenizer = tokenizer};
    int status = chat_template_open(jinja, strlen(jinja), "here", &template);
    if (!status)
        status = chat_render(template, &request, pieces);
    chat_template_close(template);
    return status;
}

static void renderings_equal_those_of_transformers(void **state) {
    json_t *list = json_object_get(renderings, "renderings"), *rendering;
    size_t i;
    (void)state;
    assert_true(json_array_size(list) > 40);
    json_array_foreach(list, i, rendering) {
        struct strbuf jinja = STRBUF_INIT;
        read_template(json_string_value(json_object_get(rendering, "template")), &jinja);
        for (int asks = 0; asks < 2; asks++) {
            struct chat_pieces pieces = {0};
            test_ok(render(jinja.data, json_object_get(rendering, "messages"), 0, NULL, asks, &pieces));
            assert_string_equal(strbuf_text(&pieces.text),
                                json_string_value(json_object_get(rendering, asks ? "asking" : "text")));
            chat_pieces_free(&pieces);
        }
        strbuf_free(&jinja);
    }
}

/* ---- tokens ---- */

static void encode(const char *name, const char *json, int32_t eos, struct token_buffer *ids) {
    json_error_t error;
    json_t *root = json_loads(json, 0, &error);
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    struct chat_pieces pieces = {0};
    struct strbuf jinja = STRBUF_INIT;
    ids->count = 0;
    read_template(name, &jinja);
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer));
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    test_ok(render(jinja.data, root, eos, tokenizer, true, &pieces));
    test_ok(chat_pieces_encode(&pieces, encoder, eos, ids, NULL));
    chat_pieces_free(&pieces);
    strbuf_free(&jinja);
    tokenizer_encoder_free(encoder);
    tokenizer_close(tokenizer);
    json_decref(root);
}

/* A message cannot name a special token; a template ends answers with one, whatever its name is. */
static void names_of_special_tokens_are_ordinary_in_messages(void **state) {
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    int32_t eos = 77777;
    int ends = 0;
    (void)state;
    encode("plain",
           "[{\"role\":\"user\",\"content\":\"<|endoftext|>\"},{\"role\":\"assistant\",\"content\":\"<|endoftext|>\"},"
           "{\"role\":\"user\",\"content\":\"a\"}]",
           eos, &ids);
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
    struct chat_pieces pieces = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "assistant", "content", "b");
    test_fails(render("{{ messages[0].content + eos_token }}", messages, -1, NULL, false, &pieces), STATUS_INVALID,
               "the chat template: line 1: 'eos_token' is undefined");
    chat_pieces_free(&pieces);
    json_decref(messages);
    token_buffer_free(&ids);
}

/* A tokenizer with the special token <|x|>, the added one <tool> and the added one "  ". */
static struct tokenizer *open_controls(void) {
    char *directory = test_directory(), path[600];
    struct tokenizer *small, *tokenizer;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &small));
    int32_t size = tokenizer_vocab_size(small);
    snprintf(path, sizeof path, "%s/tokenizer", directory);
    test_ok(tokenizer_save(small, path));
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer.json", directory);
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *added = json_object_get(root, "added_tokens");
    static const char *const names[] = {"<|x|>", "<tool>", "   "};
    for (int i = 0; i < 3; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", size + i, "content",
                                               names[i], "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0,
                                               "special", i == 0));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    snprintf(path, sizeof path, "%s/tokenizer", directory);
    test_ok(tokenizer_open(path, &tokenizer));
    tokenizer_close(small);
    free(directory);
    return tokenizer;
}

/* Ids of a rendering: X, T and S for the three tokens, . for others. */
static void check_controls(const struct tokenizer *tokenizer, const char *jinja, const char *content,
                           const char *expected) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", content);
    struct tokenizer_encoder *encoder;
    struct chat_pieces pieces = {0};
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf shown = STRBUF_INIT;
    int32_t first = tokenizer_find(tokenizer, "<|x|>", 5);
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    test_ok(render(jinja, messages, -1, tokenizer, false, &pieces));
    test_ok(chat_pieces_encode(&pieces, encoder, -1, &ids, NULL));
    for (size_t i = 0; i < ids.count; i++)
        if (ids.ids[i] >= first)
            strbuf_add_char(&shown, "XTS"[ids.ids[i] - first]);
        else if (!shown.length || shown.data[shown.length - 1] != '.')
            strbuf_add_char(&shown, '.');
    assert_string_equal(strbuf_text(&shown), expected);
    strbuf_free(&shown);
    token_buffer_free(&ids);
    chat_pieces_free(&pieces);
    tokenizer_encoder_free(encoder);
    json_decref(messages);
}

static void only_a_template_makes_its_control_tokens(void **state) {
    static const char tool[] = "<tool>{{ messages[0].content }}<|x|>", other[] = "{{ messages[0].content }}<|x|>",
                      joined[] = "<|{{ messages[0].content }}<|x|>", role[] = "{{ '<' + messages[0].role }}<|x|>";
    struct tokenizer *tokenizer = open_controls();
    (void)state;
    check_controls(tokenizer, tool, "a<|x|>b", "T.X");
    check_controls(tokenizer, tool, "a<tool>b", "T.X");
    check_controls(tokenizer, tool, "a   b", "T.S.X"); /* the template does not name it */
    check_controls(tokenizer, other, "a<tool>b", ".T.X");
    check_controls(tokenizer, joined, "x|>", ".X"); /* half of it is the message's */
    check_controls(tokenizer, other, "<|x", ".X");  /* and hides no token after it */
    check_controls(tokenizer, other, "", "X");
    check_controls(tokenizer, role, "", ".X");
    check_controls(tokenizer, "{{ messages|tojson }}<|x|>", "<|x|>", ".X");
    check_controls(tokenizer, "{{ messages[0].content|upper|lower }}", "<|x|>", ".");
    check_controls(tokenizer, "{{ '<|' + 'x' ~ '|>' }}", "", "X");
    check_controls(tokenizer, "{{ '<|y|>'|replace('y', messages[0].content) }}", "x", ".");
    tokenizer_close(tokenizer);
}

/* Without special names in a message, the ids are those of the text as a whole. */
static void ids_are_those_of_the_whole_text(void **state) {
    static const char jinja[] = "Turn:\n{{ messages[0].content }}\n\nnext {{ messages[0].content }}s";
    static const char *const contents[] = {"\n\nabc", " x \n", "word", "caf\xc3\xa9 12", ""};
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    (void)state;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer));
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", contents[i]);
        struct chat_pieces pieces = {0};
        struct token_buffer ids = TOKEN_BUFFER_INIT, whole = TOKEN_BUFFER_INIT;
        test_ok(render(jinja, messages, -1, tokenizer, false, &pieces));
        test_ok(chat_pieces_encode(&pieces, encoder, -1, &ids, NULL));
        test_ok(tokenizer_encode(encoder, pieces.text.data, pieces.text.length, TOKENIZER_PLAIN, &whole));
        assert_int_equal(ids.count, whole.count);
        assert_memory_equal(ids.ids, whole.ids, ids.count * sizeof *ids.ids);
        token_buffer_free(&ids);
        token_buffer_free(&whole);
        chat_pieces_free(&pieces);
        json_decref(messages);
    }
    tokenizer_encoder_free(encoder);
    tokenizer_close(tokenizer);
}

/* ---- what is trained ---- */

static void generation_blocks_are_the_answers(void **state) {
    static const char jinja[] =
        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}."
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}";
    json_t *messages =
        json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "q", "role",
                  "assistant", "content", "x", "role", "user", "content", "r", "role", "assistant", "content", "y");
    struct chat_template *template;
    (void)state;
    test_ok(chat_template_open(jinja, strlen(jinja), "here", &template));
    for (int which = 0; which < 2; which++) {
        struct chat_request request = {.messages = messages, .eos = -1};
        struct chat_pieces pieces = {0};
        struct strbuf answers = STRBUF_INIT;
        size_t from = 0;
        test_ok(chat_render_row(template, &request, (enum chat_answers)which, &pieces));
        for (size_t i = 0; i < pieces.count; from += pieces.items[i++].length)
            if (pieces.items[i].flags & CHAT_ANSWER)
                strbuf_add(&answers, pieces.text.data + from, pieces.items[i].length);
        assert_string_equal(strbuf_text(&pieces.text), "q\nA:x.\nr\nA:y.\n");
        assert_string_equal(strbuf_text(&answers), which == CHAT_ANSWERS_ALL ? "x.y." : "y.");
        strbuf_free(&answers);
        chat_pieces_free(&pieces);
    }
    chat_template_close(template);
    json_decref(messages);
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
        {"[{\"role\":1}]", "message 1: field \"role\" is not a string"},
        {"[{\"role\":\"user\",\"content\":[]}]", "message 1: field \"content\" is not a string"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"other\",\"content\":\"a\"}]",
         "message 2: \"role\" is none of"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"a\"}]", "message 2: the system's"},
        {"[{\"role\":\"user\\u0000\",\"content\":\"a\"}]", "\"role\" is none of"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{}]}]", "message 1: expected calls {"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"function\",\"content\":\"a\"}]",
         "message 2: \"role\" function: the chat template chatml knows no tools"},
    };
    struct chat_template *template;
    (void)state;
    test_ok(chat_template_open_named("chatml", &template));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_error_t error;
        json_t *root = json_loads(cases[i].json, JSON_ALLOW_NUL, &error);
        struct chat_pieces pieces = {0};
        assert_non_null(root);
        int status = chat_check_messages(root);
        if (!status)
            status = chat_render(template, &(struct chat_request){.messages = root, .eos = -1}, &pieces);
        test_fails(status, STATUS_INVALID, cases[i].expected);
        chat_pieces_free(&pieces);
        json_decref(root);
    }
    chat_template_close(template);
}

/* Tools, and a message of them, by one of our templates and by another. */
static void tools_are_for_templates_that_know_them(void **state) {
    static const char text[] =
        "{% for m in messages %}{{ m.role }}:{{ m.tool_calls|map(attribute='function')|list|tojson "
        "if m.tool_calls else m }};{% endfor %}{{ tools|tojson }}";
    static const struct {
        const char *request, *expected; /* a text, or the end of an error */
        bool is_error;
    } cases[] = {
        {"[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"x\", \"function\": {\"name\": "
         "\"f\", "
         "\"arguments\": \"{\\\"b\\\": [1, 2.5], \\\"a\\\": null}\"}}]}]",
         "assistant:[{\"name\": \"f\", \"arguments\": {\"b\": [1, 2.5], \"a\": null}}];null", false},
        {"[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": \"\", \"name\": \"f\"}}]}]",
         "assistant:[{\"arguments\": {}, \"name\": \"f\"}];null", false},
        {"[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}]",
         "assistant:[{\"name\": \"f\", \"arguments\": {}}];null", false},
        {"[{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": []}, {\"role\": \"assistant\", \"content\": "
         "\"a\", \"tool_calls\": null}]",
         "assistant:{'role': 'assistant', 'content': 'a'};assistant:{'role': 'assistant', 'content': 'a'};null", false},
        {"{\"messages\": [{\"role\": \"tool\", \"tool_call_id\": \"x\", \"name\": \"f\", \"content\": \"3\"}], "
         "\"tools\": [{\"type\": \"function\"}]}",
         "tool:{'role': 'tool', 'tool_call_id': 'x', 'name': 'f', 'content': '3'};[{\"type\": \"function\"}]", false},
        {"[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{a\"}}]}]",
         "assistant:[{\"name\": \"f\", \"arguments\": \"{a\"}];null", false},
    };
    struct chat_template *template;
    (void)state;
    test_ok(chat_template_open(text, strlen(text), "here", &template));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_request request = {.eos = -1};
        struct chat_pieces pieces = {0};
        json_t *root = NULL;
        test_ok(chat_read_request(cases[i].request, strlen(cases[i].request), "here", &root, &request));
        int status = chat_render(template, &request, &pieces);
        if (cases[i].is_error)
            test_fails(status, STATUS_INVALID, cases[i].expected);
        else
            assert_string_equal(strbuf_text(&pieces.text), cases[i].expected);
        assert_int_equal(status, cases[i].is_error ? STATUS_INVALID : STATUS_OK);
        chat_pieces_free(&pieces);
        json_decref(root);
    }
    chat_template_close(template);
}

#define TOOLS_TEXT                                                                                                     \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "  \
    "signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": \"function\"}\n{\"a\": [1, "                     \
    "\"\u00e4\"]}\n</tools>"                                                                                           \
    "\n\nFor each function call, return a json object with function name and arguments within "                        \
    "<tool_call></tool_call> "                                                                                         \
    "XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"

/* A template without a place for tools gets them as text. */
static void templates_without_tools_get_them_as_text(void **state) {
    static const char request_text[] =
        "{\"messages\": [%s{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"I "
        "call.\", "
        "\"tool_calls\": [{\"id\": \"x\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"b\\\": [1,2.5]}\"}}, {\"function\": {\"name\": \"g\", \"arguments\": \"no JSON\"}}]}, {\"role\": "
        "\"tool\", "
        "\"tool_call_id\": \"x\", \"content\": \"3\"}, {\"role\": \"tool\", \"content\": \"4\"}], \"tools\": "
        "[{\"type\": "
        "\"function\"}, {\"a\": [1, \"\u00e4\"]}]}";
    static const char rest[] =
        "user;a|assistant;I call.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": [1, 2.5]}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"g\", \"arguments\": no "
        "JSON}\n</tool_call>|user;<tool_response>\n3\n</tool_response>\n"
        "<tool_response>\n4\n</tool_response>|";
    static const char text[] = "{% for m in messages %}{{ m.role }};{{ m.content }}|{% endfor %}";
    (void)state;
    for (int has_system = 0; has_system < 2; has_system++) {
        struct chat_template *template;
        struct chat_request request = {.eos = -1};
        struct chat_pieces pieces = {0};
        json_t *root;
        char given[2000], expected[2000];
        snprintf(given, sizeof given, request_text,
                 has_system ? "{\"role\": \"system\", \"content\": \"Be brief.\"}, " : "");
        snprintf(expected, sizeof expected, "system;%s" TOOLS_TEXT "|%s", has_system ? "Be brief.\n\n" : "", rest);
        test_ok(chat_read_request(given, strlen(given), "here", &root, &request));
        test_ok(chat_template_open(text, strlen(text), "here", &template));
        test_ok(chat_render(template, &request, &pieces));
        assert_string_equal(strbuf_text(&pieces.text), expected);
        chat_pieces_free(&pieces);
        chat_template_close(template);
        for (int i = 0; chat_template_names[i]; i++) { /* ours take tools too */
            test_ok(chat_template_open_named(chat_template_names[i], &template));
            request.eos = 0;
            test_ok(chat_render(template, &request, &pieces));
            assert_non_null(strstr(strbuf_text(&pieces.text), "</tools>\n\nFor each"));
            assert_non_null(strstr(strbuf_text(&pieces.text), "<tool_response>\n4\n</tool_response>"));
            chat_pieces_free(&pieces);
            chat_template_close(template);
        }
        json_decref(root);
    }
}

static void requests_hold_more_than_messages(void **state) {
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"[{\"role\": \"user\"}]", NULL},
        {"{\"messages\": [{\"role\": \"user\"}], \"tools\": null, \"documents\": [], \"chat_template_kwargs\": {\"a\": "
         "1}}",
         NULL},
        {"{\"messages\": []}", "here: expected a list of messages"},
        {"{}", "here: expected a list of messages"},
        {"{\"messages\": [{\"role\": \"user\"}], \"tools\": 1}", "here: field \"tools\" is not a list"},
        {"{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": []}", "is not an object"},
        {"{", "here: line 1 column 1: bad JSON"},
        {" \n", "bad JSON"},
        {"How is \xff?", "here: neither JSON nor a text in UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_request request = {0};
        json_t *root = NULL;
        int status = chat_read_request(cases[i].text, strlen(cases[i].text), "here", &root, &request);
        if (cases[i].expected)
            test_fails(status, STATUS_INVALID, cases[i].expected);
        else
            test_ok(status);
        json_decref(root);
    }
}

static void a_plain_text_is_one_message_of_the_user(void **state) {
    static const char text[] = " How is {this}?\nSay \"it\".\n\n";
    struct chat_request request = {0};
    json_t *root = NULL;
    (void)state;
    test_ok(chat_read_request(text, sizeof text - 1, "here", &root, &request));
    assert_int_equal(json_array_size(request.messages), 1);
    const json_t *message = json_array_get(request.messages, 0);
    assert_string_equal(json_string_value(json_object_get(message, "role")), "user");
    assert_string_equal(json_string_value(json_object_get(message, "content")), " How is {this}?\nSay \"it\".");
    json_decref(root);
}

static void templates_have_names(void **state) {
    static const char *const ends[] = {"<|im_end|>", "", ""};
    struct chat_template *template;
    char end[CHAT_TURN_END_BYTES];
    (void)state;
    for (int i = 0; chat_template_names[i]; i++) {
        test_ok(chat_template_open_named(chat_template_names[i], &template));
        test_ok(chat_find_turn_end(template, NULL, 0, 0, end));
        assert_string_equal(end, ends[i]);
        chat_template_close(template);
    }
    test_fails(chat_template_open_named("llama", &template), STATUS_NOT_FOUND, "no chat template \"llama\"");
    test_ok(chat_template_open_option("auto", &template));
    assert_null(template);
    test_ok(chat_template_open_option(GOLDEN "/plain.jinja", &template));
    assert_string_equal(chat_template_name(template), "plain");
    chat_template_close(template);
    test_fails(chat_template_open_option("nowhere", &template), STATUS_USAGE, "is none of auto, chatml, alpaca, plain");
    test_fails(chat_template_open("{% if %}", 8, "file.jinja", &template), STATUS_INVALID,
               "file.jinja: line 1: expected");
}

/* A template that takes long is not run for the same tokenizer again. */
static void the_end_of_a_turn_is_found_once(void **state) {
    static const char text[] = "{% for i in range(20000) %}{% endfor %}{% for m in messages %}{{ m.content }}<end>"
                               "{% endfor %}";
    const double never = 1e-9;
    struct chat_template *template;
    char end[CHAT_TURN_END_BYTES];
    (void)state;
    test_ok(chat_template_open(text, strlen(text), "here", &template));
    test_ok(chat_find_turn_end(template, NULL, 0, never, end));
    assert_string_equal(end, ""); /* it was not found in time, and is looked for again */
    test_ok(chat_find_turn_end(template, NULL, 0, 0, end));
    assert_string_equal(end, "<end>");
    test_ok(chat_find_turn_end(template, NULL, 0, never, end));
    assert_string_equal(end, "<end>");
    test_ok(chat_find_turn_end(template, NULL, 1, never, end));
    assert_string_equal(end, ""); /* another end-of-text may be another end */
    chat_template_close(template);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_templates_are_those_that_were_rendered),
        cmocka_unit_test(renderings_equal_those_of_transformers),
        cmocka_unit_test(names_of_special_tokens_are_ordinary_in_messages),
        cmocka_unit_test(only_a_template_makes_its_control_tokens),
        cmocka_unit_test(ids_are_those_of_the_whole_text),
        cmocka_unit_test(generation_blocks_are_the_answers),
        cmocka_unit_test(what_is_no_message_is_refused),
        cmocka_unit_test(tools_are_for_templates_that_know_them),
        cmocka_unit_test(templates_without_tools_get_them_as_text),
        cmocka_unit_test(requests_hold_more_than_messages),
        cmocka_unit_test(a_plain_text_is_one_message_of_the_user),
        cmocka_unit_test(templates_have_names),
        cmocka_unit_test(the_end_of_a_turn_is_found_once),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
