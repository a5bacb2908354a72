/* Swish, x sigmoid(x) (Ramachandran, Zoph, Le 2017), also called SiLU, with its gradient. With e = exp(-|x|),
 * sigmoid(x) is 1 / (1 + e) or e / (1 + e), and 1 - sigmoid(x) is the other of the two. So no subtraction loses digits.
 */
#pragma once

#include "cpu/level/vector_math.h"

/* Returns swish at x. */
static inline float swish(float x) {
    return x * vsigmoid(x);
}

struct swish_pair {
    float value, gradient;
};

/* Returns swish and its derivative at x. */
static inline struct swish_pair swish_pair(float x) {
    float e = vexp(x < 0.0f ? x : -x), large = 1.0f / (1.0f + e), small = e * large;
    float s = x < 0.0f ? small : large;
    return (struct swish_pair){x * s, s + x * small * large};
}
