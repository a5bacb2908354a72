/* Unshards the units of a pass, so that their weights are whole only while the pass works on them. */
#include "model-internal.h"

int unit_begin(const struct pass *pass, int64_t unit, enum param_use use) {
    const struct model_pass *asked = &pass->asked;
    const struct param_store *store = &pass->run->base->store;
    int status = asked->layer_needed ? asked->layer_needed(asked->context, (int)unit) : STATUS_OK;
    THEN(status, param_unshard(store, (int)unit, use));
    if (status || use != PARAM_BACKWARD)
        return status;
    status = param_begin_gradients(store, (int)unit);
    return status ? unit_end(pass, unit, status) : STATUS_OK;
}

int unit_end(const struct pass *pass, int64_t unit, int status) {
    return param_reshard_after(&pass->run->base->store, (int)unit, status);
}

/* The head and the embedding add to the gradient of a tied table. It is summed once for a micro batch if the
 * embedding's backward follows the head's, and otherwise after both. */
int unit_end_gradients(const struct pass *pass, int64_t unit) {
    const struct runner *run = pass->run;
    int status = param_end_gradients(&run->base->store, (int)unit);
    bool is_next = run->base->part.has_embedding && run->base->options.chunk_count == 1;
    if (!status && unit == run->base->options.config.num_layers && !is_next)
        status = param_end_gradients(&run->base->store, PARAM_UNIT_FIRST);
    return status;
}

/* Returns the unit that has the head's weight: the embedding's, if they are tied. */
static int64_t weight_unit(const struct runner *run) {
    return run->base->table.rows[run->base->head.weight].layer;
}

int head_begin(const struct pass *pass, enum param_use use) {
    const struct runner *run = pass->run;
    int64_t last = run->base->options.config.num_layers;
    int status = unit_begin(pass, last, use);
    if (status || weight_unit(run) == last)
        return status;
    status = unit_begin(pass, weight_unit(run), use);
    return status ? unit_end(pass, last, status) : STATUS_OK;
}

int head_end(const struct pass *pass, int status) {
    const struct runner *run = pass->run;
    int64_t last = run->base->options.config.num_layers;
    if (weight_unit(run) != last)
        status = unit_end(pass, weight_unit(run), status);
    return unit_end(pass, last, status);
}
