/* A text into ids. Added tokens are cut out, the text between them is normalized and split into words, and each word is
 * looked up in this encoder's cache or merged.
 *
 * A word of up to 15 bytes is its own cache key. Up to three ids are stored next to it, so a set of two entries fits
 * one cache line. */
#include "text-internal.h"

#include "scan-internal.h"

enum { CACHE_BITS = 13, CACHE_IDS = 3 };

struct cache_entry {
    struct word_key key; /* 0, 0 is empty */
    int32_t ids[CACHE_IDS];
    uint32_t count;
};

struct tokenizer_encoder {
    const struct tokenizer *tokenizer;
    struct cache_entry (*cache)[2]; /* the most recently used entry comes first */
    struct bpe_scratch scratch;
    struct strbuf normalized; /* a stretch between added tokens that was not in normal form */
    struct strbuf marked;     /* the same, with a space before it and spaces for its marks */
    struct strbuf prefixed;   /* a section with the space that is put before it, and spaces for its marks */
    struct nfc_scratch nfc;
    struct regex_scratch *regex;     /* NULL: the rules have no steps */
    const unsigned char *text;       /* the text that is encoded in parts */
    struct token_spans *spans;       /* of its tokens; NULL: not wanted */
    struct span_source source;       /* of the section that is encoded, for its tokens' spans */
    struct added_search searches[2]; /* for the tokens of each list */
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
    e->tokenizer = e->source.tokenizer = tokenizer;
    int status = tokenizer->rules.step_count > 0 ? regex_scratch_new(&e->regex) : STATUS_OK;
    if (status)
        tokenizer_encoder_free(e);
    else
        *encoder = e;
    return status;
}

void tokenizer_encoder_free(struct tokenizer_encoder *encoder) {
    if (!encoder)
        return;
    free(encoder->cache);
    bpe_scratch_free(&encoder->scratch);
    nfc_scratch_free(&encoder->nfc);
    regex_scratch_free(encoder->regex);
    for (int list = 0; list < 2; list++)
        added_search_free(&encoder->searches[list]);
    strbuf_free(&encoder->normalized);
    strbuf_free(&encoder->marked);
    strbuf_free(&encoder->prefixed);
    span_source_free(&encoder->source);
    free(encoder);
}

/* Merges a word and appends its ids. */
static int encode_new_word(struct tokenizer_encoder *encoder, const unsigned char *word, size_t length,
                           struct token_buffer *out) {
    int status = token_buffer_reserve(out, length);
    size_t count = 0;
    THEN(status, bpe_encode_word(encoder->tokenizer, &encoder->scratch, word, length, out->ids + out->count, &count));
    out->count += count;
    return status;
}

/* The same for a word with a key, which it puts first in its set of the cache. */
static __attribute__((noinline)) int fill_cache(struct tokenizer_encoder *encoder, struct cache_entry *set,
                                                struct word_key key, uint64_t hash, const unsigned char *word,
                                                size_t length, struct token_buffer *out) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    size_t count = 1;
    int status = token_buffer_reserve(out, length);
    TRY(status);
    int32_t *ids = out->ids + out->count, id = words_find(tokenizer, key, hash);
    if (id >= 0)
        ids[0] = id;
    else
        status = bpe_merge_word(tokenizer, &encoder->scratch, word, length, ids, &count);
    TRY(status);
    out->count += count;
    if (count > CACHE_IDS)
        return STATUS_OK;
    set[1] = set[0];
    set[0].key = key;
    memcpy(set[0].ids, ids, count * sizeof *ids);
    set[0].count = (uint32_t)count;
    return STATUS_OK;
}

static inline int append_entry(const struct cache_entry *entry, struct token_buffer *out) {
    TRY(token_buffer_reserve(out, CACHE_IDS));
    memcpy(out->ids + out->count, entry->ids, sizeof entry->ids);
    out->count += entry->count;
    return STATUS_OK;
}

/* Appends the ids of one word; `readable` bytes can be read at `word`. */
static inline int encode_word(struct tokenizer_encoder *encoder, const unsigned char *word, size_t length,
                              size_t readable, struct token_buffer *out) {
    if (length > WORD_KEY_BYTES)
        return encode_new_word(encoder, word, length, out);
    struct word_key key = word_key_of(word, length, readable);
    uint64_t hash = word_key_hash(key);
    struct cache_entry *set = encoder->cache[hash >> (64 - CACHE_BITS)];
    if (set[0].key.low == key.low && set[0].key.high == key.high)
        return append_entry(&set[0], out);
    if (set[1].key.low == key.low && set[1].key.high == key.high) {
        struct cache_entry found = set[1];
        set[1] = set[0];
        set[0] = found;
        return append_entry(&set[0], out);
    }
    return fill_cache(encoder, set, key, hash, word, length, out);
}

