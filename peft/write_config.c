/* Writes adapter_config.json with the keys and values that PEFT and other readers need. */
#include "format-internal.h"

/* ---- values ---- */

void writer_set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

static json_t *list_of(const struct config_list *list, const char *const *defaults) {
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, json_string(list->items[i]));
    for (size_t i = 0; list->count == 0 && defaults && defaults[i]; i++)
        json_array_append_new(array, json_string(defaults[i]));
    return array;
}

json_t *writer_names(const struct config_list *list, const char *const *defaults) {
    bool is_text =
        list->count == 1 && (!strcmp(list->items[0], "all-linear") || strpbrk(list->items[0], "*+?[](|^$\\"));
    return is_text ? json_string(list->items[0]) : list_of(list, defaults);
}

json_t *writer_patterns(const struct config_list *list, bool is_integer) {
    json_t *object = json_object();
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strrchr(list->items[i], '=');
        if (!equals)
            continue;
        json_object_setn_new(object, list->items[i], (size_t)(equals - list->items[i]),
                             is_integer ? json_integer(strtoll(equals + 1, NULL, 10))
                                        : json_real(strtod(equals + 1, NULL)));
    }
    return object;
}

json_t *writer_layers(const struct config_list *list) {
    if (!list->count)
        return json_null();
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, json_integer(strtoll(list->items[i], NULL, 10)));
    return array;
}

json_t *writer_number(double value) {
    return value == (double)(json_int_t)value ? json_integer((json_int_t)value) : json_real(value);
}

void writer_targets(json_t *object, const struct peft_config *config, const struct model_family *base) {
    writer_set(object, "target_modules",
               writer_names(&config->target_modules, peft_method(config->type)->targets(base)));
    writer_set(object, "exclude_modules",
               config->exclude_modules.count ? writer_names(&config->exclude_modules, NULL) : json_null());
}

void writer_tokens(json_t *object, const struct peft_config *config) {
    writer_set(object, "num_virtual_tokens", json_integer(config->num_virtual_tokens));
    writer_set(object, "num_transformer_submodules", json_integer(1));
    if (peft_method(config->type)->is_encoded)
        writer_set(object, "encoder_hidden_size",
                   config->encoder_hidden_size ? json_integer(config->encoder_hidden_size) : json_null());
}

/* ---- the file ---- */

static void add_frame(json_t *object, const char *type, const char *base_directory) {
    writer_set(object, "peft_type", json_string(type));
    writer_set(object, "task_type", json_string("CAUSAL_LM"));
    writer_set(object, "base_model_name_or_path", json_string(base_directory));
    writer_set(object, "inference_mode", json_true());
    writer_set(object, "revision", json_null());
    writer_set(object, "auto_mapping", json_null());
}

int peft_write_config(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      char **text) {
    const struct peft_format *format = peft_method(config->type)->format;
    json_begin();
    json_t *object = json_object();
    *text = NULL;
    if (format->type)
        add_frame(object, format->type, base_directory);
    int status = format->write(config, base, base_directory, object);
    if (!status)
        return json_end(object, JSON_INDENT(2) | JSON_SORT_KEYS, text);
    json_decref(object);
    return status;
}
