/* Checkpoints of other systems, read and written: PyTorch's distributed checkpoint (DCP), the rank shards of its
 * HuggingFaceStorageWriter, and Megatron core's arguments. docs/exchange.md describes them.
 *
 * Their tensors are read like any others. A directory's list is checked when it is opened, and each part of a tensor
 * before its first element is read. Nothing in a pickle is ever executed. */
#pragma once

#include "codec.h"

/* Tensors whose bytes are put together from others. Its functions may be called by several threads. */
struct tensor_source {
    /* Checks tensor `index` before its bytes are read, perhaps several times; NULL: nothing is to be checked. */
    int (*prepare)(void *context, size_t index);
    /* Reads bytes [first, first + length) of a tensor, row-major. */
    int (*read)(void *context, size_t index, int64_t first, size_t length, void *out);
    void (*close)(void *context); /* also frees the names */
    void *context;
    bool is_out_in; /* matrices are [out, in] even if the model's files have them transposed */
    /* Describes how a rectangle of a tensor [out, in] is encoded; returns false if it is plain. NULL: all are. */
    bool (*describe)(void *context, size_t index, const struct param_rect *rect, struct encoding *encoding);
    /* Reads it as it was described. */
    int (*read_encoded)(void *context, size_t index, const struct param_rect *rect, const struct encoded_rows *to);
    const struct ckpt_quantization *quantization; /* of the tensors that are not plain; NULL: all are */
};
/* Opens the tensors of a source as those of a directory. The array is copied; the names stay the source's. The tensors
 * own the source from here on, unless the call fails. STATUS_INVALID when two have one name. */
int ckpt_open_source(const char *directory, const struct safetensor *list, size_t count,
                     const struct tensor_source *source, struct ckpt_tensors **tensors);

/* True for a directory with `.metadata`. */
bool exchange_is_dcp(const char *directory);
/* Opens its tensors, under the names of the state dict that was saved. *objects: how many of its values are no tensors;
 * they are not read. STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID, STATUS_UNSUPPORTED, STATUS_MEMORY. */
int exchange_open_dcp(const char *directory, struct ckpt_tensors **tensors, int64_t *objects);

/* Reads the arguments of a run of Megatron from its common.pt, as a JSON object of texts, numbers, bools, nulls and
 * lists of these. Any other value becomes an empty object. The caller frees *text, which is NULL when there are no
 * arguments. STATUS_INVALID, STATUS_UNSUPPORTED, STATUS_IO, STATUS_MEMORY. */
int exchange_read_megatron_arguments(const char *directory, char **text);

/* A distributed checkpoint to be written. */
struct exchange_dcp {
    const char *directory; /* what may be replaced is as in ckpt_write_model */
    const struct ckpt_tensors *tensors;
    int files;                  /* to divide the tensors into, at least 1 */
    const char *stacked;        /* tensors whose names begin so have a part for each row of their first axis;
                                 * NULL: each tensor is one part */
    const char *const *objects; /* [object_count] names of objects, each the list [None] */
    size_t object_count;
    const char *arguments;         /* of a run of Megatron: a JSON object of such values; NULL: none */
    const char *config_text;       /* config.json; NULL: none */
    const struct ckpt_text *texts; /* further files */
    int text_count;
    const struct tokenizer_files *tokenizer; /* NULL: none */
};
/* Writes all tensors under their own names and types, with the texts next to them. STATUS_INVALID, STATUS_UNSUPPORTED
 * for a type that torch lacks; STATUS_IO, STATUS_MEMORY. */
int exchange_write_dcp(const struct exchange_dcp *request);

/* True for the name of a file of safetensors. */
bool exchange_is_safetensors(const char *name);
/* True for a directory with such files; *is_sharded: the ranks of a run have written parts of tensors. */
bool exchange_has_safetensors(const char *directory, bool *is_sharded);
/* Opens the tensors of all these files; parts of one tensor are joined. */
int exchange_open_safetensors(const char *directory, struct ckpt_tensors **tensors);

/* Tensors to be written, and the files next to them. */
struct exchange_files {
    const char *directory; /* what may be replaced is as in ckpt_write_model */
    const struct ckpt_tensors *tensors;
    const size_t *order;           /* [count] the tensors as they are written, one after the other; NULL: by name */
    int64_t max_shard_bytes;       /* 0: transformers' 50 GB */
    const char *config_text;       /* config.json; NULL: none */
    const struct ckpt_text *texts; /* further files */
    int text_count;
    const struct tokenizer_files *tokenizer; /* NULL: none */
};
/* Writes all tensors under their own names and types, as model.safetensors, or as shards with an index when they exceed
 * max_shard_bytes. */
int exchange_write_tensors(const struct exchange_files *files);
