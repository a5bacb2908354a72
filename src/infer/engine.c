/* The engine: a model from a directory, sequences over pages, and the step. */
#include "infer/infer.h"

#include "parallel/layout.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct sequence {
    bool is_used;
    int64_t length; /* tokens in the cache */
    int32_t *pages; /* [max_pages] a row of the page table */
    uint64_t *seen; /* [seen_words] ids that were run, for the repetition penalty */
};

struct engine {
    struct engine_options options;
    char directory[PATH_MAX];
    int32_t eos_id;
    struct device *device;
    struct rank rank;
    struct comm *holders; /* the ranks that hold this model together; NULL: this one alone */
    struct model_plan plan;
    struct peft_files *files; /* of the adapters; NULL: none */
    struct peft *peft;
    struct model *model;
    struct kv_pool pool;
    struct model_kv kv;
    size_t kv_bytes;
    int64_t max_pages;  /* of a sequence */
    int64_t seen_words; /* of a bit set over the vocabulary */
    struct sequence *sequences;
    int32_t *page_table; /* [max_sequences, max_pages] */
    uint64_t *seen;      /* host: [max_sequences, seen_words] */
    uint64_t *device_seen;
    /* One step's arrays, [max_rows] and [max_logit_rows]. */
    int32_t *tokens, *positions, *row_sequence, *slots, *logit_row, *labels, *drawn, *result_row;
    struct hook_segment *segments;
    struct sample_row *sample;
    float *logprob, *label_logprob;
    struct engine_result *given; /* [max_logit_rows] */
};

/* ---- opening ---- */

static int read_config(const char *directory, struct model_config *config, enum dtype *dtype, int32_t *eos_id) {
    struct strbuf text = STRBUF_INIT;
    char where[PATH_MAX + 16];
    snprintf(where, sizeof where, "%s/config.json", directory);
    int status = ckpt_read_config(directory, &text);
    if (!status)
        status = gpt2_read_config(strbuf_text(&text), where, config, dtype, eos_id);
    strbuf_free(&text);
    return status;
}

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
    char directory[PATH_MAX];
    struct model_config config;
    enum dtype dtype;
    int32_t eos_id;
    int status = ckpt_resolve_model(options->model, directory, sizeof directory);
    if (!status)
        status = read_config(directory, &config, &dtype, &eos_id);
    return status ? status : check_layout(options, &config, takes_data);
}

/* The first rank's choice: a new checkpoint may appear just now. */
static int find_directory(struct engine *engine) {
    struct comm *world = engine->options.world;
    int status = STATUS_OK;
    if (!world || world->rank == 0)
        status = ckpt_resolve_model(engine->options.model, engine->directory, sizeof engine->directory);
    if (world)
        status = comm_agree(world, status);
    struct comm_data data = {
        .send = engine->directory, .receive = engine->directory, .count = sizeof engine->directory, .dtype = DTYPE_U8};
    return status || !world ? status : comm_broadcast(world, NULL, &data, 0);
}

static int read_directory(struct engine *engine, struct model_config *config, enum dtype *dtype,
                          struct ckpt_tensors **tensors) {
    int status = read_config(engine->directory, config, dtype, &engine->eos_id);
    if (!status)
        status = ckpt_open_model(engine->directory, tensors);
    bool differs = false;
    if (!status && !config->untie_embeddings_and_output_weights)
        status = ckpt_head_differs(*tensors, &differs);
    if (!status && differs) {
        log_warning("%s: lm_head.weight is not the embedding: the head is used untied", engine->directory);
        config->untie_embeddings_and_output_weights = true;
    }
    if (!status && *dtype == DTYPE_COUNT)
        *dtype = ckpt_dtype(*tensors);
    return status;
}

static int load_weights(struct engine *engine, const struct ckpt_tensors *tensors) {
    struct param_store *store = model_store(engine->model);
    struct ckpt_flat flat = {
        .store = store, .stream = engine->rank.exec.stream, .memory = store->weights, .dtype = store->dtype};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    return ckpt_read(tensors, store->table, &array, 1);
}

/* ---- adapters ---- */

static bool is_adapted(const struct engine *engine) {
    return engine->options.adapter_count > 0;
}

