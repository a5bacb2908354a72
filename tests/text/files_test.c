/* Tokenizer directories. Written ones open again with the same ids. Damaged, contradictory or unsupported ones are
 * refused with the place and the name. */
#include "base/base.h"
#include "text/text.h"

#include "support/test.h"

#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define GOLDEN TEST_DATA "/text/golden"
#define SMALL  GOLDEN "/small"

static void write_file(const char *directory, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    test_ok(file_write_atomic(path, text, strlen(text)));
}

static void remove_file(const char *directory, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_int_equal(remove(path), 0);
}

static struct tokenizer *open_ok(const char *directory) {
    struct tokenizer *tokenizer = NULL;
    test_ok(tokenizer_open(directory, &tokenizer));
    return tokenizer;
}

static void open_fails(const char *directory, int status, const char *part) {
    struct tokenizer *tokenizer = NULL;
    test_fails(tokenizer_open(directory, &tokenizer), status, part);
    assert_null(tokenizer);
}

static struct token_buffer encode(const struct tokenizer *tokenizer, const char *text, unsigned flags) {
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct tokenizer_encoder *encoder;
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    test_ok(tokenizer_encode(encoder, text, strlen(text), flags, &ids));
    tokenizer_encoder_free(encoder);
    return ids;
}

/* Ids of the text as words: "1 2 3". */
static void assert_encodes(const struct tokenizer *tokenizer, const char *text, unsigned flags, const char *expected) {
    struct token_buffer ids = encode(tokenizer, text, flags);
    struct strbuf words = STRBUF_INIT;
    for (size_t i = 0; i < ids.count; i++)
        strbuf_format(&words, i > 0 ? " %d" : "%d", ids.ids[i]);
    assert_string_equal(strbuf_text(&words), expected);
    strbuf_free(&words);
    token_buffer_free(&ids);
}

static void assert_same_ids(const struct tokenizer *a, const struct tokenizer *b) {
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(GOLDEN "/corpus.txt", 1 << 20, &text));
    strbuf_add_text(&text, " <|endoftext|> the<|endoftext|>");
    for (unsigned flags = 0; flags < 2; flags++) {
        struct token_buffer x = encode(a, text.data, flags), y = encode(b, text.data, flags);
        assert_int_equal(x.count, y.count);
        assert_memory_equal(x.ids, y.ids, x.count * sizeof *x.ids);
        token_buffer_free(&x);
        token_buffer_free(&y);
    }
    strbuf_free(&text);
}

static void assert_same_tokens(const struct tokenizer *a, const struct tokenizer *b) {
    assert_int_equal(tokenizer_vocab_size(a), tokenizer_vocab_size(b));
    assert_int_equal(tokenizer_eos_id(a), tokenizer_eos_id(b));
    for (int32_t id = 0; id < tokenizer_vocab_size(a); id++) {
        size_t x_length, y_length;
        const unsigned char *x = tokenizer_token_bytes(a, id, &x_length), *y = tokenizer_token_bytes(b, id, &y_length);
        assert_int_equal(x_length, y_length);
        assert_memory_equal(x, y, x_length);
        assert_int_equal(tokenizer_is_special(a, id), tokenizer_is_special(b, id));
    }
}

static void what_is_saved_opens_with_equal_ids(void **state) {
    (void)state;
    char *directory = test_directory();
    struct tokenizer *first = open_ok(SMALL);
    test_ok(tokenizer_save(first, directory));
    struct tokenizer *from_json = open_ok(directory);
    assert_same_tokens(first, from_json);
    assert_same_ids(first, from_json);
    remove_file(directory, "tokenizer.json");
    struct tokenizer *from_merges = open_ok(directory);
    assert_same_tokens(first, from_merges);
    assert_same_ids(first, from_merges);
    remove_file(directory, "tokenizer_config.json"); /* <|endoftext|> is known by its name */
    struct tokenizer *bare = open_ok(directory);
    assert_same_tokens(first, bare);
    tokenizer_close(first);
    tokenizer_close(from_json);
    tokenizer_close(from_merges);
    tokenizer_close(bare);
    free(directory);
}

/* tokenizer.json alone has a pattern that is not GPT-2's, and `ignore_merges`. */
static void a_pattern_is_saved(void **state) {
    (void)state;
    static const char *const names[] = {GOLDEN "/llama3", GOLDEN "/qwen2"};
    for (size_t i = 0; i < 2; i++) {
        char *directory = test_directory();
        struct tokenizer *first = open_ok(names[i]);
        test_ok(tokenizer_save(first, directory));
        struct tokenizer *again = open_ok(directory);
        assert_same_tokens(first, again);
        assert_same_ids(first, again);
        tokenizer_close(first);
        tokenizer_close(again);
        free(directory);
    }
}

