/* Dropout of attention by tiles: which elements of a warp's scores are kept. base/rng.h decides that by an element's
 * word. A call of the generator has the words of four keys that are 16 apart. So 64 keys whose tokens are neighbours
 * from a multiple of 64 on take 16 calls for each query, and all other keys take a call each. */
#pragma once

#include "cuda/attention_tiles.cuh"

enum { DROPOUT_KEYS = 64 };

static __device__ __forceinline__ float keep_scale(const struct attention &a) {
    return 1.0f / (1.0f - a.dropout.p);
}

/* rng_dropout_threshold() without double precision: a power of two rounds nothing. */
static __device__ __forceinline__ uint32_t threshold_of(const struct attention &a) {
    return (uint32_t)(a.dropout.p * 0x1p32f);
}

/* A query row's part of the generator's counter. */
struct row_words {
    uint32_t sample, token;

    __device__ __forceinline__ void open(const struct attention &a, int64_t row) {
        sample = a.dropout.keys.sample[row];
        token = a.dropout.keys.token[row];
    }
};

/* The words of a head. */
struct head_words {
    uint64_t seed;
    uint32_t site;

    /* The asm keeps the compiler from computing the keys of ten rounds far from here: they take 20 registers. */
    __device__ __forceinline__ void open(const struct attention &a, int head) {
        seed = a.dropout.seed;
        asm volatile("" : "+l"(seed));
        site = (uint32_t)RNG_ATTENTION_DROPOUT << 24 | (a.dropout.site + (uint32_t)(a.first_head + head));
    }
    /* philox() of base/rng.h. The asm keeps the compiler from computing in 64 bits, which takes half as much again. */
    __device__ __forceinline__ struct philox at(const row_words &row, uint32_t counter) const {
        struct philox c = {{counter, row.token, row.sample, site}};
        uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma unroll
        for (int round = 0; round < 10; round++) {
            uint64_t a, b;
            asm("mul.wide.u32 %0, %1, %2;" : "=l"(a) : "r"(c.word[0]), "r"(0xd2511f53u));
            asm("mul.wide.u32 %0, %1, %2;" : "=l"(b) : "r"(c.word[2]), "r"(0xcd9e8d57u));
            c = {{(uint32_t)(b >> 32) ^ c.word[1] ^ key0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.word[3] ^ key1,
                  (uint32_t)a}};
            key0 += 0x9e3779b9u;
            key1 += 0xbb67ae85u;
        }
        return c;
    }
};

/* Word place % 4. A chosen word stays in a register where an index would need memory. */
static __device__ __forceinline__ uint32_t word_of(const struct philox &r, uint32_t place) {
    return place & 2 ? (place & 1 ? r.word[3] : r.word[2]) : place & 1 ? r.word[1] : r.word[0];
}

/* The bits of a warp's query rows. Bit 4 n + e is of the lane's element s[n][e]. */
struct kept_columns {
    uint32_t bits; /* of 64 keys */
    int block;     /* the number of these keys; below 0: none are there */

    __device__ __forceinline__ void open() {
        block = -1;
        bits = 0;
    }

    /* Returns the bits of COUNT keys from key `first` on. */
    template <int COUNT>
    __device__ __forceinline__ uint32_t get(const struct attention &a, const query_tile &work, const seen_columns &seen,
                                            int first) {
        uint32_t element = 0;
        int own = first / DROPOUT_KEYS;
        if (COUNT == DROPOUT_KEYS || block != own) {
            block = are_neighbours(a, work, seen, own * DROPOUT_KEYS, element) ? own : -1;
            if (block >= 0)
                make(a, work, seen, element);
        }
        return block >= 0 ? bits >> first % DROPOUT_KEYS / 2 : one_by_one<COUNT>(a, work, seen, first);
    }

    /* True if those of 64 keys that rows see have neighbouring tokens, such that the first key's `element` is a
     * multiple of 64. */
    static __device__ __forceinline__ bool are_neighbours(const struct attention &a, const query_tile &work,
                                                          const seen_columns &seen, int first, uint32_t &element) {
        int from = first < seen.prefix ? first : max(first, seen.low_least), end = min(first + DROPOUT_KEYS, work.keys);
        element = key_element(a, work.first, min(from, end - 1)) - (from - first);
        bool are_next = element % DROPOUT_KEYS == 0;
#pragma unroll
        for (int key = first + lane_number(); key < first + DROPOUT_KEYS; key += WARP)
            are_next &= key < from || key >= end || key_element(a, work.first, key) == element + (key - first);
        return __all_sync(~0u, are_next);
    }

