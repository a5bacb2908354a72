/* Shares of units, and the buffers in which units are whole. */
#include "parallel/sharded.h"

#include "parallel/unit_slots.h"

/* A group forgets no call before COMM_STARTED_MAX later ones, so sums of few units are under way. */
enum { RUNS = 2, GRADIENT_SLOTS = UNIT_SLOTS_OF_ENDS + UNIT_SLOTS_OF_LAYERS, SUMS_MOST = 2 };

/* Memory for the runs of any unit of a slot, one run after the other, and the call that moves each run. */
struct buffer {
    char *run[RUNS];
    struct comm_request request[RUNS];
    bool is_travelling;
};

/* A buffer of gradients. */
struct sum {
    struct buffer buffer;
    int unit;
    bool is_open;  /* a backward writes into it */
    bool is_first; /* the sum becomes the share; else it is added to it */
};

struct sharded {
    struct param_unit *units;    /* [unit_count] */
    struct param_range *weights; /* [RUNS * unit_count]: the shares, if the weights are cut; else one flat array */
    struct param_range *gradients;
    int unit_count, weight_ranges, gradient_ranges;
    void *memory[4]; /* shares and buffers of weights, of gradients */
    struct unit_slots slots;
    struct buffer *buffers; /* [slots.count] of weights */
    struct sum sums[GRADIENT_SLOTS];
    struct sum *under_way[SUMS_MOST]; /* [sum_count] in the order in which they were started */
    int sum_count;
    int turn;      /* the buffer of the next layer's gradients */
    bool *has_sum; /* [unit_count] in this global batch */
    const int *order;
    int64_t order_count, at;
    struct sharded_counts counts;
    size_t *offsets;             /* [table count] of packed parameters in their units, in bytes */
    struct storage_views filled; /* of the packed parameter that is being filled in */
    void *poison;                /* host: NaNs for buffers that are not in use, where loans are counted */
};

/* ---- sizes ---- */

static int shards_of(const struct param_store *store) {
    return rank_group_size(store->sharing.rank, RANK_BUCKETS);
}

/* Returns this rank's number among the ranks that share the store. */
static int shard_of(const struct param_store *store) {
    return store->sharing.rank->buckets->rank;
}

static int slots_of(const struct param_store *store, enum param_array array) {
    return array == PARAM_GRADIENTS ? GRADIENT_SLOTS
                                    : unit_slots_count(UNIT_SLOTS_OF_LAYERS + store->sharing.kept_units);
}

static bool is_packed(const struct param_store *store) {
    return store->storage == &storage_sharded_packed;
}

/* Returns the elements of a packed unit: its bytes as numbers of the type of the weights, in equal, aligned shares. */
static int64_t packed_elements(const struct param_store *store, int unit) {
    const struct param_table *table = store->map.table;
    size_t multiple = (size_t)shards_of(store) * ARENA_ALIGNMENT, bytes = 0;
    for (int i = 0; i < table->count; i++)
        bytes += table->rows[i].layer == unit ? storage_packed_bytes(store, i) : 0;
    return (int64_t)((bytes + multiple - 1) / multiple * multiple / dtype_bytes(store->map.type));
}

void sharded_units(const struct param_store *store, struct param_unit *units) {
    int count = param_map_unit_count(store->map.table);
    int64_t first = 0;
    param_map_units(&store->map, units);
    for (int u = 0; u < count && is_packed(store); u++) {
        units[u] = (struct param_unit){.run[0] = {first, packed_elements(store, u + PARAM_UNIT_FIRST)}};
        first += units[u].run[0].count;
    }
}

/* Returns the elements of all units. */
static int64_t array_elements(const struct param_store *store, enum param_array array) {
    int units = param_map_unit_count(store->map.table);
    int64_t elements = 0;
    if (array == PARAM_GRADIENTS || !is_packed(store))
        return store->map.flat_elements;
    for (int u = 0; u < units; u++)
        elements += packed_elements(store, u + PARAM_UNIT_FIRST);
    return elements;
}

