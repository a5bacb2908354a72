/* Reads calls of tools and reasoning out of a completion, and passes what it finds on as events. It stands between
 * completions and answers.
 *
 * It reads ids: a marker that is a special token is only that token, any other marker is its bytes. The events do not
 * depend on how tokens fall into updates. A call that is no valid call stays text, byte for byte, so a call is reported
 * when it is complete. Where a constraint keeps calls valid, their arguments are passed on as they come, and nothing is
 * kept beyond a name. */
#pragma once

#include "update.h"

#include "text/tool_format.h"

enum { TOOL_NAME_BYTES = 64, TOOL_ID_BYTES = 32, TOOL_MOST = 4096 };

struct call_tool {
    const char *name;
    const json_t *parameters; /* a JSON schema; NULL: none */
    bool is_strict;           /* what cannot be enforced in it is refused */
    size_t number;            /* in the request's list */
};

enum call_event_kind {
    CALL_TEXT,      /* bytes of the content; whole characters, or invalid bytes */
    CALL_REASONING, /* the same of the reasoning */
    CALL_BEGINS,    /* a call has an id and a name */
    CALL_ARGUMENTS, /* bytes of its arguments */
    CALL_ENDS
};
struct call_event {
    enum call_event_kind kind;
    const char *text; /* [length] */
    size_t length;
    int64_t index;         /* of the call, from 0 */
    const char *id, *name; /* CALL_BEGINS */
};

struct call_parser_options {
    const struct tokenizer *tokenizer; /* NULL: for call_parser_add only */
    const struct tool_format *format;  /* NULL: no calls are read */
    const struct call_tool *tools;     /* [tool_count] that may be called */
    size_t tool_count;
    enum chat_thought thought;
    bool is_constrained; /* a constraint keeps calls valid */
    bool is_single;      /* nothing follows the first call */
    bool is_answer;      /* its first token is the first of a text on its own (ask.h) */
    uint64_t seed;       /* of the ids, with the next two */
    const struct token_buffer *prompt;
    int64_t choice;
    int (*on_event)(void *context, const struct call_event *event);
    void *context;
};

struct call_parser;
/* Makes a parser for one completion. What the options point to lives as long. STATUS_MEMORY. */
int call_parser_open(const struct call_parser_options *options, struct call_parser **parser);
/* NULL is allowed. */
void call_parser_close(struct call_parser *parser);
/* Reads a piece of the completion. STATUS_MEMORY, and the errors of on_event. */
int call_parser_take(struct call_parser *parser, const struct call_update *update, const struct call_piece *piece);
/* The same for bytes, in which no special token counts. */
int call_parser_add(struct call_parser *parser, const char *bytes, size_t length);
/* Ends the completion. `is_stop`: it was not cut by its length. The same errors. */
int call_parser_end(struct call_parser *parser, bool is_stop);
int64_t call_parser_calls(const struct call_parser *parser);
/* Tokens of reasoning so far, its marks included. */
int64_t call_parser_reasoning_tokens(const struct call_parser *parser);