static bool is_all_space(const struct tokenizer *tokenizer, int32_t id) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != ' ' && bytes[i] != '\n' && bytes[i] != '\t')
            return false;
    return true;
}

/* Does what `tiktoken` does at invalid UTF-8 (`_encode_bytes` of its core). The ids of the last word are taken back. So
 * are those of the white space before it, if the word's first token is white space (a space that was not merged with
 * following text). The bytes of these ids form one word with the whole rest. `first` and `last_word` are positions in
 * `out`: of the section's ids and of its last word's. `valid` of the `length` bytes are UTF-8. */
static int encode_invalid_tail(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t length,
                               size_t valid, size_t first, size_t last_word, struct token_buffer *out) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (last_word < out->count && is_all_space(tokenizer, out->ids[last_word]))
        while (last_word > first && is_all_space(tokenizer, out->ids[last_word - 1]))
            last_word--;
    if (tokenizer->has_lost_bytes) /* ids do not tell how many bytes they had */
        return encode_new_word(encoder, bytes + valid, length - valid, out);
    size_t start = valid;
    for (size_t i = last_word; i < out->count; i++) {
        size_t token_length;
        tokenizer_token_bytes(tokenizer, out->ids[i], &token_length);
        start -= token_length;
    }
    out->count = last_word;
    return encode_new_word(encoder, bytes + start, length - start, out);
}

/* Splits a text by a pattern that is a constant in each call. */
static inline __attribute__((always_inline)) int
encode_words_by(enum word_pattern pattern, struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t valid,
                size_t length, size_t *last_word, struct token_buffer *out) {
    const unsigned char *at = bytes, *end = bytes + valid;
    while (at < end) {
        const unsigned char *next = scan_word(pattern, at, end);
        *last_word = out->count;
        TRY(encode_word(encoder, at, (size_t)(next - at), (size_t)(bytes + length - at), out));
        at = next;
    }
    return STATUS_OK;
}

/* Each part of a text that no merge joins to its neighbours is a word. */
static int encode_apart(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t length,
                        struct token_buffer *out) {
    const uint8_t(*joins)[256] = (const uint8_t(*)[256])encoder->tokenizer->joins;
    const unsigned char *at = bytes, *end = bytes + length;
    int status = STATUS_OK;
    while (!status && at < end) {
        const unsigned char *next = at + 1;
        while (next < end && joins[next[-1]][*next])
            next++;
        status = encode_word(encoder, at, (size_t)(next - at), (size_t)(end - at), out);
        at = next;
    }
    return status;
}

/* A section that split_text splits into words. */
struct stepping {
    struct tokenizer_encoder *encoder;
    const unsigned char *end; /* end of the readable bytes */
    size_t last_word;
    struct token_buffer *out;
};

static int on_word(void *context, const unsigned char *word, size_t length) {
    struct stepping *stepping = context;
    stepping->last_word = stepping->out->count;
    return encode_word(stepping->encoder, word, length, (size_t)(stepping->end - word), stepping->out);
}

static int encode_by_steps(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t valid, size_t length,
                           size_t *last_word, struct token_buffer *out) {
    struct stepping stepping = {encoder, bytes + length, *last_word, out};
    int status = split_text(&encoder->tokenizer->rules, encoder->regex, bytes, valid, on_word, &stepping);
    *last_word = stepping.last_word;
    return status;
}

/* `valid` of the `length` bytes are UTF-8. *last_word receives the position of the last word's ids. */
static __attribute__((noinline)) int encode_words(struct tokenizer_encoder *encoder, const unsigned char *bytes,
                                                  size_t valid, size_t length, size_t *last_word,
                                                  struct token_buffer *out) {
    switch (encoder->tokenizer->rules.pattern) {
    case WORDS_BYTE_LEVEL:
        return encode_words_by(WORDS_BYTE_LEVEL, encoder, bytes, valid, length, last_word, out);
    case WORDS_LLAMA3:
        return encode_words_by(WORDS_LLAMA3, encoder, bytes, valid, length, last_word, out);
    case WORDS_QWEN2:
        return encode_words_by(WORDS_QWEN2, encoder, bytes, valid, length, last_word, out);
    case WORDS_O200K:
        return encode_words_by(WORDS_O200K, encoder, bytes, valid, length, last_word, out);
    case WORDS_TEKKEN:
        return encode_words_by(WORDS_TEKKEN, encoder, bytes, valid, length, last_word, out);
    case WORDS_SMOLLM:
        return encode_words_by(WORDS_SMOLLM, encoder, bytes, valid, length, last_word, out);
    case WORDS_METASPACE:
    case WORDS_WHOLE:
        return encode_apart(encoder, bytes, length, out);
    case WORDS_STEPS:
        return encode_by_steps(encoder, bytes, valid, length, last_word, out);
    }
    return STATUS_OK;
}

