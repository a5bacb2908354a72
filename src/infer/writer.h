/* Texts while they are written: tokens become bytes, and bytes go out as soon as they can be no part of a stop string,
 * nor half of a character.
 *
 * A request's stop strings are compiled once, and any number of texts share them; each text has a writer. A text ends
 * before the first stop string in it: of those that its tokens so far complete, the one that begins first. What a byte
 * costs depends neither on the stop strings nor on the text. Any thread, one at a time a writer. */
#ifndef CAMBIUM_INFER_WRITER_H
#define CAMBIUM_INFER_WRITER_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct writer_string {
    const char *bytes; /* any */
    size_t length;
};
enum { WRITER_MAX_STOPS = 64, WRITER_MAX_STOP_BYTES = 1024 /* each */ };

/* Stop strings, compiled; nothing changes them. */
struct writer_stops;

/* STATUS_INVALID, in one line, for too many, for one that is too long, and for an empty one, which would end every
 * text. The strings may go afterwards. */
int writer_stops_open(const struct writer_string *strings, size_t count, struct writer_stops **stops);
/* NULL is allowed. */
void writer_stops_close(struct writer_stops *stops);

struct writer {
    const struct writer_stops *stops; /* NULL: none */
    struct strbuf held;               /* bytes that wait: fewer than the longest stop string has, or than a character */
    uint32_t state;                   /* of the automaton */
    bool is_stopped;                  /* a stop string ended the text */
    size_t added, given;              /* bytes of the text so far, and those that went out */
};

/* Begins a text; writer_free ends it. */
void writer_begin(struct writer *writer, const struct writer_stops *stops);
void writer_free(struct writer *writer);
/* Takes the bytes of a token and appends to `out` what can go out. Where that completes a stop string, `out` gets the
 * rest of the text before it, is_stopped is set, and later bytes are none of the text. Where `out` holds a character of
 * several bytes it holds it whole: parts can be repaired (utf8_add_repaired) one by one. */
int writer_add(struct writer *writer, const void *bytes, size_t length, struct strbuf *out);
/* The text has ended otherwise: what was held back goes out. */
int writer_end(struct writer *writer, struct strbuf *out);

#endif
