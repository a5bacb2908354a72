/* Any bytes as PREFIX.idx, beside a .bin of the size that they ask for: opened, they must give samples whose tokens
 * were read from the file, or an error. */
#include "data/data.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char in_memory[] = "/dev/shm/cambium-fuzz-idx-XXXXXX", on_disk[] = "/tmp/cambium-fuzz-idx-XXXXXX";
static char *directory;

static void remove_directory(void) {
    file_remove_tree(directory);
}

/* The sum of the lengths times the token's size, so that the check of the .bin does not end every run. */
static int64_t bin_bytes(const uint8_t *data, size_t size) {
    static const unsigned char token_bytes[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    uint64_t sequences, total = 0;
    if (size < 34 || data[17] >= sizeof token_bytes)
        return 0;
    memcpy(&sequences, data + 18, 8);
    for (uint64_t i = 0; i < sequences && 34 + 4 * (i + 1) <= size; i++) {
        uint32_t length;
        memcpy(&length, data + 34 + 4 * i, 4);
        total += length;
    }
    return total < 1u << 30 ? (int64_t)(total * token_bytes[data[17]]) : 0;
}

static void write_files(const char *idx, const char *bin, const uint8_t *data, size_t size) {
    int descriptor = open(idx, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0 || file_write_all(descriptor, data, size, idx))
        abort();
    close(descriptor);
    descriptor = open(bin, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); /* zeros, with holes for blocks */
    if (descriptor < 0 || ftruncate(descriptor, bin_bytes(data, size)))
        abort();
    close(descriptor);
}

static void read_samples(const char *prefix) {
    const char *words[] = {prefix};
    struct gpt_data data;
    struct gpt_batch batch;
    struct gpt_data_options options = {
        .data_path = {words, 1},
        .split = "8,1,1",
        .seq_length = 5,
        .samples = {20, 3, GPT_ONE_EPOCH},
        .data_cache_path = "",
        .rules = {.eod_id = 0, .pad_id = -1, .vocab_size = 1, .reset_attention_mask = true},
    };
    if (gpt_data_open(&data, &options))
        return;
    if (gpt_batch_init(&batch, 1, 5))
        abort();
    for (int split = 0; split < SPLIT_COUNT; split++)
        for (int64_t k = 0; k < data.splits[split].length && k < 30; k++)
            if (gpt_batch_read(&batch, &data.splits[split], k) || batch.segments != 5 || batch.tokens[4] != 0)
                abort(); /* the .bin is all zeros and whole */
    gpt_batch_free(&batch);
    gpt_data_close(&data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char prefix[64], idx[80], bin[80];
    struct indexed_dataset *dataset;
    if (!prefix[0]) {
        directory = mkdtemp(in_memory) ? in_memory : mkdtemp(on_disk);
        if (!directory)
            abort();
        atexit(remove_directory);
        snprintf(prefix, sizeof prefix, "%s/f", directory);
        snprintf(idx, sizeof idx, "%s.idx", prefix);
        snprintf(bin, sizeof bin, "%s.bin", prefix);
    }
    write_files(idx, bin, data, size);
    if (!indexed_dataset_open(prefix, &dataset)) {
        bool is_small = dataset->tokens < 1 << 20;
        indexed_dataset_close(dataset);
        if (is_small)
            read_samples(prefix);
    }
    return 0;
}
