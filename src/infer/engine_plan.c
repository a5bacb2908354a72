/* The plan of an engine: the bytes that a rank takes at the opening. An engine that is only planned has a sketched
 * rank, a bank without memory and a sketched model. The counting code is that of the opening. */
#include "engine-internal.h"

#include "parallel/algorithms.h"
#include "parallel/site.h"

#include <stdlib.h>

/* A tokenizer takes this for each token, most of it while its files are read. 350 to 430 were measured for GPT-2 and
 * SmolLM2. */
enum { TOKENIZER_BYTES = 448 };

size_t engine_plan_device_bytes(const struct engine_plan *plan) {
    return plan->weights + plan->cache + plan->adapters + plan->workspace;
}

size_t engine_plan_host_bytes(const struct engine_plan *plan) {
    return plan->transfers + plan->steps;
}

void engine_fill_plan(const struct engine *engine, int64_t pages, size_t images, struct engine_plan *plan) {
    const struct peft_bank *bank = engine->bank;
    *plan = (struct engine_plan){
        .weights = engine->plan.weights,
        .cache = engine->plan.kv_page_bytes * (size_t)pages,
        .adapters = bank ? images + peft_bank_fixed_bytes(bank) : 0,
        /* The model uploads the bank's arrays in a block of its activations. */
        .workspace = engine->plan.activations + work_scratch(&engine->rank.work) -
                     (bank ? peft_bank_hooks(bank)->upload.bytes : 0),
        .transfers = engine->plan.transfers,
        .steps = engine_array_bytes(engine) + engine_link_bytes(engine) +
                 (engine_is_leader(engine) ? kv_pool_bytes(pages) : 0) + (bank ? peft_bank_list_bytes(bank) : 0),
        .program = rank_program_bytes(device_threads(engine->device), engine->files.config.ffn_hidden_size,
                                      engine->files.config.hidden_size) +
                   (size_t)engine->files.config.vocab_size * TOKENIZER_BYTES,
        .pages = pages - engine->kept,
        .sequence_pages = engine->max_pages,
        .threads = device_threads(engine->device),
    };
}

/* ---- planning without opening ---- */

static int sketch(struct engine *engine, int number) {
    rank_sketch(&engine->rank, &engine->options.grid, number, engine->device);
    if (engine->options.is_batch_invariant)
        rank_make_batch_invariant(&engine->rank);
    engine_find_holders(engine);
    int status = engine_open_bank(engine);
    return status ? status : engine_sketch_model(engine);
}

static void forget_sketch(struct engine *engine) {
    engine_close_model(engine);
    peft_bank_close(engine->bank);
    rank_close(&engine->rank);
    engine->bank = NULL;
}

/* Counts the pages: the smallest number of any rank of the model, because stages and shares differ in size. */
static int plan_pages(struct engine *engine, int number, int64_t *pages) {
    const struct rank_grid grid = engine->options.grid, here = rank_grid_place(&grid, number);
    int status = STATUS_OK;
    *pages = INT64_MAX;
    for (int i = 0; i < grid.tensor * grid.pipeline && !status; i++) {
        struct rank_grid place = here;
        place.tensor = i % grid.tensor;
        place.pipeline = i / grid.tensor;
        status = sketch(engine, rank_grid_rank(&grid, &place));
        int64_t count = status ? 0 : engine_count_pages(engine);
        *pages = count < *pages ? count : *pages;
        forget_sketch(engine);
    }
    return status;
}

static int open_sketch(struct engine *engine) {
    const struct device_facts facts = {.kind = engine->options.device, .threads = engine->options.threads};
    return device_sketch(&facts, &engine->device);
}

/* Steps whose work is listed. */
struct listing {
    const struct model_step_shape *shapes;
    int count;
    struct work_list *lists;
};

static int plan_on(struct engine *engine, int number, const struct listing *listing, struct engine_plan *plan) {
    int64_t pages = 0;
    size_t images = 0;
    int status = open_sketch(engine);
    THEN(status, plan_pages(engine, number, &pages));
    THEN(status, sketch(engine, number));
    THEN(status, engine_check_pages(engine, pages));
    THEN(status, engine_plan_images(engine, &images));
    if (!status)
        engine_fill_plan(engine, pages, images, plan);
    for (int i = 0; i < listing->count && !status; i++)
        status = model_step_work(engine->runner, &listing->shapes[i], &listing->lists[i]);
    forget_sketch(engine);
    return status;
}

/* Makes an engine that is only planned. The caller closes it with close_planned, even after a failure. */
static int open_planned(const struct engine_options *options, struct engine **out) {
    struct engine *engine = *out = calloc(1, sizeof *engine);
    TRY(status_allocated(engine));
    engine->options = *options;
    engine->options.world = NULL;
    if (!options->grid.tensor)
        engine->options.grid = (struct rank_grid){1, 1, 1, 1, 1};
    return engine_find_model(engine);
}

static void close_planned(struct engine *engine) {
    if (engine) {
        device_close(engine->device);
        pretrained_close(&engine->files);
    }
    free(engine);
}

int engine_plan_work(const struct engine_options *options, int number, const struct model_step_shape *shapes, int count,
                     struct engine_plan *plan, struct work_list *lists) {
    const struct listing listing = {shapes, count, lists};
    struct engine *engine;
    int status = open_planned(options, &engine);
    THEN(status, plan_on(engine, number, &listing, plan));
    close_planned(engine);
    return status;
}

int engine_plan_image(const struct engine_options *options, int number, const struct peft_config *adapter,
                      size_t *bytes) {
    struct engine_options with_bank = *options;
    struct engine *engine;
    with_bank.adapter_memory = 1;
    int status = open_planned(&with_bank, &engine);
    THEN(status, open_sketch(engine));
    THEN(status, sketch(engine, number));
    if (!status) {
        peft_bank_set_base(engine->bank, base_store(engine->base));
        status = peft_bank_image_bytes(engine->bank, adapter, bytes);
    }
    if (engine)
        forget_sketch(engine);
    close_planned(engine);
    return status;
}

int engine_plan_make(const struct engine_options *options, int number, struct engine_plan *plan) {
    return engine_plan_work(options, number, NULL, 0, plan, NULL);
}
