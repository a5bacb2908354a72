/* preprocess on several ranks makes the dataset of one, byte for byte, wherever the texts are cut between ranks. The
 * program's own test (tests/commands/preprocess_ranks_test.py) has files of other kinds, processes and failures. */
#include "files.h"

#include "comm/comm.h"
#include "text/text.h"

enum { MOST_FILES = 3, MOST_BYTES = 1 << 17 };

static struct tokenizer *tokenizer;
static char root[400], paths[MOST_FILES][512];
static const char *inputs[MOST_FILES];

static int open_root(void **state) {
    (void)state;
    char *directory = test_directory();
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    for (int i = 0; i < MOST_FILES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%d.txt", root, i);
        inputs[i] = paths[i];
    }
    log_quiet(true);
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer));
    return 0;
}

static int close_root(void **state) {
    (void)state;
    tokenizer_close(tokenizer);
    return 0;
}

static int run_rank(struct comm *world, void *context) {
    struct preprocess_count count;
    return preprocess_run(context, world, &count);
}

/* Returns the dataset that N ranks make of the inputs, .bin and .idx in one; the caller frees it. */
static struct strbuf dataset_of(const struct preprocess_options *options, int ranks) {
    static const char *const endings[] = {"bin", "idx"};
    struct strbuf both = STRBUF_INIT;
    char path[512];
    test_ok(comm_local_run(ranks, run_rank, (void *)options));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s_text_document.%s", options->output_prefix, endings[i]);
        test_ok(file_read(path, 1 << 24, &both));
    }
    return both;
}

static void assert_same(const struct preprocess_options *options, const int *ranks) {
    struct strbuf one = dataset_of(options, 1);
    for (; *ranks; ranks++) {
        struct strbuf several = dataset_of(options, *ranks);
        if (several.length != one.length || memcmp(several.data, one.data, one.length) != 0)
            fail_msg("format %d, delimiter %s: %d ranks make another dataset", options->format, options->delimiter,
                     *ranks);
        strbuf_free(&several);
    }
    strbuf_free(&one);
}

/* The forms of plain text, and two delimiters. */
static void assert_all_same(int files, const int *ranks) {
    static const struct {
        int format;
        const char *delimiter;
    } forms[] = {{CORPUS_LINE, "%"}, {CORPUS_DELIMITER, "%"}, {CORPUS_FILE, "%"}, {CORPUS_DELIMITER, "ab"}};
    char prefix[512];
    snprintf(prefix, sizeof prefix, "%s/out", root);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        assert_same(&(const struct preprocess_options){.inputs = {inputs, (size_t)files},
                                                       .format = forms[i].format,
                                                       .delimiter = forms[i].delimiter,
                                                       .tokenizer = tokenizer,
                                                       .output_prefix = prefix,
                                                       .workers = 1},
                    ranks);
}

static void write_file(int number, const char *text, size_t length) {
    FILE *file = fopen(paths[number], "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static uint32_t draw(uint32_t below) {
    static uint64_t state = 6;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* Some of the files are longer than what is scanned at once for a border. */
static void plain_texts_are_cut_between_documents(void **state) {
    static const char *const pieces[] = {"%\n", "%\r\n", "ab\n", "ab\r\n", "a",        "b",
                                         "%",   "\n",    "\r\n", "word ",  "\xc3\xa9", "\x1f\x8b"};
    static const uint32_t counts[] = {0, 1, 3, 30, 200};
    static const char end[] = "\n%\nend";
    static char text[MOST_BYTES];
    (void)state;
    for (int number = 0; number < 4; number++) {
        for (int file = 0; file < MOST_FILES; file++) {
            size_t length = 1;
            text[0] = '-'; /* at the beginning the bytes of the last piece would mean gzip */
            for (uint32_t left = counts[draw(5)]; left > 0; left--) {
                const char *piece = pieces[draw(12)];
                memcpy(text + length, piece, strlen(piece));
                length += strlen(piece);
            }
            if (file == 1) {
                size_t more = number % 3 == 0 ? 70000 : 1;
                memset(text + length, 'x', more);
                memcpy(text + length + more, end, sizeof end - 1);
                length += more + sizeof end - 1;
            }
            write_file(file, text, length);
        }
        assert_all_same(MOST_FILES, (const int[]){2, 3, 5, 0});
    }
}

/* A file with as many bytes as ranks: each byte begins a share. */
static void every_byte_may_be_the_border(void **state) {
    static const char text[] = "a\n%\n\nbc\r\n%\r\n%\n%x\n%";
    enum { LENGTH = sizeof text - 1 };
    (void)state;
    write_file(0, text, LENGTH);
    assert_all_same(1, (const int[]){2, 3, 4, LENGTH / 2, LENGTH, LENGTH + 1, 0});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_texts_are_cut_between_documents),
        cmocka_unit_test(every_byte_may_be_the_border),
    };
    return cmocka_run_group_tests(tests, open_root, close_root);
}
