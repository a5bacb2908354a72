/* Reads values of an adapter_config.json. Nothing in the file is trusted. */
#include "format-internal.h"

/* ---- memory ---- */

struct peft_memory {
    struct peft_memory *next;
    max_align_t bytes[];
};

static void *keep(struct peft_config *config, size_t bytes) {
    struct peft_memory *block = calloc(1, sizeof *block + bytes);
    if (!block)
        return NULL;
    block->next = config->memory;
    config->memory = block;
    return block->bytes;
}

void peft_config_free(struct peft_config *config) {
    while (config->memory) {
        struct peft_memory *next = config->memory->next;
        free(config->memory);
        config->memory = next;
    }
    *config = (struct peft_config){0};
}

/* ---- single values ---- */

enum { LIST_ITEMS = 4096 };

bool reader_is_neutral(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) ||
           (json_is_string(value) && (!json_string_length(value) || !strcmp(json_string_value(value), "none")));
}

void reader_refuse_set(struct peft_reader *r, const char *key) {
    if (!r->keys.status && !reader_is_neutral(json_keys_find(&r->keys, key)))
        r->keys.status = status_fail(STATUS_UNSUPPORTED, "%s: \"%s\" is set, and not supported", r->keys.where, key);
}

static const char *keep_text(struct peft_reader *r, const char *text, size_t length) {
    char *copy = keep(r->config, length + 1);
    if (!copy)
        r->keys.status = status_no_memory();
    else
        memcpy(copy, text, length);
    return copy;
}

const char *reader_keep(struct peft_reader *r, const char *text) {
    return keep_text(r, text, strlen(text));
}

const char *reader_text(struct peft_reader *r, const char *key) {
    const json_t *value = json_keys_find(&r->keys, key);
    if (!value)
        return NULL;
    if (!json_is_string(value)) {
        json_keys_refuse(&r->keys, key, "a text");
        return NULL;
    }
    return keep_text(r, json_string_value(value), json_string_length(value));
}

int reader_choice(struct peft_reader *r, const char *key, const char *const *names, int count, int fallback) {
    const json_t *value = json_keys_find(&r->keys, key);
    struct strbuf expected = STRBUF_INIT;
    char word[SHOWN_BYTES];
    if (!value)
        return fallback;
    for (int i = 0; i < count; i++)
        if (json_is_string(value) && names[i] && !strcmp(json_string_value(value), names[i]))
            return i;
    strbuf_add_text(&expected, "one of");
    for (int i = 0; i < count; i++)
        if (names[i])
            strbuf_format(&expected, " %s", names[i]);
    if (json_is_string(value))
        strbuf_format(&expected, ", found \"%s\"", json_shown(json_string_value(value), sizeof word, word));
    json_keys_refuse(&r->keys, key, "%s", strbuf_text(&expected));
    strbuf_free(&expected);
    return fallback;
}

/* ---- lists ---- */

void reader_add_item(struct peft_reader *r, struct config_list *list, const char *text) {
    const char *copy = reader_keep(r, text);
    if (copy)
        list->items[list->count++] = copy;
}

static bool start_list(struct peft_reader *r, const char *key, size_t count, struct config_list *list) {
    *list = (struct config_list){0};
    if (count > LIST_ITEMS) {
        json_keys_refuse(&r->keys, key, "at most %d entries, found %zu", LIST_ITEMS, count);
        return false;
    }
    list->items = keep(r->config, (count + 1) * sizeof *list->items);
    if (!list->items)
        r->keys.status = status_no_memory();
    return list->items != NULL;
}

void reader_names(struct peft_reader *r, const char *key, struct config_list *list) {
    const json_t *value = json_keys_find(&r->keys, key);
    if (!value || r->keys.status)
        return;
    if (json_is_string(value)) {
        if (!json_string_length(value))
            json_keys_refuse(&r->keys, key, "names");
        else if (start_list(r, key, 1, list))
            reader_add_item(r, list, json_string_value(value));
        return;
    }
    if (!json_is_array(value)) {
        json_keys_refuse(&r->keys, key, "a list of names, or one regular expression");
        return;
    }
    if (!start_list(r, key, json_array_size(value), list))
        return;
    for (size_t i = 0; i < json_array_size(value) && !r->keys.status; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item) || !json_string_length(item))
            json_keys_refuse(&r->keys, key, "only names in the list");
        else
            reader_add_item(r, list, json_string_value(item));
    }
}

