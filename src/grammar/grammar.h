/* Constraints on what a model may write: JSON schemas, regular expressions, choices, grammars in GBNF and structural
 * tags, compiled once and followed token by token. The room sees a vocabulary as bytes for each id, and knows no model.
 *
 * Masks are exact: an id is allowed if and only if some continuation completes the text. An end id is allowed exactly
 * where the text is complete. Every tokenization of an allowed text is allowed.
 *
 * A vocabulary never changes. A compiled grammar is shared: its automaton grows lazily under its own lock, so that any
 * number of threads may use it, each with its own states. Inputs may be hostile: nothing recurses on them, and nodes,
 * bytes and time are bounded. */
#pragma once

#include "base/base.h"
#include "base/json.h"

/* ---- vocabularies ---- */

struct grammar_token {
    const char *bytes; /* what the id adds to a text; borrowed */
    size_t length;     /* 0: an id without bytes, never allowed */
    bool is_special;   /* a control token: never allowed, unless a tag names its text (grammar_begin's contract) */
};
struct grammar_vocabulary;
/* Builds the vocabulary of a tokenizer: its tokens [count], copied; and the ids [end_count] that end a completion.
 * STATUS_MEMORY. */
int grammar_vocabulary_open(const struct grammar_token *tokens, size_t count, const int32_t *ends, size_t end_count,
                            struct grammar_vocabulary **vocabulary);
/* Makes what nearly every schema needs first, the masks inside a string: a walk of the whole vocabulary. STATUS_MEMORY.
 */
int grammar_vocabulary_prepare(const struct grammar_vocabulary *vocabulary);
/* NULL is allowed. All grammars of the vocabulary have been released. */
void grammar_vocabulary_close(struct grammar_vocabulary *vocabulary);
/* 32-bit words of a mask: one bit for each id of the tokenizer. Ids of padded logits beyond it are never allowed. */
size_t grammar_vocabulary_words(const struct grammar_vocabulary *vocabulary);

/* ---- compiling ---- */

enum grammar_kind {
    GRAMMAR_JSON_SCHEMA, /* text: the schema's JSON */
    GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    GRAMMAR_REGEX,       /* text: a pattern in ECMA-262's dialect that matches the whole text */
    GRAMMAR_CHOICE,      /* text: a JSON array of texts */
    GRAMMAR_GBNF,        /* text: llama.cpp's grammars */
    GRAMMAR_TAG,         /* text: the JSON of a structural tag, in either form */
    GRAMMAR_ANSWER,      /* text: a structural tag of the new form, made of parts of a request (below) */
    GRAMMAR_KINDS
};
/* The structural tag of an answer may also have the format {"type": "part"}, but not within another one. It is a part
 * of the request, and messages about it name the request's field and the place there:
 *
 *     field, place                                the field; the value's place in it, as "$[0].function.parameters"
 *     json_schema, xml_schema, tag or content     the value: a schema for JSON or for Qwen's XML, a whole structural
 *                                                 tag, or a format
 *     is_compact, is_closed, is_lenient           as in the source, whose own do not hold in a part */
struct grammar_source {
    const char *field; /* of the request, for the report: a name that lives on, or NULL */
    enum grammar_kind kind;
    const char *text;
    size_t length;
    bool is_compact; /* JSON has no white space (disable_any_whitespace) */
    bool is_closed;  /* objects have no additional properties, unless the schema allows them itself */
    bool is_lenient; /* keywords that cannot be enforced are dropped and named, not refused ("strict": false) */
};
struct grammar_limits {
    double seconds; /* of compiling */
    size_t bytes;   /* of the grammar and its caches */
};

/* Why a constraint is refused; the texts are API codes. */
enum grammar_refusal {
    GRAMMAR_FINE,
    GRAMMAR_INVALID,     /* constraint_invalid: it is malformed, or allows no text */
    GRAMMAR_UNSUPPORTED, /* constraint_unsupported */
    GRAMMAR_TOO_LARGE,   /* constraint_too_large: time, memory, nodes */
};
/* Starts zeroed; grammar_report_free frees it. */
enum { GRAMMAR_FIELD_BYTES = 64 };
struct grammar_report {
    enum grammar_refusal refusal;
    char field[GRAMMAR_FIELD_BYTES]; /* the request's field that is refused; "": the source has none */
    struct strbuf message; /* place and cause, one line: "$.properties.a.pattern: ...", "line 3, column 7: ..." */
    /* JSON array of texts "FIELD: /properties/a/format: int64" in document order, without the field where there is
     * none; NULL: nothing is ignored. */
    json_t *ignored;
};
/* Frees a report, and leaves it zeroed. */
void grammar_report_free(struct grammar_report *report);

struct grammar;
/* Compiles. Runs on the caller's thread, which may take `limits.seconds`. STATUS_INVALID, STATUS_UNSUPPORTED: refused
 * as the report says. STATUS_MEMORY. On success the caller has the first reference. The vocabulary is borrowed. */
int grammar_compile(const struct grammar_source *source, const struct grammar_vocabulary *vocabulary,
                    const struct grammar_limits *limits, struct grammar_report *report, struct grammar **grammar);
struct grammar *grammar_share(struct grammar *grammar);
/* Ends a reference; NULL is allowed. */
void grammar_release(struct grammar *grammar);
/* Lets whoever has the first reference hear, on any thread, when it becomes the only one. The grammar may be gone then.
 */
void grammar_watch(struct grammar *grammar, void (*on_idle)(void *context), void *context);
/* True while there are more references than the first. */
bool grammar_is_used(const struct grammar *grammar);
/* Bytes of the grammar and its caches after the last call. */
size_t grammar_bytes(const struct grammar *grammar);
/* Bytes of the masks that all grammars of a vocabulary share. */
size_t grammar_vocabulary_shared_bytes(const struct grammar_vocabulary *vocabulary);
/* Limits a grammar's bytes from the next mask on: it then begins without its caches, and keeps what it cannot do
 * without. */
void grammar_set_share(struct grammar *grammar, size_t bytes);

/* ---- following a text ---- */

/* The state of one text. It holds a reference of its grammar. Moving the struct is allowed; two threads may not use one
 * state at once. */
struct grammar_state {
    struct grammar *grammar;
    uint32_t place;    /* of the automaton */
    bool is_over;      /* the text has ended, or can have no further token */
    uint64_t accepted; /* tokens */
};
/* Starts a text. STATUS_MEMORY. */
int grammar_begin(struct grammar *grammar, struct grammar_state *state);
/* A zeroed state is allowed. */
void grammar_end(struct grammar_state *state);
/* A second state at the same place, for a fork of the text. */
int grammar_copy(const struct grammar_state *state, struct grammar_state *copy);

struct grammar_allowed {
    size_t count; /* allowed ids, each end id counted */
    int32_t only; /* the id if there is one; else -1 */
};
/* Writes the mask [grammar_vocabulary_words] of the ids that may follow: bit id % 32 of word id / 32.
 * STATUS_UNSUPPORTED when it takes more than `seconds`, or the grammar's memory; STATUS_MEMORY. */
int grammar_mask(struct grammar_state *state, double seconds, uint32_t *mask, struct grammar_allowed *allowed);
/* Takes a token. STATUS_INVALID for one that the mask forbids; the state does not change then. `bytes` may be NULL;
 * else it receives how many bytes of a forbidden token may follow. An end id ends the text. */
int grammar_accept(struct grammar_state *state, int32_t id, size_t *bytes);
/* True when the text may end here. */
bool grammar_is_complete(const struct grammar_state *state);
