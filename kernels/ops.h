/* The operations: a const table of functions for each backend.
 *
 * Letters: N rows of a flat batch (tokens), C hidden, F feed-forward, H query heads, G key/value heads, D head size,
 * V vocabulary. Activations and weights are fp32 or bf16, the same in one call; statistics, losses and gradients of
 * parameters are fp32. Arithmetic is in fp32 at least, and results are rounded once. All tensors are row-major.
 *
 * Every operation takes a `struct exec`: its stream, and scratch memory of the caller. The scratch must have at least
 * the bytes that the matching *_workspace function returns; that function reads sizes and types only. Pointers in
 * arguments lead to device memory. The structs themselves may be reused as soon as the call returns.
 *
 * An operation returns STATUS_OK or a negative status with its text. STATUS_UNSUPPORTED means that this backend lacks
 * the operation for these types; there is never a silent fallback. STATUS_INVALID means bad arguments or scratch. An
 * operation may return before it has run: a later failure is then the device's (device.h). No operation allocates, but
 * pack may use memory of the host until it returns. Results do not depend on the number of threads, and those of one
 * row do not depend on the other rows, unless a comment says otherwise. */
#pragma once

#include "kernels/device.h"
#include "kernels/draws.h"
#include "kernels/gemm.h"
#include "kernels/grouped.h"

struct exec {
    struct stream *stream;
    void *workspace;
    size_t workspace_bytes;
};

/* ---- arguments: those of products are in gemm.h, of grouped operations in grouped.h, of draws in draws.h ---- */

/* The sample and token of each row of a flat batch, which key dropout. */
struct row_keys {
    const uint32_t *sample; /* [N] number of the consumed sample, low 32 bits */
    const uint32_t *token;  /* [N] position of the row inside its sample (not the position id) */
};

struct dropout {
    float p; /* 0: none */
    uint64_t seed;
    uint32_t site; /* unique in the model; attention adds the global number of the head */
    struct row_keys keys;
};

/* ---- FP8 matrices ---- */

/* The products that will read an FP8 matrix: those with A as it is or B transposed read it by rows, others by columns.
 */
enum fp8_copies { FP8_ANY, FP8_BY_ROWS, FP8_BY_COLUMNS };

/* Memory that receives a bf16 matrix in FP8: each element times scale in fp32, rounded as fp8_from_float does. Of *amax
 * and of the largest size of an element, *amax receives the larger one; NaN counts as 0. */
struct fp8_output {
    enum dtype type; /* DTYPE_E4M3 or DTYPE_E5M2; any other: there is no such memory */
    enum fp8_copies copies;
    const float *scale;   /* [1] */
    const float *inverse; /* [1] the scale of y's view, as products after this cast read it */
    float *amax;          /* [1] read and written, or NULL */
    void *y;              /* fp8_bytes of memory: the backend's form, which a view of form MATRIX_FP8 names */
};
/* Returns true if there is such memory. */
static inline bool fp8_is_wanted(const struct fp8_output *to) {
    return to->type == DTYPE_E4M3 || to->type == DTYPE_E5M2;
}

/* Returns the bytes of an FP8 matrix, on every backend. A GPU has it twice, by rows and by columns, and then `inverse`;
 * its rows are filled to multiples of 16 bytes. The CPU has its numbers as bf16, which has them all. */
static inline int64_t fp8_padded(int64_t count) {
    return (count + 15) / 16 * 16;
}
enum { FP8_TAIL_BYTES = 256 };
static inline size_t fp8_bytes(int64_t rows, int64_t cols) {
    return (size_t)(fp8_padded(rows) * fp8_padded(cols)) * 2 + FP8_TAIL_BYTES;
}

enum norm_kind {
    NORM_LAYER, /* LayerNorm: (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + epsilon) */
    NORM_RMS    /* RMSNorm: x * rstd * gain, rstd = 1 / sqrt(mean of squares + epsilon); no mean, bias or dbias */
};

struct norm {
    enum norm_kind kind;
    int64_t rows, cols;
    enum dtype type;
    const void *x;    /* [N,C] */
    const void *gain; /* [C] */
    const void *bias; /* [C] */
    float epsilon;
    void *y;              /* forward: [N,C] out; may be x */
    float *mean;          /* [N] written by forward, read by backward; NULL in a forward that saves nothing */
    float *rstd;          /* [N] likewise */
    const void *dy;       /* backward: [N,C] */
    void *dx;             /* backward: [N,C] out; may be dy */
    const void *dx_add;   /* backward: [N,C] added to dx (the residual's gradient; may be dx itself), or NULL */
    float *dgain, *dbias; /* backward: [C] accumulated, or both NULL when frozen */
    /* A row may hold several vectors, [N,H,C]. Each has its own mean and rstd, [N,H]; they share gain and bias. */
    int heads;         /* H; 0: one */
    int64_t x_stride;  /* of x, from row to row; 0: H * C */
    int64_t y_stride;  /* of y and dy; 0: H * C */
    int64_t dx_stride; /* of dx and dx_add; 0: H * C */
    /* Forward: y is written in FP8 as well, for bf16 and one vector a row. It is copied by rows, and all rows are whole
     * accesses of 16 bytes, but with is_again. */
    struct fp8_output fp8;
    bool is_fp8_alone; /* y is written only in FP8, and its pointer is not read */
    bool is_again;     /* with is_fp8_alone: a forward has written mean and rstd, which are read */
};

