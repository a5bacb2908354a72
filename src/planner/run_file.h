/* A run file for planning: the configuration of `cambium pretrain`, without the files that it names. */
#pragma once

#include "config/run.h"
#include "train/train.h"

struct run_file {
    struct run_config run; /* as typed */
    const char *config;    /* the file; NULL: none */
    struct config *parsed; /* owns the strings */
};

/* Reads a run file (NULL: none), then keys "parallel.KEY=VALUE" that override it. The caller closes *file. The errors
 * of config_parse. */
int run_file_read(const char *path, const char *const *keys, size_t count, struct run_file *file);
void run_file_close(struct run_file *file);
/* Takes the model of a directory, of which only config.json is read. The errors of pretrained_open_config. */
int run_file_take_model(const char *directory, struct run_config *run);
/* Resolves a configuration for planning: what only a real run needs is filled in. *run borrows the strings.
 * STATUS_USAGE for keys that contradict each other. */
int run_file_resolve(const struct run_config *config, struct train_run *run);
/* Writes the configuration as a run file. STATUS_MEMORY. */
int run_file_write(const struct run_config *config, struct strbuf *out);
