/* Reading safetensors: the whole header is checked before anything in it is trusted. The rules are those of the
 * reference implementation (safetensors 0.8, tensor.rs). The header has at most 100 MB and no duplicate keys, and
 * tensors are adjacent from the first byte of the data to the last. */
#include "ckpt-internal.h"
#include "exchange.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_LIMIT = 100000000, LENGTH_BYTES = 8 };

/* The types of the format in the reference's order (its enum, by width), which is the order of data in a file. */
static const struct {
    const char *name;
    int bytes;
    enum dtype dtype;
} types[] = {
    {"BOOL", 1, DTYPE_COUNT},   {"U8", 1, DTYPE_U8},         {"I8", 1, DTYPE_I8},     {"F8_E5M2", 1, DTYPE_COUNT},
    {"F8_E4M3", 1, DTYPE_E4M3}, {"F8_E8M0", 1, DTYPE_COUNT}, {"I16", 2, DTYPE_COUNT}, {"U16", 2, DTYPE_U16},
    {"F16", 2, DTYPE_F16},      {"BF16", 2, DTYPE_BF16},     {"I32", 4, DTYPE_I32},   {"U32", 4, DTYPE_COUNT},
    {"F32", 4, DTYPE_F32},      {"C64", 8, DTYPE_COUNT},     {"F64", 8, DTYPE_F64},   {"I64", 8, DTYPE_I64},
    {"U64", 8, DTYPE_COUNT},
};
enum { TYPE_COUNT = sizeof types / sizeof *types };

const char *safetensors_type_name(enum dtype dtype) {
    int number = 0;
    while (types[number].dtype != dtype)
        number++;
    return types[number].name;
}

int safetensors_type_number(const char *type) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (!strcmp(types[i].name, type))
            return i;
    return -1;
}

enum dtype safetensors_type_dtype(const char *type) {
    return types[safetensors_type_number(type)].dtype;
}

int64_t safetensors_type_bytes(const char *type) {
    return types[safetensors_type_number(type)].bytes;
}

int json_object_parse(const char *path, int64_t position, const char *text, size_t length, json_t **object) {
    json_error_t error;
    char word[SHOWN_BYTES];
    int status = json_read(text, length, JSON_REJECT_DUPLICATES, object, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: damaged JSON at byte %lld (line %d): %s", path, (long long)position + error.position,
                    error.line, shown(error.text, word));
    TRY(status);
    if (json_is_object(*object))
        return STATUS_OK;
    json_decref(*object);
    *object = NULL;
    return status_fail(STATUS_INVALID, "%s: expected a JSON object at byte %lld", path, (long long)position);
}

/* A message about a tensor of the header: "FILE: tensor 'NAME': ...". */
#define tensor_fail(file, tensor, format, ...)                                                                         \
    status_fail(STATUS_INVALID, "%s: tensor '%s': " format, (file)->path,                                              \
                shown((tensor)->name, (char[SHOWN_BYTES]){0}), __VA_ARGS__)

static int check_type(const struct safetensors *file, struct safetensor *tensor, json_t *value, int64_t *width) {
    const char *name = json_string_value(value);
    char word[SHOWN_BYTES];
    for (int i = 0; name && i < TYPE_COUNT; i++)
        if (!strcmp(types[i].name, name)) {
            tensor->type = types[i].name;
            tensor->dtype = types[i].dtype;
            *width = types[i].bytes;
            return STATUS_OK;
        }
    return tensor_fail(file, tensor, "unknown dtype '%s' (expected F32, F16, BF16, F64, I64, ...)",
                       name ? shown(name, word) : "(no text)");
}

