/* Tokens that stand outside tokenizer.json, or next to vocab.json: transformers adds those of added_tokens_decoder (or,
 * without it, of added_tokens.json), then the tokens with a role, then the additional special tokens. A token that is
 * not known gets the next id after a tokenizer.json, whatever id its entry has. */
#include "read-internal.h"

#include <errno.h>

/* `transformers` writes a model_max_length of 10^30, which exceeds a 64-bit integer. */
enum { CONFIG_FLAGS = JSON_DECODE_INT_AS_REAL };

/* The names of the roles, in the order in which transformers adds their tokens. */
static const struct {
    const char *name;
    enum token_role role; /* ROLE_COUNT: one that nothing here has */
} roles[] = {{"bos_token", ROLE_BOS}, {"eos_token", ROLE_EOS},   {"unk_token", ROLE_UNK},   {"sep_token", ROLE_COUNT},
             {"pad_token", ROLE_PAD}, {"cls_token", ROLE_COUNT}, {"mask_token", ROLE_COUNT}};
enum { ROLES = sizeof roles / sizeof *roles };

static json_t *decoder_of(const struct draft *draft) {
    json_t *decoder = json_object_get(draft->config, "added_tokens_decoder");
    return settings_is_absent(decoder) ? NULL : decoder;
}

/* Returns what the files say of a role; without an added_tokens_decoder special_tokens_map.json counts first. */
static const json_t *find_role(const struct draft *draft, const char *role, enum tokenizer_file *file) {
    for (int i = 0; i < 2; i++) {
        bool is_special = (i == 0) == !decoder_of(draft);
        const json_t *value = json_object_get(is_special ? draft->special : draft->config, role);
        *file = is_special ? TOKENIZER_SPECIAL : TOKENIZER_CONFIG;
        if (!settings_is_absent(value))
            return value;
    }
    return NULL;
}

/* Returns the list of a file's additional special tokens. An object under the newer key has tokens with names. */
static json_t *list_of(const json_t *file) {
    json_t *extra = json_object_get(file, "extra_special_tokens");
    return json_array_size(extra) ? extra : json_object_get(file, "additional_special_tokens");
}

/* Returns those of special_tokens_map.json. They count without an added_tokens_decoder; under the older name, only if
 * tokenizer_config.json has none. */
static json_t *second_list(const struct draft *draft) {
    const json_t *extra = json_object_get(draft->config, "extra_special_tokens");
    bool has_first = (extra && !json_is_object(extra)) || json_object_get(draft->config, "additional_special_tokens");
    return decoder_of(draft) || (has_first && !json_object_get(draft->special, "extra_special_tokens"))
               ? NULL
               : list_of(draft->special);
}

static int wrap(const struct draft *draft, enum tokenizer_file file, int status) {
    return status ? status_wrap(status, "%s/%s", draft->files->directory, tokenizer_file_names[file]) : STATUS_OK;
}

static int name(struct draft *draft, const char *content, bool is_listed) {
    return json_object_set_new(draft->named, content, json_boolean(is_listed)) ? status_no_memory() : STATUS_OK;
}

/* Names the tokens of a list, and checks those with names. */
static int name_list(struct draft *draft, json_t *list, json_t *extra) {
    int status = STATUS_OK;
    const char *key;
    json_t *value;
    if (!settings_is_absent(list) && !json_is_array(list))
        return status_fail(STATUS_INVALID, "'additional_special_tokens' is not a list");
    if (!settings_is_absent(extra) && !json_is_array(extra) && !json_is_object(extra))
        return status_fail(STATUS_INVALID, "'extra_special_tokens' is neither a list nor an object");
    for (size_t i = 0; i < json_array_size(list) && !status; i++) {
        const char *content = tokenizer_json_token(json_array_get(list, i));
        status = content ? name(draft, content, true)
                         : status_fail(STATUS_INVALID, "additional special token %zu has no 'content'", i + 1);
    }
    json_object_foreach(extra, key, value) {
        if (!status && !tokenizer_json_token(value))
            status = status_fail(STATUS_INVALID, "extra_special_tokens: '%s' has no 'content'", key);
    }
    return status;
}