/* What needs rows or keys before a sequence's own. */
static int check_adapters(const struct engine *engine) {
    const struct peft_config *configs = peft_files_configs(engine->files);
    for (int i = 0; i < peft_files_count(engine->files); i++)
        if (configs[i].type == PEFT_PROMPT || configs[i].type == PEFT_PTUNING || configs[i].type == PEFT_PREFIX)
            return status_fail(STATUS_UNSUPPORTED, "%s: virtual tokens and prefixes can be trained, not yet served",
                               peft_files_directory(engine->files, i));
    return STATUS_OK;
}

static int open_adapters(struct engine *engine, struct model_options *options) {
    if (!is_adapted(engine))
        return STATUS_OK;
    int status = peft_files_open(engine->options.adapters, engine->options.adapter_count, false, &engine->files);
    if (!status)
        status = check_adapters(engine);
    if (!status && !engine->options.random)
        status = peft_files_check_base(engine->files, engine->directory);
    if (status)
        return status;
    struct peft_options adapters = {
        .adapters = peft_files_configs(engine->files), .count = peft_files_count(engine->files), .model = options};
    status = peft_open(&adapters, &engine->rank, &engine->peft);
    if (!status)
        options->hooks = peft_hooks(engine->peft);
    return status;
}

/* While the base is still plain: a method may measure it. */
static int load_adapters(struct engine *engine) {
    if (!engine->peft)
        return STATUS_OK;
    int status = peft_allocate(engine->peft);
    peft_set_base(engine->peft, model_store(engine->model));
    if (!status)
        status = peft_load(engine->peft, engine->files);
    return status ? status : peft_begin(engine->peft);
}

static void *take(struct arena *arena, int64_t count, size_t width) {
    return arena_take(arena, (size_t)count * width);
}

static void place_arrays(struct engine *engine, struct arena *arena) {
    const struct engine_options *o = &engine->options;
    engine->page_table = take(arena, o->max_sequences * engine->max_pages, sizeof(int32_t));
    engine->seen = take(arena, o->max_sequences * engine->seen_words, sizeof(uint64_t));
    engine->sequences = take(arena, o->max_sequences, sizeof(struct sequence));
    int32_t **rows[] = {&engine->tokens, &engine->positions, &engine->row_sequence, &engine->slots};
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
    if (!block)
        return status_fail(STATUS_MEMORY, "out of memory");
    memset(block, 0, bytes);
    arena = arena_over(block, bytes);
    place_arrays(engine, &arena); /* page_table stands first: its address frees the block */
    for (int64_t i = 0; i < engine->options.max_sequences; i++)
        engine->sequences[i] = (struct sequence){.pages = engine->page_table + i * engine->max_pages,
                                                 .seen = engine->seen + i * engine->seen_words};
    return STATUS_OK;
}

