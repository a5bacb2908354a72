/* Which buffer holds which unit, where a rank has its own weights only in shares.
 *
 * The units before and after the layers have a buffer each. The layers share the other buffers: a layer takes the one
 * that was left longest ago. A unit that still lies in a buffer is not fetched again.
 *
 * Pure arithmetic: no memory of a device, no communication; any thread. The same calls give the same answers, so all
 * ranks of a group fetch the same units in the same order. */
#pragma once

#include "tensor/param_map.h"

/* The buffers before those of the layers, the fewest buffers of layers (one in use, one that fills), and the number
 * that stands for no buffer. */
enum { UNIT_SLOT_FIRST, UNIT_SLOT_LAST, UNIT_SLOTS_OF_ENDS, UNIT_SLOTS_OF_LAYERS = 2, UNIT_SLOT_NONE = -1 };

struct unit_slot {
    bool is_full;   /* it holds `unit`, or `unit` is on its way */
    bool is_in_use; /* its weights are being read */
    int unit;
    int64_t turn; /* of its last use */
};

struct unit_slots {
    int units; /* of the table; the last one comes after the layers */
    int count;
    struct unit_slot *slots; /* [count], of the caller */
    int64_t turn;            /* uses so far */
};

/* Returns the number of buffers if layers share `of_layers` of them. */
static inline int unit_slots_count(int of_layers) {
    return UNIT_SLOTS_OF_ENDS + of_layers;
}
/* Makes empty buffers in `slots` [count]. */
void unit_slots_make(struct unit_slots *slots, int units, struct unit_slot *memory, int count);
/* Returns the buffer that a unit lies in, or UNIT_SLOT_NONE. */
int unit_slots_find(const struct unit_slots *slots, int unit);
/* Gives a unit a buffer, and returns it. *is_fetched: the unit was not there, and must be fetched. UNIT_SLOT_NONE if
 * all buffers are in use. */
int unit_slots_take(struct unit_slots *slots, int unit, bool *is_fetched);
/* Empties all buffers, because the weights have changed. None is in use. */
void unit_slots_forget(struct unit_slots *slots);
/* Counts how often each unit is fetched, into fetches [units], when `order` [count] lists the units in the order of
 * their use. All buffers are empty at first, and the next unit is fetched while one is in use. `memory`
 * [unit_slots_count(of_layers)] is scratch. */
void unit_slots_count_fetches(int units, int of_layers, const int *order, int64_t count, struct unit_slot *memory,
                              int64_t *fetches);
