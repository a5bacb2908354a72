/* Checkpoints of other systems, converted. One call reads what a path is and writes another form of it. It is made once
 * by one thread. It checks names and shapes before it writes; an output appears whole or not at all. At most one
 * tensor, or one part of it, is in memory at a time. */
#pragma once

#include "pretrained/pretrained.h"

enum convert_target {
    CONVERT_MODEL,    /* a model directory, or a checkpoint where there is a trainer's state */
    CONVERT_TENSORS,  /* safetensors files of every tensor, under its own name and type */
    CONVERT_DCP,      /* a distributed checkpoint of PyTorch, of every tensor */
    CONVERT_MEGATRON, /* a checkpoint of Megatron core, of a model */
    CONVERT_GGUF,     /* a GGUF file of a model */
};

/* CONVERT_AUTO: bf16 if the source's are, else fp32. Those from CONVERT_Q8_0 on are for GGUF. */
enum convert_type {
    CONVERT_AUTO,
    CONVERT_FP32,
    CONVERT_BF16,
    CONVERT_FP16,
    CONVERT_Q8_0,
    CONVERT_Q5_0,
    CONVERT_Q4_0,
    CONVERT_Q6_K,
    CONVERT_Q4_K_M,
};

struct convert_request {
    const char *from; /* a GGUF file or a directory */
    enum convert_target to;
    const char *output;      /* the directory or file to write; ckpt_write_model says what may be replaced */
    const char *config;      /* a config.json; NULL: the source's */
    const char *tokenizer;   /* a directory; NULL: the source's */
    const char *prefix;      /* before the model's names in the source; NULL: it is found */
    enum convert_type type;  /* of a model's written weights */
    int files;               /* of a distributed checkpoint, at least 1 */
    int tensor;              /* ranks that divide Megatron's vocabulary, at least 1 */
    int64_t max_shard_bytes; /* of a file of safetensors; 0: transformers' 50 GB */
};

/* Converts. Quantised weights of a GGUF file become the values that their type defines. STATUS_NOT_FOUND, STATUS_IO;
 * STATUS_INVALID for input that is damaged or contradicts itself; STATUS_UNSUPPORTED for what is not read or written;
 * STATUS_USAGE for options that the conversion does not take; STATUS_MEMORY. */
int convert(const struct convert_request *request);
