/* The one linear: every projection of the model meets its hooks, its weight's type and layout, and the tensor- and
 * sequence-parallel collectives here, and nowhere else. */
#ifndef CAMBIUM_PARALLEL_LINEAR_H
#define CAMBIUM_PARALLEL_LINEAR_H

#include "parallel/hook.h"
#include "tensor/tensor.h"

enum linear_split {
    LINEAR_WHOLE,  /* every rank holds it all */
    LINEAR_COLUMN, /* outputs are cut over the tensor ranks */
    LINEAR_ROW,    /* inputs are cut over the tensor ranks */
};

/* A projection y = x W' + b of the model. */
struct linear {
    int weight, bias; /* parameter ids; bias PARAM_NONE for none */
    int64_t in, out;
    enum linear_split split;
};

/* One call: the rows, where they are, and the steps around the product. */
struct linear_call {
    struct rank *rank;
    const struct param_store *store;
    const struct hook_list *hooks; /* of this place; those before an activation run here */
    struct hook_call hook;         /* layer, place, segments, saved; the linear fills in the rest */
    enum dtype dtype;
    int64_t rows;
    const void *x; /* [N, in] */
    void *y;       /* [N, out] forward; row stride y_stride when not 0 */
    int64_t y_stride;
    /* Under sequence parallelism x and dx of a column linear, and y and dy of a row linear, are this rank's rows of the
     * residual stream. The whole ones are stored here meanwhile: [N, C] each. */
    void *whole, *whole_gradient;
    bool y_dtype_is_fp32;        /* forward only: y is fp32 whatever dtype is */
    enum gemm_epilogue epilogue; /* where linear_can_fuse, or linear_can_fuse_backward, says that it can be */
    void *aux;                   /* of the epilogue: [N, out] forward, [N, in] for a DGELU in the backward */
    void *dy;                    /* [N, out], changed by hooks */
    void *dx;                    /* [N, in] out; NULL when nobody wants it */
    bool has_no_dx;              /* nobody wants it, as planning sees it: there every pointer is NULL */
    bool overwrite_gradients;    /* the first micro batch of a step: weight gradients are written, not added to */
};

/* Whether call->epilogue can be part of the product. No active hook may stand in between, and the backend must have the
 * fused product. */
bool linear_can_fuse(const struct linear *linear, const struct linear_call *call);
/* The same for the product of the input's gradient in linear_backward, where the place has no hooks. */
bool linear_can_fuse_backward(const struct linear *linear, const struct linear_call *call);
int linear_forward(const struct linear *linear, const struct linear_call *call);
/* dx, and the gradients of weight and bias where they train. */
int linear_backward(const struct linear *linear, const struct linear_call *call);

#endif
