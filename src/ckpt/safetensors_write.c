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
    int descriptor;  /* -1: none */
    bool is_creator; /* who made the file removes it when it is not finished */
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
        if (writer->is_creator)
            unlink(writer->path);
    }
    for (int i = 0; i < writer->count; i++)
        free(writer->tensors[i].name);
    free(writer->tensors);
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
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int failures = !header;
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
        failures += json_object_set_new(header, order[i]->name, describe(order[i], at, end)) != 0;
        at = end;
    }
    *data_bytes = at;
    *text = failures ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return *text ? STATUS_OK
                 : status_fail(STATUS_MEMORY, "%s: cannot build the header (memory, or a name is no UTF-8)",
                               writer->path);
}

/* Blocks for the whole file now, so that a full disk fails here and not in the middle. Not every file system can. */
static int reserve(const struct safetensors_writer *writer, int64_t bytes) {
    if (bytes == 0 || fallocate(writer->descriptor, 0, 0, bytes) == 0)
        return STATUS_OK;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(writer->descriptor, bytes) == 0)
        return STATUS_OK;
    return status_fail_errno("cannot write %lld bytes to %s", (long long)bytes, writer->path);
}

/* The bytes before the data. */
struct header {
    char *bytes;
    size_t length;
    int64_t file_bytes; /* of the whole file */
};

static int make_header(struct safetensors_writer *writer, const char *path, struct header *header) {
    struct planned **order = calloc((size_t)writer->count + 1, sizeof *order);
    char *text = NULL;
    int64_t data_bytes = 0;
    *header = (struct header){0};
    writer->path = strdup(path);
    int status = order && writer->path ? build_header(writer, order, &data_bytes, &text)
                                       : status_fail(STATUS_MEMORY, "out of memory");
    free(order);
    if (status)
        return status;
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    uint64_t number = padded;
    header->length = 8 + padded;
    header->bytes = malloc(header->length);
    if (!header->bytes) {
        status = status_fail(STATUS_MEMORY, "out of memory");
    } else if (__builtin_add_overflow((int64_t)header->length, data_bytes, &header->file_bytes)) {
        status = status_fail(STATUS_INVALID, "%s: more bytes than a file can have", path);
    } else {
        memcpy(header->bytes, &number, 8);
        memcpy(header->bytes + 8, text, length);
        memset(header->bytes + 8 + length, ' ', padded - length);
        for (int i = 0; i < writer->count; i++)
            writer->tensors[i].start += (int64_t)header->length;
    }
    free(text);
    return status;
}

int safetensors_writer_create(struct safetensors_writer *writer, const char *path) {
    struct header header;
    int status = make_header(writer, path, &header);
    if (!status) {
        writer->descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        writer->is_creator = true;
        status =
            writer->descriptor < 0 ? status_fail_errno("cannot create %s", path) : reserve(writer, header.file_bytes);
    }
    if (!status)
        status = file_pwrite_all(writer->descriptor, header.bytes, header.length, 0, path);
    free(header.bytes);
    return status;
}

/* Values must not go where another plan has others. */
static int check_same_plan(const struct safetensors_writer *writer, const struct header *header) {
    struct stat info;
    char *found = malloc(header->length);
    int status = found ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    if (!status && fstat(writer->descriptor, &info))
        status = status_fail_errno("cannot read %s", writer->path);
    bool is_same = !status && info.st_size == header->file_bytes;
    if (is_same) {
        status = file_pread_all(writer->descriptor, found, header->length, 0, writer->path);
        is_same = !status && !memcmp(found, header->bytes, header->length);
    }
    if (!status && !is_same)
        status = status_fail(STATUS_INVALID, "%s was created for other tensors than are to be written", writer->path);
    free(found);
    return status;
}

int safetensors_writer_open(struct safetensors_writer *writer, const char *path) {
    struct header header;
    int status = make_header(writer, path, &header);
    if (!status) {
        writer->descriptor = open(path, O_RDWR | O_CLOEXEC);
        status = writer->descriptor < 0 ? status_fail_errno("cannot open %s", path) : check_same_plan(writer, &header);
    }
    free(header.bytes);
    return status;
}

int safetensors_writer_leave(struct safetensors_writer *writer) {
    int result = close(writer->descriptor);
    writer->descriptor = -1;
    return result ? status_fail_errno("cannot write %s", writer->path) : STATUS_OK;
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
    if (writer->is_creator)
        unlink(writer->path);
    return status;
}
