/* The engine: a model from a directory, with its adapters, and the memory that sequences and steps need. */
#include "engine-internal.h"

#include "parallel/layout.h"
#include "parallel/site.h"
#include "pretrained/pretrained.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

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
    if (!status)
        status = check_layout(options, &base.config, takes_data);
    pretrained_close(&base);
    return status;
}

static int agree(const struct engine *engine, int status) {
    return engine->options.world ? comm_agree(engine->options.world, status) : status;
}

/* ---- adapters ---- */

static bool has_bank(const struct engine *engine) {
    return engine->options.adapter_count > 0 || engine->options.adapter_memory > 0;
}

static int open_bank(struct engine *engine, struct model_options *options) {
    if (!has_bank(engine))
        return STATUS_OK;
    int status = peft_bank_open(options, &engine->rank, &engine->bank);
    if (!status)
        options->hooks = peft_bank_hooks(engine->bank);
    return status;
}

/* ---- weights ---- */

struct filling {
    struct engine *engine;
    const struct ckpt_tensors *tensors; /* NULL: random values */
};

static int read_parameter(struct param_store *store, struct stream *stream, const struct ckpt_tensors *tensors,
                          int id) {
    const struct param_place *place = &store->map.places[id];
    struct param_range range = {.first = place->offset,
                                .count = param_local_elements(store, id),
                                .data = param_borrow_to_write(store, id),
                                .type = place->type};
    struct ckpt_flat flat = {.map = &store->map, .stream = stream, .ranges = &range, .count = 1, .dtype = place->type};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    int status = ckpt_read_param(tensors, store->map.table, &array, id);
    param_return(store, id);
    return status;
}

/* Fills in the plain values of one parameter. */
static int fill_parameter(void *context, int id) {
    const struct filling *filling = context;
    struct engine *engine = filling->engine;
    struct param_store *store = model_store(engine->model);
    struct stream *stream = engine->rank.exec.stream;
    return filling->tensors ? read_parameter(store, stream, filling->tensors, id)
                            : param_initialise(store, stream, 1, id);
}

static int load_weights(struct engine *engine, const struct ckpt_tensors *tensors) {
    const struct param_table *table = model_table(engine->model);
    const struct ckpt_array all = {.prefix = "", .dtype = model_store(engine->model)->map.type};
    struct filling filling = {engine, tensors};
    int status = tensors ? ckpt_check(tensors, table, &all, 1) : STATUS_OK;
    return status ? status : model_fill(engine->model, fill_parameter, &filling);
}

/* ---- host memory ---- */

static void *take(struct arena *arena, int64_t count, size_t width) {
    return arena_take(arena, (size_t)count * width);
}

static void place_leader(struct engine *engine, struct arena *arena) {
    const struct engine_options *o = &engine->options;
    engine->sequences = take(arena, o->max_sequences, sizeof *engine->sequences);
    int32_t *tokens = take(arena, o->max_sequences * KV_PAGE_TOKENS, sizeof *tokens);
    for (int64_t i = 0; i < o->max_sequences && engine->sequences; i++)
        engine->sequences[i] = (struct sequence){.pages = engine->page_table + i * engine->max_pages,
                                                 .page_tokens = tokens + i * KV_PAGE_TOKENS};
    void *built = take(arena, (int64_t)plan_block_bytes(&engine->most), 1);
    if (built)
        plan_place(&engine->built, &engine->most, built);
    engine->flights = take(arena, engine_flights(engine), sizeof *engine->flights);
    for (int i = 0; i < engine_flights(engine); i++) {
        int32_t *rows = take(arena, o->max_logit_rows, sizeof *rows);
        void *results = take(arena, (int64_t)model_results_bytes(o->max_logit_rows, true), 1);
        if (engine->flights)
            engine->flights[i] = (struct flight){.result_row = rows, .results = results};
    }
}

