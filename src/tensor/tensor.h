/* A parameter store holds the values of one table on one device: working weights (fp32 or bf16, plain or packed) and
 * fp32 gradients. param_table.h says what a parameter is, param_part.h which of them a rank holds, param_map.h where
 * each one stands.
 *
 * A layer borrows a weight for one call and gives it back; nobody keeps a pointer to one. The flat arrays are for those
 * alone who go through the whole store: the optimizer, sums over ranks, files. */
#ifndef CAMBIUM_TENSOR_TENSOR_H
#define CAMBIUM_TENSOR_TENSOR_H

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tensor/param_map.h"

/* ---- the values: param_store.c ---- */

/* The values of a part of a table on one device, in flat arrays as its map says; gaps hold zeros. */
struct param_store {
    struct param_map map;
    struct device *device;
    const struct ops *ops;
    enum dtype dtype; /* of the working weights */
    bool has_gradients;
    bool will_pack;   /* views of linears are packed ones already while planning */
    void *weights;    /* [map.flat_elements] of dtype; NULL where they are packed */
    float *gradients; /* [map.flat_elements]; NULL where nothing trains */
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
    int layer_shards; /* as in struct param_map_options */
};

/* A store without values, for planning: borrowed views have shapes and no data. The table (and what `part` points to)
 * must stay unchanged and alive. */
int param_store_sketch(struct param_store *store, const struct param_store_options *options);
/* What param_store_open and param_store_pack will allocate. */
size_t param_weight_bytes(const struct param_store *store);
size_t param_gradient_bytes(const struct param_store *store);
size_t param_packed_bytes(const struct param_store *store);
static inline int64_t param_local_elements(const struct param_store *store, int id) {
    return param_map_elements(&store->map, id);
}
/* Gives a sketched store its memory: weights (zero) and, when it has them, gradients (zero). */
int param_store_open(struct param_store *store);
void param_store_close(struct param_store *store);
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
/* Its plain values [its shape], to be written, for those who give it values; no other loan of it is open meanwhile.
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
/* The fp32 gradient [its shape], to be accumulated into; NULL when the parameter does not train, or while planning.
 */
float *param_gradient(const struct param_store *store, int id);

#endif
