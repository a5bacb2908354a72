/* JSON texts by jansson, made safe where jansson is not. Its parser reports a lack of memory as a mistake in the text,
 * and an object under construction silently lacks a member that found no memory. */
#pragma once

#include "strbuf.h"

#include <jansson.h>
#include <stddef.h>

/* Parses a text as json_loadb does. Puts a new reference into *root, or NULL. Returns STATUS_MEMORY with its text, or
 * STATUS_INVALID; then the caller makes the text from `error`. */
int json_read(const char *text, size_t length, size_t flags, json_t **root, json_error_t *error);
/* The same for a text whose integers may exceed 64 bits: all of its numbers are then reals. */
int json_read_wide(const char *text, size_t length, size_t flags, json_t **root, json_error_t *error);

/* Makes a text. Call json_begin, then any of jansson's functions without checking their results, then json_end.
 * json_end is json_dumps of `root`; it takes that reference and sets *text for free(). On failure *text is NULL. It
 * returns STATUS_MEMORY when any of the calls had no memory. It returns STATUS_INVALID when `root` is NULL for another
 * reason, such as a text that is not UTF-8. */
void json_begin(void);
int json_end(json_t *root, size_t flags, char **text);
/* Ends a text, and prints it as a line of standard output, numbers with 9 digits. Also STATUS_IO. */
int json_print(json_t *root);
/* Returns a number, or null for one that JSON cannot hold. */
json_t *json_number(double value);

/* Appends a value as compact JSON. Without memory, and for NULL, which jansson returns then, out->failed is set. */
void json_add(struct strbuf *out, const json_t *value);
/* Appends characters as a JSON string. They must be UTF-8; utf8_add_repaired makes them so. */
void json_add_string(struct strbuf *out, const void *bytes, size_t length);
