/* Templates in the part of Jinja that chat templates use. Their semantics are Jinja2's in the environment of
 * `transformers`: sandboxed and immutable, trim_blocks, lstrip_blocks, loop controls, its tojson and {% generation %}.
 *
 * Unsupported features are errors. A statement is refused when the template is parsed; a filter, test, method or
 * function is refused when it is reached. Templates and arguments may be hostile: steps, depth and memory are limited,
 * nothing outside a rendering changes, and only the arguments are read.
 *
 * Every byte of a rendering has a known origin: marks of the arguments follow their characters through filters,
 * methods, concatenation and macros. */
#pragma once

#include "base/base.h"
#include "base/json.h"

#include <time.h>

/* A parsed template never changes; any number of threads may render it. */
struct jinja;
enum { JINJA_TEMPLATE_BYTES = 1 << 20 };

/* Parses a template. STATUS_INVALID for syntax errors, STATUS_UNSUPPORTED for unsupported statements; the text begins
 * with "line N: ". STATUS_MEMORY. */
int jinja_open(const char *text, size_t length, struct jinja **jinja);
/* NULL is allowed. */
void jinja_close(struct jinja *jinja);
/* True when a string or text of the template contains these bytes. */
bool jinja_has_literal(const struct jinja *jinja, const void *bytes, size_t length);
/* True when the template marks the assistant's words by {% generation %}. */
bool jinja_has_generation(const struct jinja *jinja);

/* Marks are bits. Callers define their own from JINJA_FIRST_MARK on. */
enum { JINJA_GENERATED = 1 << 0 /* inside {% generation %} */, JINJA_FIRST_MARK = 1 << 1 };

struct jinja_range {
    size_t end; /* end of the range; it begins where the previous one ends */
    unsigned marks;
};
/* Rendered text. Starts zeroed, ends with jinja_text_free. Neighbouring ranges have different marks. */
struct jinja_text {
    struct strbuf text;
    struct jinja_range *ranges; /* [count] */
    size_t count;
};
/* Frees the text and its ranges. */
void jinja_text_free(struct jinja_text *text);

struct jinja_argument {
    const char *name;
    const json_t *value;   /* NULL: the name stays undefined; its contents must live until the rendering is done */
    unsigned marks;        /* for all strings in it, keys of objects included */
    const char *plain_key; /* except for values of this key that are in plain_values; NULL: no exception */
    const char *const *plain_values; /* NULL-terminated */
};

struct jinja_limits {
    int64_t steps;  /* nodes that are run, and each 64 bytes that they read or write */
    size_t memory;  /* bytes, in addition to the arguments and 8 for each byte of their strings */
    int depth;      /* of nested expressions, statements, macros and values */
    double seconds; /* for the whole rendering; 0: no limit */
};
extern const struct jinja_limits jinja_default_limits;

enum { JINJA_UNWATCHED_STEPS = 8192 };
struct jinja_rendering {
    const struct jinja_argument *arguments; /* [count] */
    size_t count;
    const struct tm *now;              /* for strftime_now; NULL: it is an error */
    const struct jinja_limits *limits; /* NULL: jinja_default_limits */
    int64_t *steps;                    /* receives the steps taken; NULL: not wanted */
    int64_t *unwatched; /* receives the maximum number of steps between two checks of the clock, less than
                           JINJA_UNWATCHED_STEPS */
};
/* Renders into `text`. STATUS_INVALID with "line N: ", or STATUS_MEMORY; then there is nothing to free. */
int jinja_render(const struct jinja *jinja, const struct jinja_rendering *rendering, struct jinja_text *text);
