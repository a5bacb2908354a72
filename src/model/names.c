/* Recognises tensors that no row of a table has, although they are a parameter of some model. They belong to a layer
 * that the configuration lacks, to a bias that it denies, or to another family. Files and configuration then contradict
 * each other, and one of the two is wrong. */
#include "family-internal.h"

enum { LAYER_DIGITS = 9 };

/* Returns the rest of a name after "START."; NULL when it begins differently. */
static const char *after(const char *name, const char *start) {
    size_t length = strlen(start);
    return !strncmp(name, start, length) && name[length] == '.' ? name + length + 1 : NULL;
}

/* True when the name is of a module; *kind is its part: "weight", "bias". */
static bool is_of(const char *name, const char *module, const char **kind) {
    const char *rest = module ? after(name, module) : NULL;
    *kind = rest ? rest : *kind;
    return rest != NULL;
}

/* Returns the rest of a name after "LAYERS.NUMBER."; NULL when it begins differently. */
static const char *after_layer(const char *name, const char *layers, int64_t *layer) {
    const char *at = after(name, layers);
    size_t digits = at ? strspn(at, "0123456789") : 0;
    if (!digits || at[digits] != '.')
        return NULL;
    *layer = 0;
    for (size_t i = 0; i < digits; i++)
        *layer = i < LAYER_DIGITS ? *layer * 10 + (at[i] - '0') : INT32_MAX;
    return at + digits + 1;
}

static bool is_of_layer(const struct model_family *family, const char *name, const char **kind) {
    const char *const norms[] = {family->modules.norm1, family->modules.norm2, family->modules.q_norm,
                                 family->modules.k_norm};
    struct model_projection projections[MODEL_MAX_PROJECTIONS];
    bool is_found = false;
    for (size_t i = 0; i < sizeof norms / sizeof *norms && !is_found; i++)
        is_found = is_of(name, norms[i], kind);
    family->projections(&(struct model_config){0}, projections);
    for (int i = 0; i < family->projection_count && !is_found; i++)
        is_found = is_of(name, projections[i].module, kind);
    return is_found;
}

static bool is_of_ends(const struct model_family *family, const char *name, const char **kind) {
    return is_of(name, family->modules.token, kind) || is_of(name, family->modules.position, kind) ||
           is_of(name, family->modules.final_norm, kind) || is_of(name, family->modules.head, kind);
}

static const char *without_prefix(const struct model_family *family, const char *name) {
    size_t length = strlen(family->files.prefix);
    return strncmp(name, family->files.prefix, length) ? name : name + length;
}

static bool has_name(const struct param_table *table, const char *name) {
    for (int i = 0; i < table->count; i++)
        for (int s = 0; s < table->rows[i].slice_count; s++)
            if (!strcmp(table->rows[i].slices[s].name, name))
                return true;
    return false;
}

/* True for a name of the table's family in a layer that the table lacks. */
static bool is_beyond(const struct param_table *table, const char *name, char reason[PARAM_REASON_BYTES]) {
    int64_t layers = table->count ? table->rows[table->count - 1].layer : 0; /* the last rows come after the layers */
    int64_t layer = -1;
    for (int i = 0; model_family_at(i); i++) {
        const struct model_family *family = model_family_at(i);
        bool is_of_table = &family->files == table->files;
        if (!is_of_table || !after_layer(without_prefix(family, name), family->layers, &layer) || layer < layers)
            continue;
        snprintf(reason, PARAM_REASON_BYTES, "is of layer %lld, but the configuration has %lld layer%s",
                 (long long)layer, (long long)layers, layers == 1 ? "" : "s");
        return true;
    }
    return false;
}

bool model_claims_name(const struct param_table *table, const char *full, char reason[PARAM_REASON_BYTES]) {
    const char *kind = NULL, *name = full;
    if (is_beyond(table, full, reason))
        return true;
    for (int i = 0; model_family_at(i) && !kind; i++) {
        const struct model_family *family = model_family_at(i);
        int64_t layer;
        name = without_prefix(family, full);
        const char *rest = after_layer(name, family->layers, &layer);
        if (!rest || !is_of_layer(family, rest, &kind))
            is_of_ends(family, name, &kind);
    }
    if (kind)
        snprintf(reason, PARAM_REASON_BYTES, "%s",
                 has_name(table, name)   ? "is there twice, under two names"
                 : !strcmp(kind, "bias") ? "is a bias that the configuration denies"
                                         : "is a model's, but the configuration has no place for it");
    return kind != NULL;
}
