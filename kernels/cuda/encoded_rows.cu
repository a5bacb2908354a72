/* Products of few rows with an encoded weight. Memory is the limit: a lane reads 16 bytes of codes at a time, some
 * tiles ahead, and the first of them before the kernels before this one have ended.
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

enum { AHEAD = 4, SPLITS = ENCODED_SPLITS, STEP = ENCODED_STEP, PANEL = ENCODED_PANEL };

/* How the codes of a step become fragments. Each has the words of a step, and low parts where numbers have two. */
struct nibbles {
    static constexpr int WORDS = 1, HAS_TABLE = false;
    static __device__ __forceinline__ void read(uint4 codes, const uint32_t *, uint32_t (&a)[4], uint32_t (&)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = nibbles_to_numbers(codes.x >> 4 * i & 0x000f000f);
    }
};
struct tables {
    static constexpr int WORDS = 1, HAS_TABLE = true;
    static __device__ __forceinline__ void read(uint4 codes, const uint32_t *table, uint32_t (&a)[4],
                                                uint32_t (&low)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t one = table[(codes.x >> 4 * i & 15) * ENCODED_LANES];
            uint32_t two = table[(codes.x >> (4 * i + 16) & 15) * ENCODED_LANES];
            a[i] = __byte_perm(one, two, 0x5410);
            low[i] = __byte_perm(one, two, 0x7632);
        }
    }
};
template <uint32_t NUMBERS(uint32_t)> struct pairs_of_bytes {
    static constexpr int WORDS = 2, HAS_TABLE = false;
    static __device__ __forceinline__ void read(uint4 codes, const uint32_t *, uint32_t (&a)[4], uint32_t (&)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = NUMBERS((i / 2 ? codes.y : codes.x) >> 8 * (i % 2) & 0x00ff00ff);
    }
};
typedef pairs_of_bytes<bytes_to_numbers> bytes;
typedef pairs_of_bytes<e4m3_to_numbers> e4m3;

/* This lane's sums of outputs g and g + 8 with two of each eight rows: of the group, of its x, and of groups before. */
template <int TILES> struct lane_sums {
    float group[TILES][4], x[TILES][4], all[TILES][4];
    float scale[2], shift[2]; /* of the group */

    __device__ __forceinline__ void open_group(const encoded_form &w, int64_t output, int64_t number) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            group_terms terms = terms_of(w, output + 8 * h, number);
            scale[h] = terms.scale;
            shift[h] = terms.scale * (terms.zero - w.base) + terms.offset;
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

/* A lane's elements of x in a step: of row g of each eight, from 4 t on. */
template <int TILES> struct lane_rows {
    const bf16 *row[TILES];
    uint2 at[TILES];

    __device__ __forceinline__ void open(const few_rows &a) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < TILES; j++)
            row[j] = (const bf16 *)a.x + min(8 * j + lane / 4, a.rows - 1) * a.x_stride + lane % 4 * 4;
    }
    __device__ __forceinline__ void load(int64_t position) {
#pragma unroll
        for (int j = 0; j < TILES; j++)
            at[j] = *(const uint2 *)(row[j] + position);
    }
};

