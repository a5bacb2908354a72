/* The constraint of calls as a structural tag. */
#include "openai/call_grammar.h"

#include "support/test.h"

static struct call_tool items[2];
static json_t *parameters;

static int make_tools(void **state) {
    parameters = json_pack("{s:{s:{s:s}}}", "properties", "a", "type", "string");
    items[0] = (struct call_tool){.name = "f", .parameters = parameters};
    items[1] = (struct call_tool){.name = "g", .is_strict = true, .number = 2};
    return 0;
}

static int free_tools(void **state) {
    json_decref(parameters);
    return 0;
}

#define TOOL(number, schema, is_lenient)                                                                               \
    "{\"type\":\"part\",\"field\":\"tools\",\"place\":\"$[" number "].function.parameters\",\"json_schema\":" schema   \
    ",\"is_lenient\":" is_lenient "}"
#define F TOOL("0", "{\"properties\":{\"a\":{\"type\":\"string\"}},\"type\":\"object\"}", "true")
#define G TOOL("2", "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", "false")
#define GIVEN(place, value)                                                                                            \
    "{\"type\":\"part\",\"field\":\"response_format\",\"place\":\"" place "\"," value                                  \
    ",\"is_compact\":false,\"is_closed\":false,\"is_lenient\":false}"
#define OBJECT(name, key, content, before, after)                                                                      \
    "{\"type\":\"tag\",\"begin\":\"" before "{\\\"name\\\": \\\"" name "\\\", \\\"" key                                \
    "\\\": \",\"content\":" content ",\"end\":\"}" after "\"}"
#define HERMES(name, content) OBJECT(name, "arguments", content, "<tool_call>\\n", "\\n</tool_call>")
#define BOTH                  "[" HERMES("f", F) "," HERMES("g", G) "]"
#define SEPARATED(tags, separator)                                                                                     \
    "{\"type\":\"tags_with_separator\",\"tags\":" tags ",\"separator\":\"" separator                                   \
    "\",\"at_least_one\":true,\"stop_after_first\":false}"
#define TRIGGERED(mark, tags)                                                                                          \
    "{\"type\":\"triggered_tags\",\"triggers\":[\"" mark "\"],\"tags\":" tags ",\"stop_after_first\":false}"
#define SEQUENCE(elements)        "{\"type\":\"sequence\",\"elements\":[" elements "]}"
#define ROOT(format)              "{\"type\":\"structural_tag\",\"format\":" format "}"
#define PLAIN(name, key, content) OBJECT(name, key, content, "", "")
#define THOUGHT(begin)                                                                                                 \
    SEQUENCE("{\"type\":\"tag\",\"begin\":\"" begin "\",\"content\":{\"type\":\"any_text\"},\"end\":\"</think>\"},"    \
             "{\"type\":\"regex\",\"pattern\":\"[ \\\\t\\\\r\\\\n]{0,8}\"}")

static void formats_are_structural_tags(void **state) {
    static const struct {
        const char *format;
        enum tool_choice choice;
        enum chat_thought thought;
        const char *expected;
    } cases[] = {
        {"hermes", TOOLS_REQUIRED, THOUGHT_NEVER, ROOT(SEPARATED(BOTH, "\\n"))},
        {"hermes", TOOLS_AUTO, THOUGHT_NEVER, ROOT(TRIGGERED("<tool_call>", BOTH))},
        {"hermes", TOOLS_REQUIRED, THOUGHT_HAS_BEGUN, ROOT(SEQUENCE(THOUGHT("") "," SEPARATED(BOTH, "\\n")))},
        {"generic", TOOLS_AUTO, THOUGHT_MAY,
         ROOT(SEQUENCE("{\"type\":\"optional\",\"content\":" THOUGHT("<think>") "}," TRIGGERED("<tool_call>", BOTH)))},
        {"mistral", TOOLS_REQUIRED, THOUGHT_NEVER,
         ROOT("{\"type\":\"tag\",\"begin\":\"[TOOL_CALLS]\",\"content\":" SEQUENCE(
             "{\"type\":\"regex\",\"pattern\":\" ?\"},{\"type\":\"const_string\",\"value\":\"[\"}," SEPARATED(
                 "[" PLAIN("f", "arguments", F) "," PLAIN("g", "arguments", G) "]",
                 ", ") ",{\"type\":\"const_string\",\"value\":\"]\"}") ",\"end\":\"\"}")},
        {"mistral-v11", TOOLS_AUTO, THOUGHT_NEVER,
         ROOT(TRIGGERED("[TOOL_CALLS]",
                        "[{\"type\":\"tag\",\"begin\":\"[TOOL_CALLS]f[ARGS]\",\"content\":" F
                        ",\"end\":\"\"},{\"type\":\"tag\",\"begin\":\"[TOOL_CALLS]g[ARGS]\",\"content\":" G
                        ",\"end\":\"\"}]"))},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct openai_tools tools = {
            .items = items, .count = 2, .schema = "function.parameters", .choice = cases[i].choice};
        struct ask_constraint constraint, none = {0};
        test_ok(call_grammar_make(&(struct call_grammar){.format = tool_format_named(cases[i].format),
                                                         .tools = &tools,
                                                         .thought = cases[i].thought},
                                  &none, &constraint));
        assert_string_equal(constraint.text, cases[i].expected);
        assert_string_equal(constraint.source.field, "tools");
        assert_int_equal(constraint.source.kind, GRAMMAR_ANSWER);
        ask_constraint_free(&constraint);
    }
}