static int check_shape(const struct safetensors *file, struct safetensor *tensor, json_t *value, int64_t width) {
    if (!json_is_array(value) || json_array_size(value) > SAFETENSORS_MAX_DIMS)
        return tensor_fail(file, tensor, "shape must be a list of at most %d sizes", SAFETENSORS_MAX_DIMS);
    tensor->dims = (int)json_array_size(value);
    tensor->elements = 1;
    for (int i = 0; i < tensor->dims; i++) {
        json_t *size = json_array_get(value, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return tensor_fail(file, tensor, "size %d of the shape must be an integer of at least 0", i);
        tensor->shape[i] = json_integer_value(size);
        if (__builtin_mul_overflow(tensor->elements, tensor->shape[i], &tensor->elements))
            return tensor_fail(file, tensor, "the shape has more elements than fit 64 bits (size %d is %lld)", i,
                               (long long)tensor->shape[i]);
    }
    if (__builtin_mul_overflow(tensor->elements, width, &tensor->bytes))
        return tensor_fail(file, tensor, "%lld elements are more bytes than fit 64 bits", (long long)tensor->elements);
    return STATUS_OK;
}

static int check_offsets(const struct safetensors *file, struct safetensor *tensor, json_t *value, int64_t data_start,
                         int64_t data_bytes) {
    json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return tensor_fail(file, tensor, "data_offsets must be %s", "two integers [begin, end]");
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin || end > data_bytes)
        return tensor_fail(file, tensor,
                           "data_offsets [%lld, %lld] are outside the %lld bytes of data from byte %lld on",
                           (long long)begin, (long long)end, (long long)data_bytes, (long long)data_start);
    if (end - begin != tensor->bytes)
        return tensor_fail(file, tensor, "%lld bytes at byte %lld, but its dtype and shape make %lld",
                           (long long)(end - begin), (long long)(data_start + begin), (long long)tensor->bytes);
    tensor->start = data_start + begin;
    return STATUS_OK;
}

static int check_metadata(const struct safetensors *file, json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return status_fail(STATUS_INVALID, "%s: __metadata__ must be an object", file->path);
    json_object_foreach(metadata, key, value) {
        char word[SHOWN_BYTES];
        if (!json_is_string(value))
            return status_fail(STATUS_INVALID, "%s: value of '%s' in __metadata__ must be a string", file->path,
                               shown(key, word));
    }
    return STATUS_OK;
}

