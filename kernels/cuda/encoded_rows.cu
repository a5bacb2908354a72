/* Products of few rows with an encoded weight. Memory is the limit. A warp copies tiles with the terms of their groups
 * to shared memory, some tiles ahead. The first copies begin before the kernels before this one have ended.
 *
 * Tensor cores multiply numbers of codes, which bf16 has exactly, or two bf16 of them. The weight's outputs are rows of
 * the products, and rows of x are columns. The sums of a group are multiplied once by its scale:
 *
 *     y += scale * sum of number * x - shift * sum of x
 *
 * A product with ones makes the sums of x. Warps share the depth in whole tiles, and their sums are added in their
 * order. So an element of C has the same bits whatever the number of rows. */
#include "cuda/encoded.cuh"
#include "cuda/few_rows.cuh"
#include "cuda/mma.cuh"

enum { PLACES = ENCODED_PLACES, SPLITS = ENCODED_SPLITS, STEP = ENCODED_STEP, PANEL = ENCODED_PANEL };

/* How the codes of a step become fragments, and low parts of numbers that have two. WORDS: of a step, from `codes` on.
 */
struct nibbles {
    static constexpr int WORDS = 1, HAS_TABLE = false;
    static __device__ __forceinline__ void read(const uint32_t *codes, const uint32_t *, uint32_t (&a)[4],
                                                uint32_t (&)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = nibbles_to_numbers(codes[0] >> 4 * i & 0x000f000f);
    }
};
struct tables {
    static constexpr int WORDS = 1, HAS_TABLE = true;
    static __device__ __forceinline__ void read(const uint32_t *codes, const uint32_t *table, uint32_t (&a)[4],
                                                uint32_t (&low)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t one = table[(codes[0] >> 4 * i & 15) * ENCODED_LANES];
            uint32_t two = table[(codes[0] >> (4 * i + 16) & 15) * ENCODED_LANES];
            a[i] = __byte_perm(one, two, 0x5410);
            low[i] = __byte_perm(one, two, 0x7632);
        }
    }
};
template <uint32_t NUMBERS(uint32_t)> struct pairs_of_bytes {
    static constexpr int WORDS = 2, HAS_TABLE = false;
    static __device__ __forceinline__ void read(const uint32_t *codes, const uint32_t *, uint32_t (&a)[4],
                                                uint32_t (&)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = NUMBERS(codes[i / 2] >> 8 * (i % 2) & 0x00ff00ff);
    }
};
typedef pairs_of_bytes<bytes_to_numbers> bytes;
typedef pairs_of_bytes<e4m3_to_numbers> e4m3;

/* This lane's sums of outputs g and g + 8 with two of each eight rows: of the group, of its x, and of groups before. */
template <int TILES> struct lane_sums {
    float group[TILES][4], x[TILES][4], all[TILES][4];
    float scale[2], shift[2]; /* of the group */

    /* `terms`: scales and shifts of the group's outputs. */
    __device__ __forceinline__ void open_group(const float2 *terms) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 own = terms[threadIdx.x % 32 / 4 + 8 * h];
            scale[h] = own.x;
            shift[h] = own.y;
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                group[j][e] = x[j][e] = 0;
    }
    __device__ __forceinline__ void close_group() {
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                all[j][e] += scale[e / 2] * group[j][e] - shift[e / 2] * x[j][e];
        clear();
    }
};

/* A lane's elements of x in some steps: of row g of each eight, from 4 t on. */
template <int TILES, int STEPS> struct lane_rows {
    uint2 at[STEPS][TILES];

    __device__ __forceinline__ void load(const few_rows &a, int position, int last) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const bf16 *row = (const bf16 *)a.x + min(8 * j + lane / 4, a.rows - 1) * a.x_stride + lane % 4 * 4;
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                at[s][j] = position + s * STEP < last ? *(const uint2 *)(row + position + s * STEP) : uint2{0, 0};
        }
    }
};

/* A warp's tiles of a panel in shared memory, each with the terms of its groups. */
struct warp_tiles {
    char *memory;
    int bytes;     /* of a tile */
    float2 *terms; /* scales and shifts of the present tile: [groups, outputs] */
    int64_t panel;

