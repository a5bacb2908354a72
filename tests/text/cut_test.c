/* A long text that is encoded in parts has the ids of the whole, wherever its reader happens to stop. */
#include "base/base.h"
#include "text/text.h"

#include "support/test.h"

#include <jansson.h>

#define GOLDEN TEST_DATA "/text/golden"
#define SMALL  GOLDEN "/small"

/* Additions to a golden tokenizer: tokens that are found in any text, and tokens that depend on their neighbours; or
 * its own tokens are removed. */
enum additions { ADD_NONE, ADD_CLEARED, ADD_PLAIN, ADD_CHOOSY };

/* A golden tokenizer, with a space before every text, and with added tokens. */
static char *write_tokenizer(const char *name, bool has_prefix, enum additions additions) {
    static const char *const names[] = {"o t", "\xc3\xa9\xc3\xa9", "thet", "\n\n", "'st", "zz zz zz", " . ", "<|endo"};
    bool is_choosy = additions == ADD_CHOOSY;
    char *directory = test_directory(), path[256];
    snprintf(path, sizeof path, GOLDEN "/%s/tokenizer.json", name);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    if (has_prefix)
        json_object_set_new(json_object_get(root, "pre_tokenizer"), "add_prefix_space", json_true());
    json_int_t id = 0;
    const char *token;
    json_t *value, *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_object_foreach(vocab, token, value) id = json_integer_value(value) >= id ? json_integer_value(value) + 1 : id;
    for (size_t i = 0; i < json_array_size(json_object_get(root, "added_tokens")); i++) {
        value = json_object_get(json_array_get(json_object_get(root, "added_tokens"), i), "id");
        id = json_integer_value(value) >= id ? json_integer_value(value) + 1 : id;
    }
    if (additions == ADD_CLEARED)
        json_array_clear(json_object_get(root, "added_tokens"));
    for (size_t i = 0; additions >= ADD_PLAIN && i < sizeof names / sizeof *names; i++)
        json_array_append_new(json_object_get(root, "added_tokens"),
                              json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id++, "content", names[i],
                                        "single_word", is_choosy && i % 4 == 2, "lstrip", is_choosy && i % 3 == 0,
                                        "rstrip", is_choosy && i % 2 == 1, "normalized", is_choosy && i > 4, "special",
                                        0));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(json_dump_file(root, path, JSON_ENSURE_ASCII), 0);
    json_decref(root);
    return directory;
}

static uint32_t draw(uint32_t *draws, uint32_t below) {
    return (uint32_t)(((uint64_t)philox(11, (*draws)++, 0, 0, (uint32_t)RNG_TEST << 24).word[0] * below) >> 32);
}

/* Words, runs of spaces, line ends, apostrophes, characters of every length and kind, and now and then no UTF-8. */
static void write_text(struct strbuf *text, uint32_t *draws, bool is_valid) {
    static const char *const pieces[] = {"the",
                                         " o",
                                         "t",
                                         "zz ",
                                         "zz",
                                         " ",
                                         "   ",
                                         "\r\n",
                                         "\n\n",
                                         "\t",
                                         "'",
                                         "'s",
                                         " 're",
                                         "'LL",
                                         "'\xc5\xbf",
                                         ".\n",
                                         "\r",
                                         "4567",
                                         "ll",
                                         "1",
                                         "23",
                                         ".",
                                         "!?",
                                         " -",
                                         "\xc3\xa9",
                                         "\xc2\xa0",
                                         "\xe3\x80\x80",
                                         "\xe6\xbc\xa2",
                                         "\xf0\x9f\x98\x80",
                                         "\xd9\xa3",
                                         "\0",
                                         "<|endoftext|>",
                                         "\xe2\x80\xa9",
                                         "\xcc\x81",
                                         "\xcc\xa3",
                                         "\xe1\x84\x80",
                                         "\xe1\x85\xa1",
                                         "<tool>",
                                         "/",
                                         "THE",
                                         "\xe2\x96\x81"};
    static const char *const broken[] = {"\xff", "\xe6\xbc", "\xc0\xaf", "\xf0\x9f\x98", "\xed\xa0\x80"};
    uint32_t count = 5 + draw(draws, 120), bad = is_valid ? UINT32_MAX : draw(draws, count);
    strbuf_clear(text);
    for (uint32_t i = 0; i < count; i++) {
        const char *piece = pieces[draw(draws, sizeof pieces / sizeof *pieces)];
        strbuf_add(text, piece, *piece ? strlen(piece) : 1);
        if (i == bad)
            strbuf_add_text(text, broken[draw(draws, sizeof broken / sizeof *broken)]);
    }
}

