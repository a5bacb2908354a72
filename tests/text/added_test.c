/* Added tokens are found as by trying every one at every place, in steps that do not depend on the tokens. */
#include "base/base.h"
#include "base/clock.h"
#include "base/rng.h"
#include "text-internal.h"
#include "text/changed.h"

/* A tokenizer without added tokens that are found in any text. */
#define SMALL TEST_DATA "/text/golden/small/tokenizer.json"

enum { TOKENS = 20000, LONG_TEXT = 1 << 20, MOST_SECONDS = 10 };

static uint32_t draw(uint32_t *draws, uint32_t below) {
    return (uint32_t)(((uint64_t)philox(17, (*draws)++, 0, 0, (uint32_t)RNG_TEST << 24).word[0] * below) >> 32);
}

/* ---- the automaton alone ---- */

static void list_add(struct added_tokens *list, const char *name, size_t length) {
    list->items = realloc(list->items, (list->count + 1) * sizeof *list->items);
    list->items[list->count] =
        (struct added_token){.start = list->text.length, .length = length, .id = (int32_t)list->count};
    list->count++;
    strbuf_add(&list->text, name, length);
    list->longest = length > list->longest ? length : list->longest;
}

/* The longest token at a place, of equal ones the first, by trying each of them. */
static size_t longest_at(const struct added_tokens *list, const char *text, size_t length) {
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < list->count; i++) {
        const struct added_token *token = &list->items[i];
        if (token->length <= length && !memcmp(list->text.data + token->start, text, token->length) &&
            (found == SIZE_MAX || token->length > list->items[found].length))
            found = i;
    }
    return found;
}

static void check_hits(const struct added_tokens *list, const char *text, size_t length) {
    struct added_hits hits = {0};
    test_ok(added_tokens_hits(list, (const unsigned char *)text, length, &hits));
    assert_true(hits.steps <= 2 * (uint64_t)length);
    for (size_t at = 0; at < length; at++) {
        size_t expected = longest_at(list, text + at, length - at);
        if (expected == SIZE_MAX)
            continue;
        assert_true(hits.count > 0);
        struct added_hit hit = hits.items[--hits.count];
        assert_int_equal(hit.at, at);
        assert_int_equal(hit.token, expected);
        size_t next = list->items[hit.token].prefix, shorter = list->items[hit.token].length - 1;
        assert_int_equal(next ? next - 1 : SIZE_MAX, shorter ? longest_at(list, text + at, shorter) : SIZE_MAX);
    }
    assert_int_equal(hits.count, 0);
    added_hits_free(&hits);
}

static void hits_are_those_of_trying_each_token_at_each_place(void **state) {
    (void)state;
    uint32_t draws = 0;
    for (int round = 0; round < 400; round++) {
        struct added_tokens list = {0};
        char text[200];
        uint32_t letters = 1 + draw(&draws, 4), tokens = draw(&draws, 30);
        for (uint32_t i = 0; i < tokens; i++) {
            size_t length = 1 + draw(&draws, 9);
            for (size_t k = 0; k < length; k++)
                text[k] = (char)(250 + draw(&draws, letters));
            list_add(&list, text, length);
        }
        test_ok(added_tokens_build(&list));
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (char)(250 + draw(&draws, letters + (round & 1)));
        check_hits(&list, text, sizeof text);
        check_hits(&list, text, 1);
        added_tokens_free(&list);
    }
}

/* The worst: names of one letter with another at either end, of every length, in a text of that letter alone. */
static void steps_are_at_most_two_for_each_byte(void **state) {
    (void)state;
    static const char *const ends[] = {"", "b", "ba", "ab"};
    char *name = malloc(LONG_TEXT), *text = malloc(LONG_TEXT);
    for (size_t begins = 0; begins < sizeof ends / sizeof *ends; begins++)
        for (size_t finishes = 0; finishes < sizeof ends / sizeof *ends; finishes++) {
            struct added_tokens list = {0};
            struct added_hits hits = {0};
            memset(text, 'a', LONG_TEXT);
            for (int length = 1; length < 1200; length += 7)
                list_add(&list, name, (size_t)sprintf(name, "%s%.*s%s", ends[begins], length, text, ends[finishes]));
            test_ok(added_tokens_build(&list));
            for (size_t period = 0; period < 2000; period = period * 3 + 1) {
                memset(text, 'a', LONG_TEXT);
                for (size_t at = period; period && at < LONG_TEXT; at += period)
                    text[at] = 'b';
                hits.steps = 0;
                test_ok(added_tokens_hits(&list, (const unsigned char *)text, LONG_TEXT, &hits));
                assert_true(hits.steps <= 2 * (uint64_t)LONG_TEXT);
            }
            added_hits_free(&hits);
            added_tokens_free(&list);
        }
    free(name);
    free(text);
}

/* ---- whole tokenizers ---- */

/* A golden tokenizer with other added tokens. */
static struct tokenizer *open_with(json_t *added) {
    json_t *root = json_load_file(SMALL, 0, NULL);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_int_t id = (json_int_t)json_object_size(vocab);
    for (size_t i = 0; i < json_array_size(added); i++) {
        json_t *token = json_array_get(added, i);
        const json_t *known = json_object_get(vocab, json_string_value(json_object_get(token, "content")));
        json_object_set_new(token, "id", json_integer(known ? json_integer_value(known) : id++));
    }
    json_object_set_new(root, "added_tokens", added);
    return open_changed(root);
}

