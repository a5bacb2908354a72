/* A storage that counts, around another one: every weight is read while its unit is unsharded, and no loan outlives
 * that. It counts for one store of a thread, and notes the first mistake. */
#pragma once

#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

enum { COUNTING_UNITS = 16, COUNTING_PARAMS = 256 };

struct counting {
    const struct storage *inner;
    struct counting_unit {
        bool is_whole;
        enum param_use use;        /* while it is whole */
        int loans;                 /* that are open */
        int unsharded[PARAM_USES]; /* times */
        int lent[PARAM_USES];      /* loans to read, in all */
    } units[COUNTING_UNITS];
    bool is_written[COUNTING_PARAMS]; /* on loan to be written */
    char mistake[160];
};

static _Thread_local struct counting counting;

static inline struct counting_unit *counting_unit(int unit) {
    return &counting.units[unit - PARAM_UNIT_FIRST];
}

static inline void counting_note(const struct param_store *store, int unit, const char *what) {
    if (!*counting.mistake)
        snprintf(counting.mistake, sizeof counting.mistake, "unit %d of %d: %s", unit,
                 param_map_unit_count(store->map.table), what);
}

static inline size_t counting_bytes(const struct param_store *store, enum param_array array) {
    return counting.inner->bytes(store, array);
}

static inline int counting_open(struct param_store *store, const struct param_fill *fill) {
    return counting.inner->open(store, fill);
}

static inline void counting_close(struct param_store *store) {
    counting.inner->close(store);
}

static inline const struct param_range *counting_ranges(const struct param_store *store, enum param_array array,
                                                        int *count) {
    return counting.inner->ranges(store, array, count);
}

static inline struct matrix_view counting_borrow(const struct param_store *store, int id, enum param_form form) {
    int number = store->map.table->rows[id].layer;
    struct counting_unit *unit = counting_unit(number);
    if (form == PARAM_WRITTEN) {
        counting.is_written[id] = true;
        return counting.inner->borrow(store, id, form);
    }
    if (!store->held) /* a sketch lends nothing */
        return counting.inner->borrow(store, id, form);
    if (!unit->is_whole)
        counting_note(store, number, "a weight is lent before its unit is unsharded");
    unit->loans++;
    unit->lent[unit->use]++;
    return counting.inner->borrow(store, id, form);
}

static inline void counting_give_back(const struct param_store *store, int id) {
    if (counting.is_written[id])
        counting.is_written[id] = false;
    else if (store->held)
        counting_unit(store->map.table->rows[id].layer)->loans--;
    if (counting.inner->give_back)
        counting.inner->give_back(store, id);
}

static inline bool counting_is_held(const struct param_store *store, int unit) {
    for (int id = 0; id < store->map.table->count; id++)
        if (store->map.table->rows[id].layer == unit && param_local_elements(store, id))
            return true;
    return false;
}

static inline int counting_unshard(const struct param_store *store, int number, enum param_use use) {
    struct counting_unit *unit = counting_unit(number);
    if (unit->is_whole)
        counting_note(store, number, "it is unsharded twice");
    if (!counting_is_held(store, number))
        counting_note(store, number, "it is unsharded, and this rank holds none of it");
    unit->is_whole = true;
    unit->use = use;
    unit->unsharded[use]++;
    return counting.inner->unshard ? counting.inner->unshard(store, number, use) : STATUS_OK;
}

static inline int counting_reshard(const struct param_store *store, int number) {
    struct counting_unit *unit = counting_unit(number);
    if (!unit->is_whole)
        counting_note(store, number, "it is resharded, and was not unsharded");
    if (unit->loans)
        counting_note(store, number, "it is resharded while a weight is on loan");
    unit->is_whole = false;
    return counting.inner->reshard ? counting.inner->reshard(store, number) : STATUS_OK;
}

static const struct storage storage_counting = {
    .name = "counting",
    .bytes = counting_bytes,
    .open = counting_open,
    .close = counting_close,
    .borrow = counting_borrow,
    .give_back = counting_give_back,
    .unshard = counting_unshard,
    .reshard = counting_reshard,
    .ranges = counting_ranges,
};

/* Before the store is sketched: what it is counted around. */
static inline const struct storage *counting_begin(const struct storage *inner) {
    counting = (struct counting){.inner = inner};
    return &storage_counting;
}

/* Forgets the counts, not a mistake. */
static inline void counting_reset(void) {
    for (int u = 0; u < COUNTING_UNITS; u++) {
        memset(counting.units[u].unsharded, 0, sizeof counting.units[u].unsharded);
        memset(counting.units[u].lent, 0, sizeof counting.units[u].lent);
    }
}

/* Fails where a mistake was made, or a unit is still whole. */
static inline int counting_check(void) {
    for (int u = 0; u < COUNTING_UNITS && !*counting.mistake; u++)
        if (counting.units[u].is_whole)
            snprintf(counting.mistake, sizeof counting.mistake, "unit %d was never resharded", u + PARAM_UNIT_FIRST);
    return *counting.mistake ? status_fail(STATUS_INVALID, "%s", counting.mistake) : STATUS_OK;
}

/* Fails unless a unit was unsharded `times` for a use, and weights were lent then; some need no loan. */
static inline int counting_expect(int number, enum param_use use, int times, bool needs_loan) {
    const struct counting_unit *unit = counting_unit(number);
    if (unit->unsharded[use] != times || (needs_loan && times && !unit->lent[use]))
        return status_fail(STATUS_INVALID, "unit %d, use %d: unsharded %d times, expected %d, with %d loans", number,
                           (int)use, unit->unsharded[use], times, unit->lent[use]);
    return STATUS_OK;
}
