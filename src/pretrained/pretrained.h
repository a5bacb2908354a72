/* Opening a model directory.
 *
 * Every command that is given a model finds it here: the directory that its path means, its config.json as its family
 * reads it, and its tensors. What is opened belongs to the caller, who closes it; nothing here changes it, and any
 * thread may open one. Names and shapes of the tensors are checked by those who read them (ckpt_check). */
#ifndef CAMBIUM_PRETRAINED_PRETRAINED_H
#define CAMBIUM_PRETRAINED_PRETRAINED_H

#include "ckpt/ckpt.h"
#include "model/family.h"

#include <limits.h>

struct pretrained {
    char directory[PATH_MAX];
    struct strbuf config_text; /* of its config.json */
    struct model_config config;
    enum dtype dtype; /* of its files: as config.json says, else that of the largest tensor */
    struct model_text_ends ends;
    struct ckpt_tensors *tensors;
};

/* Opens the model directory that `path` means, itself or the newest checkpoint in it. With a `world` all of its ranks
 * open the directory that its first rank finds, as a new checkpoint may appear just now; whether all could is theirs to
 * agree on. pretrained_close ends it in any case. */
int pretrained_open(const char *path, struct comm *world, struct pretrained *model);
/* The same without the tensors: `tensors` stays NULL, and `dtype` is DTYPE_COUNT where config.json does not say it. */
int pretrained_open_config(const char *path, struct pretrained *model);
/* The same of this directory, which was found before. */
int pretrained_read_config(const char *directory, struct pretrained *model);
void pretrained_close(struct pretrained *model);

#endif
