/* The first bytes of a user's file of text: a byte-order mark, or the signature of something else. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns the bytes of UTF-8's byte-order mark at the start: 3 or 0. */
size_t beginning_mark(const void *bytes, size_t length);
/* Checks the first bytes of a file: at least 4, or all. STATUS_INVALID, with what the file is and what to do, for text
 * in UTF-16 or UTF-32 and for what other programs packed. `holds_json`: also for Parquet, Arrow and zip, whose
 * signatures could begin a text. */
int beginning_check(const char *name, const void *bytes, size_t length, bool holds_json);
