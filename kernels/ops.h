/* The operations: a const table of functions for each backend.
 *
 * Letters: N rows of a flat batch (tokens), C hidden, F feed-forward, H query heads, G key/value heads, D head size,
 * V vocabulary. Activations and weights are fp32 or bf16, the same in one call; statistics, losses and gradients of
 * parameters are fp32. Arithmetic is in fp32 at least, and results are rounded once. All tensors are row-major.
 *
 * Every function takes a `struct exec`: the stream it runs on, and scratch memory of the caller, at least what the
 * matching *_workspace function asked for, which reads sizes and types only. Pointers in arguments lead to device
 * memory; the structs themselves are the caller's again when the call returns. A function returns STATUS_OK or a
 * negative status (STATUS_UNSUPPORTED: this backend lacks the operation for these types; never a silent fallback), and
 * may return before it ran: a failure is then the stream's. Nothing allocates. Results do not depend on the number of
 * threads, and those of a row not on the other rows, unless said otherwise. */
#ifndef CAMBIUM_KERNELS_OPS_H
#define CAMBIUM_KERNELS_OPS_H

#include "kernels/device.h"
#include "kernels/matrix.h"

struct exec {
    struct stream *stream;
    void *workspace;
    size_t workspace_bytes;
};

/* ---- products -------------------------------------------------------------------------------------------------- */

enum gemm_epilogue {
    EPILOGUE_NONE,
    EPILOGUE_GELU_TANH, /* C = gelu(AB + bias); the GELU's input is rounded to `type`, and aux, if given, receives it */
    EPILOGUE_GELU_EXACT,
    EPILOGUE_DGELU_TANH, /* C = AB * gelu'(aux); aux is read */
    EPILOGUE_DGELU_EXACT,
};

/* A product of few columns in fp32, of what a low-rank adapter adds to C's columns first .. first + count - 1. */
struct gemm_delta {
    int64_t rank;
    int64_t first, count;
    const float *left;  /* [m, rank] */
    const float *right; /* [count, rank] */
};
enum { GEMM_DELTAS_MOST = 12 };

/* C[m,n] = epilogue(scale * op(A)[m,k] op(B)[k,n] + bias) (+ C when accumulate), accumulated in fp32. With deltas C is
 * op(A) op(B) + bias + left right' of each, all of it in fp32 and rounded once; a delta whose right is zero leaves the
 * bits alone. A and B have one type, which is that of bias and aux; B may also be int8 with a scale for each row. */
struct gemm {
    struct matrix_view a; /* [m,k], or [k,m] when a_transposed; plain */
    struct matrix_view b; /* [k,n], or [n,k] when b_transposed (a weight [out, in] used forward) */
    struct matrix_view c; /* [m,n], written; plain, of A's type or fp32 */
    bool a_transposed;    /* a weight gradient: C is fp32, no epilogue */
    bool b_transposed;    /* a packed B always is; then A is plain rows, and there is no GELU backward */
    bool accumulate;      /* C += (with neither bias nor epilogue); the sum is rounded once */
    bool is_scaled;       /* with neither bias nor epilogue, of plain matrices */
    float scale;          /* where is_scaled; any, 0 as well */
    const void *bias;     /* [n] or NULL */
    int delta_count;      /* of a bf16 C, with no epilogue, neither scaled nor accumulated */
    struct gemm_delta delta[GEMM_DELTAS_MOST];
    enum gemm_epilogue epilogue;
    void *aux;            /* [m,n] with C's row stride */
    float *bias_gradient; /* [m] += sums of op(A)'s rows over k: dW = dY^T X leaves db = column sums of dY; or NULL */
};

static inline int64_t gemm_m(const struct gemm *gemm) {
    return gemm->c.rows;
}
static inline int64_t gemm_n(const struct gemm *gemm) {
    return gemm->c.columns;
}
static inline int64_t gemm_k(const struct gemm *gemm) {
    return gemm->a_transposed ? gemm->a.rows : gemm->a.columns;
}

