/* The weights of a model in few bits, as a base takes them (struct param_encodings, struct param_fill).
 *
 * The bits come from the model's files, if these are quantised, or from --load-in: plain weights of linears are rounded
 * while they are loaded. A rounding sees whole tensors of the files, so ranks that share one round alike. */
#pragma once

#include "ckpt/codec.h"
#include "kernels/rounding.h"
#include "model/model.h"
#include "pretrained.h"

struct pretrained_encodings {
    const struct pretrained *model;
    struct param_table table;
    struct ckpt_encodings files;
    const struct rounding *rounding;       /* of --load-in; NULL: none */
    int threads;                           /* that round; 0: one */
    struct ckpt_quantization quantization; /* of the files, or of --load-in */
    struct param_encodings encodings;      /* `describe` is NULL if all weights are plain */
};

/* The words of --load-in, "none" first; NULL-terminated. */
extern const char *const load_in_names[];

/* Describes the quantisation of an opened model's files, or that of --load-in: an index into load_in_names. Its method
 * is NULL if all weights are plain. STATUS_USAGE for both. */
int pretrained_quantization(const struct pretrained *model, int load_in, struct ckpt_quantization *quantization);
/* Opens the encodings of an opened model, or of one that only has a configuration; both stay in place until the base is
 * loaded. `load_in`: an index into load_in_names. The caller closes them, also after an error. STATUS_USAGE for a
 * rounding of a quantised model; STATUS_MEMORY. */
int pretrained_encodings_open(const struct pretrained *model, int load_in, struct pretrained_encodings *encodings);
void pretrained_encodings_close(struct pretrained_encodings *encodings);
/* Returns what a base's options take: NULL if all weights are plain. */
const struct param_encodings *pretrained_describes(const struct pretrained_encodings *encodings);
/* Returns the type of a computation with --precision auto: bf16 for files in bf16 or in few bits, else fp32. */
enum dtype pretrained_auto_dtype(const struct pretrained_encodings *encodings);
/* Writes how the weights are encoded, and how many of the model's matrices the device holds in their bits. The bytes of
 * those follow that it holds in `type`. Writes "" if all weights are plain. */
enum { ENCODINGS_TEXT_BYTES = 240 };
void pretrained_encodings_text(const struct pretrained_encodings *encodings, struct device *device, enum dtype type,
                               char text[ENCODINGS_TEXT_BYTES]);
/* Gives a base that was sketched with these encodings its weights (base_fill), after ckpt_check. A model without
 * tensors has random ones. `stream` is that of its rank. `must_be_finite`: as in struct ckpt_array. A requested stop
 * ends it with STATUS_INTERRUPTED. STATUS_INVALID, STATUS_IO, STATUS_MEMORY, and the device's failures. */
int pretrained_load(const struct pretrained_encodings *encodings, struct base *base, struct stream *stream,
                    bool must_be_finite);
