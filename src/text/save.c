/* Writes a tokenizer as the four files that `transformers` and `tokenizers` open. */
#include "text-internal.h"

#include "base/json.h"

static void add_json_name(const struct tokenizer *tokenizer, int32_t id, struct strbuf *scratch, struct strbuf *out) {
    strbuf_clear(scratch);
    token_name_write(tokenizer, id, scratch);
    json_add_string(out, strbuf_text(scratch), scratch->length);
}

/* Writes {"name": id, ...}, each entry after `separator`, with or without added tokens that the vocabulary lacks. */
static void add_vocab(const struct tokenizer *tokenizer, const char *separator, bool has_added, struct strbuf *scratch,
                      struct strbuf *out) {
    bool is_first = true;
    strbuf_add_char(out, '{');
    for (int32_t id = 0; id < tokenizer->size; id++) {
        if (!has_added && tokenizer->kinds[id] & TOKEN_OUTSIDE)
            continue;
        strbuf_add_text(out, is_first ? "" : ",");
        strbuf_add_text(out, separator);
        add_json_name(tokenizer, id, scratch, out);
        strbuf_format(out, ": %d", id);
        is_first = false;
    }
}

/* Writes a part of the original file, or the value for a trained tokenizer. */
static void add_part(const struct tokenizer *tokenizer, enum json_part part, struct strbuf *out) {
    strbuf_format(out, ",\n  \"%s\": ", json_part_names[part]);
    if (tokenizer->json_parts[part])
        strbuf_add_text(out, tokenizer->json_parts[part]);
    else if (part == JSON_NORMALIZER)
        strbuf_add_text(out, "null");
    else
        strbuf_format(out,
                      "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": true, "
                      "\"use_regex\": true}",
                      part == JSON_DECODER || tokenizer->rules.prefix ? "true" : "false");
}

static void add_template_tokens(const struct tokenizer *tokenizer, const struct token_buffer *ids, const char *before,
                                const char *after, struct strbuf *scratch, struct strbuf *out) {
    for (size_t i = 0; i < ids->count; i++) {
        strbuf_format(out, "%s{\"SpecialToken\": {\"id\": ", before);
        add_json_name(tokenizer, ids->ids[i], scratch, out);
        strbuf_format(out, ", \"type_id\": 0}}%s", after);
    }
}

/* Defines the token for the template, once. */
static void explain_token(const struct tokenizer *tokenizer, int32_t id, bool is_first, struct strbuf *scratch,
                          struct strbuf *out) {
    struct strbuf name = STRBUF_INIT;
    add_json_name(tokenizer, id, scratch, &name);
    strbuf_format(out, "%s%s: {\"id\": %s, \"ids\": [%d], \"tokens\": [%s]}", is_first ? "" : ", ", strbuf_text(&name),
                  strbuf_text(&name), id, strbuf_text(&name));
    out->failed |= name.failed;
    strbuf_free(&name);
}

/* Writes the post-processor as the tokens that it adds; anything else a post-processor does concerns offsets only. */
static void add_post_processor(const struct tokenizer *tokenizer, struct strbuf *scratch, struct strbuf *out) {
    const struct token_buffer *begin = &tokenizer->rules.begin, *end = &tokenizer->rules.end;
    strbuf_format(out, ",\n  \"post_processor\": ");
    if (begin->count + end->count == 0) {
        strbuf_add_text(out, "null");
        return;
    }
    strbuf_add_text(out, "{\"type\": \"TemplateProcessing\", \"single\": [");
    add_template_tokens(tokenizer, begin, "", ", ", scratch, out);
    strbuf_add_text(out, "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}");
    add_template_tokens(tokenizer, end, ", ", "", scratch, out);
    strbuf_add_text(out,
                    "], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "
                    "\"type_id\": 1}}], \"special_tokens\": {");
    for (size_t i = 0; i < begin->count + end->count; i++) {
        size_t earlier = 0;
        int32_t id = i < begin->count ? begin->ids[i] : end->ids[i - begin->count];
        while ((earlier < begin->count ? begin->ids[earlier] : end->ids[earlier - begin->count]) != id)
            earlier++;
        if (earlier == i)
            explain_token(tokenizer, id, i == 0, scratch, out);
    }
    strbuf_add_text(out, "}}");
}