void engine_place_arrays(struct engine *engine, struct arena *arena) {
    const struct engine_options *o = &engine->options;
    engine->page_table = take(arena, o->max_sequences * engine->max_pages, sizeof(int32_t));
    engine->changed = take(arena, o->max_sequences, sizeof *engine->changed);
    engine->is_changed = take(arena, o->max_sequences, sizeof *engine->is_changed);
    if (engine_is_leader(engine))
        place_leader(engine, arena);
    else
        engine->made.token = take(arena, (int64_t)model_results_bytes(o->max_logit_rows, true), 1);
}

static struct plan_counts count_most(const struct engine *engine) {
    const struct engine_options *o = &engine->options;
    return (struct plan_counts){.rows = o->max_rows,
                                .segments = o->max_rows,
                                .pages = o->max_sequences * engine->max_pages,
                                .prefixes = o->max_rows,
                                .places = o->max_rows,
                                .logit_rows = o->max_logit_rows,
                                .changes = engine->max_changes,
                                .bytes = has_bank(engine) ? engine_piece_bytes() : 0};
}

static int allocate_host(struct engine *engine) {
    struct arena arena = ARENA_PLAN;
    engine_place_arrays(engine, &arena);
    size_t bytes = arena.used;
    engine->host = aligned_alloc(ARENA_ALIGNMENT, bytes);
    if (!engine->host)
        return status_fail(STATUS_MEMORY, "out of memory");
    memset(engine->host, 0, bytes);
    arena = arena_over(engine->host, bytes);
    engine_place_arrays(engine, &arena);
    return engine_open_link(engine);
}

/* ---- the cache ---- */

int64_t engine_count_pages(const struct engine *engine) {
    const struct engine_options *o = &engine->options;
    int64_t most = o->max_sequences * engine->max_pages, pages = most;
    if (o->cache_tokens)
        pages = engine_pages_of(o->cache_tokens);
    if (o->cache_bytes)
        pages = (int64_t)(o->cache_bytes / engine->plan.kv_page_bytes);
    return pages < most ? pages : most;
}

int engine_check_pages(const struct engine *engine, int64_t pages) {
    return pages > 0 ? STATUS_OK
                     : status_fail(STATUS_USAGE, "a KV cache of %zu bytes: a page of %d tokens takes %zu",
                                   engine->options.cache_bytes, KV_PAGE_TOKENS, engine->plan.kv_page_bytes);
}

/* Ranks have layers and heads of different sizes: the one that holds least says how many pages there are. */
static int agree_on_pages(struct engine *engine) {
    int64_t pages = -engine_count_pages(engine);
    struct comm_data data = {.send = &pages, .receive = &pages, .count = 1, .dtype = DTYPE_I64};
    int status = engine->holders ? comm_all_reduce(engine->holders, &data, COMM_MAX) : STATUS_OK;
    engine->kv.page_count = -pages;
    return status ? status : engine_check_pages(engine, engine->kv.page_count);
}

static int allocate_cache(struct engine *engine) {
    int status = agree_on_pages(engine);
    if (status)
        return status;
    engine->kv_bytes = engine->plan.kv_page_bytes * (size_t)engine->kv.page_count;
    if (engine_is_leader(engine))
        status = kv_pool_open(&engine->pool, engine->kv.page_count, !engine->options.has_no_prefix_cache);
    if (!status)
        status = device_alloc(engine->device, engine->kv_bytes, &engine->kv.pages);
    if (!status && engine->options.touches_cache) /* a huge page can take as long as a step */
        status = stream_zero(engine->rank.exec.stream, engine->kv.pages, engine->kv_bytes);
    if (!status && engine->options.touches_cache)
        status = stream_wait(engine->rank.exec.stream);
    return status ? status_wrap(status, "KV cache") : STATUS_OK;
}

/* ---- the model ---- */

