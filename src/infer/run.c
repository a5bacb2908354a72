/* Runs a plan on one rank: the page table, prefixes, and rows of the model. */
#include "engine-internal.h"

struct results_block results_at(void *block, int64_t wanted) {
    struct results_block results = {.token = block};
    results.logprob = (float *)(results.token + wanted);
    results.label_logprob = results.logprob + wanted;
    results.is_greedy = (int32_t *)(results.label_logprob + wanted);
    results.top_token = results.is_greedy + wanted;
    results.top_logprob = (float *)(results.top_token + wanted * SAMPLE_MAX_TOP);
    return results;
}

/* Updates the page table. The model gets the changed rows with its next step. */
static void update_page_table(struct engine *engine, const struct plan *plan) {
    for (int64_t i = 0; i < plan->header.counts.pages; i++) {
        const struct plan_page *page = &plan->pages[i];
        engine->page_table[page->sequence * engine->max_pages + page->index] = page->page;
        if (!engine->is_changed[page->sequence])
            engine->changed[engine->changed_count++] = page->sequence;
        engine->is_changed[page->sequence] = true;
    }
}

static void forget_changes(struct engine *engine) {
    for (int64_t i = 0; i < engine->changed_count; i++)
        engine->is_changed[engine->changed[i]] = false;
    engine->changed_count = 0;
}

static int put_prefixes(struct engine *engine, const struct plan *plan) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < plan->header.counts.prefixes && !status; i++) {
        const struct plan_prefix *p = &plan->prefixes[i];
        struct model_prefix_rows rows = {
            .image = p->image, .first = p->first, .count = p->count, .place = plan->places + p->first_place};
        status = model_kv_put_prefix(engine->model, &engine->kv, &rows);
    }
    return status;
}

static struct model_step step_of(const struct engine *engine, const struct plan *plan) {
    const struct plan_header *h = &plan->header;
    return (struct model_step){
        .rows = h->counts.rows,
        .tokens = plan->tokens,
        .positions = plan->positions,
        .sequence = plan->sequence,
        .cached = plan->cached,
        .place = plan->place,
        .changed_rows = engine->changed_count,
        .changed_row = engine->changed,
        .page_table = engine->page_table,
        .logit_rows = h->counts.logit_rows,
        .logit_row = plan->logit_row,
        .sample = h->draws || h->has_top ? plan->sample : NULL,
        .changes = plan->changes,
        .change_count = h->counts.changes,
        .has_top = h->has_top,
        .labels = h->has_labels ? plan->labels : NULL,
    };
}

int engine_run_plan(struct engine *engine, const struct plan *plan) {
    update_page_table(engine, plan);
    struct model_step step = step_of(engine, plan);
    int status = put_prefixes(engine, plan);
    if (status || !step.rows)
        return status;
    if (engine->bank)
        status = peft_bank_step(engine->bank, plan->segments, plan->header.counts.segments);
    if (!status)
        status = model_infer(engine->model, &engine->kv, &step);
    forget_changes(engine);
    return status;
}

int engine_read_results(struct engine *engine, const struct results_block *made) {
    struct model_step_result result = {made->token,     made->logprob,   made->label_logprob,
                                       made->is_greedy, made->top_token, made->top_logprob};
    return model_infer_results(engine->model, &result);
}