/* ---- arguments of the others ----------------------------------------------------------------------------------- */

/* The place of each row of a flat batch, for the keys of dropout. */
struct row_keys {
    const uint32_t *sample; /* [N] number of the consumed sample, low 32 bits */
    const uint32_t *token;  /* [N] position of the row inside its sample (not the position id) */
};

struct dropout {
    float p; /* 0: none */
    uint64_t seed;
    uint32_t site; /* unique in the model; attention adds the global head number */
    struct row_keys keys;
};

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
    float *mean;          /* [N] out in forward, in in backward; NULL in a forward that saves nothing */
    float *rstd;          /* [N] the same */
    const void *dy;       /* backward: [N,C] */
    void *dx;             /* backward: [N,C] out; may be dy */
    const void *dx_add;   /* backward: [N,C] added to dx (the residual's gradient; may be dx itself), or NULL */
    float *dgain, *dbias; /* backward: [C] accumulated, or both NULL when frozen */
    /* A row may be several vectors, each with its own mean and rstd, which share gain and bias: [N,H,C] and [N,H]. */
    int heads;         /* H; 0: one */
    int64_t x_stride;  /* of x, from row to row; 0: H * C */
    int64_t y_stride;  /* of y and dy; 0: H * C */
    int64_t dx_stride; /* of dx and dx_add; 0: H * C */
};

struct gelu {
    int64_t count;
    enum dtype type;
    bool is_tanh;
    const void *x;  /* the GELU's input */
    void *y;        /* forward out */
    const void *dy; /* backward in */
    void *dx;       /* backward out; may be dy */
};

/* The activations of adapters besides the GELU: max(x, 0), x sigmoid(x), and tanh(x). */
enum unit { UNIT_RELU, UNIT_SWISH, UNIT_TANH };
struct unit_call {
    int64_t count;
    enum dtype type;
    enum unit unit;
    const void *x;  /* the unit's input */
    void *y;        /* forward out; may be x */
    const void *dy; /* backward in */
    void *dx;       /* backward out; may be dy */
};

/* y = swish(gate) * up of x = [gate, up]: the activation of a gated MLP. */
struct swiglu {
    int64_t rows, cols; /* N, F */
    enum dtype type;
    const void *x;  /* [N,2F]: a row's F columns of the gate, then those of up */
    void *y;        /* forward: [N,F] out */
    const void *dy; /* backward: [N,F] */
    void *dx;       /* backward: [N,2F] out; may be x */
};

/* Rotary positions, in place: of the first `rotary` features of each head, feature j and feature j + rotary / 2 turn
 * together by their position's angle: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. The others stay. Queries and keys
 * that lie side by side turn in one call, as heads of one vector. */
struct rotary {
    int64_t rows;                 /* N */
    int heads, head_size, rotary; /* rotary even, 0 .. D */
    enum dtype type;
    const int32_t *positions; /* [N] rows of cos and sin */
    const float *cos, *sin;   /* [positions, rotary / 2] */
    void *x;                  /* [N, heads, D] */
    int64_t stride;           /* from row to row */
    bool is_backward;         /* turns by the negative angles: the gradient of x in the place of that of y */
};

/* Every row's columns scaled by a vector, except for a part that stays as it is: y = x * scale, or with `fixed`
 * y = x + (x - fixed) * (scale - 1), so that a scale of one leaves the bits alone. Backward: dx = dy * scale, and
 * dscale[j] += factor[j] * sum over rows of dy * (x - fixed). With `adds` the forward is y += x * (scale - 1). */
