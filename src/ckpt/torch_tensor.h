/* One tensor as torch.save writes it: a zip with a pickle of its shape and one record of its elements. */
#pragma once

#include "pickle.h"
#include "safetensors.h"
#include "zip.h"

/* The modules of torch whose classes make up the list of a distributed checkpoint. */
#define DCP_MODULE       "torch.distributed.checkpoint.metadata"
#define DCP_PLACE_MODULE "torch.distributed.checkpoint.filesystem"

/* Returns our name for an element type of torch (torch.float32: "F32"); NULL for anything else. */
const char *torch_type(const struct pickle_node *node);

/* Return torch's name of one of our types, and of its class of storage; NULL when it has none. */
const char *torch_type_name(const char *type);
const char *torch_storage_name(const char *type);

struct torch_tensor {
    const char *type;
    int dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    bool is_transposed;                 /* of two dimensions, whose elements lie column by column */
    int64_t start;                      /* byte of the file where its first element is */
    int64_t record_start, record_bytes; /* all bytes that the sum covers */
    uint32_t crc;
};

/* Reads the description in bytes [start, start + bytes) of a file, but no element. STATUS_INVALID when it is damaged or
 * holds anything but one dense tensor; STATUS_IO, STATUS_MEMORY. */
int torch_tensor_read(const char *path, int descriptor, int64_t start, int64_t bytes, struct torch_tensor *tensor);
/* Computes the sum of the record and compares. STATUS_INVALID, STATUS_IO, STATUS_MEMORY. */
int torch_tensor_check(const char *path, int descriptor, const struct torch_tensor *tensor);
