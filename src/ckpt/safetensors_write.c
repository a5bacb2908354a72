/* Writing safetensors: first the plan of all tensors, then the header, then data in any order. */
#include "ckpt-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct planned {
    char *name;
    enum dtype dtype;
    int dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t elements, start; /* start: in the data, then in the file */
};

struct safetensors_writer {
    struct planned *tensors; /* in order of the calls */
    int count, capacity;
    char *path;
    int descriptor; /* -1: none */
    /* Once it is placed: the bytes before the data, and those of the whole file. */
    char *header;
    size_t header_bytes;
    int64_t file_bytes;
};

int safetensors_writer_new(struct safetensors_writer **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "out of memory");
    (*out)->descriptor = -1;
    return STATUS_OK;
}

void safetensors_writer_free(struct safetensors_writer *writer) {
    if (!writer)
        return;
    if (writer->descriptor >= 0) {
        close(writer->descriptor);
        unlink(writer->path);
    }
    for (int i = 0; i < writer->count; i++)
        free(writer->tensors[i].name);
    free(writer->tensors);
    free(writer->header);
    free(writer->path);
    free(writer);
}

int safetensors_writer_add(struct safetensors_writer *writer, const char *name, enum dtype dtype, int dims,
                           const int64_t *shape) {
    if (writer->count == writer->capacity) {
        int capacity = writer->capacity ? writer->capacity * 2 : 64;
        struct planned *more = realloc(writer->tensors, (size_t)capacity * sizeof *more);
        if (!more)
            return status_fail(STATUS_MEMORY, "out of memory");
        writer->tensors = more;
        writer->capacity = capacity;
    }
    struct planned tensor = {.dtype = dtype, .dims = dims, .elements = 1};
    if (dims < 0 || dims > SAFETENSORS_MAX_DIMS)
        return status_fail(STATUS_INVALID, "tensor '%s' has %d dimensions, at most %d can be written", name, dims,
                           SAFETENSORS_MAX_DIMS);
    for (int i = 0; i < dims; i++) {
        tensor.shape[i] = shape[i];
        if (shape[i] < 0 || __builtin_mul_overflow(tensor.elements, shape[i], &tensor.elements))
            return status_fail(STATUS_INVALID, "tensor '%s' has an impossible shape", name);
    }
    if (tensor.elements > INT64_MAX / 16)
        return status_fail(STATUS_INVALID, "tensor '%s' has an impossible shape", name);
    if (!(tensor.name = strdup(name)))
        return status_fail(STATUS_MEMORY, "out of memory");
    writer->tensors[writer->count] = tensor;
    return writer->count++;
}

static int compare_order(const void *a, const void *b) {
    const struct planned *x = *(struct planned *const *)a, *y = *(struct planned *const *)b;
    int order = safetensors_type_rank(y->dtype) - safetensors_type_rank(x->dtype);
    return order ? order : strcmp(x->name, y->name);
}

static json_t *describe(const struct planned *tensor, int64_t start, int64_t end) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_type_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)start, (json_int_t)end);
}

/* The text of the header without padding; places the tensors in the data. jansson keeps the order of insertion. */
static int build_header(struct safetensors_writer *writer, struct planned **order, int64_t *data_bytes, char **text) {
    for (int i = 0; i < writer->count; i++)
        order[i] = &writer->tensors[i];
    if (writer->count)
        qsort(order, (size_t)writer->count, sizeof *order, compare_order);
    json_begin();
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool is_utf8 = true;
    int64_t at = 0;
    for (int i = 0; i < writer->count; i++) {
        int64_t end;
        bool is_double = json_object_get(header, order[i]->name) != NULL;
        if (is_double || __builtin_add_overflow(at, order[i]->elements * (int64_t)dtype_bytes(order[i]->dtype), &end)) {
            json_decref(header);
            return status_fail(STATUS_INVALID, "%s: tensor '%s' %s", writer->path, order[i]->name,
                               is_double ? "is planned twice" : "makes more bytes than a file can have");
        }
        order[i]->start = at;
        is_utf8 &= !json_object_set_new(header, order[i]->name, describe(order[i], at, end));
        at = end;
    }
    *data_bytes = at;
    int status = json_end(header, JSON_COMPACT, text);
    if (!status && !is_utf8) {
        free(*text);
        *text = NULL;
        status = status_fail(STATUS_INVALID, "the name of a tensor is no UTF-8");
    }
    return status ? status_wrap(status, "%s", writer->path) : STATUS_OK;
}