/* Returns the vectors of a row. */
static inline int64_t heads_of_norm(const struct norm *norm) {
    return norm->heads ? norm->heads : 1;
}

struct gelu {
    int64_t count;
    enum dtype type;
    bool is_tanh;
    const void *x;         /* [count] the GELU's input */
    void *y;               /* [count] forward out */
    const void *dy;        /* [count] backward in */
    void *dx;              /* [count] backward out; may be dy */
    int64_t cols;          /* count is rows of these; read only for FP8 */
    struct fp8_output fp8; /* y or, backward, dx in FP8 as well, for bf16 */
    bool is_fp8_alone;     /* y or dx is written only in FP8, and its pointer is not read */
};

/* Activations of adapters other than the GELU: max(x, 0), x sigmoid(x), and tanh(x). */
enum unit { UNIT_RELU, UNIT_SWISH, UNIT_TANH };
struct unit_call {
    int64_t count;
    enum dtype type;
    enum unit unit;
    const void *x;  /* [count] the unit's input */
    void *y;        /* [count] forward out; may be x */
    const void *dy; /* [count] backward in */
    void *dx;       /* [count] backward out; may be dy */
};

/* y = swish(gate) * up of x = [gate, up]: the activation of a gated MLP. */
struct swiglu {
    int64_t rows, cols; /* N, F */
    enum dtype type;
    const void *x;         /* [N,2F]: a row's F columns of the gate, then those of up */
    void *y;               /* forward: [N,F] out */
    const void *dy;        /* backward: [N,F] */
    void *dx;              /* backward: [N,2F] out; may be x */
    struct fp8_output fp8; /* as in struct gelu */
    bool is_fp8_alone;
};

/* Rotary positions, in place (Su et al. 2021, arXiv 2104.09864). Features j and j + rotary / 2 of each head are rotated
 * together by the angle of their position:
 *
 *     y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin
 *
 * Features from `rotary` on are unchanged. Queries and keys that lie side by side can be rotated in one call, as heads
 * of one vector. */
struct rotary {
    int64_t rows;                 /* N */
    int heads, head_size, rotary; /* rotary even, 0 .. D */
    enum dtype type;
    const int32_t *positions; /* [N] rows of cos and sin */
    const float *cos, *sin;   /* [positions, rotary / 2] */
    void *x;                  /* [N, heads, D] */
    int64_t stride;           /* from row to row */
    bool is_backward;         /* rotates by the negative angles: replaces the gradient of y by that of x */
};

/* Scales the columns of every row by a vector:
 *
 *     forward     y += x * (scale - 1)
 *     backward    dx = dy * scale, dscale[j] += factor[j] * sum over rows of dy * (x - fixed)
 *
 * The backward is that of grouped.h's scales as well. */
struct column_scale {
    int64_t rows, cols;
    enum dtype type;                                  /* of x, y, dy, dx and fixed */
    enum dtype scale_type;                            /* type, or fp32 */
    const void *x;                                    /* [N,C]; backward reads it only for dscale */
    const void *scale;                                /* [C] */
    const void *fixed;                                /* backward: [C] or NULL */
    void *y;                                          /* forward: [N,C] added to */
    const void *dy;                                   /* backward: [N,C] */
    void *dx;                                         /* backward: [N,C] out; may be dy or x */
    const float *factor;                              /* backward: [C], or NULL: 1 */
    float *dscale;                                    /* backward: [C] accumulated, or NULL when frozen */
    int64_t x_stride, y_stride, dy_stride, dx_stride; /* from row to row; 0: C */
};

/* Converts elements between fp32, bf16 and fp16. */
struct cast_call {
    int64_t count;
    enum dtype from_type, to_type;
    const void *from; /* [count] */
    void *to;         /* [count] */
};

/* y += x, element by element, added in fp32. */
struct add_call {
    int64_t count;
    enum dtype type;
    const void *x; /* [count] */
    void *y;       /* [count] */
};

/* y = scale * x (+ y when accumulate), rounded once. */
struct scale_add {
    int64_t rows, cols;
    enum dtype type; /* of x and y */
    float scale;
    const void *x; /* [N,C] */
    void *y;       /* [N,C] may be x */
    bool accumulate;
    int64_t x_stride, y_stride; /* from row to row; 0: C */
};

/* out[j] += sum over rows of x[i, j]: the gradient of a bias. */
struct column_sum {
    int64_t rows, cols;
    enum dtype type;
    const void *x;  /* [N,C] */
    int64_t stride; /* of x, from row to row */
    float *out;     /* [C] accumulated */
};

/* out[i] = x[index[i]] for whole rows; zeros where the index is below 0. The inverse of an index restores the order. */
struct gather_rows {
    int64_t rows, cols;
    enum dtype type;      /* any */
    const void *x;        /* [.., C] */
    const int32_t *index; /* [N] rows of x */
    void *out;            /* [N,C] */
};

/* y[index[i]] += x[i] for whole rows, added in fp32 and rounded once. A row whose index is below 0 is skipped. No index
 * comes twice. */
