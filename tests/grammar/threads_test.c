/* One grammar, and one vocabulary of two grammars, used by several threads at once: each gets the masks that it gets on
 * its own. */
#include "grammar/grammar.h"

#include "support/test.h"

#include <pthread.h>

enum { IDS = 300, WORDS = (IDS + 31) / 32, THREADS = 4, ROUNDS = 20 };

static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":20}}}";
static const char *const texts[THREADS] = {"{\"a\":\"bcd\",\"e\":[1,2]}", "{\"x\":null,\"y\":{\"x\":true}}",
                                           "{\"a\":\"abc abc\"}", "{\"kk\":\"abcabcabcabc\",\"b\":-1.5e3}"};

struct work {
    struct grammar *grammar;
    const struct grammar_vocabulary *vocabulary; /* set: the thread compiles, too */
    const char *text;
    uint64_t sum; /* of the masks */
    int status;
};

static int compile(const struct grammar_vocabulary *vocabulary, struct grammar **grammar) {
    struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .text = schema, .length = sizeof schema - 1};
    /* Little memory, so that caches are dropped while others stand on their places. */
    struct grammar_limits limits = {.seconds = 60, .bytes = (size_t)1 << 19};
    struct grammar_report report = {0};
    int status = grammar_compile(&source, vocabulary, &limits, &report, grammar);
    grammar_report_free(&report);
    return status;
}

static void *follow(void *context) {
    struct work *work = context;
    struct grammar *own = NULL;
    if (work->vocabulary)
        work->status = compile(work->vocabulary, &own);
    for (int round = 0; round < ROUNDS && !work->status; round++) {
        struct grammar_state state = {0};
        work->sum = 0;
        work->status = grammar_begin(own ? own : work->grammar, &state);
        for (const char *at = work->text; *at && !work->status; at++) {
            uint32_t mask[WORDS];
            struct grammar_allowed allowed;
            work->status = grammar_mask(&state, 60, mask, &allowed);
            for (size_t i = 0; i < WORDS && !work->status; i++)
                work->sum = work->sum * 1099511628211u + mask[i];
            THEN(work->status, grammar_accept(&state, (unsigned char)*at, NULL));
        }
        if (!work->status && !grammar_is_complete(&state))
            work->status = STATUS_INVALID;
        grammar_end(&state);
    }
    grammar_release(own);
    return NULL;
}

static void threads_share_grammars(void **unused) {
    static char bytes[IDS][20];
    struct grammar_token tokens[IDS];
    struct grammar_vocabulary *vocabulary;
    struct grammar *grammar;
    uint64_t expected[THREADS];
    (void)unused;
    for (int id = 0; id < IDS; id++) {
        size_t length = id < 256 ? 1 : id < 290 ? 3 : 19;
        memset(bytes[id], id < 256 ? id : 'a' + id % 26, length);
        tokens[id] = (struct grammar_token){bytes[id], length, id == 299};
    }
    test_ok(grammar_vocabulary_open(tokens, IDS, (int32_t[]){299}, 1, &vocabulary));
    test_ok(compile(vocabulary, &grammar));
    for (int i = 0; i < THREADS; i++) {
        struct work work = {.grammar = grammar, .text = texts[i]};
        follow(&work);
        assert_int_equal(work.status, STATUS_OK);
        expected[i] = work.sum;
    }
    pthread_t threads[2 * THREADS];
    struct work works[2 * THREADS];
    for (int i = 0; i < 2 * THREADS; i++) {
        works[i] = (struct work){.grammar = grammar, .text = texts[i % THREADS]};
        if (i >= THREADS)
            works[i].vocabulary = vocabulary;
        assert_int_equal(pthread_create(&threads[i], NULL, follow, &works[i]), 0);
    }
    for (int i = 0; i < 2 * THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(works[i].status, STATUS_OK);
        assert_true(works[i].sum == expected[i % THREADS]);
    }
    grammar_release(grammar);
    grammar_vocabulary_close(vocabulary);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_grammars)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
