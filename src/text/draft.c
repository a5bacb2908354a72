/* A draft of a tokenizer: the tokens of its files by id, with their checks. read.c and named.c fill it. */
#include "read-internal.h"

int draft_reserve(struct draft *draft, size_t more) {
    size_t capacity = draft->capacity + more;
    if (capacity > TEXT_MAX_VOCAB)
        return status_fail(STATUS_INVALID, "%zu tokens, more than the %d allowed", capacity, TEXT_MAX_VOCAB);
    struct draft_token *tokens = realloc(draft->tokens, (capacity + 1) * sizeof *tokens);
    if (!tokens)
        return status_fail(STATUS_MEMORY, "out of memory for %zu tokens", capacity);
    memset(tokens + draft->capacity, 0, more * sizeof *tokens);
    draft->tokens = tokens;
    draft->capacity = capacity;
    return STATUS_OK;
}

static int draft_find(struct draft *draft, const char *name, const json_t *id, struct draft_token **token) {
    if (!json_is_integer(id))
        return status_fail(STATUS_INVALID, "the id of token '%s' is not an integer", name);
    if (!*name)
        return status_fail(STATUS_INVALID, "the token with the id %lld is empty", (long long)json_integer_value(id));
    json_int_t value = json_integer_value(id);
    if (value < 0 || (uint64_t)value >= draft->capacity)
        return status_fail(STATUS_INVALID, "token '%s' has the id %lld: the ids of %zu tokens must be 0 to %zu", name,
                           (long long)value, draft->capacity, draft->capacity - 1);
    *token = &draft->tokens[value];
    if ((size_t)value >= draft->size)
        draft->size = (size_t)value + 1;
    return STATUS_OK;
}

static int draft_store(struct draft *draft, struct draft_token *token, const void *bytes, size_t length,
                       uint16_t kind) {
    *token = (struct draft_token){.start = draft->bytes.length, .length = length, .kind = kind, .is_set = true};
    strbuf_add(&draft->bytes, bytes, length);
    return draft->name.failed ? strbuf_status(&draft->name) : strbuf_status(&draft->bytes);
}

/* Decodes a name into draft->name. It returns TOKEN_RAW, with the name's own bytes, when no text becomes that token.
 * The decoder decides whether the token of a byte stands for the byte or for its name. */
static uint16_t draft_decode(struct draft *draft, const char *name) {
    const struct tokenizer_rules *rules = &draft->rules;
    bool shows_byte = !rules->shows_byte_names;
    int byte = rules->is_by_characters && (rules->has_byte_fallback || shows_byte) ? token_name_byte(name) : -1;
    strbuf_clear(&draft->name);
    if (byte >= 0) {
        if (shows_byte)
            strbuf_add_char(&draft->name, (char)byte);
        else
            strbuf_add_text(&draft->name, name);
        return TOKEN_BYTE;
    }
    if (tokenizer_name_bytes(&draft->rules, name, strlen(name), &draft->name))
        return 0;
    strbuf_clear(&draft->name);
    strbuf_add_text(&draft->name, name);
    return TOKEN_RAW;
}

int draft_add_vocab(struct draft *draft, json_t *vocab) {
    const char *name;
    json_t *id;
    if (!json_is_object(vocab))
        return status_fail(STATUS_INVALID, "the vocabulary is not an object of token names and ids");
    TRY(draft_reserve(draft, json_object_size(vocab)));
    json_object_foreach(vocab, name, id) {
        struct draft_token *token = NULL;
        TRY(draft_find(draft, name, id, &token));
        if (token->is_set)
            return status_fail(STATUS_INVALID, "token '%s' has the id %lld of another token", name,
                               (long long)json_integer_value(id));
        uint16_t kind = draft_decode(draft, name);
        TRY(draft_store(draft, token, strbuf_text(&draft->name), draft->name.length, kind));
    }
    return STATUS_OK;
}

int draft_add_added(struct draft *draft, const json_t *vocab, const char *content, const json_t *id, uint16_t kind) {
    struct draft_token *token = NULL;
    TRY(draft_find(draft, content, id, &token));
    json_int_t value = json_integer_value(id);
    const json_t *known = json_object_get(vocab, content);
    if (known && json_integer_value(known) != value)
        return status_fail(STATUS_INVALID, "added token '%s' has the id %lld, and %lld in the vocabulary", content,
                           (long long)value, (long long)json_integer_value(known));
    if (token->kind & TOKEN_BYTE)
        return status_fail(STATUS_UNSUPPORTED, "added token '%s' is the token of a byte", content);
    size_t length = strlen(content);
    bool is_same =
        token->is_set && token->length == length && !memcmp(draft->bytes.data + token->start, content, length);
    if (token->is_set && !known && !is_same)
        return status_fail(STATUS_INVALID, "added token '%s' has the id %lld of another token", content,
                           (long long)value);
    /* The token stands for its content. If its name means the same in the alphabet, it stays in both tables. Only
     * tokens of the vocabulary are found as words. */
    bool is_plain = known && draft_decode(draft, content) == 0 && draft->name.length == length &&
                    !memcmp(strbuf_text(&draft->name), content, length);
    if (draft->rules.is_by_characters) {
        is_plain = known && !(token->kind & TOKEN_RAW);
        is_same |= known != NULL;
    }
    for (size_t i = 0; i < ADDED_FLAG_COUNT; i++) /* a later entry replaces the flags of an earlier one */
        token->kind &= (uint16_t)~added_flags[i].kind;
    kind = (uint16_t)(kind | (token->kind & ~TOKEN_RAW) | TOKEN_ADDED | (is_plain ? 0 : TOKEN_RAW) |
                      (known ? 0 : TOKEN_OUTSIDE));
    if (json_object_set(draft->added, content, (json_t *)id))
        return status_no_memory();
    int status_of_bytes = is_same ? STATUS_OK : draft_store(draft, token, content, length, kind);
    token->kind = kind;
    token->content_start = draft->bytes.length;
    token->content_length = length;
    strbuf_add(&draft->bytes, content, length);
    return status_of_bytes ? status_of_bytes : strbuf_status(&draft->bytes);
}

int draft_load_json(const struct draft *draft, enum tokenizer_file file, size_t flags, json_t **root,
                    char path[PATH_MAX]) {
    const struct strbuf *text = &draft->files->texts[file];
    json_error_t error;
    *root = NULL;
    int status = file_join(path, PATH_MAX, draft->files->directory, tokenizer_file_names[file]);
    if (status || !draft->files->is_there[file])
        return status;
    status = json_read(strbuf_text(text), text->length, JSON_REJECT_DUPLICATES | flags, root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    if (status || json_is_object(*root))
        return status;
    json_decref(*root);
    *root = NULL;
    return status_fail(STATUS_INVALID, "%s: not a JSON object", path);
}