/* The golden tokenizer.json with changes. */
static json_t *load_small(void) {
    json_t *root = json_load_file(SMALL "/tokenizer.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static void write_json(const char *directory, json_t *root) {
    char *text = json_dumps(root, JSON_ENSURE_ASCII);
    write_file(directory, "tokenizer.json", text);
    free(text);
    json_decref(root);
}

/* Sets "a.b.c" to a JSON text; "" removes the key. */
static void set(json_t *root, const char *path, const char *value) {
    char key[128];
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        root = json_object_get(root, key);
        assert_non_null(root);
    }
    if (!*value) {
        assert_int_equal(json_object_del(root, path), 0);
        return;
    }
    json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(parsed);
    assert_int_equal(json_object_set_new(root, path, parsed), 0);
}

#define GPT2_PATTERN                                                                                                   \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT(pattern, behavior, more)                                                                                 \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern           \
    "\"}, \"behavior\": \"" behavior "\", \"invert\": false}, {\"type\": \"ByteLevel\", \"use_regex\": false" more     \
    "}]}"

#define MARK              "\xe2\x96\x81"
#define REPLACE(from, to) "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" from "\"}, \"content\": \"" to "\"}"
#define PREPEND           "{\"type\": \"Prepend\", \"prepend\": \"" MARK "\"}"
#define METASPACE(mark, scheme)                                                                                        \
    "{\"type\": \"Metaspace\", \"replacement\": \"" mark "\", \"prepend_scheme\": \"" scheme "\"}"
#define TEXT_A  "{\"Sequence\": {\"id\": \"A\"}}"
#define TOKEN_S "{\"SpecialToken\": {\"id\": \"s\"}}"
#define TEMPLATE(single, tokens)                                                                                       \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single "], \"special_tokens\": {" tokens "}}"