/* Writes the elements of each run of a slot's buffer. */
static void slot_elements(const struct param_store *store, int slot, int64_t counts[RUNS]) {
    int last = param_map_unit_count(store->map.table) + PARAM_UNIT_FIRST - 1;
    int from = slot == UNIT_SLOT_FIRST ? PARAM_UNIT_FIRST : slot == UNIT_SLOT_LAST ? last : PARAM_UNIT_FIRST + 1;
    int to = slot == UNIT_SLOT_FIRST ? PARAM_UNIT_FIRST : slot == UNIT_SLOT_LAST ? last : last - 1;
    if (!is_packed(store)) {
        param_map_largest(&store->map, from, to, counts);
        return;
    }
    counts[0] = counts[1] = 0;
    for (int unit = from; unit <= to; unit++) {
        int64_t elements = packed_elements(store, unit);
        counts[0] = elements > counts[0] ? elements : counts[0];
    }
}

static int64_t buffer_elements(const struct param_store *store, enum param_array array) {
    int64_t elements = 0, counts[RUNS];
    for (int slot = 0; slot < slots_of(store, array); slot++) {
        slot_elements(store, slot, counts);
        elements += counts[0] + counts[1];
    }
    return elements;
}

static size_t sharded_bytes(const struct param_store *store, enum param_array array) {
    bool is_cut = array == PARAM_GRADIENTS || sharded_cuts_weights(store);
    size_t width = dtype_bytes(array == PARAM_GRADIENTS ? DTYPE_F32 : store->map.type);
    if (array == PARAM_GRADIENTS && !store->has_gradients)
        return 0;
    if (!is_cut)
        return (size_t)store->map.flat_elements * width;
    return (size_t)(array_elements(store, array) / shards_of(store) + buffer_elements(store, array)) * width;
}

/* ---- opening ---- */

/* Allocates the shares of an array, and lists them as ranges. */
static int open_shares(struct param_store *store, enum param_array array, void **memory, struct param_range **ranges,
                       int *count) {
    const struct sharded *held = store->held;
    enum dtype type = array == PARAM_GRADIENTS ? DTYPE_F32 : store->map.type;
    int shards = shards_of(store), shard = shard_of(store);
    int64_t elements = array_elements(store, array) / shards;
    int status = device_alloc_zeroed(store->device, (size_t)elements * dtype_bytes(type), memory);
    *ranges = calloc((size_t)held->unit_count * RUNS, sizeof **ranges);
    THEN_IF(status, !*ranges, status_no_memory());
    char *at = *memory;
    for (int run = 0; run < RUNS && !status; run++) {
        for (int u = 0; u < held->unit_count; u++) {
            int64_t share = held->units[u].run[run].count / shards;
            if (!share)
                continue;
            (*ranges)[(*count)++] = (struct param_range){
                .first = held->units[u].run[run].first + share * shard, .count = share, .data = at, .type = type};
            at += share * (int64_t)dtype_bytes(type);
        }
    }
    return status;
}

static int open_whole_weights(struct param_store *store) {
    struct sharded *held = store->held;
    int status = device_alloc_zeroed(store->device, sharded_bytes(store, PARAM_WEIGHTS), &held->memory[0]);
    held->weights = calloc(1, sizeof *held->weights);
    THEN_IF(status, !held->weights, status_no_memory());
    TRY(status);
    *held->weights =
        (struct param_range){.count = store->map.flat_elements, .data = held->memory[0], .type = store->map.type};
    held->weight_ranges = 1;
    return STATUS_OK;
}

/* Places the buffer of a slot at *at, and moves *at to its end. */
static void place_buffer(const struct param_store *store, int slot, size_t width, char **at, struct buffer *buffer) {
    int64_t counts[RUNS];
    slot_elements(store, slot, counts);
    for (int run = 0; run < RUNS; run++) {
        buffer->run[run] = *at;
        *at += counts[run] * (int64_t)width;
    }
}

