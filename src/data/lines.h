/* Rows of a user's file, each as a line of JSON. One thread at a time.
 *
 * The file is packed by gzip (whatever its name), plain, or standard input. It has JSON lines. A regular file that
 * begins with [ is a JSON array of rows. A name that ends in .csv or .csv.gz is one of CSV with a header, whose rows
 * become objects. UTF-8's byte-order mark is dropped. */
#pragma once

#include "base/base.h"

struct lines;
/* Opens a file. `path` "-" is standard input; it is read as it arrives, like a pipe, and is never packed. A row of
 * more than `most` bytes is refused. STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY. */
int lines_open(const char *path, size_t most, struct lines **lines);
/* The same for a file of ours, which has only lines. */
int lines_open_plain(const char *path, size_t most, struct lines **lines);
/* Moves to the next line, or sets *is_end when there is none. STATUS_INVALID with the place: a file that is something
 * else, a row that is too long, or an array or CSV with a fault; STATUS_IO, STATUS_MEMORY, STATUS_INTERRUPTED. */
int lines_next(struct lines *lines, bool *is_end);
/* The same, but passes over blank lines. */
int lines_next_row(struct lines *lines, bool *is_end);
/* True when the next line probably comes at once; otherwise waits for it up to `milliseconds`, or until a signal. */
bool lines_are_ready(const struct lines *lines, int milliseconds);
/* True when the input is a regular file, which can be read again. */
bool lines_are_of_file(const struct lines *lines);
/* Returns the line without its end, valid until the next call of lines_next. */
const struct strbuf *lines_text(const struct lines *lines);
/* Returns the number of the row's line, from 1; of an array's row: that of the row, from 1. */
int64_t lines_number(const struct lines *lines);
/* True when the file is an array. */
bool lines_are_elements(const struct lines *lines);
/* Puts the row's place before the current error text, and returns `status`. */
int lines_wrap(const struct lines *lines, int status);
/* Returns the file's name for messages. */
const char *lines_name(const struct lines *lines);
/* NULL is allowed. */
void lines_close(struct lines *lines);
