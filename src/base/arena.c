#include "arena.h"

#include <stdio.h>
#include <stdlib.h>

void *arena_take(struct arena *arena, size_t bytes) {
    size_t start = arena->used;
    size_t end = start + (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    if (end > arena->capacity) {
        fprintf(stderr, "cambium: internal error: arena of %zu bytes asked for %zu\n", arena->capacity, end);
        abort(); /* the plan and its use disagree: nothing after this point could be trusted */
    }
    arena->used = end;
    if (end > arena->peak)
        arena->peak = end;
    return arena->block ? arena->block + start : NULL;
}
