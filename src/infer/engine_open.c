/* The steps that open an engine: the model's files, the rank and its part, the model, and the memory of sequences and
 * steps. */
#include "engine-internal.h"

#include "parallel/algorithms.h"
#include "parallel/connect.h"
#include "parallel/layout.h"
#include "parallel/site.h"

/* ---- the model's files ---- */

static int check_layout(const struct engine_options *options, const struct model_config *config, bool takes_data) {
    struct parallel_layout layout = {.grid = options->grid,
                                     .chunks = 1,
                                     .first = options->first_layers,
                                     .last = options->last_layers,
                                     .layers = config->num_layers,
                                     .heads = config->num_attention_heads,
                                     .query_groups = config->num_query_groups,
                                     .ffn_hidden = config->ffn_hidden_size,
                                     .is_one_model = !takes_data};
    return parallel_layout_check(&layout);
}

int engine_check(const struct engine_options *options, bool takes_data) {
    struct pretrained base;
    int status = pretrained_open_config(options->model, &base);
    THEN(status, check_layout(options, &base.config, takes_data));
    pretrained_close(&base);
    return status;
}

static int choose_positions(struct engine *engine, int64_t most) {
    int64_t *positions = &engine->options.max_positions;
    if (*positions > most)
        return status_fail(STATUS_USAGE, "%s %lld: the model has %lld positions",
                           engine->options.max_positions_option ? engine->options.max_positions_option
                                                                : "--max-model-len",
                           (long long)*positions, (long long)most);
    *positions = *positions ? *positions : most;
    return STATUS_OK;
}

/* Returns the window of every layer; 0 when the layers differ or have none. */
static int64_t window_of(const struct model_config *config) {
    for (int64_t layer = 0; layer < config->num_layers; layer++)
        if (model_layer_is_full(config, layer))
            return 0;
    return config->window;
}

static bool has_bank(const struct engine *engine) {
    return engine->options.adapter_count > 0 || engine->options.adapter_memory > 0;
}

static struct plan_counts count_most(const struct engine *engine) {
    const struct engine_options *o = &engine->options;
    return (struct plan_counts){.rows = o->max_rows,
                                .segments = o->max_rows,
                                .pages = engine->sequences * engine->max_pages,
                                .prefixes = o->max_rows,
                                .places = o->max_rows,
                                .logit_rows = o->max_logit_rows,
                                .changes = engine->max_changes,
                                .bytes = has_bank(engine) ? ENGINE_PIECE_BYTES : 0};
}

static void find_sizes(struct engine *engine) {
    struct engine_options *o = &engine->options;
    if (has_bank(engine) && o->max_logit_rows < RECEIPT_TOKENS) /* replaying receipts takes few steps */
        o->max_logit_rows = o->max_rows < RECEIPT_TOKENS ? o->max_rows : RECEIPT_TOKENS;
    int64_t drawing = o->max_logit_rows < o->max_sequences ? o->max_logit_rows : o->max_sequences;
    engine->dtype = o->precision >= 0 ? precision_dtype(o->precision) : pretrained_auto_dtype(&engine->encodings);
    engine->kept = has_bank(engine) ? RECEIPT_TEXTS : 0;
    engine->sequences = o->max_sequences + engine->kept;
    engine->max_pages = engine_pages_of(o->max_positions);
    engine->window = window_of(&engine->files.config);
    engine->max_changes = drawing * (o->max_positions + ENGINE_MAX_BIASES);
    engine->max_masks = drawing;
    engine->mask_words = sample_mask_words(engine->files.config.vocab_size);
    engine->most = count_most(engine);
}

static void close_files(void *self) {
    struct engine *engine = self;
    pretrained_encodings_close(&engine->encodings);
    if (engine->options.random) /* they are the caller's */
        engine->files.tensors = NULL;
    pretrained_close(&engine->files);
}

/* Opens the model's files, or chooses random weights, without tensors. Computes the sizes that follow from the options
 * and the model. */
static int find_model(void *self) {
    struct engine *engine = self;
    const struct engine_options *o = &engine->options;
    struct pretrained *base = &engine->files;
    *base = (struct pretrained){.dtype = DTYPE_F32};
    if (o->random) {
        base->config = *o->random;
        base->tensors = o->encoded;
    }
    int status = o->random ? STATUS_OK : pretrained_open(o->model, o->world, base);
    THEN(status, pretrained_encodings_open(base, o->load_in, &engine->encodings));
    THEN(status, choose_positions(engine, model_positions(&base->config)));
    THEN_IF(status, o->grid.tensor, check_layout(o, &base->config, true));
    if (status) {
        close_files(engine);
        return status;
    }
    memcpy(engine->directory, base->directory, sizeof engine->directory);
    engine->ends = base->ends;
    engine->quantization = peft_quantization_of(&engine->encodings.quantization);
    snprintf(engine->quantization_text, sizeof engine->quantization_text, "%s", engine->encodings.quantization.text);
    find_sizes(engine);
    return STATUS_OK;
}