static int open_weight_buffers(struct param_store *store) {
    struct sharded *held = store->held;
    size_t width = dtype_bytes(store->map.type);
    size_t bytes = (size_t)buffer_elements(store, PARAM_WEIGHTS) * width;
    int count = slots_of(store, PARAM_WEIGHTS);
    struct unit_slot *slots = calloc((size_t)count, sizeof *slots);
    held->buffers = calloc((size_t)count, sizeof *held->buffers);
    int status = device_alloc_zeroed(store->device, bytes, &held->memory[1]);
    THEN_IF(status, store->loans, device_host_alloc(store->device, bytes, &held->poison));
    if (slots)
        unit_slots_make(&held->slots, held->unit_count, slots, count);
    THEN_IF(status, (!slots || !held->buffers), status_no_memory());
    char *at = held->memory[1];
    for (int slot = 0; slot < count && !status; slot++)
        place_buffer(store, slot, width, &at, &held->buffers[slot]);
    for (int u = 0; u < held->unit_count && !status; u++)
        param_set_absent(store, u + PARAM_UNIT_FIRST, true);
    if (!status && held->poison)
        memset(held->poison, 0xff, bytes);
    return status;
}

static int open_gradients(struct param_store *store) {
    struct sharded *held = store->held;
    int status = open_shares(store, PARAM_GRADIENTS, &held->memory[2], &held->gradients, &held->gradient_ranges);
    held->has_sum = calloc((size_t)held->unit_count, sizeof *held->has_sum);
    THEN_IF(status, !held->has_sum, status_no_memory());
    THEN(status, device_alloc_zeroed(store->device, (size_t)buffer_elements(store, PARAM_GRADIENTS) * sizeof(float),
                                     &held->memory[3]));
    char *at = held->memory[3];
    for (int slot = 0; slot < GRADIENT_SLOTS && !status; slot++)
        place_buffer(store, slot, sizeof(float), &at, &held->sums[slot].buffer);
    return status;
}

static const struct param_unit *unit_of(const struct sharded *held, int unit) {
    return &held->units[unit - PARAM_UNIT_FIRST];
}

/* Returns a buffer of a unit, for layers the one with this number. */
static int slot_of(const struct sharded *held, int unit, int number) {
    return unit == PARAM_UNIT_FIRST                          ? UNIT_SLOT_FIRST
           : unit == held->unit_count + PARAM_UNIT_FIRST - 1 ? UNIT_SLOT_LAST
                                                             : UNIT_SLOTS_OF_ENDS + number;
}

/* Returns this rank's share of a run of a unit, which has elements. */
static struct param_range share_of(const struct param_store *store, enum param_array array, int unit, int run) {
    const struct sharded *held = store->held;
    const struct param_unit *whole = unit_of(held, unit);
    int64_t first = whole->run[run].first + whole->run[run].count / shards_of(store) * shard_of(store);
    const struct param_range *range = array == PARAM_WEIGHTS ? held->weights : held->gradients;
    while (range->first != first)
        range++;
    return *range;
}

/* Finds where each packed parameter starts: the parameters of a unit follow each other. */
static int place_packed(struct param_store *store) {
    struct sharded *held = store->held;
    const struct param_table *table = store->map.table;
    size_t *ends = calloc((size_t)held->unit_count, sizeof *ends);
    held->offsets = calloc((size_t)table->count + 1, sizeof *held->offsets);
    int status = status_allocated(ends && held->offsets);
    for (int id = 0; id < table->count && !status; id++) {
        size_t *end = &ends[table->rows[id].layer - PARAM_UNIT_FIRST];
        held->offsets[id] = *end;
        *end += storage_packed_bytes(store, id);
    }
    free(ends);
    return status;
}

/* Packs a unit in a buffer, and keeps this rank's share. */
static int fill_unit(struct param_store *store, const struct param_fill *fill, int unit, struct storage_stage *stage) {
    struct sharded *held = store->held;
    char *buffer = held->buffers[slot_of(held, unit, 0)].run[0];
    int status = STATUS_OK;
    param_set_absent(store, unit, false);
    for (int id = 0; id < store->map.table->count && !status; id++) {
        if (store->map.table->rows[id].layer != unit)
            continue;
        held->filled = storage_packed_views(store, id, buffer + held->offsets[id]);
        status = storage_pack(store, fill, id, &held->filled, stage);
    }
    param_set_absent(store, unit, true);
    if (status || !unit_of(held, unit)->run[0].count)
        return status;
    struct param_range share = share_of(store, PARAM_WEIGHTS, unit, 0);
    size_t bytes = (size_t)share.count * dtype_bytes(share.type);
    return stream_copy(fill->stream, share.data, buffer + (size_t)shard_of(store) * bytes, bytes);
}

