/* A growing byte string that always ends with a zero byte. It starts as STRBUF_INIT; strbuf_free ends it. A failed
 * allocation sets `failed`, and appends then do nothing: check once, at the end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *data; /* may be NULL: read it through strbuf_text */
    size_t length;
    size_t capacity;
    bool failed;
};
#define STRBUF_INIT ((struct strbuf){0})

/* Frees the memory and leaves STRBUF_INIT. */
void strbuf_free(struct strbuf *buffer);
/* strbuf_reserve makes room for `more` bytes after the text and returns STATUS_OK or STATUS_MEMORY. The others
 * append. */
int strbuf_reserve(struct strbuf *buffer, size_t more);
void strbuf_add(struct strbuf *buffer, const void *bytes, size_t length);
void strbuf_add_text(struct strbuf *buffer, const char *text);
void strbuf_add_char(struct strbuf *buffer, char c);
void strbuf_format(struct strbuf *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Empties the text and keeps the memory. */
void strbuf_clear(struct strbuf *buffer);
/* Returns the text, "" when it is empty. */
static inline const char *strbuf_text(const struct strbuf *buffer) {
    return buffer->data ? buffer->data : "";
}
/* Returns STATUS_OK, or STATUS_MEMORY when an append failed. */
int strbuf_status(const struct strbuf *buffer);