struct column_scale {
    int64_t rows, cols;
    enum dtype type;                                  /* of x, y, dy, dx and fixed */
    enum dtype scale_type;                            /* type, or fp32 */
    const void *x;                                    /* [N,C]; the backward needs it where it makes dscale */
    const void *scale;                                /* [C] */
    const void *fixed;                                /* [C] or NULL */
    bool adds;                                        /* with neither fixed nor kept */
    void *kept;                                       /* forward: [N,C] receives x, or NULL */
    void *y;                                          /* forward: [N,C] out; may be x */
    const void *dy;                                   /* backward: [N,C] */
    void *dx;                                         /* backward: [N,C] out; may be dy or x */
    const float *factor;                              /* backward: [C], or NULL: 1 */
    float *dscale;                                    /* backward: [C] accumulated, or NULL when frozen */
    int64_t x_stride, y_stride, dy_stride, dx_stride; /* from row to row; 0: C, as `kept` has */
};

/* y = scale * x, + y when accumulate; rounded once. */
struct scale_add {
    int64_t rows, cols;
    enum dtype type; /* of x and y */
    float scale;
    const void *x; /* [N,C] */
    void *y;       /* [N,C] may be x */
    bool accumulate;
    int64_t x_stride, y_stride; /* from row to row; 0: C */
};

/* y[index[i]] += x[i] for rows of some columns, the sum in fp32, rounded once; a row whose index is below 0 is left
 * out. No index comes twice. */
struct scatter_add_rows {
    int64_t rows, cols;
    enum dtype x_type, y_type;
    const void *x; /* [N,C] */
    const int32_t *index;
    void *y;                    /* [.., C] */
    int64_t x_stride, y_stride; /* from row to row; 0: C */
};

/* squares[i] = the sum of squares of row first_row + i of weight + scale * up down: DoRA's measure (arXiv 2402.09353).
 * Where the matrix's columns are cut over ranks it is a part of the sum. A packed weight gives the plain one's bits. */
struct row_squares {
    struct matrix_view weight; /* up and down have its type */
    int64_t first_row, rows;   /* of the weight */
    int64_t rank;
    const void *up;   /* [rows, rank]; NULL: the weight alone */
    const void *down; /* [rank, weight.columns] */
    float scale;
    float *squares; /* [rows] out */
};

/* From sums of squares to norms and what they make of a magnitude: norm = sqrt(squares), rounded to `type` as the
 * magnitude is, so that one which is the norm gives a ratio of exactly one. */
struct magnitude_ratio {
    int64_t count;
    enum dtype type;
    const float *squares;  /* [count] */
    const void *magnitude; /* [count]; read for the ratio */
    void *norm;            /* [count] out, or NULL */
    float *ratio;          /* [count] magnitude / norm out, or NULL */
    float *inverse;        /* [count] 1 / norm out, or NULL */
};

/* One direction of an LSTM layer over T steps, in fp32, from a zero state. Gates in the order i, f, g, o:
 * c = f c' + i g, y = o tanh(c). The products with the layer's input are the caller's: `gates` comes in as x W' + b and
 * goes out as the gates; the backward takes those and leaves the gradient of their sums, from which the gradients of
 * both weights and biases, and of x, are products again. */
struct lstm {
    int64_t steps, hidden; /* T, H */
    bool is_reverse;       /* from the last step to the first */
    const float *weight;   /* [4H, H] of the state */
    const float *bias;     /* [4H] of the state */
    float *gates;          /* [T, 4H] */
    float *cells;          /* [T, H] forward out, backward in */
    float *y;              /* [T, H] out, row stride y_stride */
    int64_t y_stride;
    const float *dy; /* backward: [T, H], row stride y_stride */
};

/* y = residual + dropout(x); residual NULL: y = dropout(x). y may be x or residual. Backward: dx = mask * dy / (1-p).
 */
struct residual_dropout {
    int64_t rows, cols;
    enum dtype type;
    const void *residual;
    const void *x;
    void *y;
    const void *dy;
    void *dx; /* may be dy */
    struct dropout dropout;
    int64_t first_col; /* global number of column 0 (a shard's) */
};

/* Causal attention over segments of a flat batch: row i sees rows j <= i of its own segment, and the segment's prefix,
 * or with a window the last `window` of those rows; what it does not see cannot change its bits, not even a NaN. A
 * backend that multiplies bf16 as bf16 rounds the probabilities and their gradients to it before they are multiplied.
 * The workspace of one segment of all rows is enough for the same rows cut in any way, and does not depend on which
 * pointers are NULL. */
