/* Models of other systems, converted into model directories. Each function reads one format and is called once by one
 * thread. It checks everything before it writes, and a directory appears whole or not at all. */
#ifndef CAMBIUM_CONVERT_CONVERT_H
#define CAMBIUM_CONVERT_CONVERT_H

#include "pretrained/pretrained.h"

struct convert_request {
    const char *from; /* a GGUF file */
    const char *to;   /* the model directory to write; ckpt_write_model says what may be replaced */
    enum dtype dtype; /* of the written weights: DTYPE_F32, DTYPE_BF16, or DTYPE_COUNT: bf16 if the file's are */
};

/* Converts a GGUF file: its configuration, its tokenizer and its weights. Quantised weights become the values that
 * their type defines. STATUS_NOT_FOUND, STATUS_IO; STATUS_INVALID for a file that is damaged or contradicts itself;
 * STATUS_UNSUPPORTED for families, keys, types and tokenizers that are not read; STATUS_MEMORY. */
int convert_gguf(const struct convert_request *request);

#endif
