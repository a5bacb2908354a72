/* The operation gemm, and products with encoded weights. A kernel of ours multiplies up to ENCODED_ROWS_MOST rows
 * forward. In all other products values are written to the workspace, a block at a time, and are multiplied as a plain
 * weight. Values in bf16 are rounded to it. */
#include "cuda/encoded.h"
#include "cuda/gemm-internal.h"

enum { BLOCK_BYTES = 32 << 20, BLOCK_MULTIPLE = 64, WORKSPACE_ALIGN = 256 };

/* ---- pieces: a forward product is cut by the parts of the weight and by blocks of outputs, others by blocks of C's
 * columns ---- */

struct piece {
    struct gemm product;        /* B is plain. Its data is NULL for values that are not in memory */
    struct encoded_range range; /* forward: the rows of one part */
    struct matrix_view rows;    /* of the weight */
    int64_t col;                /* its first column */
};

static const void *after(const void *memory, int64_t elements, enum dtype type) {
    return memory ? (const char *)memory + (size_t)elements * dtype_bytes(type) : NULL;
}

/* Returns the product of C's columns [col, col + cols). */
static struct gemm columns_of(const struct gemm *g, int64_t col, int64_t cols) {
    struct gemm part = *g;
    part.c.data = after(g->c.data, col, g->c.type);
    part.c.columns = cols;
    part.bias = after(g->bias, col, gemm_type(g));
    part.residual = after(g->residual, col, g->c.type);
    part.aux = (void *)(uintptr_t)after(g->aux, col, gemm_type(g));
    return part;
}

static bool is_few(const struct device *device, const struct gemm *g) {
    return cuda_few_rows_suits(device, g) && gemm_m(g) <= ENCODED_ROWS_MOST;
}

static bool is_in_codes(const struct piece *piece) {
    return piece->range.form.encoding.codes != CODES_NONE;
}

/* Returns the rows or columns of a block of this many lines. */
static int64_t block_count(const struct gemm *g, int64_t line) {
    int64_t count = BLOCK_BYTES / (line * (int64_t)dtype_bytes(g->b.type)) / BLOCK_MULTIPLE * BLOCK_MULTIPLE;
    return count ? count : BLOCK_MULTIPLE;
}

static void forward_piece(const struct device *device, const struct gemm *g, int64_t done, struct piece *piece) {
    struct matrix_view rest = matrix_rows(g->b, done, gemm_n(g) - done);
    int part = 0;
    while (!cuda_encoded_range(&rest, part, &piece->range))
        part++;
    int64_t most = block_count(g, gemm_k(g)), count = piece->range.rows;
    if (is_in_codes(piece) && !is_few(device, g) && count > most)
        count = most;
    piece->rows = matrix_rows(rest, 0, count);
    piece->range.rows = count;
    piece->product = columns_of(g, done, count);
    piece->product.b = matrix_plain(g->b.type, NULL, count, gemm_k(g));
    if (!is_in_codes(piece))
        piece->product.b.data = after(piece->range.form.codes, piece->range.from * gemm_k(g), g->b.type);
}

/* Finds the piece after `*done` columns of C, and adds its columns. Returns false after the last one. */
static bool next_piece(const struct device *device, const struct gemm *g, int64_t *done, struct piece *piece) {
    int64_t rest = gemm_n(g) - *done, most = block_count(g, g->b.rows);
    *piece = (struct piece){.rows = g->b, .col = *done};
    if (!rest)
        return false;
    if (g->b_transposed) {
        forward_piece(device, g, *done, piece);
        piece->col = 0;
    } else {
        piece->product = columns_of(g, *done, rest < most ? rest : most);
        piece->product.b = matrix_plain(g->b.type, NULL, g->b.rows, piece->product.c.columns);
        piece->range.form.encoding.codes = CODES_INTEGERS; /* or others: its values are not in memory */
    }
    *done += piece->product.c.columns;
    return true;
}

/* ---- few rows ---- */

enum kind { KIND_nibbles, KIND_tables, KIND_bytes, KIND_e4m3 };

static enum kind kind_of(const struct encoded_form *form) {
    if (form->encoding.codes == CODES_INTEGERS)
        return form->bits == 4 ? KIND_nibbles : KIND_bytes;
    return form->encoding.codes == CODES_E4M3 ? KIND_e4m3 : KIND_tables;
}