/* Writes the text by which an added token is searched for: in a normalized text with marks of spaces, and without the
 * one before it. */
static void add_content(const struct tokenizer *tokenizer, int32_t id, struct strbuf *out) {
    bool is_normalized = tokenizer->kinds[id] & TOKEN_NORMALIZED;
    const struct added_tokens *added = &tokenizer->added[is_normalized];
    const struct added_token *token = added_tokens_item(added, id);
    const char *text = added->text.data + token->start;
    size_t spaces = is_normalized && tokenizer->rules.prefix == PREFIX_ALWAYS;
    strbuf_clear(out);
    if (is_normalized && tokenizer->rules.has_early_mark)
        space_marks_write((const unsigned char *)text + spaces, token->length - spaces, out);
    else
        strbuf_add(out, text, token->length);
}

static void add_added_token(const struct tokenizer *tokenizer, int32_t id, struct strbuf *scratch, struct strbuf *out) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    strbuf_format(out, "\n    {\"id\": %d, \"content\": ", id);
    if (tokenizer->rules.is_by_characters) {
        add_content(tokenizer, id, scratch);
        json_add_string(out, strbuf_text(scratch), scratch->length);
    } else {
        json_add_string(out, bytes, length);
    }
    for (size_t i = 0; i < ADDED_FLAG_COUNT; i++)
        strbuf_format(out, ", \"%s\": %s", added_flags[i].key,
                      tokenizer->kinds[id] & added_flags[i].kind ? "true" : "false");
    strbuf_add_char(out, '}');
}

