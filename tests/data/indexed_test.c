/* The indexed dataset: what is written is read, every field that lies is refused with its place, and a dataset appears
 * whole or not at all. */
#include "files.h"

#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char *directory;
static char prefix[300], idx[320], bin[320];

static int set_up(void **state) {
    (void)state;
    directory = test_directory();
    snprintf(prefix, sizeof prefix, "%s/corpus", directory);
    snprintf(idx, sizeof idx, "%s.idx", prefix);
    snprintf(bin, sizeof bin, "%s.bin", prefix);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(directory);
    return 0;
}

/* Three documents: two sequences, none, one sequence of length 0 and one of 2. The bytes are what Megatron writes. */
static void write_small(enum token_type type) {
    struct indexed_writer writer;
    test_ok(indexed_writer_open(&writer, prefix, type, 65000));
    test_ok(indexed_writer_add_sequence(&writer, (const int32_t[]){1, 2, 3}, 3));
    test_ok(indexed_writer_add_sequence(&writer, (const int32_t[]){64999}, 1));
    test_ok(indexed_writer_end_document(&writer));
    test_ok(indexed_writer_end_document(&writer));
    test_ok(indexed_writer_add_sequence(&writer, NULL, 0));
    test_ok(indexed_writer_add_sequence(&writer, (const int32_t[]){5, 6}, 2));
    test_ok(indexed_writer_end_document(&writer));
    test_ok(indexed_writer_commit(&writer));
}

static void the_bytes_are_megatrons(void **state) {
    (void)state;
    static const unsigned char expected[] = {
        'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0,                      /* magic */
        1,   0,   0,   0,   0,   0,   0,   0,                         /* version */
        8,                                                            /* uint16 */
        4,   0,   0,   0,   0,   0,   0,   0, 4, 0, 0, 0, 0, 0, 0, 0, /* N, D */
        3,   0,   0,   0,   1,   0,   0,   0, 0, 0, 0, 0, 2, 0, 0, 0, /* lengths */
        0,   0,   0,   0,   0,   0,   0,   0, 6, 0, 0, 0, 0, 0, 0, 0,
        8,   0,   0,   0,   0,   0,   0,   0, 8, 0, 0, 0, 0, 0, 0, 0, /* offsets */
        0,   0,   0,   0,   0,   0,   0,   0, 2, 0, 0, 0, 0, 0, 0, 0,
        2,   0,   0,   0,   0,   0,   0,   0, 4, 0, 0, 0, 0, 0, 0, 0, /* documents */
    };
    write_small(TOKEN_U16);
    struct strbuf bytes = read_whole(idx), tokens = read_whole(bin);
    assert_int_equal(bytes.length, sizeof expected);
    assert_memory_equal(bytes.data, expected, sizeof expected);
    assert_int_equal(tokens.length, 12);
    assert_memory_equal(tokens.data, "\1\0\2\0\3\0\xe7\xfd\5\0\6\0", 12);
    strbuf_free(&bytes);
    strbuf_free(&tokens);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct indexed_dataset *dataset;
        int32_t tokens[3];
        write_small(i == 0 ? TOKEN_U16 : TOKEN_I32);
        test_ok(indexed_dataset_open(prefix, &dataset));
        assert_int_equal(dataset->sequences, 4);
        assert_int_equal(dataset->documents, 3);
        assert_int_equal(dataset->tokens, 6);
        assert_int_equal(indexed_dataset_length(dataset, 2), 0);
        test_ok(indexed_dataset_read(dataset, 0, 1, 2, 0, tokens));
        assert_int_equal(tokens[0], 2);
        assert_int_equal(tokens[1], 3);
        test_ok(indexed_dataset_read(dataset, 1, 0, 1, 65000, tokens));
        assert_int_equal(tokens[0], 64999);
        test_ok(indexed_dataset_read(dataset, 3, 2, 0, 0, tokens));
        test_fails(indexed_dataset_read(dataset, 1, 0, 1, 64999, tokens), STATUS_INVALID, "corpus.bin: token at byte");
        test_fails(indexed_dataset_read(dataset, 1, 0, 1, 64999, tokens), STATUS_INVALID,
                   "is 64999, expected 0 to 64998");
        test_fails(indexed_dataset_read(dataset, 0, 2, 2, 0, tokens), STATUS_INVALID, "not in the file");
        test_fails(indexed_dataset_read(dataset, 4, 0, 1, 0, tokens), STATUS_INVALID, "not in the file");
        indexed_dataset_close(dataset);
    }
}

