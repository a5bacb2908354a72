/* The lines that a person has typed, in a file: $XDG_STATE_HOME/cambium/NAME, else ~/.local/state/cambium/NAME.
 *
 * A line is appended as soon as it is typed. So a program that is killed loses none, and two that run at once keep the
 * lines of both. Only the owner can read the file (mode 0600). History is a convenience: where the file cannot be
 * written, none is kept, and nothing fails. */
#pragma once

#include <limits.h>
#include <stddef.h>

struct line_history {
    char path[PATH_MAX]; /* empty: no history is kept */
};

/* Finds the file `name`, and creates it and its directory where they are missing. Calls `recall` with each of its last
 * `most` lines, the oldest first. A file with more than twice as many lines is cut to these. */
void line_history_open(struct line_history *history, const char *name, size_t most,
                       void (*recall)(void *context, const char *line), void *context);
/* Appends a line, which has no line end. */
void line_history_add(const struct line_history *history, const char *line);
