/* Products of plain matrices. cuBLASLt multiplies. Where it lacks a GELU, its product goes to a bf16 C, and a kernel of
 * ours follows. Deltas lie in C before it adds its product. In all other cases it writes sums in fp32, which a kernel
 * finishes; sums whose place is the workspace are made in pieces of rows. */
#include "cuda/gemm-internal.h"

#include "cuda/fp8.h"
#include "cuda/gemm_finish.h"

enum { ALIGNMENT = 16, WORKSPACE_ALIGNMENT = 256, STAGE_FLOATS = 8 << 20, CUT_LEAST = 1024, FP8_ARCHITECTURE = 89 };

static bool is_aligned(const void *memory) {
    return (uintptr_t)memory % ALIGNMENT == 0;
}

/* ---- what the library computes ---- */

/* Returns the bytes, up to ALIGNMENT, that all addresses in these bits are multiples of. */
static uint8_t alignment_of(uintptr_t bits) {
    return (uint8_t)((bits | ALIGNMENT) & -(bits | ALIGNMENT));
}

/* Returns the bits of a matrix's address and, for any of its rows, of its stride. */
static uintptr_t bits_of(const struct matrix_view *m, bool is_any_row) {
    return (uintptr_t)m->data | (is_any_row ? (uintptr_t)m->stride * dtype_bytes(m->type) : 0);
}

/* Returns the copy of an FP8 matrix whose rows go along the inner dimension, as the library wants both factors. Zeros
 * fill the rows. */
static struct matrix_view along_inner(const struct matrix_view *matrix, bool by_columns) {
    struct matrix_view along = *matrix;
    int64_t inner = by_columns ? matrix->rows : matrix->columns;
    along.data = by_columns ? fp8_transpose(matrix->data, matrix->rows, matrix->columns) : matrix->data;
    along.rows = by_columns ? matrix->columns : matrix->rows;
    along.columns = along.stride = fp8_padded(inner);
    along.scale = fp8_scale(matrix->data, matrix->rows, matrix->columns);
    return along;
}

/* Gradients are never batch-invariant: no library has one algorithm for all sums over rows. */
static bool is_batch_invariant(const struct exec *exec, const struct gemm *g) {
    return exec->stream->device->is_batch_invariant && g->b_transposed && !g->a_transposed;
}

/* The library's product without an epilogue, into `c`. Forward products in FP8 are summed fast, as TransformerEngine
 * does. */
static struct gemm_form form_of(const struct exec *exec, const struct gemm *g, const struct matrix_view *c) {
    bool is_fp8 = gemm_is_fp8(g);
    bool is_any_row = is_batch_invariant(exec, g);
    const struct cuda_device *own = cuda(exec->stream->device);
    int spared = own->spared < own->multiprocessors ? own->multiprocessors - own->spared : 1;
    return (struct gemm_form){.m = c->rows,
                              .n = c->columns,
                              .k = is_fp8 ? g->a.columns : gemm_k(g),
                              .lda = g->a.stride,
                              .ldb = g->b.stride,
                              .ldc = c->stride,
                              .a_transposed = !is_fp8 && g->a_transposed,
                              .b_transposed = is_fp8 || g->b_transposed,
                              .is_fast = is_fp8 && g->b_transposed,
                              .type = (uint8_t)g->a.type,
                              .b_type = (uint8_t)g->b.type,
                              .c_type = (uint8_t)c->type,
                              .a_alignment = alignment_of(bits_of(&g->a, is_any_row)),
                              .b_alignment = alignment_of((uintptr_t)g->b.data),
                              .c_alignment = alignment_of(bits_of(c, is_any_row) | (uintptr_t)g->residual),
                              .epilogue = CUBLASLT_NO_EPILOGUE,
                              .is_tf32 = g->is_tf32,
                              .is_one_pass = is_any_row,
                              .is_batch_invariant = is_any_row,
                              .multiprocessors = (uint16_t)(own->spared ? spared : 0)};
}