struct scatter_add_rows {
    int64_t rows, cols;
    enum dtype x_type, y_type;
    const void *x;              /* [N,C] */
    const int32_t *index;       /* [N] rows of y */
    void *y;                    /* [.., C] */
    int64_t x_stride, y_stride; /* from row to row; 0: C */
};

/* Sets entries of a table of ids: table[place] = id for each change. A change with a place below 0 is skipped. No place
 * comes twice. */
struct id_change {
    int32_t place, id;
};
struct change_ids {
    int64_t count;
    const struct id_change *changes; /* [count] */
    int32_t *table;
};

/* Writes the transposition of a matrix, without a change of any bits. x and y do not overlap. */
struct transpose {
    int64_t rows, cols;
    enum dtype type; /* fp32 or bf16 */
    const void *x;   /* [rows, cols] */
    void *y;         /* [cols, rows] */
};

/* Casts a bf16 matrix to FP8. */
struct fp8_cast {
    int64_t rows, cols;
    int64_t stride; /* of x, from row to row */
    const void *x;  /* [rows, cols] bf16 */
    struct fp8_output to;
};

/* Ends a step of delayed scaling, as TransformerEngine does. Each of `count` tensors has a history of the largest sizes
 * of its elements in the last `length` steps, and a scale:
 *
 *     history[position] = amax; amax = 0
 *     largest = the largest of the history, or history[position] with is_most_recent
 *     scale = most / largest, and at most the largest fp32; it stays if `largest` is 0 or not finite
 *     inverse = 1 / scale */
struct fp8_scales {
    int64_t count, length;
    int64_t position; /* 0 .. length - 1: steps take the history's rows in turn */
    int64_t stride;   /* of history, from row to row */
    bool is_most_recent;
    float most;     /* the type's largest number, over 2^margin */
    float *amax;    /* [count] of this step */
    float *history; /* [length, count] */
    float *scale;   /* [count] */
    float *inverse; /* [count] out */
};

/* squares[i] = the sum of squares of row first_row + i of weight + scale * up down, for DoRA (arXiv 2402.09353). If the
 * matrix's columns are divided over ranks, this is one rank's part of the sum. A packed weight gives the same bits as
 * the plain one. */
struct row_squares {
    struct matrix_view weight; /* up and down have its type */
    int64_t first_row, rows;   /* of the weight */
    int64_t rank;
    const void *up;   /* [rows, rank]; NULL: the weight alone */
    const void *down; /* [rank, weight.columns] */
    float scale;
    float *squares; /* [rows] out */
};

/* Norms from sums of squares, and the ratio of a magnitude to them. The norm sqrt(squares) is rounded to `type`, as the
 * magnitude is. So a magnitude equal to the norm gives a ratio of exactly one. */
struct magnitude_ratio {
    int64_t count;
    enum dtype type;
    const float *squares;  /* [count] */
    const void *magnitude; /* [count]; read only for the ratio */
    void *norm;            /* [count] out, or NULL */
    float *ratio;          /* [count] magnitude / norm out, or NULL */
    float *inverse;        /* [count] 1 / norm out, or NULL */
};

/* One direction of an LSTM layer over T steps, in fp32, from a zero state. The gates stand in the order i, f, g, o:
 * c = f c' + i g, y = o tanh(c). The caller computes the products with the layer's input x: it passes x W' + b in
 * `gates`, and forward replaces these by the gates. Backward replaces the gates by the gradient of their sums; the
 * caller computes the gradients of x and of both weights and biases from that, as products. */
struct lstm {
    int64_t steps, hidden; /* T, H */
    bool is_reverse;       /* from the last step to the first */
    const float *weight;   /* [4H, H], multiplies the state */
    const float *bias;     /* [4H], added with the state's product */
    float *gates;          /* [T, 4H] */
    float *cells;          /* [T, H] written by forward, read by backward */
    float *y;              /* [T, H] out, row stride y_stride */
    int64_t y_stride;
    const float *dy; /* backward: [T, H], row stride y_stride */
};

/* y = residual + dropout(x), or y = dropout(x) if residual is NULL. y may be x or residual. Backward:
 * dx = mask * dy / (1-p). */
struct residual_dropout {
    int64_t rows, cols;
    enum dtype type;
    const void *residual; /* [N,C] or NULL */
    const void *x;        /* [N,C] */
    void *y;              /* [N,C] forward out */
    const void *dy;       /* [N,C] backward in */
    void *dx;             /* [N,C] backward out; may be dy */
    struct dropout dropout;
    int64_t first_col; /* global number of column 0, where the columns are a rank's shard */
};

/* Causal attention over segments of a flat batch. Row i sees rows j <= i of its own segment and the prefix; with a
 * window it sees only the last `window` of those rows. A row that it does not see cannot change its bits, not even with
 * a NaN. A backend that multiplies in bf16 rounds the probabilities and their gradients to bf16 before each product.
 * TF32 is as in gemm, for heads of the sizes of attention_has_tf32. Products of others are in fp32.
 * The workspace of one segment of all rows is enough for the same rows cut into any segments. It does not depend on
 * which pointers are NULL. */
