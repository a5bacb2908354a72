/* Prompts as they are asked for, by `generate` and by each line of its --requests: texts and messages as tokens, and
 * what ends the text behind them. */
#ifndef CAMBIUM_TEXT_PROMPT_H
#define CAMBIUM_TEXT_PROMPT_H

#include "chat.h"

/* Appends the ids of a text with what the tokenizer puts around every one; an empty one is the beginning of a document.
 */
int prompt_encode_text(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder, const char *text,
                       size_t length, struct token_buffer *ids);
/* Appends messages that ask for an answer in the words of a template, and their ids. `text` may be NULL.
 * STATUS_UNSUPPORTED where `template` is NULL: neither an adapter nor the tokenizer has one. */
int prompt_encode_messages(const struct chat_request *request, struct tokenizer_encoder *encoder,
                           struct chat_template *template, struct strbuf *text, struct token_buffer *ids);

enum { PROMPT_MAX_ENDS = 10 };

/* What ends a text beside its stop strings: ends of a text, and the end of a turn, which is a token where the tokenizer
 * has it, and a string unless that token is a special one. */
struct prompt_ends {
    int32_t ids[PROMPT_MAX_ENDS]; /* each once */
    size_t count;
    char turn_end[CHAT_TURN_END_BYTES]; /* "": none */
};
/* eos[eos_count]: fewer than PROMPT_MAX_ENDS ends of a text, each once. `template` NULL: there are no turns.
 * STATUS_MEMORY. */
int prompt_ends_find(const struct tokenizer *tokenizer, const int32_t *eos, int eos_count,
                     struct chat_template *template, struct prompt_ends *ends);

#endif
