/* Values of an adapter_config.json. Nothing of the file is trusted. */
#include "format-internal.h"

#include <stdlib.h>
#include <string.h>

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

enum { LIST_ITEMS = 1 << 16 };

const char *reader_shown(const char *text, char out[SHOWN_BYTES]) {
    size_t length = strnlen(text, SHOWN_BYTES - 1);
    memcpy(out, text, length);
    out[length] = 0;
    for (char *at = out; *at; at++)
        if ((unsigned char)*at < 32 || *at == 127)
            *at = '?';
    return out;
}

void reader_refuse(struct peft_reader *r, const char *key, const char *expected) {
    if (!r->status)
        r->status = status_fail(STATUS_INVALID, "%s: \"%s\": expected %s", r->where, key, expected);
}

const json_t *reader_find(const struct peft_reader *r, const char *key) {
    const json_t *value = json_object_get(r->root, key);
    return value && !json_is_null(value) ? value : NULL;
}

bool reader_is_neutral(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) ||
           (json_is_string(value) && (!json_string_length(value) || !strcmp(json_string_value(value), "none")));
}

void reader_refuse_set(struct peft_reader *r, const char *key) {
    if (!r->status && !reader_is_neutral(reader_find(r, key)))
        r->status = status_fail(STATUS_UNSUPPORTED, "%s: \"%s\" is set, and not supported", r->where, key);
}

int64_t reader_integer(struct peft_reader *r, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const json_t *value = reader_find(r, key);
    char expected[80];
    if (!value)
        return fallback;
    if (json_is_integer(value) && json_integer_value(value) >= low && json_integer_value(value) <= high)
        return json_integer_value(value);
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)low, (long long)high);
    reader_refuse(r, key, expected);
    return fallback;
}

double reader_number(struct peft_reader *r, const char *key, double fallback, double low, double high) {
    const json_t *value = reader_find(r, key);
    char expected[80];
    if (!value)
        return fallback;
    double number = json_number_value(value);
    if (json_is_number(value) && number >= low && number <= high)
        return number;
    snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
    reader_refuse(r, key, expected);
    return fallback;
}

bool reader_bool(struct peft_reader *r, const char *key, bool fallback) {
    const json_t *value = reader_find(r, key);
    if (value && !json_is_boolean(value))
        reader_refuse(r, key, "true or false");
    return value ? json_is_true(value) : fallback;
}

static const char *keep_text(struct peft_reader *r, const char *text, size_t length) {
    char *copy = keep(r->config, length + 1);
    if (!copy)
        r->status = status_fail(STATUS_MEMORY, "out of memory");
    else
        memcpy(copy, text, length);
    return copy;
}

const char *reader_keep(struct peft_reader *r, const char *text) {
    return keep_text(r, text, strlen(text));
}

const char *reader_text(struct peft_reader *r, const char *key) {
    const json_t *value = reader_find(r, key);
    if (!value)
        return NULL;
    if (!json_is_string(value)) {
        reader_refuse(r, key, "a text");
        return NULL;
    }
    return keep_text(r, json_string_value(value), json_string_length(value));
}

int reader_choice(struct peft_reader *r, const char *key, const char *const *names, int count, int fallback) {
    const json_t *value = reader_find(r, key);
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
        strbuf_format(&expected, ", found \"%s\"", reader_shown(json_string_value(value), word));
    reader_refuse(r, key, strbuf_text(&expected));
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
        reader_refuse(r, key, "fewer entries");
        return false;
    }
    list->items = keep(r->config, (count + 1) * sizeof *list->items);
    if (!list->items)
        r->status = status_fail(STATUS_MEMORY, "out of memory");
    return list->items != NULL;
}

