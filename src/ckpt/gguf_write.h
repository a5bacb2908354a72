/* Writing a GGUF file, version 3: keys with their values, the tensors' names, types and shapes, and the data. The file
 * appears whole or not at all. Appending calls keep the first failure; gguf_output_write returns it. */
#pragma once

#include "gguf.h"

/* Types that are written. */
enum gguf_written {
    GGUF_WRITE_F32,
    GGUF_WRITE_F16,
    GGUF_WRITE_BF16,
    GGUF_WRITE_Q8_0, /* the first that is rounded in blocks */
    GGUF_WRITE_Q5_0,
    GGUF_WRITE_Q4_0,
    GGUF_WRITE_Q6_K,
    GGUF_WRITE_Q4_K,
};
/* Returns the number that the key general.file_type has for a file of this type. */
uint32_t gguf_file_type(enum gguf_written type);

/* True for a type whose numbers share scales in blocks. */
bool gguf_is_rounded(enum gguf_written type);
/* Returns the type, or the one that llama.cpp takes instead where rows of `columns` numbers are no whole blocks. */
enum gguf_written gguf_type_for(enum gguf_written type, int64_t columns);

struct gguf_output;

/* Makes an empty file in memory. STATUS_MEMORY. */
int gguf_output_new(struct gguf_output **output);
/* NULL is allowed. */
void gguf_output_free(struct gguf_output *output);

/* Append a key with its value. Texts are UTF-8. */
void gguf_put_text(struct gguf_output *output, const char *key, const char *text);
void gguf_put_integer(struct gguf_output *output, const char *key, uint32_t value);
void gguf_put_number(struct gguf_output *output, const char *key, float value);
void gguf_put_bool(struct gguf_output *output, const char *key, bool value);
/* Append a key with an array. */
void gguf_put_texts(struct gguf_output *output, const char *key, const struct gguf_text *texts, size_t count);
void gguf_put_numbers(struct gguf_output *output, const char *key, const float *values, size_t count);
void gguf_put_integers(struct gguf_output *output, const char *key, const int32_t *values, size_t count);

/* Adds a tensor; rows first. Rows are whole blocks (gguf_type_for). The values come in the order of the calls. */
void gguf_output_tensor(struct gguf_output *output, const char *name, enum gguf_written type, int dims,
                        const int64_t *shape);

enum { GGUF_BLOCK_ELEMENTS = 1 << 20 };
/* Makes rows [row, row + rows) of tensor number `tensor`: at most GGUF_BLOCK_ELEMENTS numbers, or one row. */
typedef int gguf_rows(void *context, size_t tensor, int64_t row, int64_t rows, float *values);
/* Writes the file. STATUS_INVALID when a number does not fit its type; STATUS_IO, STATUS_MEMORY, what `get` returns. */
int gguf_output_write(struct gguf_output *output, const char *path, gguf_rows *get, void *context);
