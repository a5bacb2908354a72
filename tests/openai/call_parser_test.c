/* Calls and reasoning in completions: each format, whole, streamed, cut and damaged at every byte. */
#include "openai/call_parser.h"

#include "support/test.h"

/* ---- tokenizers ---- */

static const char *const marks[] = {"[TOOL_CALLS]",
                                    "[ARGS]",
                                    "[CALL_ID]",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "<|tool_call|>",
                                    "<|/tool_call|>",
                                    "<|python_tag|>",
                                    "<think>",
                                    "</think>",
                                    "<｜tool▁calls▁begin｜>",
                                    "<｜tool▁call▁begin｜>",
                                    "<｜tool▁sep｜>",
                                    "<｜tool▁call▁end｜>",
                                    "<｜tool▁calls▁end｜>"};
enum { MARKS = sizeof marks / sizeof *marks };
static struct tokenizer *tokenizers[2]; /* marks are text, or special tokens */

static struct tokenizer *with_marks(const struct tokenizer *plain) {
    char *directory = test_directory(), path[600];
    struct tokenizer *tokenizer;
    json_error_t error;
    snprintf(path, sizeof path, "%s/tokenizer", directory);
    test_ok(tokenizer_save(plain, path));
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer.json", directory);
    json_t *root = json_load_file(path, 0, &error), *added = json_object_get(root, "added_tokens");
    for (int i = 0; i < MARKS; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", tokenizer_vocab_size(plain) + i, "content",
                                               marks[i], "special", 1));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    snprintf(path, sizeof path, "%s/tokenizer", directory);
    test_ok(tokenizer_open(path, &tokenizer));
    free(directory);
    return tokenizer;
}

static int open_tokenizers(void **state) {
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &tokenizers[0]));
    tokenizers[1] = with_marks(tokenizers[0]);
    return 0;
}

static int close_tokenizers(void **state) {
    tokenizer_close(tokenizers[0]);
    tokenizer_close(tokenizers[1]);
    return 0;
}

/* ---- what a parser says ---- */

struct heard {
    struct strbuf text, reasoning, calls; /* calls: "name(arguments)" and ";" after a call that ended */
    struct strbuf ids;
    int64_t count, reasoning_tokens;
};

static int hear(void *context, const struct call_event *event) {
    struct heard *heard = context;
    if (event->kind == CALL_BEGINS) {
        assert_int_equal(event->index, heard->count);
        strbuf_format(&heard->calls, "%s(", event->name);
        strbuf_format(&heard->ids, "%s ", event->id);
        heard->count++;
    } else if (event->kind == CALL_ENDS)
        strbuf_add_text(&heard->calls, ");");
    else
        strbuf_add(event->kind == CALL_TEXT        ? &heard->text
                   : event->kind == CALL_REASONING ? &heard->reasoning
                                                   : &heard->calls,
                   event->text, event->length);
    assert_true(event->kind == CALL_BEGINS || event->kind == CALL_ENDS || event->length > 0);
    return STATUS_OK;
}

static void forget(struct heard *heard) {
    strbuf_free(&heard->text);
    strbuf_free(&heard->reasoning);
    strbuf_free(&heard->calls);
    strbuf_free(&heard->ids);
}

static const char schema[] =
    "{\"type\":\"object\",\"$defs\":{\"n\":{\"type\":\"string\"}},\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":"
    "{\"type\":\"integer\"},\"hourly\":{\"type\":\"boolean\"},\"note\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":"
    "\"null\"}]},\"any\":{}}}";

struct asked {
    const char *format;
    bool is_special, is_constrained, is_single, is_cut;
    enum chat_thought thought;
    size_t piece; /* tokens of a piece; 0: all */
};

