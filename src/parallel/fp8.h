/* FP8 operands of a linear: casts of its input, its weight and the gradient of its output, each with a scale that was
 * known before (delayed scaling). The model owns scales and memory; a linear casts, and multiplies. */
#pragma once

#include "parallel/rank.h"

enum fp8_operand { FP8_INPUT, FP8_WEIGHT, FP8_GRADIENT, FP8_OPERANDS };

/* The contents of the memory of a cast weight. */
enum fp8_weight_state {
    FP8_WEIGHT_OLD,
    FP8_WEIGHT_CAST,    /* the present weight */
    FP8_WEIGHT_MEASURED /* the same, and its largest size counts in this step */
};

/* A linear. While planning, addresses are NULL. */
struct fp8_linear {
    struct fp8_tensor {
        enum dtype type;
        const float *scale, *inverse; /* [1] each, on the device */
        float *amax;                  /* [1] the largest size of an element in this step so far, on the device */
        void *values; /* memory for the cast tensor; linears share it, except for weights that are kept */
    } tensor[FP8_OPERANDS];
    bool keeps_weight; /* the cast weight has its own memory */
    enum fp8_weight_state weight;
};

/* Returns the view of a bf16 matrix once it is cast. */
struct matrix_view fp8_view(const struct fp8_linear *fp8, enum fp8_operand operand, const struct matrix_view *matrix);
/* One cast. */
struct fp8_cast_of {
    enum fp8_operand operand;
    enum fp8_copies copies; /* those that the products need */
    bool measures;          /* the matrix's largest size counts in this step */
};
/* Returns the memory and the scale of a cast, for an operation that computes the matrix and writes it in FP8 itself. */
struct fp8_output fp8_output_of(const struct fp8_linear *fp8, struct fp8_cast_of cast);
/* Casts *matrix, a bf16 view, and replaces it by the view of the result. The errors of the operation. */
int fp8_cast(struct rank *rank, const struct fp8_linear *fp8, struct fp8_cast_of cast, struct matrix_view *matrix);
/* The same for the weight, which is cast only if its memory is old. */
int fp8_cast_weight(struct rank *rank, struct fp8_linear *fp8, bool measures, struct matrix_view *weight);
