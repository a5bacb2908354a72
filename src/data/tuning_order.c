/* Decides which rows are sample k: a permutation that gives any place directly, packing by first fit, and several files
 * by weight. */
#include "tuning-internal.h"

/* A Feistel network whose round function is Philox permutes 2^(2h) numbers; a result that is not a row is permuted
 * again until it is one. There are at least 2^8 numbers, so that few rows can also come in every order. */
static int64_t tuning_shuffle(uint64_t seed, uint32_t pool, uint32_t epoch, int64_t count, int64_t i) {
    enum { ROUNDS = 4 };
    unsigned half = 4;
    while (count >> 2 * half)
        half++;
    uint32_t mask = (uint32_t)(((uint64_t)1 << half) - 1);
    uint64_t at = (uint64_t)i;
    do {
        uint32_t left = (uint32_t)(at >> half), right = (uint32_t)at & mask;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            struct philox r = philox(seed, right, round, epoch, (uint32_t)RNG_SHUFFLE << 24 | pool);
            uint32_t next = left ^ (r.word[0] & mask);
            left = right;
            right = next;
        }
        at = (uint64_t)left << half | right;
    } while (at >= (uint64_t)count);
    return (int64_t)at;
}

void tuning_split_free(struct tuning_split *split) {
    for (int64_t p = 0; split->pools && p < split->pool_count; p++) {
        free(split->pools[p].packed);
        free(split->pools[p].pack_start);
    }
    free(split->pools);
    free(split->pool_index);
    free(split->pool_sample_index);
    tuning_rows_free(&split->rows);
    *split = (struct tuning_split){0};
}

size_t tuning_split_bytes(const struct tuning_split *split, int64_t length) {
    size_t bytes = tuning_rows_bytes(&split->rows) + (size_t)split->pool_count * sizeof *split->pools;
    for (int64_t p = 0; p < split->pool_count; p++)
        if (split->pools[p].packed)
            bytes += (2 * (size_t)split->pools[p].rows + 2) * sizeof(uint32_t);
    if (split->pool_index)
        bytes += (size_t)length * (sizeof *split->pool_index + sizeof *split->pool_sample_index);
    return bytes;
}

/* The free rows of the packs as a tree of maxima. Leaf i is pack i; packs not yet begun are all free. */
struct free_rows {
    int64_t leaves; /* a power of 2 */
    int64_t *most;  /* [2 * leaves]; the root is entry 1 */
};

/* Puts a row into the first pack with room for it. */
static int64_t first_fit(struct free_rows *tree, int64_t need) {
    int64_t node = 1;
    while (node < tree->leaves)
        node = tree->most[2 * node] >= need ? 2 * node : 2 * node + 1;
    int64_t pack = node - tree->leaves;
    tree->most[node] -= need;
    while (node /= 2)
        tree->most[node] =
            tree->most[2 * node] > tree->most[2 * node + 1] ? tree->most[2 * node] : tree->most[2 * node + 1];
    return pack;
}

static int pack_pool(const struct tuning_split *split, struct tuning_pool *pool, uint32_t number, int64_t extra,
                     int64_t most) {
    struct free_rows tree = {.leaves = 1};
    while (tree.leaves < pool->rows)
        tree.leaves *= 2;
    size_t rows = (size_t)pool->rows;
    uint32_t *pack = malloc(rows * sizeof *pack);
    tree.most = malloc(2 * (size_t)tree.leaves * sizeof *tree.most);
    pool->packed = malloc(rows * sizeof *pool->packed);
    pool->pack_start = calloc(rows + 2, sizeof *pool->pack_start);
    if (!pack || !tree.most || !pool->packed || !pool->pack_start) {
        free(pack);
        free(tree.most);
        return status_fail(STATUS_MEMORY, "no memory to pack %zu rows", rows);
    }
    for (int64_t i = 0; i < 2 * tree.leaves; i++)
        tree.most[i] = most;
    int64_t packs = 0;
    for (int64_t i = 0; i < pool->rows; i++) {
        int64_t row = split->is_shuffled ? tuning_shuffle(split->seed, number, UINT32_MAX, pool->rows, i) : i;
        int64_t into = first_fit(&tree, tuning_row_length(&split->rows, pool->first_row + row) +
                                            (split->rows.has_pairs ? 2 : 1) * extra);
        pack[i] = (uint32_t)into;
        packs = into < packs ? packs : into + 1;
        pool->pack_start[into + 2]++;
    }
    for (int64_t p = 2; p <= packs; p++)
        pool->pack_start[p] += pool->pack_start[p - 1];
    for (int64_t i = 0; i < pool->rows; i++) { /* in the same order; entry p + 1 moves from the start of p to its end */
        int64_t row = split->is_shuffled ? tuning_shuffle(split->seed, number, UINT32_MAX, pool->rows, i) : i;
        pool->packed[pool->pack_start[pack[i] + 1]++] = (uint32_t)(pool->first_row + row);
    }
    pool->samples = packs;
    free(pack);
    free(tree.most);
    return STATUS_OK;
}

int tuning_split_pack(struct tuning_split *split, int64_t extra, int64_t most) {
    int status = STATUS_OK;
    for (int64_t p = 0; p < split->pool_count && !status; p++)
        status = pack_pool(split, &split->pools[p], (uint32_t)p, extra, most);
    return status;
}

int64_t tuning_split_sample(const struct tuning_split *split, int64_t k, const uint32_t **packed, int64_t *row) {
    uint32_t number = split->pool_index ? (uint32_t)split->pool_index[k] : 0;
    const struct tuning_pool *pool = &split->pools[number];
    int64_t i = split->pool_index ? split->pool_sample_index[k] : k;
    int64_t epoch = i / pool->samples, place = i % pool->samples;
    if (split->is_shuffled)
        place = tuning_shuffle(split->seed, number, (uint32_t)epoch, pool->samples, place);
    *row = pool->first_row + place;
    *packed = NULL;
    if (!pool->packed)
        return 1;
    *packed = pool->packed + pool->pack_start[place];
    return pool->pack_start[place + 1] - pool->pack_start[place];
}