static int64_t whole_steps(int64_t positions) {
    return (positions + ENCODED_STEP - 1) / ENCODED_STEP * ENCODED_STEP;
}

/* The inputs of few rows are copied to the workspace where they are not in whole accesses and steps. */
static size_t inputs_bytes(const struct piece *piece) {
    return (size_t)(gemm_m(&piece->product) * whole_steps(piece->range.form.positions)) * sizeof(uint16_t);
}

static int copy_inputs(const struct exec *exec, const struct encoded_form *form, struct few_rows *product) {
    struct encoded_inputs call = {.rows = product->rows,
                                  .columns = product->depth,
                                  .positions = form->positions,
                                  .stride = product->x_stride,
                                  .x = product->x,
                                  .order = form->order,
                                  .out = exec->workspace};
    bool is_whole = !form->order && form->positions % ENCODED_STEP == 0 && (uintptr_t)product->x % 8 == 0 &&
                    product->x_stride % 4 == 0;
    if (is_whole)
        return STATUS_OK;
    product->x = exec->workspace;
    product->x_stride = whole_steps(form->positions);
    return cuda_launch_blocks(exec, CUDA_encoded_inputs, DTYPE_F32, product->rows, 256, &call);
}

/* Returns a bound of the groups, or blocks, of `count` positions in a tile. */
static int most_of_tile(const struct encoded_form *form, int64_t count) {
    return count % form->tile == 0   ? 1
           : form->tile % count == 0 ? form->tile / (int)count
                                     : form->tile / (int)count + 2;
}

static struct encoded_pieces pieces_of(const struct encoded_form *form) {
    const struct encoding *e = &form->encoding;
    struct encoded_pieces p = {.scale = (int)dtype_bytes(e->scale_type)};
    p.shift = e->shift == ENCODED_OFFSETS ? p.scale : e->shift == ENCODED_ZEROS;
    p.groups = most_of_tile(form, form->group);
    p.blocks = e->groups_of_block ? most_of_tile(form, (int64_t)form->group * e->groups_of_block) : 0;
    p.all = p.groups * (p.scale + p.shift) + p.blocks * (e->shift == ENCODED_OFFSETS ? 4 : 2);
    return p;
}

static int multiply_few(const struct exec *exec, const struct piece *piece) {
    static const struct {
        enum kind kind;
        int tiles;
        enum cuda_kernel kernel;
    } kernels[] = {
#define FORM(codes, tiles, blocks) {KIND_##codes, tiles, CUDA_encoded_rows_##codes##_##tiles},
        ENCODED_ROWS_KERNELS(FORM)
#undef FORM
    };
    const struct encoded_form *form = &piece->range.form;
    struct encoded_rows_call call = {.product = cuda_few_rows_of(&piece->product),
                                     .w = *form,
                                     .pieces = pieces_of(form),
                                     .first_row = piece->range.from,
                                     .has_shifts = form->encoding.shift != ENCODED_SYMMETRIC || form->base != 0,
                                     .is_split =
                                         form->encoding.codes == CODES_NF4 || form->encoding.codes == CODES_FP4};
    int i = 0;
    while (kernels[i].kind != kind_of(form) || 8 * kernels[i].tiles < call.product.rows)
        i++;
    int64_t panels =
        (piece->range.from + piece->range.rows + ENCODED_PANEL - 1) / ENCODED_PANEL - piece->range.from / ENCODED_PANEL;
    TRY(copy_inputs(exec, form, &call.product));
    return cuda_launch(
        exec, &(const struct cuda_launch){.kernel = kernels[i].kernel,
                                          .type = DTYPE_BF16,
                                          .blocks = panels,
                                          .threads = 32 * ENCODED_SPLITS,
                                          .shared_bytes = (size_t)encoded_rows_shared(&call.pieces, kernels[i].tiles),
                                          .arguments = &call});
}

/* ---- values in the workspace ---- */

