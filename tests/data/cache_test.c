/* Index caches: read when they fit, built again when stale or damaged, never in the way. */
#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static char *directory;
static char prefix[200], cache_directory[300];
static const int32_t lengths[] = {10, 3, 7, 5, 12, 4};
enum { COUNT = 6, DOCUMENTS = 18, SAMPLES = 15 };

static int set_up(void **state) {
    (void)state;
    directory = test_directory();
    snprintf(prefix, sizeof prefix, "%s/corpus", directory);
    snprintf(cache_directory, sizeof cache_directory, "%s/cache/GPTDataset_indices", directory);
    write_dataset(prefix, lengths, COUNT, 0);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(directory);
    return 0;
}

/* The path of the only file in the cache; the caller frees it. */
static char *cache_file(const char *where) {
    char **names, *path = malloc(600);
    size_t count;
    test_ok(file_list(where, &names, &count));
    assert_int_equal(count, 1);
    test_ok(file_join(path, 600, where, names[0]));
    file_list_free(names, count);
    return path;
}

/* Opens 12 samples of 8 tokens and compares with what belongs to `expected`. */
static void open_and_check(const char *cache, const int32_t *documents) {
    struct indexed_dataset *file;
    struct gpt_dataset dataset;
    test_ok(indexed_dataset_open(prefix, &file));
    struct gpt_dataset_request request = {
        .tokens = file, .last = file->sequences, .seq_length = 8, .samples = 12, .seed = 1234, .cache = cache};
    test_ok(gpt_dataset_open(&dataset, &request));
    assert_int_equal(dataset.document_count, DOCUMENTS);
    assert_int_equal(dataset.length, SAMPLES);
    assert_memory_equal(dataset.document_index, documents, DOCUMENTS * sizeof *documents);
    uint64_t sum = 0;
    for (int i = 0; i < SAMPLES; i++)
        sum |= 1u << dataset.shuffle_index[i];
    assert_int_equal(sum, (1u << SAMPLES) - 1);
    assert_int_equal(dataset.sample_index[SAMPLES].document, 17);
    gpt_dataset_close(&dataset);
    indexed_dataset_close(file);
}

static const int32_t right[DOCUMENTS] = {1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3, 1, 0, 3, 2, 5, 4};

static void a_cache_that_fits_is_read(void **state) {
    (void)state;
    struct stat first, second;
    open_and_check(NULL, right);
    char *path = cache_file(cache_directory);
    assert_int_equal(stat(path, &first), 0);
    open_and_check(NULL, right);
    assert_int_equal(stat(path, &second), 0);
    assert_int_equal(first.st_ino, second.st_ino); /* a new one would be another file */
    free(path);
}

static void a_damaged_cache_is_built_again(void **state) {
    (void)state;
    open_and_check(NULL, right);
    char *path = cache_file(cache_directory);
    struct strbuf whole = read_whole(path);
    size_t step = test_is_long() ? 1 : 11;
    for (size_t i = 0; i < whole.length; i += step) { /* one bit anywhere */
        whole.data[i] ^= 16;
        test_ok(file_write_atomic(path, whole.data, whole.length));
        whole.data[i] ^= 16;
        open_and_check(NULL, right);
        struct strbuf again = read_whole(path);
        assert_int_equal(again.length, whole.length);
        assert_memory_equal(again.data, whole.data, whole.length);
        strbuf_free(&again);
    }
    for (size_t length = 0; length < whole.length; length += 5 * step) {
        test_ok(file_write_atomic(path, whole.data, length));
        open_and_check(NULL, right);
    }
    strbuf_add_char(&whole, 0);
    test_ok(file_write_atomic(path, whole.data, whole.length));
    open_and_check(NULL, right);
    strbuf_free(&whole);
    free(path);
}

