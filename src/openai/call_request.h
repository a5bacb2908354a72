/* A request to the model, whatever its protocol: its settings and its prompts. */
#pragma once

#include "error.h"
#include "model.h"

#include "infer/ask.h"
#include "text/chat.h"

/* A prompt of a call: a text, messages, or ids. Its texts are the caller's, and live as long as it does. */
struct call_prompt {
    const char *text;
    size_t length;
    struct chat_request chat; /* with its messages when the prompt is made of them, else NULL */
    size_t chat_bytes;        /* of their texts */
    bool has_no_head;         /* messages: no header of an answer follows them (add_generation_prompt false) */
    bool continues;          /* messages: the answer continues the last one, the assistant's (continue_final_message) */
    struct token_buffer ids; /* given, or made from the text */
    /* Messages that were rendered: how the answer writes calls, and where it begins. */
    const struct tool_format *tool_format;
    enum chat_thought thought;
    bool is_constrained; /* a grammar keeps its calls valid */
};

/* Renders the messages of a prompt into pieces. The errors of chat_render, and prompt_check_template; STATUS_INVALID
 * too for messages whose last one does not fit the header that is asked for. */
int call_prompt_render(const struct call_prompt *prompt, const struct openai_model *model,
                       struct chat_template *template, struct chat_pieces *pieces);
/* Notes what the answer to a rendering looks like. */
void call_prompt_note(struct call_prompt *prompt, const struct openai_model *model,
                      const struct chat_template *template, const struct chat_pieces *pieces);

struct openai_tools;
/* Strings point into the message that was read. */
struct call_request {
    struct ask ask;              /* all settings */
    struct call_prompt *prompts; /* [prompt_count] */
    int64_t prompt_count;
    const struct openai_tools *tools; /* that may be called, of its owner; NULL: none */
    const char *cache_salt;           /* NULL: none */
    size_t cache_salt_length;
};

/* Makes `prompt_count` zeroed prompts, and default settings. Free them with call_request_free. STATUS_MEMORY. */
int call_request_begin(struct call_request *request, int64_t prompt_count);
void call_request_free(struct call_request *request);
/* Makes the constraint of the answers to a rendered prompt: call_grammar_make. Free it with ask_constraint_free. */
int call_request_constrain(const struct call_request *request, const struct call_prompt *prompt,
                           struct ask_constraint *made);
