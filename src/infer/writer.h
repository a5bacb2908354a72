/* Writing completions: releases the bytes of tokens as soon as they cannot be part of a stop string or of an incomplete
 * character.
 *
 * A request's stop strings are compiled once, and its completions share them; each completion has a writer. A
 * completion ends before its first stop string: of those that its tokens complete, the one that begins first. The cost
 * of a byte depends neither on the stop strings nor on the text. Any thread may use a writer, one at a time. */
#pragma once

#include "base/base.h"

struct writer_string {
    const char *bytes; /* any */
    size_t length;
};
enum { WRITER_MAX_STOPS = 64, WRITER_MAX_STOP_BYTES = 1024 /* each */ };

/* Compiled stop strings; constant after opening. */
struct writer_stops;

/* Compiles stop strings, which may be freed afterwards. STATUS_INVALID when there are too many, or one is too long or
 * empty: an empty one would end every completion. STATUS_MEMORY. */
int writer_stops_open(const struct writer_string *strings, size_t count, struct writer_stops **stops);
/* Frees compiled stop strings. NULL is allowed. */
void writer_stops_close(struct writer_stops *stops);

struct writer {
    const struct writer_stops *stops; /* NULL: none */
    struct strbuf held;             /* bytes not yet released: less than the longest stop string, or than a character */
    uint32_t state;                 /* of the automaton */
    bool is_stopped;                /* a stop string ended the text */
    size_t added, given;            /* bytes added, and bytes released */
    size_t stop_begin, stop_length; /* of the string that stopped it, whose bytes stay in `held` */
};

/* Begins a completion. Free the writer with writer_free. */
void writer_begin(struct writer *writer, const struct writer_stops *stops);
void writer_free(struct writer *writer);
/* Adds the bytes of a token, and appends the bytes that are ready to `out`. When a stop string is complete, `out` gets
 * the rest before it, is_stopped is set, and later bytes are ignored. Each piece holds only complete characters, so
 * pieces can be repaired (utf8_add_repaired) one by one. STATUS_MEMORY. */
int writer_add(struct writer *writer, const void *bytes, size_t length, struct strbuf *out);
/* Ends a completion that no stop string ended: releases the held bytes. STATUS_MEMORY. */
int writer_end(struct writer *writer, struct strbuf *out);