/* Somebody else's file with a right checksum must not lead to a read outside an array. */
static void entries_out_of_range_are_not_believed(void **state) {
    (void)state;
    enum { HEADER = 96, CHECKED_FROM = 24, CHECKSUM_AT = 16 };
    const size_t documents = HEADER, samples = documents + 4 * DOCUMENTS, shuffle = samples + 8 * (SAMPLES + 1);
    const struct {
        size_t at;
        uint32_t value;
    } lies[] = {
        {samples, 18},           {samples, UINT32_MAX}, /* the first entry, whose offset is 0 */
        {samples + 8 * 15, 18},  {documents + 4 * 17, 6},
        {documents, UINT32_MAX}, {shuffle + 4 * 14, 15},
        {documents, 6},          {documents + 4 * 17, UINT32_MAX},
        {samples + 8 * 3, 18},   {samples + 8 * 15 + 4, 12},
        {samples + 4, 100},      {samples + 8 + 4, UINT32_MAX},
        {shuffle, 15},           {shuffle + 4 * 14, UINT32_MAX},
    };
    open_and_check(NULL, right);
    char *path = cache_file(cache_directory);
    struct strbuf whole = read_whole(path);
    assert_int_equal(whole.length, shuffle + 4 * SAMPLES);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char *copy = malloc(whole.length);
        assert_non_null(copy);
        memcpy(copy, whole.data, whole.length);
        memcpy(copy + lies[i].at, &lies[i].value, 4);
        uint64_t crc = crc32(0, (const Bytef *)copy + CHECKED_FROM, (uInt)(whole.length - CHECKED_FROM));
        memcpy(copy + CHECKSUM_AT, &crc, 8);
        test_ok(file_write_atomic(path, copy, whole.length));
        open_and_check(NULL, right);
        struct strbuf again = read_whole(path);
        assert_memory_equal(again.data, whole.data, whole.length);
        strbuf_free(&again);
        free(copy);
    }
    strbuf_free(&whole);
    free(path);
}

/* Whoever writes into a file that is mapped is not believed either: each entry is looked at again where it is used. */
static void entries_that_change_in_use_are_refused(void **state) {
    (void)state;
    enum { HEADER = 96, TOKENS = 8 };
    const off_t documents = HEADER, samples = documents + 4 * DOCUMENTS, shuffle = samples + 8 * (SAMPLES + 1);
    const struct {
        off_t at;
        uint32_t value;
        const char *part;
    } lies[] = {
        {shuffle + 4 * 14, SAMPLES, "the index map of sample 14 is damaged"},
        {shuffle, UINT32_MAX, "the index map of sample 0 is damaged"},
        {documents, COUNT, "the index map of sample piece 0 is damaged"},
        {documents, 1 << 30, "the index map of sample piece 0 is damaged"},
        {documents, UINT32_MAX, "the index map of sample piece 0 is damaged"},
        {samples + 8 * 3 + 4, 100, "the index map of sample piece 3 is damaged"},
        {samples + 8 * 3 + 4, UINT32_MAX, "the index map of sample piece 3 is damaged"},
        {samples + 8 * 3, DOCUMENTS, "sample piece 3 runs past the last document"},
        {samples + 8 * 3, UINT32_MAX, "sample piece 3 runs past the last document"},
    };
    int32_t tokens[TOKENS], labels[TOKENS], positions[TOKENS];
    float loss_mask[TOKENS];
    int64_t segments[TOKENS];
    struct gpt_sample sample = {tokens, labels, loss_mask, positions, segments, 0};
    struct indexed_dataset *file;
    struct gpt_dataset dataset;
    test_ok(indexed_dataset_open(prefix, &file));
    test_ok(
        gpt_dataset_open(&dataset, &(const struct gpt_dataset_request){
                                       .tokens = file, .last = COUNT, .seq_length = TOKENS, .samples = 12, .seed = 1}));
    struct gpt_split split = {
        .length = SAMPLES, .seq_length = TOKENS, .rules = {-1, -1}, .part_count = 1, .parts = &dataset};
    char *path = cache_file(cache_directory);
    int descriptor = open(path, O_RDWR);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        uint32_t truth;
        int refused = 0;
        assert_int_equal(pread(descriptor, &truth, 4, lies[i].at), 4);
        assert_int_equal(pwrite(descriptor, &lies[i].value, 4, lies[i].at), 4);
        for (int64_t k = 0; k < SAMPLES; k++)
            if (gpt_split_get(&split, k, &sample)) {
                test_fails(gpt_split_get(&split, k, &sample), STATUS_INVALID, lies[i].part);
                refused++;
            }
        assert_true(refused > 0);
        assert_int_equal(pwrite(descriptor, &truth, 4, lies[i].at), 4);
        for (int64_t k = 0; k < SAMPLES; k++)
            test_ok(gpt_split_get(&split, k, &sample));
    }
    close(descriptor);
    gpt_dataset_close(&dataset);
    indexed_dataset_close(file);
    free(path);
}

