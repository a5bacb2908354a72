/* Lays the arrays of a plan out in a block. */
#include "infer/plan.h"

enum { ARRAYS = 15 };

/* An array of a plan: its pointer, the size of an element, and the number of elements. */
struct plan_array {
    void **at;
    size_t width;
    int64_t count;
};

static void list_arrays(struct plan *p, const struct plan_counts *n, struct plan_array arrays[ARRAYS]) {
#define ARRAY(field, number)                                                                                           \
    { (void **)&p->field, sizeof *p->field, number }
    const struct plan_array all[ARRAYS] = {
        ARRAY(tokens, n->rows),       ARRAY(positions, n->rows),       ARRAY(sequence, n->rows),
        ARRAY(cached, n->rows),       ARRAY(place, n->rows),           ARRAY(segments, n->segments),
        ARRAY(pages, n->pages),       ARRAY(prefixes, n->prefixes),    ARRAY(prefix_sequence, n->prefixes),
        ARRAY(places, n->places),     ARRAY(logit_row, n->logit_rows), ARRAY(labels, n->logit_rows),
        ARRAY(sample, n->logit_rows), ARRAY(changes, n->changes),      ARRAY(bytes, n->bytes),
    };
#undef ARRAY
    memcpy(arrays, all, sizeof all);
}

static void place(struct plan *plan, const struct plan_counts *counts, struct arena *arena) {
    struct plan_array arrays[ARRAYS];
    list_arrays(plan, counts, arrays);
    for (int i = 0; i < ARRAYS; i++)
        *arrays[i].at = arena_take(arena, (size_t)arrays[i].count * arrays[i].width);
}

size_t plan_block_bytes(const struct plan_counts *counts) {
    struct plan unused;
    struct arena arena = ARENA_PLAN;
    place(&unused, counts, &arena);
    return arena.used;
}

void plan_place(struct plan *plan, const struct plan_counts *counts, void *block) {
    struct arena arena = arena_over(block, plan_block_bytes(counts));
    place(plan, counts, &arena);
}

void plan_pack(const struct plan *plan, void *block) {
    struct plan from = *plan, to;
    struct plan_array source[ARRAYS], target[ARRAYS];
    plan_place(&to, &plan->header.counts, block);
    list_arrays(&from, &plan->header.counts, source);
    list_arrays(&to, &plan->header.counts, target);
    for (int i = 0; i < ARRAYS; i++)
        if (source[i].count)
            memcpy(*target[i].at, *source[i].at, (size_t)source[i].count * source[i].width);
}

int plan_check(const struct plan_header *header, const struct plan_counts *most, int64_t masks) {
    struct plan unused;
    struct plan_array arrays[ARRAYS], largest[ARRAYS];
    list_arrays(&unused, &header->counts, arrays);
    list_arrays(&unused, most, largest);
    bool fits = header->masks >= 0 && header->masks <= masks;
    for (int i = 0; i < ARRAYS; i++)
        fits = fits && arrays[i].count >= 0 && arrays[i].count <= largest[i].count;
    return fits ? STATUS_OK
                : status_fail(STATUS_INVALID, "plan %lld is larger than plans can be: its ranks do not run one program",
                              (long long)header->number);
}
