/* Added tokens: found in a text before it is split into words, as `tokenizers` finds them. The search goes from left to
 * right, and the longest token at a place counts. It continues after that token, even if the token is skipped because
 * it is special and not requested, or because it must be a whole word. */
#include "text-internal.h"

#include "scan-internal.h"

void added_tokens_free(struct added_tokens *added) {
    free(added->items);
    free(added->nodes);
    strbuf_free(&added->text);
    *added = (struct added_tokens){0};
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
    for (int list = 0; list < 2 && !status; list++)
        status = added_tokens_build(&tokenizer->added[list]);
    nfc_scratch_free(&nfc);
    return status;
}

const struct added_token *added_tokens_item(const struct added_tokens *added, int32_t id) {
    size_t from = 0;
    for (size_t end = added->count; end - from > 1;) {
        size_t middle = from + (end - from) / 2;
        if (added->items[middle].id <= id)
            from = middle;
        else
            end = middle;
    }
    return &added->items[from];
}

bool added_tokens_are_sought(const struct added_tokens *added, unsigned flags) {
    return added->has_plain || (added->count > 0 && flags & TOKENIZER_ALLOW_SPECIAL);
}

void added_search_free(struct added_search *search) {
    added_hits_free(&search->hits);
    free(search->place.controls);
}

int added_search_begin(struct added_search *search, const struct tokenizer *tokenizer, size_t list,
                       const unsigned char *bytes, size_t length, unsigned flags) {
    search->tokenizer = tokenizer;
    search->added = &tokenizer->added[list];
    search->bytes = bytes;
    search->length = length;
    search->flags = flags;
    search->from = search->blank_from = search->blank_to = 0;
    return added_tokens_hits(search->added, bytes, length, &search->hits);
}

static bool is_word_character(const unsigned char *at, const unsigned char *end) {
    size_t bytes;
    return scan_traits(at, end, &bytes) & UNICODE_WORD;
}

static bool is_word(const struct added_search *search, size_t start, size_t stop) {
    const unsigned char *bytes = search->bytes, *begin = bytes + start, *end = bytes + stop;
    return (start == 0 || !is_word_character(scan_character_before(bytes, begin), begin)) &&
           (stop == search->length || !is_word_character(end, bytes + search->length));
}

/* True when there is white space at `at`. In a normalized text a space may stand for a mark, which is not white
 * space. */
static bool is_blank(const struct added_search *search, const unsigned char *at, size_t *bytes) {
    bool is_marked = search->tokenizer->rules.has_early_mark && search->added == &search->tokenizer->added[1];
    return scan_character(at, search->bytes + search->length, bytes) == UNICODE_SPACE && !(is_marked && *at == ' ');
}

/* Returns the start of the blanks before `start`, not before `taken`. */
static size_t blanks_before(const struct added_search *search, size_t start, size_t taken) {
    size_t step;
    while (start > taken) {
        const unsigned char *before = scan_character_before(search->bytes, search->bytes + start);
        if (!is_blank(search, before, &step))
            break;
        start = (size_t)(before - search->bytes);
    }
    return start;
}

/* Returns the end of the blanks from `stop` on. Tokens of blanks may lie within those of an earlier token, which are
 * not examined again. */
static size_t blanks_after(struct added_search *search, size_t stop) {
    size_t step, end = stop;
    if (search->blank_from <= stop && stop < search->blank_to)
        return search->blank_to;
    while (end < search->length && is_blank(search, search->bytes + end, &step))
        end += step;
    search->blank_from = stop;
    search->blank_to = end;
    return end;
}

/* True when the caller claims the token; the caller is asked once for each token. */
static bool is_control(struct added_search *search, uint32_t token) {
    uint8_t *known = &search->place.controls[token];
    if (*known == 0) {
        const struct tokenizer_parts *parts = search->place.parts;
        size_t length;
        const unsigned char *name = tokenizer_token_bytes(search->tokenizer, search->added->items[token].id, &length);
        *known = parts->is_control(parts->context, name, length) ? 2 : 1;
    }
    return *known == 2;
}

/* Returns the span of a token's name in the text that is encoded in parts. The space that was put before a normalized
 * name is no part of it. */
static struct token_span name_span(const struct added_search *search, size_t at, size_t length) {
    const struct span_source *source = search->place.source;
    size_t skipped = search->tokenizer->rules.prefix == PREFIX_ALWAYS && length > 1;
    return source ? span_source_find(source, SPAN_MARKED, at + skipped, at + length)
                  : (struct token_span){at, at + length};
}

