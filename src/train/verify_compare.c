/* Comparisons of a rank's part with one rank's whole, and of ranks with each other. */
#include "verify-internal.h"

#include "parallel/sharded.h"

#include <math.h>

const char *const verify_kind_names[VERIFY_KINDS] = {"output",     "loss",    "gradient", "gradient_sum",
                                                     "grad_norm",  "clip",    "weight",   "exp_avg",
                                                     "exp_avg_sq", "replica", "resumed"};

/* A gradient is a sum of products that went through all layers. In another order it differs by 2^-24 x sqrt(rows) x
 * layers of the largest entry: 5e-6 for 200 rows and 8 layers. Moments are means of gradients or of their squares. A
 * weight moves by rate x mean / sqrt(square) in a step. A relative error of its gradient moves it by twice that part of
 * the rate, once through the mean and once through the square. The error is up to CLOSE x the tensor's largest
 * gradient, so a gradient that cancels may even have the other sign: then it is 2 rates. */
static const double CLOSE = 1e-5, CLOSE_LOSS = 1e-6;

/* The place of a comparison in the order of checks, and its name. */
struct place {
    enum verify_kind kind;
    int64_t micro_batch;
    int turn;                       /* in the order in which a step computes */
    const char *name;               /* NULL: parameter `id` of `seen` */
    const struct verify_seen *seen; /* of one rank in a proof's first run: values are of the whole parameter */
    int id;
    int64_t first;          /* element of the parameter on this rank */
    double bound, scale;    /* the difference that is allowed, of the scale; bound 0: none, bit by bit */
    const float *gradients; /* of weights, else NULL */
    double rate, largest;   /* of the weights; of the gradients of the whole tensor */
};

/* ---- names ---- */

/* Writes the name that files have for the tensor with an element, and the element's number there. */
static void name_tensor(struct verify *v, const struct place *place, int64_t at) {
    struct verify_difference *found = &v->difference;
    const struct param_map *map = &place->seen->trainer->stepper.store->map,
                           *whole = &v->one->trainer->stepper.store->map;
    const struct param_table *table = map->table;
    const struct param *row = &table->rows[place->id];
    const int64_t *places = place->seen->places;
    int64_t local = map->places[place->id].offset + place->first + at;
    int64_t element = (places ? places[local] : local) - whole->places[place->id].offset;
    const struct param_slice *slice = row->slices;
    int64_t line = element / row->shape[1], column = element % row->shape[1];
    while (slice < row->slices + row->slice_count - 1 && line >= slice->row + slice->rows)
        slice++;
    const char *prefix = table->files && table->files->prefix ? table->files->prefix : "";
    if (table->files && table->files->head && !strcmp(slice->name, table->files->head))
        prefix = "";
    snprintf(found->tensor, sizeof found->tensor, "%s%s", prefix, row->slice_count ? slice->name : row->name);
    line += slice->file_start - slice->row;
    found->index = slice->is_transposed ? column * slice->file_rows + line : line * row->shape[1] + column;
}

/* ---- one comparison ---- */

/* Returns by how much of the scale a layout's value is off, without what the error of its gradient explains. */
static double error_of(const struct place *place, int64_t i, float one, float layout) {
    double size = fabs((double)one - layout), gradient = place->gradients ? fabs((double)place->gradients[i]) : 0;
    size -= gradient > 0 ? 2 * place->rate * fmin(CLOSE * place->largest / gradient, 1) : 0;
    return (size < 0 ? 0 : size) / (place->scale > 0 ? place->scale : 1);
}

/* Finds the factor that explains all entries: 0.5, 2, 0. */
static void find_ratio(const float *one, const float *layout, int64_t count, struct verify_difference *found) {
    double products = 0, squares = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        products += (double)one[i] * layout[i];
        squares += (double)one[i] * one[i];
        largest = fmax(largest, fabs((double)one[i]));
    }
    double ratio = squares > 0 ? products / squares : 1;
    bool is_one_factor = fabs(ratio - 1) > 1e-3;
    for (int64_t i = 0; i < count && is_one_factor; i++)
        is_one_factor = fabs(layout[i] - ratio * one[i]) <= 1e-4 * largest;
    found->has_ratio = is_one_factor;
    found->ratio = round(ratio * 1e4) / 1e4;
}

static void record(struct verify *v, const struct place *place, const float *one, const float *layout, int64_t count,
                   int64_t at) {
    struct verify_difference *found = &v->difference;
    *found =
        (struct verify_difference){.is_found = true,
                                   .order = ((int64_t)place->kind << 48) + (place->micro_batch << 32) + place->turn,
                                   .step = v->step,
                                   .micro_batch = place->micro_batch,
                                   .rank = v->world->rank,
                                   .index = at,
                                   .one_rank = one[at],
                                   .layout = layout[at]};
    snprintf(found->check, sizeof found->check, "%s", verify_kind_names[place->kind]);
    if (place->name)
        snprintf(found->tensor, sizeof found->tensor, "%s", place->name);
    else
        name_tensor(v, place, at);
    find_ratio(one, layout, count, found);
}

