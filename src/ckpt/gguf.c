/* Opening a GGUF file: everything in its header is checked before anything in it is used. */
#include "gguf-internal.h"

#include "base/utf8.h"

#include <strings.h>
#include <unistd.h>

enum {
    HEAD_LIMIT = 256 << 20, /* bytes before the data; vocabularies of today take up to 20 MB */
    READ_BYTES = 1 << 20,
    MAX_VALUES = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_NAME = 255, /* bytes of a tensor's name; the format has 64 */
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20,
};
static const char magic[4] = {'G', 'G', 'U', 'F'};

/* The place in the header. After a failure nothing more is read. */
struct cursor {
    struct gguf *file;
    size_t at;
    int status;
};

static void fail(struct cursor *c, const char *problem) {
    if (!c->status)
        c->status = status_fail(STATUS_INVALID, "%s: byte %zu: %s", c->file->path, c->at, problem);
}

/* ---- bytes ---- */

/* Reads on until the header has `end` bytes. */
static void load(struct cursor *c, size_t end) {
    struct strbuf *head = &c->file->head;
    size_t target = end > head->length + READ_BYTES ? end : head->length + READ_BYTES;
    if ((int64_t)target > c->file->size)
        target = (size_t)c->file->size;
    size_t more = target - head->length;
    c->status = strbuf_reserve(head, more);
    if (!c->status)
        c->status =
            file_pread_all(c->file->descriptor, head->data + head->length, more, (off_t)head->length, c->file->path);
    if (!c->status)
        head->length = target;
}

/* Returns the next `length` bytes, which stay in place until the next call; NULL after a failure. */
static const unsigned char *take(struct cursor *c, uint64_t length) {
    uint64_t left = (uint64_t)c->file->size - c->at;
    if (!c->status && length > left)
        c->status =
            status_fail(STATUS_INVALID, "%s: byte %zu: %llu bytes are expected here, but the file ends after %llu",
                        c->file->path, c->at, (unsigned long long)length, (unsigned long long)left);
    if (!c->status && length > HEAD_LIMIT - c->at)
        c->status = status_fail(STATUS_INVALID, "%s: its header takes more than the %d bytes allowed", c->file->path,
                                HEAD_LIMIT);
    if (!c->status && c->at + length > c->file->head.length)
        load(c, c->at + length);
    if (c->status)
        return NULL;
    c->at += length;
    return (const unsigned char *)c->file->head.data + c->at - length;
}

static uint64_t take_number(struct cursor *c, size_t bytes) {
    uint64_t number = 0;
    const unsigned char *found = take(c, bytes);
    if (found)
        memcpy(&number, found, bytes);
    return number;
}

/* Skips a string and checks its characters; returns its place among the names when it is kept. */
static size_t take_string(struct cursor *c, bool is_kept) {
    struct strbuf *names = &c->file->names;
    size_t length = take_number(c, 8), at = names->length;
    const unsigned char *bytes = take(c, length);
    if (!bytes)
        return 0;
    if (memchr(bytes, 0, length) || utf8_valid_length(bytes, length) != length) {
        c->at -= length;
        fail(c, "a string is not UTF-8 without zero bytes");
        return 0;
    }
    if (!is_kept)
        return 0;
    strbuf_add(names, bytes, length);
    strbuf_add_char(names, 0);
    c->status = strbuf_status(names);
    return at;
}

/* ---- keys and values ---- */

static void skip_value(struct cursor *c, enum gguf_kind kind, uint64_t count) {
    uint64_t bytes;
    if (kind == GGUF_STRING)
        for (uint64_t i = 0; i < count && !c->status; i++)
            take_string(c, false);
    else if (__builtin_mul_overflow(count, gguf_kind_bytes(kind), &bytes))
        fail(c, "an array has more bytes than fit 64 bits");
    else
        take(c, bytes);
}

static enum gguf_kind take_kind(struct cursor *c) {
    uint64_t kind = take_number(c, 4);
    if (kind >= GGUF_KINDS) {
        fail(c, "unknown type of a value (expected 0 to 12)");
        return GGUF_U8;
    }
    return (enum gguf_kind)kind;
}

static void take_value(struct cursor *c) {
    struct gguf *file = c->file;
    struct gguf_value value = {.name_at = take_string(c, true), .count = 1};
    value.kind = take_kind(c);
    if (value.kind == GGUF_ARRAY && !c->status) {
        value.is_array = true;
        value.kind = take_kind(c);
        value.count = take_number(c, 8);
        if (value.kind == GGUF_ARRAY)
            fail(c, "an array of arrays is not read");
    }
    value.at = c->at;
    if (value.kind == GGUF_STRING && !value.is_array)
        value.at = take_string(c, true); /* among the names */
    else if (!c->status)
        skip_value(c, value.kind, value.count);
    THEN(c->status, array_reserve(&file->values, &file->value_capacity, file->value_count + 1, sizeof *file->values));
    if (!c->status)
        file->values[file->value_count++] = value;
}

