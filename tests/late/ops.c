/* The operations of `late`. Each copies its arguments to the stream's queue; the CPU's operation runs from there. */
#include "late/late-internal.h"

#define POINTER(type, member) offsetof(struct type, member)

/* The pointers of a struct fp8_output. */
#define FP8(type, member)                                                                                              \
    POINTER(type, member.scale), POINTER(type, member.inverse), POINTER(type, member.amax), POINTER(type, member.y)
#define DELTA(i) POINTER(gemm, delta[i].left), POINTER(gemm, delta[i].right)
static const size_t gemm_pointers[] = {
    POINTER(gemm, a.data),
    POINTER(gemm, a.scale),
    POINTER(gemm, b.data),
    POINTER(gemm, b.scale),
    POINTER(gemm, c.data),
    POINTER(gemm, bias),
    POINTER(gemm, aux),
    POINTER(gemm, bias_gradient),
    DELTA(0),
    DELTA(1),
    DELTA(2),
    DELTA(3),
    DELTA(4),
    DELTA(5),
    DELTA(6),
    DELTA(7),
    DELTA(8),
    DELTA(9),
    DELTA(10),
    DELTA(11),
};
_Static_assert(GEMM_DELTAS_MOST == 12, "all deltas are listed");
static const size_t norm_pointers[] = {
    POINTER(norm, x),      POINTER(norm, gain),  POINTER(norm, bias),  POINTER(norm, y),
    POINTER(norm, mean),   POINTER(norm, rstd),  POINTER(norm, dy),    POINTER(norm, dx),
    POINTER(norm, dx_add), POINTER(norm, dgain), POINTER(norm, dbias), FP8(norm, fp8),
};
static const size_t gelu_pointers[] = {POINTER(gelu, x), POINTER(gelu, y), POINTER(gelu, dy), POINTER(gelu, dx),
                                       FP8(gelu, fp8)};
static const size_t unit_call_pointers[] = {POINTER(unit_call, x), POINTER(unit_call, y), POINTER(unit_call, dy),
                                            POINTER(unit_call, dx)};
static const size_t swiglu_pointers[] = {POINTER(swiglu, x), POINTER(swiglu, y), POINTER(swiglu, dy),
                                         POINTER(swiglu, dx), FP8(swiglu, fp8)};
static const size_t rotary_pointers[] = {POINTER(rotary, positions), POINTER(rotary, cos), POINTER(rotary, sin),
                                         POINTER(rotary, x)};
static const size_t column_sum_pointers[] = {POINTER(column_sum, x), POINTER(column_sum, out)};
static const size_t fp8_cast_pointers[] = {POINTER(fp8_cast, x), FP8(fp8_cast, to)};
static const size_t fp8_scales_pointers[] = {POINTER(fp8_scales, amax), POINTER(fp8_scales, history),
                                             POINTER(fp8_scales, scale), POINTER(fp8_scales, inverse)};
static const size_t scale_add_pointers[] = {POINTER(scale_add, x), POINTER(scale_add, y)};
static const size_t scatter_add_rows_pointers[] = {POINTER(scatter_add_rows, x), POINTER(scatter_add_rows, index),
                                                   POINTER(scatter_add_rows, y)};
static const size_t change_ids_pointers[] = {POINTER(change_ids, changes), POINTER(change_ids, table)};
static const size_t column_scale_pointers[] = {
    POINTER(column_scale, x),    POINTER(column_scale, scale),  POINTER(column_scale, fixed),
    POINTER(column_scale, kept), POINTER(column_scale, y),      POINTER(column_scale, dy),
    POINTER(column_scale, dx),   POINTER(column_scale, factor), POINTER(column_scale, dscale),
};
static const size_t transpose_pointers[] = {POINTER(transpose, x), POINTER(transpose, y)};
static const size_t row_squares_pointers[] = {POINTER(row_squares, weight.data), POINTER(row_squares, weight.scale),
                                              POINTER(row_squares, up), POINTER(row_squares, down),
                                              POINTER(row_squares, squares)};
