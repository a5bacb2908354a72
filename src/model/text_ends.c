/* The ids that end a completion: eos_token_id, one id or a list, from a model's two files. */
#include "family-internal.h"

void model_add_eos(struct model_text_ends *ends, int32_t id, bool is_first) {
    for (int i = 0; i < ends->count; i++)
        if (ends->eos[i] == id) {
            if (is_first) {
                ends->eos[i] = ends->eos[0];
                ends->eos[0] = id;
            }
            return;
        }
    if (is_first)
        memmove(ends->eos + 1, ends->eos, (size_t)ends->count * sizeof *ends->eos);
    ends->eos[is_first ? 0 : ends->count] = id;
    ends->count++;
}

static bool read_id(const json_t *value, const struct model_config *config, int32_t *id) {
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    *id = (int32_t)number;
    return number >= 0 && number < config->vocab_size;
}

static void read_eos(struct json_keys *keys, const struct model_config *config, struct model_text_ends *ends) {
    const json_t *eos = json_keys_find(keys, "eos_token_id");
    size_t count = json_is_array(eos) ? json_array_size(eos) : 1;
    for (size_t i = 0; i < count && !keys->status; i++) {
        struct model_text_ends more = *ends;
        int32_t id;
        if (!read_id(json_is_array(eos) ? json_array_get(eos, i) : eos, config, &id))
            continue;
        model_add_eos(&more, id, false);
        if (more.count > MODEL_MAX_TEXT_ENDS)
            keys->status = status_fail(STATUS_UNSUPPORTED, "%s: 'eos_token_id': more than %d ends of a text",
                                       keys->where, MODEL_MAX_TEXT_ENDS);
        else
            *ends = more;
    }
}

void text_ends_read(struct json_keys *keys, const struct model_config *config, int32_t otherwise,
                    struct model_text_ends *ends) {
    *ends = (struct model_text_ends){0};
    ends->has_bos = read_id(json_keys_find(keys, "bos_token_id"), config, &ends->bos);
    if (json_object_get(keys->object, "eos_token_id")) /* the key may be null: then there is none */
        read_eos(keys, config, ends);
    else if (otherwise >= 0 && otherwise < config->vocab_size)
        model_add_eos(ends, otherwise, false);
}

int model_read_generation_config(const char *text, const char *where, const struct model_config *config,
                                 struct model_text_ends *ends) {
    struct json_keys keys;
    json_keys_open(&keys, text, where, JSON_MUST_BE);
    if (!keys.status)
        read_eos(&keys, config, ends);
    json_keys_close(&keys);
    return keys.status;
}

json_t *text_ends_bos(const struct model_text_ends *ends) {
    int32_t bos = ends->has_bos ? ends->bos : model_first_eos(ends);
    return bos >= 0 ? json_integer(bos) : json_null();
}

json_t *text_ends_eos(const struct model_text_ends *ends) {
    json_t *list = json_array();
    for (int i = 0; i < ends->count && ends->count > 1; i++)
        json_array_append_new(list, json_integer(ends->eos[i]));
    if (ends->count > 1)
        return list;
    json_decref(list);
    return ends->count ? json_integer(ends->eos[0]) : json_null();
}
