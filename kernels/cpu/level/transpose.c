/* Transposes a matrix by tiles, whose lines of x and of y stay in the first-level cache together. */
#include "cpu/level/rows.h"

enum { TILE = 32 };

/* Writes rows [first, end) of y, from columns of x. */
TYPED_BODY void turn(const struct transpose *a, int64_t first, int64_t end, enum dtype type) {
    const uint32_t *x32 = a->x;
    const uint16_t *x16 = a->x;
    uint32_t *y32 = a->y;
    uint16_t *y16 = a->y;
    for (int64_t row = 0; row < a->rows; row += TILE) {
        int64_t last = row + TILE < a->rows ? row + TILE : a->rows;
        for (int64_t j = first; j < end; j++)
            for (int64_t i = row; i < last; i++)
                if (type == DTYPE_F32)
                    y32[j * a->rows + i] = x32[i * a->cols + j];
                else
                    y16[j * a->rows + i] = x16[i * a->cols + j];
    }
}

int LEVEL(cpu_transpose)(const struct exec *exec, const struct transpose *a) {
    int status = require_activation("transpose", a->type);
    int64_t cols = status ? 0 : a->cols;
#pragma omp parallel for num_threads(threads_for(exec, a->rows *cols)) schedule(static)
    for (int64_t first = 0; first < cols; first += TILE) {
        int64_t end = first + TILE < cols ? first + TILE : cols;
        WITH_TYPE(T, a->type, turn(a, first, end, T));
    }
    return status;
}
