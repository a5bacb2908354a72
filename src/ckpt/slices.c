/* The geometry between a parameter and the tensors of files that its slices name, and the transposition between
 * them. */
#include "ckpt-internal.h"

#include "base/smaller.h"

enum { SHORTEST_RUN = 1024 /* elements in a row of a transposed tensor that one read or write is worth */ };

void shape_text(char *out, size_t bytes, int dims, const int64_t *shape) {
    size_t n = (size_t)snprintf(out, bytes, "[");
    for (int i = 0; i < dims && n < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < bytes)
        snprintf(out + n, bytes - n, "]");
}

int slice_file_shape(const struct param *param, const struct param_slice *slice, bool is_transposed, int64_t shape[2]) {
    shape[0] = is_transposed ? param->shape[1] : slice->file_rows;
    shape[1] = is_transposed ? slice->file_rows : param->shape[1];
    return param->dims;
}

int slices_check(const struct param *param) {
    int64_t row = 0;
    for (int i = 0; i < param->slice_count; i++) {
        const struct param_slice *slice = &param->slices[i];
        if (slice->row != row || slice->rows < 0 || slice->file_start < 0 ||
            slice->rows > slice->file_rows - slice->file_start || (slice->is_transposed && param->dims != 2))
            return status_fail(STATUS_INVALID, "parameter %s: slice %d does not fit", param->name, i);
        row += slice->rows;
    }
    if (row != param->shape[0])
        return status_fail(STATUS_INVALID, "parameter %s: slices cover %lld of %lld rows", param->name, (long long)row,
                           (long long)param->shape[0]);
    return STATUS_OK;
}

bool slice_cut(const struct param_slice *slice, const struct ckpt_block *block, struct ckpt_block *part) {
    int64_t end = block->row + block->rows, slice_end = slice->row + slice->rows;
    *part = *block;
    part->row = block->row > slice->row ? block->row : slice->row;
    part->rows = (end < slice_end ? end : slice_end) - part->row;
    return part->rows > 0;
}

int slice_rects(const struct ckpt_array *array, const struct param *param, const struct param_slice *slice, int index,
                struct ckpt_block rects[CKPT_MAX_RECTS]) {
    struct ckpt_block all[CKPT_MAX_RECTS] = {{.param = index, .rows = param->shape[0], .columns = param->shape[1]}};
    int count = array->rects ? array->rects(array->context, index, all) : 1, kept = 0;
    for (int i = 0; i < count; i++)
        kept += slice_cut(slice, &all[i], &rects[kept]);
    return kept;
}

bool slice_next_block(const struct param_slice *slice, const struct ckpt_block *rect, struct ckpt_block *block) {
    int64_t limit = CKPT_BLOCK_ELEMENTS, rows, columns;
    if (rect->columns <= 0 || rect->rows <= 0)
        return false;
    if (slice->is_transposed) { /* rows of the block are the runs in the file */
        rows = limit / rect->columns > SHORTEST_RUN ? limit / rect->columns : SHORTEST_RUN;
        rows = smaller(rows, rect->rows);
        columns = smaller(rect->columns, limit / rows);
    } else {
        columns = smaller(rect->columns, limit);
        rows = smaller(limit / columns, rect->rows);
    }
    if (block->rows == 0) {
        *block = (struct ckpt_block){.param = rect->param, .row = rect->row, .column = rect->column};
    } else {
        block->column += block->columns;
        if (block->column == rect->column + rect->columns) {
            block->column = rect->column;
            block->row += block->rows;
        }
        if (block->row == rect->row + rect->rows)
            return false;
    }
    block->rows = smaller(rows, rect->row + rect->rows - block->row);
    block->columns = smaller(columns, rect->column + rect->columns - block->column);
    return true;
}

/* Squares of one vector's width go through registers: 11 GB/s on two Zen 5 cores where the memory gives 20, and plain
 * loops 4. It moves bits, not numbers, so a NaN keeps its bits. */
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint16_t halves __attribute__((vector_size(16)));

/* The lower, or upper, halves of two vectors, taken in turn. */
#define LOW_4(a, b)  __builtin_shuffle(a, b, (words){0, 4, 1, 5})
#define HIGH_4(a, b) __builtin_shuffle(a, b, (words){2, 6, 3, 7})
#define LOW_8(a, b)  __builtin_shuffle(a, b, (halves){0, 8, 1, 9, 2, 10, 3, 11})
#define HIGH_8(a, b) __builtin_shuffle(a, b, (halves){4, 12, 5, 13, 6, 14, 7, 15})

static inline void square_4_bytes(const uint32_t *in, int64_t in_stride, uint32_t *out, int64_t stride) {
    words a[4], b[4];
    for (int i = 0; i < 4; i++)
        memcpy(&a[i], in + i * in_stride, sizeof *a);
    for (int i = 0; i < 2; i++) {
        b[2 * i] = LOW_4(a[i], a[i + 2]);
        b[2 * i + 1] = HIGH_4(a[i], a[i + 2]);
    }
    for (int i = 0; i < 2; i++) {
        a[2 * i] = LOW_4(b[i], b[i + 2]);
        a[2 * i + 1] = HIGH_4(b[i], b[i + 2]);
    }
    for (int i = 0; i < 4; i++)
        memcpy(out + i * stride, &a[i], sizeof *a);
}

static inline void square_2_bytes(const uint16_t *in, int64_t in_stride, uint16_t *out, int64_t stride) {
    halves a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], in + i * in_stride, sizeof *a);
    for (int round = 0; round < 3; round++) { /* a perfect shuffle of the rows, three times */
        for (int i = 0; i < 4; i++) {
            b[2 * i] = LOW_8(a[i], a[i + 4]);
            b[2 * i + 1] = HIGH_8(a[i], a[i + 4]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 8; i++)
        memcpy(out + i * stride, &a[i], sizeof *a);
}

#define DEFINE_TRANSPOSE(name, square, side, type)                                                                     \
    static void name(const type *in, int64_t rows, int64_t columns, type *out, int64_t stride) {                       \
        int64_t row_end = rows / (side) * (side), column_end = columns / (side) * (side);                              \
        for (int64_t c = 0; c < column_end; c += (side))                                                               \
            for (int64_t r = 0; r < row_end; r += (side))                                                              \
                square(in + r * columns + c, columns, out + c * stride + r, stride);                                   \
        for (int64_t c = 0; c < columns; c++)                                                                          \
            for (int64_t r = c < column_end ? row_end : 0; r < rows; r++)                                              \
                out[c * stride + r] = in[r * columns + c];                                                             \
    }
DEFINE_TRANSPOSE(transpose_2_bytes, square_2_bytes, 8, uint16_t)
DEFINE_TRANSPOSE(transpose_4_bytes, square_4_bytes, 4, uint32_t)

void transpose(const void *in, int64_t rows, int64_t columns, size_t element_bytes, void *out, int64_t stride) {
    if (element_bytes == 2)
        transpose_2_bytes(in, rows, columns, out, stride);
    else
        transpose_4_bytes(in, rows, columns, out, stride);
}
