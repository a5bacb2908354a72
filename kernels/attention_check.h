/* Checks of attention's arguments, for every backend. */
#pragma once

#include "ops.h"

/* Each checks a call of its operation. STATUS_UNSUPPORTED for other types than fp32 and bf16; STATUS_INVALID for bad
 * shapes. */
int attention_check(const struct attention *a);
int paged_attention_check(const struct paged_attention *a);
/* Checks that the workspace has `needed` bytes. STATUS_INVALID, naming the operation. */
int attention_check_workspace(const struct exec *exec, size_t needed, const char *operation);
