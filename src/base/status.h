/* Status codes and error text.
 *
 * A fallible function returns 0 or a negative enum status; the text of the failure, one line with file, position and
 * value, sits in the calling thread's error slot. A caller that only passes a failure on returns the status as it is;
 * one that knows more (a file name, a line) puts it in front with status_wrap. */
#ifndef CAMBIUM_BASE_STATUS_H
#define CAMBIUM_BASE_STATUS_H

enum status {
    STATUS_OK = 0,
    STATUS_USAGE = -1,       /* the command line or a configuration is wrong: exit status 2 */
    STATUS_INVALID = -2,     /* an input has contents that it may not have */
    STATUS_IO = -3,          /* the system refused: open, read, write, rename */
    STATUS_MEMORY = -4,      /* an allocation failed */
    STATUS_UNSUPPORTED = -5, /* well-formed, but not built */
    STATUS_INTERRUPTED = -6, /* a signal asked to stop */
    STATUS_NOT_FOUND = -7,   /* the thing named does not exist */
    STATUS_PEER = -8,        /* another rank of the run failed; the text names it */
};

/* Sets this thread's error text (printf form, lower case, no full stop, the problem first) and returns `status`. */
int status_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like status_fail with ": " and strerror(errno) behind the text; returns STATUS_IO, of ENOMEM STATUS_MEMORY. */
int status_fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts a prefix and ": " before this thread's error text and returns `status` unchanged. */
int status_wrap(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replaces controls (also U+0080 to U+009F), and bytes that are not UTF-8, by '?' in place. Words from a file or an
 * option can then neither begin a line nor move a terminal's cursor. Error texts and lines of the log go through it. */
void text_make_line(char *text);

/* This thread's error text; "" before the first failure. Valid until the thread's next status_ call. */
const char *status_text(void);

#endif
