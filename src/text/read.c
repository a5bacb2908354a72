/* A directory's files into a tokenizer: tokenizer.json, or vocab.json and merges.txt with the small files next to them.
 *
 * The files are not trusted. A draft collects their contents by id and refuses contradictions; named.c adds the tokens
 * that only the small files name. Then the tokens become a tokenizer, whose table of tokens resolves the names in the
 * merges. */
#include "read-internal.h"

#include "text-internal.h"

static void draft_free(struct draft *draft) {
    strbuf_free(&draft->bytes);
    strbuf_free(&draft->name);
    tokenizer_rules_free(&draft->rules);
    free(draft->tokens);
    json_decref(draft->config);
    json_decref(draft->special);
    json_decref(draft->added);
    json_decref(draft->named);
}

static int draft_add_added_array(struct draft *draft, const json_t *vocab, const json_t *added) {
    if (!added || json_is_null(added))
        return STATUS_OK;
    if (!json_is_array(added))
        return status_fail(STATUS_INVALID, "'added_tokens' is not an array");
    int status = draft_reserve(draft, json_array_size(added));
    for (size_t i = 0; !status && i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const char *content = json_is_object(token) ? tokenizer_json_token(token) : NULL;
        if (!content)
            return status_fail(STATUS_INVALID, "added token %zu has no 'content'", i + 1);
        uint16_t kind = 0;
        status = tokenizer_read_added_kind(token, &kind);
        THEN(status, draft_add_added(draft, vocab, content, json_object_get(token, "id"), kind));
    }
    return status;
}

/* If a mark stands for a space, it does so in added tokens too; this sets their decoded text. */
static int draft_show_added(struct draft *draft) {
    struct nfc_scratch nfc = {0};
    int status = STATUS_OK;
    for (size_t id = 0; id < draft->size && !status && draft->rules.is_by_characters; id++) {
        struct draft_token *token = &draft->tokens[id];
        if (!(token->kind & TOKEN_ADDED) || !(token->kind & TOKEN_RAW))
            continue;
        strbuf_clear(&draft->name);
        if (token->kind & TOKEN_NORMALIZED)
            status = added_token_normalize(&draft->rules, &nfc, draft->bytes.data + token->content_start,
                                           token->content_length, &draft->name);
        else
            strbuf_add(&draft->name, draft->bytes.data + token->content_start, token->content_length);
        token->start = draft->bytes.length;
        space_marks_add((const unsigned char *)strbuf_text(&draft->name), draft->name.length, &draft->bytes);
        token->length = draft->bytes.length - token->start;
        status = status ? status : strbuf_status(draft->name.failed ? &draft->name : &draft->bytes);
    }
    nfc_scratch_free(&nfc);
    return status;
}

static int draft_finish(struct draft *draft, struct tokenizer **tokenizer) {
    struct token_source *tokens = calloc(draft->size + 1, sizeof *tokens);
    if (!tokens)
        return status_fail(STATUS_MEMORY, "out of memory for %zu tokens", draft->size);
    int status = draft_show_added(draft);
    for (size_t id = 0; id < draft->size && !status; id++) {
        const struct draft_token *token = &draft->tokens[id];
        if (token->is_set)
            tokens[id] = (struct token_source){.bytes = draft->bytes.data + token->start,
                                               .length = token->length,
                                               .kind = token->kind,
                                               .content = draft->bytes.data + token->content_start,
                                               .content_length = token->content_length};
    }
    THEN(status, tokenizer_new(tokens, (int32_t)draft->size, &draft->rules, tokenizer));
    free(tokens);
    return status;
}

static int set_roles(const struct draft *draft, struct tokenizer *tokenizer) {
    for (int role = 0; role < ROLE_COUNT; role++)
        if (draft->roles[role])
            tokenizer->roles[role] = tokenizer_find(tokenizer, draft->roles[role], strlen(draft->roles[role]));
    if (draft->roles[ROLE_EOS] && tokenizer->roles[ROLE_EOS] < 0)
        return status_fail(STATUS_INVALID, "%s: eos_token '%s' is not a token of the vocabulary",
                           draft->files->directory, draft->roles[ROLE_EOS]);
    if (!draft->roles[ROLE_EOS])
        tokenizer->roles[ROLE_EOS] = tokenizer_find(tokenizer, END_OF_TEXT, strlen(END_OF_TEXT));
    int32_t bos = tokenizer->roles[draft->roles[ROLE_BOS] ? ROLE_BOS : ROLE_EOS], eos = tokenizer->roles[ROLE_EOS];
    int status = draft->adds_bos && bos >= 0 ? token_buffer_add(&tokenizer->rules.begin, bos) : STATUS_OK;
    return !status && draft->adds_eos && eos >= 0 ? token_buffer_add(&tokenizer->rules.end, eos) : status;
}

/* Reads the settings next to vocab.json and merges.txt, and the tokens that the files there name. */
static int draft_add_companions(struct draft *draft, const json_t *vocab) {
    const json_t *config = draft->config, *id = json_object_get(vocab, END_OF_TEXT);
    if (json_is_true(json_object_get(config, "add_prefix_space")))
        draft->rules.prefix = PREFIX_SECTIONS;
    draft->adds_bos = json_is_true(json_object_get(config, "add_bos_token"));
    draft->adds_eos = json_is_true(json_object_get(config, "add_eos_token"));
    int status = id ? draft_add_added(draft, vocab, END_OF_TEXT, id, TOKEN_SPECIAL) : STATUS_OK;
    return status ? status : draft_add_named(draft, vocab);
}

