/* JSON texts by jansson, and what jansson does not tell: its parser takes a lack of memory for a mistake in the text,
 * and an object that is being made just stays without what found no memory. */
#ifndef CAMBIUM_BASE_JSON_H
#define CAMBIUM_BASE_JSON_H

#include "strbuf.h"

#include <jansson.h>
#include <stddef.h>

/* json_loadb: a new reference in *root, or NULL there and STATUS_MEMORY with its text, or STATUS_INVALID, for which the
 * caller makes a text from `error`. */
int json_read(const char *text, size_t length, size_t flags, json_t **root, json_error_t *error);

/* Making a text: json_begin(), any of jansson's functions without a look at what they return, and json_end(), which is
 * json_dumps of `root` and takes that reference: *text for free(), or NULL and STATUS_MEMORY where any of them had no
 * memory; STATUS_INVALID where `root` is NULL otherwise, for a text that is no UTF-8. */
void json_begin(void);
int json_end(json_t *root, size_t flags, char **text);

/* Appends characters (UTF-8: what is none, utf8_add_repaired has mended) as a string of JSON. */
void json_add_string(struct strbuf *out, const void *bytes, size_t length);

#endif
