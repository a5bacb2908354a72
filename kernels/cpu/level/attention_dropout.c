/* Which probabilities are kept: rng_dropout_word of base/rng.h for many elements at once, as one bit a key.
 *
 * A block of 64 elements is 16 counters of four words. Of Philox's ten rounds, the first two and half of the third
 * depend on the block or on the sample alone, but for one word of the row: they are done once for many rows. */
#include "cpu/level/attention-internal.h"

enum { BLOCK = 64, COUNTERS = 16, COUNTER_VECTORS = COUNTERS / SIMD_LANES };

static const uint32_t multiplier0 = 0xd2511f53u, multiplier1 = 0xcd9e8d57u;
static const uint32_t weyl0 = 0x9e3779b9u, weyl1 = 0xbb67ae85u;

/* The counters (element, token, sample, kind and site) of one block of elements after two rounds, as far as they do not
 * depend on the row's token; and what round three makes of c0, which never does. */
struct block_state {
    uint32_t key0[10], key1[10];
    uint32_t sample_high; /* round one's c0 is this, the token and the key */
    vword c1[COUNTER_VECTORS];
    vword c2[COUNTER_VECTORS];                         /* less the high product of round one's c0 */
    vword low[COUNTER_VECTORS], high[COUNTER_VECTORS]; /* product of c0 */
};

static void block_begin(struct block_state *s, uint64_t seed, uint32_t site, uint32_t sample, uint32_t block) {
    for (uint32_t round = 0; round < 10; round++) {
        s->key0[round] = (uint32_t)seed + round * weyl0;
        s->key1[round] = (uint32_t)(seed >> 32) + round * weyl1;
    }
    uint64_t product = (uint64_t)multiplier1 * sample;
    s->sample_high = (uint32_t)(product >> 32);
    for (int v = 0; v < COUNTER_VECTORS; v++) {
        vword low, high, low2, high2;
        simd_multiply(simd_words_from(block * COUNTERS + (uint32_t)(v * SIMD_LANES)), multiplier0, &low, &high);
        simd_multiply(high ^ simd_words((uint32_t)RNG_ATTENTION_DROPOUT << 24 | site) ^ simd_words(s->key1[0]),
                      multiplier1, &low2, &high2);
        vword c0 = high2 ^ simd_words((uint32_t)product) ^ simd_words(s->key0[1]);
        s->c1[v] = low2;
        s->c2[v] = low ^ simd_words(s->key1[1]);
        simd_multiply(c0, multiplier0, &s->low[v], &s->high[v]);
    }
}

/* The block's bits of one row: bit e is set when element e's word reaches the threshold. */
ATTENTION_INLINE uint64_t block_kept(const struct block_state *s, uint32_t token, vword threshold) {
    uint64_t product = (uint64_t)multiplier0 * (s->sample_high ^ token ^ s->key0[0]);
    uint64_t bits = 0;
    for (int v = 0; v < COUNTER_VECTORS; v++) {
        vword low, high;
        simd_multiply(s->c2[v] ^ simd_words((uint32_t)(product >> 32)), multiplier1, &low, &high);
        vword c0 = high ^ s->c1[v] ^ simd_words(s->key0[2]), c1 = low;
        vword c2 = s->high[v] ^ simd_words((uint32_t)product) ^ simd_words(s->key1[2]), c3 = s->low[v];
#pragma GCC unroll 7
        for (int round = 3; round < 10; round++) {
            vword low0, high0, low1, high1;
            simd_multiply(c0, multiplier0, &low0, &high0);
            simd_multiply(c2, multiplier1, &low1, &high1);
            c0 = high1 ^ c1 ^ simd_words(s->key0[round]);
            c2 = high0 ^ c3 ^ simd_words(s->key1[round]);
            c1 = low1;
            c3 = low0;
        }
        bits |= ((uint64_t)simd_at_least(c0, threshold) | (uint64_t)simd_at_least(c1, threshold) << 16 |
                 (uint64_t)simd_at_least(c2, threshold) << 32 | (uint64_t)simd_at_least(c3, threshold) << 48)
                << (v * SIMD_LANES);
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