/* Every rank packs all units, one after the other. */
static int fill_shares(struct param_store *store, const struct param_fill *fill) {
    const struct sharded *held = store->held;
    struct storage_stage stage = {0};
    int status = STATUS_OK;
    for (int u = 0; u < held->unit_count && !status; u++)
        status = fill_unit(store, fill, u + PARAM_UNIT_FIRST, &stage);
    int waited = stream_wait(fill->stream);
    device_free(store->device, stage.data);
    return status ? status : waited;
}

static int sharded_open(struct param_store *store, const struct param_fill *fill) {
    struct sharded *held = store->held = calloc(1, sizeof *held);
    TRY(status_allocated(held));
    if (fill && !is_packed(store))
        return status_fail(STATUS_UNSUPPORTED, "sharded weights are loaded after their opening");
    held->unit_count = param_map_unit_count(store->map.table);
    held->units = calloc((size_t)held->unit_count, sizeof *held->units);
    TRY(status_allocated(held->units));
    sharded_units(store, held->units);
    int status = sharded_cuts_weights(store)
                     ? open_shares(store, PARAM_WEIGHTS, &held->memory[0], &held->weights, &held->weight_ranges)
                     : open_whole_weights(store);
    THEN_IF(status, sharded_cuts_weights(store), open_weight_buffers(store));
    THEN_IF(status, store->has_gradients, open_gradients(store));
    THEN_IF(status, is_packed(store), place_packed(store));
    THEN_IF(status, is_packed(store), fill_shares(store, fill));
    return status ? status_wrap(status, "weights and gradients") : STATUS_OK;
}

static void forget_requests(struct buffer *buffer) {
    for (int run = 0; run < RUNS && buffer->is_travelling; run++)
        comm_forget(&buffer->request[run]);
}

static void sharded_close(struct param_store *store) {
    struct sharded *held = store->held;
    if (!held)
        return;
    for (int slot = 0; slot < held->slots.count && held->buffers; slot++)
        forget_requests(&held->buffers[slot]);
    for (int slot = 0; slot < GRADIENT_SLOTS; slot++)
        forget_requests(&held->sums[slot].buffer);
    for (int i = 0; i < 4; i++)
        device_free(store->device, held->memory[i]);
    device_host_free(store->device, held->poison);
    free(held->units);
    free(held->offsets);
    free(held->weights);
    free(held->gradients);
    free(held->slots.slots);
    free(held->buffers);
    free(held->has_sum);
    free(held);
}

/* ---- messages ---- */

static int wait_for(const struct param_store *store, struct buffer *buffer) {
    struct sharded *held = store->held;
    int status = STATUS_OK;
    if (!buffer->is_travelling)
        return STATUS_OK;
    double start = clock_seconds();
    for (int run = 0; run < RUNS && !status; run++)
        status = rank_wait(store->sharing.rank, &buffer->request[run]);
    buffer->is_travelling = status != STATUS_OK;
    held->counts.waited_seconds += clock_seconds() - start;
    return status;
}

/* ---- weights ---- */

/* Fills the buffer of a slot with NaNs, so that a read of weights that are not there shows. */
static int poison(const struct param_store *store, int slot) {
    struct sharded *held = store->held;
    int64_t counts[RUNS];
    if (!held->poison)
        return STATUS_OK;
    slot_elements(store, slot, counts);
    return stream_copy_to_device(store->sharing.rank->exec.stream, held->buffers[slot].run[0], held->poison,
                                 (size_t)(counts[0] + counts[1]) * dtype_bytes(store->map.type));
}