    __device__ __forceinline__ char *place(int tile) const {
        return memory + tile % PLACES * bytes;
    }
    /* Copies the pieces of this lane of an array whose pieces [first, end) of the panel are asked for. */
    static __device__ __forceinline__ void copy_pieces(uint32_t to, const void *array, int64_t panel_pieces, int first,
                                                       int count, int64_t panel) {
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < count; i += 32) {
            bool is_there = first + i < panel_pieces;
            const char *from = (const char *)array + (panel * panel_pieces + first + i) * ENCODED_PIECE;
            copy_async(to + i * ENCODED_PIECE, is_there ? from : (const char *)array, is_there);
        }
    }
    /* Starts the copies of a tile, if there is one. */
    __device__ __forceinline__ void copy(const encoded_rows_call &a, int tile, bool is_there) const {
        if (is_there) {
            const encoded_form &w = a.w;
            const encoded_pieces &p = a.pieces;
            int lane = threadIdx.x % 32, group = tile * w.tile / w.group;
            uint32_t to = (uint32_t)__cvta_generic_to_shared(place(tile));
            copy_async(to + lane * 16, (const uint4 *)w.codes + (panel * w.tiles + tile) * 32 + lane, true);
            to += ENCODED_TILE_BYTES;
            copy_pieces(to, w.scales, w.groups * p.scale, group * p.scale, p.groups * p.scale, panel);
            to += p.groups * p.scale * ENCODED_PIECE;
            copy_pieces(to, w.shifts, w.groups * p.shift, group * p.shift, p.groups * p.shift, panel);
            if (p.blocks) {
                int block = group / w.encoding.groups_of_block;
                to += p.groups * p.shift * ENCODED_PIECE;
                copy_pieces(to, w.block_scales, w.blocks * 2, block * 2, p.blocks * 2, panel);
                if (w.block_offsets)
                    copy_pieces(to + p.blocks * 2 * ENCODED_PIECE, w.block_offsets, w.blocks * 2, block * 2,
                                p.blocks * 2, panel);
            }
        }
        copies_commit();
    }
    /* Computes the terms of a tile that has arrived. */
    __device__ __forceinline__ void find_terms(const encoded_rows_call &a, int tile) const {
        const encoded_pieces &p = a.pieces;
        const char *scales = place(tile) + ENCODED_TILE_BYTES, *shifts = scales + p.groups * p.scale * ENCODED_PIECE;
        const char *blocks = shifts + p.groups * p.shift * ENCODED_PIECE;
        const term_arrays from = {scales, shifts, blocks, blocks + p.blocks * 2 * ENCODED_PIECE};
        int first = tile * a.w.tile / a.w.group, of_block = a.w.encoding.groups_of_block;
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < p.groups * PANEL; i += 32) {
            int block = of_block ? min((first + i / PANEL) / of_block - first / of_block, p.blocks - 1) : 0;
            group_terms found = terms_at(a.w.encoding, from, i, block * PANEL + i % PANEL);
            terms[i] = {found.scale, found.scale * (found.zero - a.w.base) + found.offset};
        }
    }
};

/* Multiplies a step, or the half of it that some lanes have. */
template <class CODES, int TILES>
static __device__ __forceinline__ void multiply_step(const encoded_rows_call &a, const uint32_t (&numbers)[4],
                                                     const uint32_t (&low)[4], const uint2 (&x)[TILES], bool is_here,
                                                     lane_sums<TILES> &sums) {
    constexpr uint32_t ONES[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        uint32_t even = is_here ? x[j].x : 0, odd = is_here ? x[j].y : 0;
        multiply(sums.group[j], numbers, even, odd);
        if (CODES::HAS_TABLE && a.is_split)
            multiply(sums.group[j], low, even, odd);
        if (a.has_shifts)
            multiply(sums.x[j], ONES, even, odd);
    }
}

