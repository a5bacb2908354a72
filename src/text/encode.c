/* A text into ids: added tokens are cut out, what is between them is split into words, and each word is looked up in a
 * cache of this encoder or merged.
 *
 * A word of up to 15 bytes is its own cache key: two machine words with the length in the last byte. Its ids are kept
 * beside it when there are no more than three, so that a set of two entries is one cache line. */
#include "text-internal.h"

#include "scan-internal.h"

#include <stdlib.h>
#include <string.h>

enum { CACHE_BITS = 13, CACHE_IDS = 3, CACHE_WORD = 15 };

struct cache_entry {
    uint64_t low, high; /* the word's bytes, zeros, and its length in the highest byte; 0, 0 is empty */
    int32_t ids[CACHE_IDS];
    uint32_t count;
};

struct tokenizer_encoder {
    const struct tokenizer *tokenizer;
    struct cache_entry (*cache)[2]; /* the entry used last comes first */
    struct bpe_scratch scratch;
    struct strbuf prefixed; /* a section with the space that add_prefix_space puts before it */
};

int tokenizer_encoder_new(const struct tokenizer *tokenizer, struct tokenizer_encoder **encoder) {
    *encoder = NULL;
    struct tokenizer_encoder *e = calloc(1, sizeof *e);
    size_t bytes = sizeof *e->cache << CACHE_BITS;
    if (e)
        e->cache = aligned_alloc(64, bytes);
    if (!e || !e->cache) {
        free(e);
        return status_fail(STATUS_MEMORY, "out of memory for a tokenizer's cache");
    }
    memset(e->cache, 0, bytes);
    e->tokenizer = tokenizer;
    *encoder = e;
    return STATUS_OK;
}

void tokenizer_encoder_free(struct tokenizer_encoder *encoder) {
    if (!encoder)
        return;
    free(encoder->cache);
    bpe_scratch_free(&encoder->scratch);
    strbuf_free(&encoder->prefixed);
    free(encoder);
}

void token_buffer_free(struct token_buffer *buffer) {
    free(buffer->ids);
    *buffer = TOKEN_BUFFER_INIT;
}

static inline int buffer_reserve(struct token_buffer *buffer, size_t more) {
    if (buffer->capacity - buffer->count >= more)
        return STATUS_OK;
    int32_t *ids = text_grow(buffer->ids, &buffer->capacity, buffer->count + more, sizeof *ids);
    if (!ids)
        return STATUS_MEMORY;
    buffer->ids = ids;
    return STATUS_OK;
}

int token_buffer_add(struct token_buffer *buffer, int32_t id) {
    int status = buffer_reserve(buffer, 1);
    if (!status)
        buffer->ids[buffer->count++] = id;
    return status;
}

/* Merges a word and appends its ids. */
static int encode_new_word(struct tokenizer_encoder *encoder, const unsigned char *word, size_t length,
                           struct token_buffer *out) {
    int status = buffer_reserve(out, length);
    size_t count = 0;
    if (!status)
        status = bpe_encode_word(encoder->tokenizer, &encoder->scratch, word, length, out->ids + out->count, &count);
    out->count += count;
    return status;
}

/* The same for a word of up to CACHE_WORD bytes, and puts it in front of its set of the cache. */
static int fill_cache(struct tokenizer_encoder *encoder, struct cache_entry *set, const struct cache_entry *key,
                      const unsigned char *word, size_t length, struct token_buffer *out) {
    size_t before = out->count;
    int status = encode_new_word(encoder, word, length, out);
    size_t count = out->count - before;
    if (status || count > CACHE_IDS)
        return status;
    set[1] = set[0];
    set[0] = *key;
    memcpy(set[0].ids, out->ids + before, count * sizeof *out->ids);
    set[0].count = (uint32_t)count;
    return STATUS_OK;
}

static inline int append_entry(const struct cache_entry *entry, struct token_buffer *out) {
    int status = buffer_reserve(out, CACHE_IDS);
    if (status)
        return status;
    memcpy(out->ids + out->count, entry->ids, sizeof entry->ids);
    out->count += entry->count;
    return STATUS_OK;
}

