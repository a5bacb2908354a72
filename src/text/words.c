/* The words that are tokens. Encoding looks a word up before it merges. Merging takes many steps, with lookups in
 * tables that exceed the processor's caches for a large vocabulary. But a word may become the token of its bytes only
 * if merging would end with that token. This file finds these words once. */
#include "text-internal.h"

#include "base/utf8.h"

/* The last merge that makes a token of its own bytes: the merge of this rank, or one of these. */
enum { MADE_AS_BEGINNING = -1, NOT_MADE = INT32_MAX };

/* True when a word begins as this token by itself. */
static bool is_beginning(const struct tokenizer *tokenizer, int32_t id) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (tokenizer->kinds[id] & (TOKEN_RAW | TOKEN_BYTE) || length == 0)
        return false;
    return length == 1 ? tokenizer->byte_ids[*bytes] == id
                       : tokenizer->rules.is_by_characters && utf8_length(bytes, bytes + length) == length;
}

/* True when an earlier merge joins something across the border of two tokens while both are made of their bytes. Every
 * token is made of tokens with lower ranks. The merges of both sides therefore come in the order of ranks, at equal
 * ranks the left first. Only the last token of the left side and the first of the right side can join. They are taken
 * apart here, the later one first. */
static bool is_crossed(const struct tokenizer *tokenizer, const int32_t *made, int32_t left, int32_t right) {
    while (made[left] >= 0 || made[right] >= 0) {
        bool is_left = made[left] > made[right];
        int32_t until = is_left ? made[left] : made[right];
        if (is_left)
            left = tokenizer->merges[until].right;
        else
            right = tokenizer->merges[until].left;
        uint64_t value = tokenizer_merge_of(tokenizer, (uint32_t)left, (uint32_t)right);
        if (value >> 32 < (uint64_t)until + !is_left)
            return true;
    }
    return false;
}

static int find_words(struct tokenizer *t) {
    int32_t *made = malloc((size_t)t->size * sizeof *made);
    if (!made)
        return status_fail(STATUS_MEMORY, "out of memory for %d tokens", t->size);
    for (int32_t id = 0; id < t->size; id++)
        made[id] = is_beginning(t, id) ? MADE_AS_BEGINNING : NOT_MADE;
    for (size_t rank = 0; rank < t->merge_count; rank++) {
        struct merge merge = t->merges[rank];
        if (made[merge.left] != NOT_MADE && made[merge.right] != NOT_MADE && made[merge.result] == NOT_MADE &&
            !is_crossed(t, made, merge.left, merge.right))
            made[merge.result] = (int32_t)rank;
    }
    for (int32_t id = 0; id < t->size; id++)
        if (made[id] != NOT_MADE)
            t->kinds[id] |= TOKEN_WORD;
    free(made);
    return STATUS_OK;
}

/* Makes the table of short words; longer words are rare, and found like any token. */
static int index_words(struct tokenizer *t) {
    size_t count = 0;
    for (int32_t id = 0; id < t->size; id++)
        count += t->kinds[id] & TOKEN_WORD && t->starts[id + 1] - t->starts[id] <= WORD_KEY_BYTES;
    for (t->word_bits = 1; (size_t)5 << t->word_bits < 2 * count;) /* at most five sixths full */
        t->word_bits++;
    size_t mask = ((size_t)1 << t->word_bits) - 1;
    t->words = aligned_alloc(sizeof *t->words, (mask + 1) * sizeof *t->words);
    if (!t->words)
        return status_fail(STATUS_MEMORY, "out of memory for %zu words", count);
    memset(t->words, 0, (mask + 1) * sizeof *t->words);
    for (int32_t id = 0; id < t->size; id++) {
        size_t length;
        const unsigned char *bytes = tokenizer_token_bytes(t, id, &length);
        if (!(t->kinds[id] & TOKEN_WORD) || length > WORD_KEY_BYTES)
            continue;
        struct word_key key = word_key_of(bytes, length, WORD_KEY_BYTES + 1);
        size_t i = word_key_hash(key) >> (64 - t->word_bits);
        while (t->words[i].count == WORD_BUCKET)
            i = (i + 1) & mask;
        struct word_bucket *bucket = &t->words[i];
        bucket->keys[bucket->count] = key;
        bucket->ids[bucket->count++] = id;
    }
    return STATUS_OK;
}

int words_index(struct tokenizer *t) {
    int status = STATUS_OK;
    if (t->rules.ignore_merges)
        for (int32_t id = 0; id < t->size; id++) /* special tokens are found only when requested */
            t->kinds[id] |= t->kinds[id] & (TOKEN_RAW | TOKEN_BYTE | TOKEN_SPECIAL) ? 0 : TOKEN_WORD;
    else
        status = find_words(t);
    return status ? status : index_words(t);
}
