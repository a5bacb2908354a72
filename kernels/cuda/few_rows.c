/* Launches of the product of few rows. */
#include "cuda/few_rows.h"
#include "cuda/gemm-internal.h"

static bool takes(const struct matrix_view *matrix) {
    return (uintptr_t)matrix->data % 16 == 0 && matrix->stride % 8 == 0;
}

bool cuda_few_rows_suits(const struct device *device, const struct gemm *g) {
    bool is_forward = !g->a_transposed && g->b_transposed && !g->accumulate && !g->is_scaled && !g->bias_gradient;
    bool is_bf16 = g->a.type == DTYPE_BF16 && g->b.type == DTYPE_BF16;
    return is_forward && is_bf16 && !device->is_batch_invariant && gemm_k(g) < INT32_MAX / 2 && !g->aux &&
           !gemm_is_dgelu(g);
}

bool cuda_few_rows_takes(const struct device *device, const struct gemm *g) {
    return cuda_few_rows_suits(device, g) && gemm_m(g) <= FEW_ROWS_MOST && gemm_k(g) % 8 == 0 && takes(&g->a) &&
           takes(&g->b);
}

struct few_rows cuda_few_rows_of(const struct gemm *g) {
    return (struct few_rows){.rows = (int)gemm_m(g),
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
}

struct form {
    enum cuda_kernel kernel;
    int warps, halves, tiles, places;
};

/* Forms with as many warps give an element the same bits. */
static const struct form *find_form(const struct few_rows *call) {
#define FORM(warps, halves, tiles, places, blocks) {CUDA_few_rows_##warps##_##halves, warps, halves, tiles, places},
    static const struct form forms[] = {FEW_ROWS_KERNELS(FORM)};
#undef FORM
    bool is_narrow = call->cols <= FEW_ROWS_NARROW;
    int warps = is_narrow ? 8 : 4, most = is_narrow ? FEW_ROWS_NARROW_MOST : 8, place = 0;
    while (forms[place].warps != warps || forms[place].halves != (call->rows <= most ? 1 : 2))
        place++;
    return &forms[place];
}

int cuda_few_rows(const struct exec *exec, const struct gemm *g) {
    const struct few_rows call = cuda_few_rows_of(g);
    const struct form *form = find_form(&call);
    int64_t cols = 8 * form->tiles;
    int steps = few_rows_steps(call.depth, form->warps), places = steps < form->places ? steps : form->places;
    return cuda_launch(exec, &(const struct cuda_launch){
                                 .kernel = form->kernel,
                                 .type = DTYPE_BF16,
                                 .blocks = (call.cols + cols - 1) / cols,
                                 .threads = 32 * form->warps,
                                 .shared_bytes = (size_t)(FEW_ROWS_SUM_BYTES(form->warps, form->halves, form->tiles) +
                                                          places * form->warps * form->tiles * FEW_ROWS_TILE_BYTES),
                                 .arguments = &call});
}
