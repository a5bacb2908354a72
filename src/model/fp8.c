/* FP8 by delayed scaling: the scale of a tensor follows from the largest sizes that it had in earlier steps.
 *
 * Scales and histories are parameters of their own table, so that they are allocated, saved and loaded as all
 * parameters are. The ranks of a stage have the same values. */
#include "model-internal.h"

#include "parallel/sharded.h"

#include <math.h>

enum { MULTIPLE = 16 /* cuBLASLt's, for all sizes of a product */ };

/* ---- the table ---- */

/* Adds a row [rows, FP8_TENSORS] of a layer. */
static int describe(struct param_table *table, int64_t layer, const char *name, int64_t rows, enum param_init init) {
    struct param row = {
        .dims = 2,
        .shape = {rows, FP8_TENSORS},
        .init = init,
        .layer = (int)layer,
        .slice_count = 1,
        .slices = {{.rows = rows, .file_rows = rows}},
    };
    snprintf(row.name, sizeof row.name, "layers.%lld.%s", (long long)layer, name);
    snprintf(row.slices[0].name, sizeof row.slices[0].name, "%s", row.name);
    int id = param_table_add(table, &row);
    return id < 0 ? id : STATUS_OK;
}

/* A layer has two rows: the scales with their inverses, and the histories. */
enum { ROW_SCALE, ROW_HISTORY, ROWS };

int model_fp8_describe(const struct model_config *config, int64_t history_length, struct param_table *table) {
    int status = STATUS_OK;
    *table = (struct param_table){0};
    for (int64_t layer = 0; layer < config->num_layers && !status; layer++) {
        status = describe(table, layer, "fp8_scale", 2, PARAM_INIT_ONE);
        THEN(status, describe(table, layer, "fp8_amax_history", history_length, PARAM_INIT_ZERO));
    }
    if (status)
        param_table_free(table);
    return status;
}

struct param_store *model_fp8_store(struct training_runner *training) {
    return training->run.fp8 ? &training->fp8.store : NULL;
}

/* Returns the values of a layer's row; NULL while planning. */
static float *values_of(const struct training_runner *training, int64_t layer, int row) {
    const struct param_store *store = &training->fp8.store;
    int id = (int)layer * ROWS + row;
    return param_range_within(store, PARAM_WEIGHTS, store->map.places[id].offset, param_local_elements(store, id)).data;
}

/* ---- the linears of the stage ---- */

static const struct linear *linear_of(const struct training_runner *training, int64_t layer, enum attach_place place) {
    const struct block_params *block = &training->run.base->blocks[layer];
    const struct linear *const linears[FP8_PLACES] = {&block->qkv, &block->projection, &block->fc1, &block->fc2};
    return linears[place - ATTACH_QKV];
}

/* Returns the number of a layer among those of the stage. */
static int64_t local_layer(const struct base *base, int64_t layer) {
    const struct model_chunk *chunk = base->options.chunks;
    int64_t before = 0;
    for (; layer >= chunk->first + chunk->count; chunk++)
        before += chunk->count;
    return before + layer - chunk->first;
}

struct fp8_linear *fp8_linear_at(const struct runner *run, int64_t layer, enum attach_place place) {
    struct fp8_linear *linears = run->fp8;
    return linears ? &linears[local_layer(run->base, layer) * FP8_PLACES + place - ATTACH_QKV] : NULL;
}

bool fp8_has_norms(const struct runner *run) {
    const struct rank *rank = run->rank;
    return run->fp8 && !(rank->grid.tensor > 1 && rank->is_sequence_parallel);
}

/* Calls `visit` for every linear of the stage. */
static int every_linear(struct training_runner *training,
                        int (*visit)(struct training_runner *training, int64_t layer, enum attach_place place)) {
    const struct base_options *o = &training->run.base->options;
    int status = STATUS_OK;
    for (int c = 0; c < o->chunk_count; c++)
        for (int64_t layer = o->chunks[c].first; layer < o->chunks[c].first + o->chunks[c].count; layer++)
            for (int place = ATTACH_QKV; place <= ATTACH_FC2 && !status; place++)
                status = visit(training, layer, (enum attach_place)place);
    return status;
}

/* Refuses a size that is not a multiple of 16, with the nearest that is. */
static int check_linear(struct training_runner *training, int64_t layer, enum attach_place place) {
    const struct linear *linear = linear_of(training, layer, place);
    int64_t size = linear->in % MULTIPLE ? linear->in : linear->out;
    int64_t nearest = (size + MULTIPLE / 2) / MULTIPLE * MULTIPLE;
    if (param_view(&training->run.base->store, linear->weight, PARAM_LINEAR).form != MATRIX_PLAIN)
        return status_fail(STATUS_UNSUPPORTED, "train.precision fp8 casts plain weights, and these are held as %s",
                           training->run.base->store.storage->name);
    if (size % MULTIPLE == 0)
        return STATUS_OK;
    return status_fail(
        STATUS_USAGE,
        "train.precision fp8: %s has %lld %s on each tensor rank; FP8 products need multiples of %d, and "
        "the nearest is %lld",
        model_linear(place).name, (long long)size, size == linear->in ? "inputs" : "outputs", MULTIPLE,
        (long long)(nearest ? nearest : MULTIPLE));
}

