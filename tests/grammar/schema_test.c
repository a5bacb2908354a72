/* JSON schemas and patterns, followed byte by byte over a vocabulary of bytes.
 *
 * Each row of golden/schemas.json has values and texts that its schema allows, and texts that it forbids, or the
 * refusal. Values are written as json.dumps writes them in three ways. Each row of golden/patterns.json has texts of a
 * whole match, or (with "search") strings in which the pattern is found. */
#include "texts.h"

#include <jansson.h>

static struct grammar_vocabulary *vocabulary;

static int open_vocabulary(void **state) {
    (void)state;
    vocabulary = texts_vocabulary();
    return 0;
}
static int close_vocabulary(void **state) {
    (void)state;
    grammar_vocabulary_close(vocabulary);
    return 0;
}

static int compile(struct grammar_source source, struct grammar_report *report, struct grammar **grammar) {
    const struct grammar_limits limits = {.seconds = 60, .bytes = 1 << 28};
    return grammar_compile(&source, vocabulary, &limits, report, grammar);
}

/* Whether a grammar allows a text, with its end. */
static bool allows(struct grammar *grammar, const char *text, size_t length) {
    struct grammar_state state = {0};
    bool is_allowed = true;
    test_ok(grammar_begin(grammar, &state));
    for (size_t i = 0; i < length && is_allowed; i++)
        is_allowed = grammar_accept(&state, (unsigned char)text[i], NULL) == 0;
    is_allowed = is_allowed && grammar_is_complete(&state);
    grammar_end(&state);
    return is_allowed;
}

static const char *name_of(const json_t *row) {
    const json_t *about = json_object_get(row, "about");
    return json_string_value(about ? about : json_object_get(row, "pattern"));
}

static void assert_allows(struct grammar *grammar, const json_t *row, const char *text, size_t length,
                          bool is_allowed) {
    if (allows(grammar, text, length) != is_allowed)
        fail_msg("%s: %s %.*s", name_of(row), is_allowed ? "forbids" : "allows", (int)length, text);
}

static void check_texts(struct grammar *grammar, const json_t *row, const char *key, bool is_allowed) {
    size_t index;
    json_t *text;
    json_array_foreach(json_object_get(row, key), index, text) {
        assert_allows(grammar, row, json_string_value(text), json_string_length(text), is_allowed);
    }
}

static void check_values(struct grammar *grammar, const json_t *row) {
    const size_t spellings[] = {0, JSON_COMPACT, JSON_INDENT(2)};
    size_t index;
    json_t *value;
    bool is_compact = json_is_true(json_object_get(row, "compact"));
    json_array_foreach(json_object_get(row, "values"), index, value) {
        for (size_t i = 0; i < 3; i++) {
            char *text = json_dumps(value, spellings[i] | JSON_ENCODE_ANY);
            assert_non_null(text);
            if (!is_compact || i == 1)
                assert_allows(grammar, row, text, strlen(text), true);
            free(text);
        }
    }
}

static void check_refusal(const struct grammar_report *report, const json_t *row) {
    static const char *const codes[] = {"", "invalid", "unsupported", "too_large"};
    const char *about = name_of(row), *part = json_string_value(json_object_get(row, "refused")),
               *detail = json_string_value(json_object_get(row, "detail")), *text = strbuf_text(&report->message);
    if (!strstr(text, part) || (detail && !strstr(text, detail)))
        fail_msg("%s: \"%s\" has no \"%s\"", about, text, part);
    if (strcmp(codes[report->refusal], json_string_value(json_object_get(row, "code"))))
        fail_msg("%s: %s", about, codes[report->refusal]);
}

static void check_row(const json_t *row) {
    const char *about = name_of(row);
    const json_t *ignored = json_object_get(row, "ignored");
    char *schema = json_dumps(json_object_get(row, "schema"), JSON_ENCODE_ANY);
    struct grammar_report report = {0};
    struct grammar *grammar = NULL;
    int status = compile((struct grammar_source){.kind = GRAMMAR_JSON_SCHEMA,
                                                 .text = schema,
                                                 .length = strlen(schema),
                                                 .is_compact = json_is_true(json_object_get(row, "compact")),
                                                 .is_closed = json_is_true(json_object_get(row, "closed")),
                                                 .is_lenient = json_is_true(json_object_get(row, "lenient"))},
                         &report, &grammar);
    if (json_object_get(row, "refused")) {
        assert_int_not_equal(status, 0);
        check_refusal(&report, row);
    } else {
        if (status)
            fail_msg("%s: refused: %s", about, strbuf_text(&report.message));
        if (ignored ? !json_equal(report.ignored, ignored) : report.ignored != NULL)
            fail_msg("%s: other keywords are ignored", about);
        check_values(grammar, row);
        check_texts(grammar, row, "texts", true);
        check_texts(grammar, row, "forbidden", false);
    }
    grammar_release(grammar);
    grammar_report_free(&report);
    free(schema);
}

