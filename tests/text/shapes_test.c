/* The shapes of tokenizer.json that models have beside GPT-2's, against what `tokenizers` does with them (golden/, made
 * by tools/golden/tokenizer_shapes.py). */
#include "base/base.h"
#include "text/text.h"

#include "support/test.h"

#include <jansson.h>

#define GOLDEN TEST_DATA "/text/golden"

struct shape {
    const char *name;
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    int line; /* of the golden file */
};

static struct shape shape_open(const char *name, const char *directory) {
    struct shape shape = {.name = name};
    test_ok(tokenizer_open(directory, &shape.tokenizer));
    test_ok(tokenizer_encoder_new(shape.tokenizer, &shape.encoder));
    return shape;
}

static void shape_close(struct shape *shape) {
    tokenizer_encoder_free(shape->encoder);
    tokenizer_close(shape->tokenizer);
}

static struct strbuf from_hex(const char *hex) {
    struct strbuf bytes = STRBUF_INIT;
    for (; *hex; hex += 2) {
        unsigned value;
        assert_int_equal(sscanf(hex, "%2x", &value), 1);
        strbuf_add_char(&bytes, (char)value);
    }
    return bytes;
}

static struct token_buffer assert_ids(const struct shape *shape, const struct strbuf *text, unsigned flags,
                                      const json_t *expected) {
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    test_ok(tokenizer_encode(shape->encoder, strbuf_text(text), text->length, flags, &ids));
    bool is_same = json_array_size(expected) == ids.count;
    for (size_t i = 0; is_same && i < ids.count; i++)
        is_same = json_integer_value(json_array_get(expected, i)) == ids.ids[i];
    if (!is_same)
        fail_msg("%s.jsonl: line %d: other ids with flags %u (%zu, expected %zu)", shape->name, shape->line, flags,
                 ids.count, json_array_size(expected));
    return ids;
}

static void assert_decodes(const struct shape *shape, const struct token_buffer *ids, const struct strbuf *expected) {
    struct strbuf text = STRBUF_INIT;
    test_ok(tokenizer_decode(shape->tokenizer, ids->ids, ids->count, &text));
    if (text.length != expected->length || memcmp(strbuf_text(&text), strbuf_text(expected), text.length) != 0)
        fail_msg("%s.jsonl: line %d: decoded to '%s', expected '%s'", shape->name, shape->line, strbuf_text(&text),
                 strbuf_text(expected));
    strbuf_free(&text);
}

static void check_line(const struct shape *shape, const json_t *entry) {
    struct strbuf text = from_hex(json_string_value(json_object_get(entry, "hex")));
    const json_t *ids = json_object_get(entry, "ids"), *special = json_object_get(entry, "special");
    const json_t *whole = json_object_get(entry, "whole"), *decoded = json_object_get(entry, "text");
    struct token_buffer plain = assert_ids(shape, &text, TOKENIZER_PLAIN, ids);
    special = special ? special : ids;
    struct token_buffer allowed = assert_ids(shape, &text, TOKENIZER_ALLOW_SPECIAL, special);
    struct token_buffer framed =
        assert_ids(shape, &text, TOKENIZER_ALLOW_SPECIAL | TOKENIZER_ADD_SPECIAL, whole ? whole : special);
    struct strbuf expected = json_is_string(decoded) ? from_hex(json_string_value(decoded)) : STRBUF_INIT;
    if (!json_is_null(decoded))
        assert_decodes(shape, &framed, decoded ? &expected : &text);
    token_buffer_free(&plain);
    token_buffer_free(&allowed);
    token_buffer_free(&framed);
    strbuf_free(&expected);
    strbuf_free(&text);
}

static void check_golden(const char *name, const char *directory) {
    char path[256];
    struct shape shape = shape_open(name, directory);
    snprintf(path, sizeof path, GOLDEN "/%s.jsonl", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0) {
        json_t *entry = json_loads(line, 0, NULL);
        assert_non_null(entry);
        shape.line++;
        check_line(&shape, entry);
        json_decref(entry);
    }
    assert_true(shape.line > 40);
    free(line);
    fclose(file);
    shape_close(&shape);
}

static const char *const shapes[] = {"qwen2_nfc",
                                     "llama3_framed",
                                     "added",
                                     "o200k",
                                     "tekken",
                                     "smollm",
                                     "steps",
                                     "behaviors",
                                     "llama2",
                                     "mistral",
                                     "metaspace",
                                     "whole",
                                     "gemma",
                                     "lost_bytes",
                                     "ignored_merges",
                                     "flags_of_bytes",
                                     "flags_of_marks",
                                     "flags_of_replaced",
                                     "flags_of_metaspace",
                                     "metaspace_bytes",
                                     "names_of_bytes",
                                     "ignored_characters",
                                     "custom"};

static void ids_equal_those_of_tokenizers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char directory[256];
        snprintf(directory, sizeof directory, GOLDEN "/%s", shapes[i]);
        check_golden(shapes[i], directory);
    }
}

static void what_is_saved_gives_equal_ids(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char golden[256], *directory = test_directory();
        snprintf(golden, sizeof golden, GOLDEN "/%s", shapes[i]);
        struct shape shape = shape_open(shapes[i], golden);
        test_ok(tokenizer_save(shape.tokenizer, directory));
        shape_close(&shape);
        check_golden(shapes[i], directory);
        free(directory);
    }
}