static int release_files(void *self) {
    close_files(self);
    return STATUS_OK;
}

/* ---- the rank ---- */

static int open_device(void *self) {
    struct engine *engine = self;
    const struct engine_options *o = &engine->options;
    int status = device_open(o->device, o->device_number, o->threads, &engine->shared->device);
    if (!status)
        rank_site_warn(engine->shared->device, o->threads);
    return status;
}

static int sketch_device(void *self) {
    struct engine *engine = self;
    const struct device_facts facts = {.kind = engine->options.device, .threads = engine->options.threads};
    return device_sketch(&facts, &engine->shared->device);
}

static void close_device(void *self) {
    struct engine *engine = self;
    device_close(engine->shared->device);
    engine->shared->device = NULL;
}

static int connect_ranks(void *self) {
    struct engine *engine = self;
    const struct engine_options *o = &engine->options;
    return o->world ? rank_connect(o->world, engine->shared->device, (enum collectives)o->collectives, 0) : STATUS_OK;
}

static int take_algorithms(void *self) {
    struct engine *engine = self;
    return algorithms_take(engine->options.world, engine->shared->device, engine->options.gemm_algorithms);
}

static void disconnect_ranks(void *self) {
    struct engine *engine = self;
    if (engine->options.world)
        rank_disconnect(engine->options.world);
}

/* Ranks are numbered by their place: first the tensor ranks of a stage, then those of the next stage. */
static void find_holders(struct engine_shared *shared) {
    const struct rank_grid *grid = &shared->rank.grid, *place = &shared->rank.place;
    shared->holder_count = rank_grid_group_size(grid, GRID_TENSOR | GRID_PIPELINE);
    shared->holder = place->pipeline * grid->tensor + place->tensor;
}

static int open_rank(void *self) {
    struct engine *engine = self;
    const struct engine_options *o = &engine->options;
    int status = o->world ? rank_open(&engine->shared->rank, &o->grid, o->world, engine->shared->device, 0)
                          : rank_open_single(&engine->shared->rank, engine->shared->device, 0);
    THEN_IF(status, o->precision == PRECISION_TF32, rank_use_tf32(&engine->shared->rank));
    if (!status && o->is_batch_invariant)
        rank_make_batch_invariant(&engine->shared->rank);
    if (status)
        rank_close(&engine->shared->rank);
    return status;
}

static int sketch_rank(void *self) {
    struct engine *engine = self;
    struct engine_shared *shared = engine->shared;
    rank_sketch(&shared->rank, &engine->options.grid, shared->number, shared->device);
    if (engine->options.is_batch_invariant)
        rank_make_batch_invariant(&shared->rank);
    find_holders(shared);
    return STATUS_OK;
}

static void close_rank(void *self) {
    struct engine *engine = self;
    rank_close(&engine->shared->rank);
}

static int open_holders(void *self) {
    const struct engine *engine = self;
    struct engine_shared *shared = engine->shared;
    find_holders(shared);
    if (shared->holder_count == 1)
        return STATUS_OK;
    struct comm *world = engine->options.world;
    int *ranks = malloc((size_t)shared->holder_count * sizeof *ranks);
    TRY(status_allocated(ranks));
    rank_grid_group(&shared->rank.grid, GRID_TENSOR | GRID_PIPELINE, world->rank, ranks);
    int status = comm_subgroup(world, ranks, shared->holder_count, &shared->holders);
    free(ranks);
    return status;
}

static void close_holders(void *self) {
    struct engine *engine = self;
    comm_close(engine->shared->holders);
    engine->shared->holders = NULL;
}

static int open_part(void *self) {
    struct engine *engine = self;
    if (engine_leads(engine))
        engine->leader = calloc(1, sizeof *engine->leader);
    else
        engine->follower = calloc(1, sizeof *engine->follower);
    if (engine->leader)
        engine->leader->opened_slot = -1;
    return status_allocated(engine->leader || engine->follower);
}

