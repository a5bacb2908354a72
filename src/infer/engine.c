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

static bool is_adapted(const struct engine *engine) {
    return engine->options.adapter_count > 0;
}

static int open_adapters(struct engine *engine, struct model_options *options) {
    if (!is_adapted(engine))
        return STATUS_OK;
    int status = peft_files_open(engine->options.adapters, engine->options.adapter_count, false, &engine->files);
    if (!status && !engine->options.random)
        status = peft_files_check_base(engine->files, engine->directory);
    if (status)
        return status;
    status = peft_bank_open(options, &engine->rank, &engine->bank);
    if (!status)
        options->hooks = peft_bank_hooks(engine->bank);
    return status;
}

static int load_adapters(struct engine *engine) {
    int count = engine->bank ? peft_files_count(engine->files) : 0, status = STATUS_OK;
    size_t bytes = 0;
    if (!engine->bank)
        return STATUS_OK;
    peft_bank_set_base(engine->bank, model_store(engine->model));
    if (count > PEFT_SLOT_IMAGES)
        return status_fail(STATUS_USAGE, "%d adapters for one text: expected at most %d", count, PEFT_SLOT_IMAGES);
    for (int i = 0; i < count && !status; i++) {
        size_t one = 0;
        status = peft_bank_image_bytes(engine->bank, &peft_files_configs(engine->files)[i], &one);
        bytes += one;
    }
    if (!status)
        status = peft_bank_allocate(engine->bank, bytes);
    for (int i = 0; i < count && !status; i++) {
        int image = peft_bank_load(engine->bank, engine->files, i);
        engine->images[engine->image_count++] = image;
        status = image < 0 ? image : STATUS_OK;
    }
    return status ? status : peft_bank_check_slot(engine->bank, engine->images, engine->image_count);
}

/* ---- weights ---- */

struct filling {
    struct engine *engine;
    const struct ckpt_tensors *tensors; /* NULL: random values */
};

static int read_parameter(struct param_store *store, struct stream *stream, const struct ckpt_tensors *tensors,
                          int id) {
    struct ckpt_flat flat = {.store = store,
                             .stream = stream,
                             .memory = param_borrow_to_write(store, id),
                             .dtype = store->dtype,
                             .first = store->offset[id],
                             .count = param_local_elements(store, id)};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    int status = ckpt_read_param(tensors, store->table, &array, id);
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
    const struct ckpt_array all = {.prefix = "", .dtype = model_store(engine->model)->dtype};
    struct filling filling = {engine, tensors};
    int status = tensors ? ckpt_check(tensors, table, &all, 1) : STATUS_OK;
    return status ? status : model_pack(engine->model, fill_parameter, &filling);
}

static void *take(struct arena *arena, int64_t count, size_t width) {
    return arena_take(arena, (size_t)count * width);
}

static void place_arrays(struct engine *engine, struct arena *arena) {
    const struct engine_options *o = &engine->options;
    engine->page_table = take(arena, engine->sequence_count * engine->max_pages, sizeof(int32_t));
    engine->seen = take(arena, engine->sequence_count * engine->seen_words, sizeof(uint64_t));
    engine->sequences = take(arena, engine->sequence_count, sizeof(struct sequence));
    int32_t **rows[] = {&engine->tokens, &engine->positions, &engine->row_sequence, &engine->places};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = take(arena, o->max_rows, sizeof(int32_t));
    engine->segments = take(arena, o->max_rows, sizeof *engine->segments);
    int32_t **wanted[] = {&engine->logit_row, &engine->labels, &engine->drawn, &engine->result_row};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        *wanted[i] = take(arena, o->max_logit_rows, sizeof(int32_t));
    engine->sample = take(arena, o->max_logit_rows, sizeof *engine->sample);
    engine->logprob = take(arena, o->max_logit_rows, sizeof(float));
    engine->label_logprob = take(arena, o->max_logit_rows, sizeof(float));
    engine->given = take(arena, o->max_logit_rows, sizeof *engine->given);
}

static int allocate_host(struct engine *engine) {
    struct arena arena = ARENA_PLAN;
    place_arrays(engine, &arena);
    size_t bytes = arena.used;
    void *block = aligned_alloc(ARENA_ALIGNMENT, bytes);
    int64_t changes = model_max_changes(engine_config(engine), engine->options.max_logit_rows);
    engine->changes = calloc((size_t)changes, sizeof *engine->changes); /* untouched pages take no memory */
    engine->page_table = block;
    if (!block || !engine->changes)
        return status_fail(STATUS_MEMORY, "out of memory");
    memset(block, 0, bytes);
    arena = arena_over(block, bytes);
    place_arrays(engine, &arena); /* page_table stands first: its address frees the block */
    for (int64_t i = 0; i < engine->sequence_count; i++)
        engine->sequences[i] = (struct sequence){.pages = engine->page_table + i * engine->max_pages,
                                                 .seen = engine->seen + i * engine->seen_words};
    return STATUS_OK;
}

