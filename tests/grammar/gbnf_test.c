/* Grammars in GBNF: what they allow, and what is refused with its line and column. */
#include "texts.h"

static const struct texts_case cases[] = {
    {"root ::= \"a\" [b-d]* | \"x\"\n", {"a", "abcd", "x"}, {"", "ax", "b"}},
    {"root ::= a \"c\"\na ::= \"a\" | a \"b\"", {"ac", "abbc"}, {"c", "b"}},
    {"# c\nroot ::= ( \"a\" # x\n | \"b\" )+ tail? # z\n\ntail ::= \"\\x41\\u00e9\\U0001F600\\n\\r\\t\\\"\\[\\]\\\\\"",
     {"aab", "aA\xc3\xa9\xf0\x9f\x98\x80\n\r\t\"[]\\"},
     {"", "A"}},
    {"root ::= [^a-c\\]]{2}", {"d\xc3\xa9", "\n\xf0\x9f\x98\x80"}, {"a]", "d", "ddd", "d\xff"}},
    {"root ::= .{,3}", {"", "a\xc3\xa9\xf0\x9f\x98\x80", "\n"}, {"aaaa", "\x80"}},
    {"root ::= (\"a\" b){2,3}\nb ::= \"b\" | \"c\"", {"abac", "ababab"}, {"ab", "abababab"}},
    {"root ::= \"a\" |\n \"b\"\n", {"a", "b"}, {"ab"}},
    {"root ::= \"a\"\r\n   | \"b\" \"c\"\r\n", {"a", "bc"}, {"b"}},
    {"root ::= \"\"", {""}, {"a"}},
    {"root ::= ([abc]*)*", {"", "abcabc"}, {"d"}},
    {"root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= \"(\" expr \")\" | [0-9]+",
     {"1+2", "(1+(2))+33"},
     {"1+", "()", "1++2"}},
    {"root ::= [a-] [-b]", {"a-", "-b"}, {"ab-"}},
    {"root::=\"x\"{2,}", {"xx", "xxxx"}, {"x"}},
    {"root ::= \"x\"{ 2 , 3 }", {"xx", "xxx"}, {"x", "xxxx"}},
    {"root ::=\n  \"a\"\n", {"a"}, {""}},
    {"root ::= \"<tool>\"", {"<tool>"}, {"\1"}},
    {"a-1 ::= \"a\"\nroot ::= a-1 _b\n_b ::= \"b\"", {"ab"}, {"a"}},
    {"root ::= x x x\nx ::= \"a\"?", {"", "a", "aaa"}, {"aaaa"}},
};

static void grammars_allow_what_they_derive(void **state) {
    (void)state;
    texts_check(GRAMMAR_GBNF, cases, sizeof cases / sizeof *cases);
}