struct attention {
    int64_t rows;                 /* N */
    int64_t segments;             /* S */
    const int64_t *segment_start; /* [S+1] ascending, 0 .. N */
    int64_t longest;              /* rows of the longest segment, or more; 0: N */
    int heads, kv_heads, head_size;
    int first_head; /* global number of head 0, for dropout's keys */
    enum dtype type;
    bool is_tf32;          /* the type is fp32, and factors of products may be rounded to TF32 */
    const void *q, *k, *v; /* [N, H, D], [N, G, D] with row strides below (a fused qkv is one block) */
    int64_t q_stride, k_stride, v_stride;
    float scale; /* 1/sqrt(D); above 0 */
    void *out;   /* [N, H, D], row stride out_stride */
    int64_t out_stride;
    int64_t window;         /* rows seen, including the row itself; then there is no prefix; 0: all */
    float *lse;             /* [H, N] log-sum-exp of the scaled scores; written by forward unless NULL */
    struct dropout dropout; /* of the probabilities; the element is the key's token number in the sample */
    /* Prefix keys and values, [P, G, D], which every row of every segment sees; prefix 0: none. For dropout, prefix
     * token p of P has element 2^31 - P + p. */
    int64_t prefix;
    const void *prefix_k, *prefix_v;
    /* backward */
    const void *dout;             /* [N, H, D], row stride out_stride */
    void *dq, *dk, *dv;           /* strides as q, k, v */
    float *dprefix_k, *dprefix_v; /* [P, G, D] accumulated, or NULL */
};

enum { ATTENTION_TF32_SIZE_MOST = 128 };
/* True for sizes of heads whose attention may be in TF32: a row has whole chunks of 16 bytes, and a tile holds it. */
static inline bool attention_has_tf32(int64_t head_size) {
    return head_size % 4 == 0 && head_size <= ATTENTION_TF32_SIZE_MOST;
}

enum { KV_PAGE_TOKENS = 16 };

/* Appends keys and values to the paged cache of one layer. Page p holds those of 16 tokens, at pages + p * page_stride
 * elements of `type`. The order inside a page is the backend's, and only these operations depend on it; callers may
 * copy whole pages. */
struct kv_append {
    int64_t rows;
    int kv_heads, head_size;
    enum dtype type;
    const void *k, *v; /* [N, G, D] with row strides */
    int64_t k_stride, v_stride;
    void *pages; /* [pages, page_stride] */
    int64_t page_stride;
    const int32_t *place; /* [N] page * 16 + token inside the page; -1: the row is not stored */
};

/* Attention over the paged cache. Row i is a query at `position[i]` of sequence `sequence[i]`. It sees cached tokens
 * 0 .. position[i], or with a window the last `window` of those. A row of position -1 and sequence -1 sees nothing, and
 * its out is 0. Pages before all windows of a sequence's rows are not
 * read, nor are their entries of the table. The bits of a row depend only on its query and on the tokens that it sees,
 * not on how rows are grouped into calls. */
struct paged_attention {
    int64_t rows;
    int heads, kv_heads, head_size;
    enum dtype type;
    const void *q; /* [N, H, D] with row stride q_stride */
    int64_t q_stride;
    float scale;       /* 1/sqrt(D); above 0 */
    const void *pages; /* as kv_append writes them */
    int64_t page_stride;
    const int32_t *page_table; /* [sequences, max_pages] */
    int64_t max_pages;
    const int32_t *sequence; /* [N] row of page_table */
    const int32_t *position; /* [N] index in the cache, prefix included */
    int64_t window;          /* tokens seen, including the row's own; 0: all */
    void *out;               /* [N, H, D] with row stride out_stride */
    int64_t out_stride;
    double seen; /* the mean number of tokens that a row sees, which only work.h reads */
};

/* x[i] = token_table[tokens[i]] + position_table[positions[i]]. Backward adds dx into the fp32 tables in row order, so
 * that the result is deterministic.
 *
 * If the vocabulary is divided over ranks, the token tables hold the entries [first_token, first_token + token_count).
 * Rows of other tokens become 0, position included, so that the sum over the ranks has the bits of the whole table;
 * their token gradients are skipped. Ids from first_virtual on are rows of the table of virtual tokens. If that table
 * is NULL, another rank has it. Its rows then become 0, as do rows of ids past its end, and their gradients are
 * skipped. Gradients of positions always include every row. */
struct embedding {
    int64_t rows, cols;
    enum dtype type;
    int64_t first_token, token_count;      /* token_count 0: every token is in the table */
    const int32_t *tokens;                 /* [N] */
    const int32_t *positions;              /* [N] */
    struct matrix_view token_table;        /* [V,C] without gaps between rows; forward: or packed */
    const void *position_table;            /* [T,C] or NULL */
    void *x;                               /* [N,C] forward out */
    const void *dx;                        /* [N,C] backward in */
    float *dtoken_table, *dposition_table; /* accumulated; NULL when frozen */
    int64_t first_virtual, virtual_tokens; /* virtual_tokens 0: every id is in the vocabulary */
    const void *virtual_table;             /* [virtual_tokens,C] or NULL */
    float *dvirtual_table;                 /* accumulated; NULL when frozen */
};

