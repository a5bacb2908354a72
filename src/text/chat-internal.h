/* Shared by the files of chats: a template's inside, and the marks of its arguments. */
#pragma once

#include "chat.h"
#include "jinja/jinja.h"

#include <pthread.h>

enum chat_name { CHAT_CHATML, CHAT_ALPACA, CHAT_PLAIN, CHAT_NAME_COUNT, CHAT_OTHER = CHAT_NAME_COUNT };

struct chat_template {
    int references;
    enum chat_name name;
    struct strbuf text, tools_text;
    struct jinja *jinja, *with_tools; /* with_tools: the template called tool_use, if a list has one; NULL: the same */
    pthread_mutex_t lock;             /* guards the last result of chat_find_turn_end; nothing else changes */
    struct {
        bool is_known;
        const struct tokenizer *tokenizer; /* compared, never dereferenced */
        int32_t eos;
        char text[CHAT_TURN_END_BYTES];
    } turn_end;
};

enum chat_mark {
    CHAT_MARK_DATA = JINJA_FIRST_MARK,     /* from a message, a tool, a document, a variable */
    CHAT_MARK_EOS = JINJA_FIRST_MARK << 1, /* the name of the end-of-text */
};

/* Stanford's prompt with an input. Its arguments are instruction, input and output. */
extern const char chat_alpaca_input[];

/* Converts messages to the form that templates expect. As in `transformers`, keys that are null are removed, and
 * reasoning gets its three names. As in vLLM, a call's arguments become a value, and an empty "tool_calls" is removed.
 * Arguments that are not JSON stay a text. *normalized is a new reference. STATUS_MEMORY. */
int chat_normalize_messages(const json_t *messages, json_t **normalized);
/* Refuses, by name, what our own templates do not support: they have three roles, plain texts and no tools. `name` is
 * the template's. STATUS_INVALID. */
int chat_check_plain(const struct chat_request *request, const char *name);

/* True when the template's texts have a name, such as that of a variable. */
bool chat_mentions(const struct chat_template *template, const char *name);

/* Returns the value of a message's reasoning under any of its names; NULL: it has none. */
const json_t *chat_find_reasoning(const json_t *message);
/* Checks the weights of messages for a row: "weight" 0 or 1, and "train", of which false is weight 0. STATUS_INVALID.
 */
int chat_check_weights(const json_t *messages);
/* True for a message of weight 0, whose weight was checked. */
bool chat_is_silent(const json_t *message);

/* Renders with `jinja`, one of the template's texts or another one (NULL: the template chooses). With `keep_generated`,
 * {% generation %} becomes CHAT_ANSWER. The errors of chat_render. */
int chat_render_by(struct chat_template *template, const struct jinja *jinja, const struct chat_request *request,
                   bool keep_generated, struct chat_pieces *pieces);
