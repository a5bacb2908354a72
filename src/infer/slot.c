/* Slots: ordered sets of images. There is one slot for the same images in the same order, because its pages are
 * shared. */
#include "engine-internal.h"

static const struct slot base_slot = {.key = 0};

const struct slot *engine_slot(const struct engine *engine, int slot) {
    return slot < 0 ? &base_slot : &engine->leader->slots[slot];
}

int32_t slot_virtual_id(const struct engine *engine, const struct slot *slot, int64_t number) {
    int i = 0;
    for (; number >= peft_bank_virtual_tokens(engine->bank, slot->images[i]); i++)
        number -= peft_bank_virtual_tokens(engine->bank, slot->images[i]);
    return peft_bank_first_id(engine->bank, slot->images[i]) + (int32_t)number;
}

int64_t engine_slot_virtual_tokens(const struct engine *engine, int slot) {
    const struct slot *found = engine_slot(engine, slot);
    return found->prefix_tokens + found->row_tokens;
}

bool engine_slot_predicts_first(const struct engine *engine, int slot) {
    return engine_slot(engine, slot)->row_tokens > 0;
}

static int find_slot(const struct engine *engine, const int *images, int count) {
    const struct engine_leader *leader = engine->leader;
    for (int i = 0; i < leader->slot_count; i++)
        if (leader->slots[i].key && leader->slots[i].count == count &&
            !memcmp(leader->slots[i].images, images, (size_t)count * sizeof *images))
            return i;
    return -1;
}

static int take_slot(struct engine *engine) {
    struct engine_leader *leader = engine->leader;
    for (int i = 0; i < leader->slot_count; i++)
        if (!leader->slots[i].key)
            return i;
    struct slot *slots = realloc(leader->slots, ((size_t)leader->slot_count + 1) * sizeof *slots);
    TRY(status_allocated(slots));
    leader->slots = slots;
    return leader->slot_count++;
}

int engine_slot_open(struct engine *engine, const int *images, int count, int *out) {
    struct engine_leader *leader = engine->leader;
    *out = -1;
    if (count == 0)
        return STATUS_OK;
    int number = find_slot(engine, images, count);
    if (number < 0) {
        int status = peft_bank_check_slot(engine->bank, images, count);
        number = status ? status : take_slot(engine);
        if (number < 0)
            return number;
        struct slot *slot = &leader->slots[number];
        *slot = (struct slot){.count = count, .key = ++leader->last_key};
        memcpy(slot->images, images, (size_t)count * sizeof *images);
        for (int i = 0; i < count; i++) {
            slot->prefix_tokens += peft_bank_prefix_tokens(engine->bank, images[i]);
            slot->row_tokens += peft_bank_virtual_tokens(engine->bank, images[i]);
        }
    }
    leader->slots[number].references++;
    *out = number;
    return STATUS_OK;
}

void engine_slot_close(struct engine *engine, int slot) {
    if (slot >= 0)
        engine->leader->slots[slot].references--;
}

int engine_opened_slot(const struct engine *engine) {
    return engine->leader->opened_slot;
}

int engine_slot_images(const struct engine *engine, int slot, int images[PEFT_SLOT_IMAGES]) {
    const struct slot *found = engine_slot(engine, slot);
    memcpy(images, found->images, sizeof found->images);
    return found->count;
}

void engine_forget_slots(struct engine *engine, int image) {
    struct engine_leader *leader = engine->leader;
    for (int i = 0; i < leader->slot_count; i++)
        for (int k = 0; k < leader->slots[i].count; k++)
            if (leader->slots[i].key && leader->slots[i].images[k] == image) {
                kv_pool_forget(&leader->pool, leader->slots[i].key);
                leader->slots[i] = (struct slot){0};
            }
}
