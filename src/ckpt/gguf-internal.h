/* Shared by gguf.c, which checks a file, gguf_keys.c, which reads its values, and gguf_types.c, which reads its
 * tensors. */
#pragma once

#include "gguf.h"

/* Types of values, with the numbers of the format. */
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KINDS
};
/* Returns the bytes of a value of fixed size; 0 for strings and arrays. */
size_t gguf_kind_bytes(enum gguf_kind kind);

/* A value lies in the header, at byte `at`; an array has `count` elements there. */
struct gguf_value {
    size_t name_at; /* of the key, in names */
    const char *name;
    enum gguf_kind kind; /* of the value, or of an array's elements */
    bool is_array;
    uint64_t count;
    size_t at;
};

struct gguf_entry {
    struct gguf_tensor tensor; /* first: gguf_index relies on it */
    size_t name_at;            /* in names, until they stay in place */
};

struct gguf {
    char *path;
    int descriptor;
    int64_t size;
    struct strbuf head;         /* the header, as far as it was read */
    struct strbuf names;        /* keys, strings and names of tensors, each ended by a zero byte */
    struct gguf_value *values;  /* sorted by name */
    struct gguf_entry *tensors; /* sorted by name; those of all parts */
    size_t value_count, value_capacity, tensor_count, tensor_capacity;
    struct gguf **parts; /* the other files of a divided one */
    size_t part_count;
};

/* Sorts the values and checks that no key is there twice. STATUS_INVALID. */
int gguf_sort_values(struct gguf *file);

/* How values are stored: blocks of `elements`, each of `bytes`. */
struct gguf_type {
    const char *name;
    uint32_t number; /* in the format */
    int elements, bytes;
    enum dtype dtype; /* of single values; DTYPE_COUNT: blocks */
    /* Takes blocks apart, to the beginning of encoded rows. */
    void (*take)(const unsigned char *blocks, int64_t count, const struct encoded_rows *out);
    struct encoding encoding; /* of a row of blocks */
};
/* Returns the type of a number; NULL when it is not read. */
const struct gguf_type *gguf_type(uint32_t number);
/* Computes the values of a block in the file's form; single values are blocks of one. */
void gguf_values(const struct gguf_type *type, const unsigned char *bytes, float *out);
/* Refuses a tensor of a type that is not read. Returns STATUS_UNSUPPORTED. */
int gguf_refuse_type(const char *path, const char *tensor, uint32_t number);