static int allocate_cache(struct engine *engine) {
    const struct engine_options *o = &engine->options;
    int64_t tokens = o->cache_tokens ? o->cache_tokens : o->max_sequences * engine->max_pages * KV_PAGE_TOKENS;
    engine->kv.page_count = (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    engine->kv_bytes = model_kv_bytes(engine->model, engine->kv.page_count);
    int status = kv_pool_open(&engine->pool, engine->kv.page_count);
    if (!status)
        status = device_alloc(engine->device, engine->kv_bytes, &engine->kv.pages);
    void *seen = NULL;
    if (!status)
        status =
            device_alloc(engine->device, (size_t)(o->max_sequences * engine->seen_words) * sizeof(uint64_t), &seen);
    engine->device_seen = seen;
    return status ? status_wrap(status, "KV cache") : STATUS_OK;
}

static int open_rank(struct engine *engine) {
    struct comm *world = engine->options.world;
    int status = device_open("cpu", 0, engine->options.threads, &engine->device);
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
        .max_sequences = o->max_sequences,
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

/* What stands in the files: of them, or of random weights. `tensors` stays NULL for those. */
static int find_model(struct engine *engine, struct model_config *config, enum dtype *dtype,
                      struct ckpt_tensors **tensors) {
    int status = engine->options.random ? STATUS_OK : find_directory(engine);
    if (status)
        return status;
    if (engine->options.random)
        *config = *engine->options.random;
    else
        status = read_directory(engine, config, dtype, tensors);
    if (!status && engine->options.world)
        status = check_layout(&engine->options, config, true);
    return engine->options.world ? comm_agree(engine->options.world, status) : status;
}

static int open_all(struct engine *engine) {
    struct model_config config;
    enum dtype dtype = DTYPE_F32;
    struct ckpt_tensors *tensors = NULL;
    engine->eos_id = -1;
    int status = find_model(engine, &config, &dtype, &tensors);
    if (engine->options.precision >= 0)
        dtype = engine->options.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    else if (dtype != DTYPE_BF16)
        dtype = DTYPE_F32;
    if (!status) {
        engine->max_pages = (config.max_position_embeddings + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        engine->seen_words = (config.vocab_size + 63) / 64;
        status = open_model(engine, &config, dtype);
        if (status == STATUS_MEMORY && tensors)
            status_wrap(status, "%s", engine->directory);
    }
    if (!status)
        status = tensors ? load_weights(engine, tensors) : model_initialise(engine->model, 1);
    ckpt_close(tensors);
    if (!status)
        status = load_adapters(engine);
    if (!status)
        status = model_pack(engine->model);
    if (!status)
        status = allocate_host(engine);
    if (!status)
        status = allocate_cache(engine);
    return engine->options.world ? comm_agree(engine->options.world, status) : status;
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
    if (engine->device) {
        device_free(engine->device, engine->kv.pages);
        device_free(engine->device, engine->device_seen);
    }
    kv_pool_close(&engine->pool);
    free(engine->page_table);
    model_close(engine->model);
    peft_close(engine->peft);
    peft_files_close(engine->files);
    comm_close(engine->holders);
    rank_close(&engine->rank);
    device_close(engine->device);
    free(engine);
}

const struct model_config *engine_config(const struct engine *engine) {
    return model_config_of(engine->model);
}

int32_t engine_slot(const struct engine *engine) {
    return engine->peft ? 0 : -1;
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

size_t engine_weight_bytes(const struct engine *engine) {
    return engine->plan.weights;
}

size_t engine_planned_bytes(const struct engine *engine) {
    size_t adapters = engine->peft ? param_weight_bytes(peft_store(engine->peft)) + peft_device_bytes(engine->peft) : 0;
    return engine->plan.weights + engine->plan.activations + engine->plan.workspace + engine->kv_bytes + adapters;
}

/* ---- sequences ---- */

int engine_sequence_new(struct engine *engine) {
    for (int64_t i = 0; i < engine->options.max_sequences; i++)
        if (!engine->sequences[i].is_used) {
            engine->sequences[i].is_used = true;
            engine->sequences[i].length = 0;
            memset(engine->sequences[i].seen, 0, (size_t)engine->seen_words * sizeof(uint64_t));
            return (int)i;
        }
    return status_fail(STATUS_MEMORY, "all %lld sequences of the engine are in use",
                       (long long)engine->options.max_sequences);
}

int engine_sequence_fork(struct engine *engine, int parent) {
    const struct sequence *source = &engine->sequences[parent];
    int child = engine_sequence_new(engine);
    if (child < 0)
        return child;
    struct sequence *copy = &engine->sequences[child];
    int64_t full = source->length / KV_PAGE_TOKENS;
    for (int64_t i = 0; i < full; i++) {
        copy->pages[i] = source->pages[i];
        kv_pool_share(&engine->pool, copy->pages[i]);
    }
    copy->length = full * KV_PAGE_TOKENS;
    memcpy(copy->seen, source->seen, (size_t)engine->seen_words * sizeof(uint64_t));
    if (source->length == copy->length)
        return child;
    int32_t page = kv_pool_take(&engine->pool);
    int status = page < 0
                     ? status_fail(STATUS_MEMORY, "the KV cache of %lld pages is full", (long long)engine->pool.count)
                     : model_kv_copy_page(engine->model, &engine->kv, source->pages[full], page);
    if (page >= 0) {
        copy->pages[full] = page;
        copy->length = source->length;
    }
    if (status) {
        engine_sequence_free(engine, child);
        return status;
    }
    return child;
}

void engine_sequence_free(struct engine *engine, int number) {
    struct sequence *sequence = &engine->sequences[number];
    for (int64_t i = 0; i * KV_PAGE_TOKENS < sequence->length; i++)
        kv_pool_release(&engine->pool, sequence->pages[i]);
    sequence->is_used = false;
    sequence->length = 0;
}

int64_t engine_sequence_length(const struct engine *engine, int sequence) {
    return engine->sequences[sequence].length;
}

/* ---- the step ---- */

static bool is_of_vocabulary(const struct engine *engine, int32_t token) {
    return token >= 0 && token < engine_config(engine)->vocab_size;
}

static int fail_token(const struct engine *engine, int32_t token) {
    return status_fail(STATUS_INVALID, "token %d is not in the vocabulary of %lld", token,
                       (long long)engine_config(engine)->vocab_size);
}

int engine_check_tokens(const struct engine *engine, const char *what, const int32_t *tokens, int64_t count) {
    int64_t positions = engine_config(engine)->max_position_embeddings;
    if (count > positions)
        return status_fail(STATUS_INVALID, "%s%lld tokens, more than the model's %lld positions", what,
                           (long long)count, (long long)positions);
    for (int64_t i = 0; i < count; i++)
        if (!is_of_vocabulary(engine, tokens[i]))
            return fail_token(engine, tokens[i]);
    return STATUS_OK;
}

/* Refuses what cannot run before anything has changed. `length` counts up over the rows and is put back. */
static int check_rows(struct engine *engine, const struct engine_row *rows, int64_t count) {
    const struct model_config *config = engine_config(engine);
    const struct engine_options *o = &engine->options;
    int64_t wanted = 0, pages = 0, done = 0;
    int status = STATUS_OK;
    if (count < 1 || count > o->max_rows)
        return status_fail(STATUS_INVALID, "a step of %lld rows in an engine opened for %lld", (long long)count,
                           (long long)o->max_rows);
    for (; done < count && !status; done++) {
        const struct engine_row *row = &rows[done];
        if (row->sequence < 0 || row->sequence >= o->max_sequences || !engine->sequences[row->sequence].is_used)
            return status_fail(STATUS_INVALID, "row %lld: no sequence %d", (long long)done, row->sequence);
        if (!is_of_vocabulary(engine, row->token) || row->label >= config->vocab_size) {
            status = fail_token(engine, is_of_vocabulary(engine, row->token) ? row->label : row->token);
            break;
        }
        struct sequence *sequence = &engine->sequences[row->sequence];
        if (sequence->length >= config->max_position_embeddings) {
            status = status_fail(STATUS_INVALID, "a text of more than the model's %lld positions",
                                 (long long)config->max_position_embeddings);
            break;
        }
        pages += sequence->length % KV_PAGE_TOKENS == 0;
        sequence->length++;
        wanted += row->wants_logits;
    }
    for (int64_t i = 0; i < done; i++)
        engine->sequences[rows[i].sequence].length--;
    if (!status && wanted > o->max_logit_rows)
        status = status_fail(STATUS_INVALID, "logits of %lld rows in an engine opened for %lld", (long long)wanted,
                             (long long)o->max_logit_rows);
    if (!status && pages > engine->pool.free_count)
        status = status_fail(STATUS_INVALID, "the KV cache has %lld free pages of %lld and %lld are needed",
                             (long long)engine->pool.free_count, (long long)engine->pool.count, (long long)pages);
    return status;
}

static void place_row(struct engine *engine, const struct engine_row *row, int64_t i) {
    struct sequence *sequence = &engine->sequences[row->sequence];
    if (sequence->length % KV_PAGE_TOKENS == 0)
        sequence->pages[sequence->length / KV_PAGE_TOKENS] = kv_pool_take(&engine->pool);
    engine->tokens[i] = row->token;
    engine->positions[i] = (int32_t)sequence->length;
    engine->row_sequence[i] = row->sequence;
    engine->slots[i] = (int32_t)(sequence->pages[sequence->length / KV_PAGE_TOKENS] * KV_PAGE_TOKENS +
                                 sequence->length % KV_PAGE_TOKENS);
    sequence->seen[row->token / 64] |= 1ull << row->token % 64;
    sequence->length++;
}

static struct sample_row sample_row_of(struct engine *engine, const struct engine_row *row, int64_t position) {
    const struct engine_sampling *s = row->sampling;
    if (!s)
        return (struct sample_row){.top_p = 1, .repetition_penalty = 1};
    bool has_penalty = s->repetition_penalty != 1;
    return (struct sample_row){
        .temperature = (float)s->temperature,
        .top_p = (float)s->top_p,
        .repetition_penalty = (float)s->repetition_penalty,
        .top_k = (int32_t)s->top_k,
        .seed = s->seed,
        .choice = s->choice,
        .position = (uint32_t)position,
        .seen = has_penalty ? engine->device_seen + row->sequence * engine->seen_words : NULL,
    };
}

/* Runs of rows with one adapter slot. */
static int64_t find_segments(struct engine *engine, const struct engine_row *rows, int64_t count) {
    int64_t segments = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || rows[i].slot != rows[i - 1].slot)
            engine->segments[segments++] = (struct hook_segment){.slot = rows[i].slot, .first_row = i};
        engine->segments[segments - 1].rows++;
    }
    return segments;
}

/* The results of the wanted rows, from the rank that has them to the others. */
static int give_results(struct engine *engine, const struct engine_row *rows, int64_t wanted,
                        struct engine_result *results) {
    for (int64_t i = 0; i < wanted; i++) {
        const struct engine_row *row = &rows[engine->logit_row[i]];
        engine->given[i] = (struct engine_result){
            .token = row->sampling ? engine->drawn[i] : -1,
            .logprob = row->sampling ? engine->logprob[i] : 0,
            .label_logprob = row->label >= 0 ? engine->label_logprob[i] : 0,
        };
    }
    const struct rank_grid *grid = &engine->rank.grid;
    struct comm_data data = {.send = engine->given,
                             .receive = engine->given,
                             .count = wanted * (int64_t)sizeof *engine->given,
                             .dtype = DTYPE_U8};
    int status = STATUS_OK;
    if (engine->holders && wanted)
        status = comm_broadcast(engine->holders, NULL, &data, (grid->pipeline - 1) * grid->tensor);
    for (int64_t i = 0; i < wanted && !status; i++)
        results[engine->logit_row[i]] = engine->given[i];
    return status;
}

int engine_step(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results) {
    int status = check_rows(engine, rows, count);
    if (status)
        return status;
    int64_t wanted = 0;
    bool has_labels = false, has_sampling = false;
    for (int64_t i = 0; i < count; i++) {
        const struct engine_row *row = &rows[i];
        place_row(engine, row, i);
        if (!row->wants_logits)
            continue;
        engine->logit_row[wanted] = (int32_t)i;
        engine->labels[wanted] = row->label >= 0 ? row->label : 0;
        engine->sample[wanted] = sample_row_of(engine, row, engine->sequences[row->sequence].length);
        has_labels |= row->label >= 0;
        has_sampling |= row->sampling != NULL;
        wanted++;
        if (row->sampling && row->sampling->repetition_penalty != 1 && !status)
            status = stream_copy_to_device(
                engine->rank.exec.stream, engine->device_seen + row->sequence * engine->seen_words,
                engine->sequences[row->sequence].seen, (size_t)engine->seen_words * sizeof(uint64_t));
    }
    struct model_step step = {
        .rows = count,
        .tokens = engine->tokens,
        .positions = engine->positions,
        .sequence = engine->row_sequence,
        .cached = engine->positions,
        .slot = engine->slots,
        .sequences = engine->options.max_sequences,
        .max_pages = engine->max_pages,
        .page_table = engine->page_table,
        .segments = find_segments(engine, rows, count),
        .segment = engine->segments,
        .logit_rows = wanted,
        .logit_row = engine->logit_row,
        .sample = has_sampling ? engine->sample : NULL,
        .labels = has_labels ? engine->labels : NULL,
    };
    struct model_step_result result = {
        .token = engine->drawn, .logprob = engine->logprob, .label_logprob = engine->label_logprob};
    if (!status)
        status = model_infer(engine->model, &engine->kv, &step, &result);
    return status ? status : give_results(engine, rows, wanted, results);
}
