/* Arenas: chunks of growing size, so that a rendering needs few of them and frees them all at once. */
#include "jinja-internal.h"

struct jinja_chunk {
    struct jinja_chunk *before;
    char *end;
};
enum { FIRST_BYTES = 1 << 12, LARGEST_BYTES = 1 << 22 };

static char *align(char *at, size_t alignment) {
    size_t over = (uintptr_t)at % alignment;
    return over ? at + (alignment - over) : at;
}

static bool add_chunk(struct jinja_arena *arena, size_t bytes) {
    size_t size = arena->bytes < LARGEST_BYTES ? arena->bytes : LARGEST_BYTES;
    size = size < FIRST_BYTES ? FIRST_BYTES : size;
    if (bytes > SIZE_MAX / 4)
        return false;
    if (size < bytes + sizeof(struct jinja_chunk) + 16)
        size = bytes + bytes / 2 + sizeof(struct jinja_chunk) + 16;
    if (arena->limit && (size > arena->limit || arena->bytes > arena->limit - size)) {
        arena->is_full = true;
        return false;
    }
    struct jinja_chunk *chunk = malloc(size);
    if (!chunk)
        return false;
    *chunk = (struct jinja_chunk){arena->last, (char *)chunk + size};
    arena->last = chunk;
    arena->bytes += size;
    arena->top = (char *)(chunk + 1);
    return true;
}

void *jinja_take(struct jinja_arena *arena, size_t bytes, size_t alignment) {
    char *at = arena->last ? align(arena->top, alignment) : NULL;
    if (!at || at > arena->last->end || (size_t)(arena->last->end - at) < bytes) {
        if (!add_chunk(arena, bytes))
            return NULL;
        at = align(arena->top, alignment);
    }
    arena->top = at + bytes;
    return at;
}

bool jinja_extend(struct jinja_arena *arena, const char *end, size_t more) {
    if (!arena->last || end != arena->top || (size_t)(arena->last->end - arena->top) < more)
        return false;
    arena->top += more;
    return true;
}

void jinja_arena_free(struct jinja_arena *arena) {
    while (arena->last) {
        struct jinja_chunk *before = arena->last->before;
        free(arena->last);
        arena->last = before;
    }
    *arena = (struct jinja_arena){0};
}