static struct heard listen(const struct asked *asked, const char *bytes, size_t length) {
    static const int32_t prompt[] = {1, 2, 3};
    const struct tokenizer *tokenizer = tokenizers[asked->is_special];
    json_t *parameters = json_loads(schema, 0, NULL);
    const struct call_tool tools[] = {{.name = "get_weather", .parameters = parameters}, {.name = "f"}};
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct heard heard = {0};
    const struct call_parser_options options = {
        .tokenizer = tokenizer,
        .format = asked->format ? tool_format_named(asked->format) : NULL,
        .tools = tools,
        .tool_count = 2,
        .thought = asked->thought,
        .is_constrained = asked->is_constrained,
        .is_single = asked->is_single,
        .seed = 7,
        .prompt = &(struct token_buffer){.ids = (int32_t *)prompt, .count = 3},
        .on_event = hear,
        .context = &heard,
    };
    struct tokenizer_encoder *encoder;
    struct call_parser *parser;
    struct call_update *update = calloc(1, sizeof *update);
    assert_non_null(update);
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    test_ok(tokenizer_encode(encoder, bytes, length, TOKENIZER_ALLOW_SPECIAL, &ids));
    test_ok(call_parser_open(&options, &parser));
    size_t step = asked->piece ? asked->piece : ids.count + 1;
    for (size_t i = 0; i < ids.count; i += step) {
        size_t begin = update->text.length;
        for (size_t k = i; k < ids.count && k < i + step; k++) {
            size_t count;
            const unsigned char *token = tokenizer_token_bytes(tokenizer, ids.ids[k], &count);
            strbuf_add(&update->text, token, count);
        }
        test_ok(update_add_piece(update, 0, 0, begin));
        for (size_t k = i; k < ids.count && k < i + step; k++)
            test_ok(update_add_token(update, &(struct call_token){.id = ids.ids[k]}, NULL));
        test_ok(call_parser_take(parser, update, &update->pieces[update->piece_count - 1]));
    }
    test_ok(call_parser_end(parser, !asked->is_cut));
    assert_int_equal(call_parser_calls(parser), heard.count);
    heard.reasoning_tokens = call_parser_reasoning_tokens(parser);
    call_parser_close(parser);
    update_free(update);
    tokenizer_encoder_free(encoder);
    token_buffer_free(&ids);
    json_decref(parameters);
    return heard;
}

static void check(const struct asked *asked, const char *bytes, const char *text, const char *calls) {
    struct heard heard = listen(asked, bytes, strlen(bytes));
    if (strcmp(strbuf_text(&heard.text), text) != 0 || strcmp(strbuf_text(&heard.calls), calls) != 0)
        fail_msg("%s: %s\ntext %s\ncalls %s\nand not %s\n%s", asked->format, bytes, strbuf_text(&heard.text),
                 strbuf_text(&heard.calls), text, calls);
    forget(&heard);
}

/* Both tokenizers, in one update and token by token, kept back and passed on. */
static void check_all(struct asked asked, const char *bytes, const char *text, const char *calls) {
    for (int i = 0; i < 8; i++) {
        asked.is_special = i & 1;
        asked.is_constrained = i & 2;
        asked.piece = i & 4 ? 1 : 0;
        check(&asked, bytes, text, calls);
    }
}

/* ---- each row ---- */

static const char two[] =
    "get_weather({\"city\": \"Berlin\", \"days\": 3});get_weather({\"city\": \"Rome\", \"hourly\": "
    "false});";
static const char calls_text[] =
    "[{\"function\":{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Berlin\",\"days\":3}}},"
    "{\"function\":{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Rome\",\"hourly\":false}}}]";

static void write_row(const struct tool_format *format, struct strbuf *out) {
    json_t *calls = json_loads(calls_text, 0, NULL);
    test_ok(tool_format_write(format, calls, out));
    json_decref(calls);
}

static void each_row_reads_what_it_writes(void **state) {
    for (int i = 0; i < TOOL_FORMAT_COUNT; i++) {
        struct strbuf out = STRBUF_INIT, after = STRBUF_INIT;
        struct asked asked = {.format = tool_formats[i].name};
        write_row(&tool_formats[i], &out);
        check_all(asked, out.data, "", two);
        strbuf_format(&after, "%s \n", out.data);
        check_all(asked, after.data, "", two);
        if (*tool_formats[i].begin) {
            strbuf_clear(&after);
            strbuf_format(&after, "Let me see.\n%s", out.data);
            check_all(asked, after.data, "Let me see.\n", two);
        }
        check_all((struct asked){.format = asked.format, .is_single = true}, out.data, "",
                  "get_weather({\"city\": \"Berlin\", \"days\": 3});");
        strbuf_free(&out);
        strbuf_free(&after);
    }
}