static struct gemm_pointers pointers_of(const struct exec *exec, const struct gemm *g, const struct matrix_view *c) {
    uintptr_t workspace =
        ((uintptr_t)exec->workspace + WORKSPACE_ALIGNMENT - 1) & ~(uintptr_t)(WORKSPACE_ALIGNMENT - 1);
    return (struct gemm_pointers){.a = g->a.data,
                                  .b = g->b.data,
                                  .a_scale = g->a.scale,
                                  .b_scale = g->b.scale,
                                  .c = (void *)(uintptr_t)c->data,
                                  .alpha = g->is_scaled ? g->scale : 1,
                                  .beta = g->accumulate ? 1 : 0,
                                  .workspace = (void *)workspace};
}

/* Returns true if rows and their strides are whole accesses of 16 bytes. */
static bool has_accesses(const struct matrix_view *m) {
    return m->columns * (int64_t)dtype_bytes(m->type) % ALIGNMENT == 0 &&
           m->stride * (int64_t)dtype_bytes(m->type) % ALIGNMENT == 0 && is_aligned(m->data);
}

static bool all_have_accesses(const struct gemm *g) {
    return has_accesses(&g->a) && has_accesses(&g->b) && has_accesses(&g->c);
}

/* Gives the product an epilogue. Where the library adds partial sums, it may round these to C's type before the bias.
 * On sm_90 it rounds once if all rows are whole accesses; elsewhere it gets one pass. */
static void set_epilogue(const struct exec *exec, const struct gemm *g, struct gemm_form *form, uint8_t epilogue) {
    bool rounds_once = cuda(exec->stream->device)->architecture == 90 && all_have_accesses(g);
    form->epilogue = epilogue;
    form->is_one_pass = form->is_batch_invariant || (form->c_type == DTYPE_BF16 && !rounds_once);
}

/* Adds the bias to a product, if the library can: its bias has C's type. */
static bool add_bias(const struct exec *exec, const struct gemm *g, struct gemm_form *form,
                     struct gemm_pointers *pointers) {
    if (!g->bias)
        return true;
    if (form->c_type != gemm_type(g) || !is_aligned(g->bias))
        return false;
    pointers->bias = g->bias;
    set_epilogue(exec, g, form, CUBLASLT_BIAS);
    return true;
}

/* Returns true if the library's GELU takes aux: an aux has a row stride that is divisible by 8. */
static bool takes_aux(const struct gemm *g) {
    return is_aligned(g->aux) && g->c.stride % 8 == 0;
}

/* Makes the whole product one of the library's. False if it needs a kernel. The library's GELU is the tanh one.
 * It takes rounded sums where rows are not whole accesses. Others measured that GPUs before sm_90 are slower with it
 * in the product than with a kernel. */
static bool is_library_alone(const struct exec *exec, const struct gemm *g, struct gemm_form *form,
                             struct gemm_pointers *pointers) {
    struct device *device = exec->stream->device;
    bool is_bf16 = gemm_type(g) == DTYPE_BF16 && g->c.type == DTYPE_BF16;
    *form = form_of(exec, g, &g->c);
    *pointers = pointers_of(exec, g, &g->c);
    if (!add_bias(exec, g, form, pointers))
        return false;
    if (gemm_is_fp8(g) && (!has_accesses(&g->c) || !is_aligned(g->residual)))
        return false; /* its FP8 products write C only where rows begin and end at multiples of 16 bytes */
    if (g->residual && !all_have_accesses(g))
        return false; /* the library may round before it adds */
    if (g->residual) {
        pointers->residual = g->residual;
        pointers->beta = 1;
    }
    switch (g->epilogue) {
    case EPILOGUE_NONE:
        return !gemm_is_fp8(g) || g->accumulate || cuda_gemm_cache_has(device, form, pointers);
    case EPILOGUE_GELU_TANH:
        if (!is_bf16 || cuda(device)->architecture < 90 || !all_have_accesses(g) || (g->aux && !takes_aux(g)))
            return false;
        set_epilogue(exec, g, form,
                     g->aux ? (g->bias ? CUBLASLT_GELU_AUX_BIAS : CUBLASLT_GELU_AUX)
                            : (g->bias ? CUBLASLT_GELU_BIAS : CUBLASLT_GELU));
        break;
    case EPILOGUE_DGELU_TANH:
        if (!is_bf16 || !takes_aux(g) || gemm_is_fp8(g))
            return false;
        set_epilogue(exec, g, form, CUBLASLT_DGELU);
        break;
    case EPILOGUE_GELU_EXACT:
    case EPILOGUE_DGELU_EXACT:
        return false;
    }
    pointers->aux = g->aux;
    return cuda_gemm_cache_has(device, form, pointers);
}

