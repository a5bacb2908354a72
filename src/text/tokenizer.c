/* The tokenizer object: its tables, decoding. */
#include "text-internal.h"

const char *const json_part_names[JSON_PART_COUNT] = {"normalizer", "pre_tokenizer", "decoder"};
const char *const token_role_names[ROLE_COUNT] = {"eos_token", "bos_token", "unk_token", "pad_token"};

/* Returns the bits of a table that is at most three quarters full. */
static unsigned table_bits(size_t entries) {
    unsigned bits = 4;
    while ((size_t)3 << bits < 4 * entries)
        bits++;
    return bits;
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const void *bytes, size_t length) {
    for (int list = 0; list < 2; list++) {
        const struct added_tokens *added = &tokenizer->added[list];
        for (size_t i = 0; i < added->count; i++) {
            size_t found;
            const unsigned char *token = tokenizer_token_bytes(tokenizer, added->items[i].id, &found);
            if ((added->items[i].length == length &&
                 !memcmp(added->text.data + added->items[i].start, bytes, length)) ||
                (found == length && !memcmp(token, bytes, length)))
                return added->items[i].id;
        }
    }
    return tokenizer_find_plain(tokenizer, bytes, length);
}

static int copy_tokens(struct tokenizer *t, const struct token_source *tokens) {
    size_t total = 0;
    for (int32_t id = 0; id < t->size; id++) {
        if (!tokens[id].bytes)
            return status_fail(STATUS_INVALID, "no token has the id %d: ids must be 0 to %d without holes", id,
                               t->size - 1);
        total += tokens[id].length;
    }
    if (total >= UINT32_MAX)
        return status_fail(STATUS_INVALID, "the tokens have %zu bytes in all, more than 4 GiB", total);
    t->bytes = calloc(total + WORD_KEY_BYTES + 1, 1); /* any key may be read with its full length */
    t->starts = malloc(((size_t)t->size + 1) * sizeof *t->starts);
    t->kinds = calloc((size_t)t->size, sizeof *t->kinds);
    if (!t->bytes || !t->starts || !t->kinds)
        return status_fail(STATUS_MEMORY, "out of memory for %d tokens", t->size);
    uint32_t at = 0;
    for (int32_t id = 0; id < t->size; id++) {
        memcpy(t->bytes + at, tokens[id].bytes, tokens[id].length);
        t->starts[id] = at;
        t->kinds[id] = tokens[id].kind;
        at += (uint32_t)tokens[id].length;
    }
    t->starts[t->size] = at;
    return STATUS_OK;
}

/* Sets the token of each byte. A byte without one becomes unk, or without unk nothing, as in `tokenizers`: SmolLM2 has
 * no token for some control characters. */
static int index_bytes(struct tokenizer *t) {
    for (int byte = 0; byte < 256; byte++) {
        unsigned char one = (unsigned char)byte;
        t->byte_ids[byte] = tokenizer_find_plain(t, &one, 1);
        if (t->byte_ids[byte] >= 0)
            continue;
        t->has_lost_bytes = true;
        if (t->rules.has_byte_fallback)
            return status_fail(STATUS_INVALID, "no token is the single byte 0x%02x: byte-level BPE needs all 256",
                               byte);
    }
    return STATUS_OK;
}

/* Returns the byte of a token with TOKEN_BYTE, which stands for the byte or for its name. */
static unsigned char byte_of_token(const struct tokenizer *t, int32_t id) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(t, id, &length);
    char name[8];
    snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : 0, (const char *)bytes);
    return length == 1 ? *bytes : (unsigned char)token_name_byte(name);
}

/* Sets the tokens of ASCII characters, and those of bytes. */
static int index_characters(struct tokenizer *t) {
    memset(t->byte_ids, 0xff, sizeof t->byte_ids);
    memset(t->fallback_ids, 0xff, sizeof t->fallback_ids);
    for (int byte = 0; byte < 128; byte++)
        t->byte_ids[byte] = tokenizer_find_plain(t, &(char){(char)byte}, 1);
    for (int32_t id = 0; id < t->size && t->rules.has_byte_fallback; id++)
        if (t->kinds[id] & TOKEN_BYTE)
            t->fallback_ids[byte_of_token(t, id)] = id;
    if (t->byte_ids[' '] < 0)
        return status_fail(STATUS_INVALID, "no token is '" SPACE_MARK "', which stands for a space");
    for (int byte = 0; byte < 256 && !t->has_lost_bytes; byte++)
        t->has_lost_bytes = t->fallback_ids[byte] < 0;
    if (t->has_lost_bytes && !t->rules.has_unk)
        return status_fail(STATUS_INVALID, "a character that is no token would be lost: expected an unk_token, or "
                                           "byte_fallback and the tokens <0x00> to <0xFF>");
    return STATUS_OK;
}

