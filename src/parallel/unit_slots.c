/* The buffers of units: which one a unit takes, and when it is fetched. */
#include "parallel/unit_slots.h"

void unit_slots_make(struct unit_slots *slots, int units, struct unit_slot *memory, int count) {
    *slots = (struct unit_slots){.units = units, .count = count, .slots = memory};
    unit_slots_forget(slots);
}

static int last_unit(const struct unit_slots *slots) {
    return slots->units + PARAM_UNIT_FIRST - 1;
}

/* Returns true if a unit may lie in a buffer. */
static bool unit_slots_fits(const struct unit_slots *slots, int slot, int unit) {
    return slot == UNIT_SLOT_FIRST  ? unit == PARAM_UNIT_FIRST
           : slot == UNIT_SLOT_LAST ? unit == last_unit(slots)
                                    : unit > PARAM_UNIT_FIRST && unit < last_unit(slots);
}

int unit_slots_find(const struct unit_slots *slots, int unit) {
    for (int s = 0; s < slots->count; s++)
        if (slots->slots[s].is_full && slots->slots[s].unit == unit)
            return s;
    return UNIT_SLOT_NONE;
}

int unit_slots_take(struct unit_slots *slots, int unit, bool *is_fetched) {
    int slot = unit_slots_find(slots, unit);
    *is_fetched = slot == UNIT_SLOT_NONE;
    for (int s = 0; s < slots->count && *is_fetched; s++)
        if (unit_slots_fits(slots, s, unit) && !slots->slots[s].is_in_use &&
            (slot == UNIT_SLOT_NONE || slots->slots[s].turn < slots->slots[slot].turn))
            slot = s;
    if (slot != UNIT_SLOT_NONE) {
        slots->slots[slot].is_full = true;
        slots->slots[slot].unit = unit;
        slots->slots[slot].turn = ++slots->turn;
    }
    return slot;
}

void unit_slots_forget(struct unit_slots *slots) {
    for (int s = 0; s < slots->count; s++)
        slots->slots[s] = (struct unit_slot){0};
    slots->turn = 0;
}

void unit_slots_count_fetches(int units, int of_layers, const int *order, int64_t count, struct unit_slot *memory,
                              int64_t *fetches) {
    struct unit_slots slots;
    unit_slots_make(&slots, units, memory, unit_slots_count(of_layers));
    for (int u = 0; u < units; u++)
        fetches[u] = 0;
    for (int64_t i = 0; i < count; i++) {
        bool is_fetched, is_next_fetched = false;
        int slot = unit_slots_take(&slots, order[i], &is_fetched);
        fetches[order[i] - PARAM_UNIT_FIRST] += is_fetched;
        slots.slots[slot].is_in_use = true;
        if (i + 1 < count)
            unit_slots_take(&slots, order[i + 1], &is_next_fetched);
        fetches[i + 1 < count ? order[i + 1] - PARAM_UNIT_FIRST : 0] += is_next_fetched;
        slots.slots[slot].is_in_use = false;
    }
}