/* Softmax cross-entropy of logits [N, stride >= V]; columns V .. stride are padding. Forward writes loss and lse.
 * Backward overwrites the logits with (softmax - onehot) * dloss[i], and the padding with 0; of fp32 logits, it may
 * write that in bf16. The fused call does both in place. Losses of the forward, and sums of the parts, are NaN if any
 * logit of the row is not finite.
 *
 * With columns divided over ranks, three calls do the same. The first, cross_entropy_part, computes part[N] of this
 * rank's columns; cross_entropy_join joins the parts; cross_entropy_part_backward overwrites the logits with the
 * gradient. */
struct cross_entropy {
    int64_t rows, vocab, stride;
    enum dtype type;
    void *logits;          /* [N, stride] */
    const int32_t *labels; /* [N], 0 .. V-1 */
    float *loss;           /* [N] -log p(label) */
    float *lse;            /* [N] log-sum-exp; may be NULL in the fused call */
    const float *dloss;    /* [N] weight of each row's loss; 0: the row does not count */
    bool gradient_is_bf16; /* of fp32 logits: rows of bf16, 2 * stride elements apart */
    /* [N] of the forward and the join: 1 where no logit is larger than the label's, and none of a lower label as large;
     * else 0. The part calls need it too. NULL: not wanted. */
    int32_t *is_greedy;
    /* For a vocabulary that is divided over ranks; only the cross_entropy_part calls and the join read these. */
    int64_t first_label;             /* the label of column 0 */
    struct cross_entropy_part *part; /* [N] */
};
/* The figures of one row over the columns of one rank, or of all ranks. */
struct cross_entropy_part {
    double max;      /* the largest logit */
    double sum;      /* of exp(logit - max) */
    double at_label; /* the label's logit; 0 if another rank has the label */
    double is_first; /* 1 if this rank has the label, and it is the first of its largest logits; 0 if not wanted */
};
/* Makes the loss, and the part of all columns, from the parts of all ranks. */
struct cross_entropy_join {
    struct cross_entropy call;
    int ranks;
    const struct cross_entropy_part *parts; /* [ranks][N] */
};

/* A parameter in flat arrays, or a rank's share of one. One call works on many. Tables of ranges lie in device memory;
 * a call takes any consecutive ranges of a table. A range may be empty; no two overlap. */
struct flat_range {
    int64_t before; /* elements of all earlier ranges of the table, by which a call divides its work */
    int64_t count;
    int64_t first; /* the first element in gradients and in working weights */
    /* Only adamw reads these. */
    int64_t master, state; /* the first element in `master`; in `m` and `v` */
    float weight_decay;
    float lr_factor; /* multiplies the learning rate; 0: 1 */
};

/* Zeroes the ranges of x. */
struct zero_ranges {
    const struct flat_range *ranges; /* [range_count] */
    int64_t range_count;
    float *x;
    int64_t elements; /* of all ranges, which only work.h reads */
};

/* One update of AdamW (Loshchilov, Hutter 2019). */
struct adamw {
    const struct flat_range *ranges; /* [range_count] */
    int64_t range_count;
    float *master;               /* fp32 values, updated */
    float *m, *v;                /* moments, updated */
    const float *gradient;       /* a range's elements start at range.first; those of master at range.master */
    const float *gradient_scale; /* one number that multiplies the gradient, as the clip factor; NULL: 1. If it is NaN,
                                  * nothing is updated. */
    void *weights;               /* the working weights, which receive the rounded master; NULL if master holds them */
    enum dtype weights_type;
    double lr; /* a range's rate is lr * lr_factor, rounded to fp32 */
    float beta1, beta2, epsilon;
    int64_t step;       /* 1 for the first update */
    bool zero_gradient; /* clears the gradient in the same pass */
    int64_t elements;   /* of all ranges, which only work.h reads */
};

/* *sum (+)= the sum of squares of x, in fp64, in a fixed order. */
struct sum_of_squares {
    int64_t count;
    const float *x; /* [count] */
    bool accumulate;
    double *sum; /* [1] */
};

/* *sum (+)= the sum of x[i] * weight[i], in fp64. */
struct weighted_sum {
    int64_t count;
    const float *x, *weight; /* [count] */
    bool accumulate;
    double *sum; /* [1] */
};

/* Clipping by global norm, all on the device:
 *
 *     norm = sqrt(sum of squares)
 *     factor = min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0; NaN if the norm is not finite */
struct clip_factor {
    const double *sum_of_squares; /* [1] */
    float max_norm;
    float *norm;   /* [1] out */
    float *factor; /* [1] out */
};

/* ---- the list -------------------------------------------------------------------------------------------------- */

/* Every operation, in one list: ROW(name, struct of its arguments, workspace, presence, cost, work).
 *
 * workspace: WORKSPACE for a function NAME_workspace, which returns the bytes of scratch. PLAIN without one.
 * presence:  NEEDED: every backend has it, and a recording may. ONCE: every backend has it, and no recording may. Its
 *            arguments are those of one step, so that a replay would be wrong. OPTIONAL: callers do without it, and no
 *            recording has it.
 * cost:      enum op_cost, by which the planner finds its time.
 * work:      what NAME_work of work.h counts, from the arguments `a`. COUNTED: by a function of work.c. The others have
 *            no products. TENSORS(rows, columns, type, tensors) and MOVED(rows, columns, bytes of each element) say
 *            what they move. WITH_FP8(rows, columns, type, tensors, FP8 output, its columns) may write FP8 as well.
 *
 * The struct of arguments has a row in OP_ARGUMENTS below. All tables and lists of operations follow from both. */