static int open_rank(struct engine *engine) {
    struct comm *world = engine->options.world;
    int status =
        device_open(engine->options.device, engine->options.device_number, engine->options.threads, &engine->device);
    if (!status)
        rank_site_warn(engine->device, engine->options.threads);
    if (!status && world)
        status = rank_open(&engine->rank, &engine->options.grid, world, engine->device, 0);
    else if (!status)
        status = rank_open_single(&engine->rank, engine->device, 0);
    const struct rank_grid *grid = &engine->rank.grid;
    unsigned axes = GRID_TENSOR | GRID_PIPELINE;
    int count = status ? 1 : rank_grid_group_size(grid, axes);
    int *ranks = count > 1 ? malloc((size_t)count * sizeof *ranks) : NULL;
    if (count > 1 && !ranks)
        return status_fail(STATUS_MEMORY, "out of memory");
    if (count > 1) {
        rank_grid_group(grid, axes, world->rank, ranks);
        status = comm_subgroup(world, ranks, count, &engine->holders);
    }
    free(ranks);
    return status;
}

/* Its number among them is that of its place: tensor ranks of a stage, then the next stage. */
static void find_holders(struct engine *engine) {
    const struct rank_grid *grid = &engine->rank.grid, *place = &engine->rank.place;
    engine->holder_count = rank_grid_group_size(grid, GRID_TENSOR | GRID_PIPELINE);
    engine->holder = place->pipeline * grid->tensor + place->tensor;
}

int engine_choose_model(struct engine *engine, const struct model_config *config, struct model_options *options) {
    const struct engine_options *o = &engine->options;
    *options = (struct model_options){
        .config = *config,
        .dtype = engine->dtype,
        .use = MODEL_INFER,
        .max_rows = o->max_rows,
        .max_positions = o->max_positions,
        .infer.max_logit_rows = o->max_logit_rows,
        .infer.max_changes = engine->max_changes,
        .infer.max_sequences = o->max_sequences,
        .infer.max_pages = engine->max_pages,
    };
    struct pipeline_split split = {.layers = config->num_layers,
                                   .stages = engine->rank.grid.pipeline,
                                   .chunks = 1,
                                   .first = o->first_layers,
                                   .last = o->last_layers};
    find_holders(engine);
    options->chunk_count = 1;
    int status =
        pipeline_layers(&split, engine->rank.place.pipeline, 0, &options->chunks[0].first, &options->chunks[0].count);
    return status ? status : open_bank(engine, options);
}

static int choose_positions(struct engine *engine, int64_t most) {
    int64_t *positions = &engine->options.max_positions;
    if (*positions > most)
        return status_fail(STATUS_USAGE, "--max-model-len %lld: the model has %lld positions", (long long)*positions,
                           (long long)most);
    *positions = *positions ? *positions : most;
    return STATUS_OK;
}

int engine_find_model(struct engine *engine, struct pretrained *base) {
    const struct engine_options *o = &engine->options;
    *base = (struct pretrained){.dtype = DTYPE_F32};
    if (o->random)
        base->config = *o->random;
    int status = o->random ? STATUS_OK : pretrained_open(o->model, o->world, base);
    memcpy(engine->directory, base->directory, sizeof engine->directory);
    if (!status)
        status = choose_positions(engine, base->config.max_position_embeddings);
    engine->ends = base->ends;
    if (!status && o->grid.tensor)
        status = check_layout(o, &base->config, true);
    return agree(engine, status);
}

/* The window that every layer has. */
static int64_t window_of(const struct model_config *config) {
    for (int64_t layer = 0; layer < config->num_layers; layer++)
        if (model_layer_is_full(config, layer))
            return 0;
    return config->window;
}

void engine_find_sizes(struct engine *engine, const struct pretrained *base) {
    const struct engine_options *o = &engine->options;
    int64_t positions = engine->options.max_positions;
    int64_t drawing = o->max_logit_rows < o->max_sequences ? o->max_logit_rows : o->max_sequences;
    engine->dtype = o->precision >= 0           ? (o->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32)
                    : base->dtype == DTYPE_BF16 ? DTYPE_BF16
                                                : DTYPE_F32;
    engine->max_pages = engine_pages_of(positions);
    engine->window = window_of(&base->config);
    engine->max_changes = drawing * (positions + ENGINE_MAX_BIASES);
    engine->most = count_most(engine);
}