void reader_layers(struct peft_reader *r, const char *key, struct config_list *list) {
    const json_t *value = json_keys_find(&r->keys, key);
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (!value || r->keys.status || !start_list(r, key, count, list))
        return;
    for (size_t i = 0; i < count && !r->keys.status; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        char text[32];
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > 1000000) {
            json_keys_refuse(&r->keys, key, "layers, from 0");
            return;
        }
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(item));
        reader_add_item(r, list, text);
    }
    if (!r->keys.status && !count) /* an empty list would mean all here, but it means none there */
        json_keys_refuse(&r->keys, key, "at least one layer, or null for all");
}

void reader_patterns(struct peft_reader *r, const char *key, bool is_rank, struct config_list *list) {
    const json_t *value = json_keys_find(&r->keys, key);
    if (!value || r->keys.status)
        return;
    if (!json_is_object(value)) {
        json_keys_refuse(&r->keys, key, "an object of module names and numbers");
        return;
    }
    if (!start_list(r, key, json_object_size(value), list))
        return;
    void *at = json_object_iter((json_t *)value);
    for (; at && !r->keys.status; at = json_object_iter_next((json_t *)value, at)) {
        const json_t *item = json_object_iter_value(at);
        const char *name = json_object_iter_key(at);
        double number = json_number_value(item);
        bool is_right = json_is_number(item) && number >= 0 && number <= 1e6 &&
                        (!is_rank || (json_is_integer(item) && number >= 1 && number <= 65536));
        size_t bytes = strlen(name) + 40;
        char *text = is_right && *name ? malloc(bytes) : NULL;
        if (!is_right || !*name)
            json_keys_refuse(&r->keys, key, "%s",
                             is_rank ? "module names with ranks, integers from 1 to 65536"
                                     : "module names with numbers from 0 to 1e+06");
        else if (!text)
            r->keys.status = status_no_memory();
        else {
            snprintf(text, bytes, "%s=%.17g", name, number);
            reader_add_item(r, list, text);
        }
        free(text);
    }
}

void reader_targets(struct peft_reader *r) {
    reader_names(r, "target_modules", &r->config->target_modules);
    if (!r->keys.status && json_keys_find(&r->keys, "target_modules") && !r->config->target_modules.count)
        json_keys_refuse(&r->keys, "target_modules", "at least one name, or null for the method's own");
}

/* ---- virtual tokens ---- */

void reader_tokens(struct peft_reader *r) {
    struct peft_config *config = r->config;
    if (!json_keys_find(&r->keys, "num_virtual_tokens"))
        json_keys_refuse(&r->keys, "num_virtual_tokens", "a number of virtual tokens");
    config->num_virtual_tokens = json_keys_integer(&r->keys, "num_virtual_tokens", 1, 1, 65536);
    json_keys_integer(&r->keys, "num_transformer_submodules", 1, 1, 1);
    config->prompt_tuning_init = PEFT_INIT_RANDOM; /* the file holds the values */
    config->encoder_reparameterization_type =
        reader_choice(r, "encoder_reparameterization_type", peft_encoder_names, PEFT_LSTM + 1, PEFT_MLP);
    config->encoder_hidden_size = json_keys_integer(&r->keys, "encoder_hidden_size", 0, 1, 1 << 20);
    config->encoder_num_layers = json_keys_integer(&r->keys, "encoder_num_layers", 2, 1, 64);
    config->encoder_dropout = json_keys_number(&r->keys, "encoder_dropout", 0, 0, 1);
    config->prefix_projection = json_keys_bool(&r->keys, "prefix_projection", false);
}
