/* Reads adapter_config.json of Hugging Face's PEFT, or of AdapterHub, into a struct peft_config. A key that needs
 * mathematics that are not implemented is refused by its name, never ignored. */
#include "format-internal.h"

/* ---- what is refused, and what is passed over ---- */

/* Keys of all of PEFT's files. */
static const char *const known[] = {
    "peft_type",    "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping",
    "peft_version", NULL};

static bool is_among(const char *key, const char *const *names) {
    for (size_t i = 0; names && names[i]; i++)
        if (!strcmp(key, names[i]))
            return true;
    return false;
}

/* Files of one method may have another method's keys, which are refused there alike. */
static bool is_refused(const char *key) {
    for (int i = 0; i < PEFT_TYPE_COUNT; i++)
        if (is_among(key, peft_method(i)->format->refused))
            return true;
    return false;
}

static bool is_known(const char *key) {
    for (int i = 0; i < PEFT_TYPE_COUNT; i++)
        if (is_among(key, peft_method(i)->format->known))
            return true;
    return is_among(key, known);
}

static void check_keys(struct peft_reader *r) {
    enum { NAMED = 8 };
    struct strbuf unknown = STRBUF_INIT;
    int count = 0;
    void *at = json_object_iter((json_t *)r->keys.object);
    for (; at && !r->keys.status; at = json_object_iter_next((json_t *)r->keys.object, at)) {
        const char *key = json_object_iter_key(at);
        char word[SHOWN_BYTES];
        if (is_refused(key))
            reader_refuse_set(r, key);
        else if (!is_known(key) && !reader_is_neutral(json_object_iter_value(at)) && count++ < NAMED)
            strbuf_format(&unknown, "%s%s", count > 1 ? ", " : "", json_shown(key, sizeof word, word));
    }
    if (!r->keys.status && count)
        log_warning("%s: %d unknown key%s ignored: %s%s", r->keys.where, count, count > 1 ? "s" : "",
                    strbuf_text(&unknown), count > NAMED ? ", ..." : "");
    strbuf_free(&unknown);
}

static void check_task(struct peft_reader *r, bool is_needed) {
    const json_t *value = json_keys_find(&r->keys, "task_type");
    bool is_right = value ? json_is_string(value) && !strcmp(json_string_value(value), "CAUSAL_LM") : !is_needed;
    if (!is_right)
        json_keys_refuse(&r->keys, "task_type", "CAUSAL_LM");
}

/* ---- the file ---- */

static void read_peft(struct peft_reader *r) {
    const char *types[PEFT_TYPE_COUNT];
    for (int i = 0; i < PEFT_TYPE_COUNT; i++)
        types[i] = peft_method(i)->format->type;
    r->config->base_name = reader_text(r, "base_model_name_or_path");
    if (!json_keys_find(&r->keys, "peft_type"))
        json_keys_refuse(&r->keys, "peft_type", "the name of a method");
    r->config->type = reader_choice(r, "peft_type", types, PEFT_TYPE_COUNT, 0);
    check_keys(r);
    if (r->keys.status)
        return;
    const struct peft_method *method = peft_method(r->config->type);
    check_task(r, method->before != PEFT_BEFORE_NOTHING);
    method->format->read(r);
}

static void read_any(struct peft_reader *r) {
    for (int i = 0; i < PEFT_TYPE_COUNT; i++) {
        const struct peft_format *format = peft_method(i)->format;
        if (format->recognises && format->recognises(r->keys.object)) {
            r->config->type = i;
            format->read(r);
            return;
        }
    }
    read_peft(r);
}

int peft_read_config(const char *text, const char *where, struct peft_config *config) {
    struct peft_reader r = {.config = config};
    *config = (struct peft_config){0};
    if (!json_keys_open(&r.keys, text, where, JSON_EXPECTED))
        config->where = reader_keep(&r, where);
    if (!r.keys.status)
        read_any(&r);
    json_keys_close(&r.keys);
    if (r.keys.status)
        peft_config_free(config);
    return r.keys.status;
}
