/* Arguments of the kernels of AdamW. */
#pragma once

#include "kernels/ops.h"

/* A number in double as the sum of two in fp32. */
struct adamw_pair {
    float high, low;
};

/* The constants of a step, the same in all ranges. */
struct adamw_step {
    struct adamw call;
    struct adamw_pair lr;
    struct adamw_pair inverse; /* 1 / (1 - beta1^t) */
    float root_factor;         /* 1 / sqrt(1 - beta2^t) */
    float rest1, rest2;        /* 1 - beta */
};
