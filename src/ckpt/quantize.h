/* Model directories whose linears are written in few bits: the other direction of codec.h.
 *
 * A format gives each linear of a layer the tensors that its own library reads, and config.json its
 * `quantization_config`. All other tensors keep their bytes. Linears are rounded one at a time in the order of the
 * parameter table, while the files are written. Equal input gives equal bytes. */
#pragma once

#include "ckpt.h"

#include "kernels/rounding.h"

struct codec_format;

/* The names of the formats, NULL-terminated. */
extern const char *const codec_format_names[];
const struct codec_format *codec_format_at(int number);
/* True if a format takes groups of other sizes than its own, and if it has an asymmetric form. */
bool codec_format_has_groups(const struct codec_format *format);
bool codec_format_has_zeros(const struct codec_format *format);
/* Returns how its codes may be chosen beside nearest rounding; CODEC_IS_GPTQS: the format is that solver's own. */
enum codec_methods { CODEC_TAKES_AWQ = 1, CODEC_TAKES_GPTQ = 2, CODEC_IS_GPTQS = 4 };
unsigned codec_format_methods(const struct codec_format *format);

/* A linear of the files, which may be several of the model's. */
struct quantized_linear {
    char name[PARAM_NAME_BYTES + 64]; /* of its module in the files that are written */
    int param;                        /* the first parameter that has rows of it */
    int64_t rows, columns;            /* [out, in] */
    int64_t number, count;            /* of the linears that are rounded, from 0 on */
};

/* A vector of the files that stays plain. */
struct quantized_vector {
    char name[PARAM_NAME_BYTES + 64]; /* of its module in the files */
    int param;
    const bool *is_kept;             /* by parameter: it has a linear that request.ignore keeps as it is */
    enum dtype dtype;                /* whose precision the values have, before and after */
    const struct rounding *rounding; /* of all linears */
    float *values;                   /* [count] */
    int64_t count;
    bool is_changed; /* false at first */
};

struct quantize_request {
    struct comm *world; /* ranks with equal requests. The first one writes, and the others round in its order */
    const char *output; /* a directory; what may be replaced is as in ckpt_write_model */
    const struct ckpt_tensors *tensors;
    const struct param_table *table;
    const char *config_text;
    const struct tokenizer_files *tokenizer; /* NULL: none */
    const struct ckpt_text *texts;           /* [text_count] further files */
    int text_count;
    const struct codec_format *format;
    int64_t group;             /* positions that share a scale; -1: rows; 0: the format's choice */
    bool has_zeros;            /* asymmetric */
    const char *const *ignore; /* [ignore_count] modules that stay plain: names, or "re:" and an expression */
    int64_t ignore_count;
    int threads;
    /* Called before anything of a linear is written: rounds call->values, which are `values` and may
     * change. NULL: rounding_rows. */
    int (*round)(void *context, const struct quantized_linear *linear, const struct rounding_call *call, float *values);
    /* Called before a plain vector is written, and may change it. NULL: all stay as they are. */
    int (*change)(void *context, struct quantized_vector *vector);
    void *context;
};
/* Writes the directory. STATUS_USAGE for a quantised model, a group that does not divide a row, and a name that no
 * linear has. STATUS_INVALID for values that are not finite. STATUS_UNSUPPORTED, STATUS_IO, STATUS_MEMORY. */
int ckpt_quantize(const struct quantize_request *request);
