/* Adapters as what a trainer trains on a frozen base. */
#ifndef CAMBIUM_COMMANDS_TRAINEE_H
#define CAMBIUM_COMMANDS_TRAINEE_H

#include "peft/peft.h"
#include "train/train.h"

/* What a stack is opened from; it outlives the trainee. */
struct trainee_adapters {
    const struct peft_config *configs;
    int count;
};
/* Without texts and initial values of files, which are the caller's to set. */
struct trainee trainee_of_adapters(const struct trainee_adapters *adapters);

#endif
