/* Sequences over pages that are counted by reference. */
#include "engine-internal.h"

#include <string.h>

/* Takes a free sequence and empties it. */
static int take_sequence(struct engine *engine) {
    for (int64_t i = 0; i < engine->options.max_sequences; i++)
        if (!engine->sequences[i].is_used) {
            struct sequence *sequence = &engine->sequences[i];
            sequence->is_used = true;
            sequence->slot = -1;
            sequence->length = 0;
            memset(sequence->seen, 0, (size_t)engine->seen_words * sizeof(uint64_t));
            return (int)i;
        }
    return status_fail(STATUS_MEMORY, "all %lld sequences of the engine are in use",
                       (long long)engine->options.max_sequences);
}

int engine_sequence_new(struct engine *engine) {
    return engine->slot_count ? engine_sequence_fork(engine, engine_stem(engine, 0)) : take_sequence(engine);
}

int engine_sequence_fork(struct engine *engine, int parent) {
    const struct sequence *source = &engine->sequences[parent];
    int child = take_sequence(engine);
    if (child < 0)
        return child;
    struct sequence *copy = &engine->sequences[child];
    int64_t full = source->length / KV_PAGE_TOKENS;
    copy->slot = source->slot;
    for (int64_t i = 0; i < full; i++) {
        copy->pages[i] = source->pages[i];
        kv_pool_share(&engine->pool, copy->pages[i]);
    }
    copy->length = full * KV_PAGE_TOKENS;
    memcpy(copy->seen, source->seen, (size_t)engine->seen_words * sizeof(uint64_t));
    if (source->length == copy->length)
        return child;
    int32_t page = kv_pool_take(&engine->pool);
    int status = page < 0
                     ? status_fail(STATUS_MEMORY, "the KV cache of %lld pages is full", (long long)engine->pool.count)
                     : model_kv_copy_page(engine->model, &engine->kv, source->pages[full], page);
    if (page >= 0) {
        copy->pages[full] = page;
        copy->length = source->length;
    }
    if (status) {
        engine_sequence_free(engine, child);
        return status;
    }
    return child;
}

void engine_sequence_free(struct engine *engine, int number) {
    struct sequence *sequence = &engine->sequences[number];
    for (int64_t i = 0; i * KV_PAGE_TOKENS < sequence->length; i++)
        kv_pool_release(&engine->pool, sequence->pages[i]);
    sequence->is_used = false;
    sequence->length = 0;
}

int64_t engine_sequence_length(const struct engine *engine, int sequence) {
    return engine->sequences[sequence].length;
}

int32_t engine_extend(struct engine *engine, struct sequence *sequence) {
    int64_t page = sequence->length / KV_PAGE_TOKENS, token = sequence->length % KV_PAGE_TOKENS;
    if (token == 0)
        sequence->pages[page] = kv_pool_take(&engine->pool);
    sequence->length++;
    return (int32_t)(sequence->pages[page] * KV_PAGE_TOKENS + token);
}