static void rows_write_what_their_models_write(void **state) {
    static const char *const texts[TOOL_FORMAT_COUNT] = {
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Berlin\", \"days\": 3}[TOOL_CALLS]get_weather[ARGS]{\"city\": "
        "\"Rome\", "
        "\"hourly\": false}",
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\", \"days\": 3}}, {\"name\": "
        "\"get_weather\", \"arguments\": {\"city\": \"Rome\", \"hourly\": false}}]",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Berlin\", "
        "\"days\": "
        "3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": "
        "\"Rome\", \"hourly\": false}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\", \"days\": 3}}, {\"name\": "
        "\"get_weather\", \"arguments\": {\"city\": \"Rome\", \"hourly\": false}}]<|/tool_call|>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBerlin\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n"
        "</parameter>\n<parameter=hourly>\nfalse\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\", \"days\": 3}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"hourly\": "
        "false}}\n</tool_call>",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Berlin\", \"days\": 3}}; {\"name\": \"get_weather\", "
        "\"parameters\": {\"city\": \"Rome\", \"hourly\": false}}",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\", \"days\": 3}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"hourly\": "
        "false}}\n</tool_call>"};
    for (int i = 0; i < TOOL_FORMAT_COUNT; i++) {
        struct strbuf out = STRBUF_INIT;
        write_row(&tool_formats[i], &out);
        assert_string_equal(out.data, texts[i]);
        strbuf_free(&out);
    }
}

static void models_may_write_otherwise(void **state) {
    static const struct {
        const char *format, *bytes, *text, *calls;
    } cases[] = {
        {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "", "f({});"},
        {"hermes", "<tool_call>\n\n {\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"} </tool_call>", "",
         "f({\"a\": [1, {}]});"},
        {"hermes",
         "<tool_call>\n[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"f\", \"arguments\": {\"b\":1}}]\n"
         "</tool_call>",
         "", "f({});f({\"b\":1});"},
        {"hermes", "<tool_call>\n{\"id\": 12, \"name\": \"f\", \"type\": \"x\", \"arguments\": {}}\n</tool_call>", "",
         "f({});"},
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "", "f({});"},
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\nDone.", "\nDone.", "f({});"},
        {"hermes", "<tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "<tool_call>", "f({});"},
        {"hermes", "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
         "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", ""},
        {"mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"a1b2c3d4e\"}]", "", "f({});"},
        {"mistral", "[TOOL_CALLS][{\"arguments\":{},\"name\":\"f\"}]", "", "f({});"},
        {"mistral-v11", "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"a\": 1}", "", "f({\"a\": 1});"},
        {"mistral-v11", "[TOOL_CALLS] f [ARGS] {}", "", "f({});"},
        {"phi4", "<|tool_call|>{\"name\": \"f\", \"arguments\": {}}<|/tool_call|>", "", "f({});"},
        {"phi4", "functools[{\"name\": \"f\", \"arguments\": {\"a\": null}}]", "", "f({\"a\": null});"},
        {"llama3", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "", "f({});"},
        {"llama3", " {\"name\": \"f\", \"parameters\": {}};{\"name\": \"f\", \"parameters\": {}}", "", "f({});f({});"},
        {"llama3", "{\"name\": \"f\", \"parameters\": {}} is a call", "{\"name\": \"f\", \"parameters\": {}} is a call",
         ""},
        {"llama3", "See {\"name\": \"f\", \"parameters\": {}}", "See {\"name\": \"f\", \"parameters\": {}}", ""},
        {"qwen3-xml", "<tool_call><function=f></function></tool_call>", "", "f({});"},
        {"qwen3-xml",
         "<tool_call>\n<function=get_weather>\n<parameter=city>\n\"a\"\\\n\n</parameter>\nb</parameter>\n</parameter>\n"
         "<parameter=any>\n{\"a\": 1}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>",
         "",
         "get_weather({\"city\": \"\\\"a\\\"\\\\\\n\\n</parameter>\\nb</parameter>\", \"any\": {\"a\": 1}, \"note\": "
         "null});"},
        {"qwen3-xml",
         "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=note>\n12\n</parameter>\n"
         "<parameter=any>\nfree text\n</parameter>\n<parameter=days>\n 7 \n</parameter>\n</function>\n</tool_call>",
         "", "get_weather({\"city\": \"12\", \"note\": \"12\", \"any\": \"free text\", \"days\": 7});"},
        {"qwen3-xml",
         "<tool_call>\n<function=get_weather>\n<parameter=hourly>\nTrue\n</parameter>\n<parameter=note>\nNone\n"
         "</parameter>\n<parameter=city>\nTrue\n</parameter>\n</function>\n</tool_call>",
         "", "get_weather({\"hourly\": true, \"note\": null, \"city\": \"True\"});"},
        {"qwen3-xml",
         "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n</parameter>\n</function>\n</tool_call>", "",
         "get_weather({\"city\": \"\"});"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 4; k++)
            check(&(struct asked){.format = cases[i].format, .is_special = k & 1, .piece = k & 2 ? 1 : 0},
                  cases[i].bytes, cases[i].text, cases[i].calls);
}

