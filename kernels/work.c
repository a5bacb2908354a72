/* The work of operations, counted from their arguments. An operation without products is one line: the tensors that it
 * reads and writes. */
#include "work.h"

#include "gemm_check.h"

static double bytes_of(enum dtype type) {
    return (double)dtype_bytes(type);
}

/* Returns the work of an operation without products that moves `each` bytes for each of rows * columns elements. */
static struct op_work moved(int64_t rows, int64_t columns, double each) {
    return (struct op_work){.shape = {rows, columns}, .bytes = (double)rows * (double)columns * each};
}

/* Returns the work of an operation without products on `tensors` tensors of rows * columns elements of one type. */
static struct op_work tensors_of(int64_t rows, int64_t columns, enum dtype type, double tensors) {
    return moved(rows, columns, tensors * bytes_of(type));
}

/* ---- products ---- */

/* Returns true if the GELU's input is stored. Plans have no pointers, so the form decides: a packed weight is for
 * inference, which does not store it. */
static bool has_aux(const struct gemm *a) {
    return a->epilogue != EPILOGUE_NONE && a->b.form != MATRIX_PACKED;
}

struct op_work gemm_work(const struct gemm *a) {
    int64_t rows = a->c.rows, columns = a->c.columns, inner = a->a_transposed ? a->a.rows : a->a.columns;
    double m = (double)rows, n = (double)columns, k = (double)inner, b = bytes_of(a->b.type);
    double c = bytes_of(a->c.type) * (a->accumulate || a->residual ? 2 : 1) + (has_aux(a) ? bytes_of(gemm_type(a)) : 0);
    double deltas = 0, delta_bytes = 0;
    for (int i = 0; i < a->delta_count; i++) {
        deltas += (double)a->delta[i].count * (double)a->delta[i].rank;
        delta_bytes += (m + (double)a->delta[i].count) * (double)a->delta[i].rank * sizeof(float);
    }
    /* A weight gradient reads no weights: its operands are activations. */
    double weights = a->a_transposed ? 0 : n * k;
    return (struct op_work){.shape = {rows, columns, inner},
                            .flops = 2 * m * (n * k + deltas),
                            .fp8_flops = a->a.form == MATRIX_FP8 ? 2 * m * n * k : 0,
                            .bytes = m * k * bytes_of(a->a.type) + n * k * b + m * n * c + delta_bytes,
                            .lasting = weights * b,
                            .weights = weights};
}

struct op_work grouped_gemm_work(const struct grouped_gemm *a) {
    return (struct op_work){.shape = {a->rows, a->count}};
}

struct op_work group_scale_work(const struct group_scale *a) {
    return (struct op_work){.shape = {a->rows, a->count}};
}

struct op_work grouped_norm_work(const struct grouped_norm *a) {
    return (struct op_work){.shape = {a->rows, a->count}};
}

/* Returns the work of `products` products of each step with the state, and of the gates, cells and outputs. */
static struct op_work lstm_work(const struct lstm *a, double products) {
    double T = (double)a->steps, H = (double)a->hidden, weights = 4 * H * H;
    return (struct op_work){.shape = {a->steps, 4 * a->hidden, a->hidden},
                            .flops = products * 2 * T * weights,
                            .bytes = (weights + T * 10 * H) * sizeof(float),
                            .lasting = weights * sizeof(float),
                            .weights = weights};
}

struct op_work lstm_forward_work(const struct lstm *a) {
    return lstm_work(a, 1);
}

struct op_work lstm_backward_work(const struct lstm *a) {
    return lstm_work(a, 1);
}

/* ---- attention ---- */

/* Returns the number of pairs of a query and a key that it sees, over all segments. */
static double seen_pairs(const struct attention *a) {
    double segments = a->segments > 0 ? (double)a->segments : 1, rows = (double)a->rows / segments;
    double window = (double)a->window, hidden = window > 0 && rows > window ? rows - window : 0;
    double within = rows * (rows + 1) / 2 - hidden * (hidden + 1) / 2;
    return segments * (within + rows * (double)a->prefix);
}

static struct op_work attention_work(const struct attention *a, double products, double tensors) {
    double q = (double)a->heads * a->head_size, kv = (double)a->kv_heads * a->head_size;
    return (struct op_work){.shape = {a->rows, a->heads, a->head_size},
                            .flops = products * 2 * seen_pairs(a) * q,
                            .bytes = tensors * (double)a->rows * (2 * q + 2 * kv) * bytes_of(a->type)};
}

