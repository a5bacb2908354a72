/* Messages for people, on standard error: results alone go to standard output. Every line is one write, so that lines
 * of several threads or processes do not mix. */
#ifndef CAMBIUM_BASE_LOG_H
#define CAMBIUM_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* "cambium: TEXT". */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "cambium: warning: TEXT". */
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "cambium: error: TEXT". */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From now on each of these lines is an object of JSON, with "time", "level", "event" (always "process") and "message",
 * from all threads of the process. */
void log_as_json(void);
/* "2026-03-01T12:00:00.123Z": now. */
enum { LOG_TIME_BYTES = 72 };
void log_time(char text[LOG_TIME_BYTES]);

/* Drops this thread's infos and warnings from now on, or no longer: for ranks of which another one speaks. */
void log_quiet(bool is_quiet);

/* Whether standard error takes a line of less than PIPE_BUF at once: nobody may read the pipe that it is. */
bool log_is_writable(void);

/* Whether standard error is a terminal (progress bars redraw there, and print rare plain lines elsewhere). */
bool log_is_terminal(void);

/* A bar "WHAT  42% [=====>    ] DETAIL  1m 03s left" that redraws at most ten times a second on a terminal and prints
 * a plain line at most every `quiet_seconds` elsewhere. */
struct progress {
    const char *what;
    int64_t total;     /* units of work; 0 = unknown */
    double start;      /* clock_seconds() at progress_begin */
    double last_shown; /* when the last line was shown */
    double quiet_seconds;
    bool is_drawn;
};
void progress_begin(struct progress *progress, const char *what, int64_t total);
void progress_update(struct progress *progress, int64_t done, const char *detail_format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the bar with its last state on a line of its own (nothing where no bar was drawn). */
void progress_end(struct progress *progress);
/* Removes a drawn bar from the terminal so that another line can be written. */
void progress_clear(struct progress *progress);

#endif