    /* Columns 8 n + 2 t + e with n of the same parity have a call together: bit j is of its first word. */
    __device__ __forceinline__ void make(const struct attention &a, const query_tile &work, const seen_columns &seen,
                                         uint32_t element) {
        uint32_t threshold = threshold_of(a), counter = element / 4 + lane_number() % 4 * 2;
        head_words words;
        words.open(a, work.head);
        bits = 0;
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            row_words row;
            row.open(a, work.first + (i ? seen.high[1] : seen.high[0]) - seen.prefix);
#pragma unroll 1
            for (int j = 0; j < 4; j++) {
                struct philox r = words.at(row, counter + j / 2 * 8 + j % 2);
                bits |= ((r.word[0] >= threshold) | (r.word[1] >= threshold) << 8 | (r.word[2] >= threshold) << 16 |
                         (uint32_t)(r.word[3] >= threshold) << 24)
                        << (2 * i + j / 2 * 4 + j % 2);
            }
        }
    }

    /* A call for each element, and 1 for those that a row does not see. */
    template <int COUNT>
    static __device__ __forceinline__ uint32_t one_by_one(const struct attention &a, const query_tile &work,
                                                          const seen_columns &seen, int first) {
        uint32_t found = 0;
        head_words words;
        words.open(a, work.head);
#pragma unroll 1
        for (int j = 0; j < COUNT / 2; j++) {
            int key = first + j / 4 * 8 + lane_number() % 4 * 2 + j % 2;
            int low = j & 2 ? seen.low[1] : seen.low[0], high = j & 2 ? seen.high[1] : seen.high[0];
            bool is_kept = true;
            if (key < seen.prefix || (key >= low && key <= high)) {
                row_words row;
                row.open(a, work.first + high - seen.prefix);
                uint32_t element = key_element(a, work.first, key);
                is_kept =
                    word_of(words.at(row, rng_element_counter(element)), rng_element_word(element)) >= threshold_of(a);
            }
            found |= (uint32_t)is_kept << j;
        }
        return found;
    }
};

/* The bits of a block's 64 keys and a tile of QUERIES queries, which the block computes together. Bit k of pair[i][w]
 * is of key 16 w + k % 16 and query 2 i + k / 16. */
template <int QUERIES> struct kept_queries {
    uint32_t pair[QUERIES / 2][TILE_WARPS];

    /* Returns this warp's bits. Bit 4 n + e is of the lane's element s[n][e]. */
    __device__ __forceinline__ uint32_t get() const {
        uint32_t bits = 0;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            uint32_t two = pair[n * 4 + lane_number() % 4][threadIdx.x / WARP] >> lane_number() / 4;
            bits |= ((two & 1) | (two >> 15 & 2) | (two >> 6 & 4) | (two >> 21 & 8)) << 4 * n;
        }
        return bits;
    }
};

/* A lane computes the keys 16 w + lane % 16 of a block, w = 0 .. 3. */
struct mask_maker {
    uint32_t counter[2]; /* of the generator: of the first of these keys, and of the last */
    uint32_t places;     /* byte w: the number of key w's word, plus 4 if it is of the second counter */
    bool is_whole;       /* the words of all lanes are the first counter's 0 .. 3 */
    bool is_one_by_one;  /* a key of some lane has another counter */

    template <class F> __device__ __forceinline__ void open(F element_at) {
        uint32_t element[4];
        bool has_two = true;
        places = 0;
#pragma unroll
        for (int w = 0; w < 4; w++)
            element[w] = element_at(16 * w + lane_number() % 16);
        counter[0] = rng_element_counter(element[0]);
        counter[1] = rng_element_counter(element[3]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t own = rng_element_counter(element[w]);
            has_two &= own == counter[0] || own == counter[1];
            places |= (rng_element_word(element[w]) | (own == counter[0] ? 0 : 4)) << 8 * w;
        }
        is_whole = __all_sync(~0u, has_two && places == 0x03020100);
        is_one_by_one = !__all_sync(~0u, has_two);
    }

    /* The words of the lane's four keys for a query row. */
    template <class F>
    __device__ __forceinline__ struct philox at(const head_words &head, const row_words &row, F element_at) const {
        struct philox found = {};
        if (is_one_by_one) {
#pragma unroll 1
            for (int w = 0; w < 4; w++) {
                uint32_t element = element_at(16 * w + lane_number() % 16);
                uint32_t word = word_of(head.at(row, rng_element_counter(element)), rng_element_word(element));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    found.word[i] = w == i ? word : found.word[i];
            }
            return found;
        }
        struct philox first = head.at(row, counter[0]);
        if (is_whole)
            return first;
        struct philox second = head.at(row, counter[1]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t place = places >> 8 * w;
            found.word[w] = place & 4 ? word_of(second, place) : word_of(first, place);
        }
        return found;
    }

    /* Writes the bits of the queries from `row` on, of `count`. */
    template <int QUERIES, class F>
    __device__ __forceinline__ void make(const struct attention &a, int head, int64_t row, int count, F element_at,
                                         kept_queries<QUERIES> &mask) const {
        uint32_t threshold = threshold_of(a);
        head_words words;
        words.open(a, head);
#pragma unroll 1
        for (int i = (int)threadIdx.x / WARP; i < QUERIES / 2; i += TILE_WARPS) {
            row_words query;
            query.open(a, row + min(2 * i + lane_number() / 16, count - 1));
            struct philox r = at(words, query, element_at);
            uint4 bits;
            bits.x = __ballot_sync(~0u, r.word[0] >= threshold);
            bits.y = __ballot_sync(~0u, r.word[1] >= threshold);
            bits.z = __ballot_sync(~0u, r.word[2] >= threshold);
            bits.w = __ballot_sync(~0u, r.word[3] >= threshold);
            if (lane_number() == 0)
                *(uint4 *)mask.pair[i] = bits;
        }
    }
};
