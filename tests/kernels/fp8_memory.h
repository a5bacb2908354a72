/* A matrix in FP8 as cases see it: on the CPU bf16 by rows, and on a GPU the bytes that it has of the matrix. */
#pragma once

#include "op_cases-internal.h"

#include <math.h>
#include <string.h>

enum { UNTOUCHED = 0x5a };

static inline bool is_on_card(const struct op_run *run) {
    return strcmp(run->backend, "cuda") == 0;
}

static inline void fill_untouched(const struct op_run *run, struct op_tensor *t) {
    (void)run;
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = UNTOUCHED;
}

/* The memory that receives rows by columns. */
static inline struct op_tensor fp8_memory(const struct op_run *run, int64_t rows, int64_t cols) {
    struct op_tensor bf16 = {.name = "y", .role = OP_OUT, .type = DTYPE_BF16, .rows = rows, .cols = cols};
    struct op_tensor bytes = {.name = "y",
                              .role = OP_INOUT,
                              .type = DTYPE_I8,
                              .rows = 1,
                              .cols = (int64_t)fp8_bytes(rows, cols),
                              .fill = fill_untouched};
    return is_on_card(run) ? bytes : bf16;
}

/* A scale that is not a power of two; the third size of the case is its exponent. */
static inline void fill_scale(const struct op_run *run, struct op_tensor *t) {
    t->value[0] = (double)(float)ldexp(1.37, (int)run->shape[2]);
}

static inline bool cast_supports(const struct op_run *run, const struct ops *ops, struct device *device) {
    (void)run, (void)device;
    return ops->fp8_cast != ops_absent.fp8_cast;
}
