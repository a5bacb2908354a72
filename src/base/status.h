/* Status codes and error texts.
 *
 * A fallible function returns 0 or a negative enum status. The text of the failure, one line with file, position and
 * value, is in the calling thread's error slot. A caller that only passes a failure on returns the status unchanged. A
 * caller that knows more (a file name, a line) prepends it with status_wrap. */
#pragma once

#include <stdbool.h>

enum status {
    STATUS_OK = 0,
    STATUS_USAGE = -1,       /* the command line or a configuration is wrong: exit status 2 */
    STATUS_INVALID = -2,     /* the contents of an input are not allowed */
    STATUS_IO = -3,          /* the system refused: open, read, write, rename */
    STATUS_MEMORY = -4,      /* an allocation failed */
    STATUS_UNSUPPORTED = -5, /* well-formed, but not implemented */
    STATUS_INTERRUPTED = -6, /* a signal asked the program to stop */
    STATUS_NOT_FOUND = -7,   /* the named thing does not exist */
    STATUS_PEER = -8,        /* another rank of the run failed; the text names it */
};

/* Sets this thread's error text (printf form, lower case, no full stop, the problem first) and returns `status`. */
int status_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like status_fail, and appends ": " and strerror(errno). Returns STATUS_MEMORY for ENOMEM, else STATUS_IO. */
int status_fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prepends a prefix and ": " to this thread's error text and returns `status` unchanged. */
int status_wrap(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replaces control characters (U+0080 to U+009F too) and bytes that are not UTF-8 by '?', in place. Text from a file or
 * an option can then neither start a new line nor move a terminal's cursor. All error texts and log lines pass through
 * it. */
void text_make_line(char *text);

/* Like status_fail(STATUS_MEMORY, "out of memory"). */
int status_no_memory(void);

/* STATUS_OK if an allocation succeeded, else as status_no_memory: TRY(status_allocated(p)). */
static inline int status_allocated(bool is_allocated) {
    if (is_allocated)
        return STATUS_OK;
    status_no_memory();
    return STATUS_MEMORY; /* a constant, so that the compiler knows that what follows has its memory */
}

/* TRY(call) passes a failure on: unless the call returns STATUS_OK, the surrounding function returns its status. It is
 * for places where nothing has to be released; others collect a status with THEN. */
#define TRY(...)                                                                                                       \
    do {                                                                                                               \
        int try_status = (__VA_ARGS__);                                                                                \
        if (try_status)                                                                                                \
            return try_status;                                                                                         \
    } while (0)

/* THEN(status, call) is the next step of a chain: it makes the call only if all steps before it succeeded, and keeps
 * its status. */
#define THEN(status, ...)                                                                                              \
    do {                                                                                                               \
        if (!(status))                                                                                                 \
            (status) = (__VA_ARGS__);                                                                                  \
    } while (0)

/* THEN_IF(status, condition, call) is a step that the chain makes only where the condition holds. */
#define THEN_IF(status, condition, ...)                                                                                \
    do {                                                                                                               \
        if (!(status) && (condition))                                                                                  \
            (status) = (__VA_ARGS__);                                                                                  \
    } while (0)

/* Returns this thread's error text; "" before the first failure. Valid until the thread's next status_ call. */
const char *status_text(void);