/* The place of a stretch within the text. */
enum place { PLACE_BEGINNING, PLACE_CONTINUED, PLACE_LATER };

/* Copies a text into a buffer, with a space before it and with spaces for its marks. `map` receives where its bytes
 * come from; NULL: not wanted. */
static int copy_text(const unsigned char **bytes, size_t *length, bool has_space, bool has_marks, struct strbuf *buffer,
                     struct byte_map *map) {
    if (map && byte_map_copy(map, *bytes, *length, has_space, has_marks))
        return STATUS_MEMORY;
    strbuf_clear(buffer);
    if (has_space)
        strbuf_add_char(buffer, ' ');
    if (has_marks)
        space_marks_add(*bytes, *length, buffer);
    else
        strbuf_add(buffer, *bytes, *length);
    *bytes = (const unsigned char *)strbuf_text(buffer);
    *length = buffer->length;
    return strbuf_status(buffer);
}

static bool has_mark(const unsigned char *bytes, size_t length) {
    return memmem(bytes, length, SPACE_MARK, SPACE_MARK_BYTES);
}

/* Encodes text between added tokens, at least one byte. */
static int encode_section(struct tokenizer_encoder *encoder, const unsigned char *bytes, size_t length,
                          enum place place, struct token_buffer *out) {
    const struct tokenizer_rules *rules = &encoder->tokenizer->rules;
    bool has_marks = rules->is_by_characters && !rules->has_early_mark && has_mark(bytes, length);
    bool begins_with_space = bytes[0] == ' ' || (has_marks && !memcmp(bytes, SPACE_MARK, SPACE_MARK_BYTES));
    bool has_prefix = !begins_with_space && (rules->prefix == PREFIX_FIRST      ? place == PLACE_BEGINNING
                                             : rules->prefix == PREFIX_SECTIONS ? place != PLACE_CONTINUED
                                                                                : false);
    struct byte_map *map = encoder->spans ? &encoder->source.maps[SPAN_SECTION] : NULL;
    if (map) {
        encoder->source.section = (size_t)(bytes - encoder->source.stretch);
        map->count = 0;
    }
    int status = has_prefix || has_marks ? copy_text(&bytes, &length, has_prefix, has_marks, &encoder->prefixed, map)
                                         : STATUS_OK;
    size_t first = out->count, last_word = first;
    size_t valid = rules->is_by_characters ? length : utf8_valid_length(bytes, length);
    THEN(status, encode_words(encoder, bytes, valid, length, &last_word, out));
    THEN_IF(status, valid != length, encode_invalid_tail(encoder, bytes, length, valid, first, last_word, out));
    THEN_IF(status, map, token_spans_add(encoder->spans, &encoder->source, bytes, length, out, first));
    return status;
}

/* Normalizes a text. If words begin as bytes, the rest after the first invalid byte stays unchanged. Otherwise a space
 * is put before the text, and spaces replace marks. */
static int normalize(struct tokenizer_encoder *encoder, enum place place, const unsigned char **bytes, size_t *length) {
    const struct tokenizer_rules *rules = &encoder->tokenizer->rules;
    struct byte_map *maps = encoder->spans ? encoder->source.maps : NULL;
    for (int i = 0; maps && i < SPAN_MAPS; i++)
        maps[i].count = 0;
    if (rules->has_nfc && nfc_normal_length(*bytes, *length) < *length) {
        size_t valid = rules->is_by_characters ? *length : utf8_valid_length(*bytes, *length);
        int status = maps ? byte_map_normalize(&maps[SPAN_NORMALIZED], &encoder->nfc, *bytes, *length, valid,
                                               &encoder->normalized)
                          : STATUS_OK;
        strbuf_clear(&encoder->normalized);
        THEN(status, nfc_append(&encoder->nfc, *bytes, valid, &encoder->normalized));
        strbuf_add(&encoder->normalized, *bytes + valid, *length - valid);
        *bytes = (const unsigned char *)strbuf_text(&encoder->normalized);
        *length = encoder->normalized.length;
        if (status || (status = strbuf_status(&encoder->normalized)))
            return status;
    }
    bool has_prefix = rules->prefix == PREFIX_ALWAYS && place != PLACE_CONTINUED;
    bool has_marks = rules->has_early_mark && has_mark(*bytes, *length);
    return has_prefix || has_marks
               ? copy_text(bytes, length, has_prefix, has_marks, &encoder->marked, maps ? &maps[SPAN_MARKED] : NULL)
               : STATUS_OK;
}

