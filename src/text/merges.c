/* The merges of a tokenizer, from tokenizer.json or merges.txt. Its table of tokens resolves the names in them. */
#include "read-internal.h"

#include "text-internal.h"

/* Returns the id of a name, and appends its bytes to `joined`. */
static int resolve_name(const struct tokenizer *tokenizer, const char *name, size_t length, struct strbuf *joined,
                        int32_t *id) {
    size_t before = joined->length;
    *id = -1;
    if (length > 0 && tokenizer_name_bytes(&tokenizer->rules, name, length, joined) && !joined->failed)
        *id = tokenizer_find_plain(tokenizer, joined->data + before, joined->length - before);
    if (*id >= 0 || joined->failed)
        return strbuf_status(joined);
    return status_fail(STATUS_INVALID, "'%.*s' is not a token of the vocabulary", (int)length, name);
}

static int resolve_merge(const struct tokenizer *tokenizer, const char *left, size_t left_length, const char *right,
                         size_t right_length, struct strbuf *joined, struct merge *merge) {
    strbuf_clear(joined);
    TRY(resolve_name(tokenizer, left, left_length, joined, &merge->left));
    TRY(resolve_name(tokenizer, right, right_length, joined, &merge->right));
    merge->result = tokenizer_find_plain(tokenizer, joined->data, joined->length);
    return merge->result >= 0 ? STATUS_OK
                              : status_fail(STATUS_INVALID, "'%.*s%.*s' is not a token of the vocabulary",
                                            (int)left_length, left, (int)right_length, right);
}

/* Reads "left right" with exactly one space. */
static int resolve_line(const struct tokenizer *tokenizer, const char *line, size_t length, struct strbuf *joined,
                        struct merge *merge) {
    const char *space = memchr(line, ' ', length);
    size_t left = space ? (size_t)(space - line) : 0;
    if (!space || memchr(space + 1, ' ', length - left - 1))
        return status_fail(STATUS_INVALID, "'%.*s' is not two tokens with a space between them",
                           length < 200 ? (int)length : 200, line);
    return resolve_merge(tokenizer, line, left, space + 1, length - left - 1, joined, merge);
}

static int resolve_json_merge(const struct tokenizer *tokenizer, const json_t *value, struct strbuf *joined,
                              struct merge *merge) {
    if (json_is_string(value))
        return resolve_line(tokenizer, json_string_value(value), json_string_length(value), joined, merge);
    const json_t *left = json_array_get(value, 0), *right = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_string(left) || !json_is_string(right))
        return status_fail(STATUS_INVALID, "neither a string nor a pair of strings");
    return resolve_merge(tokenizer, json_string_value(left), json_string_length(left), json_string_value(right),
                         json_string_length(right), joined, merge);
}

int tokenizer_read_json_merges(struct tokenizer *tokenizer, const json_t *values) {
    if (!json_is_array(values))
        return status_fail(STATUS_INVALID, "'model.merges' is not an array");
    size_t count = json_array_size(values);
    struct merge *merges = malloc((count + 1) * sizeof *merges);
    struct strbuf joined = STRBUF_INIT;
    int status = merges ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory for %zu merges", count);
    for (size_t i = 0; !status && i < count; i++) {
        status = resolve_json_merge(tokenizer, json_array_get(values, i), &joined, &merges[i]);
        if (status)
            status_wrap(status, "merge %zu", i + 1);
    }
    strbuf_free(&joined);
    if (!status)
        return tokenizer_set_merges(tokenizer, merges, count);
    free(merges);
    return status;
}

int tokenizer_read_merge_lines(struct tokenizer *tokenizer, const struct strbuf *text) {
    size_t capacity = 1, count = 0, line_number = 0;
    const char *at = strbuf_text(text), *end = at + text->length;
    for (const char *p = at; p < end; p++)
        capacity += *p == '\n';
    struct merge *merges = malloc(capacity * sizeof *merges);
    struct strbuf joined = STRBUF_INIT;
    int status = merges ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory for %zu merges", capacity);
    while (!status && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *next = newline ? newline + 1 : end;
        size_t length = (size_t)((newline ? newline : end) - at);
        line_number++;
        if (length > 0 && at[length - 1] == '\r')
            length--;
        bool is_version = line_number == 1 && length >= 8 && !memcmp(at, "#version", 8);
        if (length > 0 && !is_version) {
            status = resolve_line(tokenizer, at, length, &joined, &merges[count++]);
            if (status)
                status_wrap(status, "line %zu", line_number);
        }
        at = next;
    }
    strbuf_free(&joined);
    if (!status)
        return tokenizer_set_merges(tokenizer, merges, count);
    free(merges);
    return status;
}

/* Finds which bytes the merges join. A character that may be unknown joins everything next to it, because several of
 * them may be one token; and a whole text may be a token. */
int tokenizer_find_joins(struct tokenizer *tokenizer) {
    const struct tokenizer_rules *rules = &tokenizer->rules;
    if (!rules->is_by_characters)
        return STATUS_OK;
    if (!(tokenizer->joins = calloc(256, sizeof *tokenizer->joins)))
        return status_fail(STATUS_MEMORY, "out of memory for the merges");
    for (size_t i = 0; i < tokenizer->merge_count; i++) {
        uint32_t left_end = tokenizer->starts[tokenizer->merges[i].left + 1];
        uint32_t right = tokenizer->starts[tokenizer->merges[i].right];
        tokenizer->joins[tokenizer->bytes[left_end - 1]][tokenizer->bytes[right]] = 1;
    }
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            bool is_unsure = tokenizer->has_lost_bytes && (tokenizer->byte_ids[a] < 0 || tokenizer->byte_ids[b] < 0);
            if (rules->ignore_merges || is_unsure || (b & 0xc0) == 0x80) /* a character is not cut */
                tokenizer->joins[a][b] = 1;
            if (b == ' ' && rules->pattern == WORDS_METASPACE)
                tokenizer->joins[a][b] = 0;
        }
    return STATUS_OK;
}
