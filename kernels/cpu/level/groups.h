/* How threads divide a grouped operation (ops.h). Each segment's rows and columns are cut into tiles. The total cost of
 * all tiles is divided evenly among the threads, and a thread takes the tiles that begin in its share. */
#pragma once

#include "cpu/level/rows.h"

enum {
    GROUP_ROWS = 24,          /* rows of a tile */
    GROUP_COLS = 64,          /* columns of a tile */
    GROUP_COST = 256,         /* the cost of starting a tile, in multiply-adds */
    GROUP_PARALLEL = 1 << 15, /* the fewest multiply-adds for which more threads are worth waking */
};

struct group_tile {
    const struct group_entry *entry;
    int64_t row, rows; /* of the batch */
    int64_t col, cols; /* of the entry's outputs */
};

/* A call of a grouped operation. */
struct group_work {
    int64_t count;
    const struct group_segment *segments;
    int64_t entry, first_row, rows;
    bool is_product; /* true: an output costs k multiply-adds; false: one */
    const void *call;
    void (*run)(const void *call, const struct group_tile *tile); /* computes one tile */
};

/* The part of a call in one segment. */
struct group_part {
    const struct group_entry *entry;
    int64_t first, rows; /* of the batch */
    int64_t down, tiles; /* number of tiles: in a column, and in all */
    int64_t cost;        /* of each tile */
};

/* Returns the smaller one. */
static inline int64_t group_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Returns the part of the call in a segment; one without tiles if there is nothing to do. */
static inline struct group_part group_part(const struct group_work *w, int64_t segment) {
    const struct group_segment *s = &w->segments[segment];
    int64_t first = s->first_row > w->first_row ? s->first_row : w->first_row;
    int64_t rows = group_least(s->first_row + s->rows, w->first_row + w->rows) - first;
    struct group_part part = {.entry = s->entries ? s->entries + w->entry : NULL, .first = first, .rows = rows};
    if (!part.entry || part.entry->n <= 0 || rows <= 0)
        return part;
    int64_t n = part.entry->n, depth = w->is_product ? part.entry->k : 1;
    part.down = (rows + GROUP_ROWS - 1) / GROUP_ROWS;
    part.tiles = part.down * ((n + GROUP_COLS - 1) / GROUP_COLS);
    part.cost = GROUP_COST + group_least(rows, GROUP_ROWS) * group_least(n, GROUP_COLS) * depth;
    return part;
}

/* Runs the tiles that begin in [begin, end) of the total cost. */
static inline void share_of_groups(const struct group_work *w, int64_t begin, int64_t end) {
    int64_t before = 0;
    for (int64_t s = 0; s < w->count && before < end; s++) {
        struct group_part part = group_part(w, s);
        int64_t i = begin > before && part.tiles ? (begin - before + part.cost - 1) / part.cost : 0;
        for (; i < part.tiles && before + i * part.cost < end; i++) {
            int64_t row = i % part.down * GROUP_ROWS, col = i / part.down * GROUP_COLS;
            w->run(w->call, &(struct group_tile){.entry = part.entry,
                                                 .row = part.first + row,
                                                 .rows = group_least(part.rows - row, GROUP_ROWS),
                                                 .col = col,
                                                 .cols = group_least(part.entry->n - col, GROUP_COLS)});
        }
        before += part.tiles * part.cost;
    }
}

/* Runs all tiles of a call on the device's threads. Returns STATUS_OK. */
static inline int every_group(const struct exec *exec, const struct group_work *w) {
    int64_t total = 0;
    for (int64_t s = 0; s < w->count; s++) {
        struct group_part part = group_part(w, s);
        total += part.tiles * part.cost;
    }
    int shares = total < GROUP_PARALLEL ? 1 : exec_threads(exec);
#pragma omp parallel for num_threads(shares) schedule(static)
    for (int share = 0; share < shares; share++)
        share_of_groups(w, total * share / shares, total * (share + 1) / shares);
    return STATUS_OK;
}
