/* The weights of a model in few bits, as a base takes them (struct param_encodings, struct param_fill).
 *
 * The bits come from the model's files, if these are quantised, or from --load-in: plain weights of linears are rounded
 * while they are loaded. A rounding sees whole tensors of the files, so ranks that share one round alike. */
#pragma once

#include "kernels/rounding.h"
#include "pretrained.h"

struct pretrained_encodings {
    const struct pretrained *model;
    struct param_table table;
    const struct rounding *rounding;  /* of --load-in; NULL: none */
    int threads;                      /* that round; 0: one */
    char text[120];                   /* what people read about them */
    struct param_encodings encodings; /* `describe` is NULL if all weights are plain */
};

/* The words of --load-in, "none" first; NULL-terminated. */
extern const char *const load_in_names[];

/* Opens the encodings of an opened model; it and they stay in place. `load_in`: an index into load_in_names. The caller
 * closes them, also after an error. STATUS_USAGE for a rounding of a quantised model; STATUS_MEMORY. */
int pretrained_encodings_open(const struct pretrained *model, int load_in, struct pretrained_encodings *encodings);
void pretrained_encodings_close(struct pretrained_encodings *encodings);
/* Returns what a base's options take: NULL if all weights are plain. */
const struct param_encodings *pretrained_describes(const struct pretrained_encodings *encodings);
/* Logs how the weights are encoded, how many of the model's matrices the device holds in their bits, and the bytes of
 * those that it holds in `type`. Nothing if all weights are plain. */
void pretrained_encodings_log(const struct pretrained_encodings *encodings, struct device *device, enum dtype type);
/* Writes codes and scales of a rectangle of a parameter, as struct param_fill says. STATUS_INVALID, STATUS_IO,
 * STATUS_MEMORY. */
int pretrained_read_encoded(const struct pretrained_encodings *encodings, int id, const struct param_rect *rect,
                            const struct encoded_rows *to);
