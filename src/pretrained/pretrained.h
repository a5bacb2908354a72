/* Opening a model: a model directory, or a GGUF file.
 *
 * Every command with a model opens it here: its path is resolved to a directory or a file, its family reads
 * config.json, and its tensors are opened. A GGUF file's keys become the text of a config.json, and its tensors those
 * of a model directory: values of quantised types are computed where their bits are not read. The caller owns the
 * result and closes it. Nothing here changes a model, and any thread may open one. Readers of the tensors check their
 * names and shapes (ckpt_check). */
#pragma once

#include "ckpt/ckpt.h"
#include "model/family.h"

struct pretrained {
    char directory[PATH_MAX];  /* or the GGUF file */
    struct strbuf config_text; /* of config.json */
    struct model_config config;
    enum dtype dtype;    /* of its files: the one in config.json, else that of the largest tensor; bf16 if quantised */
    const char *weights; /* the name of the type of a GGUF file's largest tensor; NULL: a directory */
    struct model_text_ends ends;
    struct ckpt_tensors *tensors;
};

/* Opens the model that `path` means: the path itself, or the newest checkpoint in it. With a `world`, all ranks open
 * the directory that its first rank finds, because a new checkpoint may appear at any moment. The ranks must
 * still agree on whether all could open it. STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID, STATUS_UNSUPPORTED,
 * STATUS_MEMORY. Call pretrained_close in any case. */
int pretrained_open(const char *path, struct comm *world, struct pretrained *model);
/* The same without the tensors: `tensors` stays NULL. `dtype` is DTYPE_COUNT when config.json does not name it. */
int pretrained_open_config(const char *path, struct pretrained *model);
/* The same, with the tensors of a model whose files may have few bits: those of a GGUF file, or of a config.json with
 * `quantization_config`. */
int pretrained_open_encoded(const char *path, struct pretrained *model);
/* The same as pretrained_open_config for a directory that was found before. */
int pretrained_read_config(const char *directory, struct pretrained *model);
void pretrained_close(struct pretrained *model);

/* Adds the facts that ranks reading the same model must share. The errors of pretrained_open. */
int pretrained_facts(const char *path, struct facts *facts);

/* ---- the tokenizer of a model: a directory, or a GGUF file ---- */

/* Reads the files of a tokenizer, which a GGUF file has as keys; those that are not there are marked so. The errors of
 * tokenizer_files_read; for a GGUF file those of pretrained_open. On failure there is nothing to free. */
int pretrained_read_tokenizer(const char *path, struct tokenizer_files *files);
/* Reads and opens them. The errors of tokenizer_open. */
int pretrained_open_tokenizer(const char *path, struct tokenizer **tokenizer);
/* True when a tokenizer is there. */
bool pretrained_has_tokenizer(const char *path);