/* True when no byte of the token's name lies in a part that must not hold it. */
static bool is_allowed(struct added_search *search, uint32_t token, struct token_span name) {
    struct added_place *place = &search->place;
    const struct tokenizer_parts *parts = place->parts;
    while (place->plain < parts->count &&
           (parts->items[place->plain].has_special || parts->items[place->plain].end <= name.begin))
        place->plain++;
    size_t plain = place->plain > 0 ? parts->items[place->plain - 1].end : 0;
    if (place->plain == parts->count || plain >= name.end)
        return true;
    return !(search->tokenizer->kinds[search->added->items[token].id] & TOKEN_SPECIAL) && !is_control(search, token);
}

bool added_search_next(struct added_search *search, size_t taken, struct added_match *match) {
    struct added_hits *hits = &search->hits;
    while (hits->count > 0) {
        struct added_hit hit = hits->items[--hits->count];
        if (hit.at < search->from)
            continue;
        const struct added_token *token = &search->added->items[hit.token];
        unsigned kind = search->tokenizer->kinds[token->id];
        size_t stop = hit.at + token->length;
        search->from = stop;
        if (kind & TOKEN_SPECIAL && !(search->flags & TOKENIZER_ALLOW_SPECIAL))
            continue;
        struct token_span name =
            search->place.parts ? name_span(search, hit.at, token->length) : (struct token_span){0};
        if (search->place.parts && !is_allowed(search, hit.token, name)) {
            search->from = hit.at + 1; /* a token that begins inside it may be allowed */
            continue;
        }
        if (kind & TOKEN_SINGLE_WORD && !is_word(search, hit.at, stop))
            continue;
        *match = (struct added_match){.start = kind & TOKEN_LSTRIP ? blanks_before(search, hit.at, taken) : hit.at,
                                      .stop = kind & TOKEN_RSTRIP ? blanks_after(search, stop) : stop,
                                      .name = name,
                                      .id = token->id};
        return true;
    }
    return false;
}

int added_tokens_mark_cuts(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t length, size_t from,
                           size_t count, bool *forbidden) {
    struct added_hits hits = {0};
    int status = STATUS_OK;
    memset(forbidden, 0, count * sizeof *forbidden);
    for (int list = 0; list < 2 && !status; list++) {
        const struct added_tokens *added = &tokenizer->added[list];
        size_t begin = from > added->longest ? from - added->longest : 0, end = from + count, marked = from;
        size_t read = length - end < added->longest ? length : end + added->longest;
        status = added_tokens_hits(added, bytes + begin, read - begin, &hits);
        while (!status && hits.count > 0) {
            struct added_hit hit = hits.items[--hits.count];
            const struct added_token *token = &added->items[hit.token];
            size_t at = begin + hit.at, last = at + token->length < end ? at + token->length : end - 1;
            bool looks_back = tokenizer->kinds[token->id] & (TOKEN_LSTRIP | TOKEN_SINGLE_WORD);
            if (at >= end)
                break;
            if (at >= from && looks_back)
                forbidden[at - from] = true;
            for (marked = marked > at + 1 ? marked : at + 1; marked <= last; marked++)
                forbidden[marked - from] = true;
        }
    }
    added_hits_free(&hits);
    return status;
}

/* The search for the special token that comes first in the text. */
struct special_search {
    const struct tokenizer *tokenizer;
    const struct added_tokens *added;
    size_t at, length;
};

static int keep_special(void *context, size_t at, uint32_t token) {
    struct special_search *search = context;
    for (uint32_t next = token + 1; next > 0; next = search->added->items[next - 1].prefix) {
        const struct added_token *item = &search->added->items[next - 1];
        if (search->tokenizer->kinds[item->id] & TOKEN_SPECIAL) {
            search->at = at;
            search->length = item->length;
            break;
        }
    }
    return STATUS_OK;
}

size_t added_tokens_first_special(const struct tokenizer *tokenizer, const char *text, size_t length, size_t *bytes) {
    size_t first = SIZE_MAX;
    for (int list = 0; list < 2; list++) {
        struct special_search search = {tokenizer, &tokenizer->added[list], SIZE_MAX, 0};
        uint64_t steps = 0;
        added_tokens_each(search.added, (const unsigned char *)text, length, keep_special, &search, &steps);
        if (search.at < first) {
            first = search.at;
            *bytes = search.length;
        }
    }
    return first;
}
