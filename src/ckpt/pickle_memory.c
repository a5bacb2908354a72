/* The memory of a pickle's nodes, which is given back from its end, and the memo. */
#include "pickle-internal.h"

enum { BLOCK_BYTES = 1 << 20 };
static const size_t most_memory = (size_t)4 << 30;

struct pickle_block {
    struct pickle_block *before;
    size_t number, used, capacity;
    _Alignas(8) char bytes[];
};

struct pickle_memory pickle_memory_for(size_t length) {
    size_t limit = 2 * BLOCK_BYTES + 32 * length;
    return (struct pickle_memory){.limit = limit < most_memory ? limit : most_memory};
}

static bool add_block(struct pickle_memory *memory, size_t bytes) {
    size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    memory->is_full = capacity > memory->limit - memory->total;
    struct pickle_block *block = memory->is_full ? NULL : malloc(sizeof *block + capacity);
    if (!block)
        return false;
    *block = (struct pickle_block){
        .before = memory->last, .number = memory->last ? memory->last->number + 1 : 1, .capacity = capacity};
    memory->last = block;
    memory->total += capacity;
    return true;
}

void *pickle_memory_take(struct pickle_memory *memory, size_t bytes) {
    const struct pickle_block *last = memory->last;
    bytes = (bytes + 7) / 8 * 8;
    if ((!last || last->capacity - last->used < bytes) && !add_block(memory, bytes))
        return NULL;
    struct pickle_block *block = memory->last;
    block->used += bytes;
    return block->bytes + block->used - bytes;
}

struct pickle_place pickle_memory_place(const struct pickle_memory *memory) {
    const struct pickle_block *last = memory->last;
    return last ? (struct pickle_place){last->number, last->used} : (struct pickle_place){0};
}

bool pickle_place_is_after(struct pickle_place a, struct pickle_place b) {
    return a.block != b.block ? a.block > b.block : a.used > b.used;
}

void pickle_memory_return(struct pickle_memory *memory, struct pickle_place place) {
    while (memory->last && memory->last->number > place.block) {
        struct pickle_block *before = memory->last->before;
        memory->total -= memory->last->capacity;
        free(memory->last);
        memory->last = before;
    }
    if (memory->last)
        memory->last->used = place.used;
}

/* ---- the memo ---- */

enum { WORD_BITS = 64 };

static uint64_t bit(uint64_t number) {
    return UINT64_C(1) << number % WORD_BITS;
}

int pickle_memo_open(struct pickle_memo *memo, size_t length) {
    size_t words = length / WORD_BITS + 1;
    *memo = (struct pickle_memo){.words = words, .recalled = calloc(words, sizeof *memo->recalled)};
    return status_allocated(memo->recalled);
}

void pickle_memo_note(struct pickle_memo *memo, uint64_t number) {
    if (number / WORD_BITS < memo->words)
        memo->recalled[number / WORD_BITS] |= bit(number);
}

int pickle_memo_make_room(struct pickle_memo *memo) {
    uint32_t total = 0;
    memo->before = malloc(memo->words * sizeof *memo->before);
    for (size_t i = 0; i < memo->words && memo->before; i++) {
        memo->before[i] = total;
        total += (uint32_t)__builtin_popcountll(memo->recalled[i]);
    }
    memo->nodes = calloc((size_t)total + 1, sizeof(struct pickle_node *));
    return status_allocated(memo->before && memo->nodes);
}

/* Returns the place of a noted number's node. */
static struct pickle_node **place_of(const struct pickle_memo *memo, uint64_t number) {
    uint64_t below = memo->recalled[number / WORD_BITS] & (bit(number) - 1);
    return &memo->nodes[memo->before[number / WORD_BITS] + (unsigned)__builtin_popcountll(below)];
}

bool pickle_memo_put(struct pickle_memo *memo, uint64_t number, struct pickle_node *node) {
    bool is_recalled = memo->recalled[number / WORD_BITS] & bit(number);
    if (is_recalled)
        *place_of(memo, number) = node;
    memo->count += number == memo->count;
    return is_recalled;
}

struct pickle_node *pickle_memo_get(const struct pickle_memo *memo, uint64_t number) {
    return *place_of(memo, number);
}

void pickle_memo_free(struct pickle_memo *memo) {
    free(memo->recalled);
    free(memo->before);
    free(memo->nodes);
}
