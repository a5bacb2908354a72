/* Refused adapters: which directories could not be loaded, so that nobody reads them again before their files change.
 *
 * A directory is known by its path and the stamp of its files (peft_stamp_directory). Of REFUSALS_MAX refusals the
 * oldest makes room for a new one. Any thread. */
#ifndef CAMBIUM_SERVE_REFUSALS_H
#define CAMBIUM_SERVE_REFUSALS_H

#include "error.h"

#include <stdbool.h>
#include <stdint.h>

enum { REFUSALS_MAX = 256 };

struct refusals;

/* STATUS_MEMORY. */
int refusals_open(struct refusals **refusals);
/* NULL is allowed. */
void refusals_close(struct refusals *refusals);
/* Remembers a refusal; not where there is no memory for it. */
void refusals_add(struct refusals *refusals, const char *directory, uint64_t stamp, const struct error *error);
/* True when these files were refused; then with what. */
bool refusals_find(struct refusals *refusals, const char *directory, uint64_t stamp, struct error *error);

#endif
