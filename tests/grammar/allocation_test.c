/* Whichever allocation fails, it is reported, and nothing leaks: vocabularies, compiling, masks and states. */
#include "grammar/grammar.h"

#include "support/failing.h"
#include "support/test.h"

enum { IDS = 300 };

static struct grammar_vocabulary *vocabulary;

static int open_vocabulary(struct grammar_vocabulary **opened) {
    static char bytes[IDS][20];
    struct grammar_token tokens[IDS];
    for (int id = 0; id < IDS; id++) {
        size_t length = id < 256 ? 1 : id < 290 ? 3 : 19;
        memset(bytes[id], id < 256 ? id : 'a' + id % 26, length);
        tokens[id] = (struct grammar_token){bytes[id], length, id == 299};
    }
    return grammar_vocabulary_open(tokens, IDS, (int32_t[]){299}, 1, opened);
}

static int use_vocabulary(void *context) {
    struct grammar_vocabulary *opened;
    int status = open_vocabulary(&opened);
    (void)context;
    if (status)
        return status;
    status = grammar_vocabulary_prepare(opened);
    grammar_vocabulary_close(opened);
    return status;
}

/* Follows a text, with a mask before each byte. */
static int follow(struct grammar *grammar, const char *text) {
    uint32_t mask[(IDS + 31) / 32];
    struct grammar_allowed allowed;
    struct grammar_state state = {0}, copy = {0};
    int status = grammar_begin(grammar, &state);
    for (; *text && !status; text++) {
        status = grammar_mask(&state, 60, mask, &allowed);
        THEN(status, grammar_accept(&state, (unsigned char)*text, NULL));
    }
    THEN(status, grammar_copy(&state, &copy));
    grammar_end(&copy);
    grammar_end(&state);
    return status;
}

static int use_grammar(void *context) {
    const char *const *pair = context;
    struct grammar_source source = {
        .kind = *pair[0] == '{' ? GRAMMAR_JSON_SCHEMA : GRAMMAR_GBNF, .text = pair[0], .length = strlen(pair[0])};
    struct grammar_limits limits = {.seconds = 60, .bytes = (size_t)1 << 26};
    struct grammar_report report = {0};
    struct grammar *grammar;
    int status = grammar_compile(&source, vocabulary, &limits, &report, &grammar);
    THEN(status, follow(grammar, pair[1]));
    grammar_release(grammar);
    grammar_report_free(&report);
    return status;
}

static void vocabularies_report_failed_allocations(void **state) {
    (void)state;
    failing_try_all(use_vocabulary, NULL, 500);
}

static void grammars_report_failed_allocations(void **state) {
    static const char *const cases[][2] = {
        {"root ::= root \"+\" root | [a-z]{1,30} | \"(\" root \")\" | tail\ntail ::= \"x\" tail | \"y\"", "(ab+xxy)+c"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":20}}}",
         "{\"a\":\"b\",\"c\":[1],\"d\":{}}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failing_try_all(use_grammar, (void *)cases[i], 400);
}

static int open_group(void **state) {
    (void)state;
    return open_vocabulary(&vocabulary);
}
static int close_group(void **state) {
    (void)state;
    grammar_vocabulary_close(vocabulary);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabularies_report_failed_allocations),
        cmocka_unit_test(grammars_report_failed_allocations),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
