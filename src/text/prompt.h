/* Prompts of `generate`, of its --requests and of the server: texts and messages as tokens, and the ends of
 * completions. */
#pragma once

#include "chat.h"

/* Choices of an option: names of special tokens in a text without a template are these tokens, or ordinary text. */
enum special_tokens { SPECIAL_TOKENS_PARSE, SPECIAL_TOKENS_TEXT };
extern const char *const special_tokens_names[]; /* "parse", "text", NULL */
/* Returns the flag of tokenizer_encode that a choice stands for. */
static inline unsigned special_tokens_flag(int choice) {
    return choice == SPECIAL_TOKENS_PARSE ? TOKENIZER_ALLOW_SPECIAL : TOKENIZER_PLAIN;
}
/* Appends the ids of a text with the tokens that the tokenizer puts around every text. An empty text is the beginning
 * of a document. `flag`: TOKENIZER_ALLOW_SPECIAL or TOKENIZER_PLAIN. The errors of tokenizer_encode. */
int prompt_encode_text(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder, const char *text,
                       size_t length, unsigned flag, struct token_buffer *ids);
/* The size of the longest text that a context can hold: its tokens, and the bytes of the tokenizer's longest token. */
struct prompt_room {
    int64_t tokens;
    size_t longest_token;
};
/* Returns the room of a context of `tokens` tokens. `tokenizer` may be NULL: each token then counts as one byte. */
struct prompt_room prompt_room_of(const struct tokenizer *tokenizer, int64_t tokens);
/* Refuses a text that has too many tokens even if each is the longest; it need not be tokenized. STATUS_INVALID. */
int prompt_check_bytes(const struct prompt_room *room, size_t bytes);
/* Checks that there is a chat template. STATUS_UNSUPPORTED, with the option that gives one. */
int prompt_check_template(const struct chat_template *template);
/* Appends the rendering of messages that request an answer, and its ids. `text` may be NULL. STATUS_UNSUPPORTED when
 * `template` is NULL, because neither an adapter nor the tokenizer has one. STATUS_INVALID too for a rendering that
 * does not fit; the errors of chat_render. */
int prompt_encode_messages(const struct chat_request *request, struct tokenizer_encoder *encoder,
                           struct chat_template *template, const struct prompt_room *room, struct strbuf *text,
                           struct token_buffer *ids);

enum { PROMPT_MAX_ENDS = 10 };

/* The ends of a completion besides its stop strings: end-of-text ids, and the end of a turn. The latter is a token if
 * the tokenizer has it, and a string unless that token is special. */
struct prompt_ends {
    int32_t ids[PROMPT_MAX_ENDS]; /* without duplicates */
    size_t count;
    char turn_end[CHAT_TURN_END_BYTES]; /* "": none */
};
/* Finds the ends. eos[eos_count]: fewer than PROMPT_MAX_ENDS end-of-text ids, without duplicates. `template` NULL:
 * there are no turns. `seconds`: see chat_find_turn_end. STATUS_MEMORY. */
int prompt_ends_find(const struct tokenizer *tokenizer, const int32_t *eos, int eos_count,
                     struct chat_template *template, double seconds, struct prompt_ends *ends);
