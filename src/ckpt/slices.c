/* The geometry between a parameter and the tensors of files that its slices name, and the transposition between them.
 */
#include "ckpt-internal.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 32, SHORTEST_RUN = 1024 /* elements in a row of a transposed tensor that one read or write is worth */ };

int slice_file_shape(const struct param *param, const struct param_slice *slice, int64_t shape[2]) {
    shape[0] = slice->is_transposed ? param->shape[1] : slice->file_rows;
    shape[1] = slice->is_transposed ? slice->file_rows : param->shape[1];
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

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
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

/* A tile goes through a small buffer, so that each cache line of either side is touched once: at a stride of some 4 KiB
 * the lines of a tile would push each other out. Bits are moved, never numbers, so that a NaN arrives as it left. */
#define DEFINE_TRANSPOSE(name, type)                                                                                   \
    static void name(const type *in, int64_t rows, int64_t columns, type *out, int64_t stride) {                       \
        type tile[TILE][TILE + 1];                                                                                     \
        for (int64_t r0 = 0; r0 < rows; r0 += TILE)                                                                    \
            for (int64_t c0 = 0; c0 < columns; c0 += TILE) {                                                           \
                int64_t height = smaller(TILE, rows - r0), width = smaller(TILE, columns - c0);                        \
                for (int64_t r = 0; r < height; r++)                                                                   \
                    for (int64_t c = 0; c < width; c++)                                                                \
                        tile[c][r] = in[(r0 + r) * columns + c0 + c];                                                  \
                for (int64_t c = 0; c < width; c++)                                                                    \
                    memcpy(out + (c0 + c) * stride + r0, tile[c], (size_t)height * sizeof(type));                      \
            }                                                                                                          \
    }
DEFINE_TRANSPOSE(transpose_2_bytes, uint16_t)
DEFINE_TRANSPOSE(transpose_4_bytes, uint32_t)

void transpose(const void *in, int64_t rows, int64_t columns, size_t element_bytes, void *out, int64_t stride) {
    if (element_bytes == 2)
        transpose_2_bytes(in, rows, columns, out, stride);
    else
        transpose_4_bytes(in, rows, columns, out, stride);
}
