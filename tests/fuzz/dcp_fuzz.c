/* Any bytes as a directory of PyTorch's distributed checkpoint. The first byte says what the others are: the list, with
 * the archive of one tensor next to it; or the archive, with a list that has one tensor. The directory is refused in
 * one line, or every byte of every tensor can be read. */
#include "ckpt/exchange.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    char directory[64];
    struct strbuf list, archive; /* of a good directory */
} fuzz;

static void require(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "dcp_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void remove_directory(void) {
    file_remove_tree(fuzz.directory);
}

static void begin(void) {
    static const char golden[] = TEST_DATA "/ckpt/golden/dcp/no_version";
    if (*fuzz.directory)
        return;
    log_quiet(true);
    snprintf(fuzz.directory, sizeof fuzz.directory, "%s/cambium-fuzz-XXXXXX",
             file_is_directory("/dev/shm") ? "/dev/shm" : "/tmp");
    require(mkdtemp(fuzz.directory) != NULL, "no directory");
    atexit(remove_directory);
    char path[4096];
    snprintf(path, sizeof path, "%s/.metadata", golden);
    require(!file_read(path, 1 << 20, &fuzz.list), "no list");
    snprintf(path, sizeof path, "%s/__0_0.distcp", golden);
    require(!file_read(path, 1 << 20, &fuzz.archive), "no archive");
}

static void write_file(const char *name, const void *bytes, size_t length) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fuzz.directory, name);
    FILE *file = fopen(path, "wb");
    require(file && fwrite(bytes, 1, length, file) == length && !fclose(file), "cannot write");
}

static void read_all(const struct ckpt_tensors *tensors) {
    static char values[1 << 16];
    for (size_t t = 0; t < ckpt_count(tensors); t++) {
        int64_t bytes = ckpt_tensor_at(tensors, t)->bytes;
        int status = STATUS_OK;
        for (int64_t at = 0; at < bytes && !status; at += (int64_t)sizeof values) {
            int64_t left = bytes - at;
            status =
                ckpt_read_bytes(tensors, t, at, left < (int64_t)sizeof values ? left : (int64_t)sizeof values, values);
            require(!status || (*status_text() && !strchr(status_text(), '\n')), "refused without one line");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ckpt_tensors *tensors;
    int64_t objects;
    begin();
    bool is_list = size && data[0] & 1;
    data += size > 0;
    size -= size > 0;
    write_file(".metadata", is_list ? (const char *)data : fuzz.list.data, is_list ? size : fuzz.list.length);
    write_file("__0_0.distcp", is_list ? fuzz.archive.data : (const char *)data, is_list ? fuzz.archive.length : size);
    if (exchange_open_dcp(fuzz.directory, &tensors, &objects)) {
        require(!tensors, "a directory that was refused");
        require(*status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
    } else {
        read_all(tensors);
        ckpt_close(tensors);
    }
    return 0;
}
