/* Embedding: forward gathers and adds rows of the tables, backward scatters. Backward divides the columns among the
 * threads, so that one thread sums each element of a table, in row order. Only rows that occur are touched. */
#include "cpu/level/gemm_level.h"
#include "cpu/level/rows.h"

/* Writes a row of a packed table. */
TYPED_BODY void read_row(const struct matrix_view *table, int64_t row, void *x, enum dtype type) {
    enum { COLS = 256 };
    for (int64_t first = 0; first < table->columns; first += COLS) {
        float value[COLS];
        int64_t count = table->columns - first < COLS ? table->columns - first : COLS;
        LEVEL(packed_read)(table, &(const struct read_block){row, 1, first, count, value, COLS});
        for (int64_t j = 0; j < count; j++)
            store(x, first + j, type, value[j]);
    }
}

/* Returns the row of token i, or NULL if another rank has it. One of a packed table is written to x. */
TYPED_BODY const void *token_row(const struct embedding *a, int64_t i, void *x, enum dtype type) {
    if (a->virtual_tokens && a->tokens[i] >= a->first_virtual) {
        int64_t row = a->tokens[i] - a->first_virtual;
        bool is_there = a->virtual_table && row < a->virtual_tokens;
        return is_there ? at_const(a->virtual_table, row * a->cols, type) : NULL;
    }
    int64_t entry = a->tokens[i] - a->first_token;
    bool is_here = !a->token_count || (entry >= 0 && entry < a->token_count);
    if (is_here && a->token_table.form == MATRIX_PACKED) {
        read_row(&a->token_table, entry, x, type);
        return x;
    }
    return is_here ? at_const(a->token_table.data, entry * a->cols, type) : NULL;
}

TYPED_BODY void gather_row(const struct embedding *a, int64_t i, enum dtype type) {
    int64_t cols = a->cols;
    void *x = at(a->x, i * cols, type);
    const void *token = token_row(a, i, x, type);
    if (!token) {
        memset(x, 0, (size_t)cols * dtype_bytes(type));
    } else if (a->position_table) {
        const void *position = at_const(a->position_table, a->positions[i] * cols, type);
#pragma omp simd
        for (int64_t j = 0; j < cols; j++)
            store(x, j, type, load(token, j, type) + load(position, j, type));
    } else if (token != x) {
        memcpy(x, token, (size_t)cols * dtype_bytes(type));
    }
}

TYPED_ROW(gather_row, embedding)

int LEVEL(cpu_embedding_forward)(const struct exec *exec, const struct embedding *a) {
    return every_row(exec, &(struct pieces){"embedding_forward", a->type, a->rows, a->cols, a, .row = gather_row_of});
}

size_t LEVEL(cpu_embedding_backward_workspace)(struct device *device, const struct embedding *a) {
    return 0;
}

/* A table that gradients are added to: rows of dx go to entries index[i] - first_entry. */
struct scatter {
    const int32_t *index;
    float *table;
    int64_t first_entry, entries; /* entries 0: every index that occurs is in the table */
};

TYPED_BODY void scatter_columns(const struct embedding *a, const struct scatter *s, int64_t first, int64_t count,
                                enum dtype type) {
    enum { AHEAD = 4 }; /* rows from the current one to the one whose first lines are prefetched */
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t entry = s->index[i] - s->first_entry;
        if (i + AHEAD < a->rows)
            for (int64_t j = 0; j < count; j += 64)
                __builtin_prefetch(s->table + (s->index[i + AHEAD] - s->first_entry) * a->cols + first + j, 1);
        if (s->entries && (entry < 0 || entry >= s->entries))
            continue;
        float *to = s->table + entry * a->cols + first;
        const void *dx = at_const(a->dx, i * a->cols + first, type);
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            to[j] += load(dx, j, type);
    }
}

enum { SCATTERS = 3 };

static void list_scatters(const struct embedding *a, struct scatter tables[SCATTERS]) {
    int64_t tokens = a->token_count || !a->virtual_tokens ? a->token_count : a->first_virtual;
    float *virtual_table = a->virtual_tokens ? a->dvirtual_table : NULL;
    tables[0] = (struct scatter){a->tokens, a->dtoken_table, a->first_token, tokens};
    tables[1] = (struct scatter){a->positions, a->dposition_table, 0, 0};
    tables[2] = (struct scatter){a->tokens, virtual_table, a->first_virtual, a->virtual_tokens};
}

int LEVEL(cpu_embedding_backward)(const struct exec *exec, const struct embedding *a) {
    TRY(require_activation("embedding_backward", a->type));
    int threads = threads_for(exec, a->rows * a->cols);
    /* A share is whole cache lines of the tables (16 floats), so that no two threads share one. */
    int64_t lines = (a->cols + 15) / 16, share = (lines + threads - 1) / threads * 16;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < a->cols; first += share) {
        int64_t count = a->cols - first < share ? a->cols - first : share;
        struct scatter tables[SCATTERS];
        list_scatters(a, tables);
        for (int t = 0; t < SCATTERS; t++) {
            if (!tables[t].table)
                continue;
            WITH_TYPE(T, a->type, scatter_columns(a, &tables[t], first, count, T));
        }
    }
    return STATUS_OK;
}
