/* The settings of a tokenizer.json besides its vocabulary, as rules. Every unsupported setting that would change the
 * ids is refused by its name, so no text is silently encoded with wrong ids. */
#include "read-internal.h"

#include "text-internal.h"

/* True for {"String": `string`} as the pattern of a step, and `content` as its replacement. */
static bool is_replacement(const json_t *value, const char *string, const char *content) {
    const char *found = json_string_value(json_object_get(json_object_get(value, "pattern"), "String"));
    const char *becomes = json_string_value(json_object_get(value, "content"));
    return found && becomes && !strcmp(found, string) && !strcmp(becomes, content);
}

static int read_normalizer_step(const json_t *value, struct tokenizer_rules *rules) {
    const char *type = settings_type(value), *prepended = json_string_value(json_object_get(value, "prepend"));
    if (!strcmp(type, "NFC"))
        rules->has_nfc = true;
    else if (!strcmp(type, "Prepend") && prepended && !strcmp(prepended, SPACE_MARK) && !rules->prefix)
        rules->prefix = PREFIX_ALWAYS;
    else if (!strcmp(type, "Replace") && is_replacement(value, " ", SPACE_MARK))
        rules->has_early_mark = rules->is_by_characters = true;
    else
        return settings_refuse("normalizer", type);
    return STATUS_OK;
}

/* Reads a normalizer, single or in a sequence, which may be empty. */
static int read_normalizer(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *steps = json_object_get(value, "normalizers");
    int status = STATUS_OK;
    if (settings_is_absent(value))
        return STATUS_OK;
    if (strcmp(settings_type(value), "Sequence"))
        status = read_normalizer_step(value, rules);
    else if (!json_is_array(steps))
        return settings_refuse("normalizer", "Sequence without normalizers");
    for (size_t i = 0; i < json_array_size(steps) && !status; i++)
        status = read_normalizer_step(json_array_get(steps, i), rules);
    THEN_IF(status, rules->prefix && !rules->has_early_mark, settings_refuse("normalizer", "Prepend without Replace"));
    return status;
}

/* Reads how the first token loses its space. The other steps define tokens of bytes and marks of spaces. */
static int read_character_decoder(const json_t *value, bool *is_fused, struct tokenizer_rules *rules) {
    const char *type = settings_type(value), *content = json_string_value(json_object_get(value, "content"));
    if (!strcmp(type, "ByteFallback"))
        rules->shows_byte_names = false;
    if (!strcmp(type, "Metaspace")) {
        enum prefix_space prefix;
        int status = settings_read_scheme(value, &prefix);
        rules->stripped = prefix ? STRIP_FIRST_TOKEN : STRIP_NOTHING;
        return status;
    }
    if (!strcmp(type, "Strip")) {
        json_int_t start = json_integer_value(json_object_get(value, "start"));
        if (!*is_fused || !content || strcmp(content, " ") != 0 || start > 1 || start < 0 ||
            json_integer_value(json_object_get(value, "stop")) != 0)
            return settings_refuse("decoder", "Strip of anything but a space of the whole text");
        rules->stripped = start ? STRIP_SPACE : STRIP_NOTHING;
        return STATUS_OK;
    }
    *is_fused |= !strcmp(type, "Fuse");
    return !strcmp(type, "Fuse") || !strcmp(type, "ByteFallback") ||
                   (!strcmp(type, "Replace") && is_replacement(value, SPACE_MARK, " "))
               ? STATUS_OK
               : settings_refuse("decoder", type);
}

static int read_decoder(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *steps = json_object_get(value, "decoders");
    bool is_fused = false;
    int status = STATUS_OK;
    if (settings_is_absent(value) || (!rules->is_by_characters && !strcmp(settings_type(value), "ByteLevel")))
        return STATUS_OK;
    if (!rules->is_by_characters)
        return settings_refuse("decoder", settings_type(value));
    rules->shows_byte_names = true;
    if (strcmp(settings_type(value), "Sequence") || !json_is_array(steps))
        return read_character_decoder(value, &is_fused, rules);
    for (size_t i = 0; i < json_array_size(steps) && !status; i++)
        status = read_character_decoder(json_array_get(steps, i), &is_fused, rules);
    return status;
}

/* Adds the ids of one token of a template: {"SpecialToken": {"id": NAME}}, whose name `special_tokens` defines. */
static int add_template_token(const json_t *processor, const json_t *piece, struct token_buffer *ids) {
    const char *name = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
    const json_t *token = name ? json_object_get(json_object_get(processor, "special_tokens"), name) : NULL;
    const json_t *values = json_object_get(token, "ids");
    int status = STATUS_OK;
    if (!json_is_array(values))
        return status_fail(STATUS_INVALID, "post_processor: the template's token '%s' has no 'ids' in special_tokens",
                           name ? name : "without an id");
    for (size_t i = 0; i < json_array_size(values) && !status; i++) {
        const json_t *id = json_array_get(values, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TEXT_MAX_VOCAB)
            return status_fail(STATUS_INVALID, "post_processor: the ids of '%s' are not all token ids", name);
        status = token_buffer_add(ids, (int32_t)json_integer_value(id));
    }
    return status;
}