/* Reads the text a few bytes at a time, and encodes what may be cut off; the number of parts. */
static int encode_parts(struct tokenizer_encoder *encoder, const struct tokenizer *tokenizer, const struct strbuf *text,
                        uint32_t *draws, struct token_buffer *ids) {
    struct tokenizer_cut cut = {0};
    size_t begin = 0, end = 0;
    int parts = 0;
    ids->count = 0;
    while (end < text->length) {
        size_t step = 1 + draw(draws, 12);
        end = end + step < text->length ? end + step : text->length;
        char *held = malloc(end - begin); /* exactly: a sanitizer sees a read past it */
        memcpy(held, text->data + begin, end - begin);
        size_t at = tokenizer_find_cut(tokenizer, &cut, held, end - begin);
        assert_true(at < end - begin);
        if (at > 0)
            test_ok(tokenizer_encode(encoder, held, at, begin ? TOKENIZER_CONTINUED : TOKENIZER_PLAIN, ids));
        free(held);
        begin += at;
        parts += at > 0;
    }
    test_ok(
        tokenizer_encode(encoder, text->data + begin, end - begin, begin ? TOKENIZER_CONTINUED : TOKENIZER_PLAIN, ids));
    return parts + 1;
}

static void parts_have_the_ids_of_the_whole(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool has_prefix;
        enum additions additions;
        int least_parts; /* of a text, on average */
    } variants[] = {
        {"small", false, ADD_NONE, 8},     {"small", true, ADD_NONE, 8},        {"small", false, ADD_PLAIN, 8},
        {"small", true, ADD_PLAIN, 8},     {"llama3", false, ADD_NONE, 8},      {"llama3", false, ADD_PLAIN, 8},
        {"qwen2", false, ADD_CHOOSY, 8},   {"qwen2_nfc", false, ADD_NONE, 8},   {"qwen2_nfc", false, ADD_PLAIN, 8},
        {"o200k", false, ADD_NONE, 8},     {"tekken", false, ADD_CHOOSY, 8},    {"smollm", false, ADD_NONE, 8},
        {"mistral", false, ADD_NONE, 3},   {"mistral", false, ADD_CHOOSY, 3},   {"gemma", false, ADD_NONE, 3},
        {"llama2", false, ADD_CLEARED, 3}, {"metaspace", false, ADD_CLEARED, 3}};
    for (size_t variant = 0; variant < sizeof variants / sizeof *variants; variant++) {
        char *directory =
            write_tokenizer(variants[variant].name, variants[variant].has_prefix, variants[variant].additions);
        struct tokenizer *tokenizer;
        struct tokenizer_encoder *encoder;
        struct token_buffer whole = TOKEN_BUFFER_INIT, parts = TOKEN_BUFFER_INIT;
        struct strbuf text = STRBUF_INIT;
        uint32_t draws = 0;
        int rounds = test_is_long() ? 100000 : 3000, count = 0;
        test_ok(tokenizer_open(directory, &tokenizer));
        test_ok(tokenizer_encoder_new(tokenizer, &encoder));
        for (int round = 0; round < rounds; round++) {
            write_text(&text, &draws, round % 4 > 0);
            whole.count = 0;
            test_ok(tokenizer_encode(encoder, text.data, text.length, TOKENIZER_PLAIN, &whole));
            count += encode_parts(encoder, tokenizer, &text, &draws, &parts);
            assert_int_equal(parts.count, whole.count);
            assert_memory_equal(parts.ids, whole.ids, whole.count * sizeof *whole.ids);
        }
        assert_true(count > variants[variant].least_parts * rounds);
        strbuf_free(&text);
        token_buffer_free(&whole);
        token_buffer_free(&parts);
        tokenizer_encoder_free(encoder);
        tokenizer_close(tokenizer);
        free(directory);
    }
}

static void a_word_is_not_cut(void **state) {
    (void)state;
    struct tokenizer *tokenizer;
    struct tokenizer_cut cut = {0};
    test_ok(tokenizer_open(SMALL, &tokenizer));
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "aaaaaa", 6), 0);
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "aaaaaaaa b", 10), 8);
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, " b   ", 5), 2);
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "      ", 6), 0);
    cut = (struct tokenizer_cut){0};
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "a b \xff and on", 11), 0);
    assert_true(cut.is_broken);
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "a b \xff and on and on", 18), 0);
    tokenizer_close(tokenizer);
    test_ok(tokenizer_open(GOLDEN "/llama3", &tokenizer));
    cut = (struct tokenizer_cut){0};
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "a!\n\n b", 6), 1);
    cut = (struct tokenizer_cut){0};
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, "\n\nb", 3), 2); /* the end of a line goes with no word */
    cut = (struct tokenizer_cut){0};
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, " \n .b", 5), 0);
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_ids_of_the_whole),
        cmocka_unit_test(a_word_is_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
