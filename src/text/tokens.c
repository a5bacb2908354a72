/* Tokens by id and by bytes, for everything that looks one up; lists of ids. */
#include "text-internal.h"

void token_buffer_free(struct token_buffer *buffer) {
    free(buffer->ids);
    *buffer = TOKEN_BUFFER_INIT;
}

int token_buffer_add(struct token_buffer *buffer, int32_t id) {
    TRY(token_buffer_reserve(buffer, 1));
    buffer->ids[buffer->count++] = id;
    return STATUS_OK;
}

uint64_t text_hash_bytes(const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    uint64_t h = length * 0x9e3779b97f4a7c15u;
    while (length > 0) {
        uint64_t piece = 0;
        size_t n = length < 8 ? length : 8;
        memcpy(&piece, at, n);
        h = (h ^ piece) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
        at += n;
        length -= n;
    }
    return h * 0x9e3779b97f4a7c15u;
}

const unsigned char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length) {
    *length = 0;
    if (id < 0 || id >= tokenizer->size)
        return NULL;
    *length = tokenizer->starts[id + 1] - tokenizer->starts[id];
    return tokenizer->bytes + tokenizer->starts[id];
}

const unsigned char *tokenizer_first_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length) {
    enum stripped_space stripped = tokenizer->rules.stripped;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, length);
    bool is_whole =
        !bytes || stripped == STRIP_NOTHING || (stripped == STRIP_FIRST_TOKEN && tokenizer->kinds[id] & TOKEN_ADDED);
    size_t most = is_whole ? 0 : stripped == STRIP_SPACE ? 1 : *length;
    for (; most > 0 && *length > 0 && *bytes == ' '; most--) {
        bytes++;
        (*length)--;
    }
    return bytes;
}

int32_t tokenizer_find_plain(const struct tokenizer *tokenizer, const void *bytes, size_t length) {
    size_t mask = ((size_t)1 << tokenizer->by_bytes_bits) - 1;
    size_t i = text_hash_bytes(bytes, length) >> (64 - tokenizer->by_bytes_bits);
    for (;; i = (i + 1) & mask) {
        int32_t id = tokenizer->by_bytes[i];
        if (id < 0)
            return -1;
        size_t found;
        const unsigned char *token = tokenizer_token_bytes(tokenizer, id, &found);
        if (found == length && !memcmp(token, bytes, length))
            return id;
    }
}
