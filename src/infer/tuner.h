/* Adapters as what a trainer trains on a frozen base. */
#pragma once

#include "peft/peft.h"
#include "train/train.h"

/* The adapters to train. It outlives the tuner. */
struct tuner_adapters {
    const struct peft_config *configs;
    int count;
    const struct peft_files *files; /* files with their initial values; NULL: the method's initial values */
    const struct peft_files *init;  /* files with the configurations; NULL: none */
    const char *model;              /* the base's directory; NULL: unknown */
};
/* Returns a tuner. The caller sets its texts and its init_directory. */
struct tuner tuner_of_adapters(const struct tuner_adapters *adapters);
