/* Templates in the part of Jinja that chat templates use, with the meaning that Jinja2 gives them in the environment of
 * `transformers`: sandboxed and immutable, trim_blocks, lstrip_blocks, loop controls, its tojson and {% generation %}.
 *
 * What is not built is an error, found when the template is parsed where it is a statement, and when it is reached
 * where it is a filter, a test, a method or a function. Templates and arguments may be hostile: steps, depth and memory
 * are bounded, nothing is changed outside a rendering, and nothing is read but the arguments.
 *
 * Every byte of a rendering knows where it came from: marks of the arguments travel with their characters through
 * filters, methods, concatenation and macros. */
#ifndef CAMBIUM_JINJA_JINJA_H
#define CAMBIUM_JINJA_JINJA_H

#include "base/base.h"
#include "base/json.h"

#include <time.h>

/* A parsed template never changes: any number of threads may render it. */
struct jinja;
enum { JINJA_TEMPLATE_BYTES = 1 << 20 };

/* STATUS_INVALID for what is no template, STATUS_UNSUPPORTED for statements that are not built; the text begins with
 * "line N: ". */
int jinja_open(const char *text, size_t length, struct jinja **jinja);
/* NULL is allowed. */
void jinja_close(struct jinja *jinja);
/* Whether a string or text of the template holds these bytes. */
bool jinja_has_literal(const struct jinja *jinja, const void *bytes, size_t length);
/* Whether it says by {% generation %} what an assistant writes. */
bool jinja_has_generation(const struct jinja *jinja);

/* Marks are bits. The callers' own begin at JINJA_FIRST_MARK. */
enum { JINJA_GENERATED = 1 << 0 /* inside {% generation %} */, JINJA_FIRST_MARK = 1 << 1 };

struct jinja_range {
    size_t end; /* bytes behind it; it begins where the one before ends */
    unsigned marks;
};
/* Starts zeroed, ends with jinja_text_free. Neighbours have different marks. */
struct jinja_text {
    struct strbuf text;
    struct jinja_range *ranges; /* [count] */
    size_t count;
};
void jinja_text_free(struct jinja_text *text);

struct jinja_argument {
    const char *name;
    const json_t *value;   /* NULL: the name stays undefined; what it holds must live until the rendering is done */
    unsigned marks;        /* of all strings in it, keys of objects included */
    const char *plain_key; /* but for values of this key that are one of plain_values; NULL: none */
    const char *const *plain_values; /* the last is NULL */
};

struct jinja_limits {
    int64_t steps;  /* nodes of the template that are run, and each 64 bytes that they read or write */
    size_t memory;  /* bytes, beside what the arguments take and 8 for each byte of their strings */
    int depth;      /* of expressions, statements, macros and values inside each other */
    double seconds; /* from the beginning of the rendering to its end; 0: no limit */
};
extern const struct jinja_limits jinja_default_limits;

enum { JINJA_UNWATCHED_STEPS = 8192 };
struct jinja_rendering {
    const struct jinja_argument *arguments; /* [count] */
    size_t count;
    const struct tm *now;              /* of strftime_now; NULL: it is an error */
    const struct jinja_limits *limits; /* NULL: jinja_default_limits */
    int64_t *steps;                    /* where the steps that it took are put; NULL: nowhere */
    int64_t *unwatched; /* and the most of them between two looks at the clock: less than JINJA_UNWATCHED_STEPS */
};
/* Renders into `text`. STATUS_INVALID with "line N: ", and STATUS_MEMORY; there is nothing to free then. */
int jinja_render(const struct jinja *jinja, const struct jinja_rendering *rendering, struct jinja_text *text);

#endif
