/* Lines of a file, packed by gzip (whatever its name) or not, or of standard input. One thread at a time. */
#ifndef CAMBIUM_DATA_LINES_H
#define CAMBIUM_DATA_LINES_H

#include "base/base.h"

struct lines;
/* `path`: "-" for standard input, which like pipes is read as it comes, and never packed. A line of more than `most`
 * bytes is refused by the name of its file and its number. */
int lines_open(const char *path, size_t most, struct lines **lines);
/* *is_end: there is none left. */
int lines_next(struct lines *lines, bool *is_end);
/* Whether the next line comes at once, as far as one can know; else waits for it so long, or for a signal. */
bool lines_are_ready(const struct lines *lines, int milliseconds);
/* Whether the input is a regular file, which can be read again. */
bool lines_are_of_file(const struct lines *lines);
/* The line without its end, until the next one. */
const struct strbuf *lines_text(const struct lines *lines);
/* From 1. */
int64_t lines_number(const struct lines *lines);
/* The file as messages call it. */
const char *lines_name(const struct lines *lines);
/* NULL is allowed. */
void lines_close(struct lines *lines);

#endif
