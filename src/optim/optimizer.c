/* AdamW and clipping, driven by the parameter table. */
#include "optim/optim.h"

#include "parallel/schedule.h"

#include <math.h>

/* Numbers that stay on the device between the norm and the update. */
struct scalars {
    double sum_of_squares;
    float norm, factor;
};

size_t optimizer_bytes(int64_t elements, int64_t parameters, enum dtype dtype) {
    return (size_t)elements * sizeof(float) * (dtype == DTYPE_F32 ? 2 : 3) + sizeof(struct scalars) +
           (size_t)parameters * sizeof(struct flat_range);
}

/* The scratch is that of all elements, for any pieces. */
int optimizer_plan(struct rank *rank, int64_t flat_elements, int shards, enum dtype dtype) {
    int64_t local_elements = flat_elements / shards;
    const struct sum_of_squares all = {.count = flat_elements}, squares = {.count = local_elements};
    const struct clip_factor clip = {0};
    const struct adamw update = {.elements = local_elements, .weights_type = dtype};
    int status = rank_need(rank, rank->ops->sum_of_squares_workspace(rank->device, &all));
    THEN(status, rank_run(rank, PHASE_OPTIMIZER, sum_of_squares, &squares));
    THEN(status, rank_sum(rank, RANK_TENSOR, NULL, 1, DTYPE_F64));
    THEN_IF(status, shards > 1, rank_sum(rank, RANK_DATA, NULL, 1, DTYPE_F64));
    THEN(status, rank_sum(rank, RANK_PIPELINE, NULL, 1, DTYPE_F64));
    THEN(status, rank_run(rank, PHASE_OPTIMIZER, clip_factor, &clip));
    return status ? status : rank_run(rank, PHASE_OPTIMIZER, adamw, &update);
}

/* Returns the part of a parameter in a piece, relative to the start of the piece. */
static struct flat_range range_of(const struct optimizer *optimizer, const struct sync_piece *piece, int id) {
    const struct param_store *store = optimizer->store;
    const struct param *row = &store->map.table->rows[id];
    int64_t first = store->map.places[id].offset - piece->first, end = first + param_local_elements(store, id);
    first = first > 0 ? first : 0;
    end = end < piece->count ? end : piece->count;
    return (struct flat_range){
        .count = end > first ? end - first : 0,
        .first = first,
        .master = first,
        .state = first,
        .weight_decay = row->decays ? (float)optimizer->options.weight_decay : 0,
        .lr_factor = row->lr_factor,
    };
}

static int allocate_ranges(struct optimizer *optimizer) {
    size_t most = (size_t)optimizer->store->map.table->count; /* as in make_ranges */
    void *memory;
    TRY(device_alloc(optimizer->rank->device, most * sizeof(struct flat_range), &memory));
    optimizer->ranges = memory;
    optimizer->turn_end = calloc((size_t)optimizer->sync->piece_count + 1, sizeof *optimizer->turn_end);
    return status_allocated(optimizer->turn_end);
}

/* Makes the ranges of all parameters that train, on the device: piece after piece, in the order in which a forward
 * needs them. */
static int make_ranges(struct optimizer *optimizer) {
    const struct param_store *store = optimizer->store;
    struct stream *stream = optimizer->rank->exec.stream;
    const struct gradient_sync *sync = optimizer->sync;
    size_t most =
        (size_t)store->map.table->count; /* a bucket holds whole parameters, so at most one piece has a part of each */
    int64_t before = 0, count = 0;
    struct flat_range *ranges = calloc(most, sizeof *ranges);
    TRY(status_allocated(ranges));
    for (int turn = 0; turn < sync->piece_count; turn++) {
        for (int i = 0; i < store->map.table->count; i++) {
            struct flat_range range = {0};
            if (param_trains(store, i))
                range = range_of(optimizer, &sync->pieces[sync->turns[turn]], i);
            range.before = before;
            before += range.count;
            if (range.count)
                ranges[count++] = range;
        }
        optimizer->turn_end[turn] = count;
    }
    int status = stream_copy_to_device(stream, optimizer->ranges, ranges, (size_t)count * sizeof *ranges);
    THEN(status, stream_wait(stream));
    free(ranges);
    return status;
}