static void close_part(void *self) {
    struct engine *engine = self;
    if (engine->leader)
        free(engine->leader->slots);
    if (engine->follower)
        peft_bytes_free(&engine->follower->arriving);
    free(engine->leader);
    free(engine->follower);
    engine->leader = NULL;
    engine->follower = NULL;
}

/* ---- the model ---- */

static int model_options(const struct engine *engine, struct model_options *options) {
    const struct engine_options *o = &engine->options;
    *options = (struct model_options){
        .base.config = engine->files.config,
        .base.dtype = engine->dtype,
        .base.storage = &storage_packed,
        .base.encodings = pretrained_describes(&engine->encodings),
        .max_rows = o->max_rows,
        .max_positions = o->max_positions,
        .infer.max_logit_rows = o->max_logit_rows,
        .infer.max_changes = engine->max_changes,
        .infer.max_masks = engine->max_masks,
        .infer.max_sequences = engine->sequences,
        .infer.max_pages = engine->max_pages,
        .hooks = engine->bank ? peft_bank_hooks(engine->bank) : NULL,
        .base.chunk_count = 1,
    };
    struct pipeline_split split = {.layers = engine->files.config.num_layers,
                                   .stages = engine->shared->rank.grid.pipeline,
                                   .chunks = 1,
                                   .first = o->first_layers,
                                   .last = o->last_layers};
    return pipeline_layers(&split, engine->shared->rank.place.pipeline, 0, &options->base.chunks[0].first,
                           &options->base.chunks[0].count);
}

/* Opens the rank's bank, if it needs one. */
static int open_bank(void *self) {
    struct engine *engine = self;
    struct model_options options;
    if (!has_bank(engine))
        return STATUS_OK;
    TRY(model_options(engine, &options));
    int status = peft_bank_open(&options, &engine->shared->rank, &engine->bank);
    if (!status && !engine->options.random)
        peft_bank_set_directory(engine->bank, engine->directory);
    return status;
}

static void close_bank(void *self) {
    struct engine *engine = self;
    peft_bank_close(engine->bank);
    engine->bank = NULL;
}

static void close_model(void *self) {
    struct engine *engine = self;
    inference_close(engine->runner);
    base_close(engine->base);
    engine->runner = NULL;
    engine->base = NULL;
}

/* Sketches the base and its runner, and plans them. */
static int sketch_model(void *self) {
    struct engine *engine = self;
    struct model_options options;
    engine->plan = (struct model_plan){0};
    int status = model_options(engine, &options);
    THEN(status, base_sketch(&options.base, &engine->shared->rank, &engine->plan, &engine->base));
    THEN(status, inference_sketch(&options, engine->base, &engine->plan, &engine->runner));
    if (status)
        close_model(engine);
    return status;
}

static int allocate_model(void *self) {
    const struct engine *engine = self;
    return inference_allocate(engine->runner);
}

static int allocate_workspace(void *self) {
    const struct engine *engine = self;
    return rank_allocate_workspace(&engine->shared->rank);
}

static int load_weights(void *self) {
    struct engine *engine = self;
    char text[ENCODINGS_TEXT_BYTES];
    pretrained_encodings_text(&engine->encodings, engine->shared->device, engine->dtype, text);
    if (engine_leads(engine) && *text)
        log_info("# model: %s", text);
    return pretrained_load(&engine->encodings, engine->base, engine->shared->rank.exec.stream, false);
}

/* ---- arrays of steps ---- */

static void *take(struct arena *arena, int64_t count, size_t width) {
    return arena_take(arena, (size_t)count * width);
}

static void place_leader(const struct engine *engine, struct engine_leader *leader, struct arena *arena) {
    const struct engine_options *o = &engine->options;
    leader->sequences = take(arena, engine->sequences, sizeof *leader->sequences);
    int32_t *tokens = take(arena, engine->sequences * KV_PAGE_TOKENS, sizeof *tokens);
    int32_t *pages = take(arena, engine->sequences * engine->max_pages, sizeof *pages);
    for (int64_t i = 0; i < engine->sequences && leader->sequences; i++)
        leader->sequences[i] =
            (struct sequence){.pages = pages + i * engine->max_pages, .page_tokens = tokens + i * KV_PAGE_TOKENS};
    void *built = take(arena, (int64_t)plan_block_bytes(&engine->most), 1);
    if (built)
        plan_place(&leader->built, &engine->most, built);
    leader->flights = take(arena, engine_flights(engine), sizeof *leader->flights);
    for (int i = 0; i < engine_flights(engine); i++) {
        int32_t *rows = take(arena, o->max_logit_rows, sizeof *rows);
        void *results = take(arena, (int64_t)model_results_bytes(o->max_logit_rows, true), 1);
        struct constraint **constraints = take(arena, engine->max_masks, sizeof(struct constraint *));
        if (leader->flights)
            leader->flights[i] = (struct flight){.result_row = rows, .results = results, .constraints = constraints};
    }
}