/* ---- tensors ---- */

static void take_shape(struct cursor *c, struct gguf_tensor *tensor) {
    uint64_t dims = take_number(c, 4);
    if (dims < 1 || dims > GGUF_MAX_DIMS) {
        fail(c, "a tensor has none or more than 4 dimensions");
        return;
    }
    tensor->dims = (int)dims;
    tensor->elements = 1;
    for (int i = tensor->dims - 1; i >= 0 && !c->status; i--) {
        uint64_t size = take_number(c, 8);
        tensor->shape[i] = (int64_t)size;
        if (size < 1 || size > INT64_MAX ||
            __builtin_mul_overflow(tensor->elements, tensor->shape[i], &tensor->elements))
            fail(c, "a tensor's shape has a size of 0, or more elements than fit 64 bits");
    }
}

static void take_type(struct cursor *c, struct gguf_tensor *tensor) {
    uint32_t number = (uint32_t)take_number(c, 4);
    tensor->type = gguf_type(number);
    if (!tensor->type && !c->status)
        c->status = gguf_refuse_type(c->file->path, tensor->name, number);
}

/* Reads an entry. Its place is one in the data yet, and its name one in the names. */
static void take_tensor(struct cursor *c) {
    struct gguf *file = c->file;
    struct gguf_entry entry = {.name_at = take_string(c, true)};
    struct gguf_tensor *tensor = &entry.tensor;
    if (!c->status && file->names.length - entry.name_at > MAX_NAME + 1)
        fail(c, "a tensor's name has more than 255 bytes");
    if (c->status)
        return;
    tensor->name = file->names.data + entry.name_at; /* for messages: more names may move it */
    take_shape(c, tensor);
    take_type(c, tensor);
    uint64_t start = take_number(c, 8);
    if (c->status)
        return;
    tensor->start = (int64_t)start;
    int64_t blocks = tensor->elements / tensor->type->elements;
    if (tensor->shape[tensor->dims - 1] % tensor->type->elements)
        fail(c, "a tensor's rows are not whole blocks of its type");
    else if (start > INT64_MAX || __builtin_mul_overflow(blocks, (int64_t)tensor->type->bytes, &tensor->bytes))
        fail(c, "a tensor's place or size exceeds 64 bits");
    size_t count = file->tensor_count;
    THEN(c->status, array_reserve(&file->tensors, &file->tensor_capacity, count + 1, sizeof *file->tensors));
    if (!c->status)
        file->tensors[file->tensor_count++] = entry;
}

static int compare_places(const void *a, const void *b) {
    const struct gguf_entry *x = a, *y = b;
    return (x->tensor.start > y->tensor.start) - (x->tensor.start < y->tensor.start);
}

static int compare_tensors(const void *a, const void *b) {
    return strcmp(((const struct gguf_entry *)a)->tensor.name, ((const struct gguf_entry *)b)->tensor.name);
}

/* Places tensors in the file, whose data start at `data`, and checks that they lie in it and apart. */
static int place_tensors(struct gguf *file, int64_t data, int64_t alignment) {
    int64_t end = 0;
    if (file->tensor_count)
        qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_places);
    for (size_t i = 0; i < file->tensor_count; i++) {
        struct gguf_tensor *tensor = &file->tensors[i].tensor;
        if (tensor->start % alignment)
            return status_fail(STATUS_INVALID, "%s: tensor '%s' starts at byte %lld of the data, no multiple of %lld",
                               file->path, tensor->name, (long long)tensor->start, (long long)alignment);
        if (tensor->start < end)
            return status_fail(STATUS_INVALID, "%s: tensor '%s' starts inside tensor '%s'", file->path, tensor->name,
                               file->tensors[i - 1].tensor.name);
        if (data > file->size || tensor->start > file->size - data || tensor->bytes > file->size - data - tensor->start)
            return status_fail(
                STATUS_INVALID,
                "%s: tensor '%s' of %lld bytes at byte %lld of the data exceeds the file, which has %lld "
                "bytes of data",
                file->path, tensor->name, (long long)tensor->bytes, (long long)tensor->start,
                (long long)(data < file->size ? file->size - data : 0));
        end = tensor->start + tensor->bytes;
        tensor->start += data;
        tensor->part = file;
    }
    return STATUS_OK;
}

