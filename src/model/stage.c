/* A stage of the pipeline: its layers, and the residual stream between stages. */
#include "model-internal.h"

int64_t model_lowest_layer(const struct model_options *options) {
    int64_t layers = options->base.config.num_layers;
    if (options->base.trains || hook_table_tokens(options->hooks)->count)
        return -1;
    for (int64_t layer = 0; layer < layers; layer++)
        if (hook_table_changes(options->hooks, layer))
            return layer;
    return layers;
}

bool model_has_backward(const struct model_options *options, int64_t end) {
    return end > model_lowest_layer(options) || end == options->base.config.num_layers;
}

struct model_stash *training_stash(struct training_runner *training, int number) {
    return number < 0 ? training->kept.transient_stash : &training->kept.stashes[number];
}

bool model_has_layer(const struct base_options *options, int64_t layer) {
    int count = options->chunk_count;
    if (!count)
        return true;
    if (layer < 0)
        return options->chunks[0].first == 0 && !options->is_after_embedding;
    const struct model_chunk *last = &options->chunks[count - 1];
    if (layer == options->config.num_layers)
        return last->first + last->count == layer && !options->is_before_head;
    for (int c = 0; c < count; c++)
        if (layer >= options->chunks[c].first && layer < options->chunks[c].first + options->chunks[c].count)
            return true;
    return false;
}

int64_t training_stream_elements(const struct training_runner *training) {
    const struct runner *run = &training->run;
    return rank_stream_rows(run->rank, run->max_rows) * run->base->options.config.hidden_size;
}
