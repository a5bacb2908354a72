/* A tokenizer's ids as the vocabulary of grammars. */
#include "text-internal.h"

#include "grammar/grammar.h"

int tokenizer_vocabulary(const struct tokenizer *tokenizer, const int32_t *ends, size_t end_count,
                         struct grammar_vocabulary **vocabulary) {
    size_t count = (size_t)tokenizer->size;
    struct grammar_token *tokens = calloc(count + 1, sizeof *tokens);
    TRY(status_allocated(tokens));
    for (size_t i = 0; i < count; i++) {
        int32_t id = (int32_t)i;
        tokens[i].bytes = (const char *)tokenizer_token_bytes(tokenizer, id, &tokens[i].length);
        tokens[i].is_special = tokenizer_is_special(tokenizer, id);
    }
    int status = grammar_vocabulary_open(tokens, count, ends, end_count, vocabulary);
    free(tokens);
    if (status)
        return status;
    status = grammar_vocabulary_prepare(*vocabulary);
    if (status) {
        grammar_vocabulary_close(*vocabulary);
        *vocabulary = NULL;
    }
    return status;
}