static size_t count_ids(const struct tokenizer *tokenizer, const struct strbuf *text,
                        const struct tokenizer_parts *parts) {
    struct tokenizer_encoder *encoder;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    double start = clock_seconds();
    if (parts)
        test_ok(tokenizer_encode_parts(encoder, text->data, text->length, TOKENIZER_PLAIN, parts, &ids));
    else
        test_ok(tokenizer_encode(encoder, text->data, text->length, TOKENIZER_PLAIN, &ids));
    assert_true(clock_seconds() - start < MOST_SECONDS); /* a second at most; what is quadratic takes minutes */
    tokenizer_encoder_free(encoder);
    size_t count = ids.count;
    token_buffer_free(&ids);
    return count;
}

/* 20,000 tokens that begin alike, in a text of what they begin with; and where the text may be cut. */
static void tokens_with_a_common_beginning_take_linear_time(void **state) {
    (void)state;
    json_t *added = json_array();
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; i < TOKENS; i++) {
        char name[80];
        snprintf(name, sizeof name, "<|a common beginning of all of these names, aaaaaaaaaa %05d|>", i);
        json_array_append_new(added, json_pack("{s:s}", "content", name));
    }
    while (text.length < LONG_TEXT)
        strbuf_add_text(&text, "<|a common beginning of all of these names, aaaaaaaaaa 0000");
    struct tokenizer *tokenizer = open_with(added);
    assert_true(count_ids(tokenizer, &text, NULL) > 1000);
    struct tokenizer_cut cut = {0};
    double start = clock_seconds();
    assert_true(tokenizer_find_cut(tokenizer, &cut, text.data, text.length) > 0);
    assert_true(clock_seconds() - start < MOST_SECONDS);
    strbuf_free(&text);
    tokenizer_close(tokenizer);
}

/* No place of such a text may be cut: each is inside a token or at its end. */
static void a_text_without_a_place_for_a_cut_takes_linear_time(void **state) {
    (void)state;
    json_t *added = json_array();
    struct strbuf text = STRBUF_INIT;
    char name[3000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    json_array_append_new(added, json_pack("{s:s}", "content", name));
    json_array_append_new(added, json_pack("{s:s}", "content", " "));
    json_array_append_new(added, json_pack("{s:s}", "content", "a"));
    while (text.length < LONG_TEXT / 4)
        strbuf_add_text(&text, "a ");
    struct tokenizer *tokenizer = open_with(added);
    struct tokenizer_cut cut = {0};
    double start = clock_seconds();
    assert_int_equal(tokenizer_find_cut(tokenizer, &cut, text.data, text.length), 0);
    assert_true(clock_seconds() - start < MOST_SECONDS);
    strbuf_free(&text);
    tokenizer_close(tokenizer);
}

/* Each blank is a token that takes the blanks after it along, or would, were it not for the other one. */
static void tokens_of_blanks_take_linear_time(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    while (text.length < LONG_TEXT)
        strbuf_add_text(&text, "\t ");
    json_t *added = json_array();
    json_array_append_new(added, json_pack("{s:s, s:b}", "content", "\t", "rstrip", 1));
    json_array_append_new(added, json_pack("{s:s, s:b}", "content", " ", "lstrip", 1));
    struct tokenizer *tokenizer = open_with(added);
    assert_true(count_ids(tokenizer, &text, NULL) >= LONG_TEXT);
    strbuf_free(&text);
    tokenizer_close(tokenizer);
}

static bool is_no_control(const void *context, const void *bytes, size_t length) {
    (void)bytes;
    assert_true(length > 0);
    ++*(int *)context;
    return false;
}

/* The tokens of a chat with very many messages, some of which may not hold special ones. */
static void tokens_in_many_parts_take_linear_time(void **state) {
    (void)state;
    enum { PARTS = 150000 };
    struct strbuf text = STRBUF_INIT;
    struct tokenizer_part *parts = calloc(PARTS, sizeof *parts);
    json_t *added = json_array();
    json_array_append_new(added, json_pack("{s:s, s:b}", "content", "<s>", "special", 1));
    json_array_append_new(added, json_pack("{s:s}", "content", "<t>"));
    size_t special = 0;
    int asked = 0;
    for (size_t i = 0; i < PARTS; i++) {
        bool has_special = i % 5 > 0;
        strbuf_add_text(&text, i % 3 ? "<s>" : i % 2 ? "<t>" : "");
        special += has_special && i % 3;
        special += i % 3 == 0 && i % 2; /* the others are no special ones, and the caller allows them */
        parts[i] = (struct tokenizer_part){.end = text.length, .has_special = has_special};
    }
    struct tokenizer *tokenizer = open_with(added);
    struct token_spans spans = {0};
    const struct tokenizer_parts asked_parts = {parts, PARTS, is_no_control, &asked, &spans};
    size_t names = 0, ids = count_ids(tokenizer, &text, &asked_parts);
    for (size_t i = 0; i < PARTS; i++)
        names += i % 3 && i % 5 == 0;
    assert_true(ids > special + names && ids <= special + 3 * names);
    assert_int_equal(asked, 1); /* once for the token, and not for each place */
    assert_int_equal(spans.count, ids);
    token_spans_free(&spans);
    strbuf_free(&text);
    free(parts);
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_are_those_of_trying_each_token_at_each_place),
        cmocka_unit_test(steps_are_at_most_two_for_each_byte),
        cmocka_unit_test(tokens_with_a_common_beginning_take_linear_time),
        cmocka_unit_test(a_text_without_a_place_for_a_cut_takes_linear_time),
        cmocka_unit_test(tokens_of_blanks_take_linear_time),
        cmocka_unit_test(tokens_in_many_parts_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
