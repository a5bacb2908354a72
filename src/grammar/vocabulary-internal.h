/* The tokens of a vocabulary as a trie in depth-first order. */
#pragma once

#include "grammar.h"

/* Tokens of more bytes are looked at on their own: counters of more than that do not matter to the others. */
enum { NO_ID = -1, SHALLOW_BYTES = 16 };
struct shared_masks;
struct trie_node {
    uint32_t end;   /* the first node after its subtree */
    int32_t id;     /* a token that ends here; NO_ID: none */
    uint16_t depth; /* bytes before this one */
    uint8_t byte;
};
struct grammar_vocabulary {
    struct trie_node *nodes; /* [node_count] */
    size_t node_count;
    char *bytes;
    size_t *begins;    /* [count + 1] of each id's bytes */
    int32_t *same;     /* [count] the next id with the same bytes; NO_ID: none */
    uint8_t *kinds;    /* [count] enum token_kind */
    int32_t *ends;     /* [end_count] */
    int32_t *specials; /* [special_count] */
    uint32_t *deep;    /* [deep_count] nodes that end SHALLOW_BYTES, with a subtree */
    size_t count, end_count, special_count, longest, deep_count;
    struct shared_masks *shared;
};
enum token_kind { TOKEN_PLAIN, TOKEN_SPECIAL, TOKEN_END };

/* mask_shared.c; NULL is allowed. */
int shared_masks_open(struct shared_masks **shared);
void shared_masks_close(struct shared_masks *shared);

static inline size_t vocabulary_words(const struct grammar_vocabulary *vocabulary) {
    return (vocabulary->count + 31) / 32;
}