/* Multiplies the steps of a warp: tiles [begin, end) of its panel. */
template <class CODES, int TILES>
static __device__ __forceinline__ void multiply_tiles(const encoded_rows_call &a, const warp_tiles &tiles, int begin,
                                                      int end, const uint32_t *table, lane_sums<TILES> &sums) {
    constexpr int STEPS = 4 / CODES::WORDS, TOGETHER = TILES > 2 ? 1 : STEPS; /* steps whose x is loaded together */
    const encoded_form &w = a.w;
    int position = begin * STEPS * STEP, last = min(end * STEPS * STEP, ((int)w.positions + STEP - 1) / STEP * STEP);
    int group = position / w.group, rest = w.group - position % w.group;
    bool has_halves = w.group % STEP, is_upper = threadIdx.x % 4 / 2;
    lane_rows<TILES, TOGETHER> now, next;
#pragma unroll 1
    for (int i = 0; i < PLACES - 1; i++)
        tiles.copy(a, begin + i, begin + i < end);
    wait_for_last(); /* which writes neither codes nor scales */
    next.load(a.product, position, last);
#pragma unroll 1
    for (int tile = begin; tile < end; tile++) {
        copies_wait_but<PLACES - 2>();
        __syncwarp();
        tiles.copy(a, tile + PLACES - 1, tile + PLACES - 1 < end);
        uint4 codes = *((const uint4 *)tiles.place(tile) + threadIdx.x % 32);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        const float2 *terms = tiles.terms - tile * w.tile / w.group * PANEL;
        tiles.find_terms(a, tile);
        __syncwarp();
        if (tile == begin)
            sums.open_group(terms + group * PANEL);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            uint32_t numbers[4], low[4];
            if (position >= last)
                break;
            if (step % TOGETHER == 0) {
                now = next;
                next.load(a.product, position + TOGETHER * STEP, last);
            }
            CODES::read(words + step * CODES::WORDS, table, numbers, low);
#pragma unroll 1
            for (int half = 0; half <= has_halves; half++) {
                if (rest == 0) {
                    sums.close_group();
                    sums.open_group(terms + ++group * PANEL);
                    rest = w.group;
                }
                rest -= has_halves ? STEP / 2 : STEP;
                multiply_step<CODES>(a, numbers, low, now.at[step % TOGETHER], !has_halves || half == is_upper, sums);
            }
            position += STEP;
        }
    }
    if (begin < end)
        sums.close_group();
}

/* Fills the table of each lane: an entry has a number's bf16, and what is left of it as another. */
static __device__ __forceinline__ void fill_table(const encoded_form &w, uint32_t *table) {
    if (threadIdx.x < ENCODED_LANES)
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t upper = bf16_from_float(w.table[i]), lower = bf16_from_float(w.table[i] - bf16_to_float(upper));
            table[i * ENCODED_LANES] = upper | lower << 16;
        }
    __syncthreads();
}

/* Adds the warps' sums of the block, and finishes C. */
template <int TILES>
static __device__ __forceinline__ void finish_rows(const encoded_rows_call &a, const float *sums, int64_t first) {
    constexpr int WARP = 8 * TILES * ENCODED_SUM_STRIDE;
    const few_rows &p = a.product;
#pragma unroll 1
    for (int at = threadIdx.x; at < p.rows * PANEL; at += blockDim.x) {
        int row = at / PANEL, output = at % PANEL;
        int64_t col = first + output - a.first_row, to = row * p.c_stride + col;
        if (col < 0 || col >= p.cols)
            continue;
        float all = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++)
            all += sums[s * WARP + row * ENCODED_SUM_STRIDE + output];
        finish(p, to, all + bias_of(p, col) + residual_of(p, to));
    }
}

template <class CODES, int TILES> static __device__ __forceinline__ void run(const encoded_rows_call &a) {
    extern __shared__ uint4 shared[];
    constexpr int WARP = 8 * TILES * ENCODED_SUM_STRIDE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = (int)a.w.tiles, each = (count + SPLITS - 1) / SPLITS;
    uint32_t *table = (uint32_t *)shared + lane;
    float *sums = (float *)shared + 16 * ENCODED_LANES, *own = sums + warp * WARP;
    warp_tiles tiles = {(char *)(sums + SPLITS * WARP), encoded_place_bytes(&a.pieces)};
    tiles.terms = (float2 *)(tiles.memory + SPLITS * PLACES * tiles.bytes) + warp * a.pieces.groups * PANEL;
    tiles.memory += warp * PLACES * tiles.bytes;
    tiles.panel = a.first_row / PANEL + blockIdx.x;
    lane_sums<TILES> s = {};
    let_next_begin();
    if (CODES::HAS_TABLE)
        fill_table(a.w, table);
    multiply_tiles<CODES, TILES>(a, tiles, min(warp * each, count), min((warp + 1) * each, count), table, s);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            own[(8 * j + lane % 4 * 2 + e % 2) * ENCODED_SUM_STRIDE + lane / 4 + 8 * (e / 2)] = s.all[j][e];
    __syncthreads();
    finish_rows<TILES>(a, sums, tiles.panel * PANEL);
}

#define KERNEL(codes, tiles, blocks)                                                                                   \
    extern "C" __global__ void __launch_bounds__(ENCODED_SPLITS * 32, blocks)                                          \
        encoded_rows_##codes##_##tiles(const __grid_constant__ encoded_rows_call a) {                                  \
        run<codes, tiles>(a);                                                                                          \
    }
ENCODED_ROWS_KERNELS(KERNEL)
