/* Buckets of whole layers, and their collectives. */
#include "parallel/sync.h"

#include "parallel/sharded.h"

enum {
    STARTED_MOST = COMM_STARTED_MAX / 2
}; /* the maximum number of started sums in a group, and the maximum number of started gathers */

/* ---- buckets ---- */

/* Returns the layer in whose forward a stage first uses the weights of `layer`. A stage without the model's first
 * layers has a copy of the embedding only for its head. */
static int first_need(const struct gradient_sync *sync, int layer) {
    const struct param_table *table = sync->store->map.table;
    int last = layer;
    for (int i = 0; i < table->count && sync->rank->place.pipeline > 0 && layer < 0; i++)
        last = table->rows[i].layer > last ? table->rows[i].layer : last;
    return last;
}

/* Adds the buckets of elements [first, end) of the store: of the parameters that are cut over the tensor ranks, or of
 * the copies. */
static void add_buckets(struct gradient_sync *sync, bool of_copies, int64_t first, int64_t end) {
    const struct param_store *store = sync->store;
    int64_t least = sync->rank->ops->sizes(sync->rank->device)->bucket_elements;
    struct sync_bucket *bucket = NULL;
    int layer = 0;
    for (int i = 0; i < store->map.table->count; i++) {
        const struct param *row = &store->map.table->rows[i];
        if ((row->shard == PARAM_REPLICATED) != of_copies || !param_local_elements(store, i))
            continue;
        bool is_full = bucket && store->map.places[i].offset - bucket->first >= least;
        if (is_full && row->layer != layer) {
            first = store->map.places[i].offset;
            bucket->count = first - bucket->first;
            bucket = NULL;
        }
        if (!bucket) {
            bucket = &sync->buckets[sync->bucket_count++];
            *bucket = (struct sync_bucket){.first = first, .layer = row->layer, .needed = INT_MAX};
        }
        layer = row->layer;
        int needed = first_need(sync, layer);
        bucket->layer = layer < bucket->layer ? layer : bucket->layer;
        bucket->needed = needed < bucket->needed ? needed : bucket->needed;
    }
    if (bucket)
        bucket->count = end - bucket->first;
}

