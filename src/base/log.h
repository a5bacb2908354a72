/* Messages for people, on standard error. Standard output is only for results. Every line is one write, so lines of
 * several threads or processes do not mix. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* "cambium: TEXT". */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "cambium: warning: TEXT". */
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "cambium: error: TEXT". */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Makes each of these lines a JSON object from now on, for all threads of the process. Its keys are "time", "level",
 * "event" (always "process") and "message". */
void log_as_json(void);
/* Writes the current time as "2026-03-01T12:00:00.123Z". */
enum { LOG_TIME_BYTES = 72 };
void log_time(char text[LOG_TIME_BYTES]);

/* Drops or restores this thread's infos and warnings. Ranks use it when another rank speaks for them. */
void log_quiet(bool is_quiet);

/* True when standard error accepts a line of less than PIPE_BUF at once. It may be a full pipe without a reader. */
bool log_is_writable(void);

/* True when standard error is a terminal. Progress bars redraw there; elsewhere they print occasional plain lines. */
bool log_is_terminal(void);

/* Progress of WORK: a bar "WORK  42% [=====>    ] DETAIL  1m 03s left". It redraws at most ten times a second on a
 * terminal. Elsewhere a plain line appears at most every `quiet_seconds`. */
struct progress {
    const char *what;
    int64_t total;     /* units of work; 0 = unknown */
    double start;      /* clock_seconds() at progress_begin */
    double last_shown; /* when the last line was shown */
    double quiet_seconds;
    bool is_drawn;
};
/* progress_begin starts a bar for `total` units of work; progress_update says that `done` of them are done. */
void progress_begin(struct progress *progress, const char *what, int64_t total);
void progress_update(struct progress *progress, int64_t done, const char *detail_format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the bar by printing its last state on its own line; prints nothing when no bar was drawn. */
void progress_end(struct progress *progress);
/* Removes a drawn bar from the terminal so that another line can be written. */
void progress_clear(struct progress *progress);
