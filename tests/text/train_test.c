/* Learning merges: the same as the trainer of `tokenizers` (golden/small), whatever the number of threads and the way
 * the text is cut into pieces. */
#include "base/base.h"
#include "text/text.h"

#include "support/test.h"

#include <zlib.h>

#define GOLDEN TEST_DATA "/text/golden"

static struct tokenizer *train_files(const char *const *inputs, size_t count, int64_t size, int threads) {
    struct tokenizer *tokenizer = NULL;
    test_ok(tokenizer_train(
        &(struct tokenizer_training){.inputs = inputs, .input_count = count, .vocab_size = size, .threads = threads},
        &tokenizer));
    return tokenizer;
}

static struct tokenizer *train(const char *input, int64_t size) {
    return train_files(&input, 1, size, 2);
}

static void train_fails(const char *input, int64_t size, int status, const char *part) {
    struct tokenizer *tokenizer = NULL;
    test_fails(tokenizer_train(
                   &(struct tokenizer_training){.inputs = &input, .input_count = 1, .vocab_size = size, .threads = 2},
                   &tokenizer),
               status, part);
    assert_null(tokenizer);
}

static void write_text(char path[512], const char *directory, const char *name, const void *text, size_t length) {
    snprintf(path, 512, "%s/%s", directory, name);
    test_ok(file_write_atomic(path, text, length));
}

static bool has_token(const struct tokenizer *tokenizer, const char *token) {
    return tokenizer_find(tokenizer, token, strlen(token)) >= 0;
}

/* Returns the contents of the tokenizer's merges.txt. */
static struct strbuf merges_of(const struct tokenizer *tokenizer) {
    char *directory = test_directory(), path[512];
    struct strbuf text = STRBUF_INIT;
    test_ok(tokenizer_save(tokenizer, directory));
    snprintf(path, sizeof path, "%s/merges.txt", directory);
    test_ok(file_read(path, 1 << 24, &text));
    free(directory);
    return text;
}

static void assert_same_merges(struct tokenizer *a, struct tokenizer *b) {
    struct strbuf x = merges_of(a), y = merges_of(b);
    assert_string_equal(strbuf_text(&x), strbuf_text(&y));
    strbuf_free(&x);
    strbuf_free(&y);
    tokenizer_close(a);
    tokenizer_close(b);
}

static void merges_equal_those_of_tokenizers(void **state) {
    (void)state;
    struct tokenizer *golden;
    test_ok(tokenizer_open(GOLDEN "/small", &golden));
    struct tokenizer *ours = train(GOLDEN "/corpus.txt", 900);
    assert_int_equal(tokenizer_vocab_size(ours), 900);
    assert_int_equal(tokenizer_eos_id(ours), 899); /* where GPT-2 has it */
    assert_true(tokenizer_is_special(ours, 899));
    assert_int_equal(tokenizer_find(ours, "!", 1), 0); /* the bytes in the order of GPT-2 */
    assert_same_merges(ours, golden);
}

/* Repeated characters, where a merge changes its own neighbours: what `tokenizers` 0.23.3 learns. */
static void repeats_merge_from_the_left(void **state) {
    (void)state;
    static const char text[] = "aaaaaa aaaaa aaaa ababababab abababa aabaab aaabaaab bbbbb xaaaa aaaaaaaaaaaaaaa";
    static const char expected[] =
        "#version: 0.2\na a\naa aa\na b\nab ab\nb b\n\u0120 aaaa\n\u0120 aa\n\u0120 abab\naaaa aa\nb aa\nx aaaa\n"
        "\u0120 bb\n\u0120 xaaaa\naa ab\naaaa aaaaaa\nab a\nab aaab\nabab ab\nbb b\n\u0120aaaa a\n"
        "\u0120aaaa aaaaaaaaaa\n\u0120aa baa\n\u0120aa abaaab\n\u0120abab aba\n\u0120abab ababab\n\u0120bb bbb\n"
        "\u0120aaaaaaaaaaaaaa a\n\u0120aabaa b\n";
    char *directory = test_directory(), path[512];
    write_text(path, directory, "repeats.txt", text, strlen(text));
    struct tokenizer *tokenizer = train(path, 400);
    struct strbuf merges = merges_of(tokenizer);
    assert_string_equal(strbuf_text(&merges), expected);
    /* Nothing is left to merge: the bytes, 28 merges, <|endoftext|>. */
    assert_int_equal(tokenizer_vocab_size(tokenizer), 256 + 28 + 1);
    strbuf_free(&merges);
    tokenizer_close(tokenizer);
    free(directory);
}