void reader_names(struct peft_reader *r, const char *key, struct config_list *list) {
    const json_t *value = reader_find(r, key);
    if (!value || r->status)
        return;
    if (json_is_string(value)) {
        if (!json_string_length(value))
            reader_refuse(r, key, "names");
        else if (start_list(r, key, 1, list))
            reader_add_item(r, list, json_string_value(value));
        return;
    }
    if (!json_is_array(value)) {
        reader_refuse(r, key, "a list of names, or one regular expression");
        return;
    }
    if (!start_list(r, key, json_array_size(value), list))
        return;
    for (size_t i = 0; i < json_array_size(value) && !r->status; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item) || !json_string_length(item))
            reader_refuse(r, key, "names alone in the list");
        else
            reader_add_item(r, list, json_string_value(item));
    }
}

void reader_layers(struct peft_reader *r, const char *key, struct config_list *list) {
    const json_t *value = reader_find(r, key);
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (!value || r->status || !start_list(r, key, count, list))
        return;
    for (size_t i = 0; i < count && !r->status; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        char text[32];
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > 1000000) {
            reader_refuse(r, key, "layers, from 0");
            return;
        }
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(item));
        reader_add_item(r, list, text);
    }
    if (!r->status && !count) /* an empty list here would mean all, there it means none */
        reader_refuse(r, key, "at least one layer, or null for all");
}

void reader_patterns(struct peft_reader *r, const char *key, bool is_rank, struct config_list *list) {
    const json_t *value = reader_find(r, key);
    if (!value || r->status)
        return;
    if (!json_is_object(value)) {
        reader_refuse(r, key, "an object of module names and numbers");
        return;
    }
    if (!start_list(r, key, json_object_size(value), list))
        return;
    void *at = json_object_iter((json_t *)value);
    for (; at && !r->status; at = json_object_iter_next((json_t *)value, at)) {
        const json_t *item = json_object_iter_value(at);
        const char *name = json_object_iter_key(at);
        double number = json_number_value(item);
        bool is_right = json_is_number(item) && number >= 0 && number <= 1e6 &&
                        (!is_rank || (json_is_integer(item) && number >= 1 && number <= 65536));
        size_t bytes = strlen(name) + 40;
        char *text = is_right && *name ? malloc(bytes) : NULL;
        if (!is_right || !*name)
            reader_refuse(r, key,
                          is_rank ? "module names with ranks, integers from 1 to 65536"
                                  : "module names with numbers from 0 to 1e+06");
        else if (!text)
            r->status = status_fail(STATUS_MEMORY, "out of memory");
        else {
            snprintf(text, bytes, "%s=%.17g", name, number);
            reader_add_item(r, list, text);
        }
        free(text);
    }
}

void reader_targets(struct peft_reader *r) {
    reader_names(r, "target_modules", &r->config->target_modules);
    if (!r->status && reader_find(r, "target_modules") && !r->config->target_modules.count)
        reader_refuse(r, "target_modules", "at least one name, or null for the method's own");
}

/* ---- virtual tokens ---- */

void reader_tokens(struct peft_reader *r) {
    struct peft_config *config = r->config;
    if (!reader_find(r, "num_virtual_tokens"))
        reader_refuse(r, "num_virtual_tokens", "a number of virtual tokens");
    config->num_virtual_tokens = reader_integer(r, "num_virtual_tokens", 1, 1, 65536);
    reader_integer(r, "num_transformer_submodules", 1, 1, 1);
    config->prompt_tuning_init = PEFT_INIT_RANDOM; /* the file has the values */
    config->encoder_reparameterization_type =
        reader_choice(r, "encoder_reparameterization_type", peft_encoder_names, PEFT_LSTM + 1, PEFT_MLP);
    config->encoder_hidden_size = reader_integer(r, "encoder_hidden_size", 0, 1, 1 << 20);
    config->encoder_num_layers = reader_integer(r, "encoder_num_layers", 2, 1, 64);
    config->encoder_dropout = reader_number(r, "encoder_dropout", 0, 0, 1);
    config->prefix_projection = reader_bool(r, "prefix_projection", false);
}
