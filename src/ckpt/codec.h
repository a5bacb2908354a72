/* Weights in few bits in the files of a model.
 *
 * A codec knows one method of quantisation: its configuration, and the tensors that a linear has in place of its
 * weight. Attaching one replaces those tensors by one for each linear, X.weight [out, in] of fp32 values. They are
 * computed while they are read, so all of ckpt.h works as on plain files. The functions here deliver codes and scales
 * instead. Tensors without a codec have no encodings. docs/reading.md explains how to add a format. */
#pragma once

#include "ckpt.h"

/* The quantisation of a model, as its files have it. */
struct ckpt_quantization {
    const char *method; /* "gptq"; NULL: the model is plain */
    int bits;           /* of a code; 0: linears differ */
    int64_t group_size; /* inputs that share a scale, -1 for whole rows; 0: linears differ */
    char text[120];     /* for people: "gptq, 4 bits, groups of 128, by act-order" */
};

/* Attaches the codec of a config.json's `quantization_config` to the tensors of its model; a configuration without the
 * key changes nothing. All parts of all linears are checked, and no codes are read. `where` names config.json in
 * messages. STATUS_INVALID where files and configuration contradict each other; STATUS_UNSUPPORTED for a method or a
 * form that is not read; STATUS_IO, STATUS_MEMORY. */
int ckpt_attach_codec(struct ckpt_tensors *tensors, const char *config_text, const char *where);
/* Sets *is_there if a config.json has the key. STATUS_INVALID for a text that is not JSON, STATUS_MEMORY. */
int ckpt_names_codec(const char *config_text, const char *where, bool *is_there);
/* Returns what is attached; it lives as long as the tensors. */
const struct ckpt_quantization *ckpt_quantization(const struct ckpt_tensors *tensors);

/* Gives the weights in few bits a type as tensors: DTYPE_F32, as after attaching, DTYPE_BF16 or DTYPE_F16. It matters
 * to those who copy tensors as they are. */
void ckpt_set_encoded_type(struct ckpt_tensors *tensors, enum dtype dtype);

/* A model's table and its files, for describing encodings: the context of struct param_encodings. */
struct ckpt_encodings {
    const struct ckpt_tensors *tensors;
    const struct param_table *table;
};
/* Describes how rectangles of a parameter of the table are encoded: part i is rectangle i. Rows of a slice whose tensor
 * is plain have CODES_NONE. Returns false where all are plain, or no encoding fits. It reads no files, so every call
 * with the same arguments has the same result. `context` is a struct ckpt_encodings. */
bool ckpt_describe_encoding(const void *context, const struct param *param, const struct param_rect *rects, int count,
                            struct encoded_layout *layout);
/* Reads the codes, scales, shifts and order of one rectangle of a parameter, whose encoding was described, to host
 * memory (encoded_rows_place of its part). STATUS_INVALID for a scale or a number that is not finite; STATUS_IO,
 * STATUS_MEMORY. */
int ckpt_read_encoded(const struct ckpt_encodings *encodings, int id, const struct param_rect *rect,
                      const struct encoded_rows *to);
