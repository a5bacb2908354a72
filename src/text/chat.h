/* Chats: messages, and the templates that put them in words.
 *
 * A rendering is a list of pieces, which are tokenized apart: so no token lies across the boundary of an answer, and
 * names of special tokens are the tokens in the words of a template, and ordinary text in those of a message. What is
 * trained of a rendering, whoever trains decides: pieces say what is an answer.
 *
 * The text of the pieces is what `transformers` makes of the same messages by apply_chat_template with the template
 * that chat_template_write gives. */
#ifndef CAMBIUM_TEXT_CHAT_H
#define CAMBIUM_TEXT_CHAT_H

#include "base/json.h"
#include "text/text.h"

/* ---- templates ---- */

enum chat_template {
    CHAT_TEMPLATE_AUTO, /* none is named */
    CHAT_TEMPLATE_CHATML,
    CHAT_TEMPLATE_ALPACA,
    CHAT_TEMPLATE_PLAIN, /* contents, a line end behind each that is no answer */
    CHAT_TEMPLATE_COUNT,
};
/* "auto", "chatml", "alpaca", "plain", NULL: what an option's row of choices wants. */
extern const char *const chat_template_names[CHAT_TEMPLATE_COUNT + 1];
/* The template of this name; AUTO where there is none. */
enum chat_template chat_template_named(const char *name);
/* What ends a turn and is not the end-of-text; NULL: nothing. */
const char *chat_turn_end(enum chat_template which);

/* ---- in the language of `chat_template` (Jinja): chat_jinja.c ---- */

/* Appends the template: what is recorded beside an adapter. Nothing for AUTO. */
void chat_template_write(enum chat_template which, struct strbuf *text);
/* Which template a text in Jinja is, however it is spaced and quoted; AUTO when it is none of them. */
enum chat_template chat_template_recognise(const char *text, size_t length);
/* The template that a tokenizer's files name, in chat_template.jinja or tokenizer_config.json; AUTO when it names
 * none. STATUS_UNSUPPORTED when it is not one that we have, STATUS_INVALID. */
int chat_template_of_tokenizer(const struct tokenizer_files *files, enum chat_template *which);

/* ---- messages: chat_messages.c ---- */

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLE_COUNT };
struct chat_message {
    enum chat_role role;
    const char *text; /* of the JSON that it was read from */
    size_t length;
};
/* {"role", "content"}; STATUS_INVALID for what is none, for fields that would change its meaning, and for a system's
 * message that is not the first. */
int chat_read_message(const json_t *json, bool is_first, struct chat_message *message);
/* A list of messages, at least one; the caller frees *messages. */
int chat_read_messages(const json_t *json, struct chat_message **messages, size_t *count);

/* ---- in words: chat.c ---- */

enum chat_piece_flags {
    CHAT_ANSWER = 1 << 0,  /* an assistant's words, or the end behind them; not of an empty answer */
    CHAT_SPECIAL = 1 << 1, /* names of special tokens are the tokens: only in texts of ours */
    CHAT_END = 1 << 2,     /* no text: the end-of-text token */
};
struct chat_piece {
    const char *text;
    size_t length;
    unsigned flags;
};
/* Starts zeroed. Texts are constants, those of messages, or stand in `joined`. */
struct chat_pieces {
    struct chat_piece *items;
    size_t count, capacity;
    struct strbuf joined;
};
void chat_pieces_clear(struct chat_pieces *pieces);
void chat_pieces_free(struct chat_pieces *pieces);
/* An empty text is none, but for the end-of-text. */
int chat_pieces_add(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags);
/* An answer and the end-of-text, both CHAT_ANSWER; an empty answer is none. */
int chat_pieces_add_answer(struct chat_pieces *pieces, const char *text, size_t length);

/* Messages [count] by a template, which is not AUTO. `asks`: and the head of the answer that is wanted
 * (add_generation_prompt). */
int chat_render(enum chat_template which, const struct chat_message *messages, size_t count, bool asks,
                struct chat_pieces *pieces);
/* An instruction with its answer: a user's turn whose input is the lines behind it, and Stanford's own prompt in
 * alpaca. input_length 0: none is given. */
struct chat_instruction {
    const char *instruction, *input, *output;
    size_t instruction_length, input_length, output_length;
};
int chat_render_instruction(enum chat_template which, const struct chat_instruction *row, struct chat_pieces *pieces);

/* Appends the text; `eos` is that of the end-of-text. */
int chat_pieces_text(const struct chat_pieces *pieces, const char *eos, size_t eos_length, struct strbuf *text);
/* Appends the tokens. STATUS_INVALID where the pieces need an end-of-text and `eos` is -1. */
int chat_piece_encode(const struct chat_piece *piece, struct tokenizer_encoder *encoder, int32_t eos,
                      struct token_buffer *ids);
int chat_pieces_encode(const struct chat_pieces *pieces, struct tokenizer_encoder *encoder, int32_t eos,
                       struct token_buffer *ids);

#endif
