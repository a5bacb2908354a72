/* The words and numbers of a PTX text. */
#include "cuda/parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void lexer_skip_space(struct lexer *lexer) {
    while (lexer->at < lexer->end) {
        const char *at = lexer->at;
        if (at[0] == '/' && at + 1 < lexer->end && at[1] == '/') {
            while (lexer->at < lexer->end && *lexer->at != '\n') {
                lexer->at++;
            }
        } else if (at[0] == '/' && at + 1 < lexer->end && at[1] == '*') {
            for (lexer->at += 2; lexer->at + 1 < lexer->end && (lexer->at[0] != '*' || lexer->at[1] != '/');
                 lexer->at++) {
                lexer->line += *lexer->at == '\n';
            }
            lexer->at += 2;
        } else if (isspace((unsigned char)*at)) {
            lexer->line += *at == '\n';
            lexer->at++;
        } else {
            return;
        }
    }
}

static bool continues(const struct lexer *lexer, const char *at) {
    unsigned char c = (unsigned char)*at;
    if (isalnum(c) || c == '_' || c == '$' || c == '.' || c == '%') {
        return true;
    }
    bool pair = c == ':' && ((at + 1 < lexer->end && at[1] == ':') || at[-1] == ':'); /* shared::cta */
    return pair;
}

void lexer_next(struct lexer *lexer) {
    lexer_skip_space(lexer);
    lexer->word[0] = 0;
    if (lexer->at >= lexer->end) {
        lexer->token = TOKEN_END;
        return;
    }
    const char *start = lexer->at++;
    size_t length = 1;
    if (*start == '"') {
        while (lexer->at < lexer->end && *lexer->at++ != '"') {
        }
        lexer->token = TOKEN_TEXT;
        return;
    }
    unsigned char c = (unsigned char)*start;
    bool negative = c == '-' && lexer->at < lexer->end && isdigit((unsigned char)*lexer->at);
    if (isalnum(c) || c == '_' || c == '$' || c == '.' || c == '%' || negative) {
        while (lexer->at < lexer->end && continues(lexer, lexer->at)) {
            lexer->at++;
        }
        length = (size_t)(lexer->at - start);
        lexer->token = isdigit(c) || negative ? TOKEN_NUMBER : TOKEN_WORD;
    } else {
        lexer->token = TOKEN_MARK;
    }
    length = length < PARSE_WORD ? length : PARSE_WORD - 1;
    memcpy(lexer->word, start, length);
    lexer->word[length] = 0;
}

bool lexer_is(const struct lexer *lexer, const char *word) {
    return strcmp(lexer->word, word) == 0;
}

bool lexer_number(const char *word, uint64_t *bits, bool *is_real) {
    char *end;
    *is_real = false;
    if (word[0] == '0' && strchr("fFdD", word[1]) && word[1] && (strlen(word) == 10 || strlen(word) == 18)) {
        *bits = strtoull(word + 2, &end, 16);
        return *end == 0;
    }
    if (strchr(word, '.')) {
        double value = strtod(word, &end);
        memcpy(bits, &value, sizeof value);
        *is_real = true;
        return *end == 0;
    }
    bool negative = word[0] == '-';
    *bits = strtoull(word + negative, &end, 0);
    *bits = negative ? 0 - *bits : *bits;
    return end > word + negative && (*end == 0 || strcmp(end, "U") == 0);
}
