/* Adapters as what a trainer trains on a frozen base. */
#ifndef CAMBIUM_COMMANDS_TRAINEE_H
#define CAMBIUM_COMMANDS_TRAINEE_H

#include "peft/peft.h"
#include "train/train.h"

/* A stack is opened from this; it outlives the trainee. */
struct trainee_adapters {
    const struct peft_config *configs;
    int count;
    const struct peft_files *files; /* whose values they start with; NULL: initial ones */
};
/* Without texts and initial values of files, which are the caller's to set. */
struct trainee trainee_of_adapters(const struct trainee_adapters *adapters);

#endif