static const size_t magnitude_ratio_pointers[] = {POINTER(magnitude_ratio, squares),
                                                  POINTER(magnitude_ratio, magnitude), POINTER(magnitude_ratio, norm),
                                                  POINTER(magnitude_ratio, ratio), POINTER(magnitude_ratio, inverse)};
static const size_t lstm_pointers[] = {POINTER(lstm, weight), POINTER(lstm, bias), POINTER(lstm, gates),
                                       POINTER(lstm, cells),  POINTER(lstm, y),    POINTER(lstm, dy)};
static const size_t residual_dropout_pointers[] = {POINTER(residual_dropout, residual),
                                                   POINTER(residual_dropout, x),
                                                   POINTER(residual_dropout, y),
                                                   POINTER(residual_dropout, dy),
                                                   POINTER(residual_dropout, dx),
                                                   POINTER(residual_dropout, dropout.keys.sample),
                                                   POINTER(residual_dropout, dropout.keys.token)};
static const size_t attention_pointers[] = {POINTER(attention, segment_start),
                                            POINTER(attention, q),
                                            POINTER(attention, k),
                                            POINTER(attention, v),
                                            POINTER(attention, out),
                                            POINTER(attention, lse),
                                            POINTER(attention, dropout.keys.sample),
                                            POINTER(attention, dropout.keys.token),
                                            POINTER(attention, prefix_k),
                                            POINTER(attention, prefix_v),
                                            POINTER(attention, dout),
                                            POINTER(attention, dq),
                                            POINTER(attention, dk),
                                            POINTER(attention, dv),
                                            POINTER(attention, dprefix_k),
                                            POINTER(attention, dprefix_v)};
static const size_t kv_append_pointers[] = {POINTER(kv_append, k), POINTER(kv_append, v), POINTER(kv_append, pages),
                                            POINTER(kv_append, place)};
static const size_t paged_attention_pointers[] = {
    POINTER(paged_attention, q),        POINTER(paged_attention, pages),    POINTER(paged_attention, page_table),
    POINTER(paged_attention, sequence), POINTER(paged_attention, position), POINTER(paged_attention, out)};
static const size_t embedding_pointers[] = {POINTER(embedding, tokens),
                                            POINTER(embedding, positions),
                                            POINTER(embedding, token_table),
                                            POINTER(embedding, position_table),
                                            POINTER(embedding, x),
                                            POINTER(embedding, dx),
                                            POINTER(embedding, dtoken_table),
                                            POINTER(embedding, dposition_table),
                                            POINTER(embedding, virtual_table),
                                            POINTER(embedding, dvirtual_table)};
static const size_t cross_entropy_pointers[] = {POINTER(cross_entropy, logits),   POINTER(cross_entropy, labels),
                                                POINTER(cross_entropy, loss),     POINTER(cross_entropy, lse),
                                                POINTER(cross_entropy, dloss),    POINTER(cross_entropy, part),
                                                POINTER(cross_entropy, is_greedy)};
static const size_t zero_ranges_pointers[] = {POINTER(zero_ranges, ranges), POINTER(zero_ranges, x)};
static const size_t adamw_pointers[] = {
    POINTER(adamw, ranges),   POINTER(adamw, master),         POINTER(adamw, m),      POINTER(adamw, v),
    POINTER(adamw, gradient), POINTER(adamw, gradient_scale), POINTER(adamw, weights)};
static const size_t clip_factor_pointers[] = {POINTER(clip_factor, sum_of_squares), POINTER(clip_factor, norm),
                                              POINTER(clip_factor, factor)};
static const size_t grouped_gemm_pointers[] = {POINTER(grouped_gemm, segments), POINTER(grouped_gemm, a),
                                               POINTER(grouped_gemm, c)};
static const size_t group_scale_pointers[] = {POINTER(group_scale, segments), POINTER(group_scale, x),
                                              POINTER(group_scale, y)};
static const size_t grouped_norm_pointers[] = {POINTER(grouped_norm, segments), POINTER(grouped_norm, x)};
static const size_t sample_pointers[] = {
    POINTER(sample, logits),  POINTER(sample, row),       POINTER(sample, changes),    POINTER(sample, token),
    POINTER(sample, logprob), POINTER(sample, top_token), POINTER(sample, top_logprob)};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Defines an operation whose arguments are one struct, and its workspace function. */