struct attention {
    int64_t rows;                 /* N */
    int64_t segments;             /* S */
    const int64_t *segment_start; /* [S+1] ascending, 0 .. N */
    int heads, kv_heads, head_size;
    int first_head; /* global number of head 0, for dropout keys */
    enum dtype type;
    const void *q, *k, *v; /* [N, H, D], [N, G, D] with row strides below (a fused qkv is one block) */
    int64_t q_stride, k_stride, v_stride;
    float scale; /* 1/sqrt(D); above 0 */
    void *out;   /* [N, H, D], row stride out_stride */
    int64_t out_stride;
    int64_t window;         /* rows seen, the row itself included, and no prefix; 0: all */
    float *lse;             /* [H, N] log-sum-exp of the scaled scores; forward out (or NULL), backward in */
    struct dropout dropout; /* of the probabilities, element = key's token number in the sample */
    /* Prefix keys and values before each segment's first row, seen by all its rows; prefix 0: none. Shared by all
     * segments: [P, G, D]. Dropout is the same for them: prefix token p of P has element 2^31 - P + p. */
    int64_t prefix;
    const void *prefix_k, *prefix_v;
    /* backward */
    const void *dout;             /* [N, H, D], row stride out_stride */
    void *dq, *dk, *dv;           /* strides as q, k, v */
    float *dprefix_k, *dprefix_v; /* [P, G, D] accumulated, or NULL */
};

enum { KV_PAGE_TOKENS = 16 };

/* The paged cache of one layer: page p holds the keys and values of 16 tokens, at pages + p * page_stride elements of
 * `type`. The order inside a page is the backend's, and only these operations look there; whole pages may be copied. */
struct kv_append {
    int64_t rows;
    int kv_heads, head_size;
    enum dtype type;
    const void *k, *v; /* [N, G, D] with row strides */
    int64_t k_stride, v_stride;
    void *pages;
    int64_t page_stride;
    const int32_t *place; /* [N] page * 16 + token inside the page; -1: the row is not kept */
};

/* Row i is a query at `position[i]` of sequence `sequence[i]`; it sees cached tokens 0 .. position[i], or with a window
 * the last `window` of those. Pages before the windows of all rows of a sequence are not read, nor are their entries of
 * the table. The bits of a row depend on its own query and on the tokens that it sees only: not on how rows are grouped
 * into calls. */
struct paged_attention {
    int64_t rows;
    int heads, kv_heads, head_size;
    enum dtype type;
    const void *q;
    int64_t q_stride;
    float scale;
    const void *pages;
    int64_t page_stride;
    const int32_t *page_table; /* [sequences, max_pages] */
    int64_t max_pages;
    const int32_t *sequence; /* [N] row of page_table */
    const int32_t *position; /* [N] index in the cache, prefix included */
    int64_t window;          /* tokens seen, the row's own included; 0: all */
    void *out;
    int64_t out_stride;
};

/* x[i] = token_table[tokens[i]] + position_table[positions[i]]. Backward: scatter-adds dx into the fp32 tables, in row
 * order, so that the result is deterministic. Where a vocabulary is cut over ranks the token tables hold the entries
 * [first_token, first_token + token_count): the rows of other tokens become 0, position included, so that the sum over
 * the ranks is the whole's, to the bit; their token gradients are left out. Ids from first_virtual on are rows of the
 * table of virtual tokens. Where it is NULL it is another rank's, and its rows become 0, as do those of ids past it;
 * their gradients are left out, but positions have every row's. */