static void a_vocabulary_of_257_is_the_bytes_and_the_end(void **state) {
    (void)state;
    struct tokenizer *tokenizer = train(GOLDEN "/corpus.txt", 257);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 257);
    assert_int_equal(tokenizer_eos_id(tokenizer), 256);
    tokenizer_close(tokenizer);
    train_fails(GOLDEN "/corpus.txt", 256, STATUS_USAGE, "a vocabulary of 256");
    train_fails(GOLDEN "/corpus.txt", 1 << 25, STATUS_USAGE, "at most 16777216");
}

/* Four megabytes of random words and lines: more than the pieces that the threads are handed. */
static void make_text(struct strbuf *text) {
    static const char *const ends[] = {" ",  " ",  " ",      "  ",        "\n",  "\n\n",
                                       "\t", ", ", "\u3000", " \n\u3000", "'s ", "   "};
    uint32_t draws = 0;
    while (text->length < 4 << 20) {
        struct philox r = philox(3, draws++, 0, 0, (uint32_t)RNG_TEST << 24);
        uint32_t word = r.word[0] % 5000;
        for (uint32_t i = 0; i <= word % 7; i++)
            strbuf_add_char(text, (char)('a' + (word >> i) % 26));
        strbuf_add_text(text, r.word[1] % 50 == 0 ? "\u4e2d\u6587" : "");
        strbuf_add_text(text, ends[r.word[2] % 12]);
    }
}

/* A text may be cut before white space that follows another character. Whether one or four threads read a file in
 * pieces, or each line is a file, the words are the same. */
static void neither_threads_nor_pieces_change_the_merges(void **state) {
    (void)state;
    char *directory = test_directory(), whole[512], gzip[512];
    enum { PARTS = 40 };
    char *parts[PARTS];
    const char *path = whole;
    struct strbuf text = STRBUF_INIT;
    make_text(&text);
    write_text(whole, directory, "whole.txt", text.data, text.length);
    assert_same_merges(train_files(&path, 1, 2000, 1), train_files(&path, 1, 2000, 4));
    size_t start = 0;
    for (int i = 0; i < PARTS; i++) {
        size_t end = text.length;
        if (i + 1 < PARTS) {
            end = text.length / PARTS * (size_t)(i + 1);
            while (!(text.data[end] == ' ' && text.data[end - 1] >= 'a' && text.data[end - 1] <= 'z'))
                end++;
        }
        char name[32];
        parts[i] = malloc(512);
        snprintf(name, sizeof name, "part%d.txt", i);
        write_text(parts[i], directory, name, text.data + start, end - start);
        start = end;
    }
    assert_same_merges(train_files(&path, 1, 2000, 2), train_files((const char *const *)parts, PARTS, 2000, 2));
    snprintf(gzip, sizeof gzip, "%s/whole.txt.gz", directory);
    gzFile out = gzopen(gzip, "wb1");
    assert_non_null(out);
    assert_int_equal(gzwrite(out, text.data, (unsigned)text.length), text.length);
    assert_int_equal(gzclose(out), Z_OK);
    assert_same_merges(train_files(&path, 1, 2000, 2), train(gzip, 2000));
    for (int i = 0; i < PARTS; i++)
        free(parts[i]);
    strbuf_free(&text);
    free(directory);
}

/* Six spaces before a word are a word of five, learned as two and three, and one that belongs to the word. Wherever a
 * piece ends, a run of four is never seen. */
static void a_run_of_spaces_is_never_cut(void **state) {
    (void)state;
    char *directory = test_directory(), path[512];
    struct strbuf text = STRBUF_INIT;
    while (text.length < 9 << 20)
        strbuf_add_text(&text, "abc      ");
    strbuf_add_text(&text, "abc");
    write_text(path, directory, "runs.txt", text.data, text.length);
    struct tokenizer *tokenizer = train(path, 400);
    assert_true(has_token(tokenizer, "     "));
    assert_true(has_token(tokenizer, " abc"));
    assert_false(has_token(tokenizer, "    "));
    tokenizer_close(tokenizer);
    strbuf_free(&text);
    free(directory);
}

