/* The tokens of a vocabulary as a trie in depth-first order. */
#pragma once

#include "grammar.h"

enum { NO_ID = -1 };
struct trie_node {
    uint32_t end;   /* the first node behind its subtree */
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
    size_t count, end_count, special_count, longest;
};
enum token_kind { TOKEN_PLAIN, TOKEN_SPECIAL, TOKEN_END };
