/* The header of a safetensors file that is to be written: all tensors first, then their places. */
#include "ckpt-internal.h"

struct planned {
    char *name;
    const char *type;
    int number; /* of the type, in the order of data */
    int dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t elements, start; /* start: in the data, then in the file */
};

struct safetensors_header {
    struct planned *tensors; /* in order of the calls */
    int count;
    size_t capacity;
    char *path;
    /* Set once the tensors have places. */
    char *bytes; /* those before the data */
    size_t byte_count;
    int64_t file_bytes;
};

int safetensors_header_new(struct safetensors_header **out) {
    *out = calloc(1, sizeof **out);
    return status_allocated(*out);
}

void safetensors_header_free(struct safetensors_header *header) {
    if (!header)
        return;
    for (int i = 0; i < header->count; i++)
        free(header->tensors[i].name);
    free(header->tensors);
    free(header->bytes);
    free(header->path);
    free(header);
}

int safetensors_header_add(struct safetensors_header *header, const char *name, const char *type, int dims,
                           const int64_t *shape) {
    TRY(array_reserve(&header->tensors, &header->capacity, (size_t)header->count + 1, sizeof *header->tensors));
    struct planned tensor = {.type = type, .number = safetensors_type_number(type), .dims = dims, .elements = 1};
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
        return status_no_memory();
    header->tensors[header->count] = tensor;
    return header->count++;
}

static int compare_order(const void *a, const void *b) {
    const struct planned *x = *(struct planned *const *)a, *y = *(struct planned *const *)b;
    int order = y->number - x->number;
    return order ? order : strcmp(x->name, y->name);
}

static json_t *describe(const struct planned *tensor, int64_t start, int64_t end) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->type, "shape", shape, "data_offsets", (json_int_t)start,
                     (json_int_t)end);
}

/* Makes the text of the header without padding, and places the tensors in the data. jansson keeps the order of
 * insertion. */
static int build_text(struct safetensors_header *header, struct planned **order, int64_t *data_bytes, char **text) {
    for (int i = 0; i < header->count; i++)
        order[i] = &header->tensors[i];
    if (header->count)
        qsort(order, (size_t)header->count, sizeof *order, compare_order);
    json_begin();
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool is_utf8 = true;
    int64_t at = 0;
    for (int i = 0; i < header->count; i++) {
        int64_t end;
        bool is_double = json_object_get(root, order[i]->name) != NULL;
        if (is_double ||
            __builtin_add_overflow(at, order[i]->elements * safetensors_type_bytes(order[i]->type), &end)) {
            json_decref(root);
            return status_fail(STATUS_INVALID, "%s: tensor '%s' %s", header->path, order[i]->name,
                               is_double ? "is planned twice" : "makes more bytes than a file can have");
        }
        order[i]->start = at;
        is_utf8 &= !json_object_set_new(root, order[i]->name, describe(order[i], at, end));
        at = end;
    }
    *data_bytes = at;
    int status = json_end(root, JSON_COMPACT, text);
    if (!status && !is_utf8) {
        free(*text);
        *text = NULL;
        status = status_fail(STATUS_INVALID, "the name of a tensor is not UTF-8");
    }
    return status ? status_wrap(status, "%s", header->path) : STATUS_OK;
}

/* Keeps the length of the header, then its text, padded with spaces. */
static int keep_bytes(struct safetensors_header *header, const char *text, int64_t data_bytes) {
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    uint64_t number = padded;
    header->byte_count = 8 + padded;
    header->bytes = malloc(header->byte_count);
    TRY(status_allocated(header->bytes));
    if (__builtin_add_overflow((int64_t)header->byte_count, data_bytes, &header->file_bytes))
        return status_fail(STATUS_INVALID, "%s: more bytes than a file can have", header->path);
    memcpy(header->bytes, &number, 8);
    memcpy(header->bytes + 8, text, length);
    memset(header->bytes + 8 + length, ' ', padded - length);
    for (int i = 0; i < header->count; i++)
        header->tensors[i].start += (int64_t)header->byte_count;
    return STATUS_OK;
}

int safetensors_header_place(struct safetensors_header *header, const char *path) {
    struct planned **order = calloc((size_t)header->count + 1, sizeof *order);
    char *text = NULL;
    int64_t data_bytes = 0;
    header->path = strdup(path);
    int status = order && header->path ? build_text(header, order, &data_bytes, &text) : status_no_memory();
    THEN(status, keep_bytes(header, text, data_bytes));
    free(order);
    free(text);
    return status;
}

const char *safetensors_header_bytes(const struct safetensors_header *header, size_t *header_bytes,
                                     int64_t *file_bytes) {
    *header_bytes = header->byte_count;
    *file_bytes = header->file_bytes;
    return header->bytes;
}

int64_t safetensors_header_start(const struct safetensors_header *header, int number) {
    return header->tensors[number].start;
}
