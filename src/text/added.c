/* Added tokens: found in a text before it is split into words, as `tokenizers` finds them. From left to right the
 * longest token at a place counts, and the search goes on behind it, also behind one that is passed over because it is
 * special and none is asked for, or because it wants to be a word. */
#include "text-internal.h"

#include "scan-internal.h"
#include "unicode-internal.h"

#include <stdlib.h>
#include <string.h>

void added_tokens_free(struct added_tokens *added) {
    free(added->items);
    strbuf_free(&added->text);
    *added = (struct added_tokens){0};
}

/* By first byte, then the longest first, then by id. */
static int compare_added(const void *a, const void *b, void *context) {
    const struct added_token *x = a, *y = b;
    const unsigned char *text = context;
    if (text[x->start] != text[y->start])
        return text[x->start] < text[y->start] ? -1 : 1;
    if (x->length != y->length)
        return x->length > y->length ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

int added_token_normalize(const struct tokenizer_rules *rules, struct nfc_scratch *nfc, const char *content,
                          size_t length, struct strbuf *out) {
    struct strbuf normal = STRBUF_INIT;
    int status = STATUS_OK;
    if (rules->has_nfc)
        status = nfc_append(nfc, (const unsigned char *)content, length, &normal);
    else
        strbuf_add(&normal, content, length);
    if (rules->prefix == PREFIX_ALWAYS)
        strbuf_add_char(out, ' ');
    if (rules->has_early_mark)
        space_marks_add((const unsigned char *)strbuf_text(&normal), normal.length, out);
    else
        strbuf_add(out, strbuf_text(&normal), normal.length);
    status = status ? status : strbuf_status(&normal);
    strbuf_free(&normal);
    return status;
}

/* Adds the token to its list. */
static int add_token(struct tokenizer *tokenizer, struct nfc_scratch *nfc, const struct token_source *source,
                     int32_t id) {
    bool is_normalized = source->kind & TOKEN_NORMALIZED;
    struct added_tokens *added = &tokenizer->added[is_normalized];
    struct added_token *item = &added->items[added->count];
    const char *content = source->content ? source->content : source->bytes;
    size_t length = source->content ? source->content_length : source->length;
    int status = STATUS_OK;
    if (length == 0)
        return status_fail(STATUS_INVALID, "the added token with the id %d is empty", id);
    *item = (struct added_token){.start = added->text.length, .id = id};
    if (is_normalized)
        status = added_token_normalize(&tokenizer->rules, nfc, content, length, &added->text);
    else
        strbuf_add(&added->text, content, length);
    if (status || (status = strbuf_status(&added->text)))
        return status;
    item->length = added->text.length - item->start;
    if (item->length > added->longest)
        added->longest = item->length;
    if (!(source->kind & TOKEN_SPECIAL))
        added->has_plain = true;
    added->starts[(unsigned char)added->text.data[item->start] + 1]++;
    added->count++;
    return STATUS_OK;
}

int added_tokens_index(struct tokenizer *tokenizer, const struct token_source *tokens) {
    struct nfc_scratch nfc = {0};
    size_t counts[2] = {0};
    int status = STATUS_OK;
    for (int32_t id = 0; id < tokenizer->size; id++)
        if (tokenizer->kinds[id] & TOKEN_ADDED)
            counts[tokenizer->kinds[id] & TOKEN_NORMALIZED ? 1 : 0]++;
    for (int list = 0; list < 2 && !status; list++) {
        tokenizer->added[list].items = malloc((counts[list] + 1) * sizeof(struct added_token));
        if (!tokenizer->added[list].items)
            status = status_fail(STATUS_MEMORY, "out of memory for %zu added tokens", counts[list]);
    }
    for (int32_t id = 0; id < tokenizer->size && !status; id++)
        if (tokenizer->kinds[id] & TOKEN_ADDED)
            status = add_token(tokenizer, &nfc, &tokens[id], id);
    for (int list = 0; list < 2 && !status; list++) {
        struct added_tokens *added = &tokenizer->added[list];
        qsort_r(added->items, added->count, sizeof *added->items, compare_added, added->text.data);
        for (int byte = 0; byte < 256; byte++)
            added->starts[byte + 1] += added->starts[byte];
    }
    nfc_scratch_free(&nfc);
    return status;
}

bool added_tokens_are_sought(const struct added_tokens *added, unsigned flags) {
    return added->has_plain || (added->count > 0 && flags & TOKENIZER_ALLOW_SPECIAL);
}

/* The longest token at a place of `bytes`; NULL: none. */
static const struct added_token *token_at(const struct added_tokens *added, const unsigned char *bytes, size_t length,
                                          size_t at) {
    for (uint32_t i = added->starts[bytes[at]]; i < added->starts[bytes[at] + 1]; i++) {
        const struct added_token *token = &added->items[i];
        if (token->length <= length - at && !memcmp(added->text.data + token->start, bytes + at, token->length))
            return token;
    }
    return NULL;
}

static bool is_word_character(const unsigned char *at, const unsigned char *end) {
    size_t bytes;
    return scan_traits(at, end, &bytes) & UNICODE_WORD;
}

static bool is_word(const unsigned char *bytes, size_t start, size_t stop, size_t length) {
    const unsigned char *begin = bytes + start, *end = bytes + stop;
    return (start == 0 || !is_word_character(scan_character_before(bytes, begin), begin)) &&
           (stop == length || !is_word_character(end, bytes + length));
}

/* Whether no byte of the token's name lies in a part that may not hold it. */
static bool is_allowed(const struct tokenizer *tokenizer, const struct added_token *token, size_t at,
                       const struct added_place *place) {
    const struct tokenizer_parts *parts = place->parts;
    size_t begin = place->is_normalized ? place->first : place->first + at, from = 0;
    size_t end = place->is_normalized ? place->last : begin + token->length;
    bool is_inside = true;
    for (size_t i = 0; i < parts->count && from < end && is_inside; from = parts->items[i++].end)
        is_inside = parts->items[i].has_special || parts->items[i].end <= begin;
    if (is_inside || tokenizer->kinds[token->id] & TOKEN_SPECIAL)
        return is_inside;
    size_t length;
    const unsigned char *name = tokenizer_token_bytes(tokenizer, token->id, &length);
    return !parts->is_control(parts->context, name, length);
}

bool added_tokens_find(const struct tokenizer *tokenizer, const struct added_tokens *added, const unsigned char *bytes,
                       size_t length, size_t from, size_t taken, unsigned flags, const struct added_place *place,
                       struct added_match *match) {
    const struct added_token *token;
    for (size_t at = from; at < length; at += token ? token->length : 1) {
        if (!(token = token_at(added, bytes, length, at)))
            continue;
        unsigned kind = tokenizer->kinds[token->id];
        size_t start = at, stop = at + token->length, step;
        if (kind & TOKEN_SPECIAL && !(flags & TOKENIZER_ALLOW_SPECIAL))
            continue;
        if (place->parts && !is_allowed(tokenizer, token, at, place)) {
            token = NULL; /* what begins inside it may be allowed */
            continue;
        }
        if (kind & TOKEN_SINGLE_WORD && !is_word(bytes, start, stop, length))
            continue;
        while (kind & TOKEN_LSTRIP && start > taken) {
            const unsigned char *before = scan_character_before(bytes, bytes + start);
            if (scan_character(before, bytes + start, &step) != UNICODE_SPACE)
                break;
            start = (size_t)(before - bytes);
        }
        while (kind & TOKEN_RSTRIP && stop < length &&
               scan_character(bytes + stop, bytes + length, &step) == UNICODE_SPACE)
            stop += step;
        *match = (struct added_match){.start = start, .stop = stop, .next = at + token->length, .id = token->id};
        return true;
    }
    return false;
}

bool added_tokens_forbid_cut(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t at, size_t length) {
    if (!tokenizer->added[0].has_plain && !tokenizer->added[1].has_plain)
        return false;
    for (int list = 0; list < 2; list++) {
        const struct added_tokens *added = &tokenizer->added[list];
        for (size_t start = at > added->longest ? at - added->longest : 0; start <= at; start++)
            for (uint32_t i = added->starts[bytes[start]]; i < added->starts[bytes[start] + 1]; i++) {
                const struct added_token *token = &added->items[i];
                bool looks_back = tokenizer->kinds[token->id] & (TOKEN_LSTRIP | TOKEN_SINGLE_WORD);
                if ((start < at ? start + token->length >= at : looks_back) && token->length <= length - start &&
                    !memcmp(added->text.data + token->start, bytes + start, token->length))
                    return true;
            }
    }
    return false;
}
