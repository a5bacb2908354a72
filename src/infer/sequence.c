/* Sequences of the leader, and their pages, which are counted by reference and found by their contents. */
#include "engine-internal.h"

/* Returns the token at a position of a sequence, as it is in the keys of pages. */
static int32_t token_at(const int32_t *tokens, int64_t virtual_tokens, int64_t position) {
    return position < virtual_tokens ? ENGINE_VIRTUAL_TOKEN : tokens[position - virtual_tokens];
}

/* Attaches the pages of the longest cached beginning. It excludes the last token, whose row must run. */
static void attach_pages(struct engine *engine, struct sequence *sequence, const int32_t *tokens, int64_t count) {
    int64_t virtual_tokens = engine_slot_virtual_tokens(engine, sequence->slot);
    int32_t parent = -1, page_tokens[KV_PAGE_TOKENS];
    while (sequence->length + KV_PAGE_TOKENS < virtual_tokens + count) {
        for (int64_t i = 0; i < KV_PAGE_TOKENS; i++)
            page_tokens[i] = token_at(tokens, virtual_tokens, sequence->length + i);
        int32_t page = kv_pool_find(&engine->leader->pool, &sequence->root, parent, page_tokens);
        if (page < 0)
            return;
        sequence->pages[sequence->length / KV_PAGE_TOKENS] = parent = page;
        sequence->length += KV_PAGE_TOKENS;
    }
}

int engine_sequence_open(struct engine *engine, const struct sequence_beginning *beginning, int64_t *cached) {
    for (int64_t i = 0; i < engine->sequences; i++) {
        struct sequence *sequence = &engine->leader->sequences[i];
        if (sequence->is_used)
            continue;
        sequence->is_used = true;
        sequence->slot = beginning->slot;
        sequence->root =
            (struct kv_root){.slot_key = engine_slot(engine, beginning->slot)->key, .salt = beginning->salt};
        sequence->length = sequence->planned = sequence->released = 0;
        if (beginning->tokens)
            attach_pages(engine, sequence, beginning->tokens, beginning->count);
        if (cached)
            *cached = sequence->length;
        return (int)i;
    }
    return status_fail(STATUS_MEMORY, "all %lld sequences of the engine are in use", (long long)engine->sequences);
}

int engine_sequence_new(struct engine *engine) {
    return engine_sequence_open(engine, &(struct sequence_beginning){.slot = engine->leader->opened_slot}, NULL);
}

void engine_sequence_close(struct engine *engine, int number) {
    struct sequence *sequence = &engine->leader->sequences[number];
    for (int64_t i = engine_pages_of(sequence->length) - 1; i >= sequence->released; i--)
        kv_pool_release(&engine->leader->pool, sequence->pages[i]);
    sequence->is_used = false;
    sequence->length = 0;
}

/* Keeps the page before the window's first: it is the parent of the next page that becomes full. */
void engine_leave_pages(struct engine *engine, struct sequence *sequence, int64_t next) {
    int64_t first = next + 1 - engine->window, page = first / KV_PAGE_TOKENS - 1;
    for (; engine->window && sequence->released < page; sequence->released++)
        kv_pool_release(&engine->leader->pool, sequence->pages[sequence->released]);
}

int64_t engine_sequence_length(const struct engine *engine, int sequence) {
    return engine->leader->sequences[sequence].length;
}

int64_t engine_pages_available(const struct engine *engine) {
    return kv_pool_available(&engine->leader->pool) - engine->kept;
}

int64_t engine_pages_needed(const struct engine *engine, int sequence, int64_t rows) {
    int64_t length = engine->leader->sequences[sequence].length;
    return engine_pages_of(length + rows) - engine_pages_of(length);
}

int64_t engine_pages(const struct engine *engine) {
    return engine->leader->pool.count - engine->kept;
}
