/* The units of a rank's steps, in the order in which passes unshard them. pass.c unshards them in this order. */
#include "model-internal.h"

/* Adds a unit, or only counts it while the list has no memory. */
static void add(struct unit_order *order, int64_t unit) {
    if (order->units)
        order->units[order->count] = (int)unit;
    order->count++;
}

static void add_head(const struct training_runner *training, struct unit_order *order) {
    int64_t last = training->run.base->options.config.num_layers,
            of_weight = training->run.base->table.rows[training->run.base->head.weight].layer;
    add(order, last);
    if (of_weight != last)
        add(order, of_weight);
}

static void add_forward(const struct training_runner *training, const struct model_chunk *chunk,
                        struct unit_order *order) {
    if (chunk_has_embedding(training->run.base, chunk))
        add(order, PARAM_UNIT_FIRST);
    for (int64_t layer = 0; layer < chunk->count; layer++)
        add(order, chunk->first + layer);
}

static void add_backward(const struct training_runner *training, const struct model_chunk *chunk, int stash,
                         bool is_fresh, struct unit_order *order) {
    struct layer_group group;
    if (!chunk_has_backward(&training->run, chunk))
        return;
    if (chunk_has_head(training->run.base, chunk))
        add_head(training, order);
    for (int64_t layer = chunk->count - 1; layer >= 0 && chunk->first + layer >= training->run.lowest; layer--) {
        if (model_runs_again(training, chunk, stash, layer, is_fresh, &group))
            for (int64_t again = group.first; again < group.end; again++)
                add(order, chunk->first + again);
        add(order, chunk->first + layer);
    }
    if (chunk_has_embedding(training->run.base, chunk) && training->run.lowest < 0)
        add(order, PARAM_UNIT_FIRST);
}

static void add_steps(struct training_runner *training, const struct pipeline_step *steps, int count,
                      bool is_forward_only, struct unit_order *order) {
    const struct model_stash *fresh = NULL;
    for (int i = 0; i < count; i++) {
        const struct model_chunk *chunk = &training->run.base->options.chunks[steps[i].chunk];
        const struct model_stash *stash = training_stash(training, steps[i].stash);
        if (steps[i].kind == PIPELINE_BACKWARD) {
            add_backward(training, chunk, steps[i].stash, fresh == stash, order);
            fresh = NULL;
            continue;
        }
        add_forward(training, chunk, order);
        if (is_forward_only && chunk_has_head(training->run.base, chunk))
            add_head(training, order);
        fresh = stash;
    }
}

int model_unit_order(struct training_runner *training, const struct pipeline_step *steps, int count,
                     bool is_forward_only, struct unit_order *order) {
    *order = (struct unit_order){0};
    add_steps(training, steps, count, is_forward_only, order);
    order->units = calloc((size_t)order->count, sizeof *order->units);
    order->count = 0;
    TRY(status_allocated(order->units));
    add_steps(training, steps, count, is_forward_only, order);
    return STATUS_OK;
}
