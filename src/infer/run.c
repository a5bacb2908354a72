/* Runs a plan on one rank: prefixes, and rows of the model with changes of its page table. */
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

static int put_prefixes(struct engine *engine, const struct plan *plan) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < plan->header.counts.prefixes && !status; i++) {
        const struct plan_prefix *p = &plan->prefixes[i];
        struct model_prefix_rows rows = {
            .image = p->image, .first = p->first, .count = p->count, .place = plan->places + p->first_place};
        status = model_kv_put_prefix(engine->runner, &rows);
    }
    return status;
}

static struct model_step step_of(const struct plan *plan) {
    const struct plan_header *h = &plan->header;
    return (struct model_step){
        .rows = h->counts.rows,
        .tokens = plan->tokens,
        .positions = plan->positions,
        .sequence = plan->sequence,
        .cached = plan->cached,
        .place = plan->place,
        .page_change_count = h->counts.pages,
        .page_changes = plan->pages,
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
    struct model_step step = step_of(plan);
    int status = put_prefixes(engine, plan);
    if (!status && !step.rows)
        return model_kv_change_pages(engine->runner, step.page_changes, step.page_change_count);
    if (!status && engine->bank)
        status = peft_bank_step(engine->bank, plan->segments, plan->header.counts.segments);
    THEN(status, model_infer(engine->runner, &step));
    return status;
}

int engine_read_results(struct engine *engine, const struct results_block *made) {
    struct model_step_result result = {made->token,     made->logprob,   made->label_logprob,
                                       made->is_greedy, made->top_token, made->top_logprob};
    return model_infer_results(engine->runner, &result);
}