struct embedding {
    int64_t rows, cols;
    enum dtype type;
    int64_t first_token, token_count;      /* token_count 0: every token is in the table */
    const int32_t *tokens;                 /* [N] */
    const int32_t *positions;              /* [N] */
    const void *token_table;               /* [V,C] */
    const void *position_table;            /* [T,C] or NULL */
    void *x;                               /* forward out */
    const void *dx;                        /* backward in */
    float *dtoken_table, *dposition_table; /* accumulated; NULL when frozen */
    int64_t first_virtual, virtual_tokens; /* virtual_tokens 0: every id is in the vocabulary */
    const void *virtual_table;             /* [virtual_tokens,C] or NULL */
    float *dvirtual_table;                 /* accumulated; NULL when frozen */
};

/* Softmax cross-entropy of logits [N, stride >= V]; columns V .. stride are padding. Forward writes loss and lse;
 * backward overwrites the logits with (softmax - onehot) * dloss[i] (0 in the padding). One fused call does both in
 * place. Losses of the forward, and sums of the parts, are not numbers where any logit is not finite. */
struct cross_entropy {
    int64_t rows, vocab, stride;
    enum dtype type;
    void *logits;
    const int32_t *labels; /* [N], 0 .. V-1 */
    float *loss;           /* [N] -log p(label) */
    float *lse;            /* [N] log-sum-exp; may be NULL in the fused call */
    const float *dloss;    /* [N] weight of each row's loss; 0: the row counts nothing */
    /* For a vocabulary that is cut over ranks; the calls above do not read them. */
    int64_t first_label;             /* of the vocabulary, in column 0 */
    struct cross_entropy_part *part; /* [N] */
};
/* One row's figures over the columns of one rank, or of all: the largest logit, the sum of exp(logit - max), the
 * label's logit (0 where the label is another rank's). */
struct cross_entropy_part {
    double max, sum, at_label;
};

/* A parameter in the flat arrays, or a rank's share of one, so that one call works on many. Tables of ranges lie in
 * device memory; a call takes any of a table that stand in a row. A range may be empty; none overlap. */
struct flat_range {
    int64_t before; /* elements of the table's earlier ranges, by which a call shares out its work */
    int64_t count;
    int64_t first; /* in gradients and working weights */
    /* For adamw alone. */
    int64_t master, state;         /* the first in `master`; in `m` and `v` */
    float weight_decay, lr_factor; /* of the learning rate; 0: 1 */
};

struct zero_ranges {
    const struct flat_range *ranges; /* [range_count] */
    int64_t range_count;
    float *x;
};

struct adamw {
    const struct flat_range *ranges; /* [range_count] */
    int64_t range_count;
    float *master; /* fp32 values, updated */
    float *m, *v;  /* moments, updated */
    const float *gradient;
    const float *gradient_scale; /* one number that multiplies the gradient (the clip factor; not a number: nothing is
                                  * updated); NULL: 1 */
    void *weights; /* the working copy that receives the rounded master; NULL when master is the working copy */
    enum dtype weights_type;
    double lr; /* a range's rate is its product with lr_factor, rounded to fp32 */
    float beta1, beta2, epsilon;
    int64_t step;       /* 1 for the first update */
    bool zero_gradient; /* clears the gradient in the same pass */
};

/* Clipping by global norm, all on the device: norm = sqrt(sum of squares); factor = min(1, max_norm / (norm + 1e-6)),
 * or 1 when max_norm is 0; not a number where the norm is not finite. */
struct clip_factor {
    const double *sum_of_squares;
    float max_norm;
    float *norm;
    float *factor;
};

/* One batch's rows may belong to many adapters. They come in segments; a segment has a table of entries, one for each
 * place of the model, and an operation names the place by its number. Both tables lie in device memory. Segments come
 * in any order, need not cover the rows, share none, and may be empty; rows whose segment has no table, or whose entry
 * has no outputs, are left alone. */
