#include "strbuf.h"

#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_free(struct strbuf *buffer) {
    free(buffer->data);
    *buffer = STRBUF_INIT;
}

int strbuf_reserve(struct strbuf *buffer, size_t more) {
    if (buffer->failed)
        return strbuf_status(buffer);
    if (more < buffer->capacity - buffer->length)
        return STATUS_OK;
    size_t wanted = buffer->length + more + 1;
    size_t capacity = buffer->capacity * 2 > wanted ? buffer->capacity * 2 : wanted < 64 ? 64 : wanted;
    char *data = wanted > more ? realloc(buffer->data, capacity) : NULL;
    if (!data) {
        buffer->failed = true;
        return strbuf_status(buffer);
    }
    buffer->data = data;
    buffer->capacity = capacity;
    data[buffer->length] = 0;
    return STATUS_OK;
}

void strbuf_add(struct strbuf *buffer, const void *bytes, size_t length) {
    if (strbuf_reserve(buffer, length) || length == 0)
        return;
    memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
    buffer->data[buffer->length] = 0;
}

void strbuf_add_text(struct strbuf *buffer, const char *text) {
    strbuf_add(buffer, text, strlen(text));
}

void strbuf_add_char(struct strbuf *buffer, char c) {
    strbuf_add(buffer, &c, 1);
}

void strbuf_format(struct strbuf *buffer, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0 && !strbuf_reserve(buffer, (size_t)length + 1)) {
        vsnprintf(buffer->data + buffer->length, (size_t)length + 1, format, again);
        buffer->length += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

void strbuf_clear(struct strbuf *buffer) {
    buffer->length = 0;
    if (buffer->data)
        buffer->data[0] = 0;
}

int strbuf_status(const struct strbuf *buffer) {
    return buffer->failed ? status_no_memory() : STATUS_OK;
}