static void settings_that_change_the_ids_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *path, *value;
        int status;
        const char *part;
    } cases[] = {
        {"normalizer", "{\"type\": \"NFKC\"}", STATUS_UNSUPPORTED, "normalizer 'NFKC'"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Lowercase\"}]}",
         STATUS_UNSUPPORTED, "normalizer 'Lowercase'"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Sequence\", \"normalizers\": []}]}",
         STATUS_UNSUPPORTED, "normalizer 'Sequence'"},
        {"normalizer", "{\"type\": \"Sequence\"}", STATUS_UNSUPPORTED, "normalizer 'Sequence without normalizers'"},
        {"pre_tokenizer", "null", STATUS_UNSUPPORTED, "pre_tokenizer 'null'"},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", STATUS_UNSUPPORTED, "pre_tokenizer 'Whitespace'"},
        {"pre_tokenizer.use_regex", "1", STATUS_INVALID, "'use_regex' is neither"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", STATUS_UNSUPPORTED, "without steps"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}]}", STATUS_UNSUPPORTED,
         "pre_tokenizer 'Digits'"},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Punctuation\"}, {\"type\": \"ByteLevel\"}]}",
         STATUS_UNSUPPORTED, "pre_tokenizer 'Punctuation'"},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": 1}, {\"type\": "
         "\"ByteLevel\"}]}",
         STATUS_INVALID, "'individual_digits' is neither"},
        {"pre_tokenizer", SPLIT(GPT2_PATTERN, "Joined", ", \"add_prefix_space\": false"), STATUS_UNSUPPORTED,
         "pre_tokenizer.behavior 'Joined'"},
        {"pre_tokenizer", SPLIT(GPT2_PATTERN, "Isolated", ""), STATUS_UNSUPPORTED, "add_prefix_space"},
        {"pre_tokenizer", SPLIT("a(b", "Isolated", ""), STATUS_INVALID, "'a(b' is not a regular expression: missing"},
        {"pre_tokenizer", SPLIT("\\\\p{Nope}", "Isolated", ""), STATUS_INVALID,
         "'\\p{Nope}' is not a regular expression"},
        {"pre_tokenizer", SPLIT("\\\\bx", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '\\b'"},
        {"pre_tokenizer", SPLIT("[\\\\S]", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '\\S'"},
        {"pre_tokenizer", SPLIT("[a[b]]", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '['"},
        {"pre_tokenizer", SPLIT("[a&&b]", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '&&'"},
        {"pre_tokenizer", SPLIT("[]a]", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '[]'"},
        {"pre_tokenizer", SPLIT("(?m:a)", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '(?m'"},
        {"pre_tokenizer", SPLIT("a{1,3}+", "Isolated", ""), STATUS_UNSUPPORTED, "pattern with '}+'"},
        {"pre_tokenizer", SPLIT("a\\\\", "Isolated", ""), STATUS_INVALID, "ends with a backslash"},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": "
         "{}}, "
         "{\"type\": \"ByteLevel\"}]}",
         STATUS_UNSUPPORTED, "neither Regex nor String"},
        {"post_processor", "{\"type\": \"BertProcessing\"}", STATUS_UNSUPPORTED, "post_processor 'BertProcessing'"},
        {"post_processor", TEMPLATE(TEXT_A ", {\"SpecialToken\": {}}", ""), STATUS_INVALID,
         "the template's token 'without an id' has no 'ids'"},
        {"post_processor", TEMPLATE(TOKEN_S ", " TEXT_A, ""), STATUS_INVALID, "the template's token 's' has no 'ids'"},
        {"post_processor", TEMPLATE(TOKEN_S ", " TEXT_A, "\"s\": {\"ids\": [-1]}"), STATUS_INVALID,
         "not all token ids"},
        {"post_processor", TEMPLATE(TOKEN_S ", " TEXT_A, "\"s\": {\"ids\": [\"1\"]}"), STATUS_INVALID,
         "not all token ids"},
        {"post_processor", TEMPLATE(TOKEN_S ", " TEXT_A, "\"s\": {\"ids\": [900]}"), STATUS_INVALID,
         "post_processor adds the token id 900, which is not in the vocabulary (0 to 899)"},
        {"post_processor", TEMPLATE(TOKEN_S, "\"s\": {\"ids\": [1]}"), STATUS_UNSUPPORTED, "without a text"},
        {"post_processor", TEMPLATE(TEXT_A ", " TEXT_A, ""), STATUS_UNSUPPORTED, "TemplateProcessing of several texts"},
        {"post_processor", TEMPLATE("{\"Sequence\": {\"id\": \"B\"}}", ""), STATUS_UNSUPPORTED, "of several texts"},
        {"post_processor",
         "{\"type\": \"Sequence\", \"processors\": [" TEMPLATE(TOKEN_S ", " TEXT_A,
                                                               "\"s\": {\"ids\": [1]}") ", " TEMPLATE(TEXT_A, "") "]}",
         STATUS_UNSUPPORTED, "two TemplateProcessing"},
        {"decoder", "{\"type\": \"WordPiece\"}", STATUS_UNSUPPORTED, "decoder 'WordPiece'"},
        {"model.type", "\"Unigram\"", STATUS_UNSUPPORTED,
         "model.type 'Unigram' is not supported: only BPE is, and nothing else can be turned into it"},
        {"model.type", "\"WordPiece\"", STATUS_UNSUPPORTED, "model.type 'WordPiece'"},
        {"model.dropout", "0.1", STATUS_UNSUPPORTED, "model.dropout"},
        {"model.byte_fallback", "1", STATUS_INVALID, "'byte_fallback' is neither"},
        {"model.unk_token", "1", STATUS_INVALID, "'model.unk_token' is neither"},
        {"model.continuing_subword_prefix", "\"##\"", STATUS_UNSUPPORTED, "model.continuing_subword_prefix '##'"},
        {"model.end_of_word_suffix", "\"</w>\"", STATUS_UNSUPPORTED, "model.end_of_word_suffix '</w>'"},
        {"model", "[]", STATUS_INVALID, "no object 'model'"},
        {"model.vocab", "[]", STATUS_INVALID, "the vocabulary is not an object"},
        {"model.vocab", "{}", STATUS_INVALID, "merge 1: "},
        {"model.vocab.a", "", STATUS_INVALID, "899"},
        {"model.vocab.a", "\"5\"", STATUS_INVALID, "the id of token 'a' is not an integer"},
        {"model.vocab.a", "5", STATUS_INVALID, "the id 5 of another token"},
        {"model.vocab.a", "-1", STATUS_INVALID, "'a' has the id -1"},
        {"model.vocab.a", "123456789012", STATUS_INVALID, "'a' has the id 123456789012"},
        {"model.merges", "{}", STATUS_INVALID, "'model.merges' is not an array"},
        {"model.merges", "[\"t h\", \"th\"]", STATUS_INVALID, "merge 2: 'th' is not two tokens"},
        {"model.merges", "[\"t h e\"]", STATUS_INVALID, "merge 1: 't h e' is not two tokens"},
        {"model.merges", "[[\"t\"]]", STATUS_INVALID, "merge 1: neither a string nor a pair"},
        {"model.merges", "[[\"t\", 5]]", STATUS_INVALID, "merge 1: neither a string nor a pair"},
        {"model.merges", "[\"Q q\"]", STATUS_INVALID, "merge 1: 'Qq' is not a token"},
        {"model.merges", "[[\"t\", \"h \"]]", STATUS_INVALID, "merge 1: 'h ' is not a token"},
        {"model.merges", "[[\"\", \"h\"]]", STATUS_INVALID, "merge 1: '' is not a token"},
        {"model.merges", "[\"t h\", \"h e\", \"t h\"]", STATUS_INVALID, "merge 3 repeats merge 1"},
        {"added_tokens", "{}", STATUS_INVALID, "'added_tokens' is not an array"},
        {"added_tokens", "[{\"id\": 0}]", STATUS_INVALID, "added token 1 has no 'content'"},
        {"added_tokens", "[{\"content\": \"x y\"}]", STATUS_INVALID, "the id of token 'x y' is not an integer"},
        {"added_tokens", "[{\"id\": 3, \"content\": \"x y\"}]", STATUS_INVALID, "the id 3 of another token"},
        {"added_tokens", "[{\"id\": 902, \"content\": \"x y\"}]", STATUS_INVALID, "'x y' has the id 902"},
        {"added_tokens", "[{\"id\": 3, \"content\": \"a\"}]", STATUS_INVALID, "in the vocabulary"},
        {"added_tokens", "[{\"id\": 900, \"content\": \"\"}]", STATUS_INVALID, "is empty"},
        {"added_tokens", "[{\"id\": 900, \"content\": \"x y\", \"lstrip\": 1}]", STATUS_INVALID,
         "added token 'x y': 'lstrip' is neither"},
    };
    char *directory = test_directory();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = load_small();
        set(root, cases[i].path, cases[i].value);
        write_json(directory, root);
        open_fails(directory, cases[i].status, cases[i].part);
        open_fails(directory, cases[i].status, "/tokenizer.json: "); /* and the file is named */
    }
    free(directory);
}

static void settings_that_mean_the_same_are_taken(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"post_processor", "{\"type\": \"ByteLevel\", \"trim_offsets\": false}"},
        {"post_processor", TEMPLATE(TEXT_A, "")},
        {"post_processor", "{\"type\": \"Sequence\", \"processors\": []}"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": []}"},
        {"normalizer", "{\"type\": \"NFC\"}"},
        {"decoder", "null"},
        {"model.dropout", "0.0"},
        {"model.byte_fallback", "true"},
        {"model.fuse_unk", "true"},
        {"model.unk_token", "\"<|endoftext|>\""},
        {"model.type", ""},
        {"pre_tokenizer", SPLIT(GPT2_PATTERN, "Isolated", ", \"add_prefix_space\": false")},
        {"pre_tokenizer.use_regex", ""},
        {"added_tokens", "[]"},
        {"truncation", "{\"direction\": \"Right\", \"max_length\": 2, \"strategy\": \"LongestFirst\", \"stride\": 0}"},
        {"padding", "{\"strategy\": {\"Fixed\": 64}, \"pad_id\": 0, \"pad_token\": \"<|endoftext|>\"}"},
    };
    struct tokenizer *small = open_ok(SMALL);
    char *directory = test_directory();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = load_small();
        set(root, cases[i][0], cases[i][1]);
        write_json(directory, root);
        struct tokenizer *tokenizer = open_ok(directory);
        struct token_buffer a = encode(small, "The cat's 12 mats.", 0), b = encode(tokenizer, "The cat's 12 mats.", 0);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
        token_buffer_free(&a);
        token_buffer_free(&b);
        tokenizer_close(tokenizer);
    }
    tokenizer_close(small);
    free(directory);
}

/* Settings that only a tokenizer whose words begin as characters may have, and settings that it may not have. */
static void settings_of_characters_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *name, *path, *value;
        int status;
        const char *part;
    } cases[] = {
        {"small", "normalizer", REPLACE(" ", MARK), STATUS_UNSUPPORTED, "pre_tokenizer 'ByteLevel'"},
        {"small", "normalizer", PREPEND, STATUS_UNSUPPORTED, "normalizer 'Prepend without Replace'"},
        {"small", "decoder", "{\"type\": \"Fuse\"}", STATUS_UNSUPPORTED, "decoder 'Fuse'"},
        {"small", "pre_tokenizer", METASPACE(MARK, "first"), STATUS_UNSUPPORTED, "decoder 'ByteLevel'"},
        {"llama2", "normalizer", REPLACE("a", "b"), STATUS_UNSUPPORTED, "normalizer 'Replace'"},
        {"llama2", "normalizer", "{\"type\": \"Prepend\", \"prepend\": \"x\"}", STATUS_UNSUPPORTED,
         "normalizer 'Prepend'"},
        {"llama2", "normalizer", "{\"type\": \"Precompiled\"}", STATUS_UNSUPPORTED, "normalizer 'Precompiled'"},
        {"llama2", "normalizer", "null", STATUS_UNSUPPORTED, "pre_tokenizer 'null'"},
        {"llama2", "pre_tokenizer", METASPACE(MARK, "always"), STATUS_UNSUPPORTED, "Metaspace after Prepend"},
        {"llama2", "decoder", "{\"type\": \"ByteLevel\"}", STATUS_UNSUPPORTED, "decoder 'ByteLevel'"},
        {"llama2", "decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}",
         STATUS_UNSUPPORTED, "decoder 'Strip of anything but"},
        {"mistral", "pre_tokenizer", METASPACE("_", "first"), STATUS_UNSUPPORTED, "replacement '_'"},
        {"mistral", "pre_tokenizer", METASPACE(MARK, "last"), STATUS_UNSUPPORTED, "prepend_scheme 'last'"},
        {"mistral", "pre_tokenizer.add_prefix_space", "false", STATUS_INVALID, "add_prefix_space is false, and"},
        {"mistral", "pre_tokenizer.split", "0", STATUS_INVALID, "'split' is neither"},
        {"mistral", "model.merges", "[\"<0x41> <0x42>\"]", STATUS_INVALID, "merge 1: '<0x41>' is not a token"},
        {"mistral", "added_tokens", "[{\"id\": 3, \"content\": \"<0x00>\"}]", STATUS_UNSUPPORTED,
         "added token '<0x00>' is the token of a byte"},
        {"mistral", "model.byte_fallback", "false", STATUS_INVALID, ""},
        {"metaspace", "model.unk_token", "null", STATUS_INVALID, "a character that is no token would be lost"},
        {"metaspace", "model.unk_token", "\"<nope>\"", STATUS_INVALID, "a character that is no token would be lost"},
        {"lost_bytes", "model.byte_fallback", "true", STATUS_INVALID, "byte-level BPE needs all 256"},
    };
    char *directory = test_directory();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        snprintf(path, sizeof path, GOLDEN "/%s/tokenizer.json", cases[i].name);
        json_t *root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        set(root, cases[i].path, cases[i].value);
        write_json(directory, root);
        if (*cases[i].part)
            open_fails(directory, cases[i].status, cases[i].part);
        else
            tokenizer_close(open_ok(directory));
    }
    write_file(
        directory, "tokenizer.json",
        "{\"pre_tokenizer\": " METASPACE(MARK, "first") ", \"model\": {\"unk_token\": \"u\", \"vocab\": {\"u\": 0, "
                                                        "\"a\": 1}, \"merges\": []}}");
    open_fails(directory, STATUS_INVALID, "no token is '" MARK "', which stands for a space");
    free(directory);
}

/* A pattern that goes back and back ends with a line, and the tokenizer is none the worse. */
static void a_pattern_that_takes_too_long_is_named(void **state) {
    (void)state;
    json_t *root = load_small();
    set(root, "pre_tokenizer", SPLIT("(?:a+)+[bc]", "Isolated", ", \"add_prefix_space\": false"));
    char *directory = test_directory(), text[65] = "";
    write_json(directory, root);
    struct tokenizer *tokenizer = open_ok(directory);
    struct tokenizer_encoder *encoder;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    memset(text, 'a', sizeof text - 1);
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    test_ok(tokenizer_encode(encoder, "a", 1, TOKENIZER_PLAIN, &ids));
    test_fails(tokenizer_encode(encoder, text, 64, TOKENIZER_PLAIN, &ids), STATUS_INVALID,
               "the tokenizer's pattern '(?:a+)+[bc]' takes more than 16809216 steps in this text");
    assert_int_equal(ids.count, 1);
    test_ok(tokenizer_encode(encoder, "aab", 3, TOKENIZER_PLAIN, &ids));
    token_buffer_free(&ids);
    tokenizer_encoder_free(encoder);
    tokenizer_close(tokenizer);
    free(directory);
}

static void added_tokens_are_cut_out_the_longest_first(void **state) {
    (void)state;
    json_t *root = load_small();
    set(root, "added_tokens",
        "[{\"id\": 0, \"content\": \"<|endoftext|>\", \"special\": true},"
        " {\"id\": 900, \"content\": \"<tool>\", \"special\": false},"
        " {\"id\": 901, \"content\": \"<tool>s\", \"special\": false},"
        " {\"id\": 902, \"content\": \"\\u00e9 \\u4e2d\", \"special\": true}]");
    char *directory = test_directory(), *again = test_directory();
    write_json(directory, root);
    struct tokenizer *tokenizer = open_ok(directory);
    test_ok(tokenizer_save(tokenizer, again));
    tokenizer_close(tokenizer);
    tokenizer = open_ok(again);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 903);
    assert_encodes(tokenizer, "<tool><tool>s", TOKENIZER_PLAIN, "900 901");
    assert_encodes(tokenizer, "\u00e9 \u4e2d<|endoftext|>", TOKENIZER_ALLOW_SPECIAL, "902 0");
    struct strbuf text = STRBUF_INIT;
    test_ok(tokenizer_decode(tokenizer, (int32_t[]){902, 901}, 2, &text));
    assert_string_equal(strbuf_text(&text), "\u00e9 \u4e2d<tool>s");
    strbuf_free(&text);
    tokenizer_close(tokenizer);
    free(directory);
    free(again);
}

/* A special token that is a word is one only where it is asked for. */
static void a_word_that_is_a_token_is_that_token(void **state) {
    (void)state;
    json_t *root = load_small();
    set(root, "model.ignore_merges", "true");
    set(root, "model.vocab.zyzzyva", "900");
    set(root, "added_tokens",
        "[{\"id\": 0, \"content\": \"<|endoftext|>\", \"special\": true},"
        " {\"id\": 901, \"content\": \"xyzzy\", \"special\": true}]");
    char *directory = test_directory();
    write_json(directory, root);
    struct tokenizer *tokenizer = open_ok(directory), *small = open_ok(SMALL);
    assert_encodes(tokenizer, "zyzzyva", TOKENIZER_PLAIN, "900");
    assert_encodes(tokenizer, "xyzzy", TOKENIZER_ALLOW_SPECIAL, "901");
    static const char *const merged[] = {"xyzzy", "zyzzyvas", " zyzzyva"};
    for (size_t i = 0; i < sizeof merged / sizeof *merged; i++) {
        struct token_buffer a = encode(tokenizer, merged[i], TOKENIZER_PLAIN), b = encode(small, merged[i], 0);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
        token_buffer_free(&a);
        token_buffer_free(&b);
    }
    tokenizer_close(tokenizer);
    tokenizer_close(small);
    free(directory);
}

static void a_prefix_space_is_put_before_each_section(void **state) {
    (void)state;
    json_t *root = load_small();
    set(root, "pre_tokenizer.add_prefix_space", "true");
    char *directory = test_directory();
    write_json(directory, root);
    struct tokenizer *with = open_ok(directory), *without = open_ok(SMALL);
    static const char *const pairs[][2] = {
        {"the", " the"}, {" the", " the"}, {"", ""}, {"\nthe", " \nthe"}, {"a<|endoftext|>b", " a<|endoftext|> b"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct token_buffer a = encode(with, pairs[i][0], TOKENIZER_ALLOW_SPECIAL);
        struct token_buffer b = encode(without, pairs[i][1], TOKENIZER_ALLOW_SPECIAL);
        assert_int_equal(a.count, b.count);
        if (a.count > 0)
            assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
        token_buffer_free(&a);
        token_buffer_free(&b);
    }
    tokenizer_close(with);
    tokenizer_close(without);
    free(directory);
}

/* Makes a directory hold the small tokenizer as vocab.json and merges.txt alone. */
static void write_merges(const char *directory) {
    struct tokenizer *small = open_ok(SMALL);
    test_ok(tokenizer_save(small, directory));
    tokenizer_close(small);
    remove_file(directory, "tokenizer.json");
    remove_file(directory, "tokenizer_config.json");
}

static void files_beside_merges_name_the_special_tokens(void **state) {
    (void)state;
    char *directory = test_directory();
    write_merges(directory);
    write_file(directory, "added_tokens.json", "{\"<tool>\": 900, \"<|pad|>\": 901}");
    write_file(directory, "special_tokens_map.json",
               "{\"pad_token\": {\"content\": \"<|pad|>\"}, \"eos_token\": \"a\"}");
    /* `transformers` writes this number. */
    write_file(directory, "tokenizer_config.json",
               "{\"model_max_length\": 1000000000000000019884624838656,"
               " \"added_tokens_decoder\": {\"902\": {\"content\": \"<|x|>\", \"special\": true, \"lstrip\": false}}}");
    struct tokenizer *tokenizer = open_ok(directory);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 903);
    assert_int_equal(tokenizer_eos_id(tokenizer), tokenizer_find(tokenizer, "a", 1));
    assert_true(tokenizer_is_special(tokenizer, tokenizer_eos_id(tokenizer)));
    assert_false(tokenizer_is_special(tokenizer, 900));
    assert_true(tokenizer_is_special(tokenizer, 901));
    assert_true(tokenizer_is_special(tokenizer, 902));
    assert_encodes(tokenizer, "<tool><|pad|><|x|>", TOKENIZER_ALLOW_SPECIAL, "900 901 902");
    tokenizer_close(tokenizer);
    free(directory);
}

/* A tokenizer.json has its post-processor; beside a vocab.json the configuration asks for the two tokens. */
static void files_beside_merges_ask_for_tokens_around_a_text(void **state) {
    (void)state;
    char *directory = test_directory(), *again = test_directory();
    write_merges(directory);
    write_file(directory, "added_tokens.json", "{\"<s>\": 900}");
    write_file(directory, "tokenizer_config.json",
               "{\"bos_token\": \"<s>\", \"add_bos_token\": true, \"add_eos_token\": true}");
    struct tokenizer *tokenizer = open_ok(directory), *small = open_ok(SMALL);
    assert_encodes(tokenizer, "", TOKENIZER_ADD_SPECIAL, "900 0");
    test_ok(tokenizer_save(tokenizer, again));
    tokenizer_close(tokenizer);
    tokenizer = open_ok(again);
    assert_encodes(tokenizer, "", TOKENIZER_ADD_SPECIAL, "900 0");
    assert_encodes(tokenizer, "a", TOKENIZER_PLAIN, "65");
    test_ok(tokenizer_save(small, again));
    write_file(again, "tokenizer_config.json", "{\"add_eos_token\": true}");
    tokenizer_close(tokenizer);
    tokenizer = open_ok(again);
    assert_encodes(tokenizer, "", TOKENIZER_ADD_SPECIAL, "");
    tokenizer_close(tokenizer);
    tokenizer_close(small);
    free(directory);
    free(again);
}

static void damaged_files_are_refused_with_their_place(void **state) {
    (void)state;
    static const struct {
        const char *name, *text;
        int status;
        const char *part;
    } cases[] = {
        {"vocab.json", "{\"a\": 0,\n \"b\" 1}", STATUS_INVALID, "vocab.json: line 2, column 6"},
        {"vocab.json", "{\"a\": 0, \"a\": 1}", STATUS_INVALID, "vocab.json: line 1"},
        {"vocab.json", "[1]", STATUS_INVALID, "vocab.json: not a JSON object"},
        {"vocab.json", "", STATUS_INVALID, "vocab.json: line 1"},
        {"vocab.json", "{}", STATUS_INVALID, "vocab.json: the vocabulary is empty"},
        {"vocab.json", "{\"a\": 0, \"b\": 1}", STATUS_INVALID, "merges.txt: line 2: "},
        {"vocab.json", "{\"a\": 0, \"b\": 2}", STATUS_INVALID, "'b' has the id 2: the ids of 2 tokens must be 0 to 1"},
        {"vocab.json", "{\"a\": 0, \"\": 1}", STATUS_INVALID, "vocab.json: the token with the id 1 is empty"},
        {"merges.txt", "#version: 0.2\nt h\nthe\n", STATUS_INVALID, "merges.txt: line 3: 'the' is not two tokens"},
        {"merges.txt", "t h\n\nQ q\n", STATUS_INVALID, "merges.txt: line 3: 'Qq' is not a token"},
        {"merges.txt", "t h\n#version: 0.2\n", STATUS_INVALID, "merges.txt: line 2: '#version:' is not a token"},
        {"merges.txt", "t  h\n", STATUS_INVALID, "merges.txt: line 1"},
        {"merges.txt", "t h\xff\n", STATUS_INVALID, "merges.txt: line 1"},
        {"merges.txt", "t h\nt h\n", STATUS_INVALID, "merges.txt: merge 2 repeats merge 1"},
        {"added_tokens.json", "{\"<tool>\": 903}", STATUS_INVALID, "added_tokens.json: token '<tool>' has the id 903"},
        {"added_tokens.json", "{\"<tool>\": 17}", STATUS_INVALID,
         "added_tokens.json: added token '<tool>' has the id 17"},
        {"tokenizer_config.json", "{\"eos_token\": \"</s>\"}", STATUS_INVALID, "eos_token '</s>' is not a token"},
        {"tokenizer_config.json", "{\"eos_token\": 5}", STATUS_INVALID, "tokenizer_config.json: 'eos_token'"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {}}}", STATUS_INVALID, "'x' is not an id"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\": [5]}", STATUS_INVALID,
         "'added_tokens_decoder' is not an"},
        {"tokenizer_config.json", "{\"additional_special_tokens\": \"<x>\"}", STATUS_INVALID, "is not a list"},
        {"tokenizer_config.json", "{\"additional_special_tokens\": [5]}", STATUS_INVALID, "token 1 has no 'content'"},
        {"tokenizer_config.json", "{\"extra_special_tokens\": 5}", STATUS_INVALID, "neither a list nor an object"},
        {"tokenizer_config.json", "{\"extra_special_tokens\": {\"a\": 5}}", STATUS_INVALID, "'a' has no 'content'"},
        {"special_tokens_map.json", "nonsense", STATUS_INVALID, "special_tokens_map.json: line 1"},
    };
    char *directory = test_directory();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_merges(directory);
        write_file(directory, cases[i].name, cases[i].text);
        open_fails(directory, cases[i].status, cases[i].part);
        remove_file(directory, cases[i].name);
    }
    free(directory);
}

