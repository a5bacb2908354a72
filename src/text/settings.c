/* What a tokenizer.json asks for beside its vocabulary, as rules. Everything that would change the ids and is not built
 * here is refused by its name, so that no text is ever encoded with silently wrong ids. */
#include "read-internal.h"

#include "text-internal.h"

#include <string.h>

/* The patterns as they are written, GPT-2's in two ways; scan-internal.h is what they mean. */
#define BYTE_LEVEL_WORDS " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_WORDS(max)                                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" max                                            \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    enum word_pattern pattern;
    const char *text;
} patterns[] = {
    {WORDS_BYTE_LEVEL, "'s|'t|'re|'ve|'m|'ll|'d|" BYTE_LEVEL_WORDS},
    {WORDS_BYTE_LEVEL, "'(?:[sdmt]|ll|ve|re)|" BYTE_LEVEL_WORDS},
    {WORDS_LLAMA3, LLAMA3_WORDS("{1,3}")},
    {WORDS_QWEN2, LLAMA3_WORDS("")},
};

static int refuse(const char *key, const char *value) {
    return status_fail(STATUS_UNSUPPORTED,
                       "%s '%s' is not supported: only byte-level BPE with the pre-tokenizer of GPT-2, Llama 3 or "
                       "Qwen2 is",
                       key, value);
}

static bool is_absent(const json_t *value) {
    return !value || json_is_null(value);
}

static const char *type_of(const json_t *value) {
    const char *type = json_string_value(json_object_get(value, "type"));
    return type ? type : "without a type";
}

/* A boolean with a default where the key is absent; STATUS_INVALID where it is something else. */
static int read_bool(const json_t *object, const char *key, bool fallback, bool *value) {
    const json_t *found = json_object_get(object, key);
    *value = found ? json_is_true(found) : fallback;
    return !found || json_is_boolean(found) ? STATUS_OK
                                            : status_fail(STATUS_INVALID, "'%s' is neither true nor false", key);
}

static int check_byte_level(const json_t *value, bool want_regex, bool *add_prefix_space) {
    if (strcmp(type_of(value), "ByteLevel"))
        return refuse("pre_tokenizer", type_of(value));
    bool use_regex;
    int status = read_bool(value, "use_regex", true, &use_regex);
    if (!status)
        status = read_bool(value, "add_prefix_space", true, add_prefix_space);
    if (!status && use_regex != want_regex)
        status = refuse("pre_tokenizer.use_regex", use_regex ? "true" : "false");
    return status;
}

