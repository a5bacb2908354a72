/* Converts the keys of the rotation's scalings and of the window. */
#include "model_words.h"

/* ---- from words to the model ---- */

static int resolve_rotation(struct run_config *run) {
    struct model_config *model = &run->model;
    bool has_yarn = model->position_embedding == POSITION_YARN;
    int64_t rope = run->model_words.rope_original_max_position_embeddings,
            yarn = run->model_words.yarn_original_max_position_embeddings;
    if (run->model_words.use_rope_scaling && model->position_embedding != POSITION_ROPE)
        return status_fail(STATUS_USAGE, "model.use_rope_scaling: expected with model.position_embedding_type rope");
    if (run->model_words.use_rope_scaling && model->rotary.factor == 0)
        model->rotary.factor = 8;
    if (rope && model->rotary.factor == 0)
        return status_fail(STATUS_USAGE,
                           "model.rope_original_max_position_embeddings %lld: expected with model.use_rope_scaling",
                           (long long)rope);
    if (yarn && !has_yarn)
        return status_fail(STATUS_USAGE,
                           "model.yarn_original_max_position_embeddings %lld: expected with "
                           "model.position_embedding_type yarn",
                           (long long)yarn);
    if (rope || yarn)
        model->rotary.original_positions = has_yarn ? yarn : rope;
    return STATUS_OK;
}

/* Reads digits as a number from 0 to `high`; returns a negative number for any other text. */
static int64_t read_number(const char *text, int64_t high) {
    size_t digits = strspn(text, "0123456789");
    int64_t number = digits && digits < 10 && !text[digits] ? strtoll(text, NULL, 10) : -1;
    return number <= high ? number : -1;
}

static int resolve_window(struct run_config *run) {
    const struct config_list *size = &run->model_words.window_size;
    int64_t before = size->count ? read_number(size->items[0], MODEL_MAX_POSITIONS - 1) : -1;
    if (size->count && (size->count != 2 || before < 0 || strcmp(size->items[1], "0")))
        return status_fail(
            STATUS_USAGE,
            "model.window_size %s%s%s: expected W,0, where a token sees itself and W, at most %d, before it",
            size->items[0], size->count > 1 ? "," : "", size->count > 1 ? size->items[1] : "", MODEL_MAX_POSITIONS - 1);
    if (size->count) {
        run->model.window = before + 1;
        memset(run->model.full_layers, 0, sizeof run->model.full_layers);
    }
    return STATUS_OK;
}

bool model_skip_windows(struct model_config *model, const int64_t *numbers, bool is_list) {
    int64_t windows = 0;
    memset(model->full_layers, 0, sizeof model->full_layers);
    for (int64_t l = 0; l < model->num_layers; l++) {
        bool has_window = is_list ? numbers[l] != 0 : (l + 1) % numbers[0] != 0;
        if (!has_window)
            model_set_full(model, l);
        windows += has_window;
    }
    return windows > 0;
}

static int fill_layers(struct model_config *model, const struct config_list *skip) {
    bool is_list = skip->count > 1;
    int64_t numbers[MODEL_MAX_LAYERS] = {0};
    if (is_list && (int64_t)skip->count != model->num_layers)
        return status_fail(STATUS_USAGE, "model.window_attn_skip_freq has %zu numbers for %lld layers", skip->count,
                           (long long)model->num_layers);
    for (size_t i = 0; i < skip->count; i++) {
        numbers[i] = read_number(skip->items[i], is_list ? 1 : MODEL_MAX_LAYERS);
        if (is_list && numbers[i] < 0)
            return status_fail(STATUS_USAGE,
                               "model.window_attn_skip_freq %s: expected 1 for a window or 0 for none in a list",
                               skip->items[i]);
    }
    if (numbers[0] < 1 && !is_list)
        return status_fail(STATUS_USAGE,
                           "model.window_attn_skip_freq %s: expected a number from 1 to %d, or one for each layer",
                           skip->items[0], MODEL_MAX_LAYERS);
    return model_skip_windows(model, numbers, is_list)
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "model.window_attn_skip_freq %s: no layer has the window",
                             is_list ? "of zeros" : skip->items[0]);
}

int model_words_resolve(struct run_config *run) {
    const struct config_list *skip = &run->model_words.window_attn_skip_freq;
    int status = resolve_rotation(run);
    THEN(status, resolve_window(run));
    if (status || !skip->count)
        return status;
    if (!run->model_words.window_size.count)
        return status_fail(STATUS_USAGE, "model.window_attn_skip_freq %s%s: expected with model.window_size",
                           skip->items[0], skip->count > 1 ? ",..." : "");
    return fill_layers(&run->model, skip);
}

/* ---- from the model to words ---- */

void model_words_describe(struct run_config *run) {
    const struct model_config *model = &run->model;
    bool has_yarn = model->position_embedding == POSITION_YARN;
    memset(&run->model_words, 0, sizeof run->model_words);
    run->model_words.use_rope_scaling = model->rotary.factor != 0;
    run->model_words.rope_original_max_position_embeddings = has_yarn ? 0 : model->rotary.original_positions;
    run->model_words.yarn_original_max_position_embeddings = has_yarn ? model->rotary.original_positions : 0;
}

bool model_words_window_size(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]) {
    const struct run_config *run =
        (const void *)((const char *)field - offsetof(struct run_config, model_words.window_size));
    snprintf(text, CONFIG_ITEM_BYTES, "%lld", index ? 0 : (long long)run->model.window - 1);
    return run->model.window && index < 2;
}

int64_t model_window_period(const struct model_config *model) {
    int64_t first = 0;
    while (first < model->num_layers && !model_layer_is_full(model, first))
        first++;
    for (int64_t l = 0; l < model->num_layers; l++)
        if (model_layer_is_full(model, l) != ((l + 1) % (first + 1) == 0))
            return 0;
    return first + 1;
}

bool model_words_window_skip(const void *field, size_t index, char text[CONFIG_ITEM_BYTES]) {
    const struct run_config *run =
        (const void *)((const char *)field - offsetof(struct run_config, model_words.window_attn_skip_freq));
    const struct model_config *model = &run->model;
    int64_t layer = (int64_t)index, period = model->window ? model_window_period(model) : 0;
    if (!model->window || period > model->num_layers) /* no layer has a window, or every layer has one */
        return false;
    if (period)
        snprintf(text, CONFIG_ITEM_BYTES, "%lld", (long long)period);
    else
        snprintf(text, CONFIG_ITEM_BYTES, "%d", layer < model->num_layers && !model_layer_is_full(model, layer));
    return layer < (period ? 1 : model->num_layers);
}