/* Starts to gather a unit, unless a buffer has it. */
static int fetch(const struct param_store *store, int unit, int *slot) {
    struct sharded *held = store->held;
    bool is_fetched;
    *slot = unit_slots_take(&held->slots, unit, &is_fetched);
    if (*slot == UNIT_SLOT_NONE)
        return status_fail(STATUS_INVALID, "unit %d is needed while all buffers are in use", unit);
    struct buffer *buffer = &held->buffers[*slot];
    if (!is_fetched)
        return STATUS_OK;
    int status = wait_for(store, buffer);
    THEN(status, poison(store, *slot));
    for (int run = 0; run < RUNS && !status; run++) {
        buffer->request[run] = (struct comm_request){0};
        if (!unit_of(held, unit)->run[run].count)
            continue;
        struct param_range share = share_of(store, PARAM_WEIGHTS, unit, run);
        const struct comm_data data = {
            .send = share.data, .receive = buffer->run[run], .count = share.count, .dtype = share.type};
        status = rank_gather_start(store->sharing.rank, RANK_BUCKETS, &data, &buffer->request[run]);
        buffer->is_travelling = true;
        held->counts.gathers++;
        held->counts.gathered += (double)unit_of(held, unit)->run[run].count;
    }
    return status;
}

/* Moves on in the order of the passes, and starts to gather the next unit. */
static int fetch_next(const struct param_store *store) {
    struct sharded *held = store->held;
    int slot;
    held->at++;
    return store->sharing.overlaps_weights && held->at < held->order_count ? fetch(store, held->order[held->at], &slot)
                                                                           : STATUS_OK;
}

static int sharded_unshard(const struct param_store *store, int unit, enum param_use use) {
    struct sharded *held = store->held;
    int slot;
    if (!held)
        return STATUS_OK;
    bool follows = held->order && use != PARAM_READ;
    if (follows && (held->at == held->order_count || held->order[held->at] != unit))
        return status_fail(STATUS_INVALID, "unit %d is used out of order", unit);
    TRY(fetch(store, unit, &slot));
    TRY(wait_for(store, &held->buffers[slot]));
    held->slots.slots[slot].is_in_use = true;
    param_set_absent(store, unit, false);
    return follows ? fetch_next(store) : STATUS_OK;
}

static int sharded_reshard(const struct param_store *store, int unit) {
    struct sharded *held = store->held;
    if (!held)
        return STATUS_OK;
    param_set_absent(store, unit, true);
    held->slots.slots[unit_slots_find(&held->slots, unit)].is_in_use = false;
    return STATUS_OK;
}

static void sharded_forget(const struct param_store *store) {
    struct sharded *held = store->held;
    if (held)
        unit_slots_forget(&held->slots);
}

/* Returns a view of a parameter in the buffer of its unit. */
static struct matrix_view sharded_borrow(const struct param_store *store, int id, enum param_form form) {
    const struct sharded *held = store->held;
    const struct param *row = &store->map.table->rows[id];
    struct matrix_view view = storage_plain_view(store, id, NULL);
    view.data = NULL;
    int slot = held ? unit_slots_find(&held->slots, row->layer) : UNIT_SLOT_NONE;
    if (slot == UNIT_SLOT_NONE)
        return view;
    int run = row->shard == PARAM_REPLICATED;
    int64_t at = store->map.places[id].offset - unit_of(held, row->layer)->run[run].first;
    view.data = held->buffers[slot].run[run] + at * (int64_t)dtype_bytes(store->map.type);
    return view;
}

static struct matrix_view packed_borrow(const struct param_store *store, int id, enum param_form form) {
    const struct sharded *held = store->held;
    int slot = held ? unit_slots_find(&held->slots, store->map.table->rows[id].layer) : UNIT_SLOT_NONE;
    char *unit = slot == UNIT_SLOT_NONE ? NULL : held->buffers[slot].run[0];
    struct storage_views views = storage_packed_views(store, id, unit ? unit + held->offsets[id] : NULL);
    return held && form == PARAM_WRITTEN ? held->filled.plain : storage_packed_view(&views, form);
}

static struct matrix_view whole_borrow(const struct param_store *store, int id, enum param_form form) {
    const struct sharded *held = store->held;
    return storage_plain_view(store, id, held ? held->memory[0] : NULL);
}

/* ---- gradients ---- */

static int find_sum(const struct sharded *held, int unit) {
    for (int slot = 0; slot < GRADIENT_SLOTS; slot++)
        if (held->sums[slot].is_open && held->sums[slot].unit == unit)
            return slot;
    return UNIT_SLOT_NONE;
}

