/* A stage of the pipeline: its layers, and the residual stream between stages. */
#include "model-internal.h"

int64_t model_lowest_layer(const struct model_options *options) {
    int64_t layers = options->config.num_layers;
    if (!options->train.is_frozen || hook_table_tokens(options->hooks)->count)
        return -1;
    for (int64_t layer = 0; layer < layers; layer++)
        if (hook_table_changes(options->hooks, layer))
            return layer;
    return layers;
}

bool model_has_backward(const struct model_options *options, int64_t end) {
    return end > model_lowest_layer(options) || end == options->config.num_layers;
}

struct model_stash *model_stash(struct model *model, int number) {
    return number < 0 ? model->kept.transient_stash : &model->kept.stashes[number];
}

bool model_has_layer(const struct model_options *options, int64_t layer) {
    if (layer < 0)
        return !options->chunk_count || (options->chunks[0].first == 0 && !options->is_after_embedding);
    for (int c = 0; c < options->chunk_count; c++)
        if (layer >= options->chunks[c].first && layer < options->chunks[c].first + options->chunks[c].count)
            return true;
    return !options->chunk_count;
}

int64_t model_stream_elements(const struct model *model) {
    return rank_stream_rows(model->rank, model->options.max_rows) * model->options.config.hidden_size;
}
