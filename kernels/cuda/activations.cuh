/* Activations and their gradients. With e = exp(-|z|) the logistic function of z is 1 / (1 + e) or e / (1 + e).
 * Neither is a difference, so small values keep their precision. */
#pragma once

#include "cuda/typed.cuh"

struct logistic {
    float value, rest; /* s and 1 - s */
};

static __device__ __forceinline__ logistic logistic_of(float z) {
    float e = expf(-fabsf(z)), large = 1.0f / (1.0f + e), small = e * large;
    return z < 0.0f ? logistic{small, large} : logistic{large, small};
}

static __device__ __forceinline__ float swish(float x) {
    return x * logistic_of(x).value;
}

static __device__ __forceinline__ float swish_gradient(float x) {
    logistic s = logistic_of(x);
    return s.value + x * s.value * s.rest;
}

/* GELU (Hendrycks, Gimpel 2016): 1 + tanh(u) is twice the logistic function of 2u. */
static __device__ __forceinline__ float gelu_tanh(float x) {
    return x * logistic_of(1.5957691216f * x * (1.0f + 0.044715f * x * x)).value;
}

static __device__ __forceinline__ float gelu_tanh_gradient(float x) {
    logistic s = logistic_of(1.5957691216f * x * (1.0f + 0.044715f * x * x));
    return s.value + x * s.value * s.rest * 1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x);
}

static __device__ __forceinline__ float normal_density(float x) {
    return 0.3989422804f * expf(-0.5f * x * x);
}

/* The product x / sqrt(2) has a rounding error, which the slope of erfc carries into the result. */
static __device__ __forceinline__ float normal_cumulative(float x) {
    float u = -0.7071067812f * x, error = fmaf(-0.7071067812f, x, -u) - 1.2101617e-8f * x;
    return 0.5f * erfcf(u) - 0.5f * 1.1283791671f * expf(-u * u) * error;
}

static __device__ __forceinline__ float gelu_exact(float x) {
    return x * normal_cumulative(x);
}

static __device__ __forceinline__ float gelu_exact_gradient(float x) {
    return normal_cumulative(x) + x * normal_density(x);
}
