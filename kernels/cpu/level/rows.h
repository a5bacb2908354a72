/* Helpers of operations over rows: the number of threads, addresses of elements, and sums over fixed blocks of rows. */
#pragma once

#include "cpu/level/level.h"
#include "cpu/level/vector_math.h"

/* Declares a function that is inlined once for each element type, so that its argument `type` is a constant. */
#define TYPED_BODY static inline __attribute__((always_inline))

/* Returns the number of threads for work on `elements` elements: one if it is done before a second one would wake up.
 */
static inline int threads_for(const struct exec *exec, int64_t elements) {
    return elements < 8192 ? 1 : exec_threads(exec);
}

/* Returns STATUS_OK for fp32 and bf16, and STATUS_UNSUPPORTED, naming the operation, for other types. */
static inline int require_activation(const char *op, enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16
               ? STATUS_OK
               : status_fail(STATUS_UNSUPPORTED, "%s: no %s activations on the cpu (fp32, bf16)", op, dtype_name(type));
}

/* ---- addresses of an element of an array of `type`, fp32 or bf16 ---- */

TYPED_BODY const void *at_const(const void *x, int64_t element, enum dtype type) {
    return (const char *)x + element * (int64_t)(type == DTYPE_F32 ? 4 : 2);
}
TYPED_BODY void *at(void *x, int64_t element, enum dtype type) {
    return (char *)x + element * (int64_t)(type == DTYPE_F32 ? 4 : 2);
}

/* An operation that threads divide by rows, or by chunks of elements. */
struct pieces {
    const char *op;
    enum dtype type;
    int64_t rows, cols; /* for chunks: elements, and 1 */
    const void *call;   /* the operation's arguments */
    void (*row)(const void *call, int64_t i);
    void (*chunk)(const void *call, int64_t first, int64_t count);
};

/* Runs a statement in which TYPE is a constant, DTYPE_F32 or DTYPE_BF16, as `type` is at run time. It may contain
 * another one. */
#define WITH_TYPE(TYPE, type, ...)                                                                                     \
    do {                                                                                                               \
        if ((type) == DTYPE_F32) {                                                                                     \
            const enum dtype TYPE = DTYPE_F32;                                                                         \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            const enum dtype TYPE = DTYPE_BF16;                                                                        \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Defines BODY_of, a function for struct pieces. It calls BODY, a TYPED_BODY, with the type of the arguments. */
#define TYPED_ROW(body, arguments)                                                                                     \
    static void body##_of(const void *call, int64_t i) {                                                               \
        const struct arguments *a = call;                                                                              \
        WITH_TYPE(T, a->type, body(a, i, T));                                                                          \
    }
#define TYPED_CHUNK(body, arguments)                                                                                   \
    static void body##_of(const void *call, int64_t first, int64_t count) {                                            \
        const struct arguments *a = call;                                                                              \
        WITH_TYPE(T, a->type, body(a, first, count, T));                                                               \
    }

/* Calls p->row for every row, on the device's threads. STATUS_UNSUPPORTED as require_activation. */
static inline int every_row(const struct exec *exec, const struct pieces *p) {
    int status = require_activation(p->op, p->type);
    if (status)
        return status;
#pragma omp parallel for num_threads(threads_for(exec, p->rows * p->cols)) schedule(static)
    for (int64_t i = 0; i < p->rows; i++)
        p->row(p->call, i);
    return STATUS_OK;
}

/* Calls p->chunk for chunks of `chunk` elements, on the device's threads. STATUS_UNSUPPORTED as require_activation. */
static inline int every_chunk(const struct exec *exec, const struct pieces *p, int64_t chunk) {
    int status = require_activation(p->op, p->type);
    if (status)
        return status;
#pragma omp parallel for num_threads(threads_for(exec, p->rows)) schedule(static)
    for (int64_t first = 0; first < p->rows; first += chunk)
        p->chunk(p->call, first, p->rows - first < chunk ? p->rows - first : chunk);
    return STATUS_OK;
}

/* ---- sums over rows ----
 *
 * Rows are summed within blocks, and then the blocks in order. The number of rows in a block depends only on the shape,
 * so that the sum does not depend on the number of threads. */
enum { ROW_BLOCKS_MAX = 64, ROW_BLOCK_MIN = 8 };

/* Returns the rows of a block. */
static inline int64_t row_block(int64_t rows) {
    int64_t share = (rows + ROW_BLOCKS_MAX - 1) / ROW_BLOCKS_MAX;
    return share > ROW_BLOCK_MIN ? share : ROW_BLOCK_MIN;
}

/* Returns the number of blocks, at most ROW_BLOCKS_MAX. */
static inline int64_t row_blocks(int64_t rows) {
    return (rows + row_block(rows) - 1) / row_block(rows);
}

/* out[j] += sum over b of partial[b * stride + j]. */
static inline void add_partials(const struct exec *exec, int64_t blocks, int64_t cols, const float *partial,
                                int64_t stride, float *out) {
    const int64_t chunk = 256;
    int64_t chunks = (cols + chunk - 1) / chunk;
#pragma omp parallel for num_threads(threads_for(exec, blocks *cols)) schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t first = c * chunk, count = cols - first < chunk ? cols - first : chunk;
        float sum[256] = {0};
        for (int64_t b = 0; b < blocks; b++) {
            const float *row = partial + b * stride + first;
#pragma omp simd
            for (int64_t j = 0; j < count; j++)
                sum[j] += row[j];
        }
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            out[first + j] += sum[j];
    }
}
