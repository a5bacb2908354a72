/* Launches of the product of few rows. */
#include "cuda/few_rows.h"
#include "cuda/gemm-internal.h"

static bool takes(const struct matrix_view *matrix) {
    return (uintptr_t)matrix->data % 16 == 0 && matrix->stride % 8 == 0;
}

bool cuda_few_rows_takes(const struct device *device, const struct gemm *g) {
    bool is_forward = !g->a_transposed && g->b_transposed && !g->accumulate && !g->is_scaled && !g->bias_gradient;
    bool is_bf16 = g->a.type == DTYPE_BF16 && g->b.type == DTYPE_BF16;
    return is_forward && is_bf16 && !device->is_batch_invariant && gemm_m(g) <= FEW_ROWS_MOST && gemm_k(g) % 8 == 0 &&
           gemm_k(g) < INT32_MAX / 2 && !g->delta_count && !g->aux && !gemm_is_dgelu(g) && takes(&g->a) && takes(&g->b);
}

int cuda_few_rows(const struct exec *exec, const struct gemm *g) {
    const struct few_rows call = {.rows = (int)gemm_m(g),
                                  .cols = gemm_n(g),
                                  .depth = gemm_k(g),
                                  .x = g->a.data,
                                  .w = g->b.data,
                                  .x_stride = g->a.stride,
                                  .w_stride = g->b.stride,
                                  .bias = g->bias,
                                  .residual = g->residual,
                                  .epilogue = g->epilogue,
                                  .c = gemm_c(g),
                                  .c_stride = g->c.stride,
                                  .is_c_fp32 = g->c.type == DTYPE_F32};
    bool is_narrow = gemm_n(g) <= FEW_ROWS_NARROW, has_half = gemm_m(g) <= 8;
    enum cuda_kernel kernel = is_narrow ? (has_half ? CUDA_few_rows_8_1 : CUDA_few_rows_8_2)
                                        : (has_half ? CUDA_few_rows_4_1 : CUDA_few_rows_4_2);
    int warps = is_narrow ? 8 : 4;
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = DTYPE_BF16,
                                                         .blocks = (gemm_n(g) + FEW_ROWS_COLS - 1) / FEW_ROWS_COLS,
                                                         .threads = 32 * warps,
                                                         .shared_bytes = (size_t)warps * FEW_ROWS_WARP_BYTES,
                                                         .arguments = &call});
}