static void check_pattern(const json_t *row) {
    const json_t *pattern = json_object_get(row, "pattern"),
                 *texts[] = {json_object_get(row, "forbids"), json_object_get(row, "allows")};
    bool is_search = json_is_true(json_object_get(row, "search"));
    json_t *schema = json_pack("{s:s, s:O}", "type", "string", "pattern", pattern), *text;
    char *dumped = json_dumps(schema, 0);
    struct grammar_report report = {0};
    struct grammar *grammar = NULL;
    struct grammar_source source = {
        .kind = GRAMMAR_REGEX, .text = json_string_value(pattern), .length = json_string_length(pattern)};
    if (is_search)
        source = (struct grammar_source){.kind = GRAMMAR_JSON_SCHEMA, .text = dumped, .length = strlen(dumped)};
    int status = compile(source, &report, &grammar);
    if (json_object_get(row, "refused")) {
        assert_int_not_equal(status, 0);
        check_refusal(&report, row);
    } else if (status && json_array_size(texts[1])) {
        fail_msg("%s: refused: %s", json_string_value(pattern), strbuf_text(&report.message));
    }
    for (int is_allowed = 0; is_allowed < 2 && grammar; is_allowed++) {
        size_t index;
        json_array_foreach(texts[is_allowed], index, text) {
            char *spelled = json_dumps(text, JSON_ENCODE_ANY);
            if (is_search)
                assert_allows(grammar, row, spelled, strlen(spelled), is_allowed);
            else
                assert_allows(grammar, row, json_string_value(text), json_string_length(text), is_allowed);
            free(spelled);
        }
    }
    grammar_release(grammar);
    grammar_report_free(&report);
    free(dumped);
    json_decref(schema);
}

static void check_rows(const char *path, void (*check)(const json_t *row)) {
    json_error_t error;
    json_t *rows = json_load_file(path, JSON_ALLOW_NUL, &error), *row;
    size_t index;
    if (!rows)
        fail_msg("line %d: %s", error.line, error.text);
    json_array_foreach(rows, index, row) {
        check(row);
    }
    json_decref(rows);
}

static void schemas_allow_and_forbid_what_their_rows_say(void **state) {
    (void)state;
    check_rows(TEST_DATA "/grammar/golden/schemas.json", check_row);
}

static void schemas_agree_with_jsonschema_and_llguidance(void **state) {
    (void)state;
    check_rows(TEST_DATA "/grammar/golden/drawn.json", check_row);
}

static void patterns_allow_and_forbid_what_their_rows_say(void **state) {
    (void)state;
    check_rows(TEST_DATA "/grammar/golden/patterns.json", check_pattern);
}

static void any_object_is_an_object(void **state) {
    struct grammar_report report = {0};
    struct grammar *grammar;
    (void)state;
    test_ok(compile((struct grammar_source){.kind = GRAMMAR_JSON_OBJECT}, &report, &grammar));
    assert_true(allows(grammar, "{\"a\": [1, {\"b\": null}]}", 23));
    assert_true(allows(grammar, "{}", 2));
    assert_false(allows(grammar, "[]", 2));
    assert_false(allows(grammar, "{\"a\":1,\"a\":2}", 13));
    grammar_release(grammar);
    grammar_report_free(&report);
}

static void a_schema_that_is_no_JSON_is_refused(void **state) {
    static const char *const texts[] = {"",    "{",     "{\"a\":1,\"a\":2}", "{\"minimum\":1e400}",
                                        "nul", "{} {}", "\"\xff\""};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct grammar_report report = {0};
        struct grammar *grammar = NULL;
        const struct grammar_source source = {
            .kind = GRAMMAR_JSON_SCHEMA, .text = texts[i], .length = strlen(texts[i])};
        test_fails(compile(source, &report, &grammar), STATUS_INVALID, "$: not JSON: ");
        assert_int_equal(report.refusal, GRAMMAR_INVALID);
        grammar_report_free(&report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_allow_and_forbid_what_their_rows_say),
        cmocka_unit_test(schemas_agree_with_jsonschema_and_llguidance),
        cmocka_unit_test(patterns_allow_and_forbid_what_their_rows_say),
        cmocka_unit_test(any_object_is_an_object),
        cmocka_unit_test(a_schema_that_is_no_JSON_is_refused),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