static int check_tensor(const struct safetensors *file, struct safetensor *tensor, json_t *value, int64_t data_start,
                        int64_t data_bytes) {
    int64_t width = 0;
    for (const char *c = tensor->name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return tensor_fail(file, tensor, "control character 0x%02x in its name", (unsigned char)*c);
    if (!json_is_object(value))
        return tensor_fail(file, tensor, "must be %s", "an object with dtype, shape and data_offsets");
    TRY(check_type(file, tensor, json_object_get(value, "dtype"), &width));
    TRY(check_shape(file, tensor, json_object_get(value, "shape"), width));
    return check_offsets(file, tensor, json_object_get(value, "data_offsets"), data_start, data_bytes);
}

static int compare_places(const void *a, const void *b) {
    const struct safetensor *x = a, *y = b;
    int64_t order = x->start != y->start ? x->start - y->start : x->bytes - y->bytes;
    return (order > 0) - (order < 0);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static int check_cover(struct safetensors *file, int64_t data_start, int64_t file_bytes) {
    if (file->count)
        qsort(file->tensors, file->count, sizeof *file->tensors, compare_places);
    int64_t end = data_start;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        if (tensor->start < end)
            return tensor_fail(file, tensor, "starts at byte %lld inside tensor '%s', which ends at byte %lld",
                               (long long)tensor->start, shown(file->tensors[i - 1].name, (char[SHOWN_BYTES]){0}),
                               (long long)end);
        if (tensor->start > end)
            return tensor_fail(file, tensor, "starts at byte %lld, %lld bytes after the end of the data before it",
                               (long long)tensor->start, (long long)(tensor->start - end));
        end = tensor->start + tensor->bytes;
    }
    if (end != file_bytes)
        return status_fail(STATUS_INVALID, "%s: %lld bytes after the last tensor, which ends at byte %lld", file->path,
                           (long long)(file_bytes - end), (long long)end);
    return STATUS_OK;
}

static int check_header(struct safetensors *file, int64_t data_start, int64_t file_bytes) {
    const char *key;
    json_t *value;
    size_t entries = json_object_size(file->header);
    file->tensors = calloc(entries + 1, sizeof *file->tensors);
    if (!file->tensors)
        return status_fail(STATUS_MEMORY, "out of memory for %zu tensors of %s", entries, file->path);
    json_object_foreach(file->header, key, value) {
        int status;
        if (!strcmp(key, "__metadata__")) {
            status = check_metadata(file, value);
        } else {
            file->tensors[file->count].name = key;
            status = check_tensor(file, &file->tensors[file->count++], value, data_start, file_bytes - data_start);
        }
        TRY(status);
    }
    int status = check_cover(file, data_start, file_bytes);
    if (!status && file->count)
        qsort(file->tensors, file->count, sizeof *file->tensors, compare_names);
    return status;
}

/* Reads `length` bytes from byte `start` of the file on. */
static int read_at(const struct safetensors *file, void *out, size_t length, int64_t start) {
    if (file->descriptor >= 0)
        return file_pread_all(file->descriptor, out, length, start, file->path);
    if (start > file->size || length > (uint64_t)(file->size - start))
        return status_fail(STATUS_INVALID, "%s: %zu bytes at byte %lld, but it ends at byte %lld", file->path, length,
                           (long long)start, (long long)file->size);
    if (length)
        memcpy(out, file->bytes + start, length);
    return STATUS_OK;
}

/* Reads `length` bytes of a tensor from its byte `first` on. */
static int read_tensor_bytes(const struct safetensors *file, const struct safetensor *tensor, int64_t first,
                             size_t length, void *out) {
    return file->source ? file->source->read(file->source->context, (size_t)tensor->start, first, length, out)
                        : read_at(file, out, length, tensor->start + first);
}

static int read_header(struct safetensors *file) {
    if (file->size < LENGTH_BYTES)
        return status_fail(STATUS_INVALID, "%s: %lld bytes, but the length of the header takes %d", file->path,
                           (long long)file->size, LENGTH_BYTES);
    uint64_t length;
    TRY(read_at(file, &length, LENGTH_BYTES, 0));
    if (length > HEADER_LIMIT)
        return status_fail(STATUS_INVALID, "%s: header of %llu bytes (byte 0), more than the %d allowed", file->path,
                           (unsigned long long)length, HEADER_LIMIT);
    if (length > (uint64_t)file->size - LENGTH_BYTES)
        return status_fail(STATUS_INVALID, "%s: header of %llu bytes (byte 0), but the file ends %lld bytes after it",
                           file->path, (unsigned long long)length, (long long)file->size - LENGTH_BYTES);
    char *text = malloc(length + 1);
    if (!text)
        return status_fail(STATUS_MEMORY, "out of memory for the header of %s", file->path);
    int status = read_at(file, text, length, LENGTH_BYTES);
    THEN(status, json_object_parse(file->path, LENGTH_BYTES, text, length, &file->header));
    free(text);
    return status ? status : check_header(file, LENGTH_BYTES + (int64_t)length, file->size);
}

/* Reads the header from bytes, from an open file, or else from the file `path`. */
static int open_file(const char *path, struct safetensors **out) {
    struct safetensors *file = *out;
    int status = (file->path = strdup(path)) ? STATUS_OK : status_no_memory();
    if (!status && !file->bytes && file->descriptor < 0) {
        int descriptor;
        status = file_open_to_read(path, &descriptor, &file->size);
        file->descriptor = status ? -1 : descriptor;
    }
    THEN(status, read_header(file));
    if (status) {
        safetensors_close(file);
        *out = NULL;
    }
    return status;
}

int safetensors_open(const char *path, struct safetensors **out) {
    struct safetensors *file = *out = calloc(1, sizeof *file);
    TRY(status_allocated(file));
    file->descriptor = -1;
    return open_file(path, out);
}

int safetensors_open_bytes(const char *path, const void *bytes, size_t length, struct safetensors **out) {
    struct safetensors *file = *out = calloc(1, sizeof *file);
    TRY(status_allocated(file));
    *file = (struct safetensors){.descriptor = -1, .bytes = bytes, .size = (int64_t)length};
    return open_file(path, out);
}

int safetensors_open_descriptor(const char *path, int descriptor, struct safetensors **out) {
    struct stat info;
    struct safetensors *file = *out = calloc(1, sizeof *file);
    TRY(status_allocated(file));
    file->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (file->descriptor >= 0 && !fstat(file->descriptor, &info)) {
        file->size = info.st_size;
        return open_file(path, out);
    }
    int status = status_fail_errno("cannot open %s", path);
    safetensors_close(file);
    *out = NULL;
    return status;
}

int safetensors_open_source(const char *path, const struct safetensor *tensors, size_t count,
                            const struct tensor_source *source, struct safetensors **out) {
    struct safetensors *file = *out = calloc(1, sizeof *file);
    if (file) {
        file->descriptor = -1;
        file->path = strdup(path);
        file->tensors = calloc(count + 1, sizeof *tensors);
        file->source = malloc(sizeof *source);
    }
    if (!file || !file->path || !file->tensors || !file->source) {
        if (file)
            free(file->source);
        if (file)
            file->source = NULL;
        safetensors_close(file);
        *out = NULL;
        return status_no_memory();
    }
    *file->source = *source;
    file->count = count;
    for (size_t i = 0; i < count; i++) {
        file->tensors[i] = tensors[i];
        file->tensors[i].start = (int64_t)i;
    }
    if (count)
        qsort(file->tensors, count, sizeof *tensors, compare_names);
    return STATUS_OK;
}

void safetensors_close(struct safetensors *file) {
    if (!file)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    if (file->source)
        file->source->close(file->source->context);
    free(file->source);
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    free(file);
}

const char *safetensors_path(const struct safetensors *file) {
    return file->path;
}

size_t safetensors_count(const struct safetensors *file) {
    return file->count;
}

const struct safetensor *safetensors_at(const struct safetensors *file, size_t index) {
    return &file->tensors[index];
}

const struct safetensor *safetensors_find(const struct safetensors *file, const char *name) {
    struct safetensor key = {.name = name};
    return file->count ? bsearch(&key, file->tensors, file->count, sizeof key, compare_names) : NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

static float element_as_float(enum dtype from, const char *in, int64_t i) {
    switch (from) {
    case DTYPE_F32:
        return ((const float *)in)[i];
    case DTYPE_F64:
        return (float)((const double *)in)[i];
    case DTYPE_F16:
        return f16_to_float(((const uint16_t *)in)[i]);
    default:
        return bf16_to_float(((const uint16_t *)in)[i]);
    }
}

static void convert(enum dtype from, const char *in, int64_t count, enum dtype to, char *out) {
    if (from == DTYPE_F32)
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = bf16_from_float(((const float *)in)[i]);
    else if (from == DTYPE_BF16)
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            ((float *)out)[i] = bf16_to_float(((const uint16_t *)in)[i]);
    else if (to == DTYPE_F32)
        for (int64_t i = 0; i < count; i++)
            ((float *)out)[i] = element_as_float(from, in, i);
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = bf16_from_float(element_as_float(from, in, i));
}

static bool is_float(enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

/* Bytes of a tensor that are read at once. Converted elements stay in the first cache meanwhile. */
enum { CONVERTED_BYTES = 1 << 15, COPIED_BYTES = 1 << 18, SHARED_BYTES = 1 << 20 /* read on all cores from here on */ };

/* Elements [first, first + count) of a tensor, as `dtype`. */
struct reading {
    const struct safetensors *file;
    const struct safetensor *tensor;
    int64_t first, count;
    enum dtype dtype;
    bool must_be_finite;
};

static int check_finite(const struct reading *r, int64_t first, int64_t count, const void *values) {
    int64_t at = dtype_find_not_finite(r->dtype, values, count);
    if (at < 0)
        return STATUS_OK;
    float value = element_as_float(r->dtype, values, at);
    return tensor_fail(r->file, r->tensor, "element %lld is %s: finite numbers were expected", (long long)(first + at),
                       dtype_not_finite_name((double)value));
}

/* Reads `count` of the elements from `at` on; checks for finite values while they are in the cache. */
static int read_piece(const struct reading *r, int64_t at, int64_t count, char *out) {
    _Alignas(64) char piece[CONVERTED_BYTES];
    int64_t width = (int64_t)dtype_bytes(r->tensor->dtype), first = r->first + at;
    bool is_copy = r->tensor->dtype == r->dtype;
    int status = read_tensor_bytes(r->file, r->tensor, first * width, (size_t)(count * width), is_copy ? out : piece);
    if (!status && !is_copy)
        convert(r->tensor->dtype, piece, count, r->dtype, out);
    return status || !r->must_be_finite ? status : check_finite(r, first, count, out);
}

/* Lets a source check a tensor before its bytes are read, perhaps by several threads. */
static int prepare(const struct safetensors *file, const struct safetensor *tensor) {
    const struct tensor_source *source = file->source;
    return source && source->prepare ? source->prepare(source->context, (size_t)tensor->start) : STATUS_OK;
}

static int read_elements(const struct reading *r, char *out) {
    const struct safetensor *tensor = r->tensor;
    int64_t count = r->count;
    if (r->first < 0 || count < 0 || r->first > tensor->elements || count > tensor->elements - r->first)
        return tensor_fail(r->file, tensor, "elements [%lld, +%lld) asked for, it has %lld", (long long)r->first,
                           (long long)count, (long long)tensor->elements);
    bool is_copy = tensor->dtype == r->dtype && r->dtype != DTYPE_COUNT;
    if (!is_copy && (!is_float(tensor->dtype) || (r->dtype != DTYPE_F32 && r->dtype != DTYPE_BF16)))
        return status_fail(STATUS_UNSUPPORTED, "%s: tensor '%s' of type %s cannot be read as %s", r->file->path,
                           tensor->name, tensor->type, r->dtype < DTYPE_COUNT ? dtype_name(r->dtype) : "that");
    int status = prepare(r->file, tensor);
    TRY(status);
    int64_t width = (int64_t)dtype_bytes(tensor->dtype), to = (int64_t)dtype_bytes(r->dtype);
    int64_t at_once = (is_copy ? COPIED_BYTES : CONVERTED_BYTES) / width;
    bool is_shared = count * width >= SHARED_BYTES;
    int64_t failed = is_shared ? count : 0; /* this thread reads all from here on */
    if (is_shared) {
#pragma omp parallel for num_threads(usable_cores()) schedule(static) reduction(min : failed)
        for (int64_t at = 0; at < count; at += at_once) {
            int64_t n = count - at < at_once ? count - at : at_once;
            if (read_piece(r, at, n, out + at * to))
                failed = at < failed ? at : failed;
        }
    }
    /* An error's text belongs to its thread, so this thread repeats the read that failed. */
    for (int64_t at = failed; at < count && !status; at += at_once)
        status = read_piece(r, at, count - at < at_once ? count - at : at_once, out + at * to);
    return status;
}

int safetensors_read(const struct safetensors *file, const struct safetensor *tensor, int64_t first, int64_t count,
                     enum dtype dtype, void *out) {
    return read_elements(
        &(struct reading){.file = file, .tensor = tensor, .first = first, .count = count, .dtype = dtype}, out);
}

int safetensors_read_finite(const struct safetensors *file, const struct safetensor *tensor, int64_t first,
                            int64_t count, enum dtype dtype, void *out) {
    return read_elements(
        &(struct reading){
            .file = file, .tensor = tensor, .first = first, .count = count, .dtype = dtype, .must_be_finite = true},
        out);
}

int safetensors_read_bytes(const struct safetensors *file, const struct safetensor *tensor, int64_t first,
                           int64_t length, void *out) {
    if (first < 0 || length < 0 || first > tensor->bytes || length > tensor->bytes - first)
        return tensor_fail(file, tensor, "bytes [%lld, +%lld) asked for, it has %lld", (long long)first,
                           (long long)length, (long long)tensor->bytes);
    int status = prepare(file, tensor);
    return status ? status : read_tensor_bytes(file, tensor, first, (size_t)length, out);
}
