/* Computes which probabilities dropout keeps: rng_dropout_word of base/rng.h for many elements at once, one bit a key.
 *
 * A block of 64 elements is 16 counters of four words. Except for one word, the first two of Philox's ten rounds and
 * half of the third do not depend on the row. They are computed once for many rows. Even and odd counters are in
 * separate vectors. Each number is in an even word, where a product reads its factors and writes its lower half. */
#include "cpu/level/attention-internal.h"

enum { BLOCK = 64, COUNTERS = 16, COUNTER_VECTORS = COUNTERS / SIMD_LANES, ROUNDS = 10 };

static const uint32_t multiplier0 = 0xd2511f53u, multiplier1 = 0xcd9e8d57u;
static const uint32_t weyl0 = 0x9e3779b9u, weyl1 = 0xbb67ae85u;

/* The counters (element, token, sample, kind and site) of one block after two rounds, as far as they do not depend on
 * the row's token. Round three's product of c0 never depends on it. */
struct block_state {
    vword key0[ROUNDS], key1[ROUNDS];
    uint32_t first_c0; /* round one's c0 is this and the token */
    struct lanes {
        vword c1, c2; /* c2 less the high product of round one's c0 */
        vword product;
    } lanes[COUNTER_VECTORS][2]; /* of the even and the odd counters */
};

static void block_begin(struct block_state *s, uint64_t seed, uint32_t site, uint32_t sample, uint32_t block) {
    for (uint32_t round = 0; round < ROUNDS; round++) {
        s->key0[round] = simd_words((uint32_t)seed + round * weyl0);
        s->key1[round] = simd_words((uint32_t)(seed >> 32) + round * weyl1);
    }
    uint64_t product = (uint64_t)multiplier1 * sample;
    s->first_c0 = (uint32_t)(product >> 32) ^ (uint32_t)seed;
    for (int v = 0; v < COUNTER_VECTORS; v++) {
        vword counters = simd_words_from(block * COUNTERS + (uint32_t)(v * SIMD_LANES));
        for (int odd = 0; odd < 2; odd++) {
            struct lanes *lanes = &s->lanes[v][odd];
            vword a = simd_product(odd ? simd_odd_words(counters) : counters, simd_words(multiplier0));
            vword c2 = simd_odd_words(a) ^ simd_words((uint32_t)RNG_ATTENTION_DROPOUT << 24 | site) ^ s->key1[0];
            lanes->c1 = simd_product(c2, simd_words(multiplier1));
            vword c0 = simd_odd_words(lanes->c1) ^ simd_words((uint32_t)product) ^ s->key0[1];
            lanes->c2 = a ^ s->key1[1];
            lanes->product = simd_product(c0, simd_words(multiplier0));
        }
    }
}

struct counters {
    vword c0, c1, c2, c3;
};

/* Runs rounds two to nine for a row. `row` is round one's product of its c0. */
ATTENTION_INLINE struct counters finish_rounds(const struct block_state *s, const struct lanes *lanes, uint64_t row) {
    vword by0 = simd_words(multiplier0), by1 = simd_words(multiplier1);
    vword b = simd_product(lanes->c2 ^ simd_words((uint32_t)(row >> 32)), by1);
    struct counters c = {.c0 = simd_odd_words(b) ^ lanes->c1 ^ s->key0[2],
                         .c1 = b,
                         .c2 = simd_odd_words(lanes->product) ^ simd_words((uint32_t)row) ^ s->key1[2],
                         .c3 = lanes->product};
#pragma GCC unroll 7
    for (int round = 3; round < ROUNDS; round++) {
        vword a = simd_product(c.c0, by0);
        b = simd_product(c.c2, by1);
        c.c0 = simd_odd_words(b) ^ c.c1 ^ s->key0[round];
        c.c2 = simd_odd_words(a) ^ c.c3 ^ s->key1[round];
        c.c1 = b;
        c.c3 = a;
    }
    return c;
}

/* Returns the block's bits of one row: bit e is set if element e's word is at least the threshold. */
ATTENTION_INLINE uint64_t block_kept(const struct block_state *s, uint32_t token, vword threshold) {
    uint64_t row = (uint64_t)multiplier0 * (s->first_c0 ^ token), bits = 0;
    for (int v = 0; v < COUNTER_VECTORS; v++) {
        struct counters even = finish_rounds(s, &s->lanes[v][0], row), odd = finish_rounds(s, &s->lanes[v][1], row);
        uint64_t w0 = simd_at_least(simd_weave(even.c0, odd.c0), threshold);
        uint64_t w1 = simd_at_least(simd_weave(even.c1, odd.c1), threshold);
        uint64_t w2 = simd_at_least(simd_weave(even.c2, odd.c2), threshold);
        uint64_t w3 = simd_at_least(simd_weave(even.c3, odd.c3), threshold);
        bits |= (w0 | w1 << 16 | w2 << 32 | w3 << 48) << (v * SIMD_LANES);
    }
    return bits;
}

int LEVEL(attention_key_runs)(const struct attention *a, int64_t segment, int64_t first, struct key_run *runs) {
    int64_t start = a->segment_start[segment], rows = a->segment_start[segment + 1] - start;
    int count = 0;
    for (int lane = 0; lane < CHUNK_KEYS && first + lane < a->prefix + rows; lane++) {
        int64_t key = first + lane;
        uint32_t element =
            key < a->prefix ? (uint32_t)(0x80000000 - a->prefix + key) : a->dropout.keys.token[start + key - a->prefix];
        if (count && element == runs[count - 1].element + (uint32_t)runs[count - 1].count)
            runs[count - 1].count++;
        else
            runs[count++] = (struct key_run){.lane = lane, .count = 1, .element = element};
    }
    return count;
}

/* Adds one block's part of a run to the rows' bits. */
static void keep_block(const struct attention *a, uint32_t site, int64_t first_row, int rows, const struct key_run *run,
                       uint32_t block, uint64_t *kept) {
    const struct dropout *dropout = &a->dropout;
    const uint32_t *sample = dropout->keys.sample + first_row, *token = dropout->keys.token + first_row;
    vword threshold = simd_words(rng_dropout_threshold(dropout->p));
    int64_t shift = (int64_t)block * BLOCK - run->element; /* of the block's element 0 inside the run */
    uint64_t wanted = first_bits(run->count);
    struct block_state state;
    for (int r = 0; r < rows; r++) {
        if (r == 0 || sample[r] != sample[r - 1])
            block_begin(&state, dropout->seed, site, sample[r], block);
        uint64_t bits = block_kept(&state, token[r], threshold);
        bits = shift < 0 ? bits >> -shift : bits << shift;
        kept[r] |= (bits & wanted) << run->lane;
    }
}

void LEVEL(attention_kept)(const struct attention *a, int head, int64_t first_row, int rows, const struct key_run *runs,
                           int count, uint64_t *kept) {
    uint32_t site = a->dropout.site + (uint32_t)(a->first_head + head);
    memset(kept, 0, (size_t)rows * sizeof *kept);
    for (int i = 0; i < count; i++) {
        uint32_t last = runs[i].element + (uint32_t)runs[i].count - 1;
        for (uint32_t block = runs[i].element / BLOCK; block <= last / BLOCK; block++)
            keep_block(a, site, first_row, rows, &runs[i], block, kept);
    }
}