enum group_unit {
    GROUP_UNIT_NONE,
    GROUP_UNIT_GELU_TANH,
    GROUP_UNIT_GELU_EXACT,
    GROUP_UNIT_RELU,
    GROUP_UNIT_SWISH,
    GROUP_UNIT_TANH
};
struct group_entry {
    int64_t n, k;         /* outputs and inputs; group_scale has n alone */
    int64_t first_column; /* where the n outputs stand in a row: of c; of x and y */
    const void *data;     /* grouped_gemm: the matrix, [n, k] or, with is_by_input, [k, n]; group_scale: [n] */
    bool is_by_input;
    enum dtype type;  /* of data: fp32 or bf16 */
    const void *bias; /* grouped_gemm: [n] added, or NULL; group_scale: [n] the fixed part, or NULL */
    enum dtype bias_type;
    float scale; /* grouped_gemm alone: any, 0 as well */
    enum group_unit unit;
};
struct group_segment {
    int64_t first_row, rows; /* of the batch */
    const struct group_entry *entries;
};

/* c[i, first_column + j] (+)= scale * unit(sum over k of a[i, k] matrix[j, k] + bias[j]) of each row's own entry: the
 * sum in fp32, the result rounded once. A row's bits depend on that row and its entry alone, not on how rows are cut
 * into segments and calls. c shares no memory with a. */
struct grouped_gemm {
    int64_t count; /* of segments */
    const struct group_segment *segments;
    int64_t entry;           /* its number in each segment's table */
    int64_t first_row, rows; /* the rows of the batch that this call works on */
    const void *a;           /* row i at a + (i - a_row) * lda */
    int64_t a_row, lda;
    enum dtype a_type; /* fp32 or bf16 */
    void *c;           /* row i at c + (i - c_row) * ldc */
    int64_t c_row, ldc;
    enum dtype c_type;
    bool accumulate;
};

/* y = x * s, with a fixed part y = x + (x - fixed) * (s - 1), or with is_difference y = x * (s - 1) without looking at
 * a fixed part; s is each row's own entry's, and x and y are its columns first_column .. first_column + n. */
struct group_scale {
    int64_t count;
    const struct group_segment *segments;
    int64_t entry;
    int64_t first_row, rows;
    const void *x; /* row i at x + (i - x_row) * ldx */
    int64_t x_row, ldx;
    enum dtype x_type; /* fp32 or bf16 */
    void *y;           /* as x; may be x, of the same type */
    int64_t y_row, ldy;
    enum dtype y_type;
    bool is_difference;
};

enum { SAMPLE_MAX_TOP = 20 };

/* The change to one id in the next draw of a row. */
struct sample_change {
    int32_t id;
    int32_t count; /* in the output */
    float bias;    /* added to the logit; -INFINITY: banned */
    bool is_seen;  /* in the prompt or the output */
};

/* How one row's next token is drawn: logits get their bias, then the repetition penalty (of seen ids: a positive one is
 * divided, a negative one multiplied), the presence penalty (subtracted where the count is above 0) and the frequency
 * penalty (times the count), are divided by the temperature, and cut by top_k, top_p and min_p (an id stays that has at
 * least min_p of the likeliest one's probability). The likeliest always stays, and of equals the lower ids come first.
 * temperature 0: the largest logit after the penalties. */
struct sample_row {
    float temperature;
    float top_p;   /* 1: all */
    float min_p;   /* 0: all */
    int32_t top_k; /* 0: all */
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    uint32_t choice, position;          /* of the draw: keys of the random number */
    int32_t first_change, change_count; /* of the call's changes: each id of this row at most once, in any order */
    int32_t top_count;                  /* 0 .. SAMPLE_MAX_TOP likeliest ids that are asked for */
    bool draws;                         /* otherwise the token is -1 and its log-probability 0 */
};

/* Log-probabilities are those of the plain logits, before anything is changed; not numbers where any of these is not
 * finite. */
struct sample {
    int64_t rows, vocab, stride;
    enum dtype type;
    const void *logits; /* [N, stride] */
    const struct sample_row *row;
    const struct sample_change *changes; /* of all rows; NULL: none has any */
    int32_t *token;                      /* [N] out */
    float *logprob;                      /* [N] out, of the token; may be NULL */
    /* [N, SAMPLE_MAX_TOP] out: the likeliest ids of the plain logits, the likeliest first; -1 and 0 after the last.
     * NULL where no row asks for any. */
    int32_t *top_token;
    float *top_logprob;
};

