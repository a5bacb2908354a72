/* Any bytes as a GGUF file (by way of a file in memory). It is refused in one line, or every tensor can be read to its
 * last element. Opening it as a model is refused in one line, or every tensor of the model can be read. Converting it
 * is refused in one line, or makes a directory that opens. */
#include "ckpt/gguf.h"
#include "convert/convert.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "gguf_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void require_one_line(void) {
    require(*status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
}

/* Columns that begin inside a block, in their bits. */
static void read_encoded(const struct gguf_tensor *tensor) {
    static uint64_t memory[4096];
    int64_t columns = tensor->shape[tensor->dims - 1], column = columns / 3;
    struct encoded_part part = {.rows = 1, .positions = columns - column < 1000 ? columns - column : 1000};
    if (!gguf_describe(tensor, column, part.positions, &part.encoding))
        return;
    require(encoded_rows_bytes(&part) <= sizeof memory, "a row is too large");
    const struct encoded_rows rows = encoded_rows_place(&part, memory);
    int status = gguf_read_encoded(tensor, &(const struct gguf_rows){(const int64_t[]){0}, 1, column, 0}, &rows);
    require(!status || status == STATUS_INVALID, "a tensor's bits cannot be read"); /* or a scale is nan */
}

static void read_all(const struct gguf *file) {
    static float values[1000];
    for (size_t i = 0; i < gguf_count(file); i++) {
        const struct gguf_tensor *tensor = gguf_at(file, i);
        require(gguf_find(file, tensor->name) == tensor && gguf_index(file, tensor) == i, "a tensor is not found");
        read_encoded(tensor);
        for (int64_t at = 0; at < tensor->elements; at += 1000) {
            int64_t n = tensor->elements - at < 1000 ? tensor->elements - at : 1000;
            int status = gguf_read(tensor, at, n, DTYPE_F32, values);
            require(!status || status == STATUS_INVALID, "a tensor within the file cannot be read"); /* or is nan */
        }
        require(gguf_read(tensor, tensor->elements, 1, DTYPE_F32, values) == STATUS_INVALID, "read past the end");
    }
}

static void read_keys(const struct gguf *file) {
    const struct gguf_keys all = gguf_keys(file, "");
    const char *key;
    size_t count;
    for (size_t i = 0; (key = gguf_key_at(&all, i)); i++) {
        struct gguf_keys keys = all;
        require(gguf_has(&keys, key) || strlen(key) > 150, "a key is not found");
        gguf_integer(&keys, key, 0, INT64_MIN, INT64_MAX);
        keys.status = 0;
        gguf_number(&keys, key, 0, -1, 1);
        keys.status = 0;
        gguf_string(&keys, key, "");
        keys.status = 0;
        free(gguf_texts(&keys, key, &count));
        keys.status = 0;
        free(gguf_numbers(&keys, key, &count));
    }
}

/* A model whose tokenizer is damaged opens, too. */
static void open_it(const char *path) {
    static char values[4 * 1000];
    struct pretrained model;
    struct tokenizer_files files;
    int status = pretrained_open(path, NULL, &model);
    if (status)
        require_one_line();
    for (size_t i = 0; !status && i < ckpt_count(model.tensors); i++) {
        const struct safetensor *tensor = ckpt_tensor_at(model.tensors, i);
        int64_t width = tensor->bytes / tensor->elements;
        for (int64_t at = 0; at < tensor->bytes; at += 999 * width) {
            int64_t left = tensor->bytes - at, n = left < 999 * width ? left : 999 * width;
            int read = ckpt_read_bytes(model.tensors, i, at, n, values);
            require(!read || read == STATUS_INVALID, "a tensor of a model cannot be read"); /* or is nan */
        }
    }
    pretrained_close(&model);
    if (pretrained_read_tokenizer(path, &files))
        require_one_line();
    else
        tokenizer_files_free(&files);
}

static void convert_it(const char *path) {
    /* Synced files in memory cost nothing. */
    char directory[64], model[96];
    struct pretrained opened;
    snprintf(directory, sizeof directory, "%s/cambium-fuzz-XXXXXX",
             file_is_directory("/dev/shm") ? "/dev/shm" : "/tmp");
    require(mkdtemp(directory) != NULL, "no directory");
    snprintf(model, sizeof model, "%s/model", directory);
    if (convert(&(struct convert_request){.from = path, .output = model})) {
        require_one_line();
        require(!file_exists(model), "a part of a directory was written");
    } else {
        require(!pretrained_open(model, NULL, &opened), "what was written does not open");
        pretrained_close(&opened);
    }
    file_remove_tree(directory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    struct gguf *file;
    log_quiet(true);
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    require(descriptor >= 0 && file_pwrite_all(descriptor, data, size, 0, "fuzz") == 0, "no file");
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (gguf_open(path, &file)) {
        require(file == NULL, "a file that was refused");
        require_one_line();
    } else {
        read_all(file);
        read_keys(file);
        gguf_close(file);
        open_it(path);
        convert_it(path);
    }
    close(descriptor);
    return 0;
}