/* Compares two arrays. The first difference of a rank's step is kept, and ends its comparisons. */
static void compare(struct verify *v, const struct place *place, const float *one, const float *layout, int64_t count) {
    struct verify_count *counted = &v->counts[place->kind];
    int64_t first = -1;
    if (v->difference.is_found)
        return;
    for (int64_t i = 0; i < count; i++) {
        double error = error_of(place, i, one[i], layout[i]);
        bool is_equal = place->bound == 0 ? memcmp(&one[i], &layout[i], sizeof *one) == 0 : error <= place->bound;
        counted->worst = error <= counted->worst ? counted->worst : error;
        first = is_equal || first >= 0 ? first : i;
    }
    counted->tensors++;
    counted->bound = fmax(counted->bound, place->bound);
    if (first >= 0)
        record(v, place, one, layout, count, first);
}

static double largest_of(const float *values, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

static void compare_number(struct verify *v, enum verify_kind kind, const char *name, double one, double layout,
                           double bound) {
    const float a = (float)one, b = (float)layout;
    compare(v,
            &(const struct place){
                .kind = kind, .micro_batch = v->mine.micro_count - 1, .name = name, .bound = bound, .scale = fabs(one)},
            &a, &b, 1);
}

/* ---- outputs ---- */

/* Compares `values` with those of a group's first rank, bit by bit. */
static int compare_replica(struct verify *v, struct comm *group, const struct place *place, const float *values,
                           int64_t count) {
    TRY(stop_check(VERIFY_WHEN));
    float *first = calloc((size_t)count + 1, sizeof *first);
    TRY(status_allocated(first));
    memcpy(first, values, (size_t)count * sizeof *first);
    struct comm_data data = {.send = first, .receive = first, .count = count, .dtype = DTYPE_F32};
    int status = group->size > 1 ? comm_broadcast(group, &data, 0) : STATUS_OK;
    if (!status && group->size > 1)
        compare(v, place, first, values, count);
    free(first);
    return status;
}

/* Compares with one rank's outputs, and those of tensor ranks with the same rows with each other. The layout's micro
 * batch m of data rank d is the m D + d-th of one rank. */
static int compare_outputs(struct verify *v) {
    const struct verify_seen *mine = &v->mine, *one = v->one;
    const struct rank *rank = &mine->trainer->rank;
    int64_t width = mine->trainer->run.config.model.hidden_size;
    char name[32];
    for (int64_t m = 0; m < mine->micro_count; m++)
        for (int64_t layer = -1; layer < mine->layers; layer++) {
            int64_t whole = m * rank->data->size + rank->data->rank, rows = one->rows[whole];
            if (!mine->has_output[layer + 1])
                continue;
            const float *values = verify_output(one, whole, layer), *of_layout = verify_output(mine, m, layer);
            int64_t count = rank_stream_rows(rank, rows) * width;
            struct place place = {.kind = VERIFY_OUTPUT,
                                  .micro_batch = m,
                                  .turn = (int)layer + 1,
                                  .name = name,
                                  .bound = rank->grid.tensor > 1 ? CLOSE : 0,
                                  .scale = largest_of(values, rows * width)};
            snprintf(name, sizeof name, layer < 0 ? "embedding" : "layers.%d", (int)layer);
            compare(v, &place, values + rank_first_stream_row(rank, rows) * width, of_layout, count);
            place.kind = VERIFY_REPLICA;
            place.bound = 0;
            if (!rank->is_sequence_parallel)
                TRY(compare_replica(v, rank->tensor, &place, of_layout, count));
        }
    return STATUS_OK;
}

/* ---- gradients before their sums ---- */

/* True when this rank's gradient is one of the terms of the whole. Tensor ranks with copies have the same gradient,
 * unless each has a part of it; the last backward has summed these parts. */
static bool is_term(const struct verify_seen *mine, int id, bool is_summed) {
    const struct param *row = &mine->trainer->stepper.store->map.table->rows[id];
    return row->shard != PARAM_REPLICATED || mine->trainer->rank.place.tensor == 0 ||
           (row->sums_over_tensor && !is_summed);
}

/* Sums what every rank has after a micro batch, in the order of ranks, and compares the sum with one rank's. */
static int compare_gradients_after(struct verify *v, int64_t m, double *whole, float *rounded) {
    const struct verify_seen *mine = &v->mine;
    const struct param_map *map = &mine->trainer->stepper.store->map, *of_one = &v->one->trainer->stepper.store->map;
    const float *local = mine->gradients + m * map->flat_elements, *one = v->one->gradients + m * of_one->flat_elements;
    int64_t count = of_one->flat_elements;
    bool is_summed = m + 1 == mine->micro_count && !mine->trainer->run.tuner;
    TRY(stop_check(VERIFY_WHEN));
    memset(whole, 0, (size_t)count * sizeof *whole);
    for (int id = 0; id < map->table->count; id++)
        if (is_term(mine, id, is_summed))
            for (int64_t i = map->places[id].offset; i < map->places[id].offset + param_map_elements(map, id); i++)
                if (mine->places[i] >= 0 && !(is_summed && mine->is_second[i]))
                    whole[mine->places[i]] += local[i];
    struct comm_data data = {.send = whole, .receive = whole, .count = count, .dtype = DTYPE_F64};
    TRY(comm_all_reduce(v->world, &data, COMM_SUM));
    for (int64_t i = 0; i < count; i++)
        rounded[i] = (float)whole[i];
    for (int id = map->table->count - 1; id >= 0; id--) {
        int64_t first = of_one->places[id].offset, elements = param_map_elements(of_one, id);
        if (!param_trains(v->one->trainer->stepper.store, id))
            continue;
        compare(v,
                &(const struct place){.kind = VERIFY_GRADIENT,
                                      .micro_batch = m,
                                      .turn = map->table->count - id,
                                      .id = id,
                                      .seen = v->one,
                                      .bound = CLOSE,
                                      .scale = largest_of(one + first, elements)},
                one + first, rounded + first, elements);
    }
    return STATUS_OK;
}

static int compare_gradients(struct verify *v) {
    size_t count = (size_t)v->one->trainer->stepper.store->map.flat_elements + 1;
    double *whole = calloc(count, sizeof *whole);
    float *rounded = calloc(count, sizeof *rounded);
    int status = status_allocated(whole && rounded);
    int64_t first = v->job->run.tuner ? v->mine.micro_count - 1 : 0; /* a tuner's gradients are known at the end */
    if (param_cuts_gradients(v->mine.trainer->stepper.store))        /* they are summed as they come */
        first = v->mine.micro_count;
    for (int64_t m = first; m < v->mine.micro_count && !status; m++)
        status = compare_gradients_after(v, m, whole, rounded);
    free(whole);
    free(rounded);
    return status;
}

/* ---- flat arrays after the step ---- */

/* One array of both runs. */
struct array {
    enum verify_kind kind;
    const float *one, *layout;
    double bound;
    bool is_by_tensor; /* the scale is the tensor's largest entry, else that of all */
    bool is_weight;
    float *expected, *gradients; /* of one rank, in the places of the rank; gradients of weights */
    double largest;              /* of one rank's */
};

/* Compares the part [first, first + count) of the rank's flat array. */
static void compare_range(struct verify *v, const struct verify_seen *seen, const struct array *array, int64_t first,
                          int64_t count) {
    const struct param_map *map = &seen->trainer->stepper.store->map, *of_one = &v->one->trainer->stepper.store->map;
    bool is_backward = array->kind == VERIFY_SUM;
    for (int turn = 0; turn < map->table->count; turn++) {
        int id = is_backward ? map->table->count - 1 - turn : turn;
        int64_t at = map->places[id].offset, begin = at > first ? at : first;
        int64_t end = at + param_map_elements(map, id), whole = of_one->places[id].offset;
        int64_t elements = param_map_elements(of_one, id);
        end = end < first + count ? end : first + count;
        if (begin >= end || !map->table->rows[id].is_trainable)
            continue;
        struct place place = {.kind = array->kind,
                              .micro_batch = v->mine.micro_count - 1,
                              .turn = turn,
                              .seen = seen,
                              .id = id,
                              .first = begin - at,
                              .bound = array->bound,
                              .scale = array->is_by_tensor ? largest_of(array->one + whole, elements) : array->largest};
        if (array->is_weight && array->bound > 0) {
            place.gradients = array->gradients + begin;
            place.rate = v->rate;
            place.largest = largest_of(v->one->sums + whole, elements);
        }
        compare(v, &place, array->expected + begin, array->layout + begin, end - begin);
    }
}

static int compare_array(struct verify *v, const struct verify_seen *seen, struct array array) {
    const struct trainer *trainer = seen->trainer;
    const struct param_map *map = &trainer->stepper.store->map, *of_one = &v->one->trainer->stepper.store->map;
    size_t count = (size_t)map->flat_elements + 1;
    int ranges = 0;
    const struct param_range *range = param_ranges(trainer->stepper.store, PARAM_WEIGHTS, &ranges);
    array.expected = calloc(2 * count, sizeof *array.expected);
    TRY(status_allocated(array.expected));
    array.gradients = array.expected + count;
    array.largest = largest_of(array.one, of_one->flat_elements);
    verify_part(seen, array.one, array.expected);
    verify_part(seen, v->one->sums, array.gradients);
    for (int i = 0; i < (array.is_weight ? ranges : trainer->stepper.sync.piece_count); i++)
        if (array.is_weight)
            compare_range(v, seen, &array, range[i].first, range[i].count);
        else
            compare_range(v, seen, &array, trainer->stepper.sync.pieces[i].first,
                          trainer->stepper.sync.pieces[i].count);
    free(array.expected);
    return STATUS_OK;
}

/* Compares the weights and the moments, which are kinds `first` to VERIFY_SQUARE, or all VERIFY_RESUMED. */
static int compare_state(struct verify *v, const struct verify_seen *seen, enum verify_kind first, bool is_exact) {
    const float *const one[] = {v->one->weights, v->one->mean, v->one->square};
    const float *const layout[] = {seen->weights, seen->mean, seen->square};
    for (int i = 0; i < 3; i++)
        TRY(compare_array(v, seen,
                          (struct array){.kind = first == VERIFY_RESUMED ? first : first + (enum verify_kind)i,
                                         .one = one[i],
                                         .layout = layout[i],
                                         .bound = is_exact ? 0 : (i ? 2 : 1) * CLOSE,
                                         .is_weight = i == 0}));
    return STATUS_OK;
}

int verify_compare_state(struct verify *v, const struct verify_seen *seen, bool is_exact) {
    return compare_state(v, seen, VERIFY_RESUMED, is_exact);
}

/* ---- replicas ---- */

/* Weights and gradients of ranks with the same parameters, and numbers of all. */
static int compare_replicas(struct verify *v) {
    const struct verify_seen *mine = &v->mine;
    const struct trainer *trainer = mine->trainer;
    const struct rank *rank = &trainer->rank;
    const struct param_map *map = &trainer->stepper.store->map;
    struct place place = {.kind = VERIFY_REPLICA, .micro_batch = mine->micro_count - 1, .seen = mine, .scale = 1};
    bool is_whole = !sharded_cuts_weights(trainer->stepper.store);
    for (int id = 0; id < map->table->count; id++) {
        const struct param *row = &map->table->rows[id];
        int64_t count = param_map_elements(map, id);
        if (!count || !row->is_trainable)
            continue;
        place.id = id;
        place.turn = (int)mine->layers + 2 + id;
        const float *weights = mine->weights + map->places[id].offset, *sums = mine->sums + map->places[id].offset;
        if (is_whole)
            TRY(compare_replica(v, rank->data, &place, weights, count));
        if (!trainer->stepper.sync.is_sharded && !param_cuts_gradients(trainer->stepper.store))
            TRY(compare_replica(v, rank->data, &place, sums, count));
        if (row->shard == PARAM_REPLICATED)
            TRY(compare_replica(v, rank->tensor, &place, weights, count));
    }
    const float numbers[] = {(float)mine->loss, mine->norm[0], mine->norm[1]};
    static const char *const names[] = {"loss", "grad_norm", "clip"};
    for (int i = 0; i < 3; i++) {
        place.name = names[i];
        place.turn++;
        TRY(compare_replica(v, v->world, &place, &numbers[i], 1));
    }
    return STATUS_OK;
}

/* ---- a step ---- */

int verify_compare_step(struct verify *v) {
    const struct verify_seen *one = v->one, *mine = &v->mine;
    const struct array sums = {
        .kind = VERIFY_SUM, .one = one->sums, .layout = mine->sums, .bound = CLOSE, .is_by_tensor = true};
    TRY(compare_outputs(v));
    compare_number(v, VERIFY_LOSS, "loss", one->loss, mine->loss, mine->trainer->rank.grid.tensor > 1 ? CLOSE_LOSS : 0);
    TRY(compare_gradients(v));
    TRY(compare_array(v, mine, sums));
    compare_number(v, VERIFY_NORM, "grad_norm", one->norm[0], mine->norm[0], CLOSE);
    compare_number(v, VERIFY_CLIP, "clip", one->norm[1], mine->norm[1], CLOSE);
    TRY(compare_state(v, mine, VERIFY_WEIGHT, false));
    return compare_replicas(v);
}

int verify_agree(struct verify *v) {
    struct verify_difference all[VERIFY_RANKS_MAX];
    struct comm_data data = {.send = &v->difference, .receive = all, .count = sizeof *all, .dtype = DTYPE_U8};
    TRY(comm_all_gather(v->world, &data));
    for (int i = v->world->size - 1; i >= 0; i--)
        if (all[i].is_found && (!v->difference.is_found || all[i].order <= v->difference.order))
            v->difference = all[i];
    return STATUS_OK;
}
