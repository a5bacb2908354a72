/* Views of typed data and the parameter table.
 *
 * The model describes each parameter once, as a row: global shape, the slices of files that it comes from, its
 * placement on the rank grid, initialisation, weight decay, whether it trains. Allocation, sharding, initialisation,
 * the optimizer, gradient sync and checkpoints are driven by that table. Adapters are more rows of the same kind.
 *
 * A param_store holds the values of one table on one device: working weights (fp32 or bf16, plain or packed) and fp32
 * gradients. A layer borrows a weight for one call and gives it back; nobody keeps a pointer to one. The flat arrays
 * are for those alone who go through the whole store: the optimizer, sums over ranks, files. */
#ifndef CAMBIUM_TENSOR_TENSOR_H
#define CAMBIUM_TENSOR_TENSOR_H

#include "base/base.h"
#include "kernels/device.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum { PARAM_NAME_BYTES = 96, PARAM_MAX_SLICES = 4, PARAM_NONE = -1, PARAM_REASON_BYTES = 128 };

/* UNIFORM: between -init_std and init_std. */
enum param_init { PARAM_INIT_NORMAL, PARAM_INIT_ZERO, PARAM_INIT_ONE, PARAM_INIT_UNIFORM };

/* Which axis of the parameter is cut over the tensor-parallel ranks. */
enum param_shard { PARAM_REPLICATED, PARAM_SHARD_AXIS0, PARAM_SHARD_AXIS1 };

/* Where rows [row, row + rows) of a parameter (all columns) stand in model files: the tensor `name`, from `file_start`
 * on along its matching axis; `is_transposed` when the file holds [columns, rows] (GPT-2's Conv1D). A fused weight has
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

/* ---- the part of one rank: param_part.c ---- */

/* What one rank holds of a table: its share of every parameter that is cut over the tensor ranks (the slices of a fused
 * weight each by themselves), all of the others; and of the pipeline only the parameters of its stage. */
struct param_part {
    int tensor, tensors; /* the number of this tensor rank, and of all */
    const bool *is_held; /* [table count] of this stage; NULL: every parameter */
    const bool *is_copy; /* [table count] of which another stage has the original (tied embeddings); NULL: none */
};
static inline bool param_part_is_copy(const struct param_part *part, int id) {
    return part->is_copy && part->is_copy[id];
}

/* A rectangle of a parameter that a part holds: rows [row, row + rows) and columns [column, column + columns) of the
 * whole parameter, which are rows [local_row, local_row + rows) and all columns of the part. */
struct param_rect {
    int64_t row, rows, column, columns, local_row;
    bool is_shared; /* the next tensor ranks, or those before, hold it as well: each makes a part of its gradient */
    bool is_second; /* of these this rank is not the first, which counts it and writes it */
};

/* Where share `index` of `count` begins in `total`: shares differ by one at most when `count` does not divide. */
static inline int64_t param_share(int64_t total, int index, int count) {
    return total * index / count;
}
/* The rectangles that a rank holds of parameter `id`: their number, 0 when the stage does not hold it. */
int param_part_rects(const struct param_part *part, const struct param_table *table, int id,
                     struct param_rect rects[PARAM_MAX_SLICES]);
/* What they come to: the shape of the parameter on this rank; {0, 0} when it is not held. */
void param_part_shape(const struct param_part *part, const struct param_table *table, int id, int64_t shape[2]);

/* ---- the values: param_store.c ---- */

/* The values of a part of a table on one device. Elements of parameter i start at element offset[i] of each flat array;
 * every start is aligned to 64 bytes, gaps hold zeros. First come the parameters that are cut over the tensor ranks,
 * then those of which every tensor rank has a copy. */
