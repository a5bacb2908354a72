/* The units of a rank's steps, in the order in which passes unshard them. pass.c unshards them in this order. */
#include "model-internal.h"

/* A list that is counted before it has memory. */
struct list {
    int *units; /* NULL: only counted */
    int64_t count;
};

static void add(struct list *list, int64_t unit) {
    if (list->units)
        list->units[list->count] = (int)unit;
    list->count++;
}

static void add_head(const struct model *model, struct list *list) {
    int64_t last = model->options.config.num_layers, of_weight = model->table.rows[model->head.weight].layer;
    add(list, last);
    if (of_weight != last)
        add(list, of_weight);
}

static void add_forward(const struct model_chunk *chunk, struct list *list) {
    if (chunk_has_embedding(chunk))
        add(list, PARAM_UNIT_FIRST);
    for (int64_t layer = 0; layer < chunk->count; layer++)
        add(list, chunk->first + layer);
}

static void add_backward(const struct model *model, const struct model_chunk *chunk, int stash, bool is_fresh,
                         struct list *list) {
    struct layer_group group;
    if (!model_has_backward(&model->options, chunk->first + chunk->count))
        return;
    if (chunk_has_head(model, chunk))
        add_head(model, list);
    for (int64_t layer = chunk->count - 1; layer >= 0 && chunk->first + layer >= model->share.lowest; layer--) {
        if (model_runs_again(model, chunk, stash, layer, is_fresh, &group))
            for (int64_t again = group.first; again < group.end; again++)
                add(list, chunk->first + again);
        add(list, chunk->first + layer);
    }
    if (chunk_has_embedding(chunk) && model->share.lowest < 0)
        add(list, PARAM_UNIT_FIRST);
}

int64_t model_unit_order(struct model *model, const struct pipeline_step *steps, int count, bool is_forward_only,
                         int *units) {
    struct list list = {.units = units};
    const struct model_stash *fresh = NULL;
    for (int i = 0; i < count; i++) {
        const struct model_chunk *chunk = &model->options.chunks[steps[i].chunk];
        const struct model_stash *stash = model_stash(model, steps[i].stash);
        if (steps[i].kind == PIPELINE_BACKWARD) {
            add_backward(model, chunk, steps[i].stash, fresh == stash, &list);
            fresh = NULL;
            continue;
        }
        add_forward(chunk, &list);
        if (is_forward_only && chunk_has_head(model, chunk))
            add_head(model, &list);
        fresh = stash;
    }
    return list.count;
}
