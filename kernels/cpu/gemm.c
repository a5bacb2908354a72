/* Products that oneDNN multiplies, and the choice between it and packed.c. Epilogues that it lacks are applied to
 * pieces of columns while these are still in the cache. */
#include "cpu/gemm-internal.h"

enum {
    PIECE_COLS = 1536, /* of a product with an epilogue */
    PIECE_ROWS = 1024,
    PIECE_DEPTH = 1024,        /* of a product with A transposed */
    UNPACKED_BYTES = 16 << 20, /* of a packed B that is unpacked at a time */
    WIDE_COLS = 8192,
    PASS_FLOATS = 16384, /* a thread's share of an epilogue at a time */
};

static size_t align(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static int64_t piece_count(int64_t size, int64_t most) {
    return (size + most - 1) / most;
}

/* Returns the product with the types of the numbers in memory: FP8 numbers are bf16 there, dense. */
static struct gemm as_in_memory(const struct gemm *g) {
    struct gemm product = *g;
    if (gemm_is_fp8(g)) {
        product.a.type = product.b.type = DTYPE_BF16;
        product.a.stride = g->a.columns;
        product.b.stride = g->b.columns;
    }
    return product;
}

/* Return the addresses of op(A)'s element (row, depth), and of op(B)'s element (depth, col). */
static const void *a_at(const struct gemm *g, int64_t row, int64_t depth) {
    int64_t at = g->a_transposed ? depth * g->a.stride + row : row * g->a.stride + depth;
    return (const char *)g->a.data + (size_t)at * dtype_bytes(g->a.type);
}
static const void *b_at(const struct gemm *g, int64_t depth, int64_t col) {
    int64_t at = g->b_transposed ? col * g->b.stride + depth : depth * g->b.stride + col;
    return (const char *)g->b.data + (size_t)at * dtype_bytes(g->b.type);
}

static struct gemm_form form_of(const struct gemm *g) {
    return (struct gemm_form){.m = gemm_m(g),
                              .n = gemm_n(g),
                              .k = gemm_k(g),
                              .lda = g->a.stride,
                              .ldb = g->b.stride,
                              .ldc = g->c.stride,
                              .a_transposed = g->a_transposed,
                              .b_transposed = g->b_transposed,
                              .has_bias = g->bias && !gemm_is_fp8(g), /* the scale comes before the bias */
                              .accumulate = g->accumulate && !gemm_is_fp8(g),
                              .scale = g->is_scaled ? g->scale : 1,
                              .type = (uint8_t)g->a.type,
                              .c_type = (uint8_t)g->c.type};
}

/* ---- a packed B, unpacked piece by piece ------------------------------------------------------------------------- */

/* Returns the row stride of a piece of `cols` of op(B)'s columns. Packed pairs need an even one. */
static int64_t unpacked_stride(const struct gemm *g, int64_t cols) {
    return ((g->b_transposed ? gemm_k(g) : cols) + 1) / 2 * 2;
}

static size_t unpacked_bytes(const struct gemm *g, int64_t cols) {
    int64_t rows = g->b_transposed ? cols : gemm_k(g);
    return gemm_is_packed(g) ? align((size_t)(rows * unpacked_stride(g, cols)) * dtype_bytes(g->a.type)) : 0;
}

/* Unpacks op(B)'s columns [col, col + cols), all of k. */
static void unpack(const struct gemm_level *level, const struct exec *exec, const struct gemm *g, int64_t col,
                   int64_t cols, void *to) {
    struct matrix_view rows = g->b_transposed ? matrix_rows(g->b, col, cols) : g->b;
    level->unpack(exec, &rows, g->b_transposed ? 0 : col, g->b_transposed ? gemm_k(g) : cols, to,
                  unpacked_stride(g, cols));
}

/* ---- bare products --------------------------------------------------------------------------------------------- */

/* Returns the depth of a piece. With A transposed and long sums (from k = 2048 on), oneDNN divides k among the threads,
 * so that the result would depend on their number. It does not divide shorter pieces of k; they are added in order. */
static int64_t depth_of(const struct gemm *g) {
    return g->a_transposed && gemm_k(g) > PIECE_DEPTH ? PIECE_DEPTH : gemm_k(g);
}

/* Returns the columns of a piece. oneDNN 2.6 uses the caches badly in some products, which are faster in pieces. Gains
 * on 2 cores of Zen 4: 1.03 (fp32) and 1.07 (bf16) for weight gradients, and 1.06 for bf16 forwards of many columns.
 * The vocabulary's input gradient in fp32 gained 1.24. Other products were fastest whole. Products of few rows with a
 * bf16 vocabulary are cut as well: for those, oneDNN takes a scratchpad of the whole product in fp32 for each thread.
 */
static int64_t width_of(const struct gemm *g) {
    int64_t most = gemm_n(g);
    if (g->a_transposed)
        most = g->a.type == DTYPE_F32 ? 768 : 384;
    else if (gemm_is_packed(g))
        most = UNPACKED_BYTES / (g->b.rows * (int64_t)dtype_bytes(g->a.type)) / 64 * 64 + 64;
    else if (g->a.type == DTYPE_F32 && gemm_k(g) >= 8192)
        most = 384;
    else if (g->a.type == DTYPE_BF16 && g->b_transposed &&
             (gemm_n(g) >= WIDE_COLS || (gemm_k(g) <= 1024 && gemm_m(g) >= 512)))
        most = 576;
    int64_t pieces = piece_count(gemm_n(g), most), width = piece_count(gemm_n(g), pieces);
    return pieces > 1 ? (width + 63) / 64 * 64 : gemm_n(g);
}

/* Returns the form of the piece that starts at column `col` and at `first` of k. */
static struct gemm_form bare_form(const struct gemm *g, int64_t col, int64_t first) {
    int64_t width = width_of(g), depth = depth_of(g);
    struct gemm_form form = form_of(g);
    form.n = gemm_n(g) - col < width ? gemm_n(g) - col : width;
    form.k = gemm_k(g) - first < depth ? gemm_k(g) - first : depth;
    form.has_bias = g->bias != NULL && first == 0;
    form.accumulate = g->accumulate || first > 0;
    if (gemm_is_packed(g))
        form.ldb = unpacked_stride(g, form.n);
    return form;
}

static int run_bare_piece(const struct gemm_level *level, const struct exec *exec, const struct gemm *g, int64_t col,
                          int64_t first) {
    struct gemm_form form = bare_form(g, col, first);
    if (gemm_is_packed(g))
        unpack(level, exec, g, col, form.n, exec->workspace);
    struct gemm_pointers pointers = {
        .a = a_at(g, 0, first),
        .b = gemm_is_packed(g) ? exec->workspace : b_at(g, first, col),
        .bias = form.has_bias ? (const char *)g->bias + (size_t)col * dtype_bytes(g->a.type) : NULL,
        .c = (char *)gemm_c(g) + (size_t)col * dtype_bytes(g->c.type),
        .scratchpad = (char *)exec->workspace + unpacked_bytes(g, width_of(g))};
    return gemm_cache_run(exec->stream->device, &form, &pointers);
}

/* A product times 0. oneDNN 2.6 leaves NaN of C where it has no instructions for bf16. */
static void clear_result(const struct gemm *g) {
    size_t element = dtype_bytes(g->c.type);
    for (int64_t row = 0; row < gemm_m(g); row++)
        memset((char *)gemm_c(g) + (size_t)(row * g->c.stride) * element, 0, (size_t)gemm_n(g) * element);
}

static int run_bare(const struct gemm_level *level, const struct exec *exec, const struct gemm *g) {
    if (g->is_scaled && g->scale == 0) {
        if (!g->accumulate)
            clear_result(g);
        return STATUS_OK;
    }
    int64_t width = width_of(g), depth = depth_of(g);
    for (int64_t col = 0; col < gemm_n(g); col += width)
        for (int64_t first = 0; first < gemm_k(g); first += depth) {
            TRY(run_bare_piece(level, exec, g, col, first));
        }
    return STATUS_OK;
}

/* Returns the largest scratchpad of all pieces. Only the first and last pieces of columns, and the first two and the
 * last of k, differ in form. */
static size_t bare_scratchpad(struct device *device, const struct gemm *g) {
    int64_t width = width_of(g), depth = depth_of(g);
    int64_t cols[] = {0, (gemm_n(g) - 1) / width * width};
    int64_t firsts[] = {0, depth < gemm_k(g) ? depth : 0, (gemm_k(g) - 1) / depth * depth};
    size_t most = 0;
    for (int i = 0; i < 6; i++) {
        struct gemm_form form = bare_form(g, cols[i % 2], firsts[i / 2]);
        size_t bytes = align(gemm_cache_scratchpad(device, &form));
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- products with an epilogue, or of FP8 ----------------------------------------------------------------------- */

static bool is_bare(const struct gemm *g) {
    return g->epilogue == EPILOGUE_NONE && !gemm_is_fp8(g);
}

/* The place of a piece's sums until the epilogue: C or aux if that is fp32, else the workspace. */
enum stage { STAGE_C, STAGE_AUX, STAGE_WORKSPACE };

static enum stage stage_of(const struct gemm *g) {
    if (!gemm_is_dgelu(g) && g->aux && g->a.type == DTYPE_F32)
        return STAGE_AUX;
    return g->c.type == DTYPE_F32 && !g->accumulate ? STAGE_C : STAGE_WORKSPACE;
}

struct piece {
    int64_t row, col, rows, cols;
};

/* In FP8 without an epilogue, pieces have the columns of the bare product. */
static int64_t piece_cols(const struct gemm *g) {
    bool is_like_bare = gemm_is_fp8(g) && g->epilogue == EPILOGUE_NONE;
    return is_like_bare ? width_of(g) : PIECE_COLS;
}

/* Returns the form of the plain product of a piece, into fp32, from `first` of k on. */
static struct gemm_form piece_form(const struct gemm *g, const struct piece *p, int64_t first) {
    int64_t depth = depth_of(g);
    struct gemm_form form = form_of(g);
    form.m = p->rows;
    form.n = p->cols;
    form.k = gemm_k(g) - first < depth ? gemm_k(g) - first : depth;
    form.accumulate = first > 0;
    form.c_type = DTYPE_F32;
    if (stage_of(g) == STAGE_WORKSPACE)
        form.ldc = p->cols;
    if (gemm_is_packed(g))
        form.ldb = unpacked_stride(g, p->cols);
    return form;
}

/* Piece i of the product, by rows of pieces. */
static struct piece piece_at(const struct gemm *g, int64_t i) {
    int64_t rows = PIECE_ROWS, cols = piece_cols(g), across = piece_count(gemm_n(g), cols);
    struct piece p = {.row = i / across * rows, .col = i % across * cols};
    p.rows = gemm_m(g) - p.row < rows ? gemm_m(g) - p.row : rows;
    p.cols = gemm_n(g) - p.col < cols ? gemm_n(g) - p.col : cols;
    return p;
}

static size_t stage_bytes(const struct gemm *g) {
    struct piece largest = piece_at(g, 0);
    return stage_of(g) == STAGE_WORKSPACE ? align((size_t)(largest.rows * largest.cols) * sizeof(float)) : 0;
}

/* Returns the largest scratchpad of a piece's products: only the first two and the last of k differ in form. */
static size_t piece_scratchpad(struct device *device, const struct gemm *g, const struct piece *p) {
    int64_t depth = depth_of(g);
    int64_t firsts[] = {0, depth < gemm_k(g) ? depth : 0, (gemm_k(g) - 1) / depth * depth};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        struct gemm_form form = piece_form(g, p, firsts[i]);
        size_t bytes = align(gemm_cache_scratchpad(device, &form));
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Returns the largest scratchpad of all pieces. All forms of pieces occur at the corners. */
static size_t scratchpad_bytes(struct device *device, const struct gemm *g) {
    if (is_bare(g))
        return bare_scratchpad(device, g);
    int64_t across = piece_count(gemm_n(g), piece_cols(g)), down = piece_count(gemm_m(g), PIECE_ROWS);
    int64_t step = across == 1 ? 1 : across - 1;
    size_t most = 0;
    for (int is_last = 0; is_last < 2; is_last++)
        for (int64_t i = 0; i < across; i += step) {
            struct piece p = piece_at(g, (is_last ? down - 1 : 0) * across + i);
            size_t bytes = piece_scratchpad(device, g, &p);
            most = bytes > most ? bytes : most;
        }
    return most;
}

static void finish_piece(const struct gemm_level *level, const struct exec *exec, const struct gemm *g,
                         const struct gemm_block *whole) {
    int64_t rows = PASS_FLOATS / whole->cols > 0 ? PASS_FLOATS / whole->cols : 1;
#pragma omp parallel for num_threads(exec_threads(exec)) schedule(static)
    for (int64_t first = 0; first < whole->rows; first += rows) {
        struct gemm_block part = *whole;
        part.ab += first * whole->stride;
        part.row += first;
        part.rows = whole->rows - first < rows ? whole->rows - first : rows;
        level->epilogue(g, &part);
    }
}

/* Returns the place of the fp32 sums of a piece until its epilogue. */
static float *sums_of(const struct exec *exec, const struct gemm *g, const struct piece *p) {
    enum stage stage = stage_of(g);
    if (stage == STAGE_WORKSPACE)
        return exec->workspace;
    return (float *)(stage == STAGE_C ? gemm_c(g) : g->aux) + p->row * g->c.stride + p->col;
}

/* Computes the fp32 sums of a piece, without a bias that must wait for a scale. */
static int multiply_piece(const struct gemm_level *level, const struct exec *exec, const struct gemm *g,
                          const struct piece *p, float *ab) {
    char *unpacked = (char *)exec->workspace + stage_bytes(g);
    int64_t depth = depth_of(g);
    int status = STATUS_OK;
    if (gemm_is_packed(g))
        unpack(level, exec, g, p->col, p->cols, unpacked);
    for (int64_t first = 0; first < gemm_k(g) && !status; first += depth) {
        struct gemm_form form = piece_form(g, p, first);
        struct gemm_pointers pointers = {
            .a = a_at(g, p->row, first),
            .b = gemm_is_packed(g) ? unpacked : b_at(g, first, p->col),
            .bias = form.has_bias ? (const char *)g->bias + (size_t)p->col * dtype_bytes(g->a.type) : NULL,
            .c = ab,
            .scratchpad = unpacked + unpacked_bytes(g, piece_cols(g))};
        status = gemm_cache_run(exec->stream->device, &form, &pointers);
    }
    return status;
}

static int run_piece(const struct gemm_level *level, const struct exec *exec, const struct gemm *g, int64_t index) {
    struct piece p = piece_at(g, index);
    struct gemm_form form = piece_form(g, &p, 0);
    float *ab = sums_of(exec, g, &p);
    TRY(multiply_piece(level, exec, g, &p, ab));
    struct gemm_block block = {.ab = ab,
                               .stride = form.ldc,
                               .row = p.row,
                               .col = p.col,
                               .rows = p.rows,
                               .cols = p.cols,
                               .factor = gemm_is_fp8(g) ? *g->a.scale * *g->b.scale : 1,
                               .needs_bias = g->bias && !form.has_bias};
    finish_piece(level, exec, g, &block);
    return STATUS_OK;
}

/* ---- the operation --------------------------------------------------------------------------------------------- */

/* Returns true if oneDNN has the product: the processor may lack the instructions for bf16. Another machine's has all
 * of them, so that the plan of a cluster does not depend on the processor that makes it. */
static bool is_in_library(struct device *device, const struct gemm *call) {
    struct gemm product = as_in_memory(call), *g = &product;
    if (((const struct cpu_device *)device)->is_elsewhere || gemm_is_row_by_row(g) || gemm_m(g) == 0 || gemm_n(g) == 0)
        return true;
    struct piece first = piece_at(g, 0);
    struct gemm_form form = is_bare(g) ? bare_form(g, 0, 0) : piece_form(g, &first, 0);
    return gemm_cache_has(device, &form);
}

bool cpu_gemm_supports(struct device *device, const struct gemm *g) {
    return !gemm_refusal(g) && !g->is_tf32 && !g->residual && is_in_library(device, g);
}

/* Returns the workspace of a product as it is in memory, which there is. */
static size_t workspace_of(const struct gemm_level *level, struct device *device, const struct gemm *g) {
    if (gemm_is_row_by_row(g))
        return level->packed_workspace(device, g);
    size_t bytes = scratchpad_bytes(device, g) + unpacked_bytes(g, is_bare(g) ? width_of(g) : piece_cols(g)) +
                   (is_bare(g) ? 0 : stage_bytes(g));
    struct column_sum sums = gemm_bias_sums(g);
    size_t sum_bytes = g->bias_gradient ? level->column_sum_workspace(device, &sums) : 0;
    return bytes > sum_bytes ? bytes : sum_bytes;
}

size_t gemm_workspace(const struct gemm_level *level, struct device *device, const struct gemm *g) {
    if (gemm_refusal(g) || gemm_m(g) == 0 || gemm_n(g) == 0)
        return 0;
    struct gemm product = as_in_memory(g);
    return workspace_of(level, device, &product);
}

static int run_plain(const struct gemm_level *level, const struct exec *exec, const struct gemm *g) {
    int status = STATUS_OK;
    if (is_bare(g)) {
        struct column_sum sums = gemm_bias_sums(g);
        status = run_bare(level, exec, g);
        if (g->bias_gradient && !status)
            status = level->column_sum(exec, &sums);
        return status;
    }
    int64_t pieces = piece_count(gemm_m(g), PIECE_ROWS) * piece_count(gemm_n(g), piece_cols(g));
    for (int64_t i = 0; i < pieces && !status; i++)
        status = run_piece(level, exec, g, i);
    return status;
}

/* Checks a product: as gemm_check, and STATUS_UNSUPPORTED if oneDNN lacks it on this processor. */
static int check(struct device *device, const struct gemm *g) {
    int status = gemm_check(g);
    THEN_IF(status, g->is_tf32, status_fail(STATUS_UNSUPPORTED, "gemm: no TF32 on cpu"));
    THEN_IF(status, g->residual, status_fail(STATUS_UNSUPPORTED, "gemm: no residual on cpu"));
    if (!status && !is_in_library(device, g))
        status = status_fail(STATUS_UNSUPPORTED,
                             "gemm: oneDNN has no %s products on this processor: they need AVX-512; fp32 works",
                             dtype_name(g->a.type));
    return status;
}

/* Runs a product as it is in memory. If the workspace is too small, it runs the rows in halves: oneDNN may need more
 * memory for fewer rows than planned. */
static int run_checked(const struct gemm_level *level, const struct exec *exec, const struct gemm *g) {
    size_t needed = workspace_of(level, exec->stream->device, g);
    if (exec->workspace_bytes < needed && !gemm_is_row_by_row(g) && !g->a_transposed && gemm_m(g) > 1) {
        int64_t half = gemm_m(g) / 2;
        struct gemm upper = gemm_rows(g, 0, half), lower = gemm_rows(g, half, gemm_m(g) - half);
        int status = run_checked(level, exec, &upper);
        return status ? status : run_checked(level, exec, &lower);
    }
    if (exec->workspace_bytes < needed)
        return status_fail(STATUS_INVALID, "gemm: %zu bytes of workspace, needs %zu", exec->workspace_bytes, needed);
    if (!gemm_is_row_by_row(g))
        return run_plain(level, exec, g);
    level->packed_gemm(exec, g);
    return STATUS_OK;
}

int gemm_run(const struct gemm_level *level, const struct exec *exec, const struct gemm *g) {
    int status = check(exec->stream->device, g);
    if (status || gemm_m(g) == 0 || gemm_n(g) == 0)
        return status;
    struct gemm product = as_in_memory(g);
    return run_checked(level, exec, &product);
}