static int open_linear(struct training_runner *training, int64_t layer, enum attach_place place) {
    bool is_e4m3 = training->options.fp8.is_e4m3;
    struct fp8_linear *linear = fp8_linear_at(&training->run, layer, place);
    for (int operand = 0; operand < FP8_OPERANDS; operand++)
        linear->tensor[operand].type = operand == FP8_GRADIENT && !is_e4m3 ? DTYPE_E5M2 : DTYPE_E4M3;
    linear->keeps_weight = !sharded_cuts_weights(&training->run.base->store);
    return STATUS_OK;
}

static int check_device(const struct rank *rank) {
    static const float one = 1;
    struct matrix_view factor = matrix_plain(DTYPE_E4M3, NULL, MULTIPLE, MULTIPLE);
    factor.form = MATRIX_FP8;
    factor.scale = &one;
    const struct gemm product = {
        .a = factor, .b = factor, .c = matrix_plain(DTYPE_BF16, NULL, MULTIPLE, MULTIPLE), .b_transposed = true};
    const struct matrix_view plain = matrix_plain(DTYPE_BF16, NULL, MULTIPLE, MULTIPLE);
    const struct gemm of_bf16 = {.a = plain, .b = plain, .c = plain, .b_transposed = true};
    if (rank->ops->gemm_supports(rank->device, &product))
        return STATUS_OK;
    return status_fail(
        STATUS_UNSUPPORTED, "train.precision fp8: no FP8 products on %s (GPUs have them from sm_89 on); %s works",
        device_description(rank->device), rank->ops->gemm_supports(rank->device, &of_bf16) ? "bf16" : "fp32");
}

int fp8_sketch(struct training_runner *training) {
    const struct base_options *o = &training->run.base->options;
    struct model_fp8 *fp8 = &training->fp8;
    if (!training->options.fp8.is_on)
        return STATUS_OK;
    TRY(check_device(training->run.rank));
    TRY(every_linear(training, check_linear));
    TRY(model_fp8_describe(&o->config, training->options.fp8.history_length, &fp8->table));
    for (int c = 0; c < o->chunk_count; c++)
        fp8->layers += o->chunks[c].count;
    training->run.fp8 = calloc((size_t)(fp8->layers * FP8_PLACES), sizeof *training->run.fp8);
    fp8->is_held = calloc((size_t)fp8->table.count, sizeof *fp8->is_held);
    TRY(status_allocated(training->run.fp8 && fp8->is_held));
    for (int id = 0; id < fp8->table.count; id++)
        fp8->is_held[id] = model_has_layer(o, id / ROWS);
    const struct rank *rank = training->run.rank;
    const struct param_part part = {
        .tensor = rank->place.tensor, .tensors = rank->grid.tensor, .is_held = fp8->is_held};
    int status = param_store_sketch(
        &fp8->store, &(const struct param_store_options){
                         .table = &fp8->table, .part = &part, .device = rank->device, .dtype = DTYPE_F32});
    return status ? status : every_linear(training, open_linear);
}

/* ---- memory ---- */

/* Returns the bytes of a cast weight; 0 in a stage without layers. */
static size_t weight_bytes(const struct training_runner *training, enum attach_place place) {
    const struct model_chunk *chunk = training->run.base->options.chunks;
    while (!chunk->count && training->fp8.layers)
        chunk++;
    const struct linear *linear = chunk->count ? linear_of(training, chunk->first, place) : NULL;
    return linear ? fp8_bytes(linear->out, linear->in) : 0;
}

static size_t kept_bytes(const struct training_runner *training) {
    size_t bytes = 0;
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++)
        bytes += weight_bytes(training, (enum attach_place)place);
    return sharded_cuts_weights(&training->run.base->store) ? 0 : bytes * (size_t)training->fp8.layers;
}

size_t fp8_weight_bytes(const struct training_runner *training) {
    return training->run.fp8 ? param_weight_bytes(&training->fp8.store) + kept_bytes(training) : 0;
}

/* Sets the memory of an operand in every linear. */
static void share(struct training_runner *training, enum fp8_operand operand, void *memory) {
    for (int64_t i = 0; i < training->fp8.layers * FP8_PLACES; i++)
        training->run.fp8[i].tensor[operand].values = memory;
}

