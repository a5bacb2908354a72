/* Dropout of attention by tiles: the bits of its elements, which the kernels by tiles read. A call of the generator has
 * the words of four keys that are 16 apart. So 64 keys whose tokens are neighbours from a multiple of 64 on take 16
 * calls, one for each lane of half a warp; other keys take a call each. */
#include "cuda/attention_dropout.cuh"
#include "cuda/philox.cuh"

enum { LANES = KEPT_COLUMNS / 4 };
static_assert(TILE_WARPS == ATTENTION_WARPS, "launched with as many warps as the plain kernels");

/* rng_dropout_threshold() without double precision: a power of two rounds nothing. */
static __device__ __forceinline__ uint32_t threshold_of(const struct attention &a) {
    return (uint32_t)(a.dropout.p * 0x1p32f);
}

/* The words of a query row of a head. */
struct row_words {
    uint64_t seed;
    uint32_t sample, token, site;

    __device__ __forceinline__ struct philox at(uint32_t counter) const {
        return philox_words(seed, counter, token, sample, site);
    }
    /* The word of an element. A chosen word stays in a register where an index would need memory. */
    __device__ __forceinline__ uint32_t of(uint32_t element) const {
        struct philox r = at(rng_element_counter(element));
        uint32_t place = rng_element_word(element);
        return place & 2 ? (place & 1 ? r.word[3] : r.word[2]) : place & 1 ? r.word[1] : r.word[0];
    }
};

/* The elements of a lane's four columns, 16 apart. */
struct lane_elements {
    uint32_t element[4]; /* for columns without a key any */
    bool are_neighbours; /* those of all lanes: their four words are those of one counter */

    __device__ __forceinline__ void open(const struct attention &a, const kept_row &own, int64_t row, int column) {
        int prefixes = columns_of_prefix(a);
        uint32_t first = column < prefixes ? 0x80000000u - prefixes
                                           : a.dropout.keys.token[own.start] / KEPT_COLUMNS * KEPT_COLUMNS - prefixes;
        bool are_next = true;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = column + i * LANES;
            int64_t key = at - own.offset;
            element[i] = first + at;
            if (column >= prefixes && key >= own.start && key <= row) {
                uint32_t token = a.dropout.keys.token[key];
                are_next &= token == element[i];
                element[i] = token;
            }
        }
        are_neighbours = __all_sync(~0u, are_next);
    }
    /* Bit l of word i: column 16 i of lane l is kept. */
    __device__ __forceinline__ uint4 find(const row_words &words, uint32_t threshold) const {
        uint4 kept;
        if (are_neighbours) {
            struct philox r = words.at(rng_element_counter(element[0]));
            kept.x = __ballot_sync(~0u, r.word[0] >= threshold);
            kept.y = __ballot_sync(~0u, r.word[1] >= threshold);
            kept.z = __ballot_sync(~0u, r.word[2] >= threshold);
            kept.w = __ballot_sync(~0u, r.word[3] >= threshold);
        } else {
            kept.x = __ballot_sync(~0u, words.of(element[0]) >= threshold);
            kept.y = __ballot_sync(~0u, words.of(element[1]) >= threshold);
            kept.z = __ballot_sync(~0u, words.of(element[2]) >= threshold);
            kept.w = __ballot_sync(~0u, words.of(element[3]) >= threshold);
        }
        return kept;
    }
};

/* The last rows, which have the most keys, come first. */
extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP) attention_kept(struct attention_part part) {
    const struct attention &a = part.a;
    int groups = (part.heads + KEPT_HEADS - 1) / KEPT_HEADS, half = lane_number() / LANES;
    int64_t row = a.rows - 1 - (blockIdx.x / groups * TILE_WARPS + threadIdx.x / WARP);
    int first_head = blockIdx.x % groups * KEPT_HEADS, heads = min(KEPT_HEADS, part.heads - first_head);
    if (row < 0)
        return;
    kept_row own;
    own.open(a, row);
    row_words words = {a.dropout.seed, a.dropout.keys.sample[row], a.dropout.keys.token[row], 0};
    uint32_t threshold = threshold_of(a);
#pragma unroll 1
    for (int pair = own.low / 2; pair <= own.high / 2; pair += 2) {
        int mine = pair + half;
        lane_elements elements;
        elements.open(a, own, row, mine * KEPT_COLUMNS + lane_number() % LANES);
#pragma unroll 1
        for (int h = first_head; h < first_head + heads; h++) {
            words.site = (uint32_t)RNG_ATTENTION_DROPOUT << 24 |
                         (a.dropout.site + (uint32_t)(a.first_head + part.first_head + h));
            uint4 kept = elements.find(words, threshold);
            uint32_t halves = half ? 0x7632 : 0x5410;
            if (lane_number() % LANES == 0 && mine <= own.high / 2)
                *(uint2 *)(part.kept + (h * a.rows + row) * part.kept_words + mine * 2) =
                    make_uint2(__byte_perm(kept.x, kept.y, halves), __byte_perm(kept.z, kept.w, halves));
        }
    }
}
