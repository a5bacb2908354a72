/* The parts of the pickle reader: the memory of nodes, the memo, the pickle itself. */
#pragma once

#include "pickle.h"

/* ---- pickle_memory.c ---- */

struct pickle_block;

/* Pieces are taken in order, and given back from the end. */
struct pickle_memory {
    struct pickle_block *last;
    size_t total, limit; /* bytes of all blocks */
    bool is_full;        /* the limit refused a piece */
};

/* A place in the memory: what is taken later lies after it. */
struct pickle_place {
    size_t block, used;
};

/* Returns the memory for a pickle of so much text. */
struct pickle_memory pickle_memory_for(size_t length);
/* Returns bytes, which hold anything; NULL when the limit or the host allows no more. */
void *pickle_memory_take(struct pickle_memory *memory, size_t bytes);
struct pickle_place pickle_memory_place(const struct pickle_memory *memory);
bool pickle_place_is_after(struct pickle_place a, struct pickle_place b);
/* Gives back all that was taken after a place. */
void pickle_memory_return(struct pickle_memory *memory, struct pickle_place place);

/* Nodes by number. It has a place only for numbers that the pickle recalls. */
struct pickle_memo {
    uint64_t *recalled;         /* bit n: number n is recalled */
    uint32_t *before;           /* [words] recalled numbers below those of a word */
    struct pickle_node **nodes; /* in the order of their numbers */
    size_t words, count;        /* count: numbers given so far */
};

/* The numbers of a pickle lie below its length. STATUS_MEMORY. */
int pickle_memo_open(struct pickle_memo *memo, size_t length);
/* Notes that a number is recalled. All are noted before the first node is put. */
void pickle_memo_note(struct pickle_memo *memo, uint64_t number);
/* Makes room for the noted numbers. STATUS_MEMORY. */
int pickle_memo_make_room(struct pickle_memo *memo);
/* Puts a node, under the next number or one that was given before; returns false when nothing recalls it. */
bool pickle_memo_put(struct pickle_memo *memo, uint64_t number, struct pickle_node *node);
/* Returns the node of a noted number below `count`. */
struct pickle_node *pickle_memo_get(const struct pickle_memo *memo, uint64_t number);
void pickle_memo_free(struct pickle_memo *memo);

/* ---- the pickle ---- */

struct pickle {
    char *where;
    int64_t start;
    const unsigned char *bytes;
    size_t length;
    const struct pickle_node *root;
    struct pickle_memory memory;
    struct pickle_node none, truth[2], small[256], empty_tuple;
};
