/* How the values of a store are held: a const table of functions, as a backend is one.
 *
 * Code outside a storage sees loans and ranges alone. A loan is one weight for one call. A range is a run of elements
 * that lie together in memory; the optimizer, sums over ranks and files go through all of them. A storage decides where
 * both come from. docs/reading.md says how to add one. */
#ifndef CAMBIUM_TENSOR_STORAGE_H
#define CAMBIUM_TENSOR_STORAGE_H

#include "kernels/ops.h"
#include "tensor/param_map.h"

struct param_store;

enum param_array { PARAM_WEIGHTS, PARAM_GRADIENTS };

/* The purpose of a loan: to read plain values; to multiply by the weight of a linear, in the form that the storage
 * holds for it; or to write plain values, for which nothing has to be unsharded. */
enum param_form { PARAM_PLAIN, PARAM_LINEAR, PARAM_WRITTEN };

/* The purpose of unsharding a unit: a pass, or code that reads weights outside one. */
enum param_use {
    PARAM_FORWARD, /* a backward of the same unit follows */
    PARAM_BACKWARD,
    PARAM_RECOMPUTATION, /* a forward again, right before the backward */
    PARAM_EVALUATION,    /* a forward alone: of an evaluation, or of a step of inference */
    PARAM_READ,
    PARAM_USES
};

/* Elements [first, first + count) of a flat array, in device memory. */
struct param_range {
    int64_t first, count;
    void *data; /* element `first`; NULL while the store is a sketch */
    enum dtype type;
};

/* The source of a store's values while it is opened. `fill` puts the values of one parameter of the part where
 * param_borrow_to_write says, returns the loan, and may use `stream`; what it returns ends the opening. */
struct param_fill {
    struct stream *stream;
    int (*fill)(void *context, int id);
    void *context;
};

struct storage {
    const char *name;
    /* Device bytes that `open` allocates for an array; works on a sketch. */
    size_t (*bytes)(const struct param_store *store, enum param_array array);
    /* Gives a sketched store memory, which store->held leads to. Values are what `fill` puts, or zeros where it is
     * NULL. A storage that has no zeros requires `fill`. What was allocated before a failure is for `close`. */
    int (*open)(struct param_store *store, const struct param_fill *fill);
    /* Frees what `open` allocated, in whole or in part; a sketch has nothing. */
    void (*close)(struct param_store *store);
    /* A view of a weight. A sketch gives the view's shape, type and form, and its data leads nowhere. 1-D parameters
     * are [n, 1]. */
    struct matrix_view (*borrow)(const struct param_store *store, int id, enum param_form form);
    /* Ends a loan. NULL: there is nothing to do. */
    void (*give_back)(const struct param_store *store, int id);
    /* Has the weights of a unit whole in memory, before the first loan to read one of them, and lets go of what
     * `unshard` fetched, after the last such loan. The two alternate for each unit. All ranks that share a unit call
     * them in the same order. A sketch is asked, too. NULL: every unit is always whole. */
    int (*unshard)(const struct param_store *store, int unit, enum param_use use);
    int (*reshard)(const struct param_store *store, int unit);
    /* The ranges of an array in this rank's memory, ascending; a parameter lies in one of them at most. The list
     * belongs to the storage and lives as long as the store. *count 0: nobody goes through this array. */
    const struct param_range *(*ranges)(const struct param_store *store, enum param_array array, int *count);
};

/* All values in two flat arrays, of weights and of gradients. */
extern const struct storage storage_whole;
/* For inference: the weights of linears as the backend packs them, the others plain. There are no gradients and no
 * ranges. It is filled with one parameter after the other, and only the one that is being filled is plain as well. The
 * largest come first, so that there are never many bytes more than the packed ones. */
extern const struct storage storage_packed;

/* ---- for storages ---- */

/* The plain view of a parameter in a flat array at `weights`. */
struct matrix_view storage_plain_view(const struct param_store *store, int id, const void *weights);
/* Calls fill->fill for a parameter, and checks that it returned its loans. */
int storage_fill(struct param_store *store, const struct param_fill *fill, int id);

#endif
