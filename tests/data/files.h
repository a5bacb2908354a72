/* Small indexed datasets for the tests of this room. */
#ifndef CAMBIUM_TESTS_DATA_FILES_H
#define CAMBIUM_TESTS_DATA_FILES_H

#include "data/data.h"
#include "support/test.h"

/* Token i of the files that tools/golden/megatron_data.py makes. */
static inline int32_t golden_token(int64_t i, int64_t salt) {
    return (int32_t)((i * i + 13 * i + salt) % 89 % 11);
}

/* PREFIX.bin and .idx with a document for each length. */
static inline void write_dataset(const char *prefix, const int32_t *lengths, size_t count, int64_t salt) {
    struct indexed_writer writer;
    int64_t at = 0;
    test_ok(indexed_writer_open(&writer, prefix, TOKEN_U16, 31));
    for (size_t i = 0; i < count; i++) {
        int32_t *tokens = malloc(((size_t)lengths[i] + 1) * sizeof *tokens);
        assert_non_null(tokens);
        for (int32_t k = 0; k < lengths[i]; k++)
            tokens[k] = golden_token(at++, salt);
        test_ok(indexed_writer_add_sequence(&writer, tokens, lengths[i]));
        test_ok(indexed_writer_end_document(&writer));
        free(tokens);
    }
    test_ok(indexed_writer_commit(&writer));
}

/* The bytes of a file; free with strbuf_free. */
static inline struct strbuf read_whole(const char *path) {
    struct strbuf bytes = STRBUF_INIT;
    test_ok(file_read(path, 1 << 24, &bytes));
    return bytes;
}

static inline size_t count_files(const char *directory) {
    char **names;
    size_t count;
    test_ok(file_list(directory, &names, &count));
    file_list_free(names, count);
    return count;
}

#endif
