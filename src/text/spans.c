/* The bytes of a text that its tokens stand for.
 *
 * The encoder changes a text before it is split into words: it normalizes, puts a space before, and replaces marks of
 * spaces. Each change records where the bytes of its result come from, and a token's span is taken back through these
 * maps. Within a section, tokens are found in their order by their own bytes. That holds for characters without a token
 * as well, whose place follows from the next token. */
#include "text-internal.h"

#include "base/utf8.h"

void token_spans_free(struct token_spans *spans) {
    free(spans->items);
    *spans = (struct token_spans){0};
}

int token_spans_append(struct token_spans *spans, struct token_span span) {
    TRY(array_reserve(&spans->items, &spans->capacity, spans->count + 1, sizeof *spans->items));
    spans->items[spans->count++] = span;
    return STATUS_OK;
}

/* ---- changes ---- */

void span_source_free(struct span_source *source) {
    for (int i = 0; i < SPAN_MAPS; i++)
        free(source->maps[i].items);
    *source = (struct span_source){0};
}

static int reserve(struct byte_map *map, size_t more) {
    return array_reserve(&map->items, &map->capacity, map->count + more, sizeof *map->items);
}

int byte_map_copy(struct byte_map *map, const unsigned char *bytes, size_t length, bool has_space, bool has_marks) {
    map->count = 0;
    if (reserve(map, length + 2))
        return STATUS_MEMORY;
    if (has_space)
        map->items[map->count++] = 0;
    for (size_t at = 0; at < length; map->count++) {
        bool is_mark =
            has_marks && length - at >= SPACE_MARK_BYTES && !memcmp(bytes + at, SPACE_MARK, SPACE_MARK_BYTES);
        map->items[map->count] = (uint32_t)at;
        at += is_mark ? SPACE_MARK_BYTES : 1;
    }
    map->items[map->count++] = (uint32_t)length;
    return STATUS_OK;
}

int byte_map_normalize(struct byte_map *map, struct nfc_scratch *nfc, const unsigned char *bytes, size_t length,
                       size_t valid, struct strbuf *normal) {
    int status = STATUS_OK;
    map->count = 0;
    for (size_t at = 0, next = 0; at < length && !status; at = next) {
        size_t step = at < valid ? utf8_length(bytes + at, bytes + valid) : 1;
        for (next = at + step; next < valid && !nfc_is_border(bytes, bytes + next, bytes + valid); next += step)
            step = utf8_length(bytes + next, bytes + valid);
        strbuf_clear(normal);
        status = at < valid ? nfc_append(nfc, bytes + at, next - at, normal) : STATUS_OK;
        size_t count = at < valid ? normal->length : 1;
        bool is_same = count == next - at && !memcmp(bytes + at, strbuf_text(normal), normal->length);
        THEN(status, reserve(map, count + 1));
        for (size_t i = 0; i < count && !status; i++)
            map->items[map->count++] = (uint32_t)(is_same ? at + i : at);
    }
    if (!status)
        map->items[map->count++] = (uint32_t)length;
    return status;
}

static size_t go_back(const struct byte_map *map, size_t at) {
    return map->count ? map->items[at < map->count ? at : map->count - 1] : at;
}

struct token_span span_source_find(const struct span_source *source, int last, size_t begin, size_t end) {
    for (int i = last; i >= 0; i--) {
        size_t moved = i == SPAN_SECTION ? source->section : 0;
        begin = go_back(&source->maps[i], begin) + moved;
        end = go_back(&source->maps[i], end) + moved;
    }
    return (struct token_span){source->text + begin, source->text + end};
}

/* ---- tokens of a section ---- */

/* Returns the place of a token from `at` on, and its length there. */
static size_t find_token(const struct tokenizer *tokenizer, int32_t id, const unsigned char *bytes, size_t length,
                         size_t at, size_t *found) {
    const struct tokenizer_rules *rules = &tokenizer->rules;
    const unsigned char *token = tokenizer_token_bytes(tokenizer, id, found);
    bool is_unknown = rules->has_unk && id == rules->unk;
    if (at < length && tokenizer->fallback_ids[bytes[at]] == id) {
        *found = 1;
        return at;
    }
    const unsigned char *place =
        memmem(bytes + at, is_unknown && length - at > *found ? *found : length - at, token, *found);
    if (place)
        return (size_t)(place - bytes);
    *found = at < length ? utf8_length(bytes + at, bytes + length) : 0; /* a character without a token */
    return at;
}

int token_spans_add(struct token_spans *spans, const struct span_source *source, const unsigned char *bytes,
                    size_t length, const struct token_buffer *ids, size_t first) {
    int status = STATUS_OK;
    for (size_t i = first, at = 0, bytes_of = 0; i < ids->count && !status; i++, at += bytes_of) {
        at = find_token(source->tokenizer, ids->ids[i], bytes, length, at, &bytes_of);
        status = token_spans_append(spans, span_source_find(source, SPAN_SECTION, at, at + bytes_of));
    }
    return status;
}
