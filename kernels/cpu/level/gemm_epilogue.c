/* The work after a product: bias, GELU and its backward, and the store to C. */
#include "cpu/level/gelu_forms.h"
#include "cpu/level/gemm_level.h"

#define TYPED static inline __attribute__((always_inline))

TYPED void add_bias(float *ab, const void *bias, int64_t cols, enum dtype type) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        ab[j] += load(bias, j, type);
}

TYPED void multiply_row(float *ab, float factor, int64_t cols) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        ab[j] *= factor;
}

TYPED void store_row(const float *ab, void *c, int64_t cols, enum dtype type) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        store(c, j, type, ab[j]);
}

TYPED void add_row(const float *ab, float *c, int64_t cols) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        c[j] += ab[j];
}

/* Gives the same bits as a product of `type` and then a GELU operation. */
TYPED void gelu_row(const float *ab, void *c, int64_t cols, enum dtype type, enum dtype c_type, bool is_tanh) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++) {
        float x = rounded(ab[j], type);
        store(c, j, c_type, is_tanh ? gelu_tanh(x) : gelu_exact(x));
    }
}

TYPED void dgelu_row(const float *ab, const void *aux, void *c, int64_t cols, enum dtype type, enum dtype c_type,
                     bool is_tanh) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++) {
        float x = load(aux, j, type);
        store(c, j, c_type, ab[j] * (is_tanh ? gelu_tanh_gradient(x) : gelu_exact_gradient(x)));
    }
}

TYPED void finish_row(const struct gemm *g, float *ab, void *aux, void *c, int64_t cols, enum dtype type,
                      enum dtype c_type) {
    switch (g->epilogue) {
    case EPILOGUE_NONE:
        if (g->accumulate)
            add_row(ab, c, cols);
        else
            store_row(ab, c, cols, c_type);
        break;
    case EPILOGUE_GELU_TANH:
    case EPILOGUE_GELU_EXACT:
        if (aux && aux != ab)
            store_row(ab, aux, cols, type);
        if (g->epilogue == EPILOGUE_GELU_TANH)
            gelu_row(ab, c, cols, type, c_type, true);
        else
            gelu_row(ab, c, cols, type, c_type, false);
        break;
    case EPILOGUE_DGELU_TANH:
        dgelu_row(ab, aux, c, cols, type, c_type, true);
        break;
    case EPILOGUE_DGELU_EXACT:
        dgelu_row(ab, aux, c, cols, type, c_type, false);
        break;
    }
}

void LEVEL(gemm_epilogue)(const struct gemm *g, const struct gemm_block *block) {
    size_t size = dtype_bytes(g->a.type), c_size = dtype_bytes(g->c.type);
    for (int64_t i = 0; i < block->rows; i++) {
        float *ab = block->ab + i * block->stride;
        int64_t at = (block->row + i) * g->c.stride + block->col;
        char *aux = g->aux ? (char *)g->aux + (size_t)at * size : NULL, *c = (char *)gemm_c(g) + (size_t)at * c_size;
        const char *bias = block->needs_bias ? (const char *)g->bias + (size_t)block->col * size : NULL;
        if (block->factor != 1)
            multiply_row(ab, block->factor, block->cols);
        if (g->a.type == DTYPE_F32) {
            if (bias)
                add_bias(ab, bias, block->cols, DTYPE_F32);
            finish_row(g, ab, aux, c, block->cols, DTYPE_F32, DTYPE_F32);
        } else {
            if (bias)
                add_bias(ab, bias, block->cols, DTYPE_BF16);
            if (g->c.type == DTYPE_F32)
                finish_row(g, ab, aux, c, block->cols, DTYPE_BF16, DTYPE_F32);
            else
                finish_row(g, ab, aux, c, block->cols, DTYPE_BF16, DTYPE_BF16);
        }
    }
}