#define OPERATION(op, type)                                                                                            \
    static int run_##op(const struct exec *exec, const void *arguments) {                                              \
        return ops_for(exec->stream->device)->op(exec, arguments);                                                     \
    }                                                                                                                  \
    static int late_##op(const struct exec *exec, const struct type *a) {                                              \
        return late_queue(exec, &(const struct late_work){.name = #op,                                                 \
                                                          .run = run_##op,                                             \
                                                          .arguments = a,                                              \
                                                          .bytes = sizeof *a,                                          \
                                                          .pointers = type##_pointers,                                 \
                                                          .pointer_count = COUNT(type##_pointers)});                   \
    }
#define WORKSPACE(op, type)                                                                                            \
    static size_t late_##op##_workspace(struct device *device, const struct type *a) {                                 \
        return ops_for(late_cpu(device))->op##_workspace(late_cpu(device), a);                                         \
    }

OPERATION(gemm, gemm)
WORKSPACE(gemm, gemm)
OPERATION(norm_forward, norm)
OPERATION(norm_backward, norm)
WORKSPACE(norm_backward, norm)
OPERATION(gelu_forward, gelu)
OPERATION(gelu_backward, gelu)
OPERATION(unit_forward, unit_call)
OPERATION(unit_backward, unit_call)
OPERATION(swiglu_forward, swiglu)
OPERATION(swiglu_backward, swiglu)
OPERATION(rotary, rotary)
OPERATION(column_sum, column_sum)
WORKSPACE(column_sum, column_sum)
OPERATION(fp8_cast, fp8_cast)
OPERATION(fp8_scales, fp8_scales)
OPERATION(scale_add, scale_add)
OPERATION(scatter_add_rows, scatter_add_rows)
OPERATION(change_ids, change_ids)
OPERATION(transpose, transpose)
OPERATION(column_scale_forward, column_scale)
OPERATION(column_scale_backward, column_scale)
WORKSPACE(column_scale_backward, column_scale)
OPERATION(row_squares, row_squares)
OPERATION(magnitude_ratio, magnitude_ratio)
OPERATION(lstm_forward, lstm)
OPERATION(lstm_backward, lstm)
WORKSPACE(lstm_backward, lstm)
OPERATION(residual_dropout_forward, residual_dropout)
OPERATION(residual_dropout_backward, residual_dropout)
OPERATION(attention_forward, attention)
WORKSPACE(attention_forward, attention)
OPERATION(attention_backward, attention)
WORKSPACE(attention_backward, attention)
OPERATION(kv_append, kv_append)
OPERATION(paged_attention, paged_attention)
WORKSPACE(paged_attention, paged_attention)
OPERATION(embedding_forward, embedding)
OPERATION(embedding_backward, embedding)
WORKSPACE(embedding_backward, embedding)
OPERATION(cross_entropy_forward, cross_entropy)
OPERATION(cross_entropy_backward, cross_entropy)
OPERATION(cross_entropy_fused, cross_entropy)
OPERATION(cross_entropy_part, cross_entropy)
OPERATION(cross_entropy_part_backward, cross_entropy)
OPERATION(zero_ranges, zero_ranges)
OPERATION(adamw, adamw)
OPERATION(clip_factor, clip_factor)
OPERATION(grouped_gemm, grouped_gemm)
OPERATION(group_scale, group_scale)
OPERATION(grouped_norm, grouped_norm)
OPERATION(sample, sample)
WORKSPACE(sample, sample)

static const struct ops_sizes *late_sizes(struct device *device) {
    return ops_for(late_cpu(device))->sizes(late_cpu(device));
}

static bool late_gemm_supports(struct device *device, const struct gemm *gemm) {
    return ops_for(late_cpu(device))->gemm_supports(late_cpu(device), gemm);
}

static size_t late_packed_bytes(struct device *device, const struct matrix_view *plain) {
    return ops_for(late_cpu(device))->packed_bytes(late_cpu(device), plain);
}

static int64_t late_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    return ops_for(late_cpu(device))->kv_page_elements(late_cpu(device), kv_heads, head_size, type);
}