static void each_file_is_a_text_of_its_own(void **state) {
    (void)state;
    char *directory = test_directory(), a[512], b[512];
    write_text(a, directory, "a", "one", 3);
    write_text(b, directory, "b", "two", 3);
    const char *paths[] = {a, b};
    struct tokenizer *tokenizer = train_files(paths, 2, 300, 2);
    assert_true(has_token(tokenizer, "one"));
    assert_true(has_token(tokenizer, "two"));
    assert_false(has_token(tokenizer, "onetwo"));
    tokenizer_close(tokenizer);
    free(directory);
}

static void rare_pairs_are_left_alone_when_asked(void **state) {
    (void)state;
    char *directory = test_directory(), path[512];
    const char *input = path;
    write_text(path, directory, "a", "abc abc abc xy", 14);
    struct tokenizer *tokenizer = NULL;
    test_ok(tokenizer_train(
        &(struct tokenizer_training){.inputs = &input, .input_count = 1, .vocab_size = 300, .min_frequency = 2},
        &tokenizer));
    assert_true(has_token(tokenizer, " abc"));
    assert_false(has_token(tokenizer, "xy"));
    tokenizer_close(tokenizer);
    free(directory);
}

/* Bytes that are no UTF-8 are characters of their own, like punctuation. */
static void any_bytes_can_be_learned_from(void **state) {
    (void)state;
    char *directory = test_directory(), path[512];
    enum { LENGTH = 3 << 20 };
    unsigned char *bytes = malloc(LENGTH);
    for (uint32_t i = 0; i < LENGTH; i += 4) {
        struct philox r = philox(5, i, 0, 0, (uint32_t)RNG_TEST << 24);
        memcpy(bytes + i, r.word, 4);
    }
    write_text(path, directory, "random", bytes, LENGTH);
    struct tokenizer *tokenizer = train(path, 300);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 300);
    tokenizer_close(tokenizer);
    write_text(path, directory, "latin1", "caf\xe9 caf\xe9 caf\xe9", 14);
    tokenizer = train(path, 300);
    assert_true(has_token(tokenizer, " caf"));
    assert_false(has_token(tokenizer, " caf\xe9"));
    tokenizer_close(tokenizer);
    memset(bytes, 'a', LENGTH); /* one word of three megabytes */
    write_text(path, directory, "a", bytes, LENGTH);
    tokenizer = train(path, 270);
    assert_true(has_token(tokenizer, "aaaaaaaaaaaaaaaa"));
    tokenizer_close(tokenizer);
    free(bytes);
    free(directory);
}

static void bad_inputs_are_named(void **state) {
    (void)state;
    char *directory = test_directory(), path[512];
    train_fails("/nonexistent/corpus.txt", 300, STATUS_IO, "/nonexistent/corpus.txt");
    train_fails(directory, 300, STATUS_IO, directory);
    write_text(path, directory, "empty.txt", "", 0);
    train_fails(path, 300, STATUS_INVALID, "empty.txt is empty");
    write_text(path, directory, "bad.txt.gz", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03nonsense", 18);
    train_fails(path, 300, STATUS_INVALID, "bad.txt.gz: damaged gzip file");
    gzFile out = gzopen(path, "wb");
    assert_non_null(out);
    for (int i = 0; i < 10000; i++)
        gzprintf(out, "%d ", i * 7919);
    assert_int_equal(gzclose(out), Z_OK);
    struct strbuf packed = STRBUF_INIT;
    test_ok(file_read(path, 1 << 20, &packed));
    write_text(path, directory, "cut.txt.gz", packed.data, packed.length / 2);
    train_fails(path, 300, STATUS_INVALID, "cut.txt.gz: damaged gzip file");
    strbuf_free(&packed);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_equal_those_of_tokenizers),
        cmocka_unit_test(repeats_merge_from_the_left),
        cmocka_unit_test(a_vocabulary_of_257_is_the_bytes_and_the_end),
        cmocka_unit_test(neither_threads_nor_pieces_change_the_merges),
        cmocka_unit_test(a_run_of_spaces_is_never_cut),
        cmocka_unit_test(each_file_is_a_text_of_its_own),
        cmocka_unit_test(rare_pairs_are_left_alone_when_asked),
        cmocka_unit_test(any_bytes_can_be_learned_from),
        cmocka_unit_test(bad_inputs_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