#define OPS(ROW)                                                                                                       \
    ROW(gemm, gemm, WORKSPACE, NEEDED, MULTIPLIES, COUNTED)                                                            \
    ROW(pack, pack_call, PLAIN, OPTIONAL, MOVES, TENSORS(a->plain.rows, a->plain.columns, a->plain.type, 2))           \
    ROW(norm_forward, norm, PLAIN, NEEDED, MOVES, COUNTED)                                                             \
    ROW(norm_backward, norm, WORKSPACE, NEEDED, MOVES, TENSORS(a->rows, a->cols *heads_of_norm(a), a->type, 4))        \
    ROW(gelu_forward, gelu, PLAIN, NEEDED, MOVES, WITH_FP8(a->count, 1, a->type, a->is_fp8_alone ? 1 : 2, &a->fp8, 1)) \
    ROW(gelu_backward, gelu, PLAIN, NEEDED, MOVES,                                                                     \
        WITH_FP8(a->count, 1, a->type, a->is_fp8_alone ? 2 : 3, &a->fp8, 1))                                           \
    ROW(unit_forward, unit_call, PLAIN, NEEDED, MOVES, TENSORS(a->count, 1, a->type, 2))                               \
    ROW(unit_backward, unit_call, PLAIN, NEEDED, MOVES, TENSORS(a->count, 1, a->type, 3))                              \
    ROW(swiglu_forward, swiglu, PLAIN, NEEDED, MOVES,                                                                  \
        WITH_FP8(a->rows, a->cols, a->type, a->is_fp8_alone ? 2 : 3, &a->fp8, a->cols))                                \
    ROW(swiglu_backward, swiglu, PLAIN, NEEDED, MOVES,                                                                 \
        WITH_FP8(a->rows, a->cols, a->type, a->is_fp8_alone ? 3 : 5, &a->fp8, 2 * a->cols))                            \
    ROW(rotary, rotary, PLAIN, NEEDED, MOVES, TENSORS(a->rows, (int64_t)a->heads * a->rotary, a->type, 2))             \
    ROW(column_scale_forward, column_scale, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 3))               \
    ROW(column_scale_backward, column_scale, WORKSPACE, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 3))          \
    ROW(row_squares, row_squares, PLAIN, NEEDED, MULTIPLIES, COUNTED)                                                  \
    ROW(magnitude_ratio, magnitude_ratio, PLAIN, NEEDED, MOVES,                                                        \
        MOVED(a->count, 1, 2 * sizeof *a->ratio + dtype_bytes(a->type)))                                               \
    ROW(lstm_forward, lstm, PLAIN, NEEDED, MULTIPLIES, COUNTED)                                                        \
    ROW(lstm_backward, lstm, WORKSPACE, NEEDED, MULTIPLIES, COUNTED)                                                   \
    ROW(residual_dropout_forward, residual_dropout, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 3))       \
    ROW(residual_dropout_backward, residual_dropout, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 2))      \
    ROW(attention_forward, attention, WORKSPACE, NEEDED, ATTENDS, COUNTED)                                             \
    ROW(attention_backward, attention, WORKSPACE, NEEDED, ATTENDS, COUNTED)                                            \
    ROW(kv_append, kv_append, PLAIN, NEEDED, MOVES, TENSORS(a->rows, (int64_t)a->kv_heads * a->head_size, a->type, 4)) \
    ROW(paged_attention, paged_attention, WORKSPACE, NEEDED, ATTENDS_PAGES, COUNTED)                                   \
    ROW(embedding_forward, embedding, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 3))                     \
    ROW(embedding_backward, embedding, WORKSPACE, NEEDED, MOVES,                                                       \
        MOVED(a->rows, a->cols, 4 * sizeof *a->dtoken_table + dtype_bytes(a->type)))                                   \
    ROW(cross_entropy_forward, cross_entropy, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->vocab, a->type, 1))            \
    ROW(cross_entropy_backward, cross_entropy, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->vocab, a->type, 2))           \
    ROW(cross_entropy_fused, cross_entropy, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->vocab, a->type, 2))              \
    ROW(cross_entropy_part, cross_entropy, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->vocab, a->type, 1))               \
    ROW(cross_entropy_join, cross_entropy_join, PLAIN, NEEDED, MOVES, MOVED(a->call.rows, a->ranks, sizeof *a->parts)) \
    ROW(cross_entropy_part_backward, cross_entropy, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->vocab, a->type, 2))      \
    ROW(zero_ranges, zero_ranges, PLAIN, NEEDED, MOVES, MOVED(a->elements, 1, sizeof *a->x))                           \
    ROW(adamw, adamw, PLAIN, ONCE,                                                                                     \
        MOVES, /* master, moments and gradient read; all but that one written, and a copy */                           \
        MOVED(a->elements, 1, 7 * sizeof *a->m + (a->weights_type == DTYPE_F32 ? 0 : dtype_bytes(a->weights_type))))   \
    ROW(sum_of_squares, sum_of_squares, WORKSPACE, NEEDED, MOVES, TENSORS(a->count, 1, DTYPE_F32, 1))                  \
    ROW(clip_factor, clip_factor, PLAIN, NEEDED, MOVES, COUNTED)                                                       \
    ROW(weighted_sum, weighted_sum, PLAIN, NEEDED, MOVES, TENSORS(a->count, 1, DTYPE_F32, 2))                          \
    ROW(column_sum, column_sum, WORKSPACE, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 1))                       \
    ROW(cast, cast_call, PLAIN, NEEDED, MOVES,                                                                         \
        MOVED(a->count, 1, dtype_bytes(a->from_type) + dtype_bytes(a->to_type)))                                       \
    ROW(add, add_call, PLAIN, NEEDED, MOVES, TENSORS(a->count, 1, a->type, 3))                                         \
    ROW(fp8_cast, fp8_cast, PLAIN, NEEDED, MOVES, WITH_FP8(a->rows, a->cols, DTYPE_BF16, 1, &a->to, a->cols))          \
    ROW(fp8_scales, fp8_scales, PLAIN, ONCE, MOVES, MOVED(a->count, a->length, sizeof *a->history))                    \
    ROW(scale_add, scale_add, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, a->accumulate ? 3 : 2))         \
    ROW(gather_rows, gather_rows, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 2))                         \
    ROW(scatter_add_rows, scatter_add_rows, PLAIN, NEEDED, MOVES,                                                      \
        MOVED(a->rows, a->cols, dtype_bytes(a->x_type) + 2 * dtype_bytes(a->y_type)))                                  \
    ROW(change_ids, change_ids, PLAIN, NEEDED, MOVES, MOVED(a->count, 1, sizeof *a->changes + sizeof *a->table))       \
    ROW(transpose, transpose, PLAIN, NEEDED, MOVES, TENSORS(a->rows, a->cols, a->type, 2))                             \
    ROW(grouped_gemm, grouped_gemm, PLAIN, NEEDED, MOVES, MOVED(a->rows, a->count, 0)) /* entries lie on the device */ \
    ROW(group_scale, group_scale, PLAIN, NEEDED, MOVES, MOVED(a->rows, a->count, 0))                                   \
    ROW(grouped_norm, grouped_norm, PLAIN, NEEDED, MOVES, MOVED(a->rows, a->count, 0))                                 \
    ROW(sample, sample, WORKSPACE, NEEDED, MOVES, TENSORS(a->rows, a->vocab, a->type, 1))