int draft_read_settings(struct draft *draft) {
    char path[PATH_MAX];
    int status = draft_load_json(draft, TOKENIZER_CONFIG, CONFIG_FLAGS, &draft->config, path);
    THEN(status, draft_load_json(draft, TOKENIZER_SPECIAL, CONFIG_FLAGS, &draft->special, path));
    THEN_IF(status, !(draft->added = json_object()) || !(draft->named = json_object()), status_no_memory());
    for (size_t i = 0; i < ROLES && !status; i++) {
        enum tokenizer_file file;
        const json_t *value = find_role(draft, roles[i].name, &file);
        const char *content = tokenizer_json_token(value);
        if (value && !content)
            status = status_fail(STATUS_INVALID, "'%s' is neither a token nor null", roles[i].name);
        else if (value)
            status = name(draft, content, false);
        if (roles[i].role != ROLE_COUNT && content && *content)
            draft->roles[roles[i].role] = content;
        status = wrap(draft, file, status);
    }
    THEN(status,
         wrap(draft, TOKENIZER_CONFIG,
              name_list(draft, list_of(draft->config), json_object_get(draft->config, "extra_special_tokens"))));
    return status ? status
                  : wrap(draft, TOKENIZER_SPECIAL,
                         name_list(draft, second_list(draft), json_object_get(draft->special, "extra_special_tokens")));
}

/* Adds a token under the id that it has, or under `id`, or (below 0) the next one. */
static int add(struct draft *draft, const json_t *vocab, const char *content, long long id, uint16_t kind) {
    const json_t *known = json_object_get(draft->added, content);
    known = known ? known : json_object_get(vocab, content);
    if (draft->files->is_there[TOKENIZER_JSON] || id < 0)
        id = known ? json_integer_value(known) : (long long)draft->size;
    json_t *used = json_integer(id);
    int status = used ? draft_add_added(draft, vocab, content, used, kind) : status_no_memory();
    json_decref(used);
    return status;
}

/* ---- added_tokens_decoder, added_tokens.json ---- */

struct entry {
    const char *content;
    long long id;
    uint16_t kind;
};

static int compare_entries(const void *a, const void *b) {
    const struct entry *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

/* Reads an entry of added_tokens_decoder: "50257": {"content": ..., "special": ...}. */
static int read_decoder_entry(const char *key, const json_t *token, struct entry *entry) {
    char *end;
    errno = 0;
    *entry = (struct entry){.content = json_is_object(token) ? tokenizer_json_token(token) : NULL,
                            .id = strtoll(key, &end, 10)};
    if (!entry->content || end == key || *end || errno || entry->id < 0)
        return status_fail(STATUS_INVALID, "added_tokens_decoder: '%s' is not an id with a 'content'", key);
    return tokenizer_read_added_kind(token, &entry->kind);
}

/* Reads an entry of added_tokens.json: "<tool>": 50257. */
static int read_file_entry(const struct draft *draft, const char *content, const json_t *id, struct entry *entry) {
    bool is_special = json_object_get(draft->named, content);
    *entry = (struct entry){content, json_integer_value(id), is_special ? TOKEN_SPECIAL : TOKEN_NORMALIZED};
    return json_is_integer(id) && entry->id >= 0
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "the id of token '%s' is not an integer from 0 up", content);
}

/* True for an entry with an id of tokenizer.json's added tokens, which replace it. */
static bool is_replaced(const struct draft *draft, const struct entry *entry) {
    return draft->files->is_there[TOKENIZER_JSON] && (uint64_t)entry->id < draft->size &&
           draft->tokens[entry->id].kind & TOKEN_ADDED;
}

static int add_entries(struct draft *draft, const json_t *vocab, json_t *object, bool is_decoder) {
    size_t count = 0, capacity = json_object_size(object);
    struct entry *entries = calloc(capacity + 1, sizeof *entries);
    const char *key;
    json_t *value;
    int status = entries ? draft_reserve(draft, capacity) : status_no_memory();
    json_object_foreach(object, key, value) {
        THEN(status, is_decoder ? read_decoder_entry(key, value, &entries[count])
                                : read_file_entry(draft, key, value, &entries[count]));
        count += !status && (is_decoder || !is_replaced(draft, &entries[count]));
    }
    if (count > 0)
        qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 0; i < count && !status; i++)
        status = add(draft, vocab, entries[i].content, entries[i].id, entries[i].kind);
    free(entries);
    return status;
}