struct param_store {
    const struct param_table *table;
    struct param_part part;
    struct device *device;
    const struct ops *ops;
    enum dtype dtype; /* of the working weights */
    bool has_gradients;
    bool will_pack;           /* views of linears are packed ones already while planning */
    int64_t *offset;          /* [count] elements */
    int64_t (*shape)[2];      /* [count] of the part */
    int64_t sharded_elements; /* where the copies begin */
    int64_t flat_elements;    /* length of the flat arrays, gaps included */
    void *weights;            /* [flat_elements] of dtype; NULL where they are packed */
    float *gradients;         /* [flat_elements]; NULL where nothing trains */
    struct weight_view
        *views;   /* where packed: [count] plain views, then [count] packed ones; data NULL where there is none */
    void *packed; /* their memory */
    size_t packed_bytes;
    struct param_loans *loans; /* that are open, where the build counts them */
};

/* How a store is opened. */
struct param_store_options {
    const struct param_table *table;
    const struct param_part *part; /* NULL: all of it */
    struct device *device;
    enum dtype dtype;
    bool has_gradients, will_pack;
    int layer_shards; /* what each layer takes can be cut into so many equal, aligned shards; 0: never cut */
};

/* A store without values, for planning: borrowed views have shapes and no data. The table (and what `part` points to)
 * must stay unchanged and alive. */
int param_store_sketch(struct param_store *store, const struct param_store_options *options);
/* What param_store_open and param_store_pack will allocate. */
size_t param_weight_bytes(const struct param_store *store);
size_t param_gradient_bytes(const struct param_store *store);
size_t param_packed_bytes(const struct param_store *store);
static inline int64_t param_local_elements(const struct param_store *store, int id) {
    return store->shape[id][0] * store->shape[id][1];
}
/* Gives a sketched store its memory: weights (zero) and, when it has them, gradients (zero). */
int param_store_open(struct param_store *store);
void param_store_close(struct param_store *store);
/* Initial values of fp32 elements [first, first + count) of a parameter, keyed by (seed, name, element): the same under
 * every layout. Host memory. */
void param_initial_values(const struct param *row, uint64_t seed, int64_t first, int64_t count, float *out);
/* Sets every weight of an opened store to its initial value. */
int param_store_initialise(struct param_store *store, struct stream *stream, uint64_t seed);
/* The same for one parameter. */
int param_initialise(struct param_store *store, struct stream *stream, uint64_t seed, int id);
/* Gives a sketched store packed weights for inference, in the place of param_store_open. `fill` puts the values of one
 * parameter of the part where param_borrow_to_write says: then alone it is plain, but for those that are kept so. The
 * largest come first, so that there are never many bytes more than those of the packed store. */
int param_store_pack(struct param_store *store, struct stream *stream, int (*fill)(void *context, int id),
                     void *context);

/* ---- loans ---- */

/* Whoever borrows a weight for a call gives it back before that call ends, whether it failed or not; what the call put
 * into a stream may still read it. Where loans are counted (CAMBIUM_COUNT_LOANS: the presets debug, asan, ubsan and
 * tsan), one that stays out, or is given back twice, ends the program. */

/* The weight, to be read. 1-D parameters come as [n, 1] views. */
struct weight_view param_borrow(const struct param_store *store, int id);
/* The same for the weight of a linear: packed where the store is packed. */
struct weight_view param_borrow_linear(const struct param_store *store, int id);
/* Its plain values [store->shape], to be written, for those who give it values; no other loan of it is open meanwhile.
 */
void *param_borrow_to_write(struct param_store *store, int id);
void param_return(const struct param_store *store, int id);
/* The weights of parameters that lie in elements [first, first + count) of the flat arrays are on their way from other
 * ranks, or have arrived: nobody borrows them before. */
void param_set_travelling(const struct param_store *store, int64_t first, int64_t count, bool travels);
/* Where no loan may be open: `after` a pass, say. */
void param_check_returned(const struct param_store *store, const char *after);

/* ---- gradients ---- */

/* Whether the parameter has a gradient. */
bool param_trains(const struct param_store *store, int id);
/* The fp32 gradient [store->shape], to be accumulated into; NULL when the parameter does not train, or while planning.
 */
float *param_gradient(const struct param_store *store, int id);

#endif