struct op_work attention_forward_work(const struct attention *a) {
    return attention_work(a, 2, 1);
}

struct op_work attention_backward_work(const struct attention *a) {
    return attention_work(a, 5, 2);
}

struct op_work paged_attention_work(const struct paged_attention *a, double seen) {
    double q = (double)a->heads * a->head_size, kv = (double)a->kv_heads * a->head_size, rows = (double)a->rows;
    seen = a->window && (double)a->window < seen ? (double)a->window : seen;
    double pages = rows * seen * 2 * kv * bytes_of(a->type);
    return (struct op_work){.shape = {a->rows, a->heads, a->head_size},
                            .flops = 2 * 2 * rows * seen * q,
                            .bytes = pages + 2 * rows * q * bytes_of(a->type),
                            .lasting = pages};
}

struct op_work kv_append_work(const struct kv_append *a) {
    return tensors_of(a->rows, (int64_t)a->kv_heads * a->head_size, a->type, 4);
}

/* ---- element by element ---- */

/* Returns the bytes of the copies of a matrix in FP8. */
static double fp8_copies_bytes(int64_t rows, int64_t columns, const struct fp8_output *to) {
    return fp8_is_wanted(to) ? (double)rows * (double)columns * (to->copies == FP8_ANY ? 2 : 1) : 0;
}

static int64_t heads_of(const struct norm *a) {
    return a->heads ? a->heads : 1;
}

struct op_work norm_forward_work(const struct norm *a) {
    struct op_work work = tensors_of(a->rows, a->cols * heads_of(a), a->type, a->is_fp8_alone ? 1 : 2);
    work.weights = (double)a->cols * (a->kind == NORM_LAYER ? 2 : 1);
    work.lasting = work.weights * bytes_of(a->type);
    work.bytes += work.lasting + fp8_copies_bytes(a->rows, a->cols, &a->fp8);
    return work;
}

struct op_work norm_backward_work(const struct norm *a) {
    return tensors_of(a->rows, a->cols * heads_of(a), a->type, 4);
}

struct op_work gelu_forward_work(const struct gelu *a) {
    struct op_work work = tensors_of(a->count, 1, a->type, a->is_fp8_alone ? 1 : 2);
    work.bytes += fp8_copies_bytes(a->count, 1, &a->fp8);
    return work;
}

struct op_work gelu_backward_work(const struct gelu *a) {
    struct op_work work = tensors_of(a->count, 1, a->type, a->is_fp8_alone ? 2 : 3);
    work.bytes += fp8_copies_bytes(a->count, 1, &a->fp8);
    return work;
}

struct op_work unit_forward_work(const struct unit_call *a) {
    return tensors_of(a->count, 1, a->type, 2);
}

struct op_work unit_backward_work(const struct unit_call *a) {
    return tensors_of(a->count, 1, a->type, 3);
}

struct op_work swiglu_forward_work(const struct swiglu *a) {
    struct op_work work = tensors_of(a->rows, a->cols, a->type, a->is_fp8_alone ? 2 : 3);
    work.bytes += fp8_copies_bytes(a->rows, a->cols, &a->fp8);
    return work;
}

struct op_work swiglu_backward_work(const struct swiglu *a) {
    struct op_work work = tensors_of(a->rows, a->cols, a->type, a->is_fp8_alone ? 3 : 5);
    work.bytes += fp8_copies_bytes(a->rows, 2 * a->cols, &a->fp8);
    return work;
}

struct op_work rotary_work(const struct rotary *a) {
    return tensors_of(a->rows, (int64_t)a->heads * a->rotary, a->type, 2);
}

struct op_work column_scale_forward_work(const struct column_scale *a) {
    return tensors_of(a->rows, a->cols, a->type, a->adds ? 3 : 2);
}

struct op_work column_scale_backward_work(const struct column_scale *a) {
    return tensors_of(a->rows, a->cols, a->type, 3);
}

struct op_work row_squares_work(const struct row_squares *a) {
    double rows = (double)a->rows, cols = (double)a->weight.columns, rank = (double)a->rank,
           type = bytes_of(a->weight.type);
    return (struct op_work){.shape = {a->rows, a->weight.columns, a->rank},
                            .flops = 2 * rows * cols * rank,
                            .bytes = (rows * cols + (rows + cols) * rank) * type + rows * sizeof(float)};
}

struct op_work magnitude_ratio_work(const struct magnitude_ratio *a) {
    return moved(a->count, 1, 2 * sizeof(float) + bytes_of(a->type));
}