/* Every row in every form is JSON, and names each tool. */
static void each_row_has_a_tag(void **state) {
    for (int i = 0; i < TOOL_FORMAT_COUNT; i++)
        for (int k = 0; k < 6; k++) {
            struct openai_tools tools = {.items = items,
                                         .count = 2,
                                         .schema = "function.parameters",
                                         .choice = k & 1 ? TOOLS_AUTO : TOOLS_REQUIRED};
            struct ask_constraint constraint, none = {0};
            json_error_t error;
            test_ok(call_grammar_make(&(struct call_grammar){.format = &tool_formats[i],
                                                             .tools = &tools,
                                                             .thought = (enum chat_thought)(k / 2)},
                                      &none, &constraint));
            json_t *root = json_loadb(constraint.text, constraint.source.length, JSON_REJECT_DUPLICATES, &error);
            assert_non_null(root);
            assert_non_null(strstr(constraint.text, *tool_formats[i].begin ? tool_formats[i].begin : "parameters"));
            json_decref(root);
            ask_constraint_free(&constraint);
        }
}

static void a_constraint_comes_after_the_reasoning_or_beside_calls(void **state) {
    static const struct {
        enum grammar_kind kind;
        const char *text, *format; /* NULL: it stays as it is */
    } cases[] = {
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"null\"}", GIVEN("$", "\"json_schema\":{\"type\":\"null\"}")},
        {GRAMMAR_JSON_OBJECT, "", GIVEN("$", "\"json_schema\":{\"type\":\"object\"}")},
        {GRAMMAR_REGEX, "a+", GIVEN("", "\"content\":{\"type\":\"regex\",\"pattern\":\"a+\"}")},
        {GRAMMAR_GBNF, "root ::= \"a\"",
         GIVEN("", "\"content\":{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"a\\\"\"}")},
        {GRAMMAR_CHOICE, "[\"a\"]",
         GIVEN("", "\"content\":{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\",\"value\":\"a\"}]}")},
        {GRAMMAR_TAG, "{\"format\":{\"type\":\"any_text\"}}",
         GIVEN("$", "\"tag\":{\"format\":{\"type\":\"any_text\"}}")},
        {GRAMMAR_JSON_SCHEMA, "{\"maximum\":99999999999999999999}", GIVEN("$", "\"json_schema\":{\"maximum\":1e20}")},
        {GRAMMAR_JSON_SCHEMA, "{", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int has_tools = 0; has_tools < 2; has_tools++) {
            struct openai_tools tools = {.items = items,
                                         .count = 2,
                                         .schema = "function.parameters",
                                         .choice = has_tools ? TOOLS_AUTO : TOOLS_NONE};
            struct ask_constraint constraint, given = {0};
            struct strbuf expected = STRBUF_INIT;
            test_ok(
                ask_constraint_take(&given, "response_format", cases[i].kind, cases[i].text, strlen(cases[i].text)));
            test_ok(call_grammar_make(&(struct call_grammar){.format = tool_format_named("hermes"),
                                                             .tools = &tools,
                                                             .thought = has_tools ? THOUGHT_NEVER : THOUGHT_HAS_BEGUN},
                                      &given, &constraint));
            if (!cases[i].format)
                strbuf_add_text(&expected, cases[i].text);
            else if (has_tools)
                strbuf_format(&expected, ROOT("{\"type\":\"or\",\"elements\":[" SEPARATED(BOTH, "\\n") ",%s]}"),
                              cases[i].format);
            else
                strbuf_format(&expected, ROOT(SEQUENCE(THOUGHT("") ",%s")), cases[i].format);
            assert_string_equal(constraint.text, expected.data);
            assert_string_equal(constraint.source.field, "response_format");
            strbuf_free(&expected);
            ask_constraint_free(&constraint);
            ask_constraint_free(&given);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_structural_tags),
        cmocka_unit_test(each_row_has_a_tag),
        cmocka_unit_test(a_constraint_comes_after_the_reasoning_or_beside_calls),
    };
    return cmocka_run_group_tests(tests, make_tools, free_tools);
}
