/* The merges inside one word: repeatedly the pair with the lowest rank, among equals the leftmost.
 *
 * A short word is an array that shrinks. A long one is a linked list with a heap of (rank, position), so that a
 * megabyte without a space takes n log n steps. Entries whose pair has changed meanwhile are skipped when they come
 * up. */
#include "text-internal.h"

#include "base/utf8.h"

enum { SHORT_WORD = 64 };

void bpe_scratch_free(struct bpe_scratch *scratch) {
    free(scratch->block);
    *scratch = (struct bpe_scratch){0};
}

/* The tokens that a word begins as, at most one per byte. A character without a token is unk. As in `tokenizers`, unk
 * is written when the next character with a token comes, or at the end of the word, after the tokens of bytes. */
struct beginning {
    int32_t *ids;
    size_t count;
    bool has_unknown;
};

static inline void end_unknown(const struct tokenizer *tokenizer, struct beginning *beginning) {
    if (beginning->has_unknown)
        beginning->ids[beginning->count++] = tokenizer->rules.unk;
    beginning->has_unknown = false;
}

static void add_unknown(const struct tokenizer *tokenizer, struct beginning *beginning) {
    if (!tokenizer->rules.has_unk)
        return;
    if (!tokenizer->rules.fuses_unk)
        end_unknown(tokenizer, beginning);
    beginning->has_unknown = true;
}

static inline void add_known(const struct tokenizer *tokenizer, struct beginning *beginning, int32_t id) {
    end_unknown(tokenizer, beginning);
    beginning->ids[beginning->count++] = id;
}

static size_t begin_bytes(const struct tokenizer *tokenizer, const unsigned char *word, size_t length, int32_t *ids) {
    struct beginning beginning = {.ids = ids};
    if (!tokenizer->has_lost_bytes) {
        for (size_t i = 0; i < length; i++)
            ids[i] = tokenizer->byte_ids[word[i]];
        return length;
    }
    for (size_t i = 0; i < length; i++) {
        if (tokenizer->byte_ids[word[i]] >= 0)
            add_known(tokenizer, &beginning, tokenizer->byte_ids[word[i]]);
        else
            add_unknown(tokenizer, &beginning);
    }
    end_unknown(tokenizer, &beginning);
    return beginning.count;
}

/* Adds the tokens of a character's bytes. Returns false, and adds nothing, when one of the bytes has no token. */
static bool add_fallback(const struct tokenizer *tokenizer, const unsigned char *at, size_t bytes,
                         struct beginning *beginning) {
    for (size_t i = 0; i < bytes; i++)
        if (tokenizer->fallback_ids[at[i]] < 0)
            return false;
    for (size_t i = 0; i < bytes; i++)
        beginning->ids[beginning->count++] = tokenizer->fallback_ids[at[i]];
    return true;
}

/* An invalid byte counts as a character without a token. */
static size_t begin_characters(const struct tokenizer *tokenizer, const unsigned char *word, size_t length,
                               int32_t *ids) {
    const unsigned char *at = word, *end = word + length;
    struct beginning beginning = {.ids = ids};
    while (at < end) {
        size_t bytes = utf8_length(at, end), step = bytes ? bytes : 1;
        int32_t id = bytes > 1 ? tokenizer_find_plain(tokenizer, at, bytes) : tokenizer->byte_ids[*at];
        if (id >= 0)
            add_known(tokenizer, &beginning, id);
        else if (!add_fallback(tokenizer, at, step, &beginning))
            add_unknown(tokenizer, &beginning);
        at += step;
    }
    end_unknown(tokenizer, &beginning);
    return beginning.count;
}

/* Merges `length` tokens, where values[i] is the merge of ids i and i + 1. Returns the remaining number. */
static size_t merge_short(const struct tokenizer *tokenizer, int32_t *ids, uint64_t *values, size_t length) {
    while (length > 1) {
        size_t at = 0;
        uint64_t best = values[0];
        for (size_t i = 1; i + 1 < length; i++) {
            if (values[i] < best) {
                best = values[i];
                at = i;
            }
        }
        if (best == MERGE_NONE)
            break;
        ids[at] = (int32_t)(uint32_t)best;
        length--;
        for (size_t i = at + 1; i < length; i++)
            ids[i] = ids[i + 1];
        for (size_t i = at + 1; i + 1 < length; i++)
            values[i] = values[i + 1];
        if (at > 0)
            values[at - 1] = tokenizer_merge_of(tokenizer, (uint32_t)ids[at - 1], (uint32_t)ids[at]);
        if (at + 1 < length)
            values[at] = tokenizer_merge_of(tokenizer, (uint32_t)ids[at], (uint32_t)ids[at + 1]);
    }
    return length;
}

/* A long word during merging. A position is that of the token's first byte or character; NO_POSITION ends the list. */
struct long_word {
    uint64_t *values;          /* of the pair that begins here; MERGE_NONE: it does not merge, or no pair begins here */
    uint64_t *heap;            /* rank << 32 | position, smallest first */
    uint32_t *next, *previous; /* positions */
    int32_t *ids;              /* the caller's array, by position */
    size_t heap_count;
};
#define NO_POSITION UINT32_MAX