int optimizer_open(struct optimizer *optimizer, const struct optimizer_options *options, struct gradient_sync *sync) {
    struct param_store *store = sync->store;
    struct device *device = sync->rank->device;
    *optimizer = (struct optimizer){
        .options = *options, .rank = sync->rank, .store = store, .sync = sync, .weights_type = store->map.type};
    size_t local = (size_t)sync->local_elements * sizeof(float);
    void *block[3] = {0}, *norm = NULL;
    int status = STATUS_OK;
    for (int i = 0; i < (optimizer->weights_type == DTYPE_F32 ? 2 : 3) && !status; i++)
        status = device_alloc_zeroed(device, local, &block[i]);
    THEN(status, device_alloc(device, sizeof(struct scalars), &optimizer->scalars));
    THEN(status, allocate_ranges(optimizer));
    THEN(status, make_ranges(optimizer));
    THEN(status, device_host_alloc(device, 2 * sizeof(float), &norm));
    optimizer->norm = norm;
    optimizer->m = block[0];
    optimizer->v = block[1];
    optimizer->master = block[2];
    if (status) {
        optimizer_close(optimizer);
        return status_wrap(status, "optimizer");
    }
    return STATUS_OK;
}

int optimizer_change(struct optimizer *optimizer, const struct optimizer_options *options) {
    bool is_same = optimizer->options.weight_decay == options->weight_decay; /* which the ranges hold */
    optimizer->options = *options;
    return is_same ? STATUS_OK : make_ranges(optimizer);
}

void optimizer_close(struct optimizer *optimizer) {
    if (!optimizer->rank)
        return;
    struct device *device = optimizer->rank->device;
    device_free(device, optimizer->m);
    device_free(device, optimizer->v);
    device_free(device, optimizer->master);
    device_free(device, optimizer->scalars);
    device_free(device, optimizer->ranges);
    free(optimizer->turn_end);
    device_host_free(device, optimizer->norm);
    *optimizer = (struct optimizer){0};
}

static void *weights_of(const struct optimizer *optimizer, const struct sync_piece *piece) {
    return param_range_between(optimizer->store, PARAM_WEIGHTS, piece->first, piece->count).data;
}

float *optimizer_master(const struct optimizer *optimizer, const struct sync_piece *piece) {
    return optimizer->weights_type == DTYPE_F32 ? weights_of(optimizer, piece) : optimizer->master + piece->local;
}

int optimizer_reset(struct optimizer *optimizer) {
    struct rank *rank = optimizer->rank;
    const struct gradient_sync *sync = optimizer->sync;
    size_t local = (size_t)sync->local_elements * sizeof(float);
    optimizer->step = 0;
    int status = stream_zero(rank->exec.stream, optimizer->m, local);
    THEN(status, stream_zero(rank->exec.stream, optimizer->v, local));
    for (int i = 0; i < sync->piece_count && optimizer->master && !status; i++) {
        const struct sync_piece *piece = &sync->pieces[i];
        status = rank_run(rank, PHASE_OPTIMIZER, cast,
                          &(const struct cast_call){piece->count, optimizer->weights_type, DTYPE_F32,
                                                    weights_of(optimizer, piece), optimizer_master(optimizer, piece)});
    }
    return status;
}

int optimizer_round_weights(struct optimizer *optimizer) {
    const struct gradient_sync *sync = optimizer->sync;
    int status = STATUS_OK;
    for (int i = 0; i < sync->piece_count && optimizer->master && !status; i++) {
        const struct sync_piece *piece = &sync->pieces[i];
        status = rank_run(optimizer->rank, PHASE_OPTIMIZER, cast,
                          &(const struct cast_call){piece->count, DTYPE_F32, optimizer->weights_type,
                                                    optimizer_master(optimizer, piece), weights_of(optimizer, piece)});
    }
    return status ? status : gradient_sync_gather_weights(optimizer->sync);
}