static void place_arrays(struct engine *engine, struct arena *arena) {
    const struct engine_options *o = &engine->options;
    if (engine_leads(engine))
        place_leader(engine, engine->leader, arena);
    else
        engine->follower->results = take(arena, (int64_t)model_results_bytes(o->max_logit_rows, true), 1);
}

/* Placing stores the arrays' addresses; copies receive them here. */
size_t engine_array_bytes(const struct engine *engine) {
    struct engine_leader leader = {0};
    struct engine_follower follower = {0};
    struct engine counted = *engine;
    struct arena arena = ARENA_PLAN;
    counted.leader = &leader;
    counted.follower = &follower;
    place_arrays(&counted, &arena);
    return arena.used;
}

static int open_arrays(void *self) {
    struct engine *engine = self;
    size_t bytes = engine_array_bytes(engine);
    engine->host = aligned_alloc(ARENA_ALIGNMENT, bytes);
    TRY(status_allocated(engine->host));
    memset(engine->host, 0, bytes);
    struct arena arena = arena_over(engine->host, bytes);
    place_arrays(engine, &arena);
    return STATUS_OK;
}

static void close_arrays(void *self) {
    struct engine *engine = self;
    for (int i = 0; engine->leader && i < engine_flights(engine); i++)
        comm_forget(&engine->leader->flights[i].arriving);
    free(engine->host);
    engine->host = NULL;
}

/* ---- the cache ---- */

int64_t engine_count_pages(const struct engine *engine) {
    const struct engine_options *o = &engine->options;
    int64_t most = o->max_sequences * engine->max_pages, pages = most;
    if (o->cache_tokens)
        pages = engine_pages_of(o->cache_tokens);
    if (o->cache_bytes)
        pages = (int64_t)(o->cache_bytes / engine->plan.kv_page_bytes);
    pages = pages < most ? pages : most;
    return pages > 0 ? pages + engine->kept : pages;
}

int engine_check_pages(const struct engine *engine, int64_t pages) {
    return pages > 0 ? STATUS_OK
                     : status_fail(STATUS_USAGE, "a KV cache of %zu bytes: a page of %d tokens takes %zu",
                                   engine->options.cache_bytes, KV_PAGE_TOKENS, engine->plan.kv_page_bytes);
}

/* Lowers a number of pages that no option gives to what fits a device's own memory, beside the adapters that come
 * later. Bases share the memory in equal parts. A tenth of it stays free: the driver and the kernels take some. */
static int fit_pages(struct engine *engine, int64_t *pages) {
    const struct engine_options *o = &engine->options;
    size_t bytes, sharers = (size_t)(o->device_sharers > 1 ? o->device_sharers : 1) * (size_t)engine->shared->count;
    if (o->cache_tokens || o->cache_bytes || !device_memory(engine->shared->device))
        return STATUS_OK;
    TRY(device_free_memory(engine->shared->device, &bytes));
    TRY(engine_plan_images(engine));
    bytes = bytes / sharers / 10 * 9;
    int64_t fitting = bytes > engine->images ? (int64_t)((bytes - engine->images) / engine->plan.kv_page_bytes) : 0;
    if (fitting <= 0)
        return status_fail(STATUS_MEMORY,
                           "KV cache: the device's memory holds no page of %d tokens beside model and adapters",
                           KV_PAGE_TOKENS);
    *pages = fitting < *pages ? fitting : *pages;
    return STATUS_OK;
}

/* Ranks may hold layers and heads of different sizes: the smallest number of pages applies to all. */
static int agree_on_pages(void *self) {
    struct engine *engine = self;
    int64_t pages = engine_count_pages(engine);
    int fitted = fit_pages(engine, &pages);
    pages = -pages;
    struct comm_data data = {.send = &pages, .receive = &pages, .count = 1, .dtype = DTYPE_I64};
    int status = engine->shared->holders ? comm_all_reduce(engine->shared->holders, &data, COMM_MAX) : STATUS_OK;
    engine->pages = -pages;
    if (fitted)
        return fitted;
    return status ? status : engine_check_pages(engine, engine->pages - engine->kept);
}