static int check_split(const json_t *value, enum word_pattern *word_pattern) {
    if (strcmp(type_of(value), "Split"))
        return refuse("pre_tokenizer", type_of(value));
    const char *pattern = json_string_value(json_object_get(json_object_get(value, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(value, "behavior"));
    bool is_known = false, invert;
    for (size_t i = 0; pattern && !is_known && i < sizeof patterns / sizeof *patterns; i++) {
        is_known = !strcmp(pattern, patterns[i].text);
        *word_pattern = patterns[i].pattern;
    }
    if (!is_known)
        return refuse("pre_tokenizer.pattern", pattern ? pattern : "String");
    if (!behavior || strcmp(behavior, "Isolated"))
        return refuse("pre_tokenizer.behavior", behavior ? behavior : "null");
    int status = read_bool(value, "invert", false, &invert);
    return !status && invert ? refuse("pre_tokenizer.invert", "true") : status;
}

/* ByteLevel, which is GPT-2's, or a sequence of Split by a pattern and ByteLevel without one. */
static int check_pre_tokenizer(const json_t *value, struct tokenizer_rules *rules) {
    bool *add_prefix_space = &rules->add_prefix_space;
    rules->pattern = WORDS_BYTE_LEVEL;
    if (is_absent(value))
        return refuse("pre_tokenizer", "null");
    if (strcmp(type_of(value), "Sequence"))
        return check_byte_level(value, true, add_prefix_space);
    const json_t *steps = json_object_get(value, "pretokenizers");
    if (json_array_size(steps) == 1)
        return check_byte_level(json_array_get(steps, 0), true, add_prefix_space);
    if (json_array_size(steps) != 2)
        return refuse("pre_tokenizer", "Sequence");
    int status = check_split(json_array_get(steps, 0), &rules->pattern);
    if (!status)
        status = check_byte_level(json_array_get(steps, 1), false, add_prefix_space);
    return !status && *add_prefix_space ? refuse("pre_tokenizer.add_prefix_space", "true behind Split") : status;
}

/* Normalizers stand alone or in a sequence, which may be empty. */
static int read_normalizer(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *steps = json_object_get(value, "normalizers");
    int status = STATUS_OK;
    if (is_absent(value))
        return STATUS_OK;
    if (!strcmp(type_of(value), "NFC")) {
        rules->has_nfc = true;
        return STATUS_OK;
    }
    if (strcmp(type_of(value), "Sequence") || !json_is_array(steps))
        return refuse("normalizer", type_of(value));
    for (size_t i = 0; i < json_array_size(steps) && !status; i++)
        status = strcmp(type_of(json_array_get(steps, i)), "Sequence")
                     ? read_normalizer(json_array_get(steps, i), rules)
                     : refuse("normalizer", "Sequence in a Sequence");
    return status;
}

/* The ids of one of the tokens of a template: {"SpecialToken": {"id": NAME}}, whose name `special_tokens` explains. */
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

/* What stands around the text, Sequence A, in the template of a single one. */
static int read_template(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *single = json_object_get(value, "single");
    bool has_text = false;
    int status = STATUS_OK;
    if (rules->begin.count + rules->end.count > 0)
        return refuse("post_processor", "two TemplateProcessing");
    for (size_t i = 0; i < json_array_size(single) && !status; i++) {
        const json_t *piece = json_array_get(single, i), *text = json_object_get(piece, "Sequence");
        const char *which = json_string_value(json_object_get(text, "id"));
        if (!text)
            status = add_template_token(value, piece, has_text ? &rules->end : &rules->begin);
        else if (has_text || !which || strcmp(which, "A"))
            return refuse("post_processor", "TemplateProcessing of several texts");
        has_text = has_text || text;
    }
    return status || has_text ? status : refuse("post_processor", "TemplateProcessing without a text");
}

/* ByteLevel moves offsets alone. */
static int read_post_processor(const json_t *value, struct tokenizer_rules *rules) {
    const json_t *steps = json_object_get(value, "processors");
    int status = STATUS_OK;
    if (is_absent(value) || !strcmp(type_of(value), "ByteLevel"))
        return STATUS_OK;
    if (!strcmp(type_of(value), "TemplateProcessing"))
        return read_template(value, rules);
    if (strcmp(type_of(value), "Sequence") || !json_is_array(steps))
        return refuse("post_processor", type_of(value));
    for (size_t i = 0; i < json_array_size(steps) && !status; i++)
        status = strcmp(type_of(json_array_get(steps, i)), "Sequence")
                     ? read_post_processor(json_array_get(steps, i), rules)
                     : refuse("post_processor", "Sequence in a Sequence");
    return status;
}

static int check_model(const json_t *model, bool *ignore_merges) {
    static const char *const empty_keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE")))
        return refuse("model.type", json_is_string(type) ? json_string_value(type) : "that is no string");
    const json_t *dropout = json_object_get(model, "dropout");
    if (!is_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return refuse("model.dropout", "above 0");
    for (size_t i = 0; i < sizeof empty_keys / sizeof *empty_keys; i++) {
        const char *text = json_string_value(json_object_get(model, empty_keys[i]));
        if (text && *text) {
            char key[64];
            snprintf(key, sizeof key, "model.%s", empty_keys[i]);
            return refuse(key, text);
        }
    }
    bool byte_fallback;
    int status = read_bool(model, "byte_fallback", false, &byte_fallback);
    if (!status && byte_fallback)
        status = refuse("model.byte_fallback", "true");
    /* unk_token and fuse_unk mean nothing: every byte has a token. */
    return status ? status : read_bool(model, "ignore_merges", false, ignore_merges);
}

int tokenizer_read_rules(const json_t *root, struct tokenizer_rules *rules) {
    static const char *const null_keys[] = {"truncation", "padding"};
    for (size_t i = 0; i < sizeof null_keys / sizeof *null_keys; i++) {
        const json_t *value = json_object_get(root, null_keys[i]);
        if (!is_absent(value))
            return refuse(null_keys[i], type_of(value));
    }
    const json_t *decoder = json_object_get(root, json_part_names[JSON_DECODER]);
    if (!is_absent(decoder) && strcmp(type_of(decoder), "ByteLevel"))
        return refuse("decoder", type_of(decoder));
    int status = check_model(json_object_get(root, "model"), &rules->ignore_merges);
    if (!status)
        status = read_normalizer(json_object_get(root, json_part_names[JSON_NORMALIZER]), rules);
    if (!status)
        status = check_pre_tokenizer(json_object_get(root, json_part_names[JSON_PRE_TOKENIZER]), rules);
    return status ? status : read_post_processor(json_object_get(root, "post_processor"), rules);
}

const struct added_flag added_flags[ADDED_FLAG_COUNT] = {{"single_word", TOKEN_SINGLE_WORD},
                                                         {"lstrip", TOKEN_LSTRIP},
                                                         {"rstrip", TOKEN_RSTRIP},
                                                         {"normalized", TOKEN_NORMALIZED},
                                                         {"special", TOKEN_SPECIAL}};

int tokenizer_read_added_kind(const json_t *token, uint8_t *kind) {
    *kind = 0;
    for (size_t i = 0; i < ADDED_FLAG_COUNT; i++) {
        bool value;
        int status = read_bool(token, added_flags[i].key, false, &value);
        if (status)
            return status_wrap(status, "added token '%s'", tokenizer_json_token(token));
        *kind = (uint8_t)(*kind | (value ? added_flags[i].kind : 0));
    }
    return STATUS_OK;
}

const char *tokenizer_json_token(const json_t *value) {
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}
