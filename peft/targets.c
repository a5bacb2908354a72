/* Chooses the projections of the base that an adapter changes, by PEFT's rules for target_modules, exclude_modules and
 * layers_to_transform, applied to the module paths of the base's family. */
#include "method-internal.h"
#include "text/expression.h"

/* True for the last names of the path, or for the whole path. */
static bool is_suffix(const char *path, const char *suffix) {
    size_t length = strlen(path), tail = strlen(suffix);
    return tail > 0 && tail <= length && !strcmp(path + length - tail, suffix) &&
           (tail == length || path[length - tail - 1] == '.');
}

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

bool peft_transforms(const struct peft_adapter *adapter, int64_t layer) {
    return has_layer(&adapter->config.layers_to_transform, layer);
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

/* ---- lists, compiled ---- */

/* Names matched by suffix. A single name may also be an expression. */
struct names {
    const struct config_list *list;
    struct text_expression *expression; /* or NULL */
};

static int open_names(const char *what, const struct config_list *list, struct names *names) {
    names->list = list;
    return list->count == 1 ? text_expression_open(what, list->items[0], false, &names->expression) : STATUS_OK;
}

static int match_names(const struct names *names, const char *path, bool *is_match) {
    *is_match = is_listed(names->list, path);
    return *is_match || !names->expression ? STATUS_OK : text_expression_match(names->expression, path, is_match);
}

/* "KEY=VALUE". The first key that matches counts, as in PEFT's get_pattern_key. */
struct pattern {
    struct text_expression *key;
    double value;
};
struct patterns {
    size_t count;
    struct pattern *items;
};

static int open_pattern(const char *what, const char *item, double least, struct pattern *pattern) {
    const char *equals = strrchr(item, '=');
    char *end = NULL, *key;
    pattern->value = equals ? strtod(equals + 1, &end) : 0;
    if (!equals || equals == item || end == equals + 1 || *end || !(pattern->value >= least) || pattern->value > 1e9)
        return status_fail(STATUS_USAGE, "%s \"%s\": expected KEY=VALUE, and a value of at least %g", what, item,
                           least);
    key = strndup(item, (size_t)(equals - item));
    int status = key ? text_expression_open(what, key, true, &pattern->key) : status_no_memory();
    free(key);
    return status;
}

static int open_patterns(const char *what, const struct config_list *list, double least, struct patterns *patterns) {
    int status = STATUS_OK;
    patterns->items = calloc(list->count + 1, sizeof *patterns->items);
    TRY(status_allocated(patterns->items));
    while (patterns->count < list->count && !status) {
        status = open_pattern(what, list->items[patterns->count], least, &patterns->items[patterns->count]);
        patterns->count++;
    }
    return status;
}

static int match_patterns(const struct patterns *patterns, const char *path, double *value) {
    bool is_match = false;
    int status = STATUS_OK;
    for (size_t i = 0; i < patterns->count && !is_match && !status; i++) {
        status = text_expression_match(patterns->items[i].key, path, &is_match);
        if (is_match)
            *value = patterns->items[i].value;
    }
    return status;
}

/* ---- what a configuration chooses ---- */

struct chooser {
    const struct peft_config *config;
    const struct model_family *family;
    struct names targets, excluded, forwards;
    struct patterns ranks, alphas;
};

/* The expressions may be hostile. Each is matched with every path of the model, so all expressions of the adapter share
 * the steps. */
static void share_steps(struct chooser *c) {
    struct text_expression *single[] = {c->targets.expression, c->excluded.expression, c->forwards.expression};
    size_t sharers = c->ranks.count + c->alphas.count;
    for (int i = 0; i < 3; i++)
        sharers += single[i] != NULL;
    for (int i = 0; i < 3; i++)
        if (single[i])
            text_expression_share(single[i], sharers);
    for (size_t i = 0; i < c->ranks.count; i++)
        text_expression_share(c->ranks.items[i].key, sharers);
    for (size_t i = 0; i < c->alphas.count; i++)
        text_expression_share(c->alphas.items[i].key, sharers);
}

static int open_chooser(struct chooser *c) {
    const struct peft_config *config = c->config;
    int status = open_names("peft.target_modules", &config->target_modules, &c->targets);
    THEN(status, open_names("peft.exclude_modules", &config->exclude_modules, &c->excluded));
    THEN(status, open_names("peft.feedforward_modules", &config->feedforward_modules, &c->forwards));
    THEN(status, open_patterns("peft.rank_pattern", &config->rank_pattern, 1, &c->ranks));
    THEN(status, open_patterns("peft.alpha_pattern", &config->alpha_pattern, 0, &c->alphas));
    if (!status)
        share_steps(c);
    return status;
}

static void close_chooser(struct chooser *c) {
    text_expression_close(c->targets.expression);
    text_expression_close(c->excluded.expression);
    text_expression_close(c->forwards.expression);
    for (size_t i = 0; i < c->ranks.count; i++)
        text_expression_close(c->ranks.items[i].key);
    for (size_t i = 0; i < c->alphas.count; i++)
        text_expression_close(c->alphas.items[i].key);
    free(c->ranks.items);
    free(c->alphas.items);
}

static bool is_default(const char *const *modules, const char *path) {
    for (size_t i = 0; modules && modules[i]; i++)
        if (is_suffix(path, modules[i]))
            return true;
    return false;
}

static int match_targets(const struct chooser *c, const char *path, bool *is_match) {
    const struct config_list *targets = &c->config->target_modules;
    bool is_all = targets->count == 1 && !strcmp(targets->items[0], "all-linear");
    *is_match = is_all && strcmp(path, c->family->modules.head) != 0; /* PEFT leaves the head out */
    if (is_all)
        return STATUS_OK;
    if (targets->count)
        return match_names(&c->targets, path, is_match);
    *is_match = is_default(peft_method(c->config->type)->targets(c->family), path);
    return STATUS_OK;
}

/* PEFT does not require a dot before these. */
static bool is_end(const char *path, const char *end) {
    size_t length = strlen(path), tail = strlen(end);
    return tail > 0 && tail <= length && !strcmp(path + length - tail, end);
}

static int match_forwards(const struct chooser *c, const char *path, bool *is_match) {
    const struct config_list *modules = &c->config->feedforward_modules;
    *is_match = modules->count == 0 && is_default(c->family->targets.scaled_inputs, path);
    if (modules->count == 1 && !strcmp(modules->items[0], "none"))
        return STATUS_OK;
    for (size_t i = 0; i < modules->count && !*is_match; i++)
        *is_match = is_end(path, modules->items[i]);
    return *is_match || !c->forwards.expression ? STATUS_OK
                                                : text_expression_match(c->forwards.expression, path, is_match);
}

/* Chooses for one projection; of no layer for the head, which layers_to_transform leaves as it is. */
static int choose_one(const struct chooser *c, int64_t layer, const char *path, struct peft_choice *choice) {
    const struct peft_config *config = c->config;
    bool is_excluded = false;
    choice->r = (double)config->r;
    choice->alpha = config->lora_alpha;
    int status = match_targets(c, path, &choice->is_named);
    THEN(status, match_names(&c->excluded, path, &is_excluded));
    bool is_in_layers = layer < 0 || has_layer(&config->layers_to_transform, layer);
    choice->is_target = choice->is_named && !is_excluded && is_in_layers;
    THEN(status, match_forwards(c, path, &choice->is_feedforward));
    THEN(status, match_patterns(&c->ranks, path, &choice->r));
    return status ? status : match_patterns(&c->alphas, path, &choice->alpha);
}

static int64_t choice_count(const struct model_family *family, int64_t layers) {
    return layers * family->projection_count + 1;
}

/* Returns the layer of a choice; -1 for the head, which has the last one. */
static int64_t choice_path(const struct model_family *family, int64_t layers, int64_t index,
                           char path[PARAM_NAME_BYTES]) {
    struct model_projection projections[MODEL_MAX_PROJECTIONS];
    int count = family->projection_count;
    family->projections(&(const struct model_config){0}, projections);
    if (index == layers * count) {
        snprintf(path, PARAM_NAME_BYTES, "%s", family->modules.head);
        return -1;
    }
    model_module_path(family, index / count, projections[index % count].module, path);
    return index / count;
}

int peft_choose(const struct peft_config *config, const struct model_family *family, int64_t layers,
                struct peft_choice *choices) {
    struct chooser chooser = {.config = config, .family = family};
    int status = open_chooser(&chooser);
    for (int64_t i = 0; i < choice_count(family, layers) && !status; i++) {
        char path[PARAM_NAME_BYTES];
        int64_t layer = choice_path(family, layers, i, path);
        status = choose_one(&chooser, layer, path, &choices[i]);
    }
    close_chooser(&chooser);
    return status;
}

/* ---- of a model ---- */

const struct peft_choice *peft_choice(const struct peft_adapter *adapter, int64_t layer,
                                      const struct model_projection *projection) {
    const struct peft *peft = adapter->peft;
    int p = 0;
    while (projection->place != ATTACH_HEAD && strcmp(peft->projections[p].module, projection->module))
        p++;
    return &adapter->choices[layer * peft->family->projection_count + p];
}

static int64_t count_of(const struct peft_adapter *adapter) {
    return choice_count(adapter->peft->family, adapter->peft->base.num_layers);
}

/* Lists the projections of a layer: "ONE, ANOTHER and A_THIRD". */
static void list_projections(const struct peft *peft, struct strbuf *all) {
    int count = peft->family->projection_count;
    for (int p = 0; p < count; p++)
        strbuf_format(all, "%s%s", p == 0 ? "" : p + 1 < count ? ", " : " and ", peft->projections[p].module);
}

/* PEFT does not know which projections of this family a method changes by default. */
static int fail_no_default(const struct peft *peft, const char *key, const char *expected) {
    struct strbuf all = STRBUF_INIT;
    list_projections(peft, &all);
    int status = strbuf_status(&all);
    THEN(status, status_fail(STATUS_USAGE, "peft.%s: PEFT has no default for %s: give %s of %s", key,
                             peft->family->name, expected, strbuf_text(&all)));
    strbuf_free(&all);
    return status;
}

/* Reports an entry that names no projection, and lists those that exist. */
static int fail_target(const struct peft *peft, const char *entry) {
    struct strbuf all = STRBUF_INIT;
    list_projections(peft, &all);
    int status = strbuf_status(&all);
    THEN(status,
         status_fail(STATUS_USAGE,
                     "peft.target_modules %s matches no projection of the model: it has %s in layers 0 to "
                     "%lld, and the head %s",
                     entry, strbuf_text(&all), (long long)peft->base.num_layers - 1, peft->family->modules.head));
    strbuf_free(&all);
    return status;
}

/* Checks that each entry names a projection, and that some projection remains targeted. */
static int check_targets(const struct peft_adapter *adapter, int64_t count) {
    const struct config_list *targets = &adapter->config.target_modules;
    bool is_any = false;
    for (size_t entry = 0; entry < targets->count; entry++) {
        bool is_found = false;
        char path[PARAM_NAME_BYTES];
        for (int64_t i = 0; i < count && !is_found; i++) {
            choice_path(adapter->peft->family, adapter->peft->base.num_layers, i, path);
            is_found = targets->count == 1 ? adapter->choices[i].is_named : is_suffix(path, targets->items[entry]);
        }
        if (!is_found)
            return fail_target(adapter->peft, targets->items[entry]);
    }
    for (int64_t i = 0; i < count; i++)
        is_any = is_any || adapter->choices[i].is_target;
    return is_any ? STATUS_OK
                  : status_fail(STATUS_USAGE, "peft.exclude_modules and peft.layers_to_transform leave nothing of "
                                              "peft.target_modules");
}

static int wrap(const struct peft_adapter *adapter, int status) {
    const char *where = adapter->config.where;
    return status && where ? status_wrap(status, "%s", where) : status;
}

int peft_check_forwards(const struct peft_adapter *adapter) {
    const struct config_list *modules = &adapter->config.feedforward_modules;
    if (modules->count == 1 && !strcmp(modules->items[0], "none"))
        return STATUS_OK;
    if (!modules->count && !*adapter->peft->family->targets.scaled_inputs)
        return wrap(adapter, fail_no_default(adapter->peft, "feedforward_modules", "none, or some"));
    for (size_t entry = 0; entry < modules->count; entry++) {
        bool is_found = false;
        char path[PARAM_NAME_BYTES];
        for (int64_t i = 0; i < count_of(adapter) && !is_found; i++) {
            choice_path(adapter->peft->family, adapter->peft->base.num_layers, i, path);
            is_found = adapter->choices[i].is_target && adapter->choices[i].is_feedforward &&
                       (modules->count == 1 || is_end(path, modules->items[entry]));
        }
        if (!is_found)
            return wrap(adapter, status_fail(STATUS_USAGE, "peft.feedforward_modules %s is none of peft.target_modules",
                                             modules->items[entry]));
    }
    return STATUS_OK;
}

int peft_choose_targets(struct peft_adapter *adapter) {
    int64_t count = count_of(adapter);
    if (!adapter->config.target_modules.count && !*adapter->method->targets(adapter->peft->family))
        return wrap(adapter, fail_no_default(adapter->peft, "target_modules", "some"));
    adapter->choices = calloc((size_t)count, sizeof *adapter->choices);
    int status = adapter->choices ? peft_layers_check(adapter) : status_no_memory();
    THEN(status,
         peft_choose(&adapter->config, adapter->peft->family, adapter->peft->base.num_layers, adapter->choices));
    return wrap(adapter, status ? status : check_targets(adapter, count));
}
