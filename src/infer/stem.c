/* Stems: what adapters put before the texts of a slot, its prefix and its virtual tokens, computed once. */
#include "engine-internal.h"

#include <stdlib.h>

int engine_stem(const struct engine *engine, int slot) {
    return (int)engine->options.max_sequences + slot;
}

int64_t engine_prefix_tokens(const struct engine *engine) {
    int64_t tokens = 0;
    for (int i = 0; i < engine->image_count; i++)
        tokens += peft_bank_prefix_tokens(engine->bank, engine->images[i]);
    return tokens;
}

int64_t engine_virtual_tokens(const struct engine *engine) {
    int64_t tokens = 0;
    for (int i = 0; i < engine->image_count; i++)
        tokens += peft_bank_virtual_tokens(engine->bank, engine->images[i]);
    return tokens;
}

int32_t engine_virtual_id(const struct engine *engine, int64_t number) {
    int i = 0;
    for (; number >= peft_bank_virtual_tokens(engine->bank, engine->images[i]); i++)
        number -= peft_bank_virtual_tokens(engine->bank, engine->images[i]);
    return peft_bank_first_id(engine->bank, engine->images[i]) + (int32_t)number;
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
    int status = STATUS_OK, image = 0;
    for (int i = 0; i < engine->image_count; i++)
        image = peft_bank_prefix_tokens(engine->bank, engine->images[i]) ? engine->images[i] : image;
    for (int64_t done = 0; done < tokens && !status; done += engine->options.max_rows) {
        int64_t count = smaller(tokens - done, engine->options.max_rows);
        for (int64_t i = 0; i < count; i++)
            engine->places[i] = engine_extend(engine, stem);
        status = model_kv_put_prefix(
            engine->model, &engine->kv,
            &(struct model_prefix_rows){.image = image, .first = done, .count = count, .place = engine->places});
    }
    return status;
}

/* The virtual tokens run like a text whose ids stand behind the vocabulary. */
static int run_virtual_tokens(struct engine *engine, int number) {
    int64_t tokens = engine_virtual_tokens(engine), most = engine->options.max_rows;
    if (tokens <= 0)
        return STATUS_OK;
    struct engine_row *rows = calloc((size_t)tokens, sizeof *rows);
    int status = rows ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < tokens && !status; i++)
        rows[i] = (struct engine_row){.token = engine_virtual_id(engine, i), .sequence = number, .label = -1};
    for (int64_t done = 0; done < tokens && !status; done += most)
        status = engine_run_rows(engine, rows + done, smaller(tokens - done, most), NULL);
    free(rows);
    return status;
}

int engine_make_stems(struct engine *engine) {
    int status = STATUS_OK;
    for (int slot = 0; slot < engine->slot_count && !status; slot++) {
        struct sequence *stem = &engine->sequences[engine_stem(engine, slot)];
        stem->is_used = true;
        stem->slot = slot;
        status = put_prefix(engine, stem);
        if (!status)
            status = run_virtual_tokens(engine, engine_stem(engine, slot));
    }
    return status;
}