/* ---- cuts: where rows of bf16 end within an access of 16 bytes, as those of 50,257 logits do, the library takes
 * kernels that are several times slower. The last elements of such rows become a separate product. ---- */

static struct matrix_view columns_of(struct matrix_view m, int64_t first, int64_t count) {
    m.data = (const char *)m.data + (size_t)first * dtype_bytes(m.type);
    m.columns = count;
    return m;
}

/* Returns the columns up to the last whole access if the rest is to be cut off, else all. */
static int64_t whole_columns(const struct gemm *g, const struct matrix_view *m) {
    int64_t access = ALIGNMENT / (int64_t)dtype_bytes(m->type);
    bool pays = g->a.type == DTYPE_BF16 && m->columns >= CUT_LEAST && m->stride % access == 0 && is_aligned(m->data);
    return pays ? m->columns / access * access : m->columns;
}

/* Cuts the last columns of A off the sums: C = first, and then C += rest. Returns false if there is nothing to cut. */
static bool cut_sums(const struct gemm *g, struct gemm *first, struct gemm *rest) {
    int64_t k = gemm_k(g), whole = g->a_transposed ? k : whole_columns(g, &g->a);
    if (whole == k)
        return false;
    *first = *rest = *g;
    first->a = columns_of(g->a, 0, whole);
    rest->a = columns_of(g->a, whole, k - whole);
    first->b = g->b_transposed ? columns_of(g->b, 0, whole) : matrix_rows(g->b, 0, whole);
    rest->b = g->b_transposed ? columns_of(g->b, whole, k - whole) : matrix_rows(g->b, whole, k - whole);
    rest->accumulate = true;
    return true;
}

/* Cuts the last rows or columns off C. Returns false if there is nothing to cut. */
static bool cut_result(const struct gemm *g, struct gemm *first, struct gemm *rest) {
    int64_t m = gemm_m(g), n = gemm_n(g), columns = whole_columns(g, &g->c);
    int64_t rows = g->a_transposed ? whole_columns(g, &g->a) : m;
    *first = *rest = *g;
    if (g->bias || g->residual || g->epilogue != EPILOGUE_NONE || gemm_is_fp8(g))
        return false;
    if (rows < m) {
        first->a = columns_of(g->a, 0, rows);
        rest->a = columns_of(g->a, rows, m - rows);
        first->c = matrix_rows(g->c, 0, rows);
        rest->c = matrix_rows(g->c, rows, m - rows);
    } else if (columns < n) {
        first->b = g->b_transposed ? matrix_rows(g->b, 0, columns) : columns_of(g->b, 0, columns);
        rest->b = g->b_transposed ? matrix_rows(g->b, columns, n - columns) : columns_of(g->b, columns, n - columns);
        first->c = columns_of(g->c, 0, columns);
        rest->c = columns_of(g->c, columns, n - columns);
    }
    return rows < m || columns < n;
}

/* ---- a kernel of ours after the library's product ---- */

/* Makes only the product, in bf16. It goes to aux if a GELU saves its input there, and else to C. Returns false if it
 * is the whole product, or if a kernel has no rows of whole accesses; elements of a GELU are neighbours. */
static bool make_alone(const struct gemm *g, struct gemm *alone) {
    bool is_gelu = g->epilogue != EPILOGUE_NONE;
    *alone = *g;
    alone->epilogue = EPILOGUE_NONE;
    alone->aux = NULL;
    if (g->aux && is_gelu && !gemm_is_dgelu(g))
        alone->c.data = g->aux;
    return is_gelu && g->c.type == DTYPE_BF16 && all_have_accesses(g) && g->c.stride == gemm_n(g);
}

