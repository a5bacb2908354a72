/* Each thread has one error slot, a fixed buffer, so reporting a failed allocation never allocates. */
#include "status.h"

#include "utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SLOT_BYTES = 2048 };
static _Thread_local char slot[SLOT_BYTES];

void text_make_line(char *text) {
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    while (at < end) {
        uint32_t point = *at;
        size_t length = point < 0x80 ? 1 : utf8_decode(at, end, &point);
        if (length == 0 || point < ' ' || (point >= 0x7f && point <= 0x9f)) {
            at += length ? length : utf8_bad_length(at, end); /* before text, which may be the same place, is written */
            *text++ = '?';
        } else {
            memmove(text, at, length);
            text += length;
            at += length;
        }
    }
    *text = 0;
}

int status_fail(int status, const char *format, ...) {
    char text[SLOT_BYTES]; /* the arguments may point into the slot */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_make_line(text);
    memcpy(slot, text, sizeof slot);
    return status;
}

int status_no_memory(void) {
    return status_fail(STATUS_MEMORY, "out of memory");
}

int status_fail_errno(const char *format, ...) {
    int error = errno;
    char text[SLOT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return status_fail(error == ENOMEM ? STATUS_MEMORY : STATUS_IO, "%s: %s", text,
                       error == ENOMEM ? "out of memory" : strerror(error));
}

int status_wrap(int status, const char *format, ...) {
    char text[SLOT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return status_fail(status, "%s: %s", text, slot);
}

const char *status_text(void) {
    return slot;
}
