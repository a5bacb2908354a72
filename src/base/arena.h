/* An arena hands out pieces of one block that somebody else owns, and gives nothing back before it is reset.
 *
 * One arena per lifetime (weights, gradients, optimizer, activations of a micro batch, one step's scratch), sized
 * before the run. The size comes from the same code as the pieces: run that code on an arena without a block
 * (ARENA_PLAN), read `used`, allocate, run it again. So the printed memory plan is the allocation. */
#ifndef CAMBIUM_BASE_ARENA_H
#define CAMBIUM_BASE_ARENA_H

#include <stddef.h>

enum { ARENA_ALIGNMENT = 64 };

struct arena {
    char *block;     /* NULL while planning */
    size_t capacity; /* bytes of the block; (size_t)-1 while planning */
    size_t used;     /* bytes handed out, alignment included */
    size_t peak;     /* the most that `used` has been */
};

/* An arena that only counts: arena_take returns NULL and never fails. */
#define ARENA_PLAN ((struct arena){.block = NULL, .capacity = (size_t)-1})

static inline struct arena arena_over(void *block, size_t bytes) {
    return (struct arena){.block = (char *)block, .capacity = bytes};
}

/* `bytes` aligned to ARENA_ALIGNMENT, not cleared; NULL while planning. Taking more than was planned is a programmer's
 * error and ends the process by an assertion, in every build. */
void *arena_take(struct arena *arena, size_t bytes);

/* Marks and gives back everything that was taken since. */
static inline size_t arena_mark(const struct arena *arena) {
    return arena->used;
}
static inline void arena_release(struct arena *arena, size_t mark) {
    arena->used = mark;
}

#endif
