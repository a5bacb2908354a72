/* A growing byte string, always terminated by a zero byte. Starts as STRBUF_INIT; strbuf_free ends it. A failed
 * allocation is remembered in `failed`, appends then do nothing: check once, at the end. */
#ifndef CAMBIUM_BASE_STRBUF_H
#define CAMBIUM_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *data; /* never NULL to a reader: use strbuf_text */
    size_t length;
    size_t capacity;
    bool failed;
};
#define STRBUF_INIT ((struct strbuf){0})

void strbuf_free(struct strbuf *buffer);
/* Makes room for `more` bytes behind the text. */
int strbuf_reserve(struct strbuf *buffer, size_t more);
void strbuf_add(struct strbuf *buffer, const void *bytes, size_t length);
void strbuf_add_text(struct strbuf *buffer, const char *text);
void strbuf_add_char(struct strbuf *buffer, char c);
void strbuf_format(struct strbuf *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Keeps the memory, forgets the text. */
void strbuf_clear(struct strbuf *buffer);
/* The text, "" when empty. */
static inline const char *strbuf_text(const struct strbuf *buffer) {
    return buffer->data ? buffer->data : "";
}
/* STATUS_OK, or STATUS_MEMORY when an append failed. */
int strbuf_status(const struct strbuf *buffer);

#endif