static void a_cut_tokenizer_json_is_refused_at_any_length(void **state) {
    (void)state;
    char *directory = test_directory(), path[512];
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(SMALL "/tokenizer.json", 1 << 20, &text));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    for (size_t length = 0; length + 2 < text.length; length += 997) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fwrite(text.data, 1, length, file);
        fclose(file);
        open_fails(directory, STATUS_INVALID, "tokenizer.json: line ");
    }
    strbuf_free(&text);
    free(directory);
}

static void what_is_not_there_is_named(void **state) {
    (void)state;
    char *directory = test_directory(), path[512];
    open_fails("/nonexistent/tokenizer", STATUS_NOT_FOUND, "/nonexistent/tokenizer is not a directory");
    open_fails(directory, STATUS_NOT_FOUND, "neither tokenizer.json nor vocab.json and merges.txt");
    assert_false(tokenizer_is_present(directory));
    write_file(directory, "tokenizer.model", "\n");
    open_fails(directory, STATUS_UNSUPPORTED, "AutoTokenizer.from_pretrained('");
    open_fails(directory, STATUS_UNSUPPORTED, "/tokenizer.model is not read");
    remove_file(directory, "tokenizer.model");
    write_file(directory, "vocab.json", "{\"a\": 0}");
    assert_false(tokenizer_is_present(directory));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(mkdir(path, 0777), 0);
    open_fails(directory, STATUS_INVALID, "tokenizer.json is not a regular file");
    free(directory);
    directory = test_directory();
    write_merges(directory);
    assert_true(tokenizer_is_present(directory));
    remove_file(directory, "merges.txt");
    open_fails(directory, STATUS_NOT_FOUND, "merges.txt");
    free(directory);
}

