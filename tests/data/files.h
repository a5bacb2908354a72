/* Small indexed datasets for the tests of this room. */
#pragma once

#include "data/data.h"
#include "support/test.h"

/* Token i of the files that tools/golden/megatron_data.py makes. */
static inline int32_t golden_token(int64_t i, int64_t salt) {
    return (int32_t)((i * i + 13 * i + salt) % 89 % 11);
}

/* PREFIX.bin and .idx with a document for each length, without the writer of the room (and its waits for the disk). */
static inline void write_dataset(const char *prefix, const int32_t *lengths, size_t count, int64_t salt) {
    char path[512];
    snprintf(path, sizeof path, "%s.bin", prefix);
    FILE *bin = fopen(path, "wb");
    snprintf(path, sizeof path, "%s.idx", prefix);
    FILE *idx = fopen(path, "wb");
    assert_true(bin && idx);
    uint64_t numbers[] = {count, count + 1};
    fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 1, 18, idx);
    fwrite(numbers, 8, 2, idx);
    fwrite(lengths, 4, count, idx);
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t offset = 2 * at;
        fwrite(&offset, 8, 1, idx);
        for (int32_t k = 0; k < lengths[i]; k++) {
            uint16_t token = (uint16_t)golden_token(at++, salt);
            fwrite(&token, 2, 1, bin);
        }
    }
    for (uint64_t i = 0; i <= count; i++)
        fwrite(&i, 8, 1, idx);
    assert_int_equal(fclose(bin), 0);
    assert_int_equal(fclose(idx), 0);
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