void fp8_place(struct training_runner *training, struct arena *arena) {
    const struct model_widths *widths = &training->run.base->part.widths;
    int64_t N = training->run.max_rows, C = training->run.base->options.config.hidden_size;
    int64_t in = C > widths->q ? C : widths->q, out = C > widths->qkv ? C : widths->qkv;
    size_t most = 0;
    if (!training->run.fp8)
        return;
    in = in > widths->ffn ? in : widths->ffn;
    out = out > widths->fc1 ? out : widths->fc1;
    training->fp8.amax = arena_take(arena, (size_t)(training->fp8.layers * FP8_TENSORS) * sizeof *training->fp8.amax);
    share(training, FP8_INPUT, arena_take(arena, fp8_bytes(N, in)));
    share(training, FP8_GRADIENT, arena_take(arena, fp8_bytes(N, out)));
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++)
        most = weight_bytes(training, (enum attach_place)place) > most
                   ? weight_bytes(training, (enum attach_place)place)
                   : most;
    if (sharded_cuts_weights(&training->run.base->store))
        share(training, FP8_WEIGHT, arena_take(arena, most));
}

/* Gives a linear the addresses of its tensors, and of its cast weight. */
static int set_addresses(struct training_runner *training, int64_t layer, enum attach_place place) {
    struct model_fp8 *fp8 = &training->fp8;
    struct fp8_linear *linear = fp8_linear_at(&training->run, layer, place);
    int64_t local = local_layer(training->run.base, layer);
    char *weight = fp8->weights;
    for (int operand = 0; operand < FP8_OPERANDS; operand++) {
        int64_t tensor = operand * FP8_PLACES + place - ATTACH_QKV;
        linear->tensor[operand].scale = values_of(training, layer, ROW_SCALE) + tensor;
        linear->tensor[operand].inverse = linear->tensor[operand].scale + FP8_TENSORS;
        linear->tensor[operand].amax = fp8->amax + local * FP8_TENSORS + tensor;
    }
    if (!weight)
        return STATUS_OK;
    weight += (size_t)local * kept_bytes(training) / (size_t)fp8->layers;
    for (int before = ATTACH_QKV; before < (int)place; before++)
        weight += weight_bytes(training, (enum attach_place)before);
    linear->tensor[FP8_WEIGHT].values = weight;
    return STATUS_OK;
}

int fp8_open(struct training_runner *training) {
    struct model_fp8 *fp8 = &training->fp8;
    struct rank *rank = training->run.rank;
    if (!training->run.fp8)
        return STATUS_OK;
    int status = param_store_open(&fp8->store, NULL);
    THEN_IF(status, kept_bytes(training), device_alloc(rank->device, kept_bytes(training), &fp8->weights));
    if (status)
        return status_wrap(status, "FP8");
    status = param_store_initialise(&fp8->store, rank->exec.stream, 0);
    THEN(status, stream_zero(rank->exec.stream, fp8->amax, (size_t)(fp8->layers * FP8_TENSORS) * sizeof *fp8->amax));
    return status ? status : every_linear(training, set_addresses);
}

void fp8_close(struct training_runner *training) {
    struct model_fp8 *fp8 = &training->fp8;
    device_free(training->run.rank->device, fp8->weights);
    param_store_close(&fp8->store);
    param_table_free(&fp8->table);
    free(fp8->is_held);
    free(training->run.fp8);
}

/* ---- the end of a step ---- */

/* Sets the scales of `count` tensors of a layer, from number `first` on. */
static int set_scales(struct training_runner *training, int64_t layer, int64_t step, int first, int count,
                      enum dtype type) {
    const struct model_fp8_options *options = &training->options.fp8;
    struct fp8_scales call = {
        .count = count,
        .length = options->history_length,
        .position = step % options->history_length,
        .stride = FP8_TENSORS,
        .is_most_recent = options->is_most_recent,
        .most = ldexpf(fp8_largest(type), -options->margin),
    };
    if (!training->run.rank->is_planning) {
        call.amax = training->fp8.amax + local_layer(training->run.base, layer) * FP8_TENSORS + first;
        call.history = values_of(training, layer, ROW_HISTORY) + first;
        call.scale = values_of(training, layer, ROW_SCALE) + first;
        call.inverse = call.scale + FP8_TENSORS;
    }
    return rank_run(training->run.rank, PHASE_OPTIMIZER, fp8_scales, &call);
}

int model_fp8_end_step(struct training_runner *training, int64_t step) {
    const struct base_options *o = &training->run.base->options;
    struct model_fp8 *fp8 = &training->fp8;
    if (!training->run.fp8)
        return STATUS_OK;
    int64_t tensors = fp8->layers * FP8_TENSORS;
    int forward = FP8_GRADIENT * FP8_PLACES;
    int status = rank_max(training->run.rank, RANK_TENSOR, fp8->amax, tensors, DTYPE_F32);
    THEN(status, rank_max(training->run.rank, RANK_DATA, fp8->amax, tensors, DTYPE_F32));
    for (int64_t layer = 0; layer < o->config.num_layers && !status; layer++) {
        if (!model_has_layer(o, layer))
            continue;
        status = set_scales(training, layer, step, 0, forward, DTYPE_E4M3);
        THEN(status, set_scales(training, layer, step, forward, FP8_PLACES,
                                training->options.fp8.is_e4m3 ? DTYPE_E4M3 : DTYPE_E5M2));
    }
    for (int64_t i = 0; i < fp8->layers * FP8_PLACES; i++)
        training->run.fp8[i].weight = FP8_WEIGHT_OLD;
    return status;
}
