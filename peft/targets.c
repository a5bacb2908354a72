/* Which projections of the base an adapter changes: PEFT's rules for target_modules, exclude_modules and
 * layers_to_transform, on the module paths of Hugging Face's GPT-2. */
#include "method-internal.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 96 };

void peft_projections(const struct model_config *base, struct peft_projection projections[PEFT_PROJECTIONS]) {
    int64_t C = base->hidden_size, F = base->ffn_hidden_size;
    projections[0] = (struct peft_projection){ATTACH_QKV, "attn.c_attn", "attention.qkv", LINEAR_COLUMN, 3, C, 3 * C};
    projections[1] =
        (struct peft_projection){ATTACH_PROJECTION, "attn.c_proj", "attention.projection", LINEAR_ROW, 1, C, C};
    projections[2] = (struct peft_projection){ATTACH_FC1, "mlp.c_fc", "mlp.fc1", LINEAR_COLUMN, 1, C, F};
    projections[3] = (struct peft_projection){ATTACH_FC2, "mlp.c_proj", "mlp.fc2", LINEAR_ROW, 1, F, C};
}

int peft_base_parameter(const struct param_table *base, int64_t layer, const struct peft_projection *projection,
                        const char *kind) {
    char name[PARAM_NAME_BYTES];
    snprintf(name, sizeof name, "layers.%lld.%s.%s", (long long)layer, projection->base, kind);
    return param_table_find(base, name, 0);
}

static void module_path(int64_t layer, const char *name, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "transformer.h.%lld.%s", (long long)layer, name);
}

/* "c_attn" of "transformer.h.0.attn.c_attn", or the path itself. */
static bool is_suffix(const char *path, const char *suffix) {
    size_t length = strlen(path), tail = strlen(suffix);
    return tail > 0 && tail <= length && !strcmp(path + length - tail, suffix) &&
           (tail == length || path[length - tail - 1] == '.');
}

static const char *const default_targets[PEFT_TYPE_COUNT][2] = {
    [PEFT_LORA] = {"c_attn"}, [PEFT_IA3] = {"c_attn", "mlp.c_proj"}};

static bool is_listed(const struct config_list *list, const char *path) {
    for (size_t i = 0; i < list->count; i++)
        if (is_suffix(path, list->items[i]))
            return true;
    return false;
}

/* Listed, or matched by the one expression. */
static bool is_named(const struct config_list *list, const char *path) {
    return is_listed(list, path) || (list->count == 1 && peft_expression_matches(path, "", list->items[0]));
}

static bool has_layer(const struct config_list *list, int64_t layer) {
    for (size_t i = 0; i < list->count; i++)
        if (strtoll(list->items[i], NULL, 10) == layer)
            return true;
    return list->count == 0;
}

bool peft_targets(const struct peft_adapter *adapter, int64_t layer, const struct peft_projection *projection) {
    const struct peft_config *config = &adapter->config;
    const struct config_list *targets = &config->target_modules;
    char path[PATH_BYTES];
    module_path(layer, projection->name, path);
    if (is_named(&config->exclude_modules, path) || !has_layer(&config->layers_to_transform, layer))
        return false;
    if (targets->count == 1 && !strcmp(targets->items[0], "all-linear"))
        return true;
    if (targets->count == 0) {
        const struct config_list defaults = {(const char **)default_targets[config->type],
                                             default_targets[config->type][1] ? 2 : 1};
        return is_listed(&defaults, path);
    }
    return is_named(targets, path);
}

bool peft_is_feedforward(const struct peft_adapter *adapter, int64_t layer, const struct peft_projection *projection) {
    const struct config_list *modules = &adapter->config.feedforward_modules;
    char path[PATH_BYTES];
    module_path(layer, projection->name, path);
    if (modules->count == 0)
        return is_suffix(path, "mlp.c_proj");
    if (modules->count == 1 && !strcmp(modules->items[0], "none"))
        return false;
    for (size_t i = 0; i < modules->count; i++) { /* PEFT looks for no dot before these */
        size_t tail = strlen(modules->items[i]);
        if (tail > 0 && tail <= strlen(path) && !strcmp(path + strlen(path) - tail, modules->items[i]))
            return true;
    }
    return modules->count == 1 && peft_expression_matches(path, "", modules->items[0]);
}

