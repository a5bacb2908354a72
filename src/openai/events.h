/* An answer as a sequence of events, the same for whole answers and for streams of every dialect.
 *
 * Updates bring drawn tokens with their text. openai_events() makes events of them, in the order of each choice: texts,
 * reasoning and calls with their arguments, then its end. A dialect is one file that writes events. */
#pragma once

#include "update.h"

struct openai;
struct openai_choice;

enum openai_event_kind {
    OPENAI_TEXT,      /* bytes of the answer's text */
    OPENAI_REASONING, /* bytes of its reasoning */
    OPENAI_CALL,      /* a call of a tool begins; calls of a choice count from 0 */
    OPENAI_ARGUMENTS, /* bytes of the arguments of the call that began last */
    OPENAI_END        /* of the choice; no event of it follows */
};

struct openai_event {
    enum openai_event_kind kind;
    struct openai_choice *choice;
    const char *bytes; /* [length] of a text, reasoning or arguments: whole characters, or invalid bytes */
    size_t length;
    /* [token_count] tokens whose last byte is in the event, also those that show no text; an end may have the one that
     * ended the choice. Their first_top counts in `tops`. */
    const struct call_token *tokens;
    int64_t token_count;
    const struct call_top *tops;
    /* Of a call: */
    int64_t index;
    const char *id, *name;
    /* Of an end: "stop", "length" or "tool_calls". */
    const char *reason;
};

/* Takes the events of one request. What an event points to lives until `take` returns. */
struct openai_sink {
    void (*take)(void *context, const struct openai_event *event);
    void *context;
};

/* Passes the events of an update to `sink`: each choice's end directly after its last event. */
void openai_events(struct openai *request, const struct call_update *update, const struct openai_sink *sink);
