/* Rows of chats in tokens, against `tokenizers` (tools/golden/chat_rows.py): the ids of a row are those of the whole
 * rendering, and begin with those of each turn's prompt. */
#include "text/chat.h"

#include "support/test.h"

#define GOLDEN TEST_DATA "/text/golden"

/* The shape's tokenizer with a row's names as special tokens. */
static struct tokenizer *open_tokenizer(const char *directory, const json_t *row) {
    static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    char path[600];
    struct tokenizer *small, *tokenizer;
    json_error_t error;
    json_t *name;
    size_t i;
    snprintf(path, sizeof path, GOLDEN "/%s", json_string_value(json_object_get(row, "shape")));
    test_ok(tokenizer_open(path, &small));
    snprintf(path, sizeof path, GOLDEN "/%s/tokenizer.json", json_string_value(json_object_get(row, "shape")));
    json_t *root = json_load_file(path, 0, &error), *added = json_object_get(root, "added_tokens");
    json_array_foreach(json_object_get(row, "names"), i, name) json_array_append_new(
        added, json_pack("{s:i, s:O, s:b, s:b, s:O, s:O, s:b}", "id", tokenizer_vocab_size(small) + (int)i, "content",
                         name, "special", 1, "normalized", 0, "lstrip", json_object_get(row, "lstrip"), "rstrip",
                         json_object_get(row, "rstrip"), "single_word", 0));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", directory);
    test_ok(file_write_atomic(path, config, sizeof config - 1));
    test_ok(tokenizer_open(directory, &tokenizer));
    tokenizer_close(small);
    json_decref(root);
    return tokenizer;
}

static void check_ids(const json_t *row, const char *what, const struct token_buffer *ids, size_t count,
                      const json_t *expected) {
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx",
             (unsigned long long)digest_bytes(DIGEST_START, ids->ids, count * sizeof *ids->ids));
    if ((json_int_t)count != json_integer_value(json_array_get(expected, 1)) ||
        strcmp(digest, json_string_value(json_array_get(expected, 0))) != 0)
        fail_msg("%s, %s: %s has %zu other ids", json_string_value(json_object_get(row, "template")),
                 json_string_value(json_object_get(row, "shape")), what, count);
}

static void check_row(const char *directory, const json_t *messages, const json_t *row) {
    struct tm now = {
        .tm_year = 126, .tm_mon = 2, .tm_mday = 1, .tm_hour = 13, .tm_min = 5, .tm_sec = 9, .tm_isdst = -1};
    struct tokenizer *tokenizer = open_tokenizer(directory, row);
    struct chat_request request = {.tokenizer = tokenizer, .eos = tokenizer_eos_id(tokenizer), .now = &now};
    struct token_buffer ids = TOKEN_BUFFER_INIT, prompt = TOKEN_BUFFER_INIT;
    struct tokenizer_encoder *encoder;
    struct chat_template *template;
    struct chat_pieces pieces = {0};
    struct strbuf flags = STRBUF_INIT, text = STRBUF_INIT;
    const json_t *whole = json_object_get(row, "whole"), *prompts = json_object_get(row, "prompts");
    char path[600];
    mktime(&now);
    snprintf(path, sizeof path, GOLDEN "/templates/%s.jinja", json_string_value(json_object_get(row, "template")));
    test_ok(file_read(path, 1 << 20, &text));
    test_ok(chat_template_open(text.data, text.length, path, &template));
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    request.messages = messages;
    test_ok(chat_render_row(template, &request, CHAT_ANSWERS_ALL, &pieces));
    test_ok(chat_pieces_encode(&pieces, encoder, request.eos, &ids, &flags));
    assert_int_equal(flags.length, ids.count);
    size_t last = ids.count, own = (size_t)json_integer_value(json_array_get(whole, 1)); /* without an added end */
    assert_true(last == own || last == own + 1);
    check_ids(row, "the row", &ids, own, whole);
    while (!(flags.data[last - 1] & CHAT_ANSWER)) /* white space after the end */
        last--;
    assert_true(tokenizer_is_special(tokenizer, ids.ids[last - 1]));
    for (size_t turn = 0; turn < 2; turn++) {
        json_t *part = json_array(), *expected = json_array_get(prompts, turn);
        size_t common = (size_t)json_integer_value(json_array_get(expected, 2));
        for (size_t i = 0; i <= 2 * turn; i++)
            json_array_append(part, json_array_get(messages, i));
        request.messages = part;
        request.asks = true;
        chat_pieces_clear(&pieces);
        prompt.count = 0;
        test_ok(chat_render(template, &request, &pieces));
        test_ok(chat_pieces_encode(&pieces, encoder, request.eos, &prompt, NULL));
        check_ids(row, "a prompt", &prompt, prompt.count, expected);
        assert_memory_equal(ids.ids, prompt.ids, common * sizeof *ids.ids);
        /* white space that a token before it includes */
        bool is_moved = json_is_true(json_object_get(row, "lstrip")) && common < prompt.count;
        if (!is_moved && (flags.data[common - 1] & CHAT_ANSWER || !(flags.data[common] & CHAT_ANSWER)))
            fail_msg("%s, %s: the answer of turn %zu does not begin after its prompt",
                     json_string_value(json_object_get(row, "template")),
                     json_string_value(json_object_get(row, "shape")), turn + 1);
        json_decref(part);
    }
    chat_pieces_free(&pieces);
    strbuf_free(&flags);
    strbuf_free(&text);
    token_buffer_free(&ids);
    token_buffer_free(&prompt);
    tokenizer_encoder_free(encoder);
    tokenizer_close(tokenizer);
    chat_template_close(template);
}