int file_reserve(int descriptor, int64_t bytes, const char *path) {
    if (bytes == 0 || fallocate(descriptor, 0, 0, bytes) == 0)
        return STATUS_OK;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(descriptor, bytes) == 0)
        return STATUS_OK;
    return status_fail_errno("cannot write %lld bytes to %s", (long long)bytes, path);
}

/* The text of the header behind its length, padded with spaces. */
static int keep_header(struct safetensors_writer *writer, const char *text, int64_t data_bytes) {
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    uint64_t number = padded;
    writer->header_bytes = 8 + padded;
    writer->header = malloc(writer->header_bytes);
    if (!writer->header)
        return status_fail(STATUS_MEMORY, "out of memory");
    if (__builtin_add_overflow((int64_t)writer->header_bytes, data_bytes, &writer->file_bytes))
        return status_fail(STATUS_INVALID, "%s: more bytes than a file can have", writer->path);
    memcpy(writer->header, &number, 8);
    memcpy(writer->header + 8, text, length);
    memset(writer->header + 8 + length, ' ', padded - length);
    for (int i = 0; i < writer->count; i++)
        writer->tensors[i].start += (int64_t)writer->header_bytes;
    return STATUS_OK;
}

int safetensors_writer_place(struct safetensors_writer *writer, const char *path) {
    struct planned **order = calloc((size_t)writer->count + 1, sizeof *order);
    char *text = NULL;
    int64_t data_bytes = 0;
    writer->path = strdup(path);
    int status = order && writer->path ? build_header(writer, order, &data_bytes, &text)
                                       : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = keep_header(writer, text, data_bytes);
    free(order);
    free(text);
    return status;
}

const char *safetensors_writer_header(const struct safetensors_writer *writer, size_t *header_bytes,
                                      int64_t *file_bytes) {
    *header_bytes = writer->header_bytes;
    *file_bytes = writer->file_bytes;
    return writer->header;
}

int64_t safetensors_writer_start(const struct safetensors_writer *writer, int number) {
    return writer->tensors[number].start;
}

int safetensors_writer_create(struct safetensors_writer *writer, const char *path) {
    int status = safetensors_writer_place(writer, path);
    if (status)
        return status;
    writer->descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->descriptor < 0)
        return status_fail_errno("cannot create %s", path);
    status = file_reserve(writer->descriptor, writer->file_bytes, path);
    return status ? status : file_pwrite_all(writer->descriptor, writer->header, writer->header_bytes, 0, path);
}

int safetensors_writer_write(const struct safetensors_writer *writer, int number, int64_t first, int64_t count,
                             const void *values) {
    const struct planned *tensor = &writer->tensors[number];
    int64_t width = (int64_t)dtype_bytes(tensor->dtype);
    if (first < 0 || count < 0 || first > tensor->elements || count > tensor->elements - first)
        return status_fail(STATUS_INVALID, "%s: elements [%lld, +%lld) of tensor '%s', which has %lld", writer->path,
                           (long long)first, (long long)count, tensor->name, (long long)tensor->elements);
    return file_pwrite_all(writer->descriptor, values, (size_t)(count * width), tensor->start + first * width,
                           writer->path);
}

int safetensors_writer_finish(struct safetensors_writer *writer) {
    if (fsync(writer->descriptor))
        return status_fail_errno("cannot sync %s", writer->path);
    int result = close(writer->descriptor);
    writer->descriptor = -1;
    if (!result)
        return STATUS_OK;
    int status = status_fail_errno("cannot write %s", writer->path);
    unlink(writer->path);
    return status;
}
