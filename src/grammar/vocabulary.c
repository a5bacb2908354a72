#include "vocabulary-internal.h"

#include "readers-internal.h"

static _Thread_local const struct grammar_vocabulary *sorted; /* whose ids are compared: qsort has no context */

static const char *bytes_of(const struct grammar_vocabulary *vocabulary, int32_t id, size_t *length) {
    *length = vocabulary->begins[id + 1] - vocabulary->begins[id];
    return vocabulary->bytes + vocabulary->begins[id];
}

static int by_bytes(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    size_t length_a, length_b;
    const char *bytes_a = bytes_of(sorted, a, &length_a), *bytes_b = bytes_of(sorted, b, &length_b);
    int order = memcmp(bytes_a, bytes_b, length_a < length_b ? length_a : length_b);
    return order ? order : length_a != length_b ? (length_a < length_b ? -1 : 1) : (a > b) - (a < b);
}

static size_t shared_bytes(const char *a, size_t length_a, const char *b, size_t length_b) {
    size_t shared = 0;
    while (shared < length_a && shared < length_b && a[shared] == b[shared])
        shared++;
    return shared;
}

/* Writes the trie of the sorted ids; nodes are at most as many as bytes. */
static int make_trie(struct grammar_vocabulary *self, const int32_t *ids, size_t count) {
    uint32_t *open = malloc((self->longest + 1) * sizeof *open); /* nodes on the way to the present one */
    size_t depth = 0, before_length = 0;
    const char *before = "";
    TRY(status_allocated(open));
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = bytes_of(self, ids[i], &length);
        size_t shared = shared_bytes(before, before_length, bytes, length);
        if (i && shared == length && before_length == length) { /* the same bytes once more */
            int32_t last = self->nodes[open[depth - 1]].id;
            while (self->same[last] != NO_ID)
                last = self->same[last];
            self->same[last] = ids[i];
            continue;
        }
        while (depth > shared)
            self->nodes[open[--depth]].end = (uint32_t)self->node_count;
        for (; depth < length; depth++) {
            open[depth] = (uint32_t)self->node_count;
            self->nodes[self->node_count++] =
                (struct trie_node){.id = NO_ID, .depth = (uint16_t)depth, .byte = (uint8_t)bytes[depth]};
        }
        self->nodes[self->node_count - 1].id = ids[i];
        before = bytes;
        before_length = length;
    }
    while (depth)
        self->nodes[open[--depth]].end = (uint32_t)self->node_count;
    free(open);
    return STATUS_OK;
}

static int find_deep(struct grammar_vocabulary *self) {
    size_t capacity = 0;
    for (uint32_t i = 0; i < self->node_count; i++) {
        if (self->nodes[i].depth != SHALLOW_BYTES - 1 || self->nodes[i].end == i + 1)
            continue;
        TRY(array_reserve(&self->deep, &capacity, self->deep_count + 1, sizeof *self->deep));
        self->deep[self->deep_count++] = i;
    }
    return STATUS_OK;
}

static int fill(struct grammar_vocabulary *self, const struct grammar_token *tokens, const int32_t *ends) {
    size_t bytes = 0, plain = 0;
    for (size_t i = 0; i < self->count; i++)
        bytes += tokens[i].length;
    self->bytes = malloc(bytes + 1);
    self->begins = malloc((self->count + 1) * sizeof *self->begins);
    self->same = malloc((self->count + 1) * sizeof *self->same);
    self->kinds = calloc(self->count + 1, 1);
    self->ends = malloc((self->end_count + 1) * sizeof *self->ends);
    self->specials = malloc((self->count + 1) * sizeof *self->specials);
    self->nodes = malloc((bytes + 1) * sizeof *self->nodes);
    int32_t *ids = malloc((self->count + 1) * sizeof *ids);
    int status = status_allocated(self->bytes && self->begins && self->same && self->kinds && self->ends &&
                                  self->specials && self->nodes && ids);
    if (!status) {
        for (size_t i = 0; i < self->end_count; i++) {
            self->ends[i] = ends[i];
            if (ends[i] >= 0 && (size_t)ends[i] < self->count)
                self->kinds[ends[i]] = TOKEN_END;
        }
        self->begins[0] = 0;
        for (size_t i = 0; i < self->count; i++) {
            if (tokens[i].length)
                memcpy(self->bytes + self->begins[i], tokens[i].bytes, tokens[i].length);
            self->begins[i + 1] = self->begins[i] + tokens[i].length;
            self->same[i] = NO_ID;
            if (tokens[i].is_special && self->kinds[i] == TOKEN_PLAIN) {
                self->kinds[i] = TOKEN_SPECIAL;
                self->specials[self->special_count++] = (int32_t)i;
            }
            if (self->kinds[i] == TOKEN_PLAIN && tokens[i].length && tokens[i].length <= UINT16_MAX) {
                ids[plain++] = (int32_t)i;
                self->longest = self->longest > tokens[i].length ? self->longest : tokens[i].length;
            }
        }
        sorted = self;
        qsort(ids, plain, sizeof *ids, by_bytes);
        status = make_trie(self, ids, plain);
        THEN(status, find_deep(self));
        THEN(status, shared_masks_open(&self->shared));
    }
    free(ids);
    return status;
}

int grammar_vocabulary_open(const struct grammar_token *tokens, size_t count, const int32_t *ends, size_t end_count,
                            struct grammar_vocabulary **vocabulary) {
    struct grammar_vocabulary *self = calloc(1, sizeof *self);
    *vocabulary = NULL;
    TRY(status_allocated(self));
    self->count = count;
    self->end_count = end_count;
    int status = fill(self, tokens, ends);
    if (status)
        grammar_vocabulary_close(self);
    else
        *vocabulary = self;
    return status;
}

void grammar_vocabulary_close(struct grammar_vocabulary *vocabulary) {
    if (!vocabulary)
        return;
    shared_masks_close(vocabulary->shared);
    free(vocabulary->deep);
    free(vocabulary->nodes);
    free(vocabulary->bytes);
    free(vocabulary->begins);
    free(vocabulary->same);
    free(vocabulary->kinds);
    free(vocabulary->ends);
    free(vocabulary->specials);
    free(vocabulary);
}

size_t grammar_vocabulary_words(const struct grammar_vocabulary *vocabulary) {
    return vocabulary_words(vocabulary);
}

int32_t grammar_vocabulary_special(const struct grammar_vocabulary *vocabulary, const char *text, size_t length,
                                   size_t *bytes) {
    int32_t found = NO_ID;
    *bytes = 0;
    for (size_t i = 0; vocabulary && i < vocabulary->special_count; i++) {
        size_t own;
        const char *name = bytes_of(vocabulary, vocabulary->specials[i], &own);
        if (own > *bytes && own <= length && !memcmp(name, text, own)) {
            found = vocabulary->specials[i];
            *bytes = own;
        }
    }
    return found;
}
