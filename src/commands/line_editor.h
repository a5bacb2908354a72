/* Lines that a person types at a terminal, with editing and a history where libedit is installed.
 *
 * libedit is opened at run time, so the program neither needs it nor is built with it. Call between stop_watch_begin
 * and stop_watch_end (base/stop.h): Ctrl-C then drops the line that is being typed. One thread at a time may call. */
#pragma once

#include "base/base.h"

struct line_editor;

enum line_event {
    LINE_TYPED,   /* a whole line */
    LINE_DROPPED, /* Ctrl-C: the line so far is forgotten */
    LINE_END      /* the end of the input, or SIGTERM */
};

/* Opens an editor of standard input. `edits` false: lines come as the terminal gives them, also where libedit is.
 * `history`: the name of a file that keeps the lines for later runs (line_history.h); NULL: none. STATUS_MEMORY. */
int line_editor_open(bool edits, const char *history, struct line_editor **editor);
/* Shows a prompt and reads a line, without its end, into `line`, which is emptied first. `is_first` false: the line
 * continues the one before, and the prompt shows it. STATUS_IO, STATUS_MEMORY. */
int line_editor_read(struct line_editor *editor, bool is_first, struct strbuf *line, enum line_event *event);
/* Adds a line to the history that the arrow keys show, and to its file. */
void line_editor_remember(struct line_editor *editor, const char *line);
/* Frees the editor. NULL is allowed. */
void line_editor_close(struct line_editor *editor);
