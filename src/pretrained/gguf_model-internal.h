/* A GGUF file as a model: its configuration (gguf_config.c), its tokenizer (gguf_tokenizer.c), and where its parameters
 * lie (gguf_weights.c). In gguf_model.c they are opened as the tensors of a model directory. */
#pragma once

#include "ckpt/gguf.h"
#include "gguf_names.h"
#include "pretrained.h"

/* Opens model->directory, which is a file: its configuration, and with has_tensors its tensors too. The errors of
 * pretrained_open. */
int gguf_model_open(struct pretrained *model, bool has_tensors);

/* Reads the model's configuration from the keys and from which tensors there are. */
int gguf_read_config(const struct gguf *file, struct model_config *config);
/* Reads the rotation. */
int gguf_read_rotation(const struct gguf *file, struct gguf_keys *keys, struct model_config *config);

/* Finds the tokens at the ends of a text, among the model's. */
int gguf_read_ends(const struct gguf *file, const struct model_config *config, struct model_text_ends *ends);
/* True when the file has a tokenizer. */
bool gguf_has_tokenizer(const struct gguf *file);
/* Makes the tokenizer's files; none of them is there when the file has no tokenizer. */
int gguf_read_tokenizer(const struct gguf *file, struct tokenizer_files *files);

/* ---- gguf_weights.c ---- */

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

/* The tensors that each parameter consists of. */
struct gguf_weights {
    struct gguf_sources *sources; /* [table count] */
};

/* Finds the tensors of every parameter and checks their shapes. A tensor that belongs to no parameter is refused, and
 * one that is missing. Call gguf_weights_close in any case. */
int gguf_weights_open(const struct gguf *file, const struct model_config *config, const struct param_table *table,
                      struct gguf_weights *weights);
void gguf_weights_close(struct gguf_weights *weights);
/* Returns the plain type that all tensors of a parameter have; DTYPE_F32 when there is none. */
enum dtype gguf_weights_dtype(const struct gguf_weights *weights, int param);
/* Reads a block of a parameter, as that type. */
int gguf_weights_read(const struct gguf_weights *weights, const struct ckpt_block *block, void *values);

/* Describes how columns of a block of a parameter are encoded, which must be in one source; returns false where it is
 * plain. */
bool gguf_weights_describe(const struct gguf_weights *weights, const struct ckpt_block *block,
                           struct encoding *encoding);
/* Reads such a block as it was described. The errors of gguf_read_encoded. */
int gguf_weights_read_encoded(const struct gguf_weights *weights, const struct ckpt_block *block,
                              const struct encoded_rows *to);

/* True when the file has a tensor of this name in its first layer. */
bool gguf_has_module(const struct gguf *file, const char *module, const char *kind);
/* Reads both and compares. */
int gguf_is_equal(const struct gguf_tensor *a, const struct gguf_tensor *b, bool *is_equal);
