/* Between the files of chats: what a template is, and marks of its arguments. */
#ifndef CAMBIUM_TEXT_CHAT_INTERNAL_H
#define CAMBIUM_TEXT_CHAT_INTERNAL_H

#include "chat.h"
#include "jinja/jinja.h"

#include <pthread.h>

enum chat_name { CHAT_CHATML, CHAT_ALPACA, CHAT_PLAIN, CHAT_NAME_COUNT, CHAT_OTHER = CHAT_NAME_COUNT };

struct chat_template {
    int references;
    enum chat_name name;
    struct strbuf text, tools_text;
    struct jinja *jinja, *with_tools; /* with_tools: of a list that has one called tool_use; NULL: the same */
    pthread_mutex_t lock;             /* of what chat_find_turn_end found last; nothing else changes */
    struct {
        bool is_known;
        const struct tokenizer *tokenizer; /* compared, never followed */
        int32_t eos;
        char text[CHAT_TURN_END_BYTES];
    } turn_end;
};

enum chat_mark {
    CHAT_MARK_DATA = JINJA_FIRST_MARK,     /* from a message, a tool, a document, a variable */
    CHAT_MARK_EOS = JINJA_FIRST_MARK << 1, /* the name of the end-of-text */
};

/* Stanford's prompt with an input: instruction, input and output are its arguments. */
extern const char chat_alpaca_input[];

/* Makes messages what templates expect: as `transformers` has them, without keys that are null and with reasoning under
 * its three names; as vLLM has them, calls with their arguments as a value and no empty "tool_calls". *normalized is a
 * new reference. STATUS_INVALID for arguments that are no JSON; STATUS_MEMORY. */
int chat_normalize_messages(const json_t *messages, json_t **normalized);
/* Refuses, by name, what our templates do not know: they have three roles and plain texts, and no tools. `name` is the
 * template's. STATUS_INVALID. */
int chat_check_plain(const struct chat_request *request, const char *name);

/* Renders by one of the template's texts, or by another (NULL: its own), with `keep_generated` as CHAT_ANSWER. */
int chat_render_by(struct chat_template *template, const struct jinja *jinja, const struct chat_request *request,
                   bool keep_generated, struct chat_pieces *pieces);
/* A piece without CHAT_APART, joined with the last one where their flags are the same. */
int chat_pieces_join(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags);

#endif
