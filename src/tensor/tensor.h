/* A parameter store holds the values of one table on one device: working weights and fp32 gradients.
 *
 * param_table.h describes parameters, param_part.h the parameters that a rank holds, param_map.h the place of each, and
 * storage.h how values are held.
 *
 * A layer borrows a weight for one call and returns it; no one keeps a pointer to a weight. Only code that goes through
 * the whole store uses ranges: the optimizer, sums over ranks, files. */
#pragma once

#include "kernels/device.h"
#include "tensor/storage.h"

/* ---- the values: param_store.c ---- */

/* The values of a part of a table on one device, as its storage holds them. */
struct param_store {
    struct param_map map;
    struct device *device;
    const struct ops *ops;
    const struct storage *storage;
    struct param_sharing sharing;
    bool has_gradients;
    void *held;                     /* the storage's state; NULL in a sketch */
    struct encoded_layout *layouts; /* [table count] of its encoded parameters (struct param_place); or NULL */
    struct param_loans *loans;      /* the open loans, if the build counts them */
};

/* How a store is opened. */
struct param_store_options {
    const struct param_table *table;
    const struct param_part *part; /* NULL: all of it */
    struct device *device;
    enum dtype dtype;              /* of the working weights */
    const struct storage *storage; /* NULL: storage_whole */
    bool has_gradients;
    int layer_shards;                        /* as in struct param_map_options */
    struct param_sharing sharing;            /* for storages that need it */
    const struct param_encodings *encodings; /* of the values' source; read only while sketching. NULL: plain */
};

/* Makes a store without values, for planning: borrowed views have shapes and no data. The table, and what `part` points
 * to, must outlive the store unchanged. The caller closes the store. STATUS_MEMORY. */
int param_store_sketch(struct param_store *store, const struct param_store_options *options);
/* Return the device bytes that param_store_open allocates, for weights and for gradients. */
size_t param_weight_bytes(const struct param_store *store);
size_t param_gradient_bytes(const struct param_store *store);
/* Returns the elements of a parameter on this rank. */
static inline int64_t param_local_elements(const struct param_store *store, int id) {
    return param_map_elements(&store->map, id);
}
/* Gives a sketched store its memory. Gradients are zero, and so are weights if `fill` is NULL, which not every storage
 * allows (see struct storage). STATUS_MEMORY, or the errors of `fill`; the caller closes the store in any case. */
int param_store_open(struct param_store *store, const struct param_fill *fill);
/* Frees the values and the map. */
void param_store_close(struct param_store *store);
/* Sets every weight of an opened store to its initial value, and waits for the stream. STATUS_MEMORY, or the device's
 * failure. */
int param_store_initialise(struct param_store *store, struct stream *stream, uint64_t seed);
/* The same for one parameter. */
int param_initialise(struct param_store *store, struct stream *stream, uint64_t seed, int id);

/* ---- units ---- */

/* Code that reads weights of a unit (see param_map.h) unshards it first, and reshards it afterwards, even after an
 * error. If unsharding fails, there is nothing to reshard. Both return the storage's errors. */
int param_unshard(const struct param_store *store, int unit, enum param_use use);
int param_reshard(const struct param_store *store, int unit);
/* Calls param_reshard after a use that ended with `status`. Returns the first failure of both. */
int param_reshard_after(const struct param_store *store, int unit, int status);

/* Call it after weights in the ranges have changed, while no unit is unsharded: the next use of a unit fetches them. */
void param_forget_units(const struct param_store *store);

/* ---- loans ----
 *
 * A caller that borrows a weight for a call returns it before that call ends, even after an error. Work that the call
 * put into a stream may still read it. In builds that count loans (CAMBIUM_COUNT_LOANS: the presets debug, asan, ubsan
 * and tsan), a loan that is never returned, or returned twice, ends the program. */

/* Borrows a weight to read it. 1-D parameters are [n, 1] views. */
struct matrix_view param_borrow(const struct param_store *store, int id);
/* Borrows the weight of a linear for a product, in the form in which the storage holds it. */
struct matrix_view param_borrow_linear(const struct param_store *store, int id);
/* Borrows a table to read single rows, in the form in which the storage holds it. */
struct matrix_view param_borrow_rows(const struct param_store *store, int id);
/* Returns the type, form and shape of such a loan, without lending anything: there is no data to read. */
struct matrix_view param_view(const struct param_store *store, int id, enum param_form form);
/* Borrows the plain values of a parameter [its shape] to write them. No other loan of it may be open meanwhile. */
void *param_borrow_to_write(struct param_store *store, int id);
/* Returns a loan of any of these kinds. */
void param_return(const struct param_store *store, int id);
/* Marks the weights of parameters in elements [first, first + count) of the flat arrays as travelling from other ranks,
 * or as arrived. No one may borrow them while they travel. */
void param_set_travelling(const struct param_store *store, int64_t first, int64_t count, bool travels);
/* Marks the weights of a unit as absent from this rank's memory, or as present. No one may borrow absent ones. */
void param_set_absent(const struct param_store *store, int unit, bool is_absent);
/* Ends the program if a loan is open. `after` names the moment, such as "a pass". */
void param_check_returned(const struct param_store *store, const char *after);

/* ---- gradients ---- */

/* Returns true if the parameter has a gradient. */
bool param_trains(const struct param_store *store, int id);
/* Returns the fp32 gradient [its shape], to be added to; NULL if the parameter does not train, or while planning. */
float *param_gradient(const struct param_store *store, int id);
/* Returns true if this rank keeps only its shares of summed gradients. Then a unit's gradients exist from
 * param_begin_gradients to param_end_gradients (struct storage). If it returns false, these three do nothing. */
bool param_cuts_gradients(const struct param_store *store);
int param_begin_gradients(const struct param_store *store, int unit);
int param_end_gradients(const struct param_store *store, int unit);
int param_settle_gradients(const struct param_store *store);
/* Zeroes all gradients, in the order of the stream. The device's failure. */
int param_clear_gradients(const struct param_store *store, struct stream *stream);

/* ---- ranges ---- */

/* Returns the ranges of an array that this rank holds. The list belongs to the storage, and lives as long as the store.
 */
const struct param_range *param_ranges(const struct param_store *store, enum param_array array, int *count);
/* Returns elements [first, first + count), which must lie in one range. */
struct param_range param_range_between(const struct param_store *store, enum param_array array, int64_t first,
                                       int64_t count);
/* Returns the part of elements [first, first + count), which are of one unit, that this rank's ranges have; count 0:
 * none. A sketch has no ranges, and returns all of them. */
struct param_range param_range_within(const struct param_store *store, enum param_array array, int64_t first,
                                      int64_t count);
/* Returns a run of elements inside a range. */
static inline struct param_range param_range_cut(const struct param_range *range, int64_t first, int64_t count) {
    return (struct param_range){.first = first,
                                .count = count,
                                .data =
                                    (char *)range->data + (first - range->first) * (int64_t)dtype_bytes(range->type),
                                .type = range->type};
}
