/* The texts that a constraint allows, with a vocabulary of bytes: ids 0 to 255, the end (256), and two special tokens.
 */
#pragma once

#include "grammar/grammar.h"

#include "support/test.h"

enum { TEXTS_END = 256, TEXTS_SPECIAL = 257, TEXTS_IDS = 259 };

static inline struct grammar_vocabulary *texts_vocabulary(void) {
    static char bytes[256];
    struct grammar_token tokens[TEXTS_IDS];
    struct grammar_vocabulary *vocabulary;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, false};
    }
    tokens[TEXTS_END] = (struct grammar_token){"</s>", 4, true};
    tokens[TEXTS_SPECIAL] = (struct grammar_token){"<tool>", 6, true};
    tokens[TEXTS_SPECIAL + 1] = (struct grammar_token){"</tool>", 7, true};
    assert_int_equal(grammar_vocabulary_open(tokens, TEXTS_IDS, (int32_t[]){TEXTS_END}, 1, &vocabulary), 0);
    return vocabulary;
}

/* Compiles; *grammar is NULL when the constraint is refused. Returns the status. */
static inline int texts_compile(enum grammar_kind kind, const char *text, const struct grammar_vocabulary *vocabulary,
                                struct grammar_report *report, struct grammar **grammar) {
    struct grammar_source source = {.kind = kind, .text = text, .length = strlen(text)};
    struct grammar_limits limits = {.seconds = 60, .bytes = 64 << 20};
    *grammar = NULL;
    return grammar_compile(&source, vocabulary, &limits, report, grammar);
}

/* True when the text is complete. "\1" and "\2" in it stand for the special tokens. */
static inline bool texts_are_allowed(struct grammar *grammar, const char *text) {
    struct grammar_state state = {0};
    bool is_allowed = true;
    assert_int_equal(grammar_begin(grammar, &state), 0);
    for (; *text && is_allowed; text++) {
        int32_t id = *text == '\1' || *text == '\2' ? TEXTS_SPECIAL + *text - 1 : (unsigned char)*text;
        is_allowed = grammar_accept(&state, id, NULL) == 0;
    }
    is_allowed = is_allowed && grammar_is_complete(&state);
    grammar_end(&state);
    return is_allowed;
}

/* A constraint with the texts that it allows and forbids, each list ended by NULL. */
struct texts_case {
    const char *constraint;
    const char *allowed[8], *forbidden[8];
};

static inline void texts_check(enum grammar_kind kind, const struct texts_case *cases, size_t count) {
    struct grammar_vocabulary *vocabulary = texts_vocabulary();
    for (size_t i = 0; i < count; i++) {
        struct grammar_report report = {0};
        struct grammar *grammar;
        if (texts_compile(kind, cases[i].constraint, vocabulary, &report, &grammar))
            fail_msg("%s: %s", cases[i].constraint, status_text());
        for (size_t k = 0; k < 8 && cases[i].allowed[k]; k++)
            if (!texts_are_allowed(grammar, cases[i].allowed[k]))
                fail_msg("%s forbids '%s'", cases[i].constraint, cases[i].allowed[k]);
        for (size_t k = 0; k < 8 && cases[i].forbidden[k]; k++)
            if (texts_are_allowed(grammar, cases[i].forbidden[k]))
                fail_msg("%s allows '%s'", cases[i].constraint, cases[i].forbidden[k]);
        grammar_release(grammar);
        grammar_report_free(&report);
    }
    grammar_vocabulary_close(vocabulary);
}

struct texts_refusal {
    const char *constraint, *message;
    enum grammar_refusal refusal;
};

static inline void texts_check_refusals(enum grammar_kind kind, const struct texts_refusal *cases, size_t count) {
    struct grammar_vocabulary *vocabulary = texts_vocabulary();
    for (size_t i = 0; i < count; i++) {
        struct grammar_report report = {0};
        struct grammar *grammar;
        int status = texts_compile(kind, cases[i].constraint, vocabulary, &report, &grammar);
        assert_int_not_equal(status, 0);
        assert_string_equal(strbuf_text(&report.message), cases[i].message);
        assert_int_equal(report.refusal, cases[i].refusal);
        grammar_report_free(&report);
    }
    grammar_vocabulary_close(vocabulary);
}
