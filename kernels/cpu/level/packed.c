/* Packed weights: a [n, k] weight in panels of PANEL outputs. A panel is a stream [steps][PANEL] of units, padded with
 * zeros; a unit is a float, or two neighbours along k in bf16.
 *
 * A product reads each panel once, in order. With few rows, the memory's bandwidth limits it; with many, the
 * multipliers do, as registers hold the TILE_ROWS x PANEL sums. With few rows, a thread reads two streams side by side,
 * which gives one core up to 8% more than one stream. Each stream runs through the panels in order, because every start
 * of a stream costs the memory's latency.
 *
 * Each output is one chain of sums along k for any number of rows, so that a row's bits do not depend on the others. A
 * link is a multiply-add, or with AMX the sum of 16 pairs. A library does not promise that: it may choose another order
 * for every shape. On 2 cores of Zen 4 in bf16, one row reaches 0.9-1.0 of the streaming read. From 16 to 1,024 rows,
 * it is at least as fast as oneDNN's product of plain matrices. */
#include "cpu/level/packed_tiles.h"
#include "cpu/level/panels.h"
#include "cpu/level/vector_math.h"

enum {
    UNROLL = 4,                    /* steps; panels are padded to it */
    LINES = UNROLL * PANEL / 16,   /* cache lines of an unrolled step */
    WIDEST = 2,                    /* panels side by side */
    WIDE_ROWS = TILE_ROWS / 2 - 1, /* the maximum number of rows that leave registers for two panels */
    SLICE_STEPS = 256,             /* of packed rows: at most 14 KB, which stay in the first-level cache */
    PREFETCH_BYTES = 8192,         /* ahead in the panel's stream */
    PIECE_OUTPUTS = 4096,          /* of a plain weight that is packed at a time */
    TILED_PIECE_BYTES = 2 << 20,   /* the same for AMX, which reads rows in place: it stays in second-level caches */
    PREFETCH_ROWS = 7,             /* with more rows, the processor's own prefetching is enough */
};
/* Units of a pair in the packed rows: bf16 is converted to fp32 at levels without arithmetic on pairs. */
enum { PAIR_UNITS = SIMD_PAIRS ? 1 : 2 };

/* Returns true if tiles multiply this type. */
static bool uses_tiles(enum dtype type) {
    return HAS_TILES && type == DTYPE_BF16;
}

static int64_t steps_of(enum dtype type, int64_t k) {
    int64_t units = type == DTYPE_BF16 ? (k + 1) / 2 : k, multiple = uses_tiles(type) ? TILES_STEPS : UNROLL;
    return (units + multiple - 1) / multiple * multiple;
}

/* Returns the maximum number of rows of a block. */
static int block_rows(enum dtype type) {
    return uses_tiles(type) ? TILES_ROWS : TILE_ROWS;
}

/* ---- packing a weight ------------------------------------------------------------------------------------------ */

size_t LEVEL(plain_bytes)(struct device *device, const struct matrix_view *plain) {
    if (plain->type != DTYPE_F32 && plain->type != DTYPE_BF16)
        return 0;
    return (size_t)(panels_of(plain->rows) * steps_of(plain->type, plain->columns)) * PANEL * sizeof(float);
}

/* Returns unit `step` of a row of k elements. */
static inline uint32_t unit_at(enum dtype type, const void *row, int64_t k, int64_t step) {
    if (type == DTYPE_F32) {
        uint32_t bits = 0;
        if (step < k)
            memcpy(&bits, (const float *)row + step, sizeof bits);
        return bits;
    }
    const uint16_t *half = row;
    uint32_t even = 2 * step < k ? half[2 * step] : 0, odd = 2 * step + 1 < k ? half[2 * step + 1] : 0;
    return odd << 16 | even;
}

/* Writes the panel of a plain matrix's rows from `first` on. */
static void pack_panel(const struct matrix_view *plain, int64_t first, float *panel) {
    int64_t steps = steps_of(plain->type, plain->columns), remaining = plain->rows - first;
    int64_t whole = plain->type == DTYPE_BF16 ? plain->columns / 2 : plain->columns;
    for (int64_t j = 0; j < PANEL; j += SIMD_LANES) {
        int64_t lanes = remaining - j < SIMD_LANES ? remaining - j : SIMD_LANES, step = 0;
        const char *row[SIMD_LANES];
        for (int64_t i = 0; i < lanes; i++)
            row[i] = matrix_rows(*plain, first + j + i, 1).data;
        for (; lanes == SIMD_LANES && step + SIMD_LANES <= whole; step += SIMD_LANES) {
            vfloat x[SIMD_LANES];
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_LANES; i++)
                x[i] = simd_load((const float *)(const void *)row[i] + step);
            transpose_words(x);
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_LANES; i++)
                simd_store(panel + (step + i) * PANEL + j, x[i]);
        }
        for (; step < steps; step++)
            for (int64_t i = 0; i < SIMD_LANES; i++) {
                uint32_t unit = i < lanes ? unit_at(plain->type, row[i], plain->columns, step) : 0;
                memcpy(panel + step * PANEL + j + i, &unit, sizeof unit);
            }
    }
}

