/* The GGUF file format, versions 2 and 3, for reading: a header with keys and their values, the tensors' names, types
 * and shapes, and the data. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md defines it.
 *
 * A reader trusts nothing. Opening checks the whole header: counts, lengths, types, shapes, and that each tensor lies
 * within the file and apart from the others. Later reads therefore cannot leave the file's bounds. An open file does
 * not change: any number of threads may read from it. Errors name the file and the place. */
#pragma once

#include "base/base.h"
#include "kernels/encoding.h"

enum { GGUF_MAX_DIMS = 4 };

struct gguf;
struct gguf_type; /* how values are stored: gguf_types.c */

struct gguf_tensor {
    const char *name;
    const struct gguf_type *type;
    int dims;
    int64_t shape[GGUF_MAX_DIMS]; /* rows first, as everywhere else here; the file has them the other way round */
    int64_t elements;
    const struct gguf *part; /* the file that holds it */
    int64_t start, bytes;    /* place in that file */
};

/* True for a file that begins as a GGUF file does, or whose name ends with .gguf. */
bool gguf_is_file(const char *path);
/* Opens and checks a file; of a divided one (NAME-00001-of-00003.gguf) `path` is the first part, and all parts are
 * opened. STATUS_NOT_FOUND when it does not exist, STATUS_IO when it cannot be read, STATUS_INVALID when it is damaged
 * or another part is missing. STATUS_UNSUPPORTED for version 1, big-endian files, and types of values that are not
 * read. STATUS_MEMORY. */
int gguf_open(const char *path, struct gguf **file);
void gguf_close(struct gguf *file);
const char *gguf_path(const struct gguf *file);
/* Returns the path of a part, the file itself first; NULL past the last. */
const char *gguf_part_path(const struct gguf *file, size_t index);
/* Return the tensors, sorted by name. */
size_t gguf_count(const struct gguf *file);
const struct gguf_tensor *gguf_at(const struct gguf *file, size_t index);
/* Returns NULL when there is no tensor of that name. */
const struct gguf_tensor *gguf_find(const struct gguf *file, const char *name);
/* Returns the index of a tensor of the file. */
size_t gguf_index(const struct gguf *file, const struct gguf_tensor *tensor);
/* Return the name of a type, and our type of the same values; DTYPE_COUNT for a quantised one. */
const char *gguf_type_name(const struct gguf_type *type);
enum dtype gguf_type_dtype(const struct gguf_type *type);
/* Returns the type of the file's largest tensor; F32 when there is none. */
const struct gguf_type *gguf_main_type(const struct gguf *file);

/* Reads elements [first, first + count) of a tensor, row-major, as the tensor's own plain type or as DTYPE_F32. F16 and
 * BF16 are exact in it; a quantised type has the values of its definition. STATUS_INVALID when one is not finite, or
 * outside the tensor; STATUS_IO. */
int gguf_read(const struct gguf_tensor *tensor, int64_t first, int64_t count, enum dtype dtype, void *out);

/* Describes how columns of a tensor's rows are encoded; returns false for a plain type. */
bool gguf_describe(const struct gguf_tensor *tensor, int64_t column, int64_t columns, struct encoding *encoding);
/* Rows of a tensor that lie near each other, and the place of the first one in encoded rows. */
struct gguf_rows {
    const int64_t *rows; /* [count] */
    int64_t count, column, first;
};
/* Reads the codes and scales of columns of some rows, whose encoding was described: of to->positions columns from
 * from->column on. Rows between them are read, too. STATUS_INVALID for a scale that is not finite; STATUS_IO,
 * STATUS_MEMORY. */
int gguf_read_encoded(const struct gguf_tensor *tensor, const struct gguf_rows *from, const struct encoded_rows *to);

/* ---- keys and values ---- */

/* Reads values by their keys, one by one. The first failure stays in `status`, with a text that names the file and the
 * key; every later read returns its fallback. A reader therefore checks the status once, at the end. */
struct gguf_keys {
    const struct gguf *file;
    char prefix[64]; /* before each key: "llama." */
    int status;
};
/* Returns the keys of a file that begin with a prefix. */
struct gguf_keys gguf_keys(const struct gguf *file, const char *prefix);
bool gguf_has(const struct gguf_keys *keys, const char *key);
/* Fails unless the key is there. */
void gguf_need(struct gguf_keys *keys, const char *key);
/* These fail when the value has another type or lies outside low .. high. Any integer is also a number. */
int64_t gguf_integer(struct gguf_keys *keys, const char *key, int64_t fallback, int64_t low, int64_t high);
double gguf_number(struct gguf_keys *keys, const char *key, double fallback, double low, double high);
bool gguf_bool(struct gguf_keys *keys, const char *key, bool fallback);
/* Returns a text of UTF-8 without zero bytes, owned by the file. */
const char *gguf_string(struct gguf_keys *keys, const char *key, const char *fallback);
/* Returns the key number `index` that begins with the prefix, without the prefix; NULL past the last. */
const char *gguf_key_at(const struct gguf_keys *keys, size_t index);

/* A text of the file: UTF-8 without zero bytes, not terminated. */
struct gguf_text {
    const char *bytes;
    size_t length;
};
/* Return the elements of an array for the caller to free, and their number; NULL and 0 when the key is absent. */
struct gguf_text *gguf_texts(struct gguf_keys *keys, const char *key, size_t *count);
double *gguf_numbers(struct gguf_keys *keys, const char *key, size_t *count);
