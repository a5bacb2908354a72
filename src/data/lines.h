/* Lines of a file, packed by gzip (whatever its name) or plain, or of standard input. One thread at a time. */
#ifndef CAMBIUM_DATA_LINES_H
#define CAMBIUM_DATA_LINES_H

#include "base/base.h"

struct lines;
/* Opens a file. `path` "-" is standard input; it is read as it arrives, like a pipe, and is never packed. A line of
 * more than `most` bytes is refused, with the file's name and the line's number. STATUS_NOT_FOUND, STATUS_IO,
 * STATUS_MEMORY. */
int lines_open(const char *path, size_t most, struct lines **lines);
/* Moves to the next line, or sets *is_end when there is none. STATUS_INVALID, STATUS_IO, STATUS_MEMORY,
 * STATUS_INTERRUPTED. */
int lines_next(struct lines *lines, bool *is_end);
/* True when the next line probably comes at once; otherwise waits for it up to `milliseconds`, or until a signal. */
bool lines_are_ready(const struct lines *lines, int milliseconds);
/* True when the input is a regular file, which can be read again. */
bool lines_are_of_file(const struct lines *lines);
/* Returns the line without its end, valid until the next call of lines_next. */
const struct strbuf *lines_text(const struct lines *lines);
/* Returns the line's number, from 1. */
int64_t lines_number(const struct lines *lines);
/* Returns the file's name for messages. */
const char *lines_name(const struct lines *lines);
/* NULL is allowed. */
void lines_close(struct lines *lines);

#endif