static int index_tokens(struct tokenizer *t) {
    t->by_bytes_bits = table_bits((size_t)t->size);
    size_t places = (size_t)1 << t->by_bytes_bits;
    t->by_bytes = malloc(places * sizeof *t->by_bytes);
    if (!t->by_bytes)
        return status_fail(STATUS_MEMORY, "out of memory for %d tokens", t->size);
    memset(t->by_bytes, 0xff, places * sizeof *t->by_bytes);
    for (int32_t id = 0; id < t->size; id++) {
        size_t length;
        const unsigned char *bytes = tokenizer_token_bytes(t, id, &length);
        if (t->kinds[id] & (TOKEN_RAW | TOKEN_BYTE))
            continue;
        int32_t other = tokenizer_find_plain(t, bytes, length);
        if (other >= 0)
            return status_fail(STATUS_INVALID, "the ids %d and %d are the same token", other, id);
        size_t i = text_hash_bytes(bytes, length) >> (64 - t->by_bytes_bits);
        while (t->by_bytes[i] >= 0)
            i = (i + 1) & (places - 1);
        t->by_bytes[i] = id;
    }
    return t->rules.is_by_characters ? index_characters(t) : index_bytes(t);
}

void tokenizer_rules_free(struct tokenizer_rules *rules) {
    split_steps_free(rules->steps, rules->step_count);
    token_buffer_free(&rules->begin);
    token_buffer_free(&rules->end);
}

int tokenizer_new(const struct token_source *tokens, int32_t size, struct tokenizer_rules *rules,
                  struct tokenizer **tokenizer) {
    if (size < 1)
        return status_fail(STATUS_INVALID, "the vocabulary is empty");
    struct tokenizer *t = calloc(1, sizeof *t);
    TRY(status_allocated(t));
    t->size = size;
    t->rules = *rules;
    for (int role = 0; role < ROLE_COUNT; role++)
        t->roles[role] = -1;
    int status = copy_tokens(t, tokens);
    THEN(status, index_tokens(t));
    THEN(status, added_tokens_index(t, tokens));
    if (status) {
        t->rules = (struct tokenizer_rules){0}; /* they still belong to the caller */
        tokenizer_close(t);
        return status;
    }
    *rules = (struct tokenizer_rules){0};
    *tokenizer = t;
    return STATUS_OK;
}

static uint64_t merge_value(size_t rank, int32_t result) {
    return (uint64_t)rank << 32 | (uint32_t)result;
}

static int index_byte_merges(struct tokenizer *t) {
    size_t bytes = 256 * sizeof *t->byte_merges;
    t->byte_merges = malloc(bytes);
    if (!t->byte_merges)
        return status_fail(STATUS_MEMORY, "out of memory for the merges");
    memset(t->byte_merges, 0xff, bytes);
    for (size_t rank = 0; rank < t->merge_count; rank++) {
        struct merge merge = t->merges[rank];
        size_t left_length, right_length;
        const unsigned char *left = tokenizer_token_bytes(t, merge.left, &left_length);
        const unsigned char *right = tokenizer_token_bytes(t, merge.right, &right_length);
        if (left_length == 1 && right_length == 1)
            t->byte_merges[*left][*right] = merge_value(rank, merge.result);
    }
    return STATUS_OK;
}

