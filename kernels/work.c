/* The work of operations, counted from their arguments: what ops.h says in a row of the list, and the functions of
 * operations with products. */
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

/* Returns the bytes of the copies of a matrix in FP8. */
static double fp8_copies_bytes(int64_t rows, int64_t columns, const struct fp8_output *to) {
    return fp8_is_wanted(to) ? (double)rows * (double)columns * (to->copies == FP8_ANY ? 2 : 1) : 0;
}

/* Returns the work of an operation on such tensors, whose last one is written in FP8 as well where that is wanted. Its
 * rows then have `fp8_columns` columns. */
static struct op_work tensors_with_fp8(int64_t rows, int64_t columns, enum dtype type, double tensors,
                                       const struct fp8_output *to, int64_t fp8_columns) {
    struct op_work work = tensors_of(rows, columns, type, tensors);
    work.bytes += fp8_copies_bytes(rows, fp8_columns, to);
    return work;
}

#define COUNT_COUNTED ;
#define COUNT_MOVED(...)                                                                                               \
    { return moved(__VA_ARGS__); }
#define COUNT_TENSORS(...)                                                                                             \
    { return tensors_of(__VA_ARGS__); }
#define COUNT_WITH_FP8(...)                                                                                            \
    { return tensors_with_fp8(__VA_ARGS__); }
#define COUNT(op, type, workspace, presence, cost, work) struct op_work op##_work(const struct type *a) COUNT_##work
OPS(COUNT)

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
    /* A weight gradient reads no weights: its operands are activations. */
    double weights = a->a_transposed ? 0 : n * k;
    return (struct op_work){.shape = {rows, columns, inner},
                            .flops = 2 * m * n * k,
                            .fp8_flops = a->a.form == MATRIX_FP8 ? 2 * m * n * k : 0,
                            .bytes = m * k * bytes_of(a->a.type) + n * k * b + m * n * c,
                            .lasting = weights * b,
                            .weights = weights};
}

/* The product of each step with the state, and the gates, cells and outputs. */
struct op_work lstm_forward_work(const struct lstm *a) {
    double T = (double)a->steps, H = (double)a->hidden, weights = 4 * H * H;
    return (struct op_work){.shape = {a->steps, 4 * a->hidden, a->hidden},
                            .flops = 2 * T * weights,
                            .bytes = (weights + T * 10 * H) * sizeof(float),
                            .lasting = weights * sizeof(float),
                            .weights = weights};
}

struct op_work lstm_backward_work(const struct lstm *a) {
    return lstm_forward_work(a);
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

struct op_work paged_attention_work(const struct paged_attention *a) {
    double q = (double)a->heads * a->head_size, kv = (double)a->kv_heads * a->head_size, rows = (double)a->rows;
    double seen = a->window && (double)a->window < a->seen ? (double)a->window : a->seen;
    double pages = rows * seen * 2 * kv * bytes_of(a->type);
    return (struct op_work){.shape = {a->rows, a->heads, a->head_size},
                            .flops = 2 * 2 * rows * seen * q,
                            .bytes = pages + 2 * rows * q * bytes_of(a->type),
                            .lasting = pages};
}

/* ---- element by element ---- */

struct op_work norm_forward_work(const struct norm *a) {
    struct op_work work = tensors_of(a->rows, a->cols * heads_of_norm(a), a->type, a->is_fp8_alone ? 1 : 2);
    work.weights = (double)a->cols * (a->kind == NORM_LAYER ? 2 : 1);
    work.lasting = work.weights * bytes_of(a->type);
    work.bytes += work.lasting + fp8_copies_bytes(a->rows, a->cols, &a->fp8);
    return work;
}

struct op_work row_squares_work(const struct row_squares *a) {
    double rows = (double)a->rows, cols = (double)a->weight.columns, rank = (double)a->rank,
           type = bytes_of(a->weight.type);
    return (struct op_work){.shape = {a->rows, a->weight.columns, a->rank},
                            .flops = 2 * rows * cols * rank,
                            .bytes = (rows * cols + (rows + cols) * rank) * type + rows * sizeof(float)};
}

struct op_work clip_factor_work(const struct clip_factor *a) {
    return (struct op_work){.bytes = sizeof *a->sum_of_squares + sizeof *a->norm + sizeof *a->factor};
}