/* ---- the file ---- */

static void take_counts(struct cursor *c, uint64_t *tensors, uint64_t *values) {
    const char *path = c->file->path;
    const unsigned char *found = take(c, sizeof magic);
    if (found && memcmp(found, magic, sizeof magic) != 0)
        c->status = status_fail(STATUS_INVALID, "%s is not a GGUF file: it does not begin with GGUF", path);
    uint32_t version = (uint32_t)take_number(c, 4);
    if (!c->status && version != 2 && version != 3)
        c->status = status_fail(STATUS_UNSUPPORTED, "%s: version %u of GGUF is not read (expected 2 or 3%s)", path,
                                version, version && version % (1 << 16) == 0 ? "; this file is big-endian" : "");
    *tensors = take_number(c, 8);
    *values = take_number(c, 8);
    if (!c->status && (*tensors > MAX_TENSORS || *values > MAX_VALUES))
        c->status = status_fail(STATUS_INVALID, "%s: %llu tensors and %llu keys, more than the %d and %d allowed", path,
                                (unsigned long long)*tensors, (unsigned long long)*values, MAX_TENSORS, MAX_VALUES);
}

/* The names stay in place from now on. */
static int settle_values(struct gguf *file) {
    for (size_t i = 0; i < file->value_count; i++)
        file->values[i].name = file->names.data + file->values[i].name_at;
    for (size_t i = 0; i < file->tensor_count; i++)
        file->tensors[i].tensor.name = file->names.data + file->tensors[i].name_at;
    return gguf_sort_values(file);
}

static int read_head(struct gguf *file) {
    struct cursor c = {.file = file};
    uint64_t tensors = 0, values = 0;
    take_counts(&c, &tensors, &values);
    for (uint64_t i = 0; i < values && !c.status; i++)
        take_value(&c);
    for (uint64_t i = 0; i < tensors && !c.status; i++)
        take_tensor(&c);
    if (!c.status)
        c.status = settle_values(file);
    if (c.status)
        return c.status;
    struct gguf_keys general = gguf_keys(file, "general.");
    int64_t alignment = gguf_integer(&general, "alignment", DEFAULT_ALIGNMENT, 1, MAX_ALIGNMENT);
    TRY(general.status);
    if (alignment & (alignment - 1))
        return status_fail(STATUS_INVALID, "%s: general.alignment %lld is not a power of two", file->path,
                           (long long)alignment);
    return place_tensors(file, ((int64_t)c.at + alignment - 1) / alignment * alignment, alignment);
}

/* Opens a file, or a part of one. */
static int open_part(const char *path, struct gguf **out) {
    struct gguf *file = *out = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        *out = NULL;
        return status_no_memory();
    }
    file->descriptor = -1;
    int status = file_open_to_read(path, &file->descriptor, &file->size);
    return status ? status : read_head(file);
}

/* Checks that a part is number `number`, from 0, of `count`. */
static int check_part(const struct gguf *part, int64_t number, int64_t count) {
    struct gguf_keys split = gguf_keys(part, "split.");
    int64_t found = gguf_integer(&split, "no", -1, 0, UINT16_MAX), of = gguf_integer(&split, "count", 0, 0, UINT16_MAX);
    TRY(split.status);
    if (found == number && of == count)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s is part %lld of %lld by its keys, but part %lld of %lld is needed here",
                       part->path, (long long)found + 1, (long long)of, (long long)number + 1, (long long)count);
}

/* Opens part `number` and takes its tensors. `start` is the length of the name up to the number. */
static int add_part(struct gguf *file, size_t start, int64_t number, int64_t count) {
    struct strbuf path = STRBUF_INIT;
    struct gguf *part = NULL;
    strbuf_format(&path, "%.*s-%05lld-of-%05lld.gguf", (int)start, file->path, (long long)number + 1, (long long)count);
    int status = strbuf_status(&path);
    THEN(status, open_part(strbuf_text(&path), &part));
    if (part)
        file->parts[file->part_count++] = part;
    if (status == STATUS_NOT_FOUND)
        status = status_fail(STATUS_INVALID, "%s: part %lld of %lld is missing: there is no %s", file->path,
                             (long long)number + 1, (long long)count, strbuf_text(&path));
    strbuf_free(&path);
    THEN(status, check_part(part, number, count));
    TRY(status);
    size_t all = file->tensor_count + part->tensor_count;
    TRY(array_reserve(&file->tensors, &file->tensor_capacity, all + 1, sizeof *file->tensors));
    if (part->tensor_count)
        memcpy(file->tensors + file->tensor_count, part->tensors, part->tensor_count * sizeof *part->tensors);
    file->tensor_count = all;
    return STATUS_OK;
}