/* ---- the table ------------------------------------------------------------------------------------------------- */

/* Sizes that suit a backend's caches and the cost of its calls. Above zero; callers may use less. */
struct ops_sizes {
    int64_t head_rows;          /* rows that the head has at a time in training and evaluation: a multiple of */
    int64_t head_rows_multiple; /* what its numbers of rows are rounded up to */
    int64_t step_rows;          /* rows that the head has at a time in inference */
    size_t bank_scratch_bytes;  /* of a bank of adapters, for the rows that it works on at a time */
    int64_t bucket_elements;    /* gradients from which on a sum over ranks is worth a call */
};

struct ops {
    const char *name;

    const struct ops_sizes *(*sizes)(struct device *device);

    /* Whether gemm can do exactly this (types, forms, epilogue, deltas), so that a caller may choose another way.
     * Pointers are not followed, but for whether they are NULL. */
    bool (*gemm_supports)(struct device *device, const struct gemm *gemm);
    size_t (*gemm_workspace)(struct device *device, const struct gemm *gemm);
    /* On the CPU without AVX-512 the library shares sums among threads: there the bits of plain products depend on
     * their number (not those of packed ones), and bf16 products exist only packed. */
    int (*gemm)(const struct exec *exec, const struct gemm *gemm);
    /* Bytes of the packed form of a plain weight; 0 when the backend keeps plain ones. The packed form multiplies any
     * number of rows, and a row's bits do not depend on that number. */
    size_t (*packed_bytes)(struct device *device, const struct matrix_view *plain);
    int (*pack)(const struct exec *exec, const struct matrix_view *plain, void *out, struct matrix_view *packed);

    int (*norm_forward)(const struct exec *exec, const struct norm *a);
    size_t (*norm_backward_workspace)(struct device *device, const struct norm *a);
    int (*norm_backward)(const struct exec *exec, const struct norm *a);

    int (*gelu_forward)(const struct exec *exec, const struct gelu *a);
    int (*gelu_backward)(const struct exec *exec, const struct gelu *a);

    int (*unit_forward)(const struct exec *exec, const struct unit_call *a);
    int (*unit_backward)(const struct exec *exec, const struct unit_call *a);

    int (*swiglu_forward)(const struct exec *exec, const struct swiglu *a);
    int (*swiglu_backward)(const struct exec *exec, const struct swiglu *a);

    int (*rotary)(const struct exec *exec, const struct rotary *a);

    int (*column_scale_forward)(const struct exec *exec, const struct column_scale *a);
    size_t (*column_scale_backward_workspace)(struct device *device, const struct column_scale *a);
    int (*column_scale_backward)(const struct exec *exec, const struct column_scale *a);
    int (*row_squares)(const struct exec *exec, const struct row_squares *a);
    int (*magnitude_ratio)(const struct exec *exec, const struct magnitude_ratio *a);

    int (*lstm_forward)(const struct exec *exec, const struct lstm *a);
    size_t (*lstm_backward_workspace)(struct device *device, const struct lstm *a);
    int (*lstm_backward)(const struct exec *exec, const struct lstm *a);

    int (*residual_dropout_forward)(const struct exec *exec, const struct residual_dropout *a);
    int (*residual_dropout_backward)(const struct exec *exec, const struct residual_dropout *a);

    size_t (*attention_forward_workspace)(struct device *device, const struct attention *a);
    int (*attention_forward)(const struct exec *exec, const struct attention *a);
    size_t (*attention_backward_workspace)(struct device *device, const struct attention *a);
    int (*attention_backward)(const struct exec *exec, const struct attention *a);

    /* Elements of a page: the least page_stride. */
    int64_t (*kv_page_elements)(struct device *device, int kv_heads, int head_size, enum dtype type);
    int (*kv_append)(const struct exec *exec, const struct kv_append *a);
    size_t (*paged_attention_workspace)(struct device *device, const struct paged_attention *a);
    int (*paged_attention)(const struct exec *exec, const struct paged_attention *a);