int tokenizer_set_merges(struct tokenizer *t, struct merge *merges, size_t count) {
    t->merges = merges;
    t->merge_count = count;
    t->entry_bits = table_bits(count);
    size_t places = (size_t)1 << t->entry_bits;
    t->entries = malloc(places * sizeof *t->entries);
    t->sieve = calloc(places, ((size_t)1 << SIEVE_BITS) / 8);
    if (!t->entries || !t->sieve)
        return status_fail(STATUS_MEMORY, "out of memory for %zu merges", count);
    for (size_t i = 0; i < places; i++)
        t->entries[i] = (struct merge_entry){MERGE_NONE, MERGE_NONE};
    for (size_t rank = 0; rank < count; rank++) {
        uint64_t pair = (uint64_t)(uint32_t)merges[rank].left << 32 | (uint32_t)merges[rank].right;
        size_t sieve = text_hash_pair(pair, t->entry_bits + SIEVE_BITS), i = sieve >> SIEVE_BITS;
        for (; t->entries[i].pair != MERGE_NONE; i = (i + 1) & (places - 1))
            if (t->entries[i].pair == pair)
                return status_fail(STATUS_INVALID, "merge %zu repeats merge %zu", rank + 1,
                                   (size_t)(t->entries[i].value >> 32) + 1);
        t->entries[i] = (struct merge_entry){pair, merge_value(rank, merges[rank].result)};
        t->sieve[sieve / 8] |= (uint8_t)(1 << sieve % 8);
    }
    int status = t->rules.is_by_characters ? STATUS_OK : index_byte_merges(t);
    return status ? status : words_index(t);
}

void tokenizer_close(struct tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    free(tokenizer->bytes);
    free(tokenizer->starts);
    free(tokenizer->kinds);
    free(tokenizer->merges);
    free(tokenizer->entries);
    free(tokenizer->sieve);
    free(tokenizer->byte_merges);
    free(tokenizer->by_bytes);
    free(tokenizer->words);
    for (int list = 0; list < 2; list++)
        added_tokens_free(&tokenizer->added[list]);
    for (int part = 0; part < JSON_PART_COUNT; part++)
        free(tokenizer->json_parts[part]);
    free(tokenizer->joins);
    tokenizer_rules_free(&tokenizer->rules);
    free(tokenizer);
}

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer) {
    return tokenizer->size;
}

int32_t tokenizer_eos_id(const struct tokenizer *tokenizer) {
    return tokenizer->roles[ROLE_EOS];
}

int32_t tokenizer_bos_id(const struct tokenizer *tokenizer) {
    return tokenizer->roles[ROLE_BOS];
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->size && tokenizer->kinds[id] & TOKEN_SPECIAL;
}

bool tokenizer_may_be_slow(const struct tokenizer *tokenizer) {
    for (size_t i = 0; i < tokenizer->rules.step_count; i++)
        if (tokenizer->rules.steps[i].kind == SPLIT_REGEX)
            return true;
    return false;
}

/* Appends an added token without its marks of spaces; its spaces stay. */
static void add_without_marks(const struct tokenizer *tokenizer, int32_t id, struct strbuf *out) {
    const struct added_tokens *added = &tokenizer->added[tokenizer->kinds[id] & TOKEN_NORMALIZED ? 1 : 0];
    const struct added_token *token = added_tokens_item(added, id);
    const char *at = added->text.data + token->start, *end = at + token->length, *mark;
    for (; (mark = memmem(at, (size_t)(end - at), SPACE_MARK, SPACE_MARK_BYTES)); at = mark + SPACE_MARK_BYTES)
        strbuf_add(out, at, (size_t)(mark - at));
    strbuf_add(out, at, (size_t)(end - at));
}

/* Appends the first token of a text without what the decoder removes: a space, or all marks of spaces. */
static void add_first(const struct tokenizer *tokenizer, int32_t id, struct strbuf *out) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    enum stripped_space stripped = tokenizer->rules.stripped;
    if (stripped == STRIP_FIRST_TOKEN && tokenizer->kinds[id] & TOKEN_ADDED) {
        add_without_marks(tokenizer, id, out);
        return;
    }
    size_t most = stripped == STRIP_NOTHING ? 0 : stripped == STRIP_SPACE ? 1 : length;
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != ' ' || i >= most)
            strbuf_add_char(out, (char)bytes[i]);
}

int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, struct strbuf *out) {
    size_t total = 0, length;
    for (size_t i = 0; i < count; i++) {
        if (!tokenizer_token_bytes(tokenizer, ids[i], &length))
            return status_fail(STATUS_INVALID, "token id %d is not in the vocabulary (0 to %d)", ids[i],
                               tokenizer->size - 1);
        total += length;
    }
    TRY(strbuf_reserve(out, total));
    for (size_t i = 0; i < count; i++) {
        const unsigned char *bytes = tokenizer_token_bytes(tokenizer, ids[i], &length);
        if (i == 0)
            add_first(tokenizer, ids[i], out);
        else
            strbuf_add(out, bytes, length);
    }
    return strbuf_status(out);
}
