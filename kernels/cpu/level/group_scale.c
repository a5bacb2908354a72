/* Scales columns by a vector of each row's adapter. */
#include "cpu/level/groups.h"

struct vectors {
    float less_one[GROUP_COLS]; /* s - 1 */
    float scale[GROUP_COLS], fixed[GROUP_COLS];
};

static void widen(const void *from, int64_t first, int64_t count, enum dtype type, float *to) {
    if (type == DTYPE_F32) {
        memcpy(to, (const float *)from + first, (size_t)count * sizeof *to);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            to[j] = load(from, first + j, DTYPE_BF16);
    }
}

enum form { FORM_TIMES, FORM_FIXED, FORM_DIFFERENCE };

TYPED_BODY void scale_row(const void *x, void *y, int64_t cols, const struct vectors *v, enum form form,
                          enum dtype x_type, enum dtype y_type) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++) {
        float value = load(x, j, x_type);
        float result = form == FORM_TIMES   ? value * v->scale[j]
                       : form == FORM_FIXED ? value + (value - v->fixed[j]) * v->less_one[j]
                                            : value * v->less_one[j];
        store(y, j, y_type, result);
    }
}

TYPED_BODY void scale_form(const void *x, void *y, int64_t cols, const struct vectors *v, enum form form,
                           enum dtype x_type, enum dtype y_type) {
    if (form == FORM_TIMES)
        scale_row(x, y, cols, v, FORM_TIMES, x_type, y_type);
    else if (form == FORM_FIXED)
        scale_row(x, y, cols, v, FORM_FIXED, x_type, y_type);
    else
        scale_row(x, y, cols, v, FORM_DIFFERENCE, x_type, y_type);
}

static void run_row(const struct group_scale *a, const struct group_tile *tile, int64_t row, const struct vectors *v) {
    enum form form = a->is_difference ? FORM_DIFFERENCE : tile->entry->bias ? FORM_FIXED : FORM_TIMES;
    int64_t col = tile->entry->first_column + tile->col;
    const void *x = at_const(a->x, (row - a->x_row) * a->ldx + col, a->x_type);
    void *y = at(a->y, (row - a->y_row) * a->ldy + col, a->y_type);
    WITH_TYPE(X, a->x_type, WITH_TYPE(Y, a->y_type, scale_form(x, y, tile->cols, v, form, X, Y)));
}

static void run_tile(const void *call, const struct group_tile *tile) {
    const struct group_entry *entry = tile->entry;
    struct vectors v;
    widen(entry->data, tile->col, tile->cols, entry->type, v.scale);
    if (entry->bias)
        widen(entry->bias, tile->col, tile->cols, entry->bias_type, v.fixed);
    for (int64_t j = 0; j < tile->cols; j++)
        v.less_one[j] = v.scale[j] - 1.0f;
    for (int64_t i = 0; i < tile->rows; i++)
        run_row(call, tile, tile->row + i, &v);
}

int LEVEL(cpu_group_scale)(const struct exec *exec, const struct group_scale *a) {
    int status = require_activation("group_scale", a->x_type);
    THEN(status, require_activation("group_scale", a->y_type));
    return status ? status
                  : every_group(exec, &(struct group_work){.count = a->count,
                                                           .segments = a->segments,
                                                           .entry = a->entry,
                                                           .first_row = a->first_row,
                                                           .rows = a->rows,
                                                           .call = a,
                                                           .run = run_tile});
}
