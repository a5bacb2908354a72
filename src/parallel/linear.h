/* The one linear, which every projection of the model goes through. Hooks, the type and layout of the weight, and the
 * tensor- and sequence-parallel collectives are handled here and nowhere else. */
#pragma once

#include "parallel/fp8.h"
#include "parallel/hook.h"
#include "tensor/tensor.h"

enum linear_split {
    LINEAR_WHOLE,  /* every rank holds all of it */
    LINEAR_COLUMN, /* outputs are cut over the tensor ranks */
    LINEAR_ROW,    /* inputs are cut over the tensor ranks */
};

/* A projection y = x W' + b of the model. */
struct linear {
    int weight, bias; /* parameter ids; bias PARAM_NONE for none */
    int64_t in, out;
    enum linear_split split;
};

/* One call: the rows, their addresses, and the steps around the product. */
struct linear_call {
    struct rank *rank;
    const struct param_store *store;
    const struct hook_list *hooks; /* of this place; those before an activation run here */
    struct hook_call hook;         /* layer, place, segments, saved; the linear fills in the rest */
    enum dtype dtype;
    struct fp8_linear *fp8; /* its casts, for FP8 products; NULL: products of `dtype` */
    bool measures_fp8;      /* forward: largest sizes of input and weight count in this step; those of dy always do */
    /* In FP8: the operations before the linear write x and dy in FP8, to linear_input and linear_gradient; they also
     * write the bf16 matrix if anything reads that. Otherwise the linear casts. A linear with hooks casts dy. */
    bool x_is_cast, dy_is_cast;
    int64_t rows;
    const void *x; /* [N, in] */
    void *y;       /* [N, out] forward; row stride y_stride, or `out` if that is 0 */
    int64_t y_stride;
    /* Under sequence parallelism, x and dx of a column linear, and y and dy of a row linear, have only this rank's rows
     * of the residual stream. These are scratch for all rows: [N, C] each. */
    void *whole, *whole_gradient;
    bool y_dtype_is_fp32;        /* forward only: y is fp32 for any dtype */
    enum gemm_epilogue epilogue; /* allowed only if linear_can_fuse or linear_can_fuse_backward returns true */
    void *aux;                   /* of the epilogue: [N, out] forward, [N, in] for a DGELU in the backward */
    bool adds_residual;          /* allowed only if linear_can_add returns true: y = residual + x W' + b */
    const void *residual;        /* [N, out] with y's row stride */
    void *dy;                    /* [N, out], changed by hooks */
    void *dx;                    /* [N, in] out; NULL if it is not needed */
    bool has_no_dx;              /* while planning, when all pointers are NULL: dx is not needed */
    bool overwrite_gradients;    /* in the first micro batch of a step: weight gradients are written, not added to */
};

/* Returns true if call->epilogue can be part of the product: no hook is active before it, and the backend has the fused
 * product. */
bool linear_can_fuse(const struct linear *linear, const struct linear_call *call);
/* Returns true if call->adds_residual can be part of the product: no hook is active, one rank has all of the sum, and
 * the backend has the product. */
bool linear_can_add(const struct linear *linear, const struct linear_call *call);
/* Returns the same as linear_can_fuse for the product of the input's gradient in linear_backward, for a place without
 * hooks. */
bool linear_can_fuse_backward(const struct linear *linear, const struct linear_call *call);
/* Return the places of x and dy for the operations that write them in FP8; no place if the linear casts. An operation
 * writes x before linear_forward. If the weight trains, it writes x by columns again before linear_backward. */
struct fp8_output linear_input(const struct linear *linear, const struct linear_call *call, enum fp8_copies copies);
struct fp8_output linear_gradient(const struct linear *linear, const struct linear_call *call);
/* Returns true if slices cut the outputs of a LINEAR_WHOLE, which is the head: even a few rows read all its weights.
 * Otherwise its caller cuts the rows. Pieces are alike on all ranks only where one rank has all of it. */
bool linear_cuts_columns(const struct linear *linear, const struct linear_call *call);
/* Computes y, with its hooks and collectives. The errors of operations, hooks and collectives. */
int linear_forward(const struct linear *linear, const struct linear_call *call);
/* Computes dx, and adds to the gradients of weight and bias if they train. Errors as linear_forward. */
int linear_backward(const struct linear *linear, const struct linear_call *call);
