/* Launches of residual additions with dropout. */
#include "cuda/residual_dropout.h"
#include "cuda/kernels.h"

static int launch(const struct exec *exec, const struct residual_dropout *a, const void *from, const void *residual,
                  void *to) {
    const struct dropout *d = &a->dropout;
    const struct residual_dropout_kernel k = {.rows = a->rows,
                                              .cols = a->cols,
                                              .first_col = a->first_col,
                                              .from = from,
                                              .residual = residual,
                                              .to = to,
                                              .seed = d->seed,
                                              .site = d->site,
                                              .threshold = rng_dropout_threshold(d->p),
                                              .scale = 1.0f / (1.0f - d->p),
                                              .keys = d->keys};
    int64_t blocks = (a->first_col % DROPOUT_BLOCK + a->cols + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK;
    return cuda_launch_elements(exec, CUDA_residual_dropout, a->type, a->rows * blocks * DROPOUT_BLOCK, &k);
}

int cuda_residual_dropout_forward(const struct exec *exec, const struct residual_dropout *a) {
    return launch(exec, a, a->x, a->residual, a->y);
}

int cuda_residual_dropout_backward(const struct exec *exec, const struct residual_dropout *a) {
    return launch(exec, a, a->dy, NULL, a->dx);
}