static void heap_sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t moved = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= moved)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void heap_push(struct long_word *word, uint64_t entry) {
    size_t at = word->heap_count++;
    while (at > 0 && word->heap[(at - 1) / 2] > entry) {
        word->heap[at] = word->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    word->heap[at] = entry;
}

static uint64_t heap_pop(struct long_word *word) {
    uint64_t top = word->heap[0];
    word->heap[0] = word->heap[--word->heap_count];
    if (word->heap_count > 0)
        heap_sift_down(word->heap, word->heap_count, 0);
    return top;
}

static uint64_t heap_entry(uint64_t value, uint32_t position) {
    return (value & 0xffffffff00000000u) | position;
}

/* Looks up the pair that begins at `left` again. */
static void update_pair(const struct tokenizer *tokenizer, struct long_word *word, uint32_t left) {
    uint32_t right = word->next[left];
    uint64_t value = MERGE_NONE;
    if (right != NO_POSITION)
        value = tokenizer_merge_of(tokenizer, (uint32_t)word->ids[left], (uint32_t)word->ids[right]);
    word->values[left] = value;
    if (value != MERGE_NONE)
        heap_push(word, heap_entry(value, left));
}

static void merge_all(const struct tokenizer *tokenizer, struct long_word *word) {
    while (word->heap_count > 0) {
        uint64_t entry = heap_pop(word);
        uint32_t left = (uint32_t)entry;
        uint64_t value = word->values[left];
        if (value == MERGE_NONE || heap_entry(value, left) != entry)
            continue;
        uint32_t right = word->next[left], after = word->next[right];
        word->ids[left] = (int32_t)(uint32_t)value;
        word->next[left] = after;
        word->values[right] = MERGE_NONE;
        if (after != NO_POSITION)
            word->previous[after] = left;
        update_pair(tokenizer, word, left);
        if (word->previous[left] != NO_POSITION)
            update_pair(tokenizer, word, word->previous[left]);
    }
}

static int merge_long(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, int32_t *ids, size_t *count) {
    size_t length = *count;
    /* The heap starts with fewer than `length` entries; each merge pops one and pushes at most two. */
    size_t needed = length * (3 * sizeof(uint64_t) + 2 * sizeof(uint32_t));
    if (scratch->bytes < needed) {
        bpe_scratch_free(scratch);
        scratch->block = malloc(needed);
        if (!scratch->block)
            return status_fail(STATUS_MEMORY, "out of memory for a word of %zu tokens", length);
        scratch->bytes = needed;
    }
    struct long_word word = {.values = scratch->block, .ids = ids};
    word.heap = word.values + length;
    word.next = (uint32_t *)(word.heap + 2 * length);
    word.previous = word.next + length;
    for (size_t i = 0; i < length; i++) {
        word.next[i] = i + 1 < length ? (uint32_t)(i + 1) : NO_POSITION;
        word.previous[i] = i > 0 ? (uint32_t)(i - 1) : NO_POSITION;
    }
    word.values[length - 1] = MERGE_NONE;
    for (size_t i = 0; i + 1 < length; i++) {
        word.values[i] = tokenizer_merge_of(tokenizer, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
        if (word.values[i] != MERGE_NONE)
            word.heap[word.heap_count++] = heap_entry(word.values[i], (uint32_t)i);
    }
    for (size_t i = word.heap_count / 2; i-- > 0;)
        heap_sift_down(word.heap, word.heap_count, i);
    merge_all(tokenizer, &word);
    size_t written = 0;
    for (uint32_t at = 0; at != NO_POSITION; at = word.next[at])
        ids[written++] = ids[at];
    *count = written;
    return STATUS_OK;
}

int bpe_encode_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const unsigned char *word,
                    size_t length, int32_t *ids, size_t *count) {
    int32_t id = tokenizer_find_plain(tokenizer, word, length);
    if (id < 0 || !(tokenizer->kinds[id] & TOKEN_WORD))
        return bpe_merge_word(tokenizer, scratch, word, length, ids, count);
    ids[0] = id;
    *count = 1;
    return STATUS_OK;
}

int bpe_merge_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const unsigned char *word,
                   size_t length, int32_t *ids, size_t *count) {
    uint64_t values[SHORT_WORD];
    if (tokenizer->byte_merges && !tokenizer->has_lost_bytes && length <= SHORT_WORD) {
        for (size_t i = 0; i < length; i++)
            ids[i] = tokenizer->byte_ids[word[i]];
        for (size_t i = 0; i + 1 < length; i++)
            values[i] = tokenizer->byte_merges[word[i]][word[i + 1]];
        *count = merge_short(tokenizer, ids, values, length);
        return STATUS_OK;
    }
    *count = tokenizer->rules.is_by_characters ? begin_characters(tokenizer, word, length, ids)
                                               : begin_bytes(tokenizer, word, length, ids);
    if (*count > SHORT_WORD)
        return merge_long(tokenizer, scratch, ids, count);
    for (size_t i = 0; i + 1 < *count; i++)
        values[i] = tokenizer_merge_of(tokenizer, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
    if (*count > 1)
        *count = merge_short(tokenizer, ids, values, *count);
    return STATUS_OK;
}