static const struct texts_refusal refusals[] = {
    {"root ::= \"a", "line 1, column 10: the literal does not end", GRAMMAR_INVALID},
    {"root ::= [a", "line 1, column 10: the class does not end", GRAMMAR_INVALID},
    {"root ::= [b-a]", "line 1, column 11: the range ends before it begins", GRAMMAR_INVALID},
    {"root ::= []", "line 1, column 10: the class has no character", GRAMMAR_INVALID},
    {"# \xc3\xa9\nroot ::= b", "line 2, column 10: no rule is named b", GRAMMAR_INVALID},
    {"root ::= \"\xc3\xa9\" )", "line 1, column 14: no group is open here", GRAMMAR_INVALID},
    {"root ::= (\"a\"", "line 1, column 10: the group does not end", GRAMMAR_INVALID},
    {"root ::= *", "line 1, column 10: nothing to repeat before *", GRAMMAR_INVALID},
    {"root ::= \"a\" | +", "line 1, column 16: nothing to repeat before +", GRAMMAR_INVALID},
    {"root ::= \"a\"{3,1}", "line 1, column 13: the repetition ends before it begins", GRAMMAR_INVALID},
    {"root ::= \"a\"{,}", "line 1, column 13: expected {n}, {n,}, {n,m} or {,m}", GRAMMAR_INVALID},
    {"root ::= \"\\q\"", "line 1, column 11: unknown escape \\q", GRAMMAR_INVALID},
    {"root ::= \"\\x4\"", "line 1, column 11: \\x needs 2 hexadecimal digits", GRAMMAR_INVALID},
    {"root ::= \"\\ud800\"", "line 1, column 11: the escape is not a character", GRAMMAR_INVALID},
    {"root ::= \"\xff\"", "line 1, column 11: the text is not UTF-8", GRAMMAR_INVALID},
    {"start: \"a\"", "line 1, column 1: grammars of Lark are not supported (\"start:\"); write NAME ::= BODY",
     GRAMMAR_UNSUPPORTED},
    {"x ::= \"a\"", "line 1, column 1: no rule is named root", GRAMMAR_INVALID},
    {"", "line 1, column 1: no rule is named root", GRAMMAR_INVALID},
    {"root ::= root", "line 1, column 1: the rule derives no finite text", GRAMMAR_INVALID},
    {"root ::= \"a\"\nb ::= b \"a\"", "line 2, column 1: the rule derives no finite text", GRAMMAR_INVALID},
    {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule has another definition", GRAMMAR_INVALID},
    {"root ::= \"a\" ;", "line 1, column 14: expected a literal, a class, a name or a group", GRAMMAR_INVALID},
    {"root = \"a\"", "line 1, column 6: expected ::= after the name of a rule", GRAMMAR_INVALID},
    {"?start: x", "line 1, column 1: expected the name of a rule", GRAMMAR_INVALID},
    {"root ::= \"a\"{99999999999}", "line 1, column 22: the repetition is too large", GRAMMAR_TOO_LARGE},
};

static void what_is_no_grammar_is_refused_with_its_place(void **state) {
    (void)state;
    texts_check_refusals(GRAMMAR_GBNF, refusals, sizeof refusals / sizeof *refusals);
}

static void groups_nest_to_a_limit_and_never_recurse(void **state) {
    struct strbuf text = STRBUF_INIT;
    (void)state;
    strbuf_add_text(&text, "root ::= ");
    for (int i = 0; i < 60000; i++)
        strbuf_add_char(&text, '(');
    texts_check_refusals(GRAMMAR_GBNF,
                         &(struct texts_refusal){strbuf_text(&text), "line 1, column 266: more than 256 nested groups",
                                                 GRAMMAR_TOO_LARGE},
                         1);
    strbuf_clear(&text);
    strbuf_add_text(&text, "root ::= ");
    for (int i = 0; i < 256; i++)
        strbuf_add_char(&text, '(');
    strbuf_add_text(&text, "\"a\"");
    for (int i = 0; i < 256; i++)
        strbuf_add_text(&text, ")");
    texts_check(GRAMMAR_GBNF, &(struct texts_case){strbuf_text(&text), {"a"}, {"b"}}, 1);
    strbuf_free(&text);
}

/* Each rule derives a text because the next one does. Passes over all of them would take hours, not the minute that
 * texts_compile allows. */
static void a_long_chain_of_rules_compiles(void **state) {
    enum { RULES = 200000 };
    struct strbuf text = STRBUF_INIT;
    strbuf_add_text(&text, "root ::= r0\n");
    for (int i = 0; i < RULES; i++)
        strbuf_format(&text, "r%d ::= r%d\n", i, i + 1);
    strbuf_format(&text, "r%d ::= \"a\"\n", RULES);
    texts_check(GRAMMAR_GBNF, &(struct texts_case){strbuf_text(&text), {"a"}, {"", "b"}}, 1);
    strbuf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_allow_what_they_derive),
        cmocka_unit_test(what_is_no_grammar_is_refused_with_its_place),
        cmocka_unit_test(groups_nest_to_a_limit_and_never_recurse),
        cmocka_unit_test(a_long_chain_of_rules_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