/* Elements of the flat arrays that another rank counts. */
struct counted_elsewhere {
    int64_t first, end;
};

/* Lists the elements of a parameter that other ranks count, ascending: all of them if another stage has the original,
 * and those that an earlier tensor rank holds, too. */
static int list_counted_elsewhere(const struct param_store *store, int id,
                                  struct counted_elsewhere list[PARAM_MAX_SLICES]) {
    struct param_rect rects[PARAM_MAX_SLICES];
    int64_t at = store->map.places[id].offset;
    int rect_count = param_part_rects(&store->map.part, store->map.table, id, rects), count = 0;
    if (param_part_is_copy(&store->map.part, id)) {
        list[0] = (struct counted_elsewhere){at, at + param_local_elements(store, id)};
        return 1;
    }
    for (int i = 0; i < rect_count; i++) {
        int64_t first = at + rects[i].local_row * rects[i].columns;
        if (rects[i].is_second)
            list[count++] = (struct counted_elsewhere){first, first + rects[i].rows * rects[i].columns};
    }
    return count;
}

static int add_squares(struct optimizer *optimizer, int64_t first, int64_t end, double *sum) {
    if (first >= end)
        return STATUS_OK;
    TRY(rank_pause(optimizer->rank, SLICE_UPDATE, (double)(end - first) * sizeof(float) * SLICE_BYTE));
    const float *gradients = param_range_between(optimizer->store, PARAM_GRADIENTS, first, end - first).data;
    return rank_run(optimizer->rank, PHASE_OPTIMIZER, sum_of_squares,
                    &(const struct sum_of_squares){end - first, gradients, true, sum});
}

/* Adds the squares of gradients [first, end), except those that another rank counts. */
static int sum_squares_between(struct optimizer *optimizer, int64_t first, int64_t end, double *sum) {
    const struct param_store *store = optimizer->store;
    int status = STATUS_OK;
    for (int i = 0; i < store->map.table->count && !status; i++) {
        struct counted_elsewhere list[PARAM_MAX_SLICES];
        int count = list_counted_elsewhere(store, i, list);
        for (int j = 0; j < count && !status; j++) {
            if (list[j].first >= end || list[j].end <= first)
                continue;
            status = add_squares(optimizer, first, list[j].first, sum);
            first = list[j].end;
        }
    }
    return status ? status : add_squares(optimizer, first, end, sum);
}

/* Adds the squares of this rank's pieces of the parameters that are cut over the tensor ranks, or of the copies. */
static int sum_squares(struct optimizer *optimizer, bool of_copies, double *sum) {
    const struct param_map *map = &optimizer->store->map;
    const struct gradient_sync *sync = optimizer->sync;
    int64_t least = of_copies ? map->sharded_elements : 0,
            most = of_copies ? map->flat_elements : map->sharded_elements;
    int status = STATUS_OK;
    for (int i = 0; i < sync->piece_count && !status; i++) {
        const struct sync_piece *piece = &sync->pieces[i];
        int64_t first = piece->first > least ? piece->first : least, end = piece->first + piece->count;
        end = end < most ? end : most;
        if (first < end)
            status = sum_squares_between(optimizer, first, end, sum);
    }
    return status;
}

/* Computes the norm and the clip factor on the device, and queues a copy of both to the host. */
static int measure_norm(struct optimizer *optimizer) {
    struct rank *rank = optimizer->rank;
    struct scalars *scalars = optimizer->scalars;
    struct clip_factor clip = {
        .sum_of_squares = &scalars->sum_of_squares,
        .max_norm = (float)optimizer->options.clip_grad,
        .norm = &scalars->norm,
        .factor = &scalars->factor,
    };
    int status = stream_zero(rank->exec.stream, &scalars->sum_of_squares, sizeof scalars->sum_of_squares);
    THEN(status, sum_squares(optimizer, false, &scalars->sum_of_squares));
    THEN(status, rank_sum(rank, RANK_TENSOR, &scalars->sum_of_squares, 1, DTYPE_F64));
    if (!status) /* parameters of which every tensor rank has a copy count once */
        status = sum_squares(optimizer, true, &scalars->sum_of_squares);
    THEN_IF(status, optimizer->sync->is_sharded, rank_sum(rank, RANK_DATA, &scalars->sum_of_squares, 1, DTYPE_F64));
    THEN(status, rank_sum(rank, RANK_PIPELINE, &scalars->sum_of_squares, 1, DTYPE_F64));
    THEN(status, rank_run(rank, PHASE_OPTIMIZER, clip_factor, &clip));
    return status ? status : stream_copy_to_host(rank->exec.stream, optimizer->norm, &scalars->norm, 2 * sizeof(float));
}