static int open_pool(void *self) {
    struct engine *engine = self;
    if (!engine->leader)
        return STATUS_OK;
    int status = kv_pool_open(&engine->leader->pool, engine->pages, !engine->options.has_no_prefix_cache);
    return status ? status_wrap(status, "KV cache") : STATUS_OK;
}

static void close_pool(void *self) {
    struct engine *engine = self;
    if (engine->leader)
        kv_pool_close(&engine->leader->pool);
}

static int open_pages(void *self) {
    struct engine *engine = self;
    int status = inference_open_pages(engine->runner, engine->pages);
    if (!status && engine->options.touches_cache) /* the first write to a huge page can take as long as a step */
        status = inference_touch_pages(engine->runner);
    return status ? status_wrap(status, "KV cache") : STATUS_OK;
}

/* ---- decode steps that are recorded ---- */

/* Stages send rows while they work on the next step. Sums that pass the host are no work of a stream. */
static bool can_record(const struct engine *engine) {
    const struct rank *rank = &engine->shared->rank;
    return device_records(engine->shared->device) && rank->grid.pipeline == 1 &&
           (rank->grid.tensor == 1 || comm_records(rank->tensor));
}

static int open_graphs(void *self) {
    struct engine *engine = self;
    struct engine_graphs *graphs = &engine->graphs;
    size_t before, after;
    if (engine->options.has_no_graphs || !can_record(engine))
        return STATUS_OK;
    double start = clock_seconds();
    int status = device_free_memory(engine->shared->device, &before);
    THEN_IF(status, engine->bank, peft_bank_step(engine->bank, NULL, 0));
    THEN(status, model_record_steps(engine->runner, engine->options.max_sequences, &graphs->count));
    THEN(status, device_free_memory(engine->shared->device, &after));
    if (status)
        return status_wrap(status, "recording decode steps");
    graphs->bytes = before > after ? before - after : 0;
    graphs->seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* ---- the table ---- */

/* The error of a rank without memory names the model's directory. */
static int agree(void *self, int status) {
    struct engine *engine = self;
    if (status == STATUS_MEMORY && engine->files.tensors)
        status = status_wrap(status, "%s", engine->directory);
    return engine->options.world ? comm_agree(engine->options.world, status) : status;
}

static void *next_base(void *self) {
    struct engine *engine = self;
    return engine + 1 < engine->shared->bases + engine->shared->count ? engine + 1 : NULL;
}

static const struct opening_step steps[] = {
    {.open = find_model, .close = close_files, .agrees = true},
    {.open = open_device,
     .close = close_device,
     .agrees = true,
     .is_shared = true}, /* before ranks form groups, in which they wait for each other */
    {.open = connect_ranks, .close = disconnect_ranks, .agrees = true, .is_shared = true},
    {.open = take_algorithms, .agrees = true, .is_shared = true},
    {.open = open_rank, .close = close_rank, .agrees = true, .is_shared = true},
    {.open = open_holders, .close = close_holders, .is_shared = true},
    {.open = open_part, .close = close_part, .agrees = true},
    {.open = open_bank, .close = close_bank},
    {.open = sketch_model, .close = close_model},
    {.open = allocate_model},
    {.open = allocate_workspace, .is_shared = true},
    {.open = load_weights},
    {.open = release_files, .agrees = true}, /* later steps may sum over ranks */
    {.open = open_arrays, .close = close_arrays},
    {.open = engine_open_link, .close = engine_close_link, .agrees = true},
    {.open = agree_on_pages, .agrees = true}, /* no rank takes pages before all have seen what is free */
    {.open = open_pool, .close = close_pool},
    {.open = open_pages, .agrees = true},
    {.open = engine_open_images, .close = engine_close_images, .agrees = true},
    {.open = open_graphs, .close = engine_close_runs, .agrees = true},
};

const struct opening engine_opening = {steps, sizeof steps / sizeof *steps, agree, next_base};

static const struct opening_step planned_steps[] = {
    {.open = find_model, .close = close_files},
    {.open = sketch_device, .close = close_device, .is_shared = true},
};
static const struct opening_step sketch_steps[] = {
    {.open = sketch_rank, .close = close_rank, .is_shared = true},
    {.open = open_bank, .close = close_bank},
    {.open = sketch_model, .close = close_model},
};
const struct opening engine_planned_opening = {planned_steps, sizeof planned_steps / sizeof *planned_steps, NULL,
                                               next_base},
                     engine_sketch_opening = {sketch_steps, sizeof sketch_steps / sizeof *sketch_steps, NULL,
                                              next_base};
