/* Weights and optimizer from and to files. Loading fills the fp32 master copy (in fp32: the weights themselves). The
 * working weights are rounded from it, so a run may resume in the other precision. */
#include "save-internal.h"

#include "pretrained/pretrained.h"

static const char master_prefix[] = "master.", mean_prefix[] = "exp_avg.", square_prefix[] = "exp_avg_sq.";

const struct param_table *train_state_table(const struct trainer *trainer) {
    return trainer->run.tuner ? trainer->model.tuner.state_table : trainer->stepper.store->map.table;
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

static int state_open(struct optimizer_arrays *state, struct trainer *trainer, bool is_written) {
    static const char *const prefixes[OPTIMIZER_ARRAYS] = {mean_prefix, square_prefix, master_prefix};
    const struct gradient_sync *sync = &trainer->stepper.sync;
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
                                             .data = find_values(&trainer->stepper.optimizer, a, piece),
                                             .type = DTYPE_F32};
        }
        state->flats[a] = (struct ckpt_flat){.map = &store->map,
                                             .stream = trainer->rank.exec.stream,
                                             .ranges = ranges,
                                             .count = sync->piece_count,
                                             .dtype = DTYPE_F32,
                                             .threads = device_threads(trainer->device),
                                             .leaves = is_written ? store->map.part.is_copy : NULL,
                                             .is_copy = is_written && !sync->is_sharded && trainer->rank.data->rank > 0,
                                             .copy_of = train_first_copy(trainer),
                                             .leaves_copies = is_written};
        state->arrays[a] = ckpt_flat_array(&state->flats[a], prefixes[a], a < 2);
        state->arrays[a].must_be_finite = state->arrays[a].heeds_stop = true;
    }
    return STATUS_OK;
}

int optimizer_arrays_open(struct trainer *trainer, struct optimizer_arrays **out, const struct ckpt_array **arrays) {
    *out = calloc(1, sizeof **out);
    TRY(status_allocated(*out));
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
        free(arrays->ranges);
    free(arrays);
}

/* ---- loading ---- */

static int read_model(const char *path, const struct param_store *store, const struct ckpt_array *array) {
    struct pretrained model;
    int status = pretrained_open(path, NULL, &model);
    THEN(status, ckpt_read(model.tensors, store->map.table, array, 1));
    pretrained_close(&model);
    return status;
}

static int load_weights(struct trainer *trainer, struct optimizer_arrays *state, const char *directory) {
    struct ckpt_array array = state->arrays[OPTIMIZER_ARRAYS - 1];
    array.prefix = "";
    array.only_trainable = trainer->run.tuner != NULL;
    return trainer->run.tuner ? trainer->run.tuner->load(trainer->model.tuner.self, directory, &array)
                              : read_model(directory, trainer->stepper.store, &array);
}

/* Loads the moments, and the master weights that a bf16 run has saved; without them the model's weights are the master
 * weights. */
static int load_checkpoint(struct trainer *trainer, struct optimizer_arrays *state) {
    struct ckpt_tensors *tensors = NULL;
    int status = ckpt_open_optimizer(trainer->run.checkpoint, &tensors);
    bool has_master = !status && ckpt_has_prefix(tensors, master_prefix);
    THEN(status, ckpt_read(tensors, train_state_table(trainer), state->arrays, has_master ? 3 : 2));
    ckpt_close(tensors);
    THEN_IF(status, !has_master, load_weights(trainer, state, trainer->run.checkpoint));
    trainer->stepper.optimizer.step = trainer->run.optimizer_step;
    return status;
}

static int read_base(struct trainer *trainer) {
    struct param_store *store = base_store(trainer->model.base);
    struct ckpt_flat flat = ckpt_flat_weights(store, trainer->rank.exec.stream);
    flat.threads = device_threads(trainer->device);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    array.must_be_finite = array.heeds_stop = true;
    return read_model(trainer->run.model_directory, store, &array);
}

static int read_encoded_base(struct trainer *trainer) {
    struct train_model *model = &trainer->model;
    int status = pretrained_load(&model->encodings, model->base, trainer->rank.exec.stream, true);
    train_close_files(model);
    return status;
}

int train_load_base(struct trainer *trainer) {
    uint64_t seed = (uint64_t)trainer->run.config.train.seed;
    int status = pretrained_describes(&trainer->model.encodings) ? read_encoded_base(trainer)
                 : *trainer->run.model_directory                 ? read_base(trainer)
                                                                 : base_initialise(trainer->model.base, seed);
    status = comm_agree(trainer->world, status); /* the next steps may sum over ranks */
    return status ? status
                  : trainer->run.tuner->start(trainer->run.tuner->description, trainer->model.tuner.self,
                                              trainer->model.base, seed);
}

/* Returns the directory of the values when there is no checkpoint; NULL: initial values. */
static const char *initial_directory(const struct trainer *trainer) {
    if (trainer->run.tuner)
        return trainer->run.tuner->init_directory;
    return *trainer->run.model_directory ? trainer->run.model_directory : NULL;
}

int train_load(struct trainer *trainer) {
    const char *directory = initial_directory(trainer);
    if (!*trainer->run.checkpoint && !directory) {
        int status = trainer->run.tuner
                         ? STATUS_OK /* it has started with them */
                         : base_initialise(trainer->model.base, (uint64_t)trainer->run.config.train.seed);
        return status ? status : optimizer_reset(&trainer->stepper.optimizer);
    }
    struct optimizer_arrays state;
    int status = state_open(&state, trainer, false);
    if (!status && *trainer->run.checkpoint)
        status = load_checkpoint(trainer, &state);
    else if (!status)
        status = load_weights(trainer, &state, directory);
    free(state.ranges);
    THEN(status, train_fp8_load(trainer));
    status = comm_agree(trainer->world, status);
    return status ? status : optimizer_round_weights(&trainer->stepper.optimizer);
}
