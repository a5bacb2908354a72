/* A block of an adapter's bytes (struct peft_bytes), for the files that make and read one. */
#pragma once

#include "peft/peft.h"

/* Names of the files in a block. */
#define PEFT_CONFIG_FILE    "adapter_config.json"
#define PEFT_NOTES_FILE     "cambium_adapter.json"
#define PEFT_TEMPLATE_FILE  "chat_template.jinja"
#define PEFT_TOKENIZER_FILE "tokenizer_config.json" /* only its chat_template counts, without the file before it */
enum { PEFT_NOTES_BYTES = 1 << 16, PEFT_TEMPLATE_BYTES = 1 << 20, PEFT_TOKENIZER_BYTES = 1 << 24 }; /* at most */

/* Checks that the bytes are a block with the files of one adapter; only a checked block may be searched.
 * STATUS_INVALID. */
int peft_bytes_check(const struct peft_bytes *bytes);
/* Finds one of its files; returns false when the block does not have it. */
bool peft_bytes_find(const struct peft_bytes *bytes, const char *name, const char **data, size_t *length);
