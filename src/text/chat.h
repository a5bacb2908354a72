/* Chats: messages, and the templates that put them in words.
 *
 * A template is a text in Jinja (jinja.h), run as `transformers` runs it: messages without the keys that are null,
 * tools, documents, add_generation_prompt, the names of special tokens and further variables are its arguments. Three
 * templates are ours and have names. A rendering is a list of pieces that know whether the template or a message made
 * them: names of special tokens, and those of other added tokens that the template itself names, are the tokens in what
 * the template made, and ordinary text in what came from a message. Otherwise the ids are those of the whole text.
 *
 * What is trained of a rendering, whoever trains decides: pieces say what is an answer, and no token lies across the
 * boundary of an answer. */
#ifndef CAMBIUM_TEXT_CHAT_H
#define CAMBIUM_TEXT_CHAT_H

#include "base/json.h"
#include "text/text.h"

#include <time.h>

/* ---- templates: chat_template.c ---- */

/* Any number of threads may use it. References are counted. */
struct chat_template;
/* "chatml", "alpaca", "plain" (contents, a line end behind each that is no answer), NULL. */
extern const char *const chat_template_names[];
#define CHAT_TEMPLATE_CHOICES "chatml, alpaca, plain or a file"

/* STATUS_INVALID, STATUS_UNSUPPORTED with "WHERE: line N: ". */
int chat_template_open(const char *text, size_t length, const char *where, struct chat_template **template);
/* STATUS_NOT_FOUND where none of ours has this name. */
int chat_template_open_named(const char *name, struct chat_template **template);
/* What an option says: one of ours, else a file's path; NULL there for NULL and "auto". */
int chat_template_open_option(const char *option, struct chat_template **template);
/* What a tokenizer's files name, in chat_template.jinja or tokenizer_config.json; NULL there when they name none. */
int chat_template_of_tokenizer(const struct tokenizer_files *files, struct chat_template **template);
/* One more reference, for chat_template_close. NULL is allowed in both. */
struct chat_template *chat_template_keep(struct chat_template *template);
void chat_template_close(struct chat_template *template);
/* "" for one that is none of ours. */
const char *chat_template_name(const struct chat_template *template);
/* In Jinja: what is recorded beside an adapter. */
const struct strbuf *chat_template_text(const struct chat_template *template);
bool chat_template_is_same(const struct chat_template *a, const struct chat_template *b);

/* ---- messages: chat_messages.c ---- */

/* A list of messages {"role": a string, ...}, at least one; what else they hold is the template's affair, the role
 * tool, "tool_calls", and contents that are null or absent among it. */
int chat_check_messages(const json_t *messages);
bool chat_is_assistants(const json_t *message);
struct chat_request;
/* A text that is a list of messages, or an object {"messages", "tools", "documents", "chat_template_kwargs"} of which
 * all but the first may be absent. What the request holds is *root's, a new reference. STATUS_INVALID with `where`. */
int chat_read_request(const char *text, size_t length, const char *where, json_t **root, struct chat_request *request);
/* The same of an object, for whoever knows its place; fields that are null count as absent. */
int chat_take_request(const json_t *object, struct chat_request *request);
/* Its fields but for the messages. */
int chat_take_fields(const json_t *object, struct chat_request *request);

/* ---- in words: chat.c ---- */

enum chat_piece_flags {
    CHAT_ANSWER = 1 << 0,  /* an assistant's words, or the end behind them; not of an empty answer */
    CHAT_SPECIAL = 1 << 1, /* made by a template: names of special tokens are the tokens */
    CHAT_END = 1 << 2,     /* the end-of-text token, whatever its text is */
    CHAT_APART = 1 << 3,   /* tokenized apart from what stands before */
};
struct chat_piece {
    size_t length; /* of pieces->text, behind the piece before */
    unsigned flags;
};
/* Starts zeroed. */
struct chat_pieces {
    struct strbuf text;
    struct chat_piece *items; /* [count] */
    size_t count, capacity;
    struct chat_template *template; /* that made them; NULL: none */
};
/* Keeps the memory. */
void chat_pieces_clear(struct chat_pieces *pieces);
void chat_pieces_free(struct chat_pieces *pieces);
/* A copy, tokenized apart. An empty text is none, but for the end-of-text. */
int chat_pieces_add(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags);
/* An answer and the end-of-text, both CHAT_ANSWER; an empty answer is none. */
int chat_pieces_add_answer(struct chat_pieces *pieces, const char *text, size_t length);

