/* A line of a file of JSON objects, taken as Python's json takes it: the last of equal keys counts, \u0000, NaN,
 * Infinity and numbers of any size pass (no reader here wants such a number: each is some real number), a byte-order
 * mark before the first line is none of it, and half a surrogate pair, which no UTF-8 can hold, becomes U+FFFD. */
#ifndef CAMBIUM_DATA_JSON_LINE_H
#define CAMBIUM_DATA_JSON_LINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { JSON_LINE_BYTES = 64 << 20 }; /* the longest line of requests, and of texts to score */

/* Bytes of a byte-order mark that stands before the first line. */
size_t json_line_mark(const char *line, size_t length, bool is_first);
/* White space alone, which is no line. `is_first`: of the file. */
bool json_line_is_blank(const char *line, size_t length, bool is_first);
/* A new reference to any JSON value in *root. STATUS_INVALID with the column (of bytes), STATUS_MEMORY; then NULL. */
int json_line_read(const char *line, size_t length, bool is_first, json_t **root);

#endif