static size_t block_bytes(const struct piece *piece) {
    const struct matrix_view *b = &piece->product.b;
    return ((size_t)(b->rows * b->columns) * dtype_bytes(b->type) + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN *
           WORKSPACE_ALIGN;
}

/* Writes the piece's values to `out`, part by part. */
static int write_values(const struct exec *exec, const struct piece *piece, void *out) {
    const struct matrix_view *b = &piece->product.b;
    struct encoded_range range;
    int status = STATUS_OK;
    for (int i = 0; i < piece->rows.encoded->count && !status; i++)
        if (cuda_encoded_range(&piece->rows, i, &range)) {
            const struct encoded_values call = {.w = range.form,
                                                .first_row = range.from,
                                                .rows = range.rows,
                                                .col = piece->col,
                                                .cols = b->columns,
                                                .stride = b->columns,
                                                .out = (char *)out +
                                                       (size_t)(range.first * b->columns) * dtype_bytes(b->type)};
            status = cuda_launch_rows(exec, CUDA_encoded_values, b->type, range.rows, b->columns, &call);
        }
    return status;
}

/* ---- encoded products ---- */

static size_t pieces_workspace(struct device *device, const struct gemm *g) {
    struct piece piece;
    size_t most = 0;
    for (int64_t done = 0; next_piece(device, g, &done, &piece);) {
        size_t bytes = is_in_codes(&piece) && is_few(device, g) ? inputs_bytes(&piece)
                                                                : cuda_plain_gemm_workspace(device, &piece.product) +
                                                                      (is_in_codes(&piece) ? block_bytes(&piece) : 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* A plan does not know whether a GELU will have aux, with which no kernel of ours computes it. */
static size_t encoded_workspace(struct device *device, const struct gemm *g) {
    struct gemm other = *g;
    other.aux = g->aux ? NULL : &other;
    size_t bytes = pieces_workspace(device, g);
    size_t other_bytes = g->epilogue != EPILOGUE_NONE ? pieces_workspace(device, &other) : 0;
    return bytes > other_bytes ? bytes : other_bytes;
}

static int multiply_values(const struct exec *exec, struct piece *piece) {
    size_t bytes = block_bytes(piece);
    struct exec rest = {.stream = exec->stream,
                        .workspace = (char *)exec->workspace + bytes,
                        .workspace_bytes = exec->workspace_bytes - bytes};
    TRY(write_values(exec, piece, exec->workspace));
    piece->product.b.data = exec->workspace;
    return cuda_plain_gemm(&rest, &piece->product);
}

static int encoded_gemm(const struct exec *exec, const struct gemm *g) {
    struct piece piece;
    int status = STATUS_OK;
    for (int64_t done = 0; !status && next_piece(exec->stream->device, g, &done, &piece);)
        status = !is_in_codes(&piece)              ? cuda_plain_gemm(exec, &piece.product)
                 : is_few(exec->stream->device, g) ? multiply_few(exec, &piece)
                                                   : multiply_values(exec, &piece);
    return status;
}

/* ---- the operation ---- */

static const char *lack(struct device *device, const struct gemm *g) {
    return gemm_is_packed(g) && !cuda_packed_bytes(device, &g->b) ? "no packed form of this weight on cuda"
                                                                  : cuda_gemm_lack(device, g);
}

bool cuda_gemm_supports(struct device *device, const struct gemm *g) {
    return !gemm_refusal(g) && !lack(device, g);
}

size_t cuda_gemm_workspace(struct device *device, const struct gemm *g) {
    if (!cuda_gemm_supports(device, g) || gemm_m(g) == 0 || gemm_n(g) == 0)
        return 0;
    return gemm_is_packed(g) ? encoded_workspace(device, g) : cuda_plain_gemm_workspace(device, g);
}

static int check(const struct exec *exec, const struct gemm *g) {
    TRY(gemm_check(g));
    const char *lacks = lack(exec->stream->device, g);
    if (lacks)
        return status_fail(STATUS_UNSUPPORTED, "gemm: %s", lacks);
    size_t needed = cuda_gemm_workspace(exec->stream->device, g);
    if (exec->workspace_bytes < needed)
        return status_fail(STATUS_INVALID, "gemm: %zu bytes of workspace, needs %zu", exec->workspace_bytes, needed);
    return STATUS_OK;
}

int cuda_gemm(const struct exec *exec, const struct gemm *g) {
    int status = check(exec, g);
    if (status || gemm_m(g) == 0 || gemm_n(g) == 0)
        return status;
    return gemm_is_packed(g) ? encoded_gemm(exec, g) : cuda_plain_gemm(exec, g);
}