/* Applies the GELU or its gradient to a product. */
static int run_gelu(const struct exec *exec, const struct gemm *g, const struct matrix_view *product) {
    const struct gelu call = {.count = gemm_m(g) * gemm_n(g),
                              .type = product->type,
                              .is_tanh = g->epilogue == EPILOGUE_GELU_TANH || g->epilogue == EPILOGUE_DGELU_TANH,
                              .x = gemm_is_dgelu(g) ? g->aux : product->data,
                              .y = gemm_c(g),
                              .dy = product->data,
                              .dx = gemm_c(g)};
    return gemm_is_dgelu(g) ? cuda_gelu_backward(exec, &call) : cuda_gelu_forward(exec, &call);
}

/* ---- sums that a kernel finishes ---- */

/* Returns true if the sums of a product that a kernel finishes go to the workspace; otherwise they go to aux or C. */
static bool is_staged(const struct gemm *g) {
    return g->c.type != DTYPE_F32;
}

/* Returns the rows of a piece of staged sums. */
static int64_t piece_rows(const struct gemm *g) {
    int64_t most = STAGE_FLOATS / gemm_n(g) > 0 ? STAGE_FLOATS / gemm_n(g) : 1;
    return is_staged(g) && gemm_m(g) > most ? most : gemm_m(g);
}

/* The bytes of staged sums. Only a forward product and its backward may need them; whether one does depends on
 * addresses. */
static size_t stage_bytes(const struct gemm *g) {
    bool is_possible = is_staged(g) && !g->accumulate && !g->is_scaled;
    return is_possible ? (size_t)(piece_rows(g) * gemm_n(g)) * sizeof(float) : 0;
}

static int finish_rows(const struct exec *exec, const struct gemm *g, const struct matrix_view *sums, bool has_bias) {
    struct gemm_finish call = {.rows = gemm_m(g),
                               .cols = gemm_n(g),
                               .sums = sums->data,
                               .sums_stride = sums->stride,
                               .bias = has_bias ? NULL : g->bias,
                               .residual = g->residual,
                               .epilogue = g->epilogue,
                               .aux = g->aux == sums->data ? NULL : g->aux,
                               .c = gemm_c(g),
                               .stride = g->c.stride,
                               .is_c_fp32 = g->c.type == DTYPE_F32};
    uintptr_t c = (uintptr_t)call.c, in_fp32 = (uintptr_t)call.sums | (call.is_c_fp32 ? c : 0);
    uintptr_t others = (uintptr_t)call.bias | (uintptr_t)call.residual | (uintptr_t)call.aux | (call.is_c_fp32 ? 0 : c);
    bool is_whole = (call.cols | call.sums_stride | call.stride) % FINISH_WIDTH == 0 &&
                    in_fp32 % (FINISH_WIDTH * sizeof(float)) == 0 &&
                    others % (FINISH_WIDTH * dtype_bytes(gemm_type(g))) == 0;
    call.width = is_whole ? FINISH_WIDTH : 1;
    int64_t threads = (call.rows + FINISH_ROWS - 1) / FINISH_ROWS * (call.cols / call.width);
    return cuda_launch_blocks(exec, CUDA_gemm_finish, gemm_type(g), (threads + FINISH_THREADS - 1) / FINISH_THREADS,
                              FINISH_THREADS, &call);
}

/* Sums of k into `sums`, in two parts if the last columns of A are cut off. */
static int run_sums(const struct exec *exec, const struct gemm *g, const struct matrix_view *sums, bool *has_bias) {
    struct gemm first = *g, rest;
    bool is_cut = cut_sums(g, &first, &rest);
    struct gemm_form form = form_of(exec, &first, sums);
    struct gemm_pointers pointers = pointers_of(exec, &first, sums);
    *has_bias = add_bias(exec, &first, &form, &pointers);
    TRY(cuda_gemm_cache_run(exec, &form, &pointers));
    if (!is_cut)
        return STATUS_OK;
    form = form_of(exec, &rest, sums);
    pointers = pointers_of(exec, &rest, sums);
    return cuda_gemm_cache_run(exec, &form, &pointers);
}

