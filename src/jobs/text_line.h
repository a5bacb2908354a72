/* Texts of a file: JSON lines with "text" or "tokens". */
#pragma once

#include "text/prompt.h"

#include <jansson.h>

/* Turns lines into ids. It starts zeroed but for the first three members. */
struct text_reader {
    const char *tokenizer; /* directory */
    int64_t vocab;         /* of the model */
    int special_tokens;    /* enum special_tokens, of texts */
    struct tokenizer *opened;
    struct tokenizer_encoder *encoder; /* both opened at the first text */
};
/* Reads a line and appends its ids. *root is the line's object, which the caller releases in any case. STATUS_INVALID
 * for anything else than an object with either "text" or "tokens", and for ids outside of the vocabulary; errors of the
 * tokenizer. */
int text_reader_line(struct text_reader *reader, const char *line, size_t length, struct token_buffer *ids,
                     json_t **root);
/* Appends the ids of a text. The errors of the tokenizer. */
int text_reader_text(struct text_reader *reader, const char *text, size_t length, struct token_buffer *ids);
void text_reader_close(struct text_reader *reader);
