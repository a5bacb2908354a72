/* Python's pickles, read as inert data. The reader is a stack machine that calls nothing and imports nothing.
 * A class or a function is only its name. A call is a node of name, arguments and state, and the caller decides what it
 * means. Opcodes are those of torch.save and of torch.distributed.checkpoint, protocols 2 to 5; any other is
 * refused. No room above this one knows of pickles.
 *
 * Limits on depth, memo and memory are checked before anything is allocated. Nodes may share children and even contain
 * themselves, so walk only as deep as the expected structure. */
#pragma once

#include "base/base.h"

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INTEGER,
    PICKLE_NUMBER,
    PICKLE_TEXT,       /* UTF-8 */
    PICKLE_GLOBAL,     /* module and name */
    PICKLE_TUPLE,      /* items */
    PICKLE_LIST,       /* items */
    PICKLE_DICT,       /* items: a key, its value, the next key, ... */
    PICKLE_OBJECT,     /* callee, arguments, state; items are those set afterwards, as in a dict or a list */
    PICKLE_PERSISTENT, /* arguments: the id */
    PICKLE_TAKEN,      /* integer: the number that a taker gave to an object, of which nothing else is there */
};

/* A list has a million of them, so a node takes memory only for the members that its kind has. */
struct pickle_node {
    uint8_t kind; /* enum pickle_kind */
    bool is_kept; /* something recalls it */
    uint32_t at;  /* byte of the pickle; 0 for small numbers, None, True, False and (), which are shared */
    uint32_t count, capacity;
    union {
        int64_t integer; /* also of a bool; a larger one is refused */
        double number;
        const char *text;                 /* [count], not terminated; of a global: its module */
        const struct pickle_node **items; /* [count] of a tuple, a list, a dict or an object */
    };
    /* of a global, an object and a persistent id only */
    union {
        const struct pickle_node *arguments;
        const char *name; /* of a global, [capacity] */
    };
    /* only of an object */
    const struct pickle_node *callee;
    const struct pickle_node *state; /* NULL: none */
};

struct pickle;

/* Takes objects as soon as they have their state, so that a million of them need no memory for their parts. */
struct pickle_taker {
    /* Sets *number, which is -1, to a number of at least 0 when it has copied all that it wants. Texts point into the
     * pickle's bytes and need no copy. A failure ends the reading. */
    int (*take)(void *context, const struct pickle *pickle, const struct pickle_node *object, int64_t *number);
    void *context;
};

/* Reads a pickle, up to its STOP; `taker` may be NULL. `bytes` must outlive it. Messages call it `where`, in which it
 * begins at byte `start`. STATUS_INVALID, STATUS_MEMORY, what the taker returns. */
int pickle_read(const char *where, int64_t start, const void *bytes, size_t length, const struct pickle_taker *taker,
                struct pickle **pickle);
void pickle_free(struct pickle *pickle);
const struct pickle_node *pickle_root(const struct pickle *pickle);

/* Sets STATUS_INVALID with the node's place and what was expected there. */
int pickle_refuse(const struct pickle *pickle, const struct pickle_node *node, const char *expected, ...)
    __attribute__((format(printf, 3, 4)));
bool pickle_is_text(const struct pickle_node *node, const char *text);
bool pickle_is_global(const struct pickle_node *node, const char *module, const char *name);
/* True for an object made by this class or function. */
bool pickle_is_object(const struct pickle_node *node, const char *module, const char *name);
/* Sets *value to the value of a text key among the items of a dict or an object, or in an object's state; NULL when it
 * is absent. STATUS_INVALID when the key is there twice. */
int pickle_find(const struct pickle *pickle, const struct pickle_node *node, const char *key,
                const struct pickle_node **value);
/* Reads a tuple, a list or a torch.Size of at most `most` integers of at least 0. STATUS_INVALID. */
int pickle_sizes(const struct pickle *pickle, const struct pickle_node *node, int most, int64_t *sizes, int *count);
/* Copies a text of at least one byte, without zero bytes and control characters. STATUS_INVALID. */
int pickle_copy_text(const struct pickle *pickle, const struct pickle_node *node, const char *what, char *out,
                     size_t bytes);
