/* Any bytes as a safetensors file (by way of a file in memory): what opens must be readable to its last element, and
 * its tensors must cover its data. Bytes that begin with '{' are an index of shards beside a good shard instead. */
#include "ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds)
        abort();
}

static void read_all(const struct safetensors *file, const struct safetensor *tensor) {
    static float values[1024];
    for (int64_t at = 0; at < tensor->elements && tensor->bytes > 0; at += 1024) {
        int64_t n = tensor->elements - at < 1024 ? tensor->elements - at : 1024;
        int status = safetensors_read(file, tensor, at, n, DTYPE_F32, values);
        require(status == 0 || status == STATUS_UNSUPPORTED);
    }
    require(safetensors_read(file, tensor, tensor->elements, 1, DTYPE_F32, values) == STATUS_INVALID);
    require(safetensors_find(file, tensor->name) == tensor);
}

/* The same bytes without a file open as well, and are read as well, or are refused by the same words. */
static void same_bytes(const char *path, const uint8_t *data, size_t size, const struct safetensors *file) {
    static float values[2][256];
    struct safetensors *other;
    char text[1024] = "";
    if (!file)
        snprintf(text, sizeof text, "%s", status_text());
    int status = safetensors_open_bytes(path, data, size, &other);
    require(!status == (file != NULL) && (file || !strncmp(text, status_text(), sizeof text - 1)));
    for (size_t i = 0; file && i < safetensors_count(file); i++) {
        const struct safetensor *tensor = safetensors_at(file, i);
        int64_t n = tensor->elements < 256 ? tensor->elements : 256;
        int codes[2] = {
            safetensors_read(file, tensor, tensor->elements - n, n, DTYPE_F32, values[0]),
            safetensors_read(other, safetensors_at(other, i), tensor->elements - n, n, DTYPE_F32, values[1])};
        require(codes[0] == codes[1] && (codes[0] || !memcmp(values[0], values[1], (size_t)n * sizeof(float))));
    }
    safetensors_close(other);
}

static void one_file(const uint8_t *data, size_t size) {
    char path[64];
    struct safetensors *file;
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    require(descriptor >= 0 && file_pwrite_all(descriptor, data, size, 0, "fuzz") == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int status = safetensors_open(path, &file);
    same_bytes(path, data, size, file);
    if (status) {
        require(file == NULL && *status_text() && !strchr(status_text(), '\n'));
    } else {
        int64_t bytes = 0;
        for (size_t i = 0; i < safetensors_count(file); i++) {
            bytes += safetensors_at(file, i)->bytes;
            read_all(file, safetensors_at(file, i));
        }
        require(bytes <= (int64_t)size);
        safetensors_close(file);
    }
    close(descriptor);
}

static void write_file(const char *directory, const char *name, const void *bytes, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    require(f && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
}

static void one_index(const uint8_t *data, size_t size) {
    static const char shard[] =
        "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0";
    char directory[] = "/tmp/cambium-fuzz-XXXXXX";
    struct ckpt_tensors *tensors;
    require(mkdtemp(directory) != NULL);
    write_file(directory, "s.safetensors", shard, sizeof shard);
    write_file(directory, "model.safetensors.index.json", data, size);
    if (ckpt_open_model(directory, &tensors))
        require(tensors == NULL && *status_text() && !strchr(status_text(), '\n'));
    ckpt_close(tensors);
    file_remove_tree(directory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 0 && data[0] == '{')
        one_index(data, size);
    else
        one_file(data, size);
    return 0;
}
