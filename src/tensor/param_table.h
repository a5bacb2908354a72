/* The parameter table: a model describes each parameter once, as a row.
 *
 * A row has the global shape, the slices of files that the parameter comes from, its placement on the rank grid, its
 * initialisation, its weight decay, and whether it trains. Allocation, sharding, initialisation, the optimizer,
 * gradient sync and checkpoints are driven by that table. The parameters of adapters are more rows of the same kind. */
#pragma once

#include "base/base.h"

enum { PARAM_NAME_BYTES = 96, PARAM_MAX_SLICES = 4, PARAM_NONE = -1, PARAM_REASON_BYTES = 128 };

/* Initial values. PARAM_INIT_UNIFORM: between -init_std and init_std. */
enum param_init { PARAM_INIT_NORMAL, PARAM_INIT_ZERO, PARAM_INIT_ONE, PARAM_INIT_UNIFORM };

/* The axis of a parameter that is cut over the tensor-parallel ranks. */
enum param_shard { PARAM_REPLICATED, PARAM_SHARD_AXIS0, PARAM_SHARD_AXIS1 };

/* The source of rows [row, row + rows) of a parameter (all columns) in model files: the tensor `name`, from
 * `file_start` on along its matching axis. It is transposed if the file holds [columns, rows] (GPT-2's Conv1D). A fused
 * weight has several slices. Each is cut over the ranks by itself (q, k and v each by heads). */
struct param_slice {
    char name[PARAM_NAME_BYTES]; /* Hugging Face's name, without the prefix in struct param_files */
    int64_t row, rows;
    int64_t file_start;
    int64_t file_rows; /* the size of the file's tensor along that axis */
    bool is_transposed;
    int64_t most_parts; /* the maximum number of parts to cut it into; more tensor ranks than that share parts. 0: any
                           number */
};

struct param {
    char name[PARAM_NAME_BYTES]; /* Cambium's stable name: "layers.3.attention.qkv.weight"; keys the initialisation */
    int dims;                    /* 1 or 2; matrices are [out, in], embeddings [entries, hidden] */
    int64_t shape[2];            /* global; shape[1] is 1 if dims is 1 */
    enum param_shard shard;
    enum param_init init;
    float init_std;
    bool decays; /* has weight decay: matrices and embeddings, not biases and norms */
    bool is_trainable;
    bool is_zero;          /* only the files have it, as zeros; the model does not */
    bool is_linear;        /* the weight of a linear, which is packed for inference */
    bool sums_over_tensor; /* each tensor rank has a copy of it, and computes a part of its gradient */
    bool is_embedding;     /* rows are gathered by id (of a tied head, too) */
    float lr_factor;       /* multiplies the learning rate; 0: 1 */
    int layer;             /* -1: before the layers, num_layers: after them */
    int place;             /* the linear of a layer that it is the weight or bias of (enum attach_place); 0: none */
    int slice_count;
    struct param_slice slices[PARAM_MAX_SLICES];
};

struct param_table;

/* Facts about all files of a model, which slices do not have. */
struct param_files {
    const char *prefix;         /* before each name except the head's; files that are read may lack it */
    const char *head;           /* the head's tensor; a table without it ties the head to the embedding */
    const char *embedding;      /* the embedding's tensor; if tied, files may have it under either name */
    const char *const *buffers; /* endings of names that are no parameters, which are ignored; NULL-terminated */
    /* Returns true if a tensor without a row is a parameter of a model, and files with it must be refused. `reason`
     * continues "tensor NAME ...". NULL: there are no such tensors. */
    bool (*claims)(const struct param_table *table, const char *name, char reason[PARAM_REASON_BYTES]);
};

struct param_table {
    struct param *rows;
    int count, capacity;
    const struct param_files *files; /* NULL for an adapter, whose slices have whole names */
};

/* Frees the rows; a zeroed table is allowed. */
void param_table_free(struct param_table *table);
/* Adds a copy of the row. Returns its index, which is the parameter's id; or STATUS_MEMORY. */
int param_table_add(struct param_table *table, const struct param *row);
/* Returns the id of a name, or PARAM_NONE. The search starts at row `near` and wraps around, so it is fast for a caller
 * that knows roughly where the row is; any number will do. */
int param_table_find(const struct param_table *table, const char *name, int near);
/* Returns the elements of the whole parameter. */
static inline int64_t param_elements(const struct param *row) {
    return row->shape[0] * row->shape[1];
}
/* Returns the elements of all rows, or of the trainable ones. */
int64_t param_table_elements(const struct param_table *table, bool only_trainable);
/* Writes the initial values, in fp32, of elements [first, first + count) of a parameter to host memory. They are keyed
 * by (seed, name, element), so they are the same under every layout. */
void param_initial_values(const struct param *row, uint64_t seed, int64_t first, int64_t count, float *out);