bool peft_transforms(const struct peft_adapter *adapter, int64_t layer) {
    return has_layer(&adapter->config.layers_to_transform, layer);
}

int peft_pattern(const struct config_list *patterns, const char *what, int64_t layer,
                 const struct peft_projection *projection, double *value) {
    char path[PATH_BYTES], key[1024];
    bool is_found = false;
    module_path(layer, projection->name, path);
    for (size_t i = 0; i < patterns->count; i++) {
        int status;
        const char *item = patterns->items[i], *equals = strrchr(item, '=');
        size_t length = equals ? (size_t)(equals - item) : 0;
        char *end = NULL;
        double number = equals ? strtod(equals + 1, &end) : 0;
        if (!length || length >= sizeof key || *end || !(number > 0) || number > 1e9)
            return status_fail(STATUS_USAGE, "peft.%s \"%s\": expected KEY=VALUE, and a value above 0", what, item);
        memcpy(key, item, length);
        key[length] = 0;
        status = peft_expression_check(what, key);
        if (status)
            return status;
        if (is_found || !peft_expression_matches(path, "(.*\\.)?", key))
            continue;
        *value = number;
        is_found = true;
    }
    return STATUS_OK;
}

/* Whether the entry is the name of some projection of some layer. */
static bool names_any(const struct model_config *base, const char *entry, bool is_alone) {
    struct peft_projection projections[PEFT_PROJECTIONS];
    char path[PATH_BYTES];
    peft_projections(base, projections);
    if (is_alone && !strcmp(entry, "all-linear"))
        return true;
    for (int64_t layer = 0; layer < base->num_layers; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS; p++) {
            module_path(layer, projections[p].name, path);
            if (is_suffix(path, entry) || (is_alone && peft_expression_matches(path, "", entry)))
                return true;
        }
    return false;
}

int peft_layers_check(const struct peft_adapter *adapter) {
    const struct config_list *layers = &adapter->config.layers_to_transform;
    int64_t count = adapter->peft->base.num_layers;
    for (size_t i = 0; i < layers->count; i++) {
        char *end;
        long long layer = strtoll(layers->items[i], &end, 10);
        if (*end || end == layers->items[i] || layer < 0 || layer >= count)
            return status_fail(STATUS_USAGE, "peft.layers_to_transform %s: expected layers from 0 to %lld",
                               layers->items[i], (long long)count - 1);
    }
    return STATUS_OK;
}

static int check_expression(const char *what, const struct config_list *list) {
    return list->count == 1 ? peft_expression_check(what, list->items[0]) : STATUS_OK;
}

int peft_targets_check(const struct peft_adapter *adapter) {
    const struct model_config *base = &adapter->peft->base;
    const struct config_list *targets = &adapter->config.target_modules;
    struct peft_projection projections[PEFT_PROJECTIONS];
    bool is_any = false;
    int status = peft_layers_check(adapter);
    if (!status)
        status = check_expression("target_modules", targets);
    if (!status)
        status = check_expression("exclude_modules", &adapter->config.exclude_modules);
    if (!status)
        status = check_expression("feedforward_modules", &adapter->config.feedforward_modules);
    for (size_t i = 0; i < targets->count && !status; i++)
        if (!names_any(base, targets->items[i], targets->count == 1))
            status = status_fail(STATUS_USAGE,
                                 "peft.target_modules %s matches no projection of the model: it has attn.c_attn, "
                                 "attn.c_proj, mlp.c_fc and mlp.c_proj in layers 0 to %lld",
                                 targets->items[i], (long long)base->num_layers - 1);
    peft_projections(base, projections);
    for (int64_t layer = 0; layer < base->num_layers && !status; layer++)
        for (int p = 0; p < PEFT_PROJECTIONS; p++)
            is_any = is_any || peft_targets(adapter, layer, &projections[p]);
    if (!status && !is_any)
        status = status_fail(STATUS_USAGE, "peft.exclude_modules and peft.layers_to_transform leave nothing of "
                                           "peft.target_modules");
    return status;
}
