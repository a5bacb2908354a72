/* A rank watches its own training: it copies outputs and gradients during a step, and the state after it. */
#include "verify-internal.h"

/* ---- places ---- */

static void find_places(struct verify_seen *seen, const struct param_map *whole, int id) {
    const struct param_map *map = &seen->trainer->stepper.store->map;
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&map->part, map->table, id, rects);
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < rects[i].rows * rects[i].columns; k++) {
            int64_t row = rects[i].row + k / rects[i].columns, column = rects[i].column + k % rects[i].columns;
            int64_t local = map->places[id].offset + rects[i].local_row * rects[i].columns + k;
            seen->places[local] = whole->places[id].offset + row * map->table->rows[id].shape[1] + column;
            seen->is_second[local] = rects[i].is_second;
        }
}

int verify_find_places(struct verify_seen *seen, const struct verify_seen *one) {
    const struct param_map *map = &seen->trainer->stepper.store->map;
    seen->places = calloc((size_t)map->flat_elements + 1, sizeof *seen->places);
    seen->is_second = calloc((size_t)map->flat_elements + 1, sizeof *seen->is_second);
    TRY(status_allocated(seen->places && seen->is_second));
    memset(seen->places, -1, (size_t)map->flat_elements * sizeof *seen->places);
    for (int id = 0; id < map->table->count; id++)
        find_places(seen, &one->trainer->stepper.store->map, id);
    return STATUS_OK;
}

void verify_part(const struct verify_seen *seen, const float *from, float *to) {
    for (int64_t i = 0; i < seen->trainer->stepper.store->map.flat_elements; i++)
        to[i] = seen->places[i] < 0 ? 0 : from[seen->places[i]];
}

float *verify_output(const struct verify_seen *seen, int64_t micro_batch, int64_t layer) {
    return seen->outputs + (micro_batch * (seen->layers + 1) + layer + 1) * seen->output_elements;
}

static int fetch(const struct verify_seen *seen, float *to, const void *from, int64_t count) {
    struct stream *stream = seen->trainer->rank.exec.stream;
    TRY(stream_copy_to_host(stream, to, from, (size_t)count * sizeof *to));
    return stream_wait(stream);
}

/* ---- during a step ---- */

static int see_output(struct train_watch *watch, int layer, const void *x, int64_t rows) {
    struct verify_seen *seen = (struct verify_seen *)watch;
    const struct rank *rank = &seen->trainer->rank;
    TRY(stop_check(VERIFY_WHEN));
    seen->rows[watch->micro_batch] = rows;
    seen->has_output[layer + 1] = true;
    return fetch(seen, verify_output(seen, watch->micro_batch, layer), x,
                 rank_stream_rows(rank, rows) * seen->trainer->run.config.model.hidden_size);
}

/* The last stage has a copy of a tied table, whose gradient is final with those after the layers. */
static bool is_of(const struct verify_seen *seen, const struct param *row, int layer) {
    bool is_end = layer == seen->layers && seen->trainer->rank.place.pipeline > 0;
    return layer == WATCH_ALL_LAYERS || row->layer == layer || (is_end && row->layer < 0);
}

static int see_gradients(struct train_watch *watch, int layer) {
    struct verify_seen *seen = (struct verify_seen *)watch;
    const struct param_store *store = seen->trainer->stepper.store;
    const struct param_map *map = &store->map;
    bool is_last = layer == WATCH_ALL_LAYERS;
    int64_t micro = is_last ? seen->micro_count - 1 : watch->micro_batch;
    TRY(stop_check(VERIFY_WHEN));
    if (param_cuts_gradients(store) || (micro + 1) % seen->every || is_last != (seen->trainer->run.tuner != NULL))
        return STATUS_OK;
    float *gradients = seen->gradients + micro / seen->every * map->flat_elements;
    for (int i = 0; i < map->table->count; i++)
        if (param_trains(store, i) && param_local_elements(store, i) && is_of(seen, &map->table->rows[i], layer))
            TRY(fetch(seen, gradients + map->places[i].offset, param_gradient(store, i),
                      param_local_elements(store, i)));
    return STATUS_OK;
}

/* ---- between steps ---- */