static int64_t pages_of(int64_t tokens) {
    return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* The sequences' own pages, and the stems', whose full pages they share. */
static int64_t count_pages(const struct engine *engine) {
    const struct engine_options *o = &engine->options;
    int64_t stem = engine_stem_tokens(engine), own = engine->max_pages - stem / KV_PAGE_TOKENS;
    return (o->cache_tokens ? pages_of(o->cache_tokens) : o->max_sequences * own) + engine->slot_count * pages_of(stem);
}

static int allocate_cache(struct engine *engine) {
    engine->kv.page_count = count_pages(engine);
    engine->kv_bytes = model_kv_bytes(engine->model, engine->kv.page_count);
    int status = kv_pool_open(&engine->pool, engine->kv.page_count, false);
    if (!status)
        status = device_alloc(engine->device, engine->kv_bytes, &engine->kv.pages);
    return status ? status_wrap(status, "KV cache") : STATUS_OK;
}

static int open_rank(struct engine *engine) {
    struct comm *world = engine->options.world;
    int status = device_open(engine->options.device, 0, engine->options.threads, &engine->device);
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

static int open_model(struct engine *engine, const struct model_config *config, enum dtype dtype) {
    const struct engine_options *o = &engine->options;
    struct model_options options = {
        .config = *config,
        .dtype = dtype,
        .use = MODEL_INFER,
        .max_rows = o->max_rows,
        .max_logit_rows = o->max_logit_rows,
        .max_sequences = engine->sequence_count,
        .max_pages = engine->max_pages,
    };
    int status = open_rank(engine);
    struct pipeline_split split = {.layers = config->num_layers,
                                   .stages = engine->rank.grid.pipeline,
                                   .chunks = 1,
                                   .first = o->first_layers,
                                   .last = o->last_layers};
    options.chunk_count = 1;
    if (!status)
        status =
            pipeline_layers(&split, engine->rank.place.pipeline, 0, &options.chunks[0].first, &options.chunks[0].count);
    if (!status)
        status = open_adapters(engine, &options);
    return status ? status : model_open(&options, &engine->rank, false, &engine->plan, &engine->model);
}

/* Weights from the files, or random ones: then there are no tensors. */
static int find_model(struct engine *engine, struct pretrained *base) {
    const struct engine_options *o = &engine->options;
    *base = (struct pretrained){.dtype = DTYPE_F32, .eos_id = -1};
    if (o->random)
        base->config = *o->random;
    int status = o->random ? STATUS_OK : pretrained_open(o->model, o->world, base);
    if (!status && base->is_untied_by_files)
        log_warning("%s: %s is not the embedding: the head is used untied", base->directory,
                    model_family(&base->config)->files.head);
    memcpy(engine->directory, base->directory, sizeof engine->directory);
    engine->eos_id = base->eos_id;
    if (!status && o->world)
        status = check_layout(o, &base->config, true);
    return agree(engine, status);
}

static int open_on(struct engine *engine, const struct pretrained *base) {
    const struct engine_options *o = &engine->options;
    enum dtype dtype = o->precision >= 0           ? (o->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32)
                       : base->dtype == DTYPE_BF16 ? DTYPE_BF16
                                                   : DTYPE_F32;
    engine->max_pages = pages_of(base->config.max_position_embeddings);
    engine->slot_count = is_adapted(engine);
    engine->sequence_count = o->max_sequences + engine->slot_count;
    engine->seen_words = (base->config.vocab_size + 63) / 64;
    int status = open_model(engine, &base->config, dtype);
    if (!status)
        status = load_weights(engine, base->tensors);
    return status == STATUS_MEMORY && base->tensors ? status_wrap(status, "%s", engine->directory) : status;
}

static int open_all(struct engine *engine) {
    struct pretrained base;
    int status = find_model(engine, &base);
    if (!status)
        status = open_on(engine, &base);
    pretrained_close(&base);
    status = agree(engine, status); /* the next steps may sum over ranks */
    if (!status)
        status = load_adapters(engine);
    if (!status)
        status = allocate_host(engine);
    if (!status)
        status = allocate_cache(engine);
    status = agree(engine, status);
    return status ? status : engine_make_stems(engine);
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
    kv_pool_close(&engine->pool);
    free(engine->page_table);
    free(engine->changes);
    model_close(engine->model);
    peft_bank_close(engine->bank);
    peft_files_close(engine->files);
    comm_close(engine->holders);
    rank_close(&engine->rank);
    device_close(engine->device);
    free(engine);
}

const struct model_config *engine_config(const struct engine *engine) {
    return model_config_of(engine->model);
}

enum dtype engine_dtype(const struct engine *engine) {
    return model_store(engine->model)->dtype;
}

int64_t engine_max_rows(const struct engine *engine) {
    return engine->options.max_rows;
}

int64_t engine_max_logit_rows(const struct engine *engine) {
    return engine->options.max_logit_rows;
}

const char *engine_directory(const struct engine *engine) {
    return engine->directory;
}

int32_t engine_eos_id(const struct engine *engine) {
    return engine->eos_id;
}

struct rank *engine_rank(struct engine *engine) {
    return &engine->rank;
}

size_t engine_planned_bytes(const struct engine *engine) {
    size_t adapters = engine->bank ? peft_bank_memory(engine->bank) + peft_bank_fixed_bytes(engine->bank) : 0;
    return engine->plan.weights + engine->plan.activations + engine->plan.workspace + engine->kv_bytes + adapters;
}