/* Opens the other parts of a divided file. */
static int add_parts(struct gguf *file) {
    char end[64];
    struct gguf_keys split = gguf_keys(file, "split.");
    int64_t count = gguf_integer(&split, "count", 0, 0, UINT16_MAX);
    int64_t tensors = gguf_integer(&split, "tensors.count", -1, 0, MAX_TENSORS);
    TRY(split.status);
    if (count < 2)
        return STATUS_OK;
    size_t length = strlen(file->path);
    size_t tail = (size_t)snprintf(end, sizeof end, "-00001-of-%05lld.gguf", (long long)count);
    if (length < tail || strcmp(file->path + length - tail, end) != 0)
        return status_fail(STATUS_INVALID, "%s is one of %lld parts of a model: name the first one, NAME%s", file->path,
                           (long long)count, end);
    int status = check_part(file, 0, count);
    file->parts = calloc((size_t)count, sizeof(struct gguf *));
    THEN(status, status_allocated(file->parts));
    for (int64_t i = 1; i < count && !status; i++)
        status = add_part(file, length - tail, i, count);
    if (!status && tensors >= 0 && file->tensor_count != (size_t)tensors)
        status =
            status_fail(STATUS_INVALID, "%s: its parts have %zu tensors, but the key 'split.tensors.count' is %lld",
                        file->path, file->tensor_count, (long long)tensors);
    return status;
}

static int sort_tensors(struct gguf *file) {
    if (file->tensor_count)
        qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_tensors);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (!compare_tensors(&file->tensors[i], &file->tensors[i - 1]))
            return status_fail(STATUS_INVALID, "%s: two tensors are called '%s'", file->path,
                               file->tensors[i].tensor.name);
    return STATUS_OK;
}

bool gguf_is_file(const char *path) {
    char start[sizeof magic];
    int descriptor;
    int64_t size;
    size_t length = strlen(path);
    if (file_is_directory(path) || file_open_to_read(path, &descriptor, &size))
        return false;
    bool is = (length > 5 && !strcasecmp(path + length - 5, ".gguf")) ||
              (size >= (int64_t)sizeof start && !file_pread_all(descriptor, start, sizeof start, 0, path) &&
               !memcmp(start, magic, sizeof start));
    close(descriptor);
    return is;
}

int gguf_open(const char *path, struct gguf **out) {
    int status = open_part(path, out);
    THEN(status, add_parts(*out));
    THEN(status, sort_tensors(*out));
    if (status) {
        gguf_close(*out);
        *out = NULL;
    }
    return status;
}

static void close_part(struct gguf *part) {
    if (part->descriptor >= 0)
        close(part->descriptor);
    strbuf_free(&part->head);
    strbuf_free(&part->names);
    free(part->values);
    free(part->tensors);
    free(part->path);
    free(part);
}

void gguf_close(struct gguf *file) {
    if (!file)
        return;
    for (size_t i = 0; i < file->part_count; i++)
        close_part(file->parts[i]);
    free(file->parts);
    close_part(file);
}

const char *gguf_part_path(const struct gguf *file, size_t index) {
    return !index ? file->path : index < file->part_count + 1 ? file->parts[index - 1]->path : NULL;
}

const char *gguf_path(const struct gguf *file) {
    return file->path;
}

size_t gguf_count(const struct gguf *file) {
    return file->tensor_count;
}

const struct gguf_tensor *gguf_at(const struct gguf *file, size_t index) {
    return &file->tensors[index].tensor;
}

const struct gguf_tensor *gguf_find(const struct gguf *file, const char *name) {
    const struct gguf_entry wanted = {.tensor.name = name};
    const struct gguf_entry *found =
        file->tensor_count ? bsearch(&wanted, file->tensors, file->tensor_count, sizeof wanted, compare_tensors) : NULL;
    return found ? &found->tensor : NULL;
}

size_t gguf_index(const struct gguf *file, const struct gguf_tensor *tensor) {
    return (size_t)((const struct gguf_entry *)tensor - file->tensors);
}

const struct gguf_type *gguf_main_type(const struct gguf *file) {
    const struct gguf_tensor *largest = NULL;
    for (size_t i = 0; i < file->tensor_count; i++)
        if (!largest || file->tensors[i].tensor.elements > largest->elements)
            largest = &file->tensors[i].tensor;
    return largest ? largest->type : gguf_type(0);
}
