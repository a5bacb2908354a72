/* Adapters as what a trainer trains on a frozen base. */
#ifndef CAMBIUM_COMMANDS_TRAINEE_H
#define CAMBIUM_COMMANDS_TRAINEE_H

#include "peft/peft.h"
#include "train/train.h"

/* The adapters to train. It outlives the trainee. */
struct trainee_adapters {
    const struct peft_config *configs;
    int count;
    const struct peft_files *files; /* files with their initial values; NULL: the method's initial values */
};
/* Returns a trainee. The caller sets its texts and its init_directory. */
struct trainee trainee_of_adapters(const struct trainee_adapters *adapters);

#endif