/* Reads the tokens around the text, Sequence A, in the template for a single text. */
static int read_template(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *single = json_object_get(value, "single");
    bool has_text = false;
    int status = STATUS_OK;
    if (rules->begin.count + rules->end.count > 0)
        return settings_refuse("post_processor", "two TemplateProcessing");
    for (size_t i = 0; i < json_array_size(single) && !status; i++) {
        const json_t *piece = json_array_get(single, i), *text = json_object_get(piece, "Sequence");
        const char *which = json_string_value(json_object_get(text, "id"));
        if (!text)
            status = add_template_token(value, piece, has_text ? &rules->end : &rules->begin);
        else if (has_text || !which || strcmp(which, "A"))
            return settings_refuse("post_processor", "TemplateProcessing of several texts");
        has_text = has_text || text;
    }
    return status || has_text ? status : settings_refuse("post_processor", "TemplateProcessing without a text");
}

/* ByteLevel only moves offsets. */
static int read_post_processor(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *steps = json_object_get(value, "processors");
    int status = STATUS_OK;
    if (settings_is_absent(value) || !strcmp(settings_type(value), "ByteLevel"))
        return STATUS_OK;
    if (!strcmp(settings_type(value), "TemplateProcessing"))
        return read_template(value, rules);
    if (strcmp(settings_type(value), "Sequence") || !json_is_array(steps))
        return settings_refuse("post_processor", settings_type(value));
    for (size_t i = 0; i < json_array_size(steps) && !status; i++)
        status = strcmp(settings_type(json_array_get(steps, i)), "Sequence")
                     ? read_post_processor(json_array_get(steps, i), rules)
                     : settings_refuse("post_processor", "Sequence in a Sequence");
    return status;
}

static int read_model(const json_t *model, struct tokenizer_rules *rules) {
    static const char *const empty_keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE")))
        return status_fail(STATUS_UNSUPPORTED,
                           "model.type '%s' is not supported: only BPE is, and nothing else can be turned into it",
                           json_is_string(type) ? json_string_value(type) : "that is not a string");
    const json_t *dropout = json_object_get(model, "dropout");
    if (!settings_is_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return settings_refuse("model.dropout", "above 0");
    for (size_t i = 0; i < sizeof empty_keys / sizeof *empty_keys; i++) {
        const char *text = json_string_value(json_object_get(model, empty_keys[i]));
        if (text && *text) {
            char key[64];
            snprintf(key, sizeof key, "model.%s", empty_keys[i]);
            return settings_refuse(key, text);
        }
    }
    int status = settings_bool(model, "byte_fallback", false, &rules->has_byte_fallback);
    THEN(status, settings_bool(model, "fuse_unk", false, &rules->fuses_unk));
    return status ? status : settings_bool(model, "ignore_merges", false, &rules->ignore_merges);
}

int tokenizer_read_rules(const json_t *root, struct tokenizer_rules *rules) {
    int status = read_model(json_object_get(root, "model"), rules);
    THEN(status, read_normalizer(json_object_get(root, json_part_names[JSON_NORMALIZER]), rules));
    THEN(status, settings_read_words(json_object_get(root, json_part_names[JSON_PRE_TOKENIZER]), rules));
    THEN(status, read_decoder(json_object_get(root, json_part_names[JSON_DECODER]), rules));
    return status ? status : read_post_processor(json_object_get(root, "post_processor"), rules);
}

const struct added_flag added_flags[ADDED_FLAG_COUNT] = {{"single_word", TOKEN_SINGLE_WORD},
                                                         {"lstrip", TOKEN_LSTRIP},
                                                         {"rstrip", TOKEN_RSTRIP},
                                                         {"normalized", TOKEN_NORMALIZED},
                                                         {"special", TOKEN_SPECIAL}};

int tokenizer_read_added_kind(const json_t *token, uint16_t *kind) {
    bool is_set[ADDED_FLAG_COUNT], is_special = *kind & TOKEN_SPECIAL;
    if (!json_is_object(token))
        return STATUS_OK;
    int status = settings_bool(token, "special", is_special, &is_special);
    *kind = 0;
    for (size_t i = 0; i < ADDED_FLAG_COUNT && !status; i++) {
        uint16_t flag = added_flags[i].kind;
        bool fallback = flag == TOKEN_SPECIAL ? is_special : flag == TOKEN_NORMALIZED && !is_special;
        status = settings_bool(token, added_flags[i].key, fallback, &is_set[i]);
        *kind = (uint16_t)(*kind | (!status && is_set[i] ? flag : 0));
    }
    return status ? status_wrap(status, "added token '%s'", tokenizer_json_token(token)) : STATUS_OK;
}

const char *tokenizer_json_token(const json_t *value) {
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}
