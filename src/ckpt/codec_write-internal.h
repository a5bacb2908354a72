/* A format that is written: a row of the table in codec_write.c. quantize.c rounds linears and writes them. */
#pragma once

#include "ckpt-internal.h"
#include "quantize.h"

enum { WRITTEN_PARTS = 6 };

/* A linear after its rounding. */
struct written_linear {
    struct encoded_rows rows;
    struct rounding_scales scales;
    const char *torch_type; /* of its plain values, as PyTorch calls it */
};

/* A tensor that a linear X becomes: X and the ending. */
struct written_part {
    const char *ending, *type;
    /* Sets the shape, and returns the number of dimensions; 0: such a linear has no such tensor. It needs only sizes.
     */
    int (*shape)(const struct written_linear *linear, int64_t shape[2]);
    void (*fill)(const struct written_linear *linear, void *out);
};

struct codec_format {
    const char *name, *rounding;
    struct {
        bool has_groups, has_zeros;
        bool packs_both;      /* words divide rows and columns */
        bool has_half_scales; /* scales are fp16 */
        unsigned methods;     /* enum codec_methods */
    } facts;
    /* Makes `quantization_config`. `head` is the head's module; `ignored`, which is taken, names the linears of layers
     * that stay plain. */
    json_t *(*config)(const struct rounding *rounding, const char *head, json_t *ignored);
    struct written_part parts[WRITTEN_PARTS];
};
