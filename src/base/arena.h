/* An arena hands out pieces of one block that its caller owns. It takes nothing back until it is reset.
 *
 * There is one arena per lifetime (weights, gradients, optimizer, activations of a micro batch, one step's scratch),
 * sized before the run. The code that takes the pieces also computes the size: run it on an arena without a block
 * (ARENA_PLAN), read `used`, allocate that much, and run it again. The printed memory plan is therefore the
 * allocation. */
#pragma once

#include <stddef.h>

enum { ARENA_ALIGNMENT = 64 };

struct arena {
    char *block;     /* NULL while planning */
    size_t capacity; /* bytes of the block; (size_t)-1 while planning */
    size_t used;     /* bytes handed out, alignment included */
    size_t peak;     /* the highest value of `used` so far */
};

/* An arena that only counts: arena_take returns NULL and never fails. */
#define ARENA_PLAN ((struct arena){.block = NULL, .capacity = (size_t)-1})

/* An arena over `block`, which has `capacity` bytes, is aligned to ARENA_ALIGNMENT and stays the caller's. */
static inline struct arena arena_over(void *block, size_t bytes) {
    return (struct arena){.block = (char *)block, .capacity = bytes};
}

/* Takes `bytes` bytes, aligned to ARENA_ALIGNMENT and not cleared. Returns NULL while planning. Taking more than was
 * planned is a programmer's error: it ends the process, in every build. */
void *arena_take(struct arena *arena, size_t bytes);

/* A mark remembers how much is in use. Releasing to it gives back everything taken since. */
static inline size_t arena_mark(const struct arena *arena) {
    return arena->used;
}
static inline void arena_release(struct arena *arena, size_t mark) {
    arena->used = mark;
}