/* Appends the ids of one word; `readable` bytes may be read at `word`. */
static inline int encode_word(struct tokenizer_encoder *encoder, const unsigned char *word, size_t length,
                              size_t readable, struct token_buffer *out) {
    if (length > CACHE_WORD)
        return encode_new_word(encoder, word, length, out);
    struct cache_entry key = {0};
    if (readable >= 16) {
        memcpy(&key.low, word, 8);
        memcpy(&key.high, word + 8, 8);
        if (length < 8) {
            key.low &= ((uint64_t)1 << 8 * length) - 1;
            key.high = 0;
        } else {
            key.high &= ((uint64_t)1 << 8 * (length - 8)) - 1;
        }
    } else {
        unsigned char padded[16] = {0};
        memcpy(padded, word, length);
        memcpy(&key.low, padded, 8);
        memcpy(&key.high, padded + 8, 8);
    }
    key.high |= (uint64_t)length << 56;
    uint64_t hash = (key.low ^ key.high * 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    struct cache_entry *set = encoder->cache[hash >> (64 - CACHE_BITS)];
    if (set[0].low == key.low && set[0].high == key.high)
        return append_entry(&set[0], out);
    if (set[1].low == key.low && set[1].high == key.high) {
        struct cache_entry found = set[1];
        set[1] = set[0];
        set[0] = found;
        return append_entry(&set[0], out);
    }
    return fill_cache(encoder, set, &key, word, length, out);
}

static bool is_all_space(const struct tokenizer *tokenizer, int32_t id) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != ' ' && bytes[i] != '\n' && bytes[i] != '\t')
            return false;
    return true;
}

/* What `tiktoken` does where a text ends to be UTF-8 (`_encode_bytes` of its core): the ids of the last word are taken
 * back, and those of the white space before it where its own first token is white space (a space that was merged with
 * nothing after it); the bytes that they stood for are one word together with the whole rest. `first` and `last_word`
 * are positions in `out`, of the ids of the section and of its last word; `valid` of the `length` bytes are UTF-8. */
static int encode_invalid_tail(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t length,
                               size_t valid, size_t first, size_t last_word, struct token_buffer *out) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (last_word < out->count && is_all_space(tokenizer, out->ids[last_word]))
        while (last_word > first && is_all_space(tokenizer, out->ids[last_word - 1]))
            last_word--;
    size_t start = valid;
    for (size_t i = last_word; i < out->count; i++) {
        size_t token_length;
        tokenizer_token_bytes(tokenizer, out->ids[i], &token_length);
        start -= token_length;
    }
    out->count = last_word;
    return encode_new_word(encoder, bytes + start, length - start, out);
}

/* Text between added tokens, at least one byte. */
static int encode_section(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t length,
                          bool is_continued, struct token_buffer *out) {
    if (encoder->tokenizer->add_prefix_space && !is_continued && bytes[0] != ' ') {
        strbuf_clear(&encoder->prefixed);
        strbuf_add_char(&encoder->prefixed, ' ');
        strbuf_add(&encoder->prefixed, bytes, length);
        int status = strbuf_status(&encoder->prefixed);
        if (status)
            return status;
        bytes = (const unsigned char *)encoder->prefixed.data;
        length++;
    }
    size_t valid = utf8_valid_length(bytes, length);
    const unsigned char *at = bytes, *end = bytes + valid;
    enum word_pattern pattern = encoder->tokenizer->pattern;
    size_t first = out->count, last_word = first;
    while (at < end) {
        const unsigned char *next = scan_word(pattern, at, end);
        last_word = out->count;
        int status = encode_word(encoder, at, (size_t)(next - at), (size_t)(bytes + length - at), out);
        if (status)
            return status;
        at = next;
    }
    return valid == length ? STATUS_OK : encode_invalid_tail(encoder, bytes, length, valid, first, last_word, out);
}

/* The added token at `at`, the longest one; -1 when none stands there. */
static int32_t added_token_at(const struct tokenizer *tokenizer, const unsigned char *at, const unsigned char *end,
                              bool allow_special) {
    for (uint32_t i = tokenizer->added_starts[*at]; i < tokenizer->added_starts[*at + 1]; i++) {
        int32_t id = tokenizer->added[i];
        size_t length;
        const unsigned char *token = tokenizer_token_bytes(tokenizer, id, &length);
        if (!allow_special && tokenizer->kinds[id] & TOKEN_SPECIAL)
            continue;
        if (length <= (size_t)(end - at) && !memcmp(token, at, length))
            return id;
    }
    return -1;
}

