/* Runs a plan on one rank: prefixes, and rows of the model with changes of its page table. */
#include "engine-internal.h"

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

static struct model_step step_of(struct engine *engine, const struct plan *plan) {
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
        .masks = {.count = h->masks, .fill = engine->leader ? engine_fill_masks : engine_receive_masks, .self = engine},
        .has_top = h->has_top,
        .labels = h->has_labels ? plan->labels : NULL,
    };
}

int engine_run_plan(struct engine *engine, const struct plan *plan) {
    struct model_step step = step_of(engine, plan);
    int status = put_prefixes(engine, plan);
    if (!status && !step.rows)
        return model_kv_change_pages(engine->runner, step.page_changes, step.page_change_count);
    const struct peft_wanted wanted = {step.logit_rows, step.logit_row};
    THEN_IF(status, engine->bank, peft_bank_step(engine->bank, plan->segments, plan->header.counts.segments, wanted));
    THEN(status, model_infer(engine->runner, &step));
    return status;
}
