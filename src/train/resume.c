/* Weights and optimizer from and to files. Loading fills the fp32 master copy (in fp32: the weights themselves), from
 * which the working weights are rounded, so that a run may go on in the other precision. */
#include "save-internal.h"

#include <stdlib.h>

static const char master_prefix[] = "master.", mean_prefix[] = "exp_avg.", square_prefix[] = "exp_avg_sq.";

/* ---- the pieces of the optimizer as one array ---- */

/* Values of the elements that this rank updates, each piece a flat array of its own. A stage with nothing that trains
 * has one array, of a store that holds nothing. */
struct pieces {
    const struct gradient_sync *sync;
    int count;
    struct ckpt_flat *flats;   /* [count] */
    struct ckpt_array *arrays; /* [count] over them */
};

/* The piece that has some of a parameter, if any has: a bucket holds parameters whole. */
static const struct ckpt_array *array_of(const struct pieces *pieces, int param) {
    const struct gradient_sync *sync = pieces->sync;
    return &pieces->arrays[sync->piece_count
                               ? gradient_sync_piece(sync, sync->store->map.places[param].offset) - sync->pieces
                               : 0];
}

static int piece_rects(void *context, int param, struct ckpt_block *rects) {
    const struct ckpt_array *array = array_of(context, param);
    return array->rects(array->context, param, rects);
}

static int piece_get(void *context, const struct ckpt_block *block, void *values) {
    const struct ckpt_array *array = array_of(context, block->param);
    return array->get(array->context, block, values);
}

static int piece_put(void *context, const struct ckpt_block *block, const void *values) {
    const struct ckpt_array *array = array_of(context, block->param);
    return array->put(array->context, block, values);
}

static void *piece_find_place(void *context, const struct ckpt_block *block) {
    const struct ckpt_array *array = array_of(context, block->param);
    return array->find_place(array->context, block);
}

/* The array of `pieces` over memory that holds all of them (`is_local`) or a whole flat array. */
static int pieces_open(struct pieces *pieces, struct trainer *trainer, float *memory, bool is_local, bool is_written) {
    const struct gradient_sync *sync = &trainer->sync;
    static const struct sync_piece nothing;
    size_t count = sync->piece_count ? (size_t)sync->piece_count : 1;
    *pieces = (struct pieces){.sync = sync,
                              .count = (int)count,
                              .flats = calloc(count, sizeof *pieces->flats),
                              .arrays = calloc(count, sizeof *pieces->arrays)};
    if (!pieces->flats || !pieces->arrays)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        const struct sync_piece *piece = sync->piece_count ? &sync->pieces[i] : &nothing;
        pieces->flats[i] =
            (struct ckpt_flat){.store = sync->store,
                               .stream = trainer->rank.exec.stream,
                               .memory = memory + (is_local ? piece->local : piece->first),
                               .dtype = DTYPE_F32,
                               .threads = device_threads(trainer->device),
                               .first = piece->first,
                               .count = piece->count,
                               .leaves = is_written ? sync->store->map.part.is_copy : NULL,
                               .is_copy = is_written && !sync->is_sharded && trainer->rank.data->rank > 0,
                               .copy_of = train_first_copy(trainer),
                               .leaves_copies = is_written};
    }
    return STATUS_OK;
}

static struct ckpt_array pieces_array(struct pieces *pieces, const char *prefix, bool only_trainable) {
    for (int i = 0; i < pieces->count; i++)
        pieces->arrays[i] = ckpt_flat_array(&pieces->flats[i], prefix, only_trainable);
    struct ckpt_array array = pieces->arrays[0];
    array.must_be_finite = true;
    array.rects = piece_rects;
    array.get = piece_get;
    array.put = piece_put;
    array.find_place = piece_find_place;
    array.context = pieces;
    return array;
}

const struct param_table *train_state_table(const struct trainer *trainer) {
    return trainer->run.trainee ? trainer->trainee.state_table : trainer->store->map.table;
}

/* Both moments and the master weights. */
struct optimizer_arrays {
    struct pieces pieces[OPTIMIZER_ARRAYS];
    struct ckpt_array arrays[OPTIMIZER_ARRAYS];
};

