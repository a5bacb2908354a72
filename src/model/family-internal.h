/* The rows of the families: one a file. */
#ifndef CAMBIUM_MODEL_FAMILY_INTERNAL_H
#define CAMBIUM_MODEL_FAMILY_INTERNAL_H

#include "base/json_keys.h"
#include "family.h"

extern const struct model_family model_family_gpt2;

#endif
