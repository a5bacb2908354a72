/* The table of families, and the keys that all config.json files share. */
#include "family-internal.h"

#define ADDRESS(family) &family,
static const struct model_family *const families[] = {MODEL_FAMILIES(ADDRESS)};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

const struct model_family *model_family_at(int number) {
    return number < FAMILY_COUNT ? families[number] : NULL;
}

const struct model_family *model_family(const struct model_config *config) {
    return families[config->family];
}

int model_family_find(const char *name) {
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (!strcmp(families[i]->name, name))
            return i;
    return -1;
}

int model_family_choose(struct model_config *config) {
    struct strbuf ways = STRBUF_INIT;
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (!families[i]->unfit(families[i], config)) {
            config->family = i;
            return STATUS_OK;
        }
    for (int i = 0; i < FAMILY_COUNT; i++)
        strbuf_format(&ways, "%s%s cannot have this model.%s", i ? ", " : "", families[i]->name,
                      families[i]->unfit(families[i], config));
    int status = strbuf_status(&ways);
    THEN(status, status_fail(STATUS_USAGE, "no family of models is like this one: %s", strbuf_text(&ways)));
    strbuf_free(&ways);
    return status;
}

void model_module_path(const struct model_family *family, int64_t layer, const char *module,
                       char out[PARAM_NAME_BYTES]) {
    snprintf(out, PARAM_NAME_BYTES, "%s%s.%lld.%s", family->files.prefix, family->layers, (long long)layer, module);
}

/* ---- writing ---- */

static const char *const type_names[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};

int model_write_config(const struct model_config *config, enum dtype dtype, const struct model_text_ends *ends,
                       char **text) {
    const struct model_family *family = model_family(config);
    const char *type = type_names[dtype == DTYPE_BF16 || dtype == DTYPE_F16 ? dtype : DTYPE_F32];
    json_begin();
    json_t *keys = family->write(family, config);
    json_t *root =
        json_pack("{s:[s], s:o, s:s, s:o, s:s, s:b, s:s, s:b, s:I}", "architectures", family->class_name,
                  "bos_token_id", text_ends_bos(ends), "dtype", type, "eos_token_id", text_ends_eos(ends), "model_type",
                  family->name, "tie_word_embeddings", !config->untie_embeddings_and_output_weights, "torch_dtype",
                  type, "use_cache", 1, "vocab_size", (json_int_t)config->vocab_size);
    char *dump;
    json_object_update(root, keys);
    int status = json_end(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15), &dump);
    json_decref(keys);
    if (status || asprintf(text, "%s\n", dump) < 0)
        *text = NULL;
    free(dump);
    return status || *text ? status : status_no_memory();
}

/* ---- reading ---- */

static void read_family(struct json_keys *keys, struct model_config *config) {
    json_keys_need(keys, "model_type");
    const char *name = json_keys_string(keys, "model_type", "");
    if (keys->status)
        return;
    int family = model_family_find(name);
    config->family = family < 0 ? 0 : family;
    if (family >= 0)
        return;
    struct strbuf built = STRBUF_INIT;
    for (int i = 0; i < FAMILY_COUNT; i++)
        strbuf_format(&built, "%s%s", i ? ", " : "", families[i]->name);
    keys->status = strbuf_status(&built);
    if (!keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: 'model_type' \"%s\" is not supported (supported: %s)",
                                   keys->where, name, strbuf_text(&built));
    strbuf_free(&built);
}

static enum dtype read_dtype(struct json_keys *keys) {
    const char *key = json_keys_find(keys, "dtype") ? "dtype" : "torch_dtype";
    const char *name = json_keys_string(keys, key, NULL);
    if (!name || keys->status)
        return DTYPE_COUNT;
    for (int type = 0; type < DTYPE_COUNT; type++)
        if ((size_t)type < sizeof type_names / sizeof *type_names && type_names[type] &&
            !strcmp(type_names[type], name))
            return (enum dtype)type;
    keys->status =
        status_fail(STATUS_UNSUPPORTED, "%s: '%s' \"%s\" is not supported (supported: float32, bfloat16, float16)",
                    keys->where, key, name);
    return DTYPE_COUNT;
}

int model_read_config(const char *text, const char *where, struct model_config *config, enum dtype *dtype,
                      struct model_text_ends *ends) {
    struct json_keys keys;
    *config = (struct model_config){0};
    json_keys_open(&keys, text, where, JSON_MUST_BE);
    read_family(&keys, config);
    if (!keys.status)
        model_family(config)->read(model_family(config), &keys, config);
    *dtype = read_dtype(&keys);
    text_ends_read(&keys, config, model_family(config)->eos_id, ends);
    if (!keys.status && model_config_resolve(config))
        keys.status = status_wrap(STATUS_INVALID, "%s", where);
    json_keys_close(&keys);
    return keys.status;
}