/* The sums of all rows lie in the stage, or in aux or C. */
static int run_rows(const struct exec *exec, const struct gemm *g, float *stage) {
    bool is_aux = g->aux && g->a.type == DTYPE_F32 && !gemm_is_dgelu(g), has_bias;
    struct matrix_view sums = is_staged(g) ? matrix_plain(DTYPE_F32, stage, gemm_m(g), gemm_n(g)) : g->c;
    sums.data = !is_staged(g) && is_aux ? g->aux : sums.data;
    TRY(run_sums(exec, g, &sums, &has_bias));
    bool is_done = !is_staged(g) && has_bias && !g->residual && g->epilogue == EPILOGUE_NONE;
    return is_done ? STATUS_OK : finish_rows(exec, g, &sums, has_bias);
}

static int run_pieces(const struct exec *exec, const struct gemm *g) {
    struct gemm_pointers pointers = pointers_of(exec, g, &g->c);
    float *stage = (float *)(void *)((char *)pointers.workspace + gemm_library_bytes(exec->stream->device));
    int status = STATUS_OK;
    for (int64_t first = 0; first < gemm_m(g) && !status; first += piece_rows(g)) {
        int64_t remaining = gemm_m(g) - first;
        struct gemm part = gemm_rows(g, first, remaining < piece_rows(g) ? remaining : piece_rows(g));
        status = run_rows(exec, &part, stage);
    }
    return status;
}

/* ---- the operation ---- */

const char *cuda_gemm_lack(const struct device *device, const struct gemm *g) {
    bool has_fp8 = cuda(device)->architecture >= FP8_ARCHITECTURE || cuda(device)->may_be_newer;
    return gemm_is_fp8(g) && !has_fp8 ? "FP8 needs a GPU of sm_89 or newer" : NULL;
}

size_t cuda_plain_gemm_workspace(struct device *device, const struct gemm *g) {
    size_t product = WORKSPACE_ALIGNMENT + gemm_library_bytes(device) + stage_bytes(g);
    struct column_sum sums = gemm_bias_sums(g);
    size_t sum_bytes = g->bias_gradient ? cuda_column_sum_workspace(device, &sums) : 0;
    return product > sum_bytes ? product : sum_bytes;
}

/* Batch-invariant sums of a bf16 C are always finished by a kernel. C is fp32 where a row has an adapter, and the
 * library may add in another order for it. */
static int run(const struct exec *exec, const struct gemm *g) {
    struct gemm first, rest, alone;
    if (cut_result(g, &first, &rest)) {
        TRY(run(exec, &first));
        return run(exec, &rest);
    }
    struct gemm_form form;
    struct gemm_pointers pointers;
    bool is_possible = stage_bytes(g) > 0 || !is_staged(g),
         is_finished_here = is_batch_invariant(exec, g) && is_staged(g);
    bool needs_sums = is_possible && (is_finished_here || cut_sums(g, &first, &rest));
    if (!needs_sums && is_library_alone(exec, g, &form, &pointers))
        return cuda_gemm_cache_run(exec, &form, &pointers);
    if (needs_sums || !make_alone(g, &alone) || !is_library_alone(exec, &alone, &form, &pointers))
        return run_pieces(exec, g);
    TRY(cuda_gemm_cache_run(exec, &form, &pointers));
    return run_gelu(exec, g, &alone.c);
}

int cuda_plain_gemm(const struct exec *exec, const struct gemm *call) {
    if (cuda_few_rows_takes(exec->stream->device, call))
        return cuda_few_rows(exec, call);
    struct gemm product = *call;
    struct column_sum sums = gemm_bias_sums(call);
    if (gemm_is_fp8(call)) { /* from here on, both factors lie along the inner dimension, whatever the flags say */
        product.a = along_inner(&call->a, call->a_transposed);
        product.b = along_inner(&call->b, !call->b_transposed);
    }
    TRY(run(exec, &product));
    return call->bias_gradient ? cuda_column_sum(exec, &sums) : STATUS_OK;
}
