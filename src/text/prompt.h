/* Prompts as they are asked for, by `generate` and by each line of its --requests: texts and messages as tokens, and
 * what ends the text behind them. */
#ifndef CAMBIUM_TEXT_PROMPT_H
#define CAMBIUM_TEXT_PROMPT_H

#include "chat.h"

/* Appends the ids of a text with what the tokenizer puts around every one; an empty one is the beginning of a document.
 */
int prompt_encode_text(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder, const char *text,
                       size_t length, struct token_buffer *ids);
/* The longest text that a context can hold: its tokens, and the bytes of the tokenizer's longest token. */
struct prompt_room {
    int64_t tokens;
    size_t longest_token;
};
/* `tokenizer` may be NULL: each token counts as one byte. */
struct prompt_room prompt_room_of(const struct tokenizer *tokenizer, int64_t tokens);
/* Refuses a text that has too many tokens, however long each of them is: it need not be tokenized. STATUS_INVALID. */
int prompt_check_bytes(const struct prompt_room *room, size_t bytes);
/* Appends messages that ask for an answer in the words of a template, and their ids. `text` may be NULL.
 * STATUS_UNSUPPORTED where `template` is NULL: neither an adapter nor the tokenizer has one. STATUS_INVALID also for a
 * rendering that has no room. */
int prompt_encode_messages(const struct chat_request *request, struct tokenizer_encoder *encoder,
                           struct chat_template *template, const struct prompt_room *room, struct strbuf *text,
                           struct token_buffer *ids);

enum { PROMPT_MAX_ENDS = 10 };

/* What ends a text beside its stop strings: ends of a text, and the end of a turn, which is a token where the tokenizer
 * has it, and a string unless that token is a special one. */
struct prompt_ends {
    int32_t ids[PROMPT_MAX_ENDS]; /* each once */
    size_t count;
    char turn_end[CHAT_TURN_END_BYTES]; /* "": none */
};
/* eos[eos_count]: fewer than PROMPT_MAX_ENDS ends of a text, each once. `template` NULL: there are no turns. `seconds`:
 * as chat_find_turn_end has them. STATUS_MEMORY. */
int prompt_ends_find(const struct tokenizer *tokenizer, const int32_t *eos, int eos_count,
                     struct chat_template *template, double seconds, struct prompt_ends *ends);

#endif