static void rows_begin_with_their_prompts(void **state) {
    json_error_t error;
    json_t *golden = json_load_file(GOLDEN "/templates/rows.json", 0, &error), *row;
    size_t i;
    (void)state;
    assert_non_null(golden);
    assert_true(json_array_size(json_object_get(golden, "rows")) > 120);
    char *directory = test_directory();
    json_array_foreach(json_object_get(golden, "rows"), i, row)
        check_row(directory, json_object_get(golden, "messages"), row);
    free(directory);
    json_decref(golden);
}

/* ---- spans ---- */

/* Spans go forward, and a token's bytes are those of its span. */
static void spans_are_the_bytes_of_tokens(void **state) {
    static const char *const shapes[] = {"qwen2",     "llama3",         "qwen2_nfc",          "llama2", "mistral",
                                         "metaspace", "flags_of_marks", "flags_of_metaspace", "gemma",  "lost_bytes"};
    static const char text[] = "  A p\xc3\xa9"
                               "ar.\n\n caf"
                               "e\xcc\x81 \xe2\x96\x81 x\xe8\xa7\x89 12  end";
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct tokenizer_part part = {sizeof text - 1, true};
        struct token_spans spans = {0};
        struct tokenizer_parts parts = {.items = &part, .count = 1, .spans = &spans};
        struct token_buffer ids = TOKEN_BUFFER_INIT;
        struct tokenizer *tokenizer;
        struct tokenizer_encoder *encoder;
        char path[600];
        size_t at = 0, equal = 0;
        snprintf(path, sizeof path, GOLDEN "/%s", shapes[s]);
        test_ok(tokenizer_open(path, &tokenizer));
        test_ok(tokenizer_encoder_new(tokenizer, &encoder));
        test_ok(tokenizer_encode_parts(encoder, text, sizeof text - 1, TOKENIZER_PLAIN, &parts, &ids));
        assert_int_equal(spans.count, ids.count);
        for (size_t i = 0; i < ids.count; i++) {
            size_t length;
            const unsigned char *bytes = tokenizer_token_bytes(tokenizer, ids.ids[i], &length);
            struct token_span span = spans.items[i];
            assert_true(at <= span.begin && span.begin <= span.end && span.end < sizeof text);
            equal += span.end - span.begin == length && !memcmp(text + span.begin, bytes, length);
            at = span.end;
        }
        assert_int_equal(at, sizeof text - 1);
        if (3 * equal <= ids.count)
            fail_msg("%s: %zu of %zu", shapes[s], equal, ids.count);
        token_spans_free(&spans);
        token_buffer_free(&ids);
        tokenizer_encoder_free(encoder);
        tokenizer_close(tokenizer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_begin_with_their_prompts),
        cmocka_unit_test(spans_are_the_bytes_of_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