static int verify_read(struct verify_seen *seen) {
    const struct trainer *trainer = seen->trainer;
    const struct optimizer *optimizer = &trainer->stepper.optimizer;
    int count;
    const struct param_range *ranges = param_ranges(trainer->stepper.store, PARAM_WEIGHTS, &count);
    TRY(trainer_await_weights(seen->trainer));
    for (int i = 0; i < count; i++)
        TRY(fetch(seen, seen->weights + ranges[i].first, ranges[i].data, ranges[i].count));
    for (int i = 0; i < trainer->stepper.sync.piece_count; i++) {
        const struct sync_piece *piece = &trainer->stepper.sync.pieces[i];
        const void *sums =
            param_range_between(trainer->stepper.store, PARAM_GRADIENTS, piece->first, piece->count).data;
        TRY(fetch(seen, seen->sums + piece->first, sums, piece->count));
        TRY(fetch(seen, seen->mean + piece->first, optimizer->m + piece->local, piece->count));
        TRY(fetch(seen, seen->square + piece->first, optimizer->v + piece->local, piece->count));
    }
    memcpy(seen->norm, optimizer->norm, sizeof seen->norm);
    return STATUS_OK;
}

int verify_step(struct verify_seen *seen) {
    struct train_record record;
    TRY(trainer_step(seen->trainer, &record));
    seen->loss = record.lm_loss;
    return verify_read(seen);
}

int verify_take(struct verify_seen *seen, const struct verify_seen *one) {
    struct trainer *trainer = seen->trainer;
    struct optimizer *optimizer = &trainer->stepper.optimizer;
    struct stream *stream = trainer->rank.exec.stream;
    const float *const from[] = {one->weights, one->mean, one->square};
    float *const to[] = {seen->weights, seen->mean, seen->square};
    for (int a = 0; a < 3; a++)
        verify_part(seen, from[a], to[a]);
    for (int i = 0; i < trainer->stepper.sync.piece_count; i++) {
        const struct sync_piece *piece = &trainer->stepper.sync.pieces[i];
        float *places[] = {optimizer_master(optimizer, piece), optimizer->m + piece->local,
                           optimizer->v + piece->local};
        for (int a = 0; a < 3; a++)
            TRY(stream_copy_to_device(stream, places[a], to[a] + piece->first, (size_t)piece->count * sizeof(float)));
    }
    TRY(stream_wait(stream));
    return optimizer_round_weights(optimizer);
}

/* ---- opening ---- */

static int take_memory(struct verify_seen *seen) {
    const struct trainer *trainer = seen->trainer;
    const struct run_config *run = &trainer->run.config;
    size_t flat = (size_t)trainer->stepper.store->map.flat_elements + 1, outputs, gradients;
    seen->micro_count = trainer->stepper.micro_count;
    seen->layers = run->model.num_layers;
    seen->output_elements = run->train.micro_batch_size * run->data.seq_length * run->model.hidden_size;
    outputs = (size_t)(seen->micro_count * (seen->layers + 1) * seen->output_elements);
    gradients = (size_t)(seen->micro_count / seen->every) * flat;
    seen->rows = calloc((size_t)seen->micro_count, sizeof *seen->rows);
    seen->has_output = calloc((size_t)seen->layers + 1, sizeof *seen->has_output);
    seen->outputs = calloc(outputs + gradients + 4 * flat, sizeof *seen->outputs);
    TRY(status_allocated(seen->outputs && seen->rows && seen->has_output));
    seen->gradients = seen->outputs + outputs;
    seen->sums = seen->gradients + gradients;
    seen->weights = seen->sums + flat;
    seen->mean = seen->weights + flat;
    seen->square = seen->mean + flat;
    return STATUS_OK;
}

int verify_open(struct verify_seen *seen, const struct train_run *run, struct comm *world, int64_t every) {
    *seen = (struct verify_seen){.watch = {.output = see_output, .gradients = see_gradients}, .every = every};
    TRY(trainer_open(run, world, &seen->trainer));
    TRY(take_memory(seen));
    seen->trainer->stepper.watch = &seen->watch;
    return verify_read(seen);
}

void verify_close(struct verify_seen *seen) {
    trainer_close(seen->trainer);
    free(seen->outputs);
    free(seen->rows);
    free(seen->has_output);
    free(seen->places);
    free(seen->is_second);
    *seen = (struct verify_seen){0};
}
