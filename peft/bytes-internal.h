/* A block of an adapter's bytes (struct peft_bytes), from within. */
#ifndef CAMBIUM_PEFT_BYTES_INTERNAL_H
#define CAMBIUM_PEFT_BYTES_INTERNAL_H

#include "peft/peft.h"

/* The names of the files that a block may have. */
#define PEFT_CONFIG_FILE   "adapter_config.json"
#define PEFT_NOTES_FILE    "cambium_adapter.json"
#define PEFT_TEMPLATE_FILE "chat_template.jinja"
enum { PEFT_NOTES_BYTES = 1 << 16, PEFT_TEMPLATE_BYTES = 1 << 20 }; /* at most */

/* Fails with STATUS_INVALID where the bytes are no block, or have not the files of one adapter; what passes can be
 * searched. */
int peft_bytes_check(const struct peft_bytes *bytes);
/* One of its files; false where it has no file of that name. */
bool peft_bytes_find(const struct peft_bytes *bytes, const char *name, const char **data, size_t *length);

/* Empty where it has none. */
int peft_bytes_notes(const struct peft_bytes *bytes, struct peft_notes *notes);

#endif