/* Writes a dataset of one sequence with any stored type. */
static void write_typed(int type, const void *tokens, int32_t count, size_t token_bytes) {
    struct strbuf file = STRBUF_INIT;
    int64_t numbers[] = {1, 2};
    strbuf_add(&file, "MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17);
    strbuf_add_char(&file, (char)type);
    strbuf_add(&file, numbers, 16);
    strbuf_add(&file, &count, 4);
    strbuf_add(&file, (int64_t[]){0, 0, 1}, 24);
    test_ok(file_write_atomic(idx, file.data, file.length));
    test_ok(file_write_atomic(bin, tokens, (size_t)count * token_bytes));
    strbuf_free(&file);
}

static void every_integer_type_is_read(void **state) {
    (void)state;
    const struct {
        int type;
        size_t bytes;
        const void *tokens;
        int32_t second;
        const char *third; /* the error; NULL: it is read */
    } cases[] = {
        {TOKEN_U8, 1, (const uint8_t[]){1, 200, 3}, 200, NULL},
        {TOKEN_I8, 1, (const int8_t[]){1, 100, -3}, 100, "byte 2 is -3"},
        {TOKEN_I16, 2, (const int16_t[]){1, 30000, -2}, 30000, "byte 4 is -2"},
        {TOKEN_U16, 2, (const uint16_t[]){1, 60000, 3}, 60000, NULL},
        {TOKEN_I32, 4, (const int32_t[]){1, 2000000, -1}, 2000000, "byte 8 is -1"},
        {TOKEN_I64, 8, (const int64_t[]){1, 2147483647, 2147483648}, 2147483647, "byte 16 is 2147483648"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct indexed_dataset *dataset;
        int32_t tokens[3] = {0};
        write_typed(cases[i].type, cases[i].tokens, 3, cases[i].bytes);
        test_ok(indexed_dataset_open(prefix, &dataset));
        test_ok(indexed_dataset_read(dataset, 0, 0, 2, 0, tokens));
        assert_int_equal(tokens[0], 1);
        assert_int_equal(tokens[1], cases[i].second);
        if (cases[i].third)
            test_fails(indexed_dataset_read(dataset, 0, 0, 3, 0, tokens), STATUS_INVALID, cases[i].third);
        else
            test_ok(indexed_dataset_read(dataset, 0, 0, 3, 0, tokens));
        indexed_dataset_close(dataset);
    }
}

/* The field that lies, the bytes that it becomes, and the part of the error that names it. */
static void every_damaged_field_is_named(void **state) {
    (void)state;
    static const struct {
        size_t at, bytes;
        uint64_t value;
        int status;
        const char *error;
    } cases[] = {
        {0, 1, 'm', STATUS_INVALID, "corpus.idx: wrong magic at byte 0"},
        {8, 1, 1, STATUS_INVALID, "wrong magic at byte 0"},
        {9, 8, 2, STATUS_INVALID, "version at byte 9 is 2, expected 1"},
        {17, 1, 0, STATUS_INVALID, "token type at byte 17 is 0"},
        {17, 1, 9, STATUS_INVALID, "token type at byte 17 is 9"},
        {17, 1, 6, STATUS_UNSUPPORTED, "token type at byte 17 is 6 (float64)"},
        {17, 1, 7, STATUS_UNSUPPORTED, "token type at byte 17 is 7 (float32)"},
        {17, 1, 4, STATUS_INVALID, "offset of sequence 1 at byte 58 is 6, expected 12"},
        {18, 8, 5, STATUS_INVALID, "document count at byte 26 is 4"},
        {18, 8, 3, STATUS_INVALID, "114 bytes, expected 102"},
        {18, 8, UINT64_MAX, STATUS_INVALID, "sequence count at byte 18 is 18446744073709551615"},
        {18, 8, UINT64_MAX / 12, STATUS_INVALID, "sequence count at byte 18"},
        {26, 8, 0, STATUS_INVALID, "document count at byte 26 is 0"},
        {26, 8, 3, STATUS_INVALID, "114 bytes, expected 106"},
        {26, 8, 5, STATUS_INVALID, "document count at byte 26 is 5"},
        {26, 8, UINT64_MAX / 8 + 1, STATUS_INVALID, "document count at byte 26"},
        {34, 4, UINT32_MAX, STATUS_INVALID, "length of sequence 0 at byte 34 is -1"},
        {46, 4, 0x80000000, STATUS_INVALID, "length of sequence 3 at byte 46 is -2147483648"},
        {38, 4, 2, STATUS_INVALID, "offset of sequence 2 at byte 66 is 8, expected 10"},
        {46, 4, 3, STATUS_INVALID, "corpus.bin: 12 bytes, expected 14"},
        {50, 8, 1, STATUS_INVALID, "offset of sequence 0 at byte 50 is 1, expected 0"},
        {58, 8, UINT64_MAX, STATUS_INVALID, "offset of sequence 1 at byte 58 is -1, expected 6"},
        {74, 8, 1000000, STATUS_INVALID, "offset of sequence 3 at byte 74 is 1000000"},
        {82, 8, 1, STATUS_INVALID, "document index 0 at byte 82 is 1, expected 0"},
        {90, 8, 5, STATUS_INVALID, "document index 1 at byte 90 is 5, expected at least 4 and no more"},
        {98, 8, 1, STATUS_INVALID, "document index 2 at byte 98 is 1, expected at least 2"},
        {98, 8, UINT64_MAX, STATUS_INVALID, "document index 2 at byte 98 is -1"},
        {106, 8, 3, STATUS_INVALID, "document index 3 at byte 106 is 3, expected 4"},
    };
    write_small(TOKEN_U16);
    struct strbuf whole = read_whole(idx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct indexed_dataset *dataset;
        char damaged[114];
        assert_int_equal(whole.length, sizeof damaged);
        memcpy(damaged, whole.data, sizeof damaged);
        memcpy(damaged + cases[i].at, &cases[i].value, cases[i].bytes);
        test_ok(file_write_atomic(idx, damaged, sizeof damaged));
        test_fails(indexed_dataset_open(prefix, &dataset), cases[i].status, cases[i].error);
        assert_null(dataset);
    }
    strbuf_free(&whole);
}

static void every_wrong_size_is_refused(void **state) {
    (void)state;
    struct indexed_dataset *dataset;
    write_small(TOKEN_U16);
    struct strbuf whole = read_whole(idx);
    for (size_t length = 0; length < whole.length; length++) {
        test_ok(file_write_atomic(idx, whole.data, length));
        test_fails(indexed_dataset_open(prefix, &dataset), STATUS_INVALID, "corpus.idx: ");
    }
    strbuf_add_char(&whole, 0);
    test_ok(file_write_atomic(idx, whole.data, whole.length));
    test_fails(indexed_dataset_open(prefix, &dataset), STATUS_INVALID, "115 bytes, expected 114");
    test_ok(file_write_atomic(idx, whole.data, whole.length - 1));
    for (size_t length = 0; length < 16; length++) {
        char tokens[16] = {0};
        test_ok(file_write_atomic(bin, tokens, length));
        if (length != 12)
            test_fails(indexed_dataset_open(prefix, &dataset), STATUS_INVALID, "corpus.bin: ");
    }
    strbuf_free(&whole);
    unlink(bin);
    test_fails(indexed_dataset_open(prefix, &dataset), STATUS_NOT_FOUND, "corpus.bin does not exist");
    unlink(idx);
    test_fails(indexed_dataset_open(prefix, &dataset), STATUS_NOT_FOUND, "corpus.idx does not exist");
    test_fails(indexed_dataset_open(directory, &dataset), STATUS_NOT_FOUND, ".idx does not exist");
}

static void tokens_cut_off_while_open_are_an_error(void **state) {
    (void)state;
    struct indexed_dataset *dataset;
    int32_t tokens[3];
    write_small(TOKEN_U16);
    test_ok(indexed_dataset_open(prefix, &dataset));
    assert_int_equal(truncate(bin, 3), 0);
    test_fails(indexed_dataset_read(dataset, 0, 0, 3, 0, tokens), STATUS_INVALID, "corpus.bin ends at byte 3");
    indexed_dataset_close(dataset);
}

static void a_vocabulary_larger_than_the_type_is_refused(void **state) {
    (void)state;
    struct indexed_writer writer;
    assert_int_equal(indexed_token_type(65499), TOKEN_U16);
    assert_int_equal(indexed_token_type(65500), TOKEN_I32);
    test_fails(indexed_writer_open(&writer, prefix, TOKEN_U16, 65537), STATUS_INVALID,
               "a vocabulary of 65537 ids does not fit uint16, which holds 65536");
    test_fails(indexed_writer_open(&writer, prefix, TOKEN_I32, 2147483649), STATUS_INVALID, "does not fit int32");
    test_fails(indexed_writer_open(&writer, prefix, TOKEN_U8, 10), STATUS_UNSUPPORTED, "token type 1");
    test_ok(indexed_writer_open(&writer, prefix, TOKEN_U16, 10));
    test_fails(indexed_writer_add_sequence(&writer, (const int32_t[]){10}, 1), STATUS_INVALID, "token id 10");
    test_fails(indexed_writer_add_sequence(&writer, (const int32_t[]){-1}, 1), STATUS_INVALID, "token id -1");
    indexed_writer_abort(&writer);
    assert_int_equal(count_files(directory), 0);
}

static void an_aborted_dataset_leaves_the_old_one(void **state) {
    (void)state;
    struct indexed_writer writer;
    struct indexed_dataset *dataset;
    write_small(TOKEN_U16);
    test_ok(indexed_writer_open(&writer, prefix, TOKEN_I32, 100));
    test_ok(indexed_writer_add_sequence(&writer, (const int32_t[]){9}, 1));
    test_ok(indexed_writer_end_document(&writer));
    test_ok(indexed_writer_finish(&writer));
    indexed_writer_abort(&writer);
    assert_int_equal(count_files(directory), 2);
    test_ok(indexed_dataset_open(prefix, &dataset));
    assert_int_equal(dataset->tokens, 6);
    indexed_dataset_close(dataset);
}

static void a_full_disk_leaves_nothing(void **state) {
    (void)state;
    struct rlimit before, small;
    struct indexed_writer writer;
    static int32_t tokens[100000];
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 300000; limit += 50000) { /* in .bin while it is written, at the end, in .idx */
        small.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        int status = indexed_writer_open(&writer, prefix, TOKEN_U16, 100);
        for (int i = 0; i < 2 && !status; i++)
            status = indexed_writer_add_sequence(&writer, tokens, 50000);
        for (int i = 0; i < 40000 && !status; i++)
            status = indexed_writer_end_document(&writer);
        if (!status)
            status = indexed_writer_commit(&writer);
        else
            indexed_writer_abort(&writer);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        test_fails(status, STATUS_IO, "cannot write");
        assert_int_equal(count_files(directory), 0);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* Two datasets of one size, by turns: `one` sequences of 1 and 2 tokens, else of 2 and 1. */
static int publish(bool one) {
    struct indexed_writer writer;
    const int32_t tokens[] = {one, one};
    int status = indexed_writer_open(&writer, prefix, TOKEN_U16, 10);
    if (!status)
        status = indexed_writer_add_sequence(&writer, tokens, one ? 1 : 2);
    if (!status)
        status = indexed_writer_add_sequence(&writer, tokens, one ? 2 : 1);
    if (!status)
        status = indexed_writer_end_document(&writer);
    return status ? status : indexed_writer_commit(&writer);
}

static void a_reader_beside_a_writer_sees_one_dataset_whole(void **state) {
    (void)state;
    int status, opened[2] = {0};
    test_ok(publish(true));
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < (test_is_long() ? 400 : 40); i++)
            if (publish(i % 2))
                _exit(1);
        _exit(0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct indexed_dataset *dataset;
        int32_t token;
        test_ok(indexed_dataset_open(prefix, &dataset));
        bool one = indexed_dataset_length(dataset, 0) == 1;
        test_ok(indexed_dataset_read(dataset, 1, 0, 1, 10, &token));
        assert_int_equal(token, one);
        opened[one]++;
        indexed_dataset_close(dataset);
    }
    assert_int_equal(status, 0);
    assert_true(opened[0] > 0 && opened[1] > 0);
}

/* As it waits when its writer was killed before the index was in place, or before anything was. */
static void a_dataset_that_waits_in_a_box_is_read_there(void **state) {
    (void)state;
    struct indexed_dataset *dataset;
    char box[PATH_MAX], mark[PATH_MAX + 8], ready[PATH_MAX + 8], file[2 * PATH_MAX];
    const char name[] = ".cambium-0123456789abcdef", text[] = "cambium staging .cambium-0123456789abcdef dataset\n.\n";
    test_ok(publish(true));
    test_ok(file_join(box, sizeof box, directory, name));
    snprintf(mark, sizeof mark, "%s/mark", box);
    snprintf(ready, sizeof ready, "%s/ready", box);
    test_ok(file_make_directories(ready));
    test_ok(file_write_atomic(mark, text, strlen(text)));
    const char *base = strrchr(prefix, '/') + 1;
    for (int i = 0; i < 2; i++) {
        char from[PATH_MAX];
        snprintf(from, sizeof from, "%s.%s", prefix, i ? "idx" : "bin");
        snprintf(file, sizeof file, "%s/%s.%s", ready, base, i ? "idx" : "bin");
        assert_int_equal(rename(from, file), 0);
    }
    test_ok(indexed_dataset_open(prefix, &dataset));
    assert_int_equal(dataset->tokens, 3);
    indexed_dataset_close(dataset);
    test_ok(publish(false));
    assert_int_equal(count_files(directory), 2);
    test_ok(indexed_dataset_open(prefix, &dataset));
    assert_int_equal(indexed_dataset_length(dataset, 0), 2);
    indexed_dataset_close(dataset);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_bytes_are_megatrons),
        TEST(what_is_written_is_read),
        TEST(every_integer_type_is_read),
        TEST(every_damaged_field_is_named),
        TEST(every_wrong_size_is_refused),
        TEST(tokens_cut_off_while_open_are_an_error),
        TEST(a_vocabulary_larger_than_the_type_is_refused),
        TEST(an_aborted_dataset_leaves_the_old_one),
        TEST(a_full_disk_leaves_nothing),
        TEST(a_reader_beside_a_writer_sees_one_dataset_whole),
        TEST(a_dataset_that_waits_in_a_box_is_read_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