static int by_layer(const void *a, const void *b) {
    const struct sync_bucket *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer > y->layer ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void add_piece(struct gradient_sync *sync, int64_t first, int64_t count, int needed) {
    const struct comm *group = sync->rank->buckets;
    int ranks = sync->is_sharded ? group->size : 1, rank = sync->is_sharded ? group->rank : 0;
    if (count == 0)
        return;
    sync->pieces[sync->piece_count++] = (struct sync_piece){.first = first + count / ranks * rank,
                                                            .count = count / ranks,
                                                            .local = first / ranks,
                                                            .bucket_first = first,
                                                            .bucket_count = count,
                                                            .needed = needed};
    sync->local_elements += count / ranks;
}

/* Adds the buckets of a store with whole gradients, and this rank's pieces of them. */
static void add_whole(struct gradient_sync *sync) {
    const struct param_map *map = &sync->store->map;
    if (sync->rank->buckets->size > 1) {
        add_buckets(sync, false, 0, map->sharded_elements);
        add_buckets(sync, true, map->sharded_elements, map->flat_elements);
    }
    if (!sync->is_sharded)
        add_piece(sync, 0, map->flat_elements, 0);
    for (int i = 0; i < sync->bucket_count && sync->is_sharded; i++)
        add_piece(sync, sync->buckets[i].first, sync->buckets[i].count, sync->buckets[i].needed);
}

/* Adds this rank's shares of the units of a store that cuts them by itself. */
static int add_shares(struct gradient_sync *sync) {
    const struct param_map *map = &sync->store->map;
    int count = param_map_unit_count(map->table);
    struct param_unit *units = calloc((size_t)count, sizeof *units);
    TRY(status_allocated(units));
    param_map_units(map, units);
    for (int run = 0; run < 2; run++)
        for (int u = 0; u < count; u++)
            add_piece(sync, units[u].run[run].first, units[u].run[run].count, first_need(sync, u + PARAM_UNIT_FIRST));
    free(units);
    return STATUS_OK;
}

/* Orders the pieces by when a forward needs them, and within a layer by their place. */
static void order_pieces(struct gradient_sync *sync) {
    for (int i = 0; i < sync->piece_count; i++) {
        int turn = i;
        for (; turn > 0 && sync->pieces[sync->turns[turn - 1]].needed > sync->pieces[i].needed; turn--)
            sync->turns[turn] = sync->turns[turn - 1];
        sync->turns[turn] = i;
    }
}

int gradient_sync_open(struct gradient_sync *sync, struct rank *rank, struct param_store *store,
                       const struct gradient_sync_options *options) {
    *sync = (struct gradient_sync){.rank = rank,
                                   .store = store,
                                   .options = *options,
                                   .is_sharded = options->is_sharded && rank->buckets->size > 1};
    size_t most = (size_t)store->map.table->count + 2;
    sync->buckets = calloc(most, sizeof *sync->buckets);
    sync->pieces = calloc(most, sizeof *sync->pieces);
    sync->turns = calloc(most, sizeof *sync->turns);
    sync->requests = calloc(most, sizeof *sync->requests);
    sync->gathers = calloc(most, sizeof *sync->gathers);
    if (!sync->buckets || !sync->pieces || !sync->turns || !sync->requests || !sync->gathers) {
        gradient_sync_close(sync);
        return status_no_memory();
    }
    int status = STATUS_OK;
    if (param_cuts_gradients(store))
        status = add_shares(sync);
    else
        add_whole(sync);
    order_pieces(sync);
    qsort(sync->buckets, (size_t)sync->bucket_count, sizeof *sync->buckets, by_layer);
    if (status)
        gradient_sync_close(sync);
    return status;
}

void gradient_sync_close(struct gradient_sync *sync) {
    for (int i = sync->waited; i < sync->started; i++)
        comm_forget(&sync->requests[i]);
    for (int i = sync->gathered; i < sync->gathering; i++)
        comm_forget(&sync->gathers[i]);
    free(sync->buckets);
    free(sync->pieces);
    free(sync->turns);
    free(sync->requests);
    free(sync->gathers);
    *sync = (struct gradient_sync){0};
}

int gradient_sync_plan(struct rank *rank, const struct gradient_sync_traffic *traffic) {
    int status =
        rank_note_messages(rank, RANK_BUCKETS, WORK_ALL_REDUCE, traffic->reduced, DTYPE_F32, traffic->reduced > 0);
    THEN(status, rank_note_messages(rank, RANK_BUCKETS, WORK_REDUCE_SCATTER, traffic->scattered, DTYPE_F32,
                                    traffic->scattered > 0));
    return status ? status
                  : rank_note_messages(rank, RANK_BUCKETS, WORK_ALL_GATHER, traffic->gathered, traffic->dtype,
                                       traffic->gathered > 0);
}

/* ---- sums ---- */

/* Sums the part of gradients [first, first + count), which are of one unit, that this rank keeps. */
static int sum_part(struct rank *rank, enum rank_group group, const struct param_store *store, int64_t first,
                    int64_t count) {
    struct param_range part = param_range_within(store, PARAM_GRADIENTS, first, count);
    return part.count ? rank_sum(rank, group, part.data, part.count, DTYPE_F32) : STATUS_OK;
}

int gradient_sum(struct rank *rank, enum rank_group group, const struct param_store *store, int id) {
    return sum_part(rank, group, store, store->map.places[id].offset, param_local_elements(store, id));
}

/* Sums the part of a cut parameter that neighbouring ranks share. */
static int sum_shared(struct rank *rank, const struct param_store *store, int id) {
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&store->map.part, store->map.table, id, rects), status = STATUS_OK;
    for (int i = 0; i < count && !status; i++)
        if (rects[i].is_shared)
            status = sum_part(rank, RANK_SHARERS, store,
                              store->map.places[id].offset + rects[i].local_row * rects[i].columns,
                              rects[i].rows * rects[i].columns);
    return status;
}

/* Gradients of one layer that lie side by side, and that one call is going to sum over the tensor ranks. */
struct tensor_run {
    int64_t first, count;
    int layer;
};

static int sum_over_tensor(struct rank *rank, const struct param_store *store, int id, struct tensor_run *run) {
    const struct param *row = &store->map.table->rows[id];
    int64_t first = store->map.places[id].offset;
    if (!param_trains(store, id))
        return STATUS_OK;
    if (!row->sums_over_tensor)
        return sum_shared(rank, store, id);
    bool is_next = run->count && row->layer == run->layer && first == run->first + run->count;
    int status = is_next ? STATUS_OK : sum_part(rank, RANK_TENSOR, store, run->first, run->count);
    if (!is_next)
        *run = (struct tensor_run){.first = first, .layer = row->layer};
    run->count += param_local_elements(store, id);
    return status;
}

int gradient_sum_over_tensor(struct rank *rank, const struct param_store *store, int layer) {
    struct tensor_run run = {0};
    int status = STATUS_OK;
    for (int i = 0; i < store->map.table->count && !status; i++)
        if (store->map.table->rows[i].layer == layer)
            status = sum_over_tensor(rank, store, i, &run);
    return status ? status : sum_part(rank, RANK_TENSOR, store, run.first, run.count);
}

int gradient_sum_all_over_tensor(struct rank *rank, const struct param_store *store) {
    struct tensor_run run = {0};
    int status = STATUS_OK;
    for (int i = 0; i < store->map.table->count && !status; i++)
        status = sum_over_tensor(rank, store, i, &run);
    return status ? status : sum_part(rank, RANK_TENSOR, store, run.first, run.count);
}

