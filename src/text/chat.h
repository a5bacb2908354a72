/* Chats: messages, and the templates that turn them into text.
 *
 * A template is a text in Jinja (jinja.h), run as `transformers` runs it. Its arguments are the messages without keys
 * that are null, tools, documents, add_generation_prompt, the names of special tokens, and further variables. Three
 * templates are built in and have names.
 *
 * A rendering is a list of pieces, each from the template or from a message. In the template's pieces, names of special
 * tokens are the tokens, and so are names of other added tokens that the template itself contains. In a message's
 * pieces they are ordinary text. Otherwise the ids are those of the whole text.
 *
 * The caller decides which parts of a rendering are trained: pieces are marked as answers. The ids are those of the
 * whole, so a token may cross the boundary of an answer; it belongs to the answer then. */
#pragma once

#include "base/json.h"
#include "text/text.h"

#include <time.h>

/* ---- templates: chat_template.c ---- */

/* A template with a reference count. Any number of threads may use it. */
struct chat_template;
/* "chatml", "alpaca", "plain" (contents, with a line end after each that is not an answer), NULL. */
extern const char *const chat_template_names[];
#define CHAT_TEMPLATE_CHOICES "chatml, alpaca, plain or a file"

/* Parses a template. STATUS_INVALID or STATUS_UNSUPPORTED with "WHERE: line N: "; STATUS_MEMORY. */
int chat_template_open(const char *text, size_t length, const char *where, struct chat_template **template);
/* Opens one of our templates. STATUS_NOT_FOUND for an unknown name. */
int chat_template_open_named(const char *name, struct chat_template **template);
/* Opens the template of an option: one of ours, else a file's path. *template is NULL for NULL and "auto". Errors as
 * above, and STATUS_IO. */
int chat_template_open_option(const char *option, struct chat_template **template);
/* Opens `chat_template` of a tokenizer_config.json with the path `path`: a text, or several with names, of which
 * `default` counts (`tool_use` for requests with tools). *template is NULL when there is none. The same errors. */
int chat_template_open_config(const char *text, size_t length, const char *path, struct chat_template **template);
/* Opens the template in a tokenizer's files, chat_template.jinja or tokenizer_config.json. *template is NULL when they
 * have none. The errors of chat_template_open. */
int chat_template_of_tokenizer(const struct tokenizer_files *files, struct chat_template **template);
/* chat_template_keep adds a reference, which chat_template_close releases. NULL is allowed in both. */
struct chat_template *chat_template_keep(struct chat_template *template);
void chat_template_close(struct chat_template *template);
/* Returns the name of one of our templates; "" for any other. */
const char *chat_template_name(const struct chat_template *template);
/* chat_template_text returns the Jinja text, which is recorded next to an adapter. The other compares two templates. */
const struct strbuf *chat_template_text(const struct chat_template *template);
bool chat_template_is_same(const struct chat_template *a, const struct chat_template *b);

/* ---- messages: chat_messages.c ---- */

/* chat_check_messages checks a list of at least one message {"role": a string, ...}. The template handles everything
 * else: the role tool, "tool_calls", and contents that are null or absent. STATUS_INVALID. */
int chat_check_messages(const json_t *messages);
bool chat_has_role(const json_t *message, const char *role);
bool chat_is_assistants(const json_t *message);
struct chat_request;
/* Reads a text: a list of messages, or an object {"messages", "tools", "documents", "chat_template_kwargs"} of which
 * only the first is required. A text that begins with neither [ nor { is one message of the user. *root is a new
 * reference that owns the values of the request. STATUS_INVALID with `where`; STATUS_MEMORY. */
int chat_read_request(const char *text, size_t length, const char *where, json_t **root, struct chat_request *request);
/* The same for an object whose place the caller knows. Fields that are null count as absent. */
int chat_take_request(const json_t *object, struct chat_request *request);
/* Reads its fields except the messages. */
int chat_take_fields(const json_t *object, struct chat_request *request);

/* ---- in words: chat.c ---- */

enum chat_piece_flags {
    CHAT_ANSWER = 1 << 0,  /* the assistant's words, or the end after them; never for an empty answer */
    CHAT_SPECIAL = 1 << 1, /* made by a template: names of special tokens are the tokens */
    CHAT_END = 1 << 2,     /* the end-of-text token, whatever its text is */
    CHAT_SILENT = 1 << 3,  /* an answer of weight 0: it is never trained */
    CHAT_ADDED = 1 << 4,   /* an end that no template wrote: it stands right after the last token of an answer */
};
struct chat_piece {
    size_t length; /* in pieces->text, after the previous piece */
    unsigned flags;
};
/* Pieces of a rendering. Starts zeroed. */
struct chat_pieces {
    struct strbuf text;
    struct chat_piece *items; /* [count] */
    size_t count, capacity;
    struct chat_template *template; /* that made them; NULL: none */
    size_t endless;                 /* of a row: answers after which no token stops a generator */
};
/* chat_pieces_clear keeps the memory, chat_pieces_free does not. */
void chat_pieces_clear(struct chat_pieces *pieces);
void chat_pieces_free(struct chat_pieces *pieces);
/* Adds a copy of a text, which continues the last piece when their flags are equal. An empty text adds nothing, unless
 * it is the end-of-text. STATUS_MEMORY. */