/* Finds the token for characters without a token. If every character has one, it may be missing. */
static int find_unk(struct draft *draft, const json_t *name, const json_t *vocab) {
    const json_t *id = json_is_string(name) ? json_object_get(vocab, json_string_value(name)) : NULL;
    draft->rules.has_unk = id;
    draft->rules.unk = (int32_t)json_integer_value(id); /* the vocabulary was checked: it is an id */
    return !name || json_is_null(name) || json_is_string(name)
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "'model.unk_token' is neither a string nor null");
}

/* The post-processor's additions were checked to be ids; this checks that they are tokens. */
static int check_frame(const struct draft *draft) {
    const struct token_buffer *ids[] = {&draft->rules.begin, &draft->rules.end};
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < ids[i]->count; k++)
            if ((size_t)(uint32_t)ids[i]->ids[k] >= draft->size)
                return status_fail(STATUS_INVALID,
                                   "post_processor adds the token id %d, which is not in the vocabulary (0 to %zu)",
                                   ids[i]->ids[k], draft->size - 1);
    return STATUS_OK;
}

/* Keeps the parts that tokenizer_save writes unchanged. */
static int keep_json_parts(const json_t *root, struct tokenizer *tokenizer) {
    int status = STATUS_OK;
    for (int part = 0; part < JSON_PART_COUNT && !status; part++) {
        json_t *value = json_object_get(root, json_part_names[part]);
        json_begin();
        status = json_end(value ? json_incref(value) : json_null(), JSON_ENCODE_ANY, &tokenizer->json_parts[part]);
    }
    return status;
}

static int open_tokenizer_json(struct draft *draft, struct tokenizer **tokenizer) {
    json_t *root;
    char path[PATH_MAX];
    int status = draft_load_json(draft, TOKENIZER_JSON, 0, &root, path);
    TRY(status);
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    if (!json_is_object(model))
        status = status_fail(STATUS_INVALID, "no object 'model'");
    THEN(status, tokenizer_read_rules(root, &draft->rules));
    THEN(status, draft_add_vocab(draft, vocab));
    THEN(status, draft_add_added_array(draft, vocab, json_object_get(root, "added_tokens")));
    THEN(status, find_unk(draft, json_object_get(model, "unk_token"), vocab));
    THEN(status, check_frame(draft));
    if (!status && (status = draft_add_named(draft, vocab))) {
        json_decref(root);
        return status;
    }
    THEN(status, draft_finish(draft, tokenizer));
    THEN(status, keep_json_parts(root, *tokenizer));
    THEN(status, tokenizer_read_json_merges(*tokenizer, json_object_get(model, "merges")));
    THEN(status, tokenizer_find_joins(*tokenizer));
    if (status)
        status_wrap(status, "%s", path);
    json_decref(root);
    return status;
}

static int read_merges_file(const struct draft *draft, struct tokenizer *tokenizer) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, draft->files->directory, tokenizer_file_names[TOKENIZER_MERGES]);
    if (!status && !draft->files->is_there[TOKENIZER_MERGES])
        return status_fail(STATUS_NOT_FOUND, "cannot open %s: no such file", path);
    THEN(status, tokenizer_read_merge_lines(tokenizer, &draft->files->texts[TOKENIZER_MERGES]));
    return status ? status_wrap(status, "%s", path) : STATUS_OK;
}

static int open_vocab_and_merges(struct draft *draft, struct tokenizer **tokenizer) {
    json_t *vocab;
    char path[PATH_MAX];
    TRY(draft_load_json(draft, TOKENIZER_VOCAB, 0, &vocab, path));
    int status = draft_add_vocab(draft, vocab);
    if (status)
        status_wrap(status, "%s", path);
    THEN(status, draft_add_companions(draft, vocab));
    if (!status) {
        status = draft_finish(draft, tokenizer);
        if (status)
            status_wrap(status, "%s", path);
    }
    json_decref(vocab);
    return status ? status : read_merges_file(draft, *tokenizer);
}

static int tell_what_is_missing(const char *directory) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, "tokenizer.model");
    if (!status && !file_is_directory(directory))
        return status_fail(STATUS_NOT_FOUND, "%s has no tokenizer", directory);
    if (!status && file_exists(path))
        return status_fail(STATUS_UNSUPPORTED,
                           "%s is not read; this makes a tokenizer.json of it: python3 -c \"from transformers import "
                           "AutoTokenizer; AutoTokenizer.from_pretrained('%s').save_pretrained('%s')\"",
                           path, directory, directory);
    return status ? status
                  : status_fail(STATUS_NOT_FOUND, "%s: neither tokenizer.json nor vocab.json and merges.txt are there",
                                directory);
}

int tokenizer_open_files(const struct tokenizer_files *files, struct tokenizer **tokenizer) {
    struct draft draft = {.files = files};
    struct tokenizer *opened = NULL;
    int status = draft_read_settings(&draft);
    if (status) {
        /* the error text is set */
    } else if (files->is_there[TOKENIZER_JSON]) {
        status = open_tokenizer_json(&draft, &opened);
    } else if (files->is_there[TOKENIZER_VOCAB]) {
        status = open_vocab_and_merges(&draft, &opened);
    } else {
        status = tell_what_is_missing(files->directory);
    }
    THEN(status, set_roles(&draft, opened));
    draft_free(&draft);
    if (status) {
        tokenizer_close(opened);
        return status;
    }
    *tokenizer = opened;
    return STATUS_OK;
}

int tokenizer_open(const char *directory, struct tokenizer **tokenizer) {
    struct tokenizer_files files;
    TRY(tokenizer_files_read(directory, &files));
    int status = tokenizer_open_files(&files, tokenizer);
    tokenizer_files_free(&files);
    return status;
}
