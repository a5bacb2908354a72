/* Calls of tools and reasoning, as models write them. A format is a row of a const table: facts that readers, writers
 * and constraints share. */
#pragma once

#include "chat.h"

enum tool_grouping {
    TOOL_EACH, /* `begin` and `end` stand around each call */
    TOOL_ALL,  /* they stand around all of them */
    TOOL_LIST  /* the same, and the calls are a JSON list */
};

/* White space in these texts is what a model writes; a reader takes any, or none, in its place. In `call`:
 * %O an object {"name": "N", ARGUMENTS: A}    %N the name    %A the arguments, a JSON object
 * %I nothing, or [CALL_ID] and an id          %P <parameter=K>\nV\n</parameter>\n for each argument */
struct tool_format {
    const char *name;
    const char *finds[3]; /* texts of the template that select the row: the first, with one of the others if any */
    const char *begin;    /* "": an answer that begins with a call */
    const char *other;    /* another beginning, after which no `end` comes; NULL: none */
    const char *call;
    const char *more; /* between two calls */
    const char *end;
    const char *arguments; /* key of the arguments in %O */
    enum tool_grouping grouping;
    int id_bytes; /* of a call's id; 0: "call_" and 24 */
};
extern const struct tool_format tool_formats[];
enum { TOOL_FORMAT_COUNT = 8 };
/* "auto" and the names of the rows, NULL: the values of --tool-format. */
extern const char *const tool_format_choices[];

/* Returns the row with this name; NULL: there is none, or the name is "auto". */
const struct tool_format *tool_format_named(const char *name);
/* Returns the row that the template's text selects, or the last one. NULL as the template gives the last one, too. */
const struct tool_format *tool_format_of(const struct chat_template *template);
/* Appends calls {"function": {"name", "arguments": an object}} as a model writes them; arguments that are
 * a text are not JSON, and stand as they are. STATUS_INVALID for other calls; STATUS_MEMORY. */
int tool_format_write(const struct tool_format *format, const json_t *calls, struct strbuf *out);

/* ---- templates without tools: chat_tools.c ---- */

/* True when the template has a place for tools. */
bool chat_knows_tools(const struct chat_template *template);
/* Writes tools, calls and results of a request into its messages, for a template without a place for them. *messages is
 * a new reference. STATUS_INVALID for a call without a name; STATUS_MEMORY. */
int chat_write_tools(const struct chat_request *request, json_t **messages);

/* ---- reasoning ---- */

#define THINK_BEGIN "<think>"
#define THINK_END   "</think>"
/* The state of an answer when it begins. */
enum chat_thought {
    THOUGHT_NEVER, /* no reasoning is read */
    THOUGHT_MAY,   /* it may begin with <think> */
    THOUGHT_HAS_BEGUN,
};
bool chat_may_think(const struct chat_template *template);
/* Returns where the answer to a rendering stands, by the template's text after the last message. `continues`: by the
 * last message, which the answer continues. */
enum chat_thought chat_thought_of(const struct chat_pieces *pieces, bool continues);
/* The same for a prompt that is a text. */
enum chat_thought chat_thought_of_text(const char *text, size_t length);
