/* The safetensors file format: u64 length of the header, the header (JSON, padded with spaces to 8 bytes), the data.
 *
 * A reader trusts nothing. Opening checks the whole header: its size, JSON without duplicate keys, types, shapes, and
 * that every byte of the data belongs to exactly one tensor. Later reads therefore cannot leave the file's bounds. An
 * open reader does not change: any number of threads may read from it. A writer takes the header from here and writes
 * the data itself. Everything is little-endian, as the format and the machines that this runs on. */
#pragma once

#include "base/base.h"

enum { SAFETENSORS_MAX_DIMS = 8 };

struct safetensor {
    const char *name;
    const char *type; /* as the file names it: "F32", "BF16", "BOOL", ... */
    enum dtype dtype; /* DTYPE_COUNT for a type that we do not have (BOOL, I8, ...) */
    int dims;         /* 0: a scalar */
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t elements;
    int64_t start, bytes; /* place in the file, including the header */
};

struct safetensors;

/* Return the format's name of a type, and the bytes of an element of a type that it names. */
const char *safetensors_type_name(enum dtype dtype);
int64_t safetensors_type_bytes(const char *type);

/* Opens and checks a file. STATUS_NOT_FOUND when it does not exist, STATUS_IO when it cannot be read. STATUS_INVALID
 * when it is damaged; the message names the file, the tensor, the byte and what was expected there. STATUS_MEMORY. */
int safetensors_open(const char *path, struct safetensors **file);
/* The same for a file's bytes, which outlive it; errors call them `path`. */
int safetensors_open_bytes(const char *path, const void *bytes, size_t length, struct safetensors **file);
/* The same for an open file, whose descriptor stays the caller's; errors call it `path`. */
int safetensors_open_descriptor(const char *path, int descriptor, struct safetensors **file);
void safetensors_close(struct safetensors *file);
const char *safetensors_path(const struct safetensors *file);
/* Return the tensors, sorted by name. */
size_t safetensors_count(const struct safetensors *file);
const struct safetensor *safetensors_at(const struct safetensors *file, size_t index);
/* Returns NULL when there is no tensor of that name. */
const struct safetensor *safetensors_find(const struct safetensors *file, const char *name);
/* Returns the value of a key of "__metadata__"; NULL when absent. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

/* Reads elements [first, first + count) of a tensor, row-major, as `dtype`. Any type can be read as itself; F64, F32,
 * F16 and BF16 also as DTYPE_F32 and DTYPE_BF16 (rounded to nearest even). STATUS_UNSUPPORTED for any other conversion;
 * STATUS_IO. */
int safetensors_read(const struct safetensors *file, const struct safetensor *tensor, int64_t first, int64_t count,
                     enum dtype dtype, void *out);
/* The same as DTYPE_F32 or DTYPE_BF16; STATUS_INVALID, with the first one, for a value that is not finite in that
 * type. */
int safetensors_read_finite(const struct safetensors *file, const struct safetensor *tensor, int64_t first,
                            int64_t count, enum dtype dtype, void *out);
/* Reads bytes [first, first + length) of a tensor of any type as they are. STATUS_INVALID outside of it; STATUS_IO. */
int safetensors_read_bytes(const struct safetensors *file, const struct safetensor *tensor, int64_t first,
                           int64_t length, void *out);

/* The header of a file to be written. */
struct safetensors_header;

/* Makes a header without tensors and with the metadata {"format":"pt"}, which transformers requires. STATUS_MEMORY. */
int safetensors_header_new(struct safetensors_header **header);
/* Adds a tensor of a type that the format names; returns its number, from 0 in order of the calls, or a negative
 * status. */
int safetensors_header_add(struct safetensors_header *header, const char *name, const char *type, int dims,
                           const int64_t *shape);
/* Fixes the place of each tensor, in a file that errors call `path`. Data come in the order of the reference
 * implementation (wider types first, then names), so equal tensors give equal files. STATUS_UNSUPPORTED,
 * STATUS_MEMORY. */
int safetensors_header_place(struct safetensors_header *header, const char *path);
/* After placing: returns the bytes before the data, their number, and the size of the whole file. */
const char *safetensors_header_bytes(const struct safetensors_header *header, size_t *header_bytes,
                                     int64_t *file_bytes);
/* Returns the byte of the file at which a tensor begins. */
int64_t safetensors_header_start(const struct safetensors_header *header, int number);
void safetensors_header_free(struct safetensors_header *header);