/* ROW(struct, its pointers to device memory), of all structs of arguments. FP8: those of a struct fp8_output. */
#define OP_FP8_POINTERS(to) (to).scale, (to).inverse, (to).amax, (to).y
#define OP_ARGUMENTS(ROW)                                                                                              \
    ROW(gemm, a->a.data, a->a.scale, a->b.data, a->b.scale, a->c.data, a->bias, a->residual, a->aux, a->bias_gradient) \
    ROW(pack_call, a->plain.data, a->out)                                                                              \
    ROW(norm, a->x, a->gain, a->bias, a->y, a->mean, a->rstd, a->dy, a->dx, a->dx_add, a->dgain, a->dbias,             \
        OP_FP8_POINTERS(a->fp8))                                                                                       \
    ROW(gelu, a->x, a->y, a->dy, a->dx, OP_FP8_POINTERS(a->fp8))                                                       \
    ROW(unit_call, a->x, a->y, a->dy, a->dx)                                                                           \
    ROW(swiglu, a->x, a->y, a->dy, a->dx, OP_FP8_POINTERS(a->fp8))                                                     \
    ROW(rotary, a->positions, a->cos, a->sin, a->x)                                                                    \
    ROW(column_scale, a->x, a->scale, a->fixed, a->y, a->dy, a->dx, a->factor, a->dscale)                              \
    ROW(row_squares, a->weight.data, a->up, a->down, a->squares)                                                       \
    ROW(magnitude_ratio, a->squares, a->magnitude, a->norm, a->ratio, a->inverse)                                      \
    ROW(lstm, a->weight, a->bias, a->gates, a->cells, a->y, a->dy)                                                     \
    ROW(residual_dropout, a->residual, a->x, a->y, a->dy, a->dx, a->dropout.keys.sample, a->dropout.keys.token)        \
    ROW(attention, a->segment_start, a->q, a->k, a->v, a->out, a->lse, a->dropout.keys.sample, a->dropout.keys.token,  \
        a->prefix_k, a->prefix_v, a->dout, a->dq, a->dk, a->dv, a->dprefix_k, a->dprefix_v)                            \
    ROW(kv_append, a->k, a->v, a->pages, a->place)                                                                     \
    ROW(paged_attention, a->q, a->pages, a->page_table, a->sequence, a->position, a->out)                              \
    ROW(embedding, a->tokens, a->positions, a->token_table.data, a->position_table, a->x, a->dx, a->dtoken_table,      \
        a->dposition_table, a->virtual_table, a->dvirtual_table)                                                       \
    ROW(cross_entropy, a->logits, a->labels, a->loss, a->lse, a->dloss, a->part, a->is_greedy)                         \
    ROW(cross_entropy_join, a->call.labels, a->call.loss, a->call.part, a->call.is_greedy, a->parts)                   \
    ROW(zero_ranges, a->ranges, a->x)                                                                                  \
    ROW(adamw, a->ranges, a->master, a->m, a->v, a->gradient, a->gradient_scale, a->weights)                           \
    ROW(sum_of_squares, a->x, a->sum)                                                                                  \
    ROW(clip_factor, a->sum_of_squares, a->norm, a->factor)                                                            \
    ROW(weighted_sum, a->x, a->weight, a->sum)                                                                         \
    ROW(column_sum, a->x, a->out)                                                                                      \
    ROW(cast_call, a->from, a->to)                                                                                     \
    ROW(add_call, a->x, a->y)                                                                                          \
    ROW(fp8_cast, a->x, OP_FP8_POINTERS(a->to))                                                                        \
    ROW(fp8_scales, a->amax, a->history, a->scale, a->inverse)                                                         \
    ROW(scale_add, a->x, a->y)                                                                                         \
    ROW(gather_rows, a->x, a->index, a->out)                                                                           \
    ROW(scatter_add_rows, a->x, a->index, a->y)                                                                        \
    ROW(change_ids, a->changes, a->table)                                                                              \
    ROW(transpose, a->x, a->y)                                                                                         \
    ROW(grouped_gemm, a->segments, a->a, a->c)                                                                         \
    ROW(group_scale, a->segments, a->x, a->y)                                                                          \
    ROW(grouped_norm, a->segments, a->x)                                                                               \
    ROW(sample, a->logits, a->row, a->changes, a->masks, a->token, a->logprob, a->top_token, a->top_logprob)

