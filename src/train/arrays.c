/* The optimizer's state as arrays of a file. They hold the fp32 master weights, in fp32 the weights themselves. */
#include "save-internal.h"

static const char master_prefix[] = "master.", mean_prefix[] = "exp_avg.", square_prefix[] = "exp_avg_sq.";

const struct param_table *stepper_state_table(const struct stepper *stepper) {
    return stepper->tuner ? stepper->model->tuner.state_table : stepper->store->map.table;
}

int train_first_copy(const struct rank *rank) {
    struct rank_grid first = rank->place;
    first.data = 0;
    return rank_grid_rank(&rank->grid, &first);
}

/* ---- the optimizer's arrays ---- */

/* Both moments and the master weights: the elements that this rank updates, one range per piece. */
struct optimizer_arrays {
    struct param_range *ranges; /* [OPTIMIZER_ARRAYS, pieces] */
    struct ckpt_flat flats[OPTIMIZER_ARRAYS];
    struct ckpt_array arrays[OPTIMIZER_ARRAYS];
};

/* Returns the values of a piece in array `index`. */
static float *find_values(const struct optimizer *optimizer, int index, const struct sync_piece *piece) {
    return index == 0   ? optimizer->m + piece->local
           : index == 1 ? optimizer->v + piece->local
                        : optimizer_master(optimizer, piece);
}

static int state_open(struct optimizer_arrays *state, struct stepper *stepper, bool is_written) {
    static const char *const prefixes[OPTIMIZER_ARRAYS] = {mean_prefix, square_prefix, master_prefix};
    const struct gradient_sync *sync = &stepper->sync;
    const struct param_store *store = sync->store;
    size_t pieces = (size_t)sync->piece_count;
    *state = (struct optimizer_arrays){.ranges = calloc(OPTIMIZER_ARRAYS * (pieces + 1), sizeof *state->ranges)};
    TRY(status_allocated(state->ranges));
    for (int a = 0; a < OPTIMIZER_ARRAYS; a++) {
        struct param_range *ranges = state->ranges + (size_t)a * pieces;
        for (size_t i = 0; i < pieces; i++) {
            const struct sync_piece *piece = &sync->pieces[i];
            ranges[i] = (struct param_range){.first = piece->first,
                                             .count = piece->count,
                                             .data = find_values(&stepper->optimizer, a, piece),
                                             .type = DTYPE_F32};
        }
        state->flats[a] =
            (struct ckpt_flat){.map = &store->map,
                               .stream = stepper->rank->exec.stream,
                               .ranges = ranges,
                               .count = sync->piece_count,
                               .dtype = DTYPE_F32,
                               .threads = device_threads(stepper->rank->device),
                               .leaves = is_written ? store->map.part.is_copy : NULL,
                               .is_copy = is_written && !sync->is_sharded && stepper->rank->data->rank > 0,
                               .copy_of = train_first_copy(stepper->rank),
                               .leaves_copies = is_written};
        state->arrays[a] = ckpt_flat_array(&state->flats[a], prefixes[a], a < 2);
        state->arrays[a].must_be_finite = state->arrays[a].heeds_stop = true;
    }
    return STATUS_OK;
}

int optimizer_arrays_open(struct stepper *stepper, bool is_written, struct optimizer_arrays **out,
                          const struct ckpt_array **arrays) {
    *out = calloc(1, sizeof **out);
    TRY(status_allocated(*out));
    *arrays = (*out)->arrays;
    return state_open(*out, stepper, is_written);
}

int optimizer_arrays_read(const struct stepper *stepper, const struct ckpt_array *arrays, struct ckpt_tensors *tensors,
                          bool *has_master) {
    *has_master = ckpt_has_prefix(tensors, master_prefix);
    return ckpt_read(tensors, stepper_state_table(stepper), arrays, *has_master ? 3 : 2);
}

struct ckpt_array optimizer_master_array(const struct ckpt_array *arrays) {
    struct ckpt_array array = arrays[OPTIMIZER_ARRAYS - 1];
    array.prefix = "";
    array.only_trainable = true;
    return array;
}

struct ckpt_array optimizer_array_describe(int index) {
    static const char *const prefixes[OPTIMIZER_ARRAYS] = {mean_prefix, square_prefix, master_prefix};
    return (struct ckpt_array){.prefix = prefixes[index], .dtype = DTYPE_F32, .only_trainable = index < 2};
}

void optimizer_arrays_close(struct optimizer_arrays *arrays) {
    if (arrays)
        free(arrays->ranges);
    free(arrays);
}