static void only_patterns_without_a_scanner_may_be_slow(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char directory[256];
        snprintf(directory, sizeof directory, GOLDEN "/%s", shapes[i]);
        struct shape shape = shape_open(shapes[i], directory);
        bool has_regex = !strcmp(shapes[i], "steps") || !strcmp(shapes[i], "behaviors") || !strcmp(shapes[i], "custom");
        if (tokenizer_may_be_slow(shape.tokenizer) != has_regex)
            fail_msg("%s: tokenizer_may_be_slow gives %d", shapes[i], !has_regex);
        shape_close(&shape);
    }
}

/* An empty text is what stands around it. */
static void parts_of_a_text_are_framed_once(void **state) {
    (void)state;
    struct shape shape = shape_open("llama3_framed", GOLDEN "/llama3_framed");
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    int32_t begin = tokenizer_find(shape.tokenizer, "<|begin|>", 9),
            end = tokenizer_find(shape.tokenizer, "<|end|>", 7);
    test_ok(tokenizer_encode(shape.encoder, "", 0, TOKENIZER_PLAIN, &ids));
    assert_int_equal(ids.count, 0);
    test_ok(tokenizer_encode(shape.encoder, "a", 1, TOKENIZER_ADD_BEGIN, &ids));
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.ids[0], begin);
    test_ok(tokenizer_encode(shape.encoder, "", 0, TOKENIZER_CONTINUED | TOKENIZER_ADD_END, &ids));
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.ids[2], end);
    assert_int_equal(ids.ids[3], end + 1);
    token_buffer_free(&ids);
    shape_close(&shape);
}

/* A text after a special token is what it is within the whole: a space is put before it, or only before the first. */
static void a_text_behind_a_token_has_the_ids_of_the_whole(void **state) {
    (void)state;
    static const char *const names[] = {"llama2", "mistral", "gemma", "whole"};
    static const char *const texts[] = {"the words", " of",
                                        "\xe2\x96\x81"
                                        "a",
                                        "  in"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char directory[256];
        snprintf(directory, sizeof directory, GOLDEN "/%s", names[i]);
        struct shape shape = shape_open(names[i], directory);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            char whole_text[64];
            struct token_buffer whole = TOKEN_BUFFER_INIT, parts = TOKEN_BUFFER_INIT;
            snprintf(whole_text, sizeof whole_text, "a</s>%s", texts[k]);
            test_ok(tokenizer_encode(shape.encoder, whole_text, strlen(whole_text), TOKENIZER_ALLOW_SPECIAL, &whole));
            test_ok(tokenizer_encode(shape.encoder, "a", 1, TOKENIZER_PLAIN, &parts));
            test_ok(token_buffer_add(&parts, tokenizer_find(shape.tokenizer, "</s>", 4)));
            test_ok(tokenizer_encode(shape.encoder, texts[k], strlen(texts[k]), TOKENIZER_AFTER_TOKEN, &parts));
            assert_int_equal(parts.count, whole.count);
            assert_memory_equal(parts.ids, whole.ids, whole.count * sizeof *whole.ids);
            token_buffer_free(&whole);
            token_buffer_free(&parts);
        }
        shape_close(&shape);
    }
}

/* Writes a file, or removes it where `object` is NULL. */
static void put_object(const char *directory, const char *name, const json_t *object) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (object)
        assert_int_equal(json_dump_file(object, path, 0), 0);
    else
        remove(path);
}

/* named.jsonl is made by tools/golden/named_tokens.py. */
static void tokens_outside_tokenizer_json_are_added_as_transformers_adds_them(void **state) {
    (void)state;
    static const enum tokenizer_file small_files[] = {TOKENIZER_CONFIG, TOKENIZER_SPECIAL, TOKENIZER_ADDED};
    FILE *lines = fopen(GOLDEN "/named.jsonl", "r");
    char line[1 << 14], *directory = test_directory();
    assert_non_null(lines);
    for (int number = 1; fgets(line, sizeof line, lines); number++) {
        char path[512];
        json_t *root = json_loads(line, 0, NULL), *files = json_object_get(root, "files");
        struct strbuf text = STRBUF_INIT;
        snprintf(path, sizeof path, GOLDEN "/%s/tokenizer.json", json_string_value(json_object_get(root, "base")));
        json_t *base = json_load_file(path, 0, NULL);
        put_object(directory, "tokenizer.json", base);
        json_decref(base);
        for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++) {
            const char *name = tokenizer_file_names[small_files[i]];
            put_object(directory, name, json_object_get(files, name));
        }
        struct shape shape = shape_open("named", directory);
        shape.line = number;
        strbuf_add_text(&text, json_string_value(json_object_get(root, "text")));
        assert_int_equal(tokenizer_vocab_size(shape.tokenizer), json_integer_value(json_object_get(root, "size")));
        struct token_buffer ids = assert_ids(&shape, &text, TOKENIZER_ALLOW_SPECIAL, json_object_get(root, "ids"));
        token_buffer_free(&ids);
        strbuf_free(&text);
        shape_close(&shape);
        json_decref(root);
    }
    assert_int_equal(fclose(lines), 0);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_those_of_tokenizers),
        cmocka_unit_test(what_is_saved_gives_equal_ids),
        cmocka_unit_test(only_patterns_without_a_scanner_may_be_slow),
        cmocka_unit_test(parts_of_a_text_are_framed_once),
        cmocka_unit_test(a_text_behind_a_token_has_the_ids_of_the_whole),
        cmocka_unit_test(tokens_outside_tokenizer_json_are_added_as_transformers_adds_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