static int open_on(struct engine *engine, const struct pretrained *base) {
    struct model_options options;
    engine_find_sizes(engine, base);
    int status = open_rank(engine);
    if (!status)
        status = engine_choose_model(engine, &base->config, &options);
    if (!status)
        status = model_open(&options, &engine->rank, false, &engine->plan, &engine->model);
    if (!status)
        status = load_weights(engine, base->tensors);
    return status == STATUS_MEMORY && base->tensors ? status_wrap(status, "%s", engine->directory) : status;
}

static int open_all(struct engine *engine) {
    struct pretrained base;
    int status = engine_find_model(engine, &base);
    if (!status)
        status = open_on(engine, &base);
    pretrained_close(&base);
    status = agree(engine, status); /* the next steps may sum over ranks */
    if (!status)
        status = agree(engine, allocate_host(engine));
    if (!status)
        status = agree(engine, allocate_cache(engine));
    return status ? status : engine_open_images(engine);
}

int engine_open(const struct engine_options *options, struct engine **out) {
    *out = NULL;
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return status_fail(STATUS_MEMORY, "out of memory");
    engine->options = *options;
    int status = open_all(engine);
    if (status)
        engine_close(engine);
    else
        *out = engine;
    return status;
}

void engine_close(struct engine *engine) {
    if (!engine)
        return;
    if (engine->device)
        device_free(engine->device, engine->kv.pages);
    engine_close_link(engine);
    for (int i = 0; engine->flights && i < engine_flights(engine); i++)
        comm_forget(&engine->flights[i].arriving);
    kv_pool_close(&engine->pool);
    free(engine->host);
    free(engine->slots);
    engine_stop_loading(engine);
    peft_bytes_free(&engine->arriving);
    model_close(engine->model);
    peft_bank_close(engine->bank);
    comm_close(engine->holders);
    rank_close(&engine->rank);
    device_close(engine->device);
    free(engine);
}

const struct model_config *engine_config(const struct engine *engine) {
    return model_config_of(engine->model);
}

enum dtype engine_dtype(const struct engine *engine) {
    return model_store(engine->model)->map.type;
}

int64_t engine_max_rows(const struct engine *engine) {
    return engine->options.max_rows;
}

int64_t engine_max_logit_rows(const struct engine *engine) {
    return engine->options.max_logit_rows;
}

int64_t engine_max_sequences(const struct engine *engine) {
    return engine->options.max_sequences;
}

int64_t engine_max_positions(const struct engine *engine) {
    return engine->options.max_positions;
}

bool engine_leads(const struct engine *engine) {
    return engine_is_leader(engine);
}

const char *engine_directory(const struct engine *engine) {
    return engine->directory;
}

struct model_text_ends engine_text_ends(const struct engine *engine, const struct tokenizer *tokenizer) {
    struct model_text_ends ends = engine->ends;
    int32_t eos = tokenizer ? tokenizer_eos_id(tokenizer) : -1;
    if (eos >= 0)
        model_add_eos(&ends, eos, true);
    return ends;
}

int engine_depth(const struct engine *engine) {
    return engine->rank.grid.pipeline;
}

struct rank *engine_rank(struct engine *engine) {
    return &engine->rank;
}

int engine_step_work(struct engine *engine, const struct model_step_shape *shape, struct work_list *list) {
    return model_step_work(engine->model, shape, list);
}

void engine_read_plan(const struct engine *engine, struct engine_plan *plan) {
    engine_fill_plan(engine, engine->kv.page_count, engine->bank ? peft_bank_memory(engine->bank) : 0, plan);
}

size_t engine_planned_bytes(const struct engine *engine) {
    struct engine_plan plan;
    engine_read_plan(engine, &plan);
    return engine_plan_device_bytes(&plan);
}
