/* Tokenizers as vocabularies of grammars: masks against the bytes of every id, and texts against their own grammar. */
#include "grammar/grammar.h"
#include "text/text.h"

#include "support/test.h"

#define GOLDEN TEST_DATA "/text/golden/"
static const char *const directories[] = {"small",     "llama2",          "llama3",         "mistral",
                                          "qwen2",     "gemma",           "o200k",          "added",
                                          "metaspace", "metaspace_bytes", "names_of_bytes", "lost_bytes"};
enum { DIRECTORIES = sizeof directories / sizeof *directories };

struct opened {
    struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    int32_t eos;
};

static void open_vocabulary(struct opened *opened, const char *name) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    assert_int_equal(tokenizer_open(path, &opened->tokenizer), 0);
    opened->eos = tokenizer_eos_id(opened->tokenizer);
    assert_int_equal(tokenizer_vocabulary(opened->tokenizer, &opened->eos, opened->eos >= 0, &opened->vocabulary), 0);
    assert_int_equal(grammar_vocabulary_words(opened->vocabulary), (tokenizer_vocab_size(opened->tokenizer) + 31) / 32);
}

static void close_vocabulary(struct opened *opened) {
    grammar_vocabulary_close(opened->vocabulary);
    tokenizer_close(opened->tokenizer);
}

static struct grammar *compile(const struct opened *opened, const char *pattern) {
    const struct grammar_limits limits = {.seconds = 60, .bytes = 64 << 20};
    struct grammar_source source = {.kind = GRAMMAR_REGEX, .text = pattern, .length = strlen(pattern)};
    struct grammar_report report = {0};
    struct grammar *grammar;
    assert_int_equal(grammar_compile(&source, opened->vocabulary, &limits, &report, &grammar), 0);
    grammar_report_free(&report);
    return grammar;
}

/* A mask is what the bytes of each id say. */
static void masks_see_the_bytes_of_every_id(void **state) {
    (void)state;
    for (size_t i = 0; i < DIRECTORIES; i++) {
        struct opened opened;
        struct grammar_state at;
        struct grammar_allowed allowed;
        open_vocabulary(&opened, directories[i]);
        struct grammar *grammar = compile(&opened, "[a-z ]*");
        uint32_t *mask = calloc(grammar_vocabulary_words(opened.vocabulary), sizeof *mask);
        assert_int_equal(grammar_begin(grammar, &at), 0);
        assert_int_equal(grammar_mask(&at, 60, mask, &allowed), 0);
        size_t count = 0;
        for (int32_t id = 0; id < tokenizer_vocab_size(opened.tokenizer); id++) {
            size_t length;
            const unsigned char *bytes = tokenizer_token_bytes(opened.tokenizer, id, &length);
            bool expected = length > 0 && !tokenizer_is_special(opened.tokenizer, id);
            for (size_t k = 0; k < length; k++)
                expected = expected && ((bytes[k] >= 'a' && bytes[k] <= 'z') || bytes[k] == ' ');
            expected = id == opened.eos || expected;
            if (expected != (mask[id / 32] >> id % 32 & 1))
                fail_msg("%s: id %d (%.*s) is %s", directories[i], id, (int)length, bytes,
                         expected ? "forbidden" : "allowed");
            count += expected;
        }
        assert_int_equal(allowed.count, count);
        assert_true(count > 2);
        grammar_end(&at);
        grammar_release(grammar);
        free(mask);
        close_vocabulary(&opened);
    }
}

/* Whatever tokens a text has, its own pattern allows them: spaces, bytes of characters without a token, added tokens.
 */
static void texts_fit_their_own_pattern(void **state) {
    static const char text[] = "a b  naive caf\xc3\xa9 \xe2\x98\x83 \xf0\x9f\x98\x88, {\"k\": [1, 23]}\n";
    static const char pattern[] = "a b  naive caf\xc3\xa9 \xe2\x98\x83 \xf0\x9f\x98\x88, \\{\"k\": \\[1, 23\\]\\}\n";
    (void)state;
    for (size_t i = 0; i < DIRECTORIES; i++) {
        struct opened opened;
        struct grammar_state at;
        struct tokenizer_encoder *encoder;
        struct token_buffer ids = TOKEN_BUFFER_INIT;
        struct strbuf decoded = STRBUF_INIT;
        open_vocabulary(&opened, directories[i]);
        struct grammar *grammar = compile(&opened, pattern);
        assert_int_equal(tokenizer_encoder_new(opened.tokenizer, &encoder), 0);
        assert_int_equal(tokenizer_encode(encoder, text, sizeof text - 1, TOKENIZER_CONTINUED, &ids), 0);
        for (size_t k = 0; k < ids.count; k++) {
            size_t length;
            const unsigned char *bytes = tokenizer_token_bytes(opened.tokenizer, ids.ids[k], &length);
            strbuf_add(&decoded, bytes, length);
        }
        bool is_same = !strcmp(strbuf_text(&decoded), text); /* some tokenizers lose characters, by intent */
        assert_int_equal(grammar_begin(grammar, &at), 0);
        size_t taken = 0;
        while (taken < ids.count && !grammar_accept(&at, ids.ids[taken], NULL))
            taken++;
        assert_int_equal(is_same, taken == ids.count && grammar_is_complete(&at));
        grammar_end(&at);
        grammar_release(grammar);
        tokenizer_encoder_free(encoder);
        token_buffer_free(&ids);
        strbuf_free(&decoded);
        close_vocabulary(&opened);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_see_the_bytes_of_every_id),
        cmocka_unit_test(texts_fit_their_own_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