int LEVEL(plain_pack)(const struct exec *exec, const struct pack_call *a) {
    const struct matrix_view *plain = &a->plain;
    if (plain->form != MATRIX_PLAIN || (plain->type != DTYPE_F32 && plain->type != DTYPE_BF16))
        return status_fail(STATUS_UNSUPPORTED, "pack: needs a plain fp32 or bf16 weight, not %s",
                           dtype_name(plain->type));
    int64_t floats = steps_of(plain->type, plain->columns) * PANEL, panels = panels_of(plain->rows);
#pragma omp parallel for num_threads(exec_threads(exec)) schedule(static)
    for (int64_t p = 0; p < panels; p++)
        pack_panel(plain, p * PANEL, (float *)a->out + p * floats);
    return STATUS_OK;
}

void LEVEL(plain_read)(const struct matrix_view *packed, const struct read_block *to) {
    bool is_bf16 = packed->type == DTYPE_BF16;
    int64_t steps = steps_of(packed->type, packed->columns), each = is_bf16 ? 2 : 1;
    int64_t row = packed->first_row + to->row;
    for (int64_t j = 0; j < to->cols; j++) {
        const float *step = (const float *)packed->data + (to->col + j) / each * PANEL;
        for (int64_t i = 0; i < to->rows; i++) {
            const float *unit = step + (row + i) / PANEL * steps * PANEL + (row + i) % PANEL;
            to->out[i * to->stride + j] = is_bf16 ? load(unit, j % 2, DTYPE_BF16) : *unit;
        }
    }
}

/* ---- unpacking ------------------------------------------------------------------------------------------------- */

/* Writes `steps` steps of SIMD_LANES rows, of which those from number `first` to `end` - 1 are wanted. They are
 * `stride` units apart from `out` on. */
static void unpack_lanes(const float *panel, int64_t steps, int first, int end, float *out, int64_t stride) {
    int64_t step = 0;
    for (; step + SIMD_LANES <= steps; step += SIMD_LANES) {
        vfloat x[SIMD_LANES];
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_LANES; i++)
            x[i] = simd_load(panel + (step + i) * PANEL);
        transpose_words(x);
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_LANES; i++)
            if (i >= first && i < end)
                simd_store(out + (i - first) * stride + step, x[i]);
    }
    for (int i = first; i < end; i++)
        for (int64_t s = step; s < steps; s++)
            memcpy(out + (i - first) * stride + s, panel + s * PANEL + i, sizeof *out);
}

void LEVEL(plain_unpack)(const struct exec *exec, const struct matrix_view *packed, int64_t col, int64_t cols,
                         void *out, int64_t stride) {
    int64_t each = packed->type == DTYPE_BF16 ? 2 : 1, all = steps_of(packed->type, packed->columns);
    int64_t steps = (cols + each - 1) / each, slices = (steps + SLICE_STEPS - 1) / SLICE_STEPS;
    int64_t first = packed->first_row / SIMD_LANES, end = packed->first_row + packed->rows;
#pragma omp parallel for num_threads(exec_threads(exec)) schedule(static) collapse(2)
    for (int64_t group = first; group < (end + SIMD_LANES - 1) / SIMD_LANES; group++)
        for (int64_t slice = 0; slice < slices; slice++) {
            int64_t step = slice * SLICE_STEPS, remaining = steps - step, row = group * SIMD_LANES;
            int64_t at = row / PANEL * all * PANEL + row % PANEL + (col / each + step) * PANEL;
            int from = row < packed->first_row ? (int)(packed->first_row - row) : 0;
            unpack_lanes((const float *)packed->data + at, remaining < SLICE_STEPS ? remaining : SLICE_STEPS, from,
                         end - row < SIMD_LANES ? (int)(end - row) : SIMD_LANES,
                         (float *)out + (row + from - packed->first_row) * (stride / each) + step, stride / each);
        }
}