/* Finishes the sum that was started first. */
static int settle_one(const struct param_store *store) {
    struct sharded *held = store->held;
    struct rank *rank = store->sharing.rank;
    struct sum *sum = held->under_way[0];
    held->sum_count--;
    for (int i = 0; i < held->sum_count; i++)
        held->under_way[i] = held->under_way[i + 1];
    int status = wait_for(store, &sum->buffer);
    for (int run = 0; run < RUNS && !sum->is_first && !status; run++) {
        if (!unit_of(held, sum->unit)->run[run].count)
            continue;
        struct param_range share = share_of(store, PARAM_GRADIENTS, sum->unit, run);
        const float *part = (const float *)sum->buffer.run[run] + share.count * shard_of(store);
        status = rank_run(rank, PHASE_REST, add, &(const struct add_call){share.count, DTYPE_F32, part, share.data});
    }
    return status;
}

/* Finishes sums until at most `most` are under way. */
static int settle(const struct param_store *store, int most) {
    const struct sharded *held = store->held;
    int status = STATUS_OK;
    while (held->sum_count > most && !status)
        status = settle_one(store);
    return status;
}

/* Returns the end of the elements in a unit's run after parameter `id`, up to the next one that the rank holds. */
static int64_t next_offset(const struct param_store *store, int id, int64_t end) {
    const struct param_table *table = store->map.table;
    for (int i = id + 1; i < table->count && table->rows[i].layer == table->rows[id].layer; i++)
        if ((table->rows[i].shard == PARAM_REPLICATED) == (table->rows[id].shard == PARAM_REPLICATED) &&
            param_local_elements(store, i))
            return store->map.places[i].offset;
    return end;
}

/* Zeroes a unit's gradients, except those that a linear overwrites, and the gaps after them. */
static int clear(const struct param_store *store, const struct sum *sum) {
    const struct param_table *table = store->map.table;
    const struct param_unit *unit = unit_of(store->held, sum->unit);
    int status = STATUS_OK;
    for (int i = 0; i < table->count && !status; i++) {
        if (table->rows[i].layer != sum->unit || !param_local_elements(store, i))
            continue;
        int run = table->rows[i].shard == PARAM_REPLICATED;
        int64_t first = store->map.places[i].offset - unit->run[run].first;
        int64_t end = next_offset(store, i, unit->run[run].first + unit->run[run].count) - unit->run[run].first;
        if (table->rows[i].is_linear)
            first += param_local_elements(store, i);
        if (end > first)
            status = stream_zero(store->sharing.rank->exec.stream, (float *)sum->buffer.run[run] + first,
                                 (size_t)(end - first) * sizeof(float));
    }
    return status;
}

static int sharded_begin_gradients(const struct param_store *store, int unit) {
    struct sharded *held = store->held;
    if (!held || find_sum(held, unit) != UNIT_SLOT_NONE)
        return STATUS_OK;
    int slot = slot_of(held, unit, held->turn);
    if (slot >= UNIT_SLOTS_OF_ENDS)
        held->turn = (held->turn + 1) % UNIT_SLOTS_OF_LAYERS;
    struct sum *sum = &held->sums[slot];
    int status = sum->buffer.is_travelling ? settle(store, 0) : STATUS_OK;
    sum->unit = unit;
    sum->is_open = true;
    return status ? status : clear(store, sum);
}

