/* The parts of a GGUF file's conversion: gguf.c in their order. */
#ifndef CAMBIUM_CONVERT_INTERNAL_H
#define CAMBIUM_CONVERT_INTERNAL_H

#include "ckpt/gguf.h"
#include "convert.h"

/* gguf_config.c: reads the model's configuration from the keys and from which tensors there are. */
int gguf_read_config(const struct gguf *file, struct model_config *config);

/* gguf_tokenizer.c: makes the tokenizer's files, and finds the tokens at the ends of a text. */
int gguf_read_tokenizer(const struct gguf *file, const struct model_config *config, struct tokenizer_files *files,
                        struct model_text_ends *ends);

/* ---- gguf_weights.c: which tensors a parameter consists of ---- */

enum { GGUF_MAX_SOURCES = 3 };

/* A tensor whose rows follow those of the source before it. */
struct gguf_source {
    const struct gguf_tensor *tensor;
    int64_t rows, columns;
    int64_t pairs; /* heads of this many rows whose halves alternate in the file; 0: none */
};
struct gguf_sources {
    struct gguf_source items[GGUF_MAX_SOURCES];
    int count; /* 0: the parameter is zero */
};

struct gguf_weights {
    const struct gguf *file;
    const struct param_table *table;
    struct gguf_sources *sources; /* [table count] */
    enum dtype dtype;             /* of the values that gguf_weights_get makes */
    float *block;                 /* [CKPT_BLOCK_ELEMENTS] */
};

/* Finds the tensors of every parameter and checks their shapes. A tensor that belongs to no parameter is refused, and
 * one that is missing. Call gguf_weights_close in any case. */
int gguf_weights_open(const struct gguf *file, const struct model_config *config, const struct param_table *table,
                      enum dtype dtype, struct gguf_weights *weights);
void gguf_weights_close(struct gguf_weights *weights);
/* Reads a block of a parameter: `get` of struct ckpt_array, with the weights as its context. */
int gguf_weights_get(void *weights, const struct ckpt_block *block, void *values);

/* True when the file has a tensor of this name in its first layer. */
bool gguf_has_module(const struct gguf *file, const char *module, const char *kind);
/* Reads both and compares. */
int gguf_is_equal(const struct gguf *file, const struct gguf_tensor *a, const struct gguf_tensor *b, bool *is_equal);

/* ---- gguf_rope.c ---- */

/* Reads the rotation. */
int gguf_read_rotation(const struct gguf *file, struct gguf_keys *keys, struct model_config *config);

#endif
