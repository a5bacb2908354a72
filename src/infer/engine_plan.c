/* The plan of an engine: the bytes that a rank takes at the opening. An engine that is only planned has a sketched
 * rank, a bank without memory and a sketched model. The counting code is that of the opening. */
#include "engine-internal.h"

#include "parallel/algorithms.h"
#include "parallel/site.h"

/* A tokenizer takes this for each token, most of it while its files are read. 350 to 430 were measured for GPT-2 and
 * SmolLM2. */
enum { TOKENIZER_BYTES = 448 };

size_t engine_plan_device_bytes(const struct engine_plan *plan) {
    return plan->weights + plan->cache + plan->adapters + plan->workspace + plan->tuning;
}

size_t engine_plan_host_bytes(const struct engine_plan *plan) {
    return plan->transfers + plan->steps;
}

/* Adds the bytes of a base to the plan. */
static void add_base(const struct engine *engine, struct engine_plan *plan) {
    const struct peft_bank *bank = engine->bank;
    plan->weights += engine->plan.weights;
    plan->cache += engine->plan.kv_page_bytes * (size_t)engine->pages;
    plan->adapters += bank ? engine->images + peft_bank_fixed_bytes(bank) : 0;
    /* The model uploads the bank's arrays in a block of its activations. */
    plan->workspace += engine->plan.activations - (bank ? peft_bank_hooks(bank)->upload.bytes : 0);
    plan->transfers += engine->plan.transfers;
    plan->steps += engine_array_bytes(engine) + engine_link_bytes(engine) +
                   (engine_leads(engine) ? kv_pool_bytes(engine->pages) : 0) + (bank ? peft_bank_list_bytes(bank) : 0);
    plan->program += (size_t)engine->files.config.vocab_size * TOKENIZER_BYTES;
}

/* Rank, banks and models are open or sketched, and `pages` and `images` of the bases are known. */
void engine_read_plan(const struct engine *engine, struct engine_plan *plan) {
    const struct engine_shared *shared = engine->shared;
    int64_t widest = 0, hidden = 0;
    *plan = (struct engine_plan){
        .workspace = work_scratch(&shared->rank.work),
        .tuning = shared->bases->options.tuning_memory,
        .pages = shared->bases->pages - shared->bases->kept,
        .sequence_pages = shared->bases->max_pages,
        .threads = device_threads(shared->device),
    };
    for (int i = 0; i < shared->count; i++) {
        const struct model_config *config = &shared->bases[i].files.config;
        add_base(&shared->bases[i], plan);
        widest = config->ffn_hidden_size > widest ? config->ffn_hidden_size : widest;
        hidden = config->hidden_size > hidden ? config->hidden_size : hidden;
    }
    plan->program += rank_program_bytes(plan->threads, widest, hidden);
}

/* ---- planning without opening ---- */

/* Counts the pages: the smallest number of any rank of the model, because stages and shares differ in size. */
static int plan_pages(struct engine *engine, int number) {
    const struct rank_grid grid = engine->options.grid, here = rank_grid_place(&grid, number);
    struct engine_shared *shared = engine->shared;
    for (int k = 0; k < shared->count; k++)
        shared->bases[k].pages = INT64_MAX;
    for (int i = 0; i < grid.tensor * grid.pipeline; i++) {
        struct rank_grid place = here;
        place.tensor = i % grid.tensor;
        place.pipeline = i / grid.tensor;
        shared->number = rank_grid_rank(&grid, &place);
        TRY(opening_run(&engine_sketch_opening, engine));
        for (int k = 0; k < shared->count; k++) {
            int64_t *pages = &shared->bases[k].pages, count = engine_count_pages(&shared->bases[k]);
            *pages = count < *pages ? count : *pages;
        }
        opening_undo(&engine_sketch_opening, engine);
    }
    return STATUS_OK;
}

/* Steps whose work is listed. */
struct listing {
    const struct model_step_shape *shapes;
    int count;
    struct work_list *lists;
};

static int plan_on(struct engine *engine, int number, const struct listing *listing, struct engine_plan *plan) {
    struct engine_shared *shared = engine->shared;
    int status = STATUS_OK;
    TRY(plan_pages(engine, number));
    shared->number = number;
    TRY(opening_run(&engine_sketch_opening, engine));
    for (int i = 0; i < shared->count; i++) {
        THEN(status, engine_check_pages(&shared->bases[i], shared->bases[i].pages));
        THEN(status, engine_plan_images(&shared->bases[i]));
    }
    if (!status)
        engine_read_plan(engine, plan);
    for (int i = 0; i < listing->count && !status; i++)
        status = model_step_work(engine->runner, &listing->shapes[i], &listing->lists[i]);
    opening_undo(&engine_sketch_opening, engine);
    return status;
}

/* Makes an engine that is only planned; close_planned closes it. */
static int open_planned(struct engine_options options, struct engine **engine) {
    options.world = NULL;
    if (!options.grid.tensor)
        options.grid = (struct rank_grid){1, 1, 1, 1, 1};
    TRY(engine_allocate(&options, engine));
    int status = opening_run(&engine_planned_opening, *engine);
    if (status)
        free((*engine)->shared);
    return status;
}

static void close_planned(struct engine *engine) {
    opening_undo(&engine_planned_opening, engine);
    free(engine->shared);
}

int engine_plan_work(const struct engine_options *options, int number, const struct model_step_shape *shapes, int count,
                     struct engine_plan *plan, struct work_list *lists) {
    const struct listing listing = {shapes, count, lists};
    struct engine *engine;
    TRY(open_planned(*options, &engine));
    int status = plan_on(engine, number, &listing, plan);
    close_planned(engine);
    return status;
}

int engine_plan_image(const struct engine_options *options, int number, const struct peft_config *adapter,
                      size_t *bytes) {
    struct engine_options with_bank = *options;
    struct engine *engine;
    with_bank.adapter_memory = 1;
    TRY(open_planned(with_bank, &engine));
    engine->shared->number = number;
    int status = opening_run(&engine_sketch_opening, engine);
    if (!status) {
        peft_bank_set_base(engine->bank, base_store(engine->base));
        status = peft_bank_image_bytes(engine->bank, adapter, bytes);
        opening_undo(&engine_sketch_opening, engine);
    }
    close_planned(engine);
    return status;
}

int engine_plan_make(const struct engine_options *options, int number, struct engine_plan *plan) {
    return engine_plan_work(options, number, NULL, 0, plan, NULL);
}