/* Encodes text between the added tokens of one list. Tokens that are searched for in the original text come first; then
 * the text is normalized and searched for the others. */
static int encode_between(struct tokenizer_encoder *encoder, size_t list, const unsigned char *bytes, size_t length,
                          enum place place, unsigned flags, struct token_buffer *out);

static int encode_added(struct tokenizer_encoder *encoder, size_t list, const unsigned char *bytes, size_t length,
                        enum place place, unsigned flags, struct token_buffer *out) {
    struct added_search *search = &encoder->searches[list];
    struct added_match match = {0};
    size_t taken = 0;
    if (!added_tokens_are_sought(&encoder->tokenizer->added[list], flags))
        return encode_between(encoder, list, bytes, length, place, flags, out);
    int status = added_search_begin(search, encoder->tokenizer, list, bytes, length, flags);
    while (!status && added_search_next(search, taken, &match)) {
        if (match.start > taken)
            status = encode_between(encoder, list, bytes + taken, match.start - taken, place, flags, out);
        THEN(status, token_buffer_add(out, match.id));
        THEN_IF(status, encoder->spans, token_spans_append(encoder->spans, match.name));
        place = PLACE_LATER;
        taken = match.stop;
    }
    THEN_IF(status, taken < length, encode_between(encoder, list, bytes + taken, length - taken, place, flags, out));
    return status;
}

static int encode_between(struct tokenizer_encoder *encoder, size_t list, const unsigned char *bytes, size_t length,
                          enum place place, unsigned flags, struct token_buffer *out) {
    const unsigned char *before = bytes;
    if (list > 0)
        return encode_section(encoder, bytes, length, place, out);
    int status = normalize(encoder, place, &bytes, &length);
    encoder->source.text = encoder->spans ? (size_t)(before - encoder->text) : 0;
    encoder->source.stretch = bytes;
    return status ? status : encode_added(encoder, 1, bytes, length, place, flags, out);
}

static int append_ids(const struct token_buffer *ids, struct token_buffer *out) {
    int status = token_buffer_reserve(out, ids->count);
    if (!status && ids->count > 0)
        memcpy(out->ids + out->count, ids->ids, ids->count * sizeof *ids->ids);
    out->count += status ? 0 : ids->count;
    return status;
}

int tokenizer_encode(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                     struct token_buffer *out) {
    const struct tokenizer_rules *rules = &encoder->tokenizer->rules;
    enum place place = flags & TOKENIZER_CONTINUED     ? PLACE_CONTINUED
                       : flags & TOKENIZER_AFTER_TOKEN ? PLACE_LATER
                                                       : PLACE_BEGINNING;
    size_t before = out->count;
    if (length > INT32_MAX - 1)
        return status_fail(STATUS_UNSUPPORTED, "a text of %zu bytes: at most 2147483646 are encoded at once", length);
    if (encoder->regex)
        regex_scratch_begin(encoder->regex, length, rules->step_count);
    int status = flags & TOKENIZER_ADD_BEGIN ? append_ids(&rules->begin, out) : STATUS_OK;
    THEN_IF(status, length > 0, encode_added(encoder, 0, bytes, length, place, flags, out));
    THEN_IF(status, flags & TOKENIZER_ADD_END, append_ids(&rules->end, out));
    if (status)
        out->count = before;
    return status;
}

/* No answer of the caller about its tokens is known yet. */
static int begin_parts(struct tokenizer_encoder *encoder, const struct tokenizer_parts *parts) {
    for (int list = 0; list < 2; list++) {
        struct added_place *place = &encoder->searches[list].place;
        size_t count = encoder->tokenizer->added[list].count;
        if (!place->controls && !(place->controls = malloc(count + 1)))
            return status_fail(STATUS_MEMORY, "out of memory for %zu added tokens", count);
        memset(place->controls, 0, count);
        *place = (struct added_place){
            .parts = parts, .source = list > 0 ? &encoder->source : NULL, .controls = place->controls};
    }
    return STATUS_OK;
}

int tokenizer_encode_parts(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                           const struct tokenizer_parts *parts, struct token_buffer *out) {
    encoder->text = bytes;
    encoder->spans = parts->spans;
    parts->spans->count = 0;
    int status = begin_parts(encoder, parts);
    THEN(status, tokenizer_encode(encoder, bytes, length, flags | TOKENIZER_ALLOW_SPECIAL, out));
    for (int list = 0; list < 2; list++)
        encoder->searches[list].place.parts = NULL;
    encoder->spans = NULL;
    return status;
}
