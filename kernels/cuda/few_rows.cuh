/* The end of products of few rows. */
#pragma once

#include "cuda/activations.cuh"
#include "cuda/few_rows.h"

/* Writes an element from its sum with bias and residual. */
static __device__ __forceinline__ void finish(const few_rows &a, int64_t at, float sum) {
    if (a.epilogue != EPILOGUE_NONE) {
        bf16 input;
        from_float(sum, input);
        sum = a.epilogue == EPILOGUE_GELU_TANH ? gelu_tanh(to_float(input)) : gelu_exact(to_float(input));
    }
    if (a.is_c_fp32)
        ((float *)a.c)[at] = sum;
    else
        from_float(sum, ((bf16 *)a.c)[at]);
}

/* Terms that are added to the sum of an element. */
static __device__ __forceinline__ float bias_of(const few_rows &a, int64_t col) {
    return a.bias ? to_float(((const bf16 *)a.bias)[col]) : 0;
}
static __device__ __forceinline__ float residual_of(const few_rows &a, int64_t at) {
    return !a.residual ? 0 : a.is_c_fp32 ? ((const float *)a.residual)[at] : to_float(((const bf16 *)a.residual)[at]);
}
