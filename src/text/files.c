/* The files of a tokenizer as bytes, for opening and for copying into a model directory. */
#include "text.h"

enum { MAX_FILE = 1 << 28 };

const char *const tokenizer_file_names[TOKENIZER_FILE_COUNT] = {
    [TOKENIZER_JSON] = "tokenizer.json",
    [TOKENIZER_VOCAB] = "vocab.json",
    [TOKENIZER_MERGES] = "merges.txt",
    [TOKENIZER_CONFIG] = "tokenizer_config.json",
    [TOKENIZER_SPECIAL] = "special_tokens_map.json",
    [TOKENIZER_ADDED] = "added_tokens.json",
    [TOKENIZER_TEMPLATE] = "chat_template.jinja",
    [TOKENIZER_GENERATION] = "generation_config.json",
};

int tokenizer_files_read(const char *directory, struct tokenizer_files *files) {
    *files = (struct tokenizer_files){0};
    if (!file_is_directory(directory))
        return status_fail(STATUS_NOT_FOUND, "%s is not a directory; a tokenizer's files are looked for in one",
                           directory);
    int status = STATUS_OK;
    if (!(files->directory = strdup(directory)))
        status = status_no_memory();
    for (int i = 0; i < TOKENIZER_FILE_COUNT && !status; i++) {
        char path[PATH_MAX];
        status = file_join(path, sizeof path, directory, tokenizer_file_names[i]);
        THEN(status, file_read(path, MAX_FILE, &files->texts[i]));
        files->is_there[i] = !status;
        if (status == STATUS_NOT_FOUND)
            status = STATUS_OK;
    }
    if (status)
        tokenizer_files_free(files);
    return status;
}

void tokenizer_files_free(struct tokenizer_files *files) {
    for (int i = 0; i < TOKENIZER_FILE_COUNT; i++)
        strbuf_free(&files->texts[i]);
    free(files->directory);
    *files = (struct tokenizer_files){0};
}

int tokenizer_files_write(const struct tokenizer_files *files, const char *directory) {
    int status = STATUS_OK;
    for (int i = 0; i < TOKENIZER_FILE_COUNT && !status; i++) {
        char path[PATH_MAX];
        if (!files->is_there[i])
            continue;
        status = file_join(path, sizeof path, directory, tokenizer_file_names[i]);
        THEN(status, file_write_atomic(path, strbuf_text(&files->texts[i]), files->texts[i].length));
    }
    return status;
}

int tokenizer_files_facts(const struct tokenizer_files *files, struct facts *facts) {
    int status = STATUS_OK;
    for (int i = 0; i < TOKENIZER_FILE_COUNT && !status; i++) {
        char name[64], path[PATH_MAX];
        const struct strbuf *text = &files->texts[i];
        snprintf(name, sizeof name, "the tokenizer's %s", tokenizer_file_names[i]);
        if (!files->is_there[i])
            status = facts_add(facts, FACT_FILES, name, "not there", NULL);
        else if (!(status = file_join(path, sizeof path, files->directory, tokenizer_file_names[i])))
            status = facts_add_digest(facts, name, path, digest_bytes(DIGEST_START, strbuf_text(text), text->length));
    }
    return status;
}

bool tokenizer_is_present(const char *directory) {
    bool is_there[TOKENIZER_MERGES + 1];
    for (int i = 0; i <= TOKENIZER_MERGES; i++) {
        char path[PATH_MAX];
        is_there[i] = !file_join(path, sizeof path, directory, tokenizer_file_names[i]) && file_exists(path);
    }
    return is_there[TOKENIZER_JSON] || (is_there[TOKENIZER_VOCAB] && is_there[TOKENIZER_MERGES]);
}
