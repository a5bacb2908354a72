/* How the values of a store are held. A storage is a const table of functions, like a backend.
 *
 * Code outside a storage uses only loans and ranges. A loan is one weight for one call. A range is a run of elements
 * that lie together in memory. The optimizer, sums over ranks and files go through all ranges. docs/reading.md explains
 * how to add a storage. */
#pragma once

#include "kernels/ops.h"
#include "tensor/param_map.h"

struct param_store;
struct rank;

enum param_array { PARAM_WEIGHTS, PARAM_GRADIENTS };

/* The purpose of a loan. */
enum param_form {
    PARAM_PLAIN,   /* to read plain values */
    PARAM_LINEAR,  /* to multiply by the weight of a linear, forward and in the backward, in the form in which the
                    * storage holds it */
    PARAM_ROWS,    /* to read single rows, as an embedding's, in the form in which the storage holds it */
    PARAM_WRITTEN, /* to write plain values; the unit need not be unsharded */
};

/* The purpose of unsharding a unit. */
enum param_use {
    PARAM_FORWARD, /* a forward, which a backward of the same unit follows */
    PARAM_BACKWARD,
    PARAM_RECOMPUTATION, /* a second forward, right before the backward */
    PARAM_EVALUATION,    /* a forward without a backward: an evaluation, or a step of inference */
    PARAM_READ,          /* code outside a pass reads weights */
    PARAM_USES
};

/* Elements [first, first + count) of a flat array, in device memory. */
struct param_range {
    int64_t first, count;
    void *data; /* element `first`; NULL while the store is a sketch */
    enum dtype type;
};

/* The encodings of a model's values in their source. `describe` writes the layout of a parameter's rectangles on a rank
 * (param_part_rects), one part for each. It returns false if all values of the parameter are plain. */
struct param_encodings {
    bool (*describe)(const void *context, const struct param *param, const struct param_rect *rects, int count,
                     struct encoded_layout *layout);
    const void *context;
};

/* The source of a store's values while it is opened. `fill` writes the values of one parameter of the part to the
 * memory that param_borrow_to_write returns, and returns the loan. It may use `stream`. An error that it returns ends
 * the opening. */
struct param_fill {
    struct stream *stream;
    int (*fill)(void *context, int id);
    /* Writes codes, scales, shifts and order of rows of a part of an encoded parameter to host memory: those of `rect`.
     * A part is filled in from its first row to its last, in blocks. NULL in a store without encodings. */
    int (*fill_encoded)(void *context, int id, int part, const struct param_rect *rect, const struct encoded_rows *to);
    void *context;
};

/* How ranks with the same weights share a store, for storages that hold only this rank's shares. */
struct param_sharing {
    struct rank *rank;     /* of parallel/rank.h; must outlive the store */
    int kept_units;        /* further layers that stay whole until others need their memory */
    bool overlaps_weights; /* a unit travels while the one before it is in use */
    bool overlaps_sums;    /* the gradients of a unit are summed while those of the next one are computed */
};

