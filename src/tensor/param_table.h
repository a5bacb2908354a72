/* The parameter table: a model describes each parameter once, as a row.
 *
 * A row has the global shape, the slices of files that the parameter comes from, its placement on the rank grid, its
 * initialisation, its weight decay, and whether it trains. Allocation, sharding, initialisation, the optimizer,
 * gradient sync and checkpoints are driven by that table. Adapters are more rows of the same kind. */
#ifndef CAMBIUM_TENSOR_PARAM_TABLE_H
#define CAMBIUM_TENSOR_PARAM_TABLE_H

#include "base/base.h"

#include <stdbool.h>
#include <stdint.h>

enum { PARAM_NAME_BYTES = 96, PARAM_MAX_SLICES = 4, PARAM_NONE = -1, PARAM_REASON_BYTES = 128 };

/* UNIFORM: between -init_std and init_std. */
enum param_init { PARAM_INIT_NORMAL, PARAM_INIT_ZERO, PARAM_INIT_ONE, PARAM_INIT_UNIFORM };

/* Which axis of the parameter is cut over the tensor-parallel ranks. */
enum param_shard { PARAM_REPLICATED, PARAM_SHARD_AXIS0, PARAM_SHARD_AXIS1 };

/* The place of rows [row, row + rows) of a parameter (all columns) in model files: the tensor `name`, from `file_start`
 * on along its matching axis. It is transposed when the file holds [columns, rows] (GPT-2's Conv1D). A fused weight has
 * several slices; each is cut over the ranks by itself (q, k and v each by heads). */
struct param_slice {
    char name[PARAM_NAME_BYTES]; /* Hugging Face's, without the prefix of struct param_files */
    int64_t row, rows;
    int64_t file_start;
    int64_t file_rows; /* the size of the file's tensor along that axis */
    bool is_transposed;
    int64_t most_parts; /* into which it can be cut; of more tensor ranks neighbours hold the same one. 0: any number */
};

struct param {
    char name[PARAM_NAME_BYTES]; /* ours, stable: "layers.3.attention.qkv.weight"; seeds the initialisation */
    int dims;                    /* 1 or 2; matrices are [out, in], embeddings [entries, hidden] */
    int64_t shape[2];            /* global; shape[1] is 1 when dims is 1 */
    enum param_shard shard;
    enum param_init init;
    float init_std;
    bool decays; /* weight decay: matrices and embeddings do, biases and norms do not */
    bool is_trainable;
    bool is_zero;          /* the model has none, but its files do: zeros */
    bool is_linear;        /* the weight of a linear: packed for inference */
    bool sums_over_tensor; /* each tensor rank makes a part of its gradient, as each has a copy of it */
    bool is_embedding;     /* rows are gathered by id: also kept plain when packed (a tied head is both) */
    float lr_factor;       /* of the learning rate; 0: 1 */
    int layer;             /* -1: before the layers, num_layers: after them */
    int place;             /* of a linear of a layer, weight and bias: which one (enum attach_place); 0: of none */
    int slice_count;
    struct param_slice slices[PARAM_MAX_SLICES];
};

struct param_table;

/* How the files of a model are, beside what each slice says. */
struct param_files {
    const char *prefix;         /* before each name but the head's; files that are read may lack it */
    const char *head;           /* the head's tensor: a table without it is of a model that ties it to the embedding, */
    const char *embedding;      /* whose tensor may stand under either name */
    const char *const *buffers; /* ends of names that are no parameters, NULL at the end: passed over in silence */
    /* True when a tensor that no row has is a model's parameter all the same; `reason` continues "tensor NAME ...".
     * Files that have one are refused. NULL: there are none. */
    bool (*claims)(const struct param_table *table, const char *name, char reason[PARAM_REASON_BYTES]);
};

struct param_table {
    struct param *rows;
    int count, capacity;
    const struct param_files *files; /* NULL: of an adapter, whose slices' names are all there is */
};

void param_table_free(struct param_table *table);
/* Adds a row and returns its index (the parameter's id), or a negative status. */
int param_table_add(struct param_table *table, const struct param *row);
/* The id of a name, PARAM_NONE when absent. The search goes round from row `near` (0 will do) on: one that knows about
 * where the row stands finds it at once. */
int param_table_find(const struct param_table *table, const char *name, int near);
static inline int64_t param_elements(const struct param *row) {
    return row->shape[0] * row->shape[1];
}
/* Sum over the rows; trainable ones only when asked. */
int64_t param_table_elements(const struct param_table *table, bool only_trainable);
/* Initial values of fp32 elements [first, first + count) of a parameter, keyed by (seed, name, element): the same under
 * every layout. Host memory. */
void param_initial_values(const struct param *row, uint64_t seed, int64_t first, int64_t count, float *out);

#endif
