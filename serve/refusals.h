/* Remembers directories whose adapters were refused, so that their files are not read again before they change.
 *
 * A directory is identified by its path and the stamp of its files (peft_stamp_directory). At most REFUSALS_MAX
 * refusals are kept; a new one replaces the oldest. Any thread. */
#pragma once

#include "openai/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { REFUSALS_MAX = 256 };

struct refusals;

/* Makes an empty list. STATUS_MEMORY. */
int refusals_open(struct refusals **refusals);
/* NULL is allowed. */
void refusals_close(struct refusals *refusals);
/* Remembers a refusal, unless there is no memory for it. */
void refusals_add(struct refusals *refusals, const char *directory, uint64_t stamp, const struct error *error);
/* True when these files were refused; sets *error to the refusal. */
bool refusals_find(struct refusals *refusals, const char *directory, uint64_t stamp, struct error *error);