/* Multiplies the steps of a warp: tiles [begin, end) of a panel. */
template <class CODES, int TILES>
static __device__ __forceinline__ void multiply_tiles(const encoded_rows_call &a, int64_t panel, int begin, int end,
                                                      const uint32_t *table, lane_sums<TILES> &sums) {
    constexpr uint32_t ONES[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    constexpr int STEPS = 4 / CODES::WORDS;
    const encoded_form &w = a.w;
    const uint4 *codes = (const uint4 *)w.codes + panel * w.tiles * 32 + threadIdx.x % 32;
    int64_t output = panel * PANEL + threadIdx.x % 32 / 4, position = (int64_t)begin * STEPS * STEP;
    int halves = w.group % STEP ? 2 : 1, width = STEP / halves, half_of_lane = threadIdx.x % 4 / 2;
    int32_t group = (int32_t)(position / w.group), rest = w.group - (int32_t)(position % w.group);
    int64_t last = min((int64_t)end * STEPS * STEP, (w.positions + STEP - 1) / STEP * STEP);
    uint4 ahead[AHEAD];
    lane_rows<TILES> now, next;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        ahead[i] = begin + i < end ? codes[(begin + i) * 32] : uint4{0, 0, 0, 0};
    if (begin < end)
        sums.open_group(w, output, group);
    wait_for_last(); /* which writes neither codes nor scales */
    next.open(a.product);
    if (begin < end)
        next.load(position);
#pragma unroll 1
    for (int first = begin; first < end; first += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            uint4 tile = ahead[i];
            if (first + i + AHEAD < end)
                ahead[i] = codes[(first + i + AHEAD) * 32];
#pragma unroll 1
            for (int step = 0; step < STEPS && position < last; step++) {
                uint32_t numbers[4], low[4];
                now = next;
                position += STEP;
                if (position < last)
                    next.load(position);
                CODES::read(tile, table, numbers, low);
                if (CODES::WORDS == 1)
                    tile.x = tile.y, tile.y = tile.z, tile.z = tile.w;
                else
                    tile.x = tile.z, tile.y = tile.w;
#pragma unroll 1
                for (int half = 0; half < halves; half++) {
                    bool is_here = halves == 1 || half == half_of_lane;
                    if (rest == 0 && group + 1 < w.groups) {
                        sums.close_group();
                        sums.open_group(w, output, ++group);
                        rest = w.group;
                    }
                    rest -= width;
#pragma unroll
                    for (int j = 0; j < TILES; j++) {
                        uint32_t even = is_here ? now.at[j].x : 0, odd = is_here ? now.at[j].y : 0;
                        multiply(sums.group[j], numbers, even, odd);
                        if (CODES::HAS_TABLE && a.is_split)
                            multiply(sums.group[j], low, even, odd);
                        if (a.has_shifts)
                            multiply(sums.x[j], ONES, even, odd);
                    }
                }
            }
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
    for (int at = threadIdx.x; at < a.panels * p.rows * PANEL; at += blockDim.x) {
        int panel = at / (p.rows * PANEL), row = at / PANEL % p.rows, output = at % PANEL;
        int64_t col = first + panel * PANEL + output - a.first_row, to = row * p.c_stride + col;
        if (col < 0 || col >= p.cols)
            continue;
        float all = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++)
            all += sums[(panel * SPLITS + s) * WARP + row * ENCODED_SUM_STRIDE + output];
        finish(p, to, all + bias_of(p, col) + residual_of(p, to));
    }
}

template <class CODES, int TILES> static __device__ __forceinline__ void run(const encoded_rows_call &a) {
    extern __shared__ float shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = warp % SPLITS;
    int64_t first = a.first_row / PANEL + (int64_t)blockIdx.x * a.panels, panel = first + warp / SPLITS;
    int tiles = panel * PANEL < a.w.rows ? (int)a.w.tiles : 0, each = (tiles + SPLITS - 1) / SPLITS;
    uint32_t *table = (uint32_t *)shared + lane;
    float *sums = shared + 16 * ENCODED_LANES;
    float *own = sums + warp * 8 * TILES * ENCODED_SUM_STRIDE;
    lane_sums<TILES> s = {};
    let_next_begin();
    if (CODES::HAS_TABLE)
        fill_table(a.w, table);
    multiply_tiles<CODES, TILES>(a, panel, min(split * each, tiles), min((split + 1) * each, tiles), table, s);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            own[(8 * j + lane % 4 * 2 + e % 2) * ENCODED_SUM_STRIDE + lane / 4 + 8 * (e / 2)] = s.all[j][e];
    __syncthreads();
    finish_rows<TILES>(a, sums, first * PANEL);
}

#define KERNEL(codes, tiles, panels, blocks)                                                                           \
    extern "C" __global__ void __launch_bounds__(panels *ENCODED_SPLITS * 32, blocks)                                  \
        encoded_rows_##codes##_##tiles(const __grid_constant__ encoded_rows_call a) {                                  \
        run<codes, tiles>(a);                                                                                          \
    }
ENCODED_ROWS_KERNELS(KERNEL)
