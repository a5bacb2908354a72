/* Opening a model directory.
 *
 * Every command with a model opens it here: its path is resolved to a directory, its family reads config.json, and its
 * tensors are opened. The caller owns the result and closes it. Nothing here changes a directory, and any thread may
 * open one. Readers of the tensors check their names and shapes (ckpt_check). */
#pragma once

#include "ckpt/ckpt.h"
#include "model/family.h"

struct pretrained {
    char directory[PATH_MAX];
    struct strbuf config_text; /* of config.json */
    struct model_config config;
    enum dtype dtype; /* of its files: the one in config.json, else that of the largest tensor */
    struct model_text_ends ends;
    struct ckpt_tensors *tensors;
};

/* Opens the model directory that `path` means: the path itself, or the newest checkpoint in it. With a `world`, all
 * ranks open the directory that its first rank finds, because a new checkpoint may appear at any moment. The ranks must
 * still agree on whether all could open it. STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID, STATUS_UNSUPPORTED,
 * STATUS_MEMORY. Call pretrained_close in any case. */
int pretrained_open(const char *path, struct comm *world, struct pretrained *model);
/* The same without the tensors: `tensors` stays NULL. `dtype` is DTYPE_COUNT when config.json does not name it. */
int pretrained_open_config(const char *path, struct pretrained *model);
/* The same for a directory that was found before. */
int pretrained_read_config(const char *directory, struct pretrained *model);
void pretrained_close(struct pretrained *model);