struct op_work residual_dropout_forward_work(const struct residual_dropout *a) {
    return tensors_of(a->rows, a->cols, a->type, 3);
}

struct op_work residual_dropout_backward_work(const struct residual_dropout *a) {
    return tensors_of(a->rows, a->cols, a->type, 2);
}

struct op_work scale_add_work(const struct scale_add *a) {
    return tensors_of(a->rows, a->cols, a->type, a->accumulate ? 3 : 2);
}

struct op_work cast_work(int64_t count, enum dtype from_type, const void *from, enum dtype to_type, void *to) {
    (void)from, (void)to;
    return moved(count, 1, bytes_of(from_type) + bytes_of(to_type));
}

struct op_work add_work(int64_t count, enum dtype type, const void *x, void *y) {
    (void)x, (void)y;
    return tensors_of(count, 1, type, 3);
}

struct op_work fp8_cast_work(const struct fp8_cast *a) {
    struct op_work work = tensors_of(a->rows, a->cols, DTYPE_BF16, 1);
    work.bytes += fp8_copies_bytes(a->rows, a->cols, &a->to);
    return work;
}

struct op_work fp8_scales_work(const struct fp8_scales *a) {
    return moved(a->count, a->length, sizeof(float));
}

/* ---- rows ---- */

struct op_work embedding_forward_work(const struct embedding *a) {
    return tensors_of(a->rows, a->cols, a->type, 3);
}

struct op_work embedding_backward_work(const struct embedding *a) {
    return moved(a->rows, a->cols, 4 * sizeof(float) + bytes_of(a->type));
}

struct op_work gather_rows_work(int64_t rows, int64_t cols, enum dtype type, const void *x, const int32_t *index,
                                void *out) {
    (void)x, (void)index, (void)out;
    return tensors_of(rows, cols, type, 2);
}

struct op_work scatter_add_rows_work(const struct scatter_add_rows *a) {
    return moved(a->rows, a->cols, bytes_of(a->x_type) + 2 * bytes_of(a->y_type));
}

struct op_work change_ids_work(const struct change_ids *a) {
    return moved(a->count, 1, sizeof *a->changes + sizeof *a->table);
}

struct op_work transpose_work(const struct transpose *a) {
    return tensors_of(a->rows, a->cols, a->type, 2);
}

/* ---- losses, sums and draws ---- */

struct op_work cross_entropy_forward_work(const struct cross_entropy *a) {
    return tensors_of(a->rows, a->vocab, a->type, 1);
}

struct op_work cross_entropy_fused_work(const struct cross_entropy *a) {
    return tensors_of(a->rows, a->vocab, a->type, 2);
}

struct op_work cross_entropy_part_work(const struct cross_entropy *a) {
    return tensors_of(a->rows, a->vocab, a->type, 1);
}

struct op_work cross_entropy_join_work(const struct cross_entropy *a, int ranks,
                                       const struct cross_entropy_part *parts) {
    return moved(a->rows, ranks, sizeof *parts);
}

struct op_work cross_entropy_part_backward_work(const struct cross_entropy *a) {
    return tensors_of(a->rows, a->vocab, a->type, 2);
}

struct op_work weighted_sum_work(int64_t count, const float *x, const float *weight, bool accumulate, double *sum) {
    (void)x, (void)weight, (void)accumulate, (void)sum;
    return tensors_of(count, 1, DTYPE_F32, 2);
}

struct op_work column_sum_work(const struct column_sum *a) {
    return tensors_of(a->rows, a->cols, a->type, 1);
}

struct op_work sample_work(const struct sample *a) {
    return tensors_of(a->rows, a->vocab, a->type, 1);
}

/* ---- parameters ---- */

struct op_work zero_ranges_work(int64_t elements) {
    return moved(elements, 1, sizeof(float));
}

/* It reads the master, both moments and the gradient. It writes the master, both moments and a working copy. */
struct op_work adamw_work(int64_t elements, enum dtype weights_type) {
    double copy = weights_type == DTYPE_F32 ? 0 : bytes_of(weights_type);
    return moved(elements, 1, 7 * sizeof(float) + copy);
}

struct op_work sum_of_squares_work(int64_t count, const float *x, bool accumulate, double *sum) {
    (void)x, (void)accumulate, (void)sum;
    return tensors_of(count, 1, DTYPE_F32, 1);
}

struct op_work clip_factor_work(const struct clip_factor *a) {
    return (struct op_work){.bytes = sizeof *a->sum_of_squares + sizeof *a->norm + sizeof *a->factor};
}