/* The default of the option --template-timeout. */
#define CHAT_TEMPLATE_SECONDS 1
struct chat_request {
    const json_t *messages;            /* that chat_check_messages takes */
    const json_t *tools, *documents;   /* lists, as they are handed to the template; NULL: none */
    const json_t *variables;           /* an object of further arguments; NULL: none */
    bool asks;                         /* and the head of the answer that is wanted (add_generation_prompt) */
    const struct tokenizer *tokenizer; /* for the names of special tokens; NULL: it has none but eos */
    int32_t eos;                       /* the end-of-text; -1: there is none */
    const struct tm *now;              /* that a template may tell; NULL: the local time */
    double seconds;                    /* that a rendering may take; 0: CHAT_TEMPLATE_SECONDS */
};
/* Renders into pieces. STATUS_INVALID in one line for what the template or the request does wrong, a rendering that
 * takes longer than request->seconds included; STATUS_MEMORY. Runs a program that others wrote: call it where a second
 * of work stops nobody else. */
int chat_render(struct chat_template *template, const struct chat_request *request, struct chat_pieces *pieces);

/* The next pieces that are tokenized together, from piece *at on, which is moved behind them. STATUS_INVALID where they
 * need an end-of-text and `eos` is -1. */
int chat_pieces_encode_next(const struct chat_pieces *pieces, size_t *at, size_t *byte,
                            struct tokenizer_encoder *encoder, int32_t eos, struct token_buffer *ids);
/* Appends the tokens of all. */
int chat_pieces_encode(const struct chat_pieces *pieces, struct tokenizer_encoder *encoder, int32_t eos,
                       struct token_buffer *ids);
/* Finds what the template puts after an answer that is not the end-of-text: up to its first special token in the first
 * 1,024 bytes, or the line without white space around; "" for nothing, and for a template that refuses a question with
 * its answer. Renders once, in at most `seconds` as chat_request has them, and keeps what it found in the template
 * while `tokenizer` and `eos` stay the same; a rendering that fails is tried again. STATUS_MEMORY. */
enum { CHAT_TURN_END_BYTES = 64 };
int chat_find_turn_end(struct chat_template *template, const struct tokenizer *tokenizer, int32_t eos, double seconds,
                       char text[CHAT_TURN_END_BYTES]);

/* ---- rows to train on: chat_answers.c ---- */

enum chat_answers { CHAT_ANSWERS_ALL, CHAT_ANSWERS_LAST };
extern const char *const chat_answers_names[]; /* "all", "last", NULL */

/* Messages with their answers as CHAT_ANSWER: the {% generation %} blocks of the template where it has them; else what
 * an assistant's message adds to the text that asks for it, without white space of the template at the end. Where the
 * text that asks is not the beginning of the whole one, that answer cannot be told apart: STATUS_UNSUPPORTED, with the
 * way out that CHAT_ANSWERS_LAST is where it is not the last one. A row of chatml's that ends with an answer ends with
 * the end-of-text, where that is another token than <|im_end|>: who generates may know only that one. */
int chat_render_row(struct chat_template *template, const struct chat_request *request, enum chat_answers which,
                    struct chat_pieces *pieces);
/* An instruction with its answer: a user's turn whose input is the lines behind it, and Stanford's own prompt in
 * alpaca. `input` may be NULL. `request` has no messages. */
struct chat_instruction {
    const json_t *instruction, *input, *output; /* strings */
};
int chat_render_instruction(struct chat_template *template, const struct chat_instruction *row,
                            const struct chat_request *request, struct chat_pieces *pieces);

#endif