int chat_pieces_add(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags);
/* Adds an answer with `flags` and the end-of-text, both CHAT_ANSWER; an empty answer adds nothing. STATUS_MEMORY. */
int chat_pieces_add_answer(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags);

/* The default of the option --template-timeout. */
#define CHAT_TEMPLATE_SECONDS 1
struct chat_request {
    const json_t *messages;            /* as chat_check_messages accepts them */
    const json_t *tools, *documents;   /* lists, passed to the template unchanged; NULL: none */
    const json_t *variables;           /* an object of further arguments; NULL: none */
    bool asks;                         /* adds the header of the requested answer (add_generation_prompt) */
    const struct tokenizer *tokenizer; /* for the names of special tokens; NULL: only eos has one */
    int32_t eos;                       /* the end-of-text; -1: there is none */
    const int32_t *ends;               /* [end_count] other tokens at which generators stop, for rows */
    size_t end_count;
    const struct tm *now; /* the time that a template may show; NULL: the local time */
    double seconds;       /* limit of a rendering; 0: CHAT_TEMPLATE_SECONDS */
};
/* Renders a request into pieces. STATUS_INVALID, in one line, for errors of the template or the request, and for a
 * rendering that takes longer than request->seconds; STATUS_MEMORY. It runs a program written by others: call it on a
 * thread that may be busy for a second. */
int chat_render(struct chat_template *template, const struct chat_request *request, struct chat_pieces *pieces);

/* Appends the tokens of all pieces: the ids of the whole text, cut only at ends of text that their names do not find.
 * `flags` receives one byte for each token: the flags of the pieces that it has bytes of; NULL: not wanted.
 * STATUS_INVALID when the pieces need an end-of-text and `eos` is -1; the errors of tokenizer_encode_parts. */
int chat_pieces_encode(const struct chat_pieces *pieces, struct tokenizer_encoder *encoder, int32_t eos,
                       struct token_buffer *ids, struct strbuf *flags);
/* Finds the text that the template puts after an answer, other than the end-of-text. It extends to the first special
 * token in the first 1,024 bytes; else it is the line, without white space around it. If there is none, it is the
 * special token with which the next turn begins. It is "" for nothing, and for a template that refuses a question with
 * its answer.
 *
 * It renders once or twice, each for at most `seconds` as in chat_request. The template keeps the result while
 * `tokenizer` and `eos` stay the same; a failed rendering is tried again. STATUS_MEMORY. */
enum { CHAT_TURN_END_BYTES = 64 };
int chat_find_turn_end(struct chat_template *template, const struct tokenizer *tokenizer, int32_t eos, double seconds,
                       char text[CHAT_TURN_END_BYTES]);

/* ---- rows to train on: chat_answers.c ---- */

enum chat_answers { CHAT_ANSWERS_ALL, CHAT_ANSWERS_LAST };
extern const char *const chat_answers_names[]; /* "all", "last", NULL */

/* Renders messages with their answers marked as CHAT_ANSWER. These are the template's {% generation %} blocks if it has
 * any. Otherwise an answer is the text that an assistant's message adds to the text that requests it. If only the
 * template's words at the end of the requesting text differ (<think>), the answer begins where they do. Messages of
 * weight 0 are CHAT_SILENT instead.
 *
 * Each answer includes the token at which generators stop, if that comes next, and not only white space. After the last
 * answer the token is added if there is none; other answers without one are counted in pieces->endless. If the template
 * leaves out the thoughts of the last message, it is written as it was given. With CHAT_ANSWERS_LAST the row is then
 * the requesting text and that message; so it is if the template writes earlier messages differently.
 *
 * Other answers cannot be found: STATUS_UNSUPPORTED, with what helps. So are tools and calls that the template leaves
 * out. STATUS_INVALID for other weights. A row of chatml's that ends with an answer ends with the end-of-text, if that
 * is a token other than <|im_end|>, because a generator may know only that one. */
int chat_render_row(struct chat_template *template, const struct chat_request *request, enum chat_answers which,
                    struct chat_pieces *pieces);
/* Renders an instruction with its answer: a user's turn whose input follows on the next lines, or in alpaca Stanford's
 * prompt. `input` may be NULL. `request` has no messages. The errors of chat_render. */
struct chat_instruction {
    const json_t *instruction, *input, *output; /* strings */
};
/* Renders an instruction with its answer. */
int chat_render_instruction(struct chat_template *template, const struct chat_instruction *row,
                            const struct chat_request *request, struct chat_pieces *pieces);