/* Whatever was looked at before: a directory that has something else by now stays. */
static void what_came_meanwhile_is_not_replaced(void **state) {
    (void)state;
    char *directory = test_directory(), **names;
    size_t count;
    struct tokenizer *small = open_ok(SMALL);
    write_file(directory, "notes.txt", "mine");
    test_fails(tokenizer_save(small, directory), STATUS_INVALID, "holds notes.txt");
    test_ok(file_list(directory, &names, &count));
    assert_int_equal(count, 1);
    file_list_free(names, count);
    tokenizer_close(small);
    free(directory);
}

static void a_full_disk_leaves_nothing_behind(void **state) {
    (void)state;
    char *directory = test_directory(), **names;
    size_t count;
    struct tokenizer *small = open_ok(SMALL);
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 4096; /* tokenizer_config.json alone fits */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int status = tokenizer_save(small, directory);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    test_fails(status, STATUS_IO, directory);
    test_ok(file_list(directory, &names, &count));
    assert_int_equal(count, 0);
    file_list_free(names, count);
    test_fails(tokenizer_save(small, "/dev/null/x"), STATUS_IO, "/dev/null");
    tokenizer_close(small);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_opens_with_equal_ids),
        cmocka_unit_test(a_pattern_is_saved),
        cmocka_unit_test(settings_that_change_the_ids_are_refused_by_name),
        cmocka_unit_test(settings_that_mean_the_same_are_taken),
        cmocka_unit_test(settings_of_characters_are_checked),
        cmocka_unit_test(a_pattern_that_takes_too_long_is_named),
        cmocka_unit_test(added_tokens_are_cut_out_the_longest_first),
        cmocka_unit_test(a_word_that_is_a_token_is_that_token),
        cmocka_unit_test(a_prefix_space_is_put_before_each_section),
        cmocka_unit_test(files_beside_merges_name_the_special_tokens),
        cmocka_unit_test(files_beside_merges_ask_for_tokens_around_a_text),
        cmocka_unit_test(damaged_files_are_refused_with_their_place),
        cmocka_unit_test(a_cut_tokenizer_json_is_refused_at_any_length),
        cmocka_unit_test(what_is_not_there_is_named),
        cmocka_unit_test(what_came_meanwhile_is_not_replaced),
        cmocka_unit_test(a_full_disk_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