static void wrong_parameters_are_text(void **state) {
    static const char *const bodies[] = {"<parameter=days>\nthree\n</parameter>\n",
                                         "<parameter=size>\n1\n</parameter>\n",
                                         "<parameter=days>\n1\n</parameter>\n<parameter=days>\n1\n</parameter>\n",
                                         "<parameter=days>\n</parameter>\n", "<parameter=days>\n1 2\n</parameter>\n"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char text[256];
        snprintf(text, sizeof text, "<tool_call>\n<function=get_weather>\n%s</function>\n</tool_call>", bodies[i]);
        check(&(struct asked){.format = "qwen3-xml"}, text, text, "");
    }
}

static void marks_in_strings_are_text(void **state) {
    static const char call[] = "get_weather({\"city\": \"</tool_call>\\\"<tool_call>[TOOL_CALLS]}\"});";
    static const struct {
        const char *format, *bytes;
    } cases[] = {
        {"hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
                   "\"</tool_call>\\\"<tool_call>[TOOL_CALLS]}\"}}\n</tool_call>"},
        {"mistral", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": "
                    "\"</tool_call>\\\"<tool_call>[TOOL_CALLS]}\"}}]"},
        {"mistral-v11", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"</tool_call>\\\"<tool_call>[TOOL_CALLS]}\"}"},
        {"qwen3-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\n</tool_call>\"<tool_call>[TOOL_CALLS]}\n"
                      "</parameter>\n</function>\n</tool_call>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_all((struct asked){.format = cases[i].format}, cases[i].bytes, "", call);
}

/* ---- cut and damaged ---- */

static bool is_begun(const struct heard *heard) {
    return heard->count > 0;
}

/* A prefix gives text, or calls of which the last may be a part; updates do not matter. */
static void every_cut_gives_the_part_that_was_written(void **state) {
    for (int i = 0; i < TOOL_FORMAT_COUNT; i++) {
        struct strbuf out = STRBUF_INIT;
        write_row(&tool_formats[i], &out);
        for (size_t length = 1; length < out.length; length++)
            for (int k = 0; k < 4; k++) {
                struct asked asked = {.format = tool_formats[i].name, .is_special = k & 1, .is_constrained = k & 2};
                for (int cut = 0; cut < 2; cut++) {
                    asked.is_cut = cut;
                    asked.piece = 0;
                    struct heard whole = listen(&asked, out.data, length);
                    asked.piece = 1;
                    struct heard pieces = listen(&asked, out.data, length);
                    assert_string_equal(strbuf_text(&whole.text), strbuf_text(&pieces.text));
                    assert_string_equal(strbuf_text(&whole.calls), strbuf_text(&pieces.calls));
                    if (!is_begun(&whole)) {
                        assert_int_equal(whole.text.length, length);
                        assert_memory_equal(whole.text.data, out.data, length);
                    } else if (asked.is_cut || asked.is_constrained) {
                        size_t written = whole.calls.length - 2; /* ");" */
                        assert_memory_equal(whole.calls.data, two, written < sizeof two ? written : sizeof two);
                    }
                    forget(&whole);
                    forget(&pieces);
                }
            }
        strbuf_free(&out);
    }
}

/* A damaged call is no call unless the damage is in a value; what is no call is there byte for byte. */
static void every_damaged_byte_leaves_calls_or_text(void **state) {
    for (int i = 0; i < TOOL_FORMAT_COUNT; i++) {
        struct strbuf out = STRBUF_INIT;
        json_t *calls = json_loads(calls_text, 0, NULL);
        json_array_remove(calls, 1);
        test_ok(tool_format_write(&tool_formats[i], calls, &out));
        json_decref(calls);
        for (size_t at = 0; at < out.length; at++)
            for (int k = 0; k < 4; k++) {
                struct asked asked = {.format = tool_formats[i].name, .is_special = k & 1, .piece = k & 2 ? 1 : 0};
                char kept = out.data[at];
                out.data[at] = k & 2 ? '\1' : '%';
                struct heard heard = listen(&asked, out.data, out.length);
                if (!is_begun(&heard)) {
                    assert_int_equal(heard.text.length, out.length);
                    assert_memory_equal(heard.text.data, out.data, out.length);
                } else { /* white space, or a byte of a value or of a key */
                    assert_int_equal(heard.count, 1);
                    bool is_value =
                        memmem(heard.calls.data, heard.calls.length, "%", 1) || strstr(heard.calls.data, "\\u0001");
                    if (!is_value && heard.text.length) /* the mark after a complete call */
                        assert_ptr_not_equal(memmem(out.data, out.length, heard.text.data, heard.text.length), NULL);
                }
                forget(&heard);
                out.data[at] = kept;
            }
        strbuf_free(&out);
    }
}

/* ---- reasoning ---- */

static void reasoning_comes_before_the_text(void **state) {
    static const struct {
        enum chat_thought thought;
        const char *bytes, *reasoning, *text;
    } cases[] = {
        {THOUGHT_MAY, "<think>\nHm, 1 < 2.\n</think>\n\nYes.", "Hm, 1 < 2.", "Yes."},
        {THOUGHT_MAY, "\n<think>a</think>b", "a", "b"},
        {THOUGHT_MAY, "Yes <think>a</think>", "", "Yes <think>a</think>"},
        {THOUGHT_MAY, " Yes", "", " Yes"},
        {THOUGHT_HAS_BEGUN, "\nHm.\n\n</think>\n\n\nYes. <think>", "Hm.", "Yes. <think>"},
        {THOUGHT_HAS_BEGUN, "Hm", "Hm", ""},
        {THOUGHT_HAS_BEGUN, "a </thin b", "a </thin b", ""},
        {THOUGHT_NEVER, "<think>a</think>b", "", "<think>a</think>b"},
        {THOUGHT_MAY, "<think>\n\n</think>\n\nYes.", "", "Yes."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 4; k++) {
            struct asked asked = {.thought = cases[i].thought, .is_special = k & 1, .piece = k & 2 ? 1 : 0};
            struct heard heard = listen(&asked, cases[i].bytes, strlen(cases[i].bytes));
            assert_string_equal(strbuf_text(&heard.reasoning), cases[i].reasoning);
            assert_string_equal(strbuf_text(&heard.text), cases[i].text);
            if (cases[i].thought == THOUGHT_NEVER || *cases[i].reasoning)
                assert_int_equal(heard.reasoning_tokens > 0, *cases[i].reasoning != 0);
            forget(&heard);
        }
}

static void calls_follow_reasoning(void **state) {
    struct asked asked = {.format = "hermes", .thought = THOUGHT_MAY};
    check_all(
        asked,
        "<think>\nI call <tool_call>.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "",
        "f({});");
    asked.format = "llama3";
    check_all(asked, "<think>a</think>\n{\"name\": \"f\", \"parameters\": {}}", "", "f({});");
}

/* ---- ids ---- */

static void ids_follow_from_the_request(void **state) {
    struct strbuf out = STRBUF_INIT;
    write_row(tool_format_named("hermes"), &out);
    struct heard one = listen(&(struct asked){.format = "hermes"}, out.data, out.length);
    struct heard two_of = listen(&(struct asked){.format = "hermes", .piece = 1}, out.data, out.length);
    assert_string_equal(one.ids.data, two_of.ids.data);
    assert_int_equal(one.ids.length, 2 * 30);
    assert_memory_equal(one.ids.data, "call_", 5);
    assert_memory_not_equal(one.ids.data, one.ids.data + 30, 29);
    forget(&one);
    forget(&two_of);
    strbuf_clear(&out);
    write_row(tool_format_named("mistral"), &out);
    one = listen(&(struct asked){.format = "mistral"}, out.data, out.length);
    assert_int_equal(one.ids.length, 2 * 10);
    forget(&one);
    strbuf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_write_what_their_models_write),
        cmocka_unit_test(each_row_reads_what_it_writes),
        cmocka_unit_test(models_may_write_otherwise),
        cmocka_unit_test(wrong_parameters_are_text),
        cmocka_unit_test(marks_in_strings_are_text),
        cmocka_unit_test(every_cut_gives_the_part_that_was_written),
        cmocka_unit_test(every_damaged_byte_leaves_calls_or_text),
        cmocka_unit_test(reasoning_comes_before_the_text),
        cmocka_unit_test(calls_follow_reasoning),
        cmocka_unit_test(ids_follow_from_the_request),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
