/* Expressions of modules against Python's re, and what is refused. What matches was taken from Python 3.11:
 * re.fullmatch, and of keys re.match(rf"(.*\.)?({key})$", path), as PEFT does it. */
#include "base/base.h"
#include "support/test.h"
#include "text/expression.h"

#define ATTN "transformer.h.0.attn.c_attn"
#define MLP  "transformer.h.11.mlp.c_proj"

static bool matches(const char *text, bool is_key, const char *path) {
    struct text_expression *expression;
    bool is_match;
    test_ok(text_expression_open("target_modules", text, is_key, &expression));
    test_ok(text_expression_match(expression, path, &is_match));
    text_expression_close(expression);
    return is_match;
}

static void whole_paths_match_as_in_python(void **state) {
    static const struct {
        const char *text;
        bool attn, mlp;
    } cases[] = {
        {".*", true, true},
        {".*c_attn", true, false},
        {"c_attn", false, false},
        {".*\\.c_attn$", true, false},
        {"^transformer\\.h\\.(0|1)\\..*", true, false},
        {"\\Atransformer\\.h\\.\\d+\\.(attn|mlp)\\.c_(?:attn|proj)\\Z", true, true},
        {".*(?!mlp).*", true, true},
        {"(?!.*mlp).*", true, false},
        {".*(?<=attn)", true, false},
        {".*(?<!attn)", false, true},
        {"transformer\\.h\\.[0-9]{2}\\..*", false, true},
        {"transformer\\.h\\.[0-9]{,1}\\..*", true, false},
        {"[\\w.]{,}", true, true},
        {"[a-z]{5}[^.]+\\.[h]\\.\\d++\\.\\w*+\\.c_.*?", true, true},
        {".*+c_attn", false, false},
        {"(?>.*)c_attn", false, false},
        {"(?P<first>.).*(?P=first)\\w*", true, false},
        {"(t).*\\1.*\\1n", true, false},
        {"(?i)TRANSFORMER.*ATTN", true, false},
        {"(?i:T)ransformer.*(?-i:N)", false, false},
        {"(?#of attention).*attn.*", true, false},
        {".*\\bc_attn", true, false},
        {".*\\Bttn", true, false},
        {"[]t].*", true, true},
        {".*[^]\\-n]", false, true},
        {".*\\x6e", true, false},
        {"[\\x74]r.*", true, true},
        {".*\\v?n", true, false},
        {".*{", false, false},
        {"(.*)h{1}.*|x{}", true, true},
        {"|.*proj", false, true},
        {".*\\_attn", true, false},
        {"\xc3\xa9?.*n", true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (matches(cases[i].text, false, ATTN) != cases[i].attn || matches(cases[i].text, false, MLP) != cases[i].mlp)
            fail_msg("%s", cases[i].text);
}

static void keys_stand_behind_any_modules(void **state) {
    static const struct {
        const char *text;
        bool attn, mlp;
    } cases[] = {{"c_attn", true, false},        {"attn", false, false},      {"h.0.attn.c_attn", true, false},
                 {"h\\.[02]\\..*", true, false}, {".*", true, true},          {"c_attn|c_proj", true, true},
                 {"^c_attn", false, false},      {"\\Ac_attn", false, false}, {"mlp.c_proj$", false, true},
                 {"\\1c_attn", false, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (matches(cases[i].text, true, ATTN) != cases[i].attn || matches(cases[i].text, true, MLP) != cases[i].mlp)
            fail_msg("%s", cases[i].text);
    struct text_expression *expression;
    test_fails(text_expression_open("rank_pattern", "a)|(c_attn", true, &expression), STATUS_USAGE,
               "a ) without its (");
    test_fails(text_expression_open("rank_pattern", "(?i)a", true, &expression), STATUS_USAGE, "(?i)a");
}

/* Python's re refuses these too, except for those after the comment. */
static void what_python_does_not_have_is_refused(void **state) {
    static const char *const cases[] = {
        "*",
        "a**",
        "a+*",
        "a{2}{3}",
        "^*",
        "(*ACCEPT)",
        "(*LIMIT_MATCH=9)a",
        "(?R)",
        "(?1)",
        "(?&n)",
        "(?P>n)",
        "(?|a|b)",
        "(?<n>a)",
        "(?'n'a)",
        "(?C1)",
        "(?^)",
        "\\K",
        "\\R",
        "\\Qa\\E",
        "\\z",
        "\\h",
        "\\e",
        "\\G",
        "\\k<n>",
        "\\p{L}",
        "\\1",
        "(a\\1)",
        "\\x6",
        "[a",
        "(a",
        "a)",
        "\\",
        "[\\B]",
        "[\\q]",
        "a(?i)b",
        "(?P<1>a)",
        "(?P<n",
        "(?P=n",
        "(?#a",
        "[a-\\d]",
        "x{3,1}",
        "(?P<n>a)(?P<n>b)",
        "(?<=a*)",
        ".*c_attn(x|)++++++++++",
        /* these would be larger than what is compiled here, or are not read */
        "(((a{99}){99}){99})",
        "\\07",
        "\\11",
        "\\u0061",
        "\\N{DIGIT ONE}",
        "(?x) a",
        "(a)?(?(1)b|c)",
        "\xff",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_expression *expression;
        if (!text_expression_open("peft.exclude_modules", cases[i], false, &expression))
            fail_msg("not refused: %s", cases[i]);
        assert_null(expression);
        test_fails(STATUS_USAGE, STATUS_USAGE, "peft.exclude_modules \"");
        if (!strstr(status_text(), "an expression that cannot be read here: ") || strchr(status_text(), '\n'))
            fail_msg("%s: %s", cases[i], status_text());
    }
}

static void long_texts_are_refused_in_one_short_line(void **state) {
    struct text_expression *expression;
    char text[3000];
    (void)state;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    text[1] = '\n';
    test_fails(text_expression_open("target_modules", text, false, &expression), STATUS_USAGE, "\"a?aa");
    assert_true(strlen(status_text()) < 400);
    memset(text, '(', sizeof text - 1);
    text[1000] = 0;
    test_fails(text_expression_open("target_modules", text, false, &expression), STATUS_USAGE, "too many groups");
}

/* Each of these would run for longer than anybody waits. */
static void what_takes_too_many_steps_is_refused(void **state) {
    static const char *const cases[] = {"(\\w|\\.|[a-z])*[!?]", "((\\w+\\.?)+)+[!?]", "(.*)*(.*)*(.*)*(.*)*[!?]",
                                        "(.*)\\1?(.*)\\2?(.*)\\3?(.*)\\4?(.*)[!?]"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_expression *expression;
        bool is_match;
        test_ok(text_expression_open("target_modules", cases[i], false, &expression));
        test_fails(text_expression_match(expression, ATTN, &is_match), STATUS_USAGE, "too complex");
        assert_non_null(strstr(status_text(), "to match " ATTN));
        assert_non_null(strstr(status_text(), cases[i]));
        text_expression_close(expression);
    }
}

/* 259 that are matched one after the other have together little more than one alone; honest ones do not feel it. */
static void many_expressions_share_the_steps(void **state) {
    static const char slow[] = "(\\w|\\.|[a-z]){0,9}[!?].*";
    static const char *const honest[] = {
        ".*\\.h\\.[\\d]+\\.attn\\.\\w+|.*\\.h\\.1\\..*",
        "^(?!.*(?:vision|audio)).*(?:layers|h)\\.\\d+\\.(?:attn|mlp)\\.(?:c_attn|c_proj)"};
    struct text_expression *expression;
    bool is_match;
    (void)state;
    test_ok(text_expression_open("rank_pattern", slow, true, &expression));
    test_ok(text_expression_match(expression, ATTN, &is_match));
    text_expression_share(expression, 259);
    test_fails(text_expression_match(expression, ATTN, &is_match), STATUS_USAGE, "it takes more than 1000 steps");
    text_expression_share(expression, 1);
    test_ok(text_expression_match(expression, ATTN, &is_match));
    text_expression_close(expression);
    for (size_t i = 0; i < sizeof honest / sizeof *honest; i++) {
        test_ok(text_expression_open("target_modules", honest[i], false, &expression));
        text_expression_share(expression, 259);
        test_ok(text_expression_match(expression, ATTN, &is_match));
        assert_true(is_match);
        text_expression_close(expression);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_paths_match_as_in_python),
        cmocka_unit_test(keys_stand_behind_any_modules),
        cmocka_unit_test(what_python_does_not_have_is_refused),
        cmocka_unit_test(long_texts_are_refused_in_one_short_line),
        cmocka_unit_test(what_takes_too_many_steps_is_refused),
        cmocka_unit_test(many_expressions_share_the_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