static int sharded_end_gradients(const struct param_store *store, int unit) {
    struct sharded *held = store->held;
    int slot = held ? find_sum(held, unit) : UNIT_SLOT_NONE, status = STATUS_OK;
    if (slot == UNIT_SLOT_NONE)
        return STATUS_OK;
    struct sum *sum = &held->sums[slot];
    status = settle(store, SUMS_MOST - 1);
    sum->is_open = false;
    sum->is_first = !held->has_sum[unit - PARAM_UNIT_FIRST];
    held->has_sum[unit - PARAM_UNIT_FIRST] = true;
    for (int run = 0; run < RUNS && !status; run++) {
        sum->buffer.request[run] = (struct comm_request){0};
        if (!unit_of(held, unit)->run[run].count)
            continue;
        struct param_range share = share_of(store, PARAM_GRADIENTS, unit, run);
        float *whole = (float *)sum->buffer.run[run];
        const struct comm_data data = {.send = whole,
                                       .receive = sum->is_first ? share.data : whole + share.count * shard_of(store),
                                       .count = share.count,
                                       .dtype = DTYPE_F32};
        status = rank_scatter_start(store->sharing.rank, RANK_BUCKETS, &data, &sum->buffer.request[run]);
        sum->buffer.is_travelling = true;
        held->counts.sums++;
        held->counts.summed += (double)unit_of(held, unit)->run[run].count;
    }
    held->under_way[held->sum_count++] = sum;
    return status || store->sharing.overlaps_sums ? status : settle(store, 0);
}

static int sharded_settle_gradients(const struct param_store *store) {
    struct sharded *held = store->held;
    if (!held)
        return STATUS_OK;
    memset(held->has_sum, 0, (size_t)held->unit_count * sizeof *held->has_sum);
    return settle(store, 0);
}

static float *sharded_gradient(const struct param_store *store, int id) {
    const struct sharded *held = store->held;
    const struct param *row = &store->map.table->rows[id];
    int slot = find_sum(held, row->layer), run = row->shard == PARAM_REPLICATED;
    if (slot == UNIT_SLOT_NONE)
        return NULL;
    return (float *)held->sums[slot].buffer.run[run] + store->map.places[id].offset -
           unit_of(held, row->layer)->run[run].first;
}

/* ---- the tables ---- */

/* Packed shares have no elements to write. */
static const struct param_range *no_ranges(const struct param_store *store, enum param_array array, int *count) {
    *count = 0;
    return NULL;
}

static const struct param_range *sharded_ranges(const struct param_store *store, enum param_array array, int *count) {
    const struct sharded *held = store->held;
    *count = !held ? 0 : array == PARAM_WEIGHTS ? held->weight_ranges : held->gradient_ranges;
    return !held ? NULL : array == PARAM_WEIGHTS ? held->weights : held->gradients;
}

int sharded_follow(const struct param_store *store, const int *order, int64_t count) {
    struct sharded *held = store->held;
    int slot;
    if (!sharded_cuts_weights(store) || !held)
        return STATUS_OK;
    held->order = order;
    held->order_count = count;
    held->at = 0;
    return store->sharing.overlaps_weights && count ? fetch(store, order[0], &slot) : STATUS_OK;
}

struct sharded_counts sharded_counts(const struct param_store *store) {
    const struct sharded *held = store->held;
    bool is_ours = sharded_cuts_weights(store) || store->storage == &storage_sharded_gradients;
    return is_ours && held ? held->counts : (struct sharded_counts){0};
}

const struct storage storage_sharded_gradients = {
    .name = "sharded gradients",
    .bytes = sharded_bytes,
    .open = sharded_open,
    .close = sharded_close,
    .borrow = whole_borrow,
    .begin_gradients = sharded_begin_gradients,
    .end_gradients = sharded_end_gradients,
    .settle_gradients = sharded_settle_gradients,
    .gradient = sharded_gradient,
    .ranges = sharded_ranges,
};

const struct storage storage_sharded = {
    .name = "sharded",
    .bytes = sharded_bytes,
    .open = sharded_open,
    .close = sharded_close,
    .borrow = sharded_borrow,
    .unshard = sharded_unshard,
    .reshard = sharded_reshard,
    .forget = sharded_forget,
    .begin_gradients = sharded_begin_gradients,
    .end_gradients = sharded_end_gradients,
    .settle_gradients = sharded_settle_gradients,
    .gradient = sharded_gradient,
    .ranges = sharded_ranges,
};

const struct storage storage_sharded_packed = {
    .name = "sharded packed",
    .needs_fill = true,
    .bytes = sharded_bytes,
    .open = sharded_open,
    .close = sharded_close,
    .borrow = packed_borrow,
    .unshard = sharded_unshard,
    .reshard = sharded_reshard,
    .forget = sharded_forget,
    .ranges = no_ranges,
};