/* ---- structs for operations of ops.h with several arguments ---- */

struct pack {
    struct matrix_view plain;
    void *out;
};
static const size_t pack_pointers[] = {POINTER(pack, plain.data), POINTER(pack, out)};

struct join {
    struct cross_entropy a;
    int ranks;
    const struct cross_entropy_part *parts;
};
static const size_t join_pointers[] = {POINTER(join, a.labels), POINTER(join, a.loss), POINTER(join, a.part),
                                       POINTER(join, a.is_greedy), POINTER(join, parts)};

/* Arrays x, y and z, with their numbers of rows and columns. */
struct arrays {
    int64_t rows, cols, stride;
    enum dtype type, y_type;
    bool accumulate;
    const void *x, *z;
    void *y;
};
static const size_t arrays_pointers[] = {POINTER(arrays, x), POINTER(arrays, z), POINTER(arrays, y)};

#define QUEUE(op, type, call)                                                                                          \
    late_queue(exec, &(const struct late_work){.name = #op,                                                            \
                                               .run = run_##op,                                                        \
                                               .arguments = (call),                                                    \
                                               .bytes = sizeof *(call),                                                \
                                               .pointers = type##_pointers,                                            \
                                               .pointer_count = COUNT(type##_pointers)})

static int run_pack(const struct exec *exec, const void *arguments) {
    const struct pack *call = arguments;
    struct matrix_view packed;
    return ops_for(exec->stream->device)->pack(exec, &call->plain, call->out, &packed);
}

static int late_pack(const struct exec *exec, const struct matrix_view *plain, void *out, struct matrix_view *packed) {
    struct pack call = {.plain = *plain, .out = out};
    *packed = *plain;
    packed->form = MATRIX_PACKED;
    packed->data = out;
    return QUEUE(pack, pack, &call);
}

static int run_cross_entropy_join(const struct exec *exec, const void *arguments) {
    const struct join *call = arguments;
    return ops_for(exec->stream->device)->cross_entropy_join(exec, &call->a, call->ranks, call->parts);
}

static int late_cross_entropy_join(const struct exec *exec, const struct cross_entropy *a, int ranks,
                                   const struct cross_entropy_part *parts) {
    struct join call = {.a = *a, .ranks = ranks, .parts = parts};
    return QUEUE(cross_entropy_join, join, &call);
}

static size_t late_sum_of_squares_workspace(struct device *device, int64_t count) {
    return ops_for(late_cpu(device))->sum_of_squares_workspace(late_cpu(device), count);
}

static int run_sum_of_squares(const struct exec *exec, const void *arguments) {
    const struct arrays *call = arguments;
    return ops_for(exec->stream->device)->sum_of_squares(exec, call->cols, call->x, call->accumulate, call->y);
}

static int late_sum_of_squares(const struct exec *exec, int64_t count, const float *x, bool accumulate, double *sum) {
    struct arrays call = {.cols = count, .x = x, .accumulate = accumulate, .y = sum};
    return QUEUE(sum_of_squares, arrays, &call);
}

static int run_weighted_sum(const struct exec *exec, const void *arguments) {
    const struct arrays *call = arguments;
    return ops_for(exec->stream->device)->weighted_sum(exec, call->cols, call->x, call->z, call->accumulate, call->y);
}

static int late_weighted_sum(const struct exec *exec, int64_t count, const float *x, const float *weight,
                             bool accumulate, double *sum) {
    struct arrays call = {.cols = count, .x = x, .z = weight, .accumulate = accumulate, .y = sum};
    return QUEUE(weighted_sum, arrays, &call);
}

static int run_cast(const struct exec *exec, const void *arguments) {
    const struct arrays *call = arguments;
    return ops_for(exec->stream->device)->cast(exec, call->cols, call->type, call->x, call->y_type, call->y);
}

static int late_cast(const struct exec *exec, int64_t count, enum dtype from_type, const void *from, enum dtype to_type,
                     void *to) {
    struct arrays call = {.cols = count, .type = from_type, .x = from, .y_type = to_type, .y = to};
    return QUEUE(cast, arrays, &call);
}

static int run_add(const struct exec *exec, const void *arguments) {
    const struct arrays *call = arguments;
    return ops_for(exec->stream->device)->add(exec, call->cols, call->type, call->x, call->y);
}

static int late_add(const struct exec *exec, int64_t count, enum dtype type, const void *x, void *y) {
    struct arrays call = {.cols = count, .type = type, .x = x, .y = y};
    return QUEUE(add, arrays, &call);
}

static int run_gather_rows(const struct exec *exec, const void *arguments) {
    const struct arrays *call = arguments;
    return ops_for(exec->stream->device)
        ->gather_rows(exec, call->rows, call->cols, call->type, call->x, call->z, call->y);
}

static int late_gather_rows(const struct exec *exec, int64_t rows, int64_t cols, enum dtype type, const void *x,
                            const int32_t *index, void *out) {
    struct arrays call = {.rows = rows, .cols = cols, .type = type, .x = x, .z = index, .y = out};
    return QUEUE(gather_rows, arrays, &call);
}

const struct ops late_ops = {
    .name = "late",
    .sizes = late_sizes,
    .gemm_supports = late_gemm_supports,
    .gemm_workspace = late_gemm_workspace,
    .gemm = late_gemm,
    .packed_bytes = late_packed_bytes,
    .pack = late_pack,
    .norm_forward = late_norm_forward,
    .norm_backward_workspace = late_norm_backward_workspace,
    .norm_backward = late_norm_backward,
    .gelu_forward = late_gelu_forward,
    .gelu_backward = late_gelu_backward,
    .unit_forward = late_unit_forward,
    .unit_backward = late_unit_backward,
    .swiglu_forward = late_swiglu_forward,
    .swiglu_backward = late_swiglu_backward,
    .rotary = late_rotary,
    .column_scale_forward = late_column_scale_forward,
    .column_scale_backward_workspace = late_column_scale_backward_workspace,
    .column_scale_backward = late_column_scale_backward,
    .row_squares = late_row_squares,
    .magnitude_ratio = late_magnitude_ratio,
    .lstm_forward = late_lstm_forward,
    .lstm_backward_workspace = late_lstm_backward_workspace,
    .lstm_backward = late_lstm_backward,
    .residual_dropout_forward = late_residual_dropout_forward,
    .residual_dropout_backward = late_residual_dropout_backward,
    .attention_forward_workspace = late_attention_forward_workspace,
    .attention_forward = late_attention_forward,
    .attention_backward_workspace = late_attention_backward_workspace,
    .attention_backward = late_attention_backward,
    .kv_page_elements = late_kv_page_elements,
    .kv_append = late_kv_append,
    .paged_attention_workspace = late_paged_attention_workspace,
    .paged_attention = late_paged_attention,
    .embedding_forward = late_embedding_forward,
    .embedding_backward_workspace = late_embedding_backward_workspace,
    .embedding_backward = late_embedding_backward,
    .cross_entropy_forward = late_cross_entropy_forward,
    .cross_entropy_backward = late_cross_entropy_backward,
    .cross_entropy_fused = late_cross_entropy_fused,
    .cross_entropy_part = late_cross_entropy_part,
    .cross_entropy_join = late_cross_entropy_join,
    .cross_entropy_part_backward = late_cross_entropy_part_backward,
    .zero_ranges = late_zero_ranges,
    .adamw = late_adamw,
    .sum_of_squares_workspace = late_sum_of_squares_workspace,
    .sum_of_squares = late_sum_of_squares,
    .clip_factor = late_clip_factor,
    .weighted_sum = late_weighted_sum,
    .column_sum_workspace = late_column_sum_workspace,
    .column_sum = late_column_sum,
    .cast = late_cast,
    .add = late_add,
    .fp8_cast = late_fp8_cast,
    .fp8_scales = late_fp8_scales,
    .scale_add = late_scale_add,
    .gather_rows = late_gather_rows,
    .scatter_add_rows = late_scatter_add_rows,
    .change_ids = late_change_ids,
    .transpose = late_transpose,
    .grouped_gemm = late_grouped_gemm,
    .group_scale = late_group_scale,
    .grouped_norm = late_grouped_norm,
    .sample_workspace = late_sample_workspace,
    .sample = late_sample,
};