static int add_numbered(struct draft *draft, const json_t *vocab) {
    json_t *decoder = decoder_of(draft), *file;
    char path[PATH_MAX];
    int status = draft_load_json(draft, TOKENIZER_ADDED, 0, &file, path);
    if (!status && file && (!decoder || !draft->files->is_there[TOKENIZER_JSON]))
        status = wrap(draft, TOKENIZER_ADDED, add_entries(draft, vocab, file, false));
    json_decref(file);
    if (status || !decoder)
        return status;
    status = json_is_object(decoder) ? add_entries(draft, vocab, decoder, true)
                                     : status_fail(STATUS_INVALID, "'added_tokens_decoder' is not an object");
    return wrap(draft, TOKENIZER_CONFIG, status);
}

/* ---- special tokens ---- */

/* Adds a special token, unless it is known as an added one. */
static int add_special(struct draft *draft, const json_t *vocab, const json_t *value, bool is_role) {
    const char *content = tokenizer_json_token(value);
    const json_t *known = json_object_get(draft->added, content);
    uint16_t kind = TOKEN_SPECIAL;
    if (known && is_role)
        draft->tokens[json_integer_value(known)].kind |= TOKEN_SPECIAL;
    if (known || !*content)
        return STATUS_OK;
    int status = tokenizer_read_added_kind(value, &kind);
    THEN(status, draft_reserve(draft, 1));
    return status ? status : add(draft, vocab, content, -1, is_role ? kind | TOKEN_SPECIAL : kind);
}

/* Adds the tokens of the roles. An end token that is in no other place is refused later. Next to a tokenizer.json,
 * transformers does not read special_tokens_map.json when there is an added_tokens_decoder. */
static int add_roles(struct draft *draft, const json_t *vocab) {
    int status = STATUS_OK;
    for (size_t i = 0; i < ROLES && !status; i++) {
        enum tokenizer_file file;
        const json_t *value = find_role(draft, roles[i].name, &file);
        const char *content = tokenizer_json_token(value);
        bool is_ignored = file == TOKENIZER_SPECIAL && decoder_of(draft) && draft->files->is_there[TOKENIZER_JSON];
        if (value && !is_ignored &&
            (roles[i].role != ROLE_EOS || json_object_get(draft->added, content) || json_object_get(vocab, content) ||
             json_is_true(json_object_get(draft->named, content))))
            status = wrap(draft, file, add_special(draft, vocab, value, true));
    }
    return status;
}

static bool is_role_name(const char *key) {
    size_t i = 0;
    while (i < ROLES && strcmp(key, roles[i].name) != 0)
        i++;
    return i < ROLES;
}

/* Adds the tokens of a model's own roles ("image_token": "<image>"), and a file's additional special tokens. */
static int add_additional(struct draft *draft, const json_t *vocab, json_t *root, json_t *list) {
    const char *key;
    json_t *value, *extra = json_object_get(root, "extra_special_tokens");
    int status = STATUS_OK;
    json_object_foreach(root, key, value) {
        size_t length = strlen(key);
        bool is_token = json_is_string(value) && length > 6 && !strcmp(key + length - 6, "_token");
        if (!status && is_token && !is_role_name(key) && !json_object_get(extra, key))
            status = add_special(draft, vocab, value, true);
    }
    json_object_foreach(extra, key, value) {
        THEN(status, add_special(draft, vocab, value, true));
    }
    for (size_t i = 0; i < json_array_size(list) && !status; i++)
        status = add_special(draft, vocab, json_array_get(list, i), false);
    return status;
}

int draft_add_named(struct draft *draft, const json_t *vocab) {
    int status = add_numbered(draft, vocab);
    THEN(status, add_roles(draft, vocab));
    THEN(status, wrap(draft, TOKENIZER_CONFIG, add_additional(draft, vocab, draft->config, list_of(draft->config))));
    if (!status && !decoder_of(draft))
        status = wrap(draft, TOKENIZER_SPECIAL, add_additional(draft, vocab, draft->special, second_list(draft)));
    return status;
}