/* Pauses before the next *count of `left` ranges, which have `elements` on average. Only slices cut a piece. */
static int pause_before_ranges(struct optimizer *optimizer, int64_t left, double elements, int64_t *count) {
    enum { PART_ELEMENTS = 1 << 16, ELEMENT_BYTES = 28 };
    *count = left;
    if (optimizer->rank->slice && elements * (double)left > PART_ELEMENTS)
        *count = elements < PART_ELEMENTS ? (int64_t)(PART_ELEMENTS / elements) : 1;
    return rank_pause(optimizer->rank, SLICE_UPDATE, (double)*count * elements * ELEMENT_BYTES * SLICE_BYTE);
}

/* Updates the piece of a turn. */
static int update(struct optimizer *optimizer, int turn, double lr) {
    const struct sync_piece *piece = &optimizer->sync->pieces[optimizer->sync->turns[turn]];
    int64_t first_range = turn ? optimizer->turn_end[turn - 1] : 0;
    int64_t ranges = optimizer->turn_end[turn] - first_range;
    if (!ranges)
        return STATUS_OK;
    struct adamw call = {
        .master = optimizer_master(optimizer, piece),
        .m = optimizer->m + piece->local,
        .v = optimizer->v + piece->local,
        .gradient = param_range_between(optimizer->store, PARAM_GRADIENTS, piece->first, piece->count).data,
        .gradient_scale = &((struct scalars *)optimizer->scalars)->factor,
        .weights = optimizer->master ? weights_of(optimizer, piece) : NULL,
        .weights_type = optimizer->weights_type,
        .lr = lr,
        .beta1 = (float)optimizer->options.beta1,
        .beta2 = (float)optimizer->options.beta2,
        .epsilon = (float)optimizer->options.epsilon,
        .step = optimizer->step + 1,
    };
    int status = STATUS_OK;
    for (int64_t done = 0; done < ranges && !status; done += call.range_count) {
        call.ranges = optimizer->ranges + first_range + done;
        status =
            pause_before_ranges(optimizer, ranges - done, (double)piece->count / (double)ranges, &call.range_count);
        THEN(status, rank_run(optimizer->rank, PHASE_OPTIMIZER, adamw, &call));
    }
    return status;
}

/* Updates the pieces in the order in which the next forward needs them. With sharding, the first ones travel while
 * others are updated. */
static int update_pieces(struct optimizer *optimizer, double lr) {
    int status = STATUS_OK;
    for (int turn = 0; turn < optimizer->sync->piece_count && !status; turn++) {
        status = update(optimizer, turn, lr);
        THEN(status, gradient_sync_gather_start(optimizer->sync, turn));
    }
    return status;
}

int optimizer_start(struct optimizer *optimizer, double lr) {
    int status = gradient_sync_finish(optimizer->sync);
    THEN(status, measure_norm(optimizer));
    return status ? status : update_pieces(optimizer, lr);
}

int optimizer_finish(struct optimizer *optimizer, double *norm) {
    *norm = (double)optimizer->norm[0];
    if (!isfinite(*norm)) /* the device has updated nothing */
        return status_fail(STATUS_INVALID, "the gradient norm is %g", *norm);
    optimizer->step++;
    return STATUS_OK;
}

int optimizer_step(struct optimizer *optimizer, double lr, double *norm) {
    *norm = 0;
    int status = optimizer_start(optimizer, lr);
    THEN(status, stream_wait(optimizer->rank->exec.stream));
    return status ? status : optimizer_finish(optimizer, norm);
}