/* An operation's number: OP_norm_forward. OP_COUNT is none. */
#define OP_NUMBER(op, ...) OP_##op,
enum op { OPS(OP_NUMBER) OP_COUNT };
#undef OP_NUMBER

/* How an operation spends its time: on memory, on products, on attention of a batch, or on attention of pages. */
enum op_cost { OP_MOVES, OP_MULTIPLIES, OP_ATTENDS, OP_ATTENDS_PAGES };

enum { OP_POINTERS_MOST = 20 };
struct op_facts {
    const char *name;
    enum op_cost cost;
    bool may_be_absent, is_recordable, has_workspace;
    size_t bytes; /* of the struct of its arguments */
    /* Stores the pointers of the arguments, and returns their number. */
    int (*pointers)(const void *arguments, const void *pointers[OP_POINTERS_MOST]);
};
extern const struct op_facts op_facts[OP_COUNT];

/* ---- the table ------------------------------------------------------------------------------------------------- */

/* Sizes that suit a backend's caches and the cost of its calls. All are above zero; callers may use smaller ones. */
struct ops_sizes {
    int64_t head_rows;          /* rows at a time in the head in training and evaluation: a multiple of the next */
    int64_t head_rows_multiple; /* the head's row counts are rounded up to a multiple of this */
    int64_t step_rows;          /* rows at a time in the head in inference */
    size_t bank_scratch_bytes;  /* scratch of a bank of adapters for the rows that it works on at a time */
    int64_t bucket_elements;    /* the fewest gradients for which a sum over ranks is worth a call */
};

/* For a row of the list: WITH(name, struct) where there is a workspace, and nothing for others. */
#define OPS_WITH_WORKSPACE(with, op, type) with(op, type)
#define OPS_WITH_PLAIN(with, op, type)

/* The functions NAME and NAME_workspace run the operation of that name, and return its bytes of scratch. */
#define OPS_WORKSPACE_MEMBER(op, type) size_t (*op##_workspace)(struct device * device, const struct type *a);
#define OPS_MEMBER(op, type, workspace, ...)                                                                           \
    OPS_WITH_##workspace(OPS_WORKSPACE_MEMBER, op, type) int (*op)(const struct exec *exec, const struct type *a);
struct ops {
    const char *name;

    const struct ops_sizes *(*sizes)(struct device *device);
    /* Returns true if gemm can run exactly this call (types, forms, epilogue), so that a caller may choose
     * another way. Of pointers, it reads only whether they are NULL. */
    bool (*gemm_supports)(struct device *device, const struct gemm *gemm);
    /* Returns the bytes of the packed form of a plain weight, or 0 if the backend packs nothing. */
    size_t (*packed_bytes)(struct device *device, const struct matrix_view *plain);
    /* Returns the elements of a page, which is the smallest page_stride. */
    int64_t (*kv_page_elements)(struct device *device, int kv_heads, int head_size, enum dtype type);

    OPS(OPS_MEMBER)
};
#undef OPS_MEMBER
#undef OPS_WORKSPACE_MEMBER

/* Returns the table of the device, for the instructions that its processor has. The table lives as long as the device.
 */
const struct ops *ops_for(const struct device *device);
/* Returns the table of a narrower level ("v2", "v3", ...), for tests; NULL if this machine cannot run it. */
const struct ops *ops_for_level(const struct device *device, const char *level);
/* Returns the bytes of scratch of an operation with these arguments; 0 for one without a workspace. */
size_t ops_workspace(const struct ops *ops, enum op op, struct device *device, const void *arguments);
/* Returns true if the table lacks the operation. No place in a device's table is NULL: where the backend has no
 * function, that of ops_absent returns STATUS_UNSUPPORTED with the operation's name. */
bool ops_lacks(const struct ops *ops, enum op op);
/* Returns the name of the missing operation `number` of a table, but optional ones; NULL after the last. */
const char *ops_missing(const struct ops *ops, int number);
extern const struct ops ops_absent;