static int state_open(struct optimizer_arrays *state, struct trainer *trainer, bool is_written) {
    struct optimizer *optimizer = &trainer->optimizer;
    bool has_master = optimizer->store->dtype != DTYPE_F32;
    *state = (struct optimizer_arrays){0};
    int status = pieces_open(&state->pieces[0], trainer, optimizer->m, true, is_written);
    if (!status)
        status = pieces_open(&state->pieces[1], trainer, optimizer->v, true, is_written);
    if (!status)
        status = pieces_open(&state->pieces[2], trainer, optimizer->master, has_master, is_written);
    if (status)
        return status;
    state->arrays[0] = pieces_array(&state->pieces[0], mean_prefix, true);
    state->arrays[1] = pieces_array(&state->pieces[1], square_prefix, true);
    state->arrays[2] = pieces_array(&state->pieces[2], master_prefix, false);
    return STATUS_OK;
}

static void state_free(struct optimizer_arrays *state) {
    for (int i = 0; i < OPTIMIZER_ARRAYS; i++) {
        free(state->pieces[i].flats);
        free(state->pieces[i].arrays);
    }
}

int optimizer_arrays_open(struct trainer *trainer, struct optimizer_arrays **out, const struct ckpt_array **arrays) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "out of memory");
    *arrays = (*out)->arrays;
    return state_open(*out, trainer, true);
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
        state_free(arrays);
    free(arrays);
}

/* ---- loading ---- */

static int load_weights(struct trainer *trainer, struct optimizer_arrays *state, const char *directory) {
    struct ckpt_array array = pieces_array(&state->pieces[2], "", trainer->run.trainee != NULL);
    struct ckpt_tensors *tensors = NULL;
    if (trainer->run.trainee)
        return trainer->run.trainee->load(trainer->trainee.self, directory, &array);
    int status = ckpt_open_model(directory, &tensors);
    if (!status)
        status = ckpt_read(tensors, trainer->store->map.table, &array, 1);
    ckpt_close(tensors);
    return status;
}

/* Moments, and the master weights where a bf16 run left them beside; else those are the model's. */
static int load_checkpoint(struct trainer *trainer, struct optimizer_arrays *state) {
    struct ckpt_tensors *tensors = NULL;
    int status = ckpt_open_optimizer(trainer->run.checkpoint, &tensors);
    bool has_master = !status && ckpt_has_prefix(tensors, master_prefix);
    if (!status)
        status = ckpt_read(tensors, train_state_table(trainer), state->arrays, has_master ? 3 : 2);
    ckpt_close(tensors);
    if (!status && !has_master)
        status = load_weights(trainer, state, trainer->run.checkpoint);
    trainer->optimizer.step = trainer->run.optimizer_step;
    return status;
}

static int read_base(struct trainer *trainer) {
    struct param_store *store = model_store(trainer->model);
    struct ckpt_flat flat = {.store = store,
                             .stream = trainer->rank.exec.stream,
                             .memory = store->weights,
                             .dtype = store->dtype,
                             .threads = device_threads(trainer->device)};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    array.must_be_finite = true;
    struct ckpt_tensors *tensors = NULL;
    int status = ckpt_open_model(trainer->run.model_directory, &tensors);
    if (!status)
        status = ckpt_read(tensors, store->map.table, &array, 1);
    ckpt_close(tensors);
    return status;
}

int train_load_base(struct trainer *trainer) {
    uint64_t seed = (uint64_t)trainer->run.config.train.seed;
    int status = *trainer->run.model_directory ? read_base(trainer) : model_initialise(trainer->model, seed);
    status = comm_agree(trainer->world, status); /* what follows may sum over ranks */
    return status ? status
                  : trainer->run.trainee->start(trainer->run.trainee->description, trainer->trainee.self,
                                                trainer->model, seed);
}

/* Where values come from when there is no checkpoint: a directory, or NULL for initial ones. */
static const char *initial_directory(const struct trainer *trainer) {
    if (trainer->run.trainee)
        return trainer->run.trainee->init_directory;
    return *trainer->run.model_directory ? trainer->run.model_directory : NULL;
}

int train_load(struct trainer *trainer) {
    const char *directory = initial_directory(trainer);
    if (!*trainer->run.checkpoint && !directory) {
        int status = trainer->run.trainee ? STATUS_OK /* it has started with them */
                                          : model_initialise(trainer->model, (uint64_t)trainer->run.config.train.seed);
        return status ? status : optimizer_reset(&trainer->optimizer);
    }
    struct optimizer_arrays state;
    int status = state_open(&state, trainer, false);
    if (!status && *trainer->run.checkpoint)
        status = load_checkpoint(trainer, &state);
    else if (!status)
        status = load_weights(trainer, &state, directory);
    state_free(&state);
    status = comm_agree(trainer->world, status);
    return status ? status : optimizer_round_weights(&trainer->optimizer);
}