    int (*embedding_forward)(const struct exec *exec, const struct embedding *a);
    size_t (*embedding_backward_workspace)(struct device *device, const struct embedding *a);
    int (*embedding_backward)(const struct exec *exec, const struct embedding *a);

    int (*cross_entropy_forward)(const struct exec *exec, const struct cross_entropy *a);  /* logits untouched */
    int (*cross_entropy_backward)(const struct exec *exec, const struct cross_entropy *a); /* needs lse */
    int (*cross_entropy_fused)(const struct exec *exec, const struct cross_entropy *a);    /* both, in place */
    /* The same for columns of one rank. First part[N] of them; then, from the parts of all ranks [ranks][N], loss and
     * the part of the whole; from that the gradient, over the logits. */
    int (*cross_entropy_part)(const struct exec *exec, const struct cross_entropy *a);
    int (*cross_entropy_join)(const struct exec *exec, const struct cross_entropy *a, int ranks,
                              const struct cross_entropy_part *parts);
    int (*cross_entropy_part_backward)(const struct exec *exec, const struct cross_entropy *a);

    int (*zero_ranges)(const struct exec *exec, const struct zero_ranges *a);
    int (*adamw)(const struct exec *exec, const struct adamw *a);
    /* *sum = (or += when accumulate) the sum of squares of x[count], in double, in a fixed order. */
    size_t (*sum_of_squares_workspace)(struct device *device, int64_t count);
    int (*sum_of_squares)(const struct exec *exec, int64_t count, const float *x, bool accumulate, double *sum);
    int (*clip_factor)(const struct exec *exec, const struct clip_factor *a);
    /* *sum = (or +=) sum of x[i] * weight[i], in double. */
    int (*weighted_sum)(const struct exec *exec, int64_t count, const float *x, const float *weight, bool accumulate,
                        double *sum);
    /* out[j] += sum over rows of x[i, j]: the gradient of a bias. */
    size_t (*column_sum_workspace)(struct device *device, int64_t rows, int64_t cols);
    int (*column_sum)(const struct exec *exec, int64_t rows, int64_t cols, enum dtype type, const void *x,
                      int64_t stride, float *out);
    int (*cast)(const struct exec *exec, int64_t count, enum dtype from_type, const void *from, enum dtype to_type,
                void *to);
    /* y += x, elementwise, the sum in fp32. */
    int (*add)(const struct exec *exec, int64_t count, enum dtype type, const void *x, void *y);
    int (*scale_add)(const struct exec *exec, const struct scale_add *a);
    /* out[i] = x[index[i]] for whole rows of `cols` elements; zeros where the index is below 0. With the inverse of an
     * index it puts rows back. */
    int (*gather_rows)(const struct exec *exec, int64_t rows, int64_t cols, enum dtype type, const void *x,
                       const int32_t *index, void *out);
    int (*scatter_add_rows)(const struct exec *exec, const struct scatter_add_rows *a);

    int (*grouped_gemm)(const struct exec *exec, const struct grouped_gemm *a);
    int (*group_scale)(const struct exec *exec, const struct group_scale *a);

    size_t (*sample_workspace)(struct device *device, const struct sample *a);
    int (*sample)(const struct exec *exec, const struct sample *a);
};

/* The table of a device's backend, for the instructions that its processor has. */
const struct ops *ops_for(const struct device *device);
/* Narrower tables that this machine can run as well ("v2", "v3", ...), for tests; NULL when it cannot. */
const struct ops *ops_for_level(const struct device *device, const char *level);
/* The names of the operations that a table lacks, by number; NULL after the last. Tables of devices have functions in
 * all places: those of ops_absent stand for what is missing, and return STATUS_UNSUPPORTED with the operation's name.
 */
const char *ops_missing(const struct ops *ops, int number);
extern const struct ops ops_absent;

#endif
