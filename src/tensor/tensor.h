/* A parameter store holds the values of one table on one device: working weights and fp32 gradients.
 *
 * param_table.h says what a parameter is, param_part.h which of them a rank holds, param_map.h where each one stands,
 * and storage.h how the values are held.
 *
 * A layer borrows a weight for one call and gives it back; nobody keeps a pointer to one. Ranges are for those alone
 * who go through the whole store: the optimizer, sums over ranks, files. */
#ifndef CAMBIUM_TENSOR_TENSOR_H
#define CAMBIUM_TENSOR_TENSOR_H

#include "kernels/device.h"
#include "tensor/storage.h"

/* ---- the values: param_store.c ---- */

/* The values of a part of a table on one device, as its storage holds them. */
struct param_store {
    struct param_map map;
    struct device *device;
    const struct ops *ops;
    const struct storage *storage;
    bool has_gradients;
    void *held;                /* the storage's own; NULL in a sketch */
    struct param_loans *loans; /* that are open, where the build counts them */
};

/* How a store is opened. */
struct param_store_options {
    const struct param_table *table;
    const struct param_part *part; /* NULL: all of it */
    struct device *device;
    enum dtype dtype;              /* of the working weights */
    const struct storage *storage; /* NULL: storage_whole */
    bool has_gradients;
    int layer_shards; /* as in struct param_map_options */
};

/* A store without values, for planning: borrowed views have shapes and no data. The table (and what `part` points to)
 * must stay unchanged and alive. */
int param_store_sketch(struct param_store *store, const struct param_store_options *options);
/* Device bytes that param_store_open allocates. */
size_t param_weight_bytes(const struct param_store *store);
size_t param_gradient_bytes(const struct param_store *store);
static inline int64_t param_local_elements(const struct param_store *store, int id) {
    return param_map_elements(&store->map, id);
}
/* Gives a sketched store its memory. Gradients are zeros, and so are weights where `fill` is NULL; only some storages
 * can be opened without one (see struct storage). */
int param_store_open(struct param_store *store, const struct param_fill *fill);
void param_store_close(struct param_store *store);
/* Sets every weight of an opened store to its initial value. */
int param_store_initialise(struct param_store *store, struct stream *stream, uint64_t seed);
/* The same for one parameter. */
int param_initialise(struct param_store *store, struct stream *stream, uint64_t seed, int id);

/* ---- units ---- */

/* Code that reads weights of a unit (see param_map.h) unshards it first and reshards it afterwards, whether the reading
 * failed or not. Errors are the storage's; a unit that could not be unsharded needs no resharding. */
int param_unshard(const struct param_store *store, int unit, enum param_use use);
int param_reshard(const struct param_store *store, int unit);
/* param_reshard after a use that ended with `status`, and the first failure of both. */
int param_reshard_after(const struct param_store *store, int unit, int status);

/* ---- loans ---- */

/* Whoever borrows a weight for a call gives it back before that call ends, whether it failed or not; what the call put
 * into a stream may still read it. Where loans are counted (CAMBIUM_COUNT_LOANS: the presets debug, asan, ubsan and
 * tsan), one that stays out, or is given back twice, ends the program. */

/* The weight, to be read. 1-D parameters come as [n, 1] views. */
struct matrix_view param_borrow(const struct param_store *store, int id);
/* The same for a product with the weight of a linear: in the form that the storage holds for it. */
struct matrix_view param_borrow_linear(const struct param_store *store, int id);
/* The type, form and shape that such a loan has. Nothing is lent, and there is no data to read. */
struct matrix_view param_view(const struct param_store *store, int id, enum param_form form);
/* Its plain values [its shape], to be written, for those who give it values; no other loan of it is open meanwhile.
 */
void *param_borrow_to_write(struct param_store *store, int id);
void param_return(const struct param_store *store, int id);
/* The weights of parameters that lie in elements [first, first + count) of the flat arrays are on their way from other
 * ranks, or have arrived: nobody borrows them before. */
void param_set_travelling(const struct param_store *store, int64_t first, int64_t count, bool travels);
/* Fails loudly if a loan is open: `after` a pass, say. */
void param_check_returned(const struct param_store *store, const char *after);

/* ---- gradients ---- */

/* Whether the parameter has a gradient. */
bool param_trains(const struct param_store *store, int id);
/* The fp32 gradient [its shape], to be accumulated into; NULL when the parameter does not train, or while planning. */
float *param_gradient(const struct param_store *store, int id);
/* Zeros for all gradients. */
int param_clear_gradients(const struct param_store *store, struct stream *stream);

/* ---- ranges ---- */

/* The ranges of an array that this rank holds, as the storage lists them; the list lives as long as the store. */
const struct param_range *param_ranges(const struct param_store *store, enum param_array array, int *count);
/* Elements [first, first + count), which must lie in one range. */
struct param_range param_range_between(const struct param_store *store, enum param_array array, int64_t first,
                                       int64_t count);
/* A run of elements inside a range. */
static inline struct param_range param_range_cut(const struct param_range *range, int64_t first, int64_t count) {
    return (struct param_range){.first = first,
                                .count = count,
                                .data =
                                    (char *)range->data + (first - range->first) * (int64_t)dtype_bytes(range->type),
                                .type = range->type};
}

#endif
