/* GELU (Hendrycks, Gimpel 2016): x Phi(x), exact or in its tanh form, and their gradients. The term 1 + tanh(u) is
 * computed as 2 / (1 + exp(-2u)), which loses no digits where tanh is near -1. */
#pragma once

#include "cpu/level/vector_math.h"

/* Returns the tanh form at x. */
static inline float gelu_tanh(float x) {
    return x * vsigmoid(1.5957691216f * x * (1.0f + 0.044715f * x * x));
}

/* Returns the derivative of the tanh form at x. For the logistic s, s (1 - s) is computed as e / (1 + e)^2 with
 * e = exp(-|z|), because the difference 1 - s would lose digits. */
static inline float gelu_tanh_gradient(float x) {
    float z = 1.5957691216f * x * (1.0f + 0.044715f * x * x);
    float e = vexp(z < 0.0f ? z : -z), large = 1.0f / (1.0f + e), small = e * large;
    float s = z < 0.0f ? small : large;
    return s + x * small * large * 1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x);
}

/* Returns the exact GELU at x. */
static inline float gelu_exact(float x) {
    return x * vnormal(x).cumulative;
}

/* Returns the derivative of the exact GELU at x. */
static inline float gelu_exact_gradient(float x) {
    struct vnormal n = vnormal(x);
    return n.cumulative + x * n.density;
}