/* The same prefix, number of documents and tokens, but other lengths: the file is replaced, not joined by another. */
static void a_stale_cache_is_replaced(void **state) {
    (void)state;
    struct indexed_dataset *file;
    struct gpt_dataset old, new;
    open_and_check(NULL, right);
    test_ok(indexed_dataset_open(prefix, &file));
    struct gpt_dataset_request request = {.tokens = file, .last = COUNT, .seq_length = 8, .samples = 12, .seed = 1234};
    test_ok(gpt_dataset_open(&old, &request));
    indexed_dataset_close(file);
    write_dataset(prefix, (const int32_t[]){10, 3, 7, 5, 4, 12}, COUNT, 0);
    test_ok(indexed_dataset_open(prefix, &file));
    request.tokens = file;
    test_ok(gpt_dataset_open(&new, &request));
    assert_memory_equal(new.document_index, right, sizeof right); /* the order depends on their number alone */
    assert_memory_not_equal(new.sample_index, old.sample_index, (SAMPLES + 1) * sizeof *new.sample_index);
    free(cache_file(cache_directory));
    gpt_dataset_close(&old);
    gpt_dataset_close(&new);
    indexed_dataset_close(file);
}

static void every_part_of_the_request_is_in_the_key(void **state) {
    (void)state;
    struct indexed_dataset *file;
    test_ok(indexed_dataset_open(prefix, &file));
    struct gpt_dataset_request base = {.tokens = file, .last = COUNT, .seq_length = 8, .samples = 12, .seed = 1234};
    struct gpt_dataset_request requests[6] = {base, base, base, base, base, base};
    requests[1].first = 1;
    requests[2].last = 5;
    requests[3].seq_length = 9;
    requests[4].samples = 13;
    requests[5].seed = 1235;
    for (size_t i = 0; i < 6; i++) {
        struct gpt_dataset dataset;
        test_ok(gpt_dataset_open(&dataset, &requests[i]));
        gpt_dataset_close(&dataset);
        assert_int_equal(count_files(cache_directory), i + 1);
    }
    indexed_dataset_close(file);
}

static void a_cache_that_cannot_be_written_is_no_failure(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/cache", directory);
    test_ok(file_write_atomic(path, "in the way", 10));
    open_and_check(NULL, right);
    open_and_check("/dev/null/no", right);
    open_and_check("/proc", right);
}

static void another_place_is_used_when_given(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/else/where", directory);
    open_and_check(path, right);
    open_and_check(path, right);
    free(cache_file(path));
    open_and_check("", right);
    assert_false(file_exists(cache_directory));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_cache_that_fits_is_read),
        TEST(a_damaged_cache_is_built_again),
        TEST(entries_out_of_range_are_not_believed),
        TEST(entries_that_change_in_use_are_refused),
        TEST(a_stale_cache_is_replaced),
        TEST(every_part_of_the_request_is_in_the_key),
        TEST(a_cache_that_cannot_be_written_is_no_failure),
        TEST(another_place_is_used_when_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
