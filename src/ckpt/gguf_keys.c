/* The values of a GGUF file, by their keys. */
#include "gguf-internal.h"

#include <math.h>
#include <stdarg.h>

size_t gguf_kind_bytes(enum gguf_kind kind) {
    static const unsigned char bytes[GGUF_KINDS] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
    return bytes[kind];
}

static int compare_values(const void *a, const void *b) {
    return strcmp(((const struct gguf_value *)a)->name, ((const struct gguf_value *)b)->name);
}

int gguf_sort_values(struct gguf *file) {
    if (file->value_count)
        qsort(file->values, file->value_count, sizeof *file->values, compare_values);
    for (size_t i = 1; i < file->value_count; i++)
        if (!compare_values(&file->values[i], &file->values[i - 1]))
            return status_fail(STATUS_INVALID, "%s: the key '%s' is there twice", file->path, file->values[i].name);
    return STATUS_OK;
}

struct gguf_keys gguf_keys(const struct gguf *file, const char *prefix) {
    struct gguf_keys keys = {.file = file};
    snprintf(keys.prefix, sizeof keys.prefix, "%s", prefix);
    return keys;
}

static const struct gguf_value *find(const struct gguf_keys *keys, const char *key) {
    char name[192];
    snprintf(name, sizeof name, "%s%s", keys->prefix, key);
    const struct gguf_value wanted = {.name = name};
    const struct gguf *file = keys->file;
    return file->value_count ? bsearch(&wanted, file->values, file->value_count, sizeof wanted, compare_values) : NULL;
}

bool gguf_has(const struct gguf_keys *keys, const char *key) {
    return find(keys, key);
}

__attribute__((format(printf, 3, 4))) static void refuse(struct gguf_keys *keys, const char *key, const char *expected,
                                                         ...) {
    char text[160];
    va_list list;
    va_start(list, expected);
    vsnprintf(text, sizeof text, expected, list);
    va_end(list);
    if (!keys->status)
        keys->status =
            status_fail(STATUS_INVALID, "%s: the key '%s%s' must be %s", keys->file->path, keys->prefix, key, text);
}

void gguf_need(struct gguf_keys *keys, const char *key) {
    if (!keys->status && !gguf_has(keys, key))
        keys->status =
            status_fail(STATUS_INVALID, "%s: the key '%s%s' is missing", keys->file->path, keys->prefix, key);
}

const char *gguf_key_at(const struct gguf_keys *keys, size_t index) {
    size_t length = strlen(keys->prefix);
    for (size_t i = 0; i < keys->file->value_count; i++)
        if (!strncmp(keys->file->values[i].name, keys->prefix, length) && index-- == 0)
            return keys->file->values[i].name + length;
    return NULL;
}

static bool is_integer(enum gguf_kind kind) {
    return kind != GGUF_F32 && kind != GGUF_F64 && kind != GGUF_BOOL && kind != GGUF_STRING;
}

/* Reads the integer at `at`. One that exceeds int64_t becomes the largest. */
static int64_t integer_at(enum gguf_kind kind, const void *at) {
    uint64_t bits = 0;
    size_t bytes = gguf_kind_bytes(kind);
    memcpy(&bits, at, bytes);
    bool is_signed = kind == GGUF_I8 || kind == GGUF_I16 || kind == GGUF_I32;
    if (is_signed && bits >> (8 * bytes - 1))
        bits |= UINT64_MAX << (8 * bytes - 1);
    return kind == GGUF_U64 && bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
}

/* Returns the shortest decimal number that rounds to an fp32 value: 1e-5, not 9.99999974738e-06. */
static double decimal_of(float value) {
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            return strtod(text, NULL);
    }
    return (double)value;
}

static double number_at(enum gguf_kind kind, const void *at) {
    float fp32;
    double fp64;
    if (kind == GGUF_F32) {
        memcpy(&fp32, at, sizeof fp32);
        return decimal_of(fp32);
    }
    if (kind == GGUF_F64) {
        memcpy(&fp64, at, sizeof fp64);
        return fp64;
    }
    return (double)integer_at(kind, at);
}

static bool has_numbers(const struct gguf_value *value) {
    return value->kind == GGUF_F32 || value->kind == GGUF_F64 || is_integer(value->kind);
}

int64_t gguf_integer(struct gguf_keys *keys, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const struct gguf_value *value = find(keys, key);
    if (!value || keys->status)
        return fallback;
    int64_t number =
        value->is_array || !is_integer(value->kind) ? -1 : integer_at(value->kind, keys->file->head.data + value->at);
    if (value->is_array || !is_integer(value->kind) || number < low || number > high) {
        refuse(keys, key, "an integer from %lld to %lld", (long long)low, (long long)high);
        return fallback;
    }
    return number;
}

double gguf_number(struct gguf_keys *keys, const char *key, double fallback, double low, double high) {
    const struct gguf_value *value = find(keys, key);
    if (!value || keys->status)
        return fallback;
    double number =
        value->is_array || !has_numbers(value) ? NAN : number_at(value->kind, keys->file->head.data + value->at);
    if (!(number >= low && number <= high)) {
        refuse(keys, key, "a number from %g to %g", low, high);
        return fallback;
    }
    return number;
}

bool gguf_bool(struct gguf_keys *keys, const char *key, bool fallback) {
    const struct gguf_value *value = find(keys, key);
    if (!value || keys->status)
        return fallback;
    if (value->is_array || value->kind != GGUF_BOOL) {
        refuse(keys, key, "true or false");
        return fallback;
    }
    return keys->file->head.data[value->at];
}

const char *gguf_string(struct gguf_keys *keys, const char *key, const char *fallback) {
    const struct gguf_value *value = find(keys, key);
    if (!value || keys->status)
        return fallback;
    if (value->is_array || value->kind != GGUF_STRING) {
        refuse(keys, key, "a string");
        return fallback;
    }
    return keys->file->names.data + value->at;
}

/* Allocates the elements of an array; NULL when it is absent, or after a failure. */
static void *new_elements(struct gguf_keys *keys, const struct gguf_value *value, size_t bytes, size_t *count) {
    *count = 0;
    if (!value || keys->status)
        return NULL;
    void *elements = calloc((size_t)value->count + 1, bytes);
    if (!elements)
        keys->status = status_no_memory();
    else
        *count = (size_t)value->count;
    return elements;
}

struct gguf_text *gguf_texts(struct gguf_keys *keys, const char *key, size_t *count) {
    const struct gguf_value *value = find(keys, key);
    if (value && (!value->is_array || value->kind != GGUF_STRING))
        refuse(keys, key, "an array of strings");
    struct gguf_text *texts = new_elements(keys, value, sizeof *texts, count);
    const char *at = keys->file->head.data + (value ? value->at : 0);
    for (size_t i = 0; i < *count; i++) {
        uint64_t length;
        memcpy(&length, at, sizeof length);
        texts[i] = (struct gguf_text){.bytes = at + sizeof length, .length = length};
        at += sizeof length + length;
    }
    return texts;
}

double *gguf_numbers(struct gguf_keys *keys, const char *key, size_t *count) {
    const struct gguf_value *value = find(keys, key);
    if (value && (!value->is_array || !has_numbers(value)))
        refuse(keys, key, "an array of numbers");
    double *numbers = new_elements(keys, value, sizeof *numbers, count);
    for (size_t i = 0; i < *count; i++)
        numbers[i] = number_at(value->kind, keys->file->head.data + value->at + i * gguf_kind_bytes(value->kind));
    return numbers;
}