static int encode_with_added(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t length,
                             unsigned flags, struct token_buffer *out) {
    const unsigned char *at = bytes, *end = bytes + length, *section = bytes;
    bool allow_special = flags & TOKENIZER_ALLOW_SPECIAL, is_continued = flags & TOKENIZER_CONTINUED;
    int status = STATUS_OK;
    while (!status && at < end) {
        int32_t id = added_token_at(encoder->tokenizer, at, end, allow_special);
        if (id < 0) {
            at++;
            continue;
        }
        size_t token_length;
        tokenizer_token_bytes(encoder->tokenizer, id, &token_length);
        if (at > section)
            status = encode_section(encoder, section, (size_t)(at - section), is_continued, out);
        if (!status)
            status = token_buffer_add(out, id);
        is_continued = false;
        at += token_length;
        section = at;
    }
    if (!status && end > section)
        status = encode_section(encoder, section, (size_t)(end - section), is_continued, out);
    return status;
}

/* Whether a token that is found in any text lies across `at`, or ends there: what follows it begins a section. */
static bool is_in_added(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t at, size_t length,
                        size_t longest) {
    for (size_t start = at > longest ? at - longest : 0; start < at; start++)
        for (uint32_t i = tokenizer->added_starts[bytes[start]]; i < tokenizer->added_starts[bytes[start] + 1]; i++) {
            size_t bytes_of_token;
            const unsigned char *token = tokenizer_token_bytes(tokenizer, tokenizer->added[i], &bytes_of_token);
            if (!(tokenizer->kinds[tokenizer->added[i]] & TOKEN_SPECIAL) && start + bytes_of_token >= at &&
                bytes_of_token <= length - start && !memcmp(token, bytes + start, bytes_of_token))
                return true;
        }
    return false;
}

static size_t longest_plain_added(const struct tokenizer *tokenizer) {
    size_t longest = 0;
    for (uint32_t i = 0; tokenizer->has_plain_added && i < tokenizer->added_starts[256]; i++) {
        size_t length;
        tokenizer_token_bytes(tokenizer, tokenizer->added[i], &length);
        if (!(tokenizer->kinds[tokenizer->added[i]] & TOKEN_SPECIAL) && length > longest)
            longest = length;
    }
    return longest;
}

size_t tokenizer_find_cut(const struct tokenizer *tokenizer, struct tokenizer_cut *cut, const void *text,
                          size_t length) {
    const unsigned char *bytes = text;
    if (!cut->is_broken)
        cut->valid += utf8_valid_length(bytes + cut->valid, length - cut->valid);
    cut->is_broken |= length - cut->valid >= 4; /* fewer bytes may be the beginning of a character */
    if (cut->is_broken)
        return 0;
    size_t longest = longest_plain_added(tokenizer), known = cut->valid; /* the places before are decided */
    if (longest > 0 && known + longest > length)
        known = length >= longest ? length - longest + 1 : 0;
    size_t scanned = cut->scanned ? cut->scanned : 1, at = known ? known - 1 : 0;
    while (at >= scanned &&
           ((bytes[at] & 0xc0) == 0x80 || !scan_is_border(tokenizer->pattern, bytes, bytes + at, bytes + cut->valid) ||
            is_in_added(tokenizer, bytes, at, length, longest)))
        at--;
    if (at < scanned)
        at = 0;
    cut->scanned = known > scanned ? known - at : cut->scanned;
    cut->valid -= at;
    return at;
}

int tokenizer_encode(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                     struct token_buffer *out) {
    if (length > INT32_MAX - 1)
        return status_fail(STATUS_UNSUPPORTED, "a text of %zu bytes: at most 2147483646 are encoded at once", length);
    if (length == 0)
        return STATUS_OK;
    size_t before = out->count;
    int status = encoder->tokenizer->has_plain_added || flags & TOKENIZER_ALLOW_SPECIAL
                     ? encode_with_added(encoder, bytes, length, flags, out)
                     : encode_section(encoder, bytes, length, flags & TOKENIZER_CONTINUED, out);
    if (status)
        out->count = before;
    return status;
}