struct storage {
    const char *name;
    bool needs_fill; /* it cannot hold zeros, and is opened when its values come */
    /* Returns the device bytes that `open` allocates for an array; works on a sketch. */
    size_t (*bytes)(const struct param_store *store, enum param_array array);
    /* Gives a sketched store its memory, and sets store->held. Calls `fill` for the values; they are zeros if it is
     * NULL. With needs_fill, `fill` is required. After a failure, `close` frees what was allocated. */
    int (*open)(struct param_store *store, const struct param_fill *fill);
    /* Frees what `open` allocated, also after a failure or for a sketch. */
    void (*close)(struct param_store *store);
    /* Returns a view of a weight. For a sketch, only its shape, type and form are valid. 1-D parameters are [n, 1]. */
    struct matrix_view (*borrow)(const struct param_store *store, int id, enum param_form form);
    /* Ends a loan. NULL: nothing to do. */
    void (*give_back)(const struct param_store *store, int id);
    /* `unshard` makes the weights of a unit whole in memory, before the first loan to read one of them. `reshard` frees
     * what that fetched, after the last such loan. The two alternate for each unit. All ranks that share a unit call
     * them in the same order. They are called for a sketch, too. NULL: every unit is always whole. */
    int (*unshard)(const struct param_store *store, int unit, enum param_use use);
    int (*reshard)(const struct param_store *store, int unit);
    /* Notes that the ranges of weights have changed, so that units are made whole from the new values. NULL: nothing to
     * do. */
    void (*forget)(const struct param_store *store);
    /* The gradients of one unit at a time, where only shares of their sums are kept; all four are NULL where the
     * gradients are whole. `begin_gradients` gives a unit memory for the gradients of a micro batch. They are zero,
     * except those that a linear overwrites. Until the end, further calls do nothing. `end_gradients` starts their sum
     * over the ranks that share the unit, which is added to the ranges. After `settle_gradients` the ranges have the
     * sums of all micro batches, and the next sums replace them. `gradient` returns the gradient of a parameter whose
     * unit has begun. All ranks that share a unit make these calls in the same order. They are made for a sketch, too.
     */
    int (*begin_gradients)(const struct param_store *store, int unit);
    int (*end_gradients)(const struct param_store *store, int unit);
    int (*settle_gradients)(const struct param_store *store);
    float *(*gradient)(const struct param_store *store, int id);
    /* Returns the ranges of an array in this rank's memory, ascending. A parameter lies in at most one of them. The
     * list belongs to the storage, and lives as long as the store. *count 0: the array has no ranges. */
    const struct param_range *(*ranges)(const struct param_store *store, enum param_array array, int *count);
};

/* All values in two flat arrays, of weights and of gradients. */
extern const struct storage storage_whole;
/* parallel/sharded.h has storages of which each rank has a share. */
/* For inference, and for adapters that train on the same base: the weights of linears are packed by the backend, a
 * tied embedding too, and the others are plain. Encoded parameters are packed in their bits; one that the backend does
 * not take is decoded, and held like the others. There are no gradients and no ranges. Parameters are filled one after
 * the other, the largest first. Only the current one is held plain as well, or a block of it as encoded rows. So
 * opening takes few bytes more than the packed weights. */
extern const struct storage storage_packed;

/* ---- for storages ---- */

/* Returns the plain view of a parameter in a flat array at `weights`. */
struct matrix_view storage_plain_view(const struct param_store *store, int id, const void *weights);
/* Calls fill->fill for a parameter, and checks that it returned its loans. Returns its status. */
int storage_fill(struct param_store *store, const struct param_fill *fill, int id);

/* ---- for storages that hold parameters as storage_packed does ---- */

/* A parameter that is packed, or plain if it has no packed form; data is NULL in the other view. */
struct storage_views {
    struct matrix_view plain, packed;
};

/* Memory for plain values until they are packed, zeroed at first; the caller frees `data` (device_free). It grows for a
 * larger parameter, and is replaced by a smaller block once less than half of it is needed. */
struct storage_stage {
    void *data;
    size_t bytes;
};

/* Returns the bytes that a parameter takes, a multiple of ARENA_ALIGNMENT; works on a sketch. */
size_t storage_packed_bytes(const struct param_store *store, int id);
/* Returns the views of a parameter at `memory`, which has storage_packed_bytes; NULL for a sketch. */
struct storage_views storage_packed_views(const struct param_store *store, int id, void *memory);
/* Returns the view that a loan of this form gets. */
struct matrix_view storage_packed_view(const struct storage_views *views, enum param_form form);
/* Fills in a parameter at its views. A loan to write it must meanwhile get views->plain. Returns the errors of `fill`
 * and of the device. */
int storage_pack(struct param_store *store, const struct param_fill *fill, int id, struct storage_views *views,
                 struct storage_stage *stage);
