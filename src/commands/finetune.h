/* The run files of cambium finetune, for other commands. */
#pragma once

#include "stack.h"

#include "base/base.h"
#include "config/run.h"

/* Adds a run file of cambium finetune with its keys of a resolved `run` and of `peft`; others have their defaults. The
 * stack was chosen from `peft` and its types. STATUS_USAGE, STATUS_MEMORY. */
int finetune_write_run_file(const struct run_config *run, const struct stack *stack, const struct stack_options *peft,
                            struct strbuf *out);