/* ---- multiplying ----------------------------------------------------------------------------------------------- */

/* The memory that a tile prefetches: `lines` cache lines in each unrolled step. */
struct ahead {
    const char *at;
    int lines;
};

struct tile {
    int64_t steps;
    const float *a; /* [steps][rows] units */
    const float *b; /* [steps][PANEL] units */
    int64_t beside; /* units from the panel to the second one */
    struct ahead ahead;
    float *out; /* [rows][panels * PANEL] */
};

/* Adds one step of one or two panels, the second `beside` units after the first. */
TILE_INLINE void add_products(bool is_bf16, int rows, int vectors, const float *a, const float *b, int64_t beside,
                              vfloat sum[][WIDEST * VECTORS]) {
    vfloat w[WIDEST * VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        w[v] = simd_load(b + v / VECTORS * beside + v % VECTORS * SIMD_LANES);
    if (!is_bf16 || SIMD_PAIRS) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vfloat x = simd_set(a[r]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = simd_dot(is_bf16, x, w[v], sum[r][v]);
        }
        return;
    }
    vfloat odd[WIDEST * VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        odd[v] = (vfloat)((vword)w[v] & simd_words(0xffff0000u));
        w[v] = (vfloat)simd_upper_halves((vword)w[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        vfloat x = simd_set(a[r]), y = simd_set(a[rows + r]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = simd_fma(y, odd[v], simd_fma(x, w[v], sum[r][v]));
    }
}

TILE_INLINE void multiply_tile(bool is_bf16, int rows, int panels, const struct tile *tile) {
    const int vectors = panels * VECTORS;
    const float *a = tile->a, *b = tile->b;
    const char *ahead = tile->ahead.at;
    vfloat sum[TILE_ROWS][WIDEST * VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = simd_set(0.0f);
    for (int64_t s = 0; s < tile->steps; s += UNROLL) {
        if (rows > WIDE_ROWS) { /* with fewer, the processor's own prefetching is better */
            for (int i = 0; i < tile->ahead.lines; i++)
                __builtin_prefetch(ahead + 64 * i, 0, 2);
            ahead += 64 * tile->ahead.lines;
        }
#pragma GCC unroll 4
        for (int u = 0; u < UNROLL; u++) {
            add_products(is_bf16, rows, vectors, a, b, tile->beside, sum);
            a += rows * (is_bf16 ? PAIR_UNITS : 1);
            b += PANEL;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            simd_store(tile->out + (r * vectors + v) * SIMD_LANES, sum[r][v]);
}

/* One case for each number of rows, so that sums stay in registers. More rows than these hold compile to nothing. */
#define TILE_CASE(number)                                                                                              \
    case number:                                                                                                       \
        if (number <= WIDE_ROWS && panels == WIDEST)                                                                   \
            multiply_tile(is_bf16, number <= WIDE_ROWS ? number : 1, WIDEST, tile);                                    \
        else if (number <= TILE_ROWS)                                                                                  \
            multiply_tile(is_bf16, number <= TILE_ROWS ? number : 1, 1, tile);                                         \
        break;

TILE_INLINE void multiply_rows(bool is_bf16, int rows, int panels, const struct tile *tile) {
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
        TILE_CASE(13)
        TILE_CASE(14)
    }
}

static void multiply_rows_f32(int rows, int panels, const struct tile *tile) {
    multiply_rows(false, rows, panels, tile);
}

static void multiply_rows_bf16(int rows, int panels, const struct tile *tile) {
    multiply_rows(true, rows, panels, tile);
}

/* ---- packing rows ---------------------------------------------------------------------------------------------- */

/* Writes the units of `lanes` neighbouring rows at one step. A pair becomes two steps at levels without arithmetic on
 * pairs. */
TILE_INLINE void put_units(bool is_widened, int lanes, const uint32_t *unit, int64_t step, int rows, float *out) {
    if (!is_widened) {
        memcpy(out + step * rows, unit, (size_t)lanes * sizeof *unit);
        return;
    }
    for (int i = 0; i < lanes; i++) {
        uint32_t even = unit[i] << 16, odd = unit[i] & 0xffff0000u;
        memcpy(out + 2 * step * rows + i, &even, sizeof even);
        memcpy(out + (2 * step + 1) * rows + i, &odd, sizeof odd);
    }
}

/* Units first .. end-1 of rows, `stride` bytes apart, to be written as lanes of [steps][rows] units. They are moved
 * four by four if there are enough, so that a store is a vector. */
struct unit_rows {
    enum dtype type;
    const char *row;
    size_t stride;
    int64_t k, first, end;
    int rows;
    float *out;
};

TILE_INLINE void pack_lane(bool is_widened, const struct unit_rows *p, int lane, int64_t first) {
    for (int64_t s = first; s < p->end; s++) {
        uint32_t unit = unit_at(p->type, p->row + (size_t)lane * p->stride, p->k, s);
        put_units(is_widened, 1, &unit, s, p->rows, p->out + lane);
    }
}

TILE_INLINE void pack_lanes(bool is_widened, const struct unit_rows *p) {
    int64_t whole = p->type == DTYPE_BF16 ? p->k / 2 : p->k, last = whole < p->end ? whole : p->end;
    /* Four rows at a time: more rows, at strides of whole pages, would evict each other from the first-level cache. */
    int64_t fours = p->rows >= 4 && last > p->first ? (last - p->first) / 4 : 0, rest = p->first + 4 * fours;
    for (int next = 0; next < p->rows; next += 4) {
        int lane = next + 4 <= p->rows ? next : p->rows - 4;
        for (int64_t s = p->first; s < rest; s += 4) {
            const char *from = p->row + (size_t)lane * p->stride + (size_t)s * sizeof(float);
            _Alignas(16) uint32_t unit[4][4];
            __m128 x[4];
            for (int i = 0; i < 4; i++)
                x[i] = _mm_loadu_ps((const float *)(const void *)(from + (size_t)i * p->stride));
            _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
            for (int i = 0; i < 4; i++) {
                memcpy(unit[i], &x[i], sizeof x[i]);
                put_units(is_widened, 4, unit[i], s + i, p->rows, p->out + lane);
            }
        }
    }
    for (int lane = 0; lane < p->rows; lane++)
        pack_lane(is_widened, p, lane, rest);
}

/* Copies the units of whole rows, for AMX; those after the last element are zeros. */
static void copy_rows(const struct unit_rows *p, int64_t row_floats) {
    int64_t from = 2 * p->first, end = 2 * p->end < p->k ? 2 * p->end : p->k;
    size_t width = (size_t)(p->end - p->first) * sizeof(float);
    size_t bytes = end > from ? (size_t)(end - from) * sizeof(uint16_t) : 0;
    for (int i = 0; i < p->rows; i++) {
        char *to = (char *)(p->out + i * row_floats + p->first);
        memcpy(to, p->row + (size_t)i * p->stride + (size_t)from * sizeof(uint16_t), bytes);
        memset(to + bytes, 0, width - bytes);
    }
}

/* One pass over the panels, for rows first .. first + rows - 1 of C in `blocks` tiles of nearly equal size. */
struct pass {
    const struct gemm *gemm;
    int64_t first, rows;
    int64_t steps, panels, blocks;
    int64_t skipped;    /* columns of the first panel, before the weight's view */
    int64_t columns;    /* of tiles: tile i is panel i, and with few rows also panel i + columns, if there is one */
    int64_t shares;     /* parts of the blocks, if there are too few panels for the threads */
    int64_t row_floats; /* of a packed row */
    float *packed;      /* the rows' packed form, if they need one */
    const float *a;     /* the rows as tiles read them: [steps][rows of the block], or row by row for AMX */
    int shaped_rows;    /* for which this thread's AMX tiles have the shape; 0: none */
};

static int64_t block_start(const struct pass *pass, int64_t block) {
    return pass->rows * block / pass->blocks;
}

/* Returns what a block prefetches. A single block reads its panel from memory, and prefetches a little ahead in it. Of
 * several blocks, only the first reads the panel from memory, so each prefetches a share of the next panel. */
static struct ahead look_ahead(const struct pass *pass, const float *panel, int64_t block) {
    if (pass->blocks == 1)
        return (struct ahead){(const char *)panel + PREFETCH_BYTES, pass->rows > PREFETCH_ROWS ? LINES : 0};
    int64_t lines = (LINES + pass->blocks - 1) / pass->blocks, share = pass->steps / UNROLL * lines * 64;
    int64_t bytes = pass->steps * PANEL * (int64_t)sizeof(float);
    return (struct ahead){(const char *)panel + bytes + share * block, share * block < bytes ? (int)lines : 0};
}

static void run_tile(struct pass *pass, int64_t panel, int64_t block) {
    const struct gemm *gemm = pass->gemm;
    const float *b = (const float *)gemm->b.data + (gemm->b.first_row / PANEL + panel) * pass->steps * PANEL;
    int64_t start = block_start(pass, block);
    int rows = (int)(block_start(pass, block + 1) - start);
    int panels = panel + pass->columns < pass->panels ? WIDEST : 1;
    _Alignas(64) float out[TILES_ROWS * PANEL];
    struct tile tile = {.steps = pass->steps,
                        .a = pass->a + start * pass->row_floats,
                        .b = b,
                        .beside = pass->columns * pass->steps * PANEL,
                        .ahead = look_ahead(pass, b, block),
                        .out = out};
    if (uses_tiles(gemm->a.type) && rows != pass->shaped_rows)
        tiles_shape(pass->shaped_rows = rows);
    if (uses_tiles(gemm->a.type))
        tiles_multiply(rows, panels, pass->steps, tile.a, pass->row_floats, b, tile.beside, out);
    else if (gemm->a.type == DTYPE_BF16)
        multiply_rows_bf16(rows, panels, &tile);
    else
        multiply_rows_f32(rows, panels, &tile);
    for (int i = 0; i < panels; i++)
        finish_panel(gemm, &(const struct panel_sums){.sums = out + i * PANEL,
                                                      .stride = panels * PANEL,
                                                      .row = pass->first + start,
                                                      .rows = rows,
                                                      .col = (panel + i * pass->columns) * PANEL - pass->skipped});
}

/* Packs a slice of a block's rows as [steps][rows] units. */
static void pack_slice(const struct pass *pass, int64_t block, int64_t slice) {
    const struct gemm *gemm = pass->gemm;
    int64_t start = block_start(pass, block), last = (slice + 1) * SLICE_STEPS;
    size_t element = dtype_bytes(gemm->a.type);
    struct unit_rows rows = {.type = gemm->a.type,
                             .row = (const char *)gemm->a.data +
                                    (size_t)((pass->first + start) * gemm->a.stride) * element,
                             .stride = (size_t)gemm->a.stride * element,
                             .k = gemm_k(gemm),
                             .first = slice * SLICE_STEPS,
                             .end = last < pass->steps ? last : pass->steps,
                             .rows = (int)(block_start(pass, block + 1) - start),
                             .out = pass->packed + start * pass->row_floats};
    if (uses_tiles(gemm->a.type))
        copy_rows(&rows, pass->row_floats);
    else if (gemm->a.type == DTYPE_BF16 && !SIMD_PAIRS)
        pack_lanes(true, &rows);
    else
        pack_lanes(false, &rows);
}

/* Runs the tiles, divided among the team's threads. */
static void run_tiles(struct pass *pass) {
#pragma omp for schedule(static) nowait
    for (int64_t item = 0; item < pass->columns * pass->shares; item++) {
        int64_t panel = item / pass->shares, share = item % pass->shares;
        int64_t last = pass->blocks * (share + 1) / pass->shares;
        for (int64_t block = pass->blocks * share / pass->shares; block < last; block++)
            run_tile(pass, panel, block);
    }
    if (pass->shaped_rows)
        tiles_release();
}

/* Runs a pass. Every thread packs few rows for itself: waiting for other threads, and reading what their cores wrote,
 * takes longer. */
static void run_pass(const struct pass *shared, int threads) {
    int64_t slices = (shared->steps + SLICE_STEPS - 1) / SLICE_STEPS,
            pieces = shared->packed ? shared->blocks * slices : 0;
    int64_t slots = 0;
#pragma omp parallel num_threads(threads)
    {
        struct pass pass = *shared;
        if (pieces && pass.blocks <= FEW_BLOCKS) {
            int64_t slot;
#pragma omp atomic capture
            slot = slots++;
            pass.packed += slot * pass.rows * pass.row_floats;
            pass.a = pass.packed;
            for (int64_t i = 0; i < pieces; i++)
                pack_slice(&pass, i / slices, i % slices);
        } else if (pieces) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < pieces; i++)
                pack_slice(&pass, i / slices, i % slices);
        }
        run_tiles(&pass);
    }
}

static int64_t row_floats(const struct gemm *gemm) {
    return steps_of(gemm->a.type, gemm_k(gemm)) * (gemm->a.type == DTYPE_BF16 ? PAIR_UNITS : 1);
}

/* Returns the rows of a pass: as many as fit into A_BYTES, but at least a few tiles. */
static int64_t pass_rows(const struct gemm *gemm) {
    int64_t block = block_rows(gemm->a.type);
    int64_t rows = A_BYTES / (row_floats(gemm) * (int64_t)sizeof(float)) / block * block;
    return rows > 4 * block ? rows : 4 * block;
}

/* Returns the bytes of a pass's packed rows. */
static size_t rows_bytes(const struct device *device, const struct gemm *gemm) {
    int64_t rows = gemm_m(gemm) < pass_rows(gemm) ? gemm_m(gemm) : pass_rows(gemm);
    int64_t most = FEW_BLOCKS * block_rows(gemm->a.type), few = rows < most ? rows : most;
    int64_t copies = few * device->threads;
    return (size_t)((rows > copies ? rows : copies) * row_floats(gemm)) * sizeof(float);
}

static void multiply_packed(const struct exec *exec, const struct gemm *gemm, void *workspace) {
    int threads = exec_threads(exec);
    int64_t most = pass_rows(gemm), passes = (gemm_m(gemm) + most - 1) / most, skipped = gemm->b.first_row % PANEL;
    bool is_tiled = uses_tiles(gemm->a.type);
    bool is_in_place = (is_tiled ? gemm->a.stride % 2 == 0 : gemm_m(gemm) == 1) &&
                       (uintptr_t)gemm->a.data % sizeof(float) == 0 &&
                       row_floats(gemm) * (int64_t)sizeof(float) == gemm_k(gemm) * (int64_t)dtype_bytes(gemm->a.type);
    for (int64_t i = 0; i < passes; i++) {
        struct pass pass = {.gemm = gemm,
                            .first = gemm_m(gemm) * i / passes,
                            .steps = steps_of(gemm->a.type, gemm_k(gemm)),
                            .panels = panels_of(skipped + gemm_n(gemm)),
                            .skipped = skipped,
                            .shares = 1,
                            .row_floats = is_in_place && is_tiled ? gemm->a.stride / 2 : row_floats(gemm),
                            .packed = is_in_place ? NULL : workspace,
                            .a = workspace};
        if (is_in_place)
            pass.a = (const float *)gemm->a.data + pass.first * pass.row_floats;
        pass.rows = gemm_m(gemm) * (i + 1) / passes - pass.first;
        pass.blocks = (pass.rows + block_rows(gemm->a.type) - 1) / block_rows(gemm->a.type);
        bool is_wide = pass.rows <= (is_tiled ? TILES_FEW : WIDE_ROWS) && pass.panels >= 2 * WIDEST * threads;
        pass.columns = is_wide ? (pass.panels + 1) / WIDEST : pass.panels;
        while (pass.panels * pass.shares < 4 * threads && 2 * pass.shares <= pass.blocks)
            pass.shares *= 2;
        run_pass(&pass, threads);
    }
}

/* ---- a plain weight, packed piece by piece --------------------------------------------------------------------- */

/* Returns the outputs of a piece: few enough for a small workspace, and many compared with the rows' packing, which
 * each piece repeats. */
static int64_t piece_outputs(const struct gemm *gemm) {
    int64_t output_bytes = steps_of(gemm->b.type, gemm_k(gemm)) * (int64_t)sizeof(float);
    int64_t most = uses_tiles(gemm->b.type) ? TILED_PIECE_BYTES / output_bytes + 1 : PIECE_OUTPUTS;
    int64_t n = gemm_n(gemm), pieces = (n + most - 1) / most;
    return panels_of((n + pieces - 1) / pieces) * PANEL;
}

static size_t piece_bytes(const struct gemm *gemm) {
    return (size_t)(piece_outputs(gemm) * steps_of(gemm->b.type, gemm_k(gemm))) * sizeof(float);
}

size_t LEVEL(plain_workspace)(struct device *device, const struct gemm *gemm) {
    return rows_bytes(device, gemm) + (gemm->b.form == MATRIX_PLAIN ? piece_bytes(gemm) : 0);
}

void LEVEL(plain_gemm)(const struct exec *exec, const struct gemm *gemm) {
    int64_t width = piece_outputs(gemm), n = gemm_n(gemm);
    if (gemm->b.form == MATRIX_PACKED) {
        multiply_packed(exec, gemm, exec->workspace);
        return;
    }
    for (int64_t first = 0; first < n; first += width) {
        struct gemm part = outputs_of(gemm, first, n - first < width ? n - first : width);
        LEVEL(plain_pack)(exec, &(const struct pack_call){.plain = part.b, .out = exec->workspace});
        part.b = matrix_packed(part.b, exec->workspace);
        multiply_packed(exec, &part, (char *)exec->workspace + piece_bytes(gemm));
    }
}
