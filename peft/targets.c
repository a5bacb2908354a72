/* Which projections of the base an adapter changes: PEFT's rules for target_modules, exclude_modules and
 * layers_to_transform, on the module paths of Hugging Face's GPT-2. */
#include "method-internal.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 96 };

void peft_projections(const struct model_config *base, struct peft_projection projections[PEFT_PROJECTIONS]) {
    int64_t C = base->hidden_size, F = base->ffn_hidden_size;
    projections[0] = (struct peft_projection){ATTACH_QKV, "attn.c_attn", LINEAR_COLUMN, 3, C, 3 * C};
    projections[1] = (struct peft_projection){ATTACH_PROJECTION, "attn.c_proj", LINEAR_ROW, 1, C, C};
    projections[2] = (struct peft_projection){ATTACH_FC1, "mlp.c_fc", LINEAR_COLUMN, 1, C, F};
    projections[3] = (struct peft_projection){ATTACH_FC2, "mlp.c_proj", LINEAR_ROW, 1, F, C};
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

/* POSIX has no \d and no (?: of Python's; both have other words for them. */
static bool translate(const char *expression, char *out, size_t bytes) {
    size_t used = 0;
    for (const char *at = expression; *at; at++) {
        bool is_digit = at[0] == '\\' && at[1] == 'd', is_escape = at[0] == '\\' && at[1] && !is_digit;
        bool is_group = !strncmp(at, "(?:", 3);
        const char *text = is_digit ? "[0-9]" : is_group ? "(" : at;
        size_t length = is_digit ? 5 : is_escape ? 2 : 1;
        if (used + length >= bytes)
            return false;
        memcpy(out + used, text, length);
        used += length;
        at += is_digit || is_escape ? 1 : is_group ? 2 : 0;
    }
    out[used] = 0;
    return true;
}

/* Whether `prefix` and the expression match the whole path. */
static bool matches_expression(const char *path, const char *prefix, const char *expression) {
    char own[1024], whole[1040];
    regex_t compiled;
    if (!translate(expression, own, sizeof own))
        return false;
    snprintf(whole, sizeof whole, "^%s(%s)$", prefix, own);
    if (regcomp(&compiled, whole, REG_EXTENDED | REG_NOSUB))
        return false;
    bool is_match = !regexec(&compiled, path, 0, NULL, 0);
    regfree(&compiled);
    return is_match;
}

static const char *const default_targets[PEFT_TYPE_COUNT][2] = {
    [PEFT_LORA] = {"c_attn"}, [PEFT_IA3] = {"c_attn", "mlp.c_proj"}};

static bool is_listed(const struct config_list *list, const char *path) {
    for (size_t i = 0; i < list->count; i++)
        if (is_suffix(path, list->items[i]))
            return true;
    return false;
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
    if (is_listed(&config->exclude_modules, path) || !has_layer(&config->layers_to_transform, layer))
        return false;
    if (targets->count == 1 && !strcmp(targets->items[0], "all-linear"))
        return true;
    if (targets->count == 0) {
        const struct config_list defaults = {(const char **)default_targets[config->type],
                                             default_targets[config->type][1] ? 2 : 1};
        return is_listed(&defaults, path);
    }
    return is_listed(targets, path) || (targets->count == 1 && matches_expression(path, "", targets->items[0]));
}

bool peft_is_feedforward(const struct peft_adapter *adapter, int64_t layer, const struct peft_projection *projection) {
    const struct config_list *modules = &adapter->config.feedforward_modules;
    char path[PATH_BYTES];
    module_path(layer, projection->name, path);
    if (modules->count == 0)
        return is_suffix(path, "mlp.c_proj");
    if (modules->count == 1 && !strcmp(modules->items[0], "none"))
        return false;
    return is_listed(modules, path) || (modules->count == 1 && matches_expression(path, "", modules->items[0]));
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
        const char *item = patterns->items[i], *equals = strrchr(item, '=');
        size_t length = equals ? (size_t)(equals - item) : 0;
        char *end = NULL;
        double number = equals ? strtod(equals + 1, &end) : 0;
        if (!length || length >= sizeof key || *end || !(number > 0) || number > 1e9)
            return status_fail(STATUS_USAGE, "peft.%s \"%s\": expected KEY=VALUE, and a value above 0", what, item);
        memcpy(key, item, length);
        key[length] = 0;
        if (is_found || !matches_expression(path, "(.*\\.)?", key))
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
            if (is_suffix(path, entry) || (is_alone && matches_expression(path, "", entry)))
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

int peft_targets_check(const struct peft_adapter *adapter) {
    const struct model_config *base = &adapter->peft->base;
    const struct config_list *targets = &adapter->config.target_modules;
    struct peft_projection projections[PEFT_PROJECTIONS];
    bool is_any = false;
    int status = peft_layers_check(adapter);
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