static void write_tokenizer_json(const struct tokenizer *tokenizer, struct strbuf *scratch, struct strbuf *out) {
    strbuf_add_text(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                         "  \"added_tokens\": [");
    bool is_first = true;
    for (int32_t id = 0; id < tokenizer->size; id++) {
        if (!(tokenizer->kinds[id] & TOKEN_ADDED))
            continue;
        strbuf_add_text(out, is_first ? "" : ",");
        add_added_token(tokenizer, id, scratch, out);
        is_first = false;
    }
    strbuf_add_text(out, is_first ? "]" : "\n  ]");
    for (int part = 0; part < JSON_PART_COUNT; part++)
        add_part(tokenizer, (enum json_part)part, out);
    add_post_processor(tokenizer, scratch, out);
    const struct tokenizer_rules *rules = &tokenizer->rules;
    strbuf_add_text(out, ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ");
    if (rules->has_unk)
        add_json_name(tokenizer, rules->unk, scratch, out);
    else
        strbuf_add_text(out, "null");
    strbuf_format(out,
                  ",\n    \"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\",\n"
                  "    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n    \"ignore_merges\": %s,\n    \"vocab\": ",
                  rules->fuses_unk ? "true" : "false", rules->has_byte_fallback ? "true" : "false",
                  rules->ignore_merges ? "true" : "false");
    add_vocab(tokenizer, "\n      ", false, scratch, out);
    strbuf_add_text(out, "\n    },\n    \"merges\": [");
    for (size_t i = 0; i < tokenizer->merge_count; i++) {
        strbuf_add_text(out, i > 0 ? ",\n      [" : "\n      [");
        add_json_name(tokenizer, tokenizer->merges[i].left, scratch, out);
        strbuf_add_text(out, ", ");
        add_json_name(tokenizer, tokenizer->merges[i].right, scratch, out);
        strbuf_add_char(out, ']');
    }
    strbuf_add_text(out, tokenizer->merge_count > 0 ? "\n    ]\n  }\n}\n" : "]\n  }\n}\n");
}

static void write_merges(const struct tokenizer *tokenizer, struct strbuf *out) {
    strbuf_add_text(out, "#version: 0.2\n");
    for (size_t i = 0; i < tokenizer->merge_count; i++) {
        token_name_write(tokenizer, tokenizer->merges[i].left, out);
        strbuf_add_char(out, ' ');
        token_name_write(tokenizer, tokenizer->merges[i].right, out);
        strbuf_add_char(out, '\n');
    }
}

/* The class GPT2Tokenizer invents an end-of-text token when the vocabulary has none, and has fixed rules. The generic
 * class uses tokenizer.json unchanged. */
static void write_config(const struct tokenizer *tokenizer, struct strbuf *out) {
    const struct tokenizer_rules *rules = &tokenizer->rules;
    int32_t eos = tokenizer->roles[ROLE_EOS];
    bool has_eos = eos >= 0 && tokenizer->kinds[eos] & TOKEN_ADDED; /* naming any other one would add it */
    bool is_gpt2 = rules->pattern == WORDS_BYTE_LEVEL && has_eos && !rules->ignore_merges && !rules->has_nfc &&
                   !rules->has_unk && !rules->is_by_characters && rules->begin.count + rules->end.count == 0;
    strbuf_format(out, "{\n  \"add_prefix_space\": %s,\n", rules->prefix ? "true" : "false");
    for (int role = 0; role < ROLE_COUNT; role++) {
        int32_t id = role == ROLE_EOS && !has_eos ? -1 : tokenizer->roles[role];
        if (id < 0 && (role == ROLE_BOS || role == ROLE_UNK) && is_gpt2)
            id = eos; /* as in GPT-2; the class would invent them too */
        size_t length;
        const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
        if (!bytes)
            continue;
        strbuf_format(out, "  \"%s\": ", token_role_names[role]);
        json_add_string(out, bytes, length);
        strbuf_add_text(out, ",\n");
    }
    strbuf_format(out, "  \"tokenizer_class\": \"%s\"\n}\n", is_gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast");
}

/* A tokenizer is written as the first of its files. */
enum { FILE_COUNT = TOKENIZER_CONFIG + 1 };

static int write_file(const struct tokenizer *tokenizer, int file, const char *directory) {
    struct strbuf text = STRBUF_INIT, scratch = STRBUF_INIT;
    char path[PATH_MAX];
    if (file == TOKENIZER_JSON) {
        write_tokenizer_json(tokenizer, &scratch, &text);
    } else if (file == TOKENIZER_VOCAB) {
        add_vocab(tokenizer, "", true, &scratch, &text);
        strbuf_add_text(&text, "}\n");
    } else if (file == TOKENIZER_MERGES) {
        write_merges(tokenizer, &text);
    } else {
        write_config(tokenizer, &text);
    }
    int status = strbuf_status(&text) ? strbuf_status(&text) : strbuf_status(&scratch);
    THEN(status, file_join(path, sizeof path, directory, tokenizer_file_names[file]));
    THEN(status, file_write_atomic(path, strbuf_text(&text), text.length));
    strbuf_free(&text);
    strbuf_free(&scratch);
    return status;
}

static bool is_written(const char *name) {
    for (int file = 0; file < FILE_COUNT; file++)
        if (!strcmp(name, tokenizer_file_names[file]))
            return true;
    return false;
}

int tokenizer_check_output(const char *directory) {
    char *other = NULL;
    int status = file_find_other(directory, is_written, &other);
    if (!status && *other)
        status = status_fail(STATUS_INVALID,
                             "%s holds %s, which is none of the files that are written: name another directory, or "
                             "remove it",
                             directory, other);
    free(other);
    return status;
}

int tokenizer_save(const struct tokenizer *tokenizer, const char *directory) {
    struct staging staging;
    TRY(tokenizer_check_output(directory));
    int status = staging_begin(&staging, directory);
    for (int file = 0; !status && file < FILE_COUNT; file++)
        if (!tokenizer->rules.is_by_characters || file == TOKENIZER_JSON || file == TOKENIZER_CONFIG)
            status = write_file(tokenizer, file, staging.directory);
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    return status ? status_wrap(status, "tokenizer %s was not written", directory) : STATUS_OK;
}
