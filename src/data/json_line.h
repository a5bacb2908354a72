/* One line of a file of JSON objects, read as Python's json reads it. The last of equal keys counts. \u0000, NaN,
 * Infinity and numbers of any size are accepted; what no double holds becomes a string, which no reader takes for a
 * number. Half a surrogate pair, which UTF-8 cannot hold, becomes
 * U+FFFD. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { JSON_LINE_BYTES = 64 << 20 }; /* the longest line of requests, and of texts to score */

/* True for a line of white space only, which does not count. */
bool json_line_is_blank(const char *line, size_t length);
/* Sets *root to a new reference to any JSON value. On failure *root is NULL: STATUS_INVALID with the column in bytes,
 * or STATUS_MEMORY. */
int json_line_read(const char *line, size_t length, json_t **root);
