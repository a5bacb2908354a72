#include "gemm_check.h"

static bool is_fp8_type(enum dtype type) {
    return type == DTYPE_E4M3 || type == DTYPE_E5M2;
}

/* Returns why no product can take these FP8 matrices, or NULL if one can. */
static const char *fp8_refusal(const struct gemm *g) {
    if (g->a.form != g->b.form || !is_fp8_type(g->a.type) || !is_fp8_type(g->b.type) || g->c.form != MATRIX_PLAIN)
        return "FP8 multiplies FP8, and C is plain";
    if (g->a.type == DTYPE_E5M2 && g->b.type == DTYPE_E5M2)
        return "A and B are not both E5M2";
    return g->is_scaled || g->bias_gradient || g->c.scale ? "FP8 has only the scales of A and B, and no bias gradient"
                                                          : NULL;
}

/* Returns why no product can take these matrices, or NULL if one can. */
static const char *matrix_refusal(const struct gemm *g) {
    if (gemm_is_fp8(g) || g->b.form == MATRIX_FP8)
        return fp8_refusal(g);
    if (g->a.type != DTYPE_F32 && g->a.type != DTYPE_BF16)
        return "A is fp32 or bf16";
    if (g->b.type != g->a.type)
        return "B has A's type";
    if (g->a.scale || g->b.scale || g->c.scale)
        return "only FP8 has scales";
    if (g->a.form != MATRIX_PLAIN || g->c.form != MATRIX_PLAIN)
        return "A and C are plain";
    if (g->is_tf32 && g->a.type != DTYPE_F32)
        return "TF32 is for A and B of fp32";
    if (gemm_is_packed(g) && g->a_transposed)
        return "a packed weight multiplies plain rows";
    return NULL;
}

const char *gemm_refusal(const struct gemm *g) {
    const char *why = matrix_refusal(g);
    if (why)
        return why;
    if (g->c.type != gemm_type(g) && g->c.type != DTYPE_F32)
        return "C has A's type (for FP8: bf16) or is fp32";
    if ((g->accumulate || g->is_scaled) && (g->epilogue != EPILOGUE_NONE || g->bias))
        return "what accumulates or is scaled has neither bias nor epilogue";
    if (g->residual &&
        (g->epilogue != EPILOGUE_NONE || g->accumulate || g->is_scaled || g->a_transposed || g->c.type != gemm_type(g)))
        return "what has a residual is plain and of its type";
    if (gemm_is_dgelu(g) && (!g->aux || g->bias))
        return "the GELU's backward reads aux, and has no bias";
    if (g->a_transposed && (g->c.type != DTYPE_F32 || g->epilogue != EPILOGUE_NONE))
        return "with A transposed, C is a gradient in fp32 and there is no epilogue";
    if (g->bias_gradient && !g->a_transposed)
        return "a bias gradient comes with the transposed A of a weight gradient";
    return NULL;
}

static int check_shape(const char *name, const struct matrix_view *matrix, int64_t rows, int64_t columns) {
    if (matrix->rows == rows && matrix->columns == columns)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "gemm: %s is [%lld, %lld], expected [%lld, %lld]", name, (long long)matrix->rows,
                       (long long)matrix->columns, (long long)rows, (long long)columns);
}

int gemm_check(const struct gemm *g) {
    int64_t m = gemm_m(g), n = gemm_n(g), k = gemm_k(g);
    const char *why = gemm_refusal(g);
    if (why)
        return status_fail(STATUS_UNSUPPORTED, "gemm: %s", why);
    if (gemm_is_fp8(g) && (!g->a.scale || !g->b.scale))
        return status_fail(STATUS_INVALID, "gemm: an FP8 matrix without its scale");
    if (m < 0 || n < 0 || k <= 0)
        return status_fail(STATUS_INVALID, "gemm: a product of %lld x %lld x %lld", (long long)m, (long long)n,
                           (long long)k);
    int status = check_shape("A", &g->a, g->a_transposed ? k : m, g->a_transposed ? m : k);
    return status ? status : check_shape("B", &g->b, g->b_transposed ? n : k, g->b_transposed ? k : n);
}

struct gemm gemm_rows(const struct gemm *g, int64_t first, int64_t count) {
    struct gemm part = *g;
    part.a = matrix_rows(g->a, first, count);
    part.c = matrix_rows(g->c, first, count);
    if (g->aux)
        part.aux = (char *)g->aux + (size_t)(first * g->c.stride) * dtype_bytes(gemm_type(g));
    if (g->residual)
        part.residual = (const char *)g->residual + (size_t)(first * g->c.stride) * dtype_bytes(g->c.type);
    return part;
}
