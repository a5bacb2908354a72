/* Sequences over pages that are counted by reference, and what stands before their texts. */
#include "engine-internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- sequences ---- */

/* One that nobody has, empty. */
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

/* The number of a slot's stem. */
static int stem_of(const struct engine *engine, int slot) {
    return (int)engine->options.max_sequences + slot;
}

int engine_sequence_new(struct engine *engine) {
    return engine->slot_count ? engine_sequence_fork(engine, stem_of(engine, 0)) : take_sequence(engine);
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

/* ---- stems ---- */

int64_t engine_prefix_tokens(const struct engine *engine) {
    return engine->peft ? peft_prefix_tokens(engine->peft) : 0;
}

int64_t engine_virtual_tokens(const struct engine *engine) {
    return engine->peft ? peft_virtual_tokens(engine->peft) : 0;
}

int64_t engine_stem_tokens(const struct engine *engine) {
    return engine_prefix_tokens(engine) + engine_virtual_tokens(engine);
}

bool engine_predicts_first(const struct engine *engine) {
    return engine_virtual_tokens(engine) > 0;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int put_prefix(struct engine *engine, struct sequence *stem) {
    int64_t tokens = engine_prefix_tokens(engine);
    int status = STATUS_OK;
    for (int64_t done = 0; done < tokens && !status; done += engine->options.max_rows) {
        int64_t count = smaller(tokens - done, engine->options.max_rows);
        for (int64_t i = 0; i < count; i++)
            engine->slots[i] = engine_extend(engine, stem);
        status = model_kv_put_prefix(engine->model, &engine->kv, done, count, engine->slots);
    }
    return status;
}

/* Like a text, whose ids stand behind the vocabulary. */
static int run_virtual_tokens(struct engine *engine, int number) {
    int64_t tokens = engine_virtual_tokens(engine), most = engine->options.max_rows;
    if (tokens <= 0)
        return STATUS_OK;
    struct engine_row *rows = calloc((size_t)tokens, sizeof *rows);
    int status = rows ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < tokens && !status; i++)
        rows[i] = (struct engine_row){
            .token = (int32_t)(engine_config(engine)->vocab_size + i), .sequence = number, .label = -1};
    for (int64_t done = 0; done < tokens && !status; done += most)
        status = engine_run_rows(engine, rows + done, smaller(tokens - done, most), NULL);
    free(rows);
    return status;
}

int engine_make_stems(struct engine *engine) {
    int status = STATUS_OK;
    for (int slot = 0; slot < engine->slot_count && !status; slot++) {
        struct sequence *stem = &engine->sequences[stem_of(engine, slot)];
        stem->is_used = true;
        stem->slot = slot;
        status = put_prefix(engine, stem);
        if (!status)
            status = run_virtual_tokens(engine, stem_of(engine, slot));
    }
    return status;
}