static int start_bucket(struct gradient_sync *sync, int index) {
    struct rank *rank = sync->rank;
    const struct sync_bucket *bucket = &sync->buckets[index];
    struct comm_request *request = &sync->requests[index];
    float *gradients = param_range_between(sync->store, PARAM_GRADIENTS, bucket->first, bucket->count).data;
    if (!sync->is_sharded)
        return rank_sum_start(rank, RANK_BUCKETS, gradients, bucket->count, DTYPE_F32, request);
    int64_t share = bucket->count / rank->buckets->size;
    const struct comm_data data = {
        .send = gradients, .receive = gradients + share * rank->buckets->rank, .count = share, .dtype = DTYPE_F32};
    return rank_scatter_start(rank, RANK_BUCKETS, &data, request);
}

static int start_buckets(struct gradient_sync *sync, int layer) {
    int status = STATUS_OK;
    while (!status && sync->started < sync->bucket_count && sync->buckets[sync->started].layer >= layer) {
        if (sync->started - sync->waited == STARTED_MOST)
            status = rank_wait(sync->rank, &sync->requests[sync->waited++]);
        THEN(status, start_bucket(sync, sync->started++));
    }
    return status;
}

int gradient_sync_layer(struct gradient_sync *sync, int layer) {
    return sync->options.overlaps_gradients ? start_buckets(sync, layer) : STATUS_OK;
}

int gradient_sync_finish(struct gradient_sync *sync) {
    double start = clock_seconds();
    int status = start_buckets(sync, INT_MIN);
    /* On a GPU, a stream that waits for the last one has seen the others. */
    for (int i = sync->started; i-- > sync->waited && !status;)
        status = rank_wait(sync->rank, &sync->requests[i]);
    if (!status)
        sync->started = sync->waited = 0;
    sync->waited_seconds += clock_seconds() - start;
    return status;
}

/* ---- weights ---- */

/* Starts gathers. A group allows a limited number of started calls; further ones start as these arrive. */
static int start_gathers(struct gradient_sync *sync) {
    const struct param_store *store = sync->store;
    int status = STATUS_OK;
    while (!status && sync->gathering < sync->updated && sync->gathering - sync->gathered < STARTED_MOST) {
        const struct sync_piece *piece = &sync->pieces[sync->turns[sync->gathering]];
        struct param_range bucket = param_range_between(store, PARAM_WEIGHTS, piece->bucket_first, piece->bucket_count);
        const struct comm_data data = {.send = param_range_cut(&bucket, piece->first, piece->count).data,
                                       .receive = bucket.data,
                                       .count = piece->count,
                                       .dtype = bucket.type};
        status = rank_gather_start(sync->rank, RANK_BUCKETS, &data, &sync->gathers[sync->gathering]);
        param_set_travelling(store, piece->bucket_first, piece->bucket_count, true);
        sync->gathering += !status;
    }
    return status;
}

int gradient_sync_gather_start(struct gradient_sync *sync, int turn) {
    if (!sync->is_sharded)
        return STATUS_OK;
    if (sharded_cuts_weights(sync->store)) {
        param_forget_units(sync->store);
        return STATUS_OK;
    }
    sync->updated = turn + 1;
    bool is_last = sync->updated == sync->piece_count;
    int status = sync->options.overlaps_weights || is_last ? start_gathers(sync) : STATUS_OK;
    return !status && is_last && !sync->options.overlaps_weights ? gradient_sync_gather_wait(sync, INT_MAX) : status;
}

static bool is_needed(const struct gradient_sync *sync, int turn, int layer) {
    return sync->pieces[sync->turns[turn]].needed <= layer;
}

/* Waits for the started gathers that a layer needs; the first one is among them. */
static int wait_for_gathers(struct gradient_sync *sync, int layer) {
    int end = sync->gathered + 1, status = STATUS_OK;
    while (end < sync->gathering && is_needed(sync, end, layer))
        end++;
    for (int i = end; i-- > sync->gathered && !status;) { /* the last one first, as above */
        const struct sync_piece *piece = &sync->pieces[sync->turns[i]];
        status = rank_wait(sync->rank, &sync->gathers[i]);
        param_set_travelling(sync->store, piece->bucket_first, piece->bucket_count, false);
    }
    sync->gathered = status ? sync->gathered : end;
    return status;
}

int gradient_sync_gather_wait(struct gradient_sync *sync, int layer) {
    double start = clock_seconds();
    int status = STATUS_OK;
    while (!status && sync->gathered < sync->updated && is_needed(sync, sync->gathered, layer)) {
        status = wait_for_gathers(sync, layer);
        THEN(status, start_gathers(sync));
    }
    if (!status && sync->gathered == sync->piece_count)
        sync->updated = sync->gathering = sync->gathered = 0;
    sync->waited_seconds += clock_seconds() - start;
    return status;
}

int gradient_sync_gather_weights(struct gradient_sync *sync) {
    int status = STATUS_OK;
    for (int turn = 0; turn < sync->piece_count && !status; turn++)
        status = gradient_sync_gather_start(sync, turn);
    return status ? status : gradient_sync_gather_wait(sync, INT_MAX);
}
