/* Finds the kind of a path: the first that fits. */
#include "convert-internal.h"

#include "ckpt/codec.h"

static int open_dcp(struct source *source) {
    int64_t objects;
    source->kind = "a distributed checkpoint of PyTorch";
    int status = exchange_open_dcp(source->directory, &source->tensors, &objects);
    if (!status && objects)
        log_info("%s: %lld values are no tensors and are skipped", source->directory, (long long)objects);
    return status;
}

/* Makes weights in few bits readable, as the directory's config.json says, if there is one. */
static int attach_codec(struct source *source) {
    char where[PATH_MAX];
    struct strbuf text = STRBUF_INIT;
    int status = file_join(where, sizeof where, source->directory, "config.json");
    if (!status && file_exists(where))
        status = ckpt_read_config(source->directory, &text);
    THEN_IF(status, text.length, ckpt_attach_codec(source->tensors, strbuf_text(&text), where));
    strbuf_free(&text);
    return status;
}

/* A model directory, or the newest of several checkpoints. */
static int open_model(const char *path, struct source *source) {
    struct ckpt_tensors *optimizer = NULL;
    source->kind = "a model directory";
    TRY(ckpt_resolve_model(path, source->directory, sizeof source->directory));
    TRY(ckpt_open_model(source->directory, &source->tensors));
    TRY(attach_codec(source));
    int status = ckpt_open_optimizer(source->directory, &optimizer);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    source->kind = "a checkpoint";
    THEN(status, ckpt_check_state(source->directory));
    THEN(status, ckpt_join(source->tensors, optimizer));
    ckpt_close(optimizer);
    return status;
}

/* Finds the newest checkpoint of a run of Megatron, which names it in a file; any other directory stays what it is. */
static int find_newest(const char *path, char newest[PATH_MAX]) {
    static const char tracker[] = "latest_checkpointed_iteration.txt";
    char file[PATH_MAX], name[32], *end;
    struct strbuf text = STRBUF_INIT;
    snprintf(newest, PATH_MAX, "%s", path);
    int status = file_join(file, sizeof file, path, tracker);
    THEN(status, file_read(file, 64, &text));
    if (!status) {
        long long iteration = strtoll(strbuf_text(&text), &end, 10);
        bool is_number = end > strbuf_text(&text) && strspn(end, " \n") == strlen(end) && iteration >= 0;
        snprintf(name, sizeof name, is_number ? "iter_%07lld" : "release", iteration);
        if (!is_number && strncmp(strbuf_text(&text), name, strlen(name)) != 0)
            status = status_fail(STATUS_INVALID, "%s: expected a number or 'release'", file);
    }
    THEN(status, file_join(newest, PATH_MAX, path, name));
    strbuf_free(&text);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

int source_open(const char *path, struct source *source) {
    bool is_sharded;
    char newest[PATH_MAX], config[PATH_MAX];
    *source = (struct source){0};
    if (file_exists(path) && !file_is_directory(path)) {
        snprintf(source->directory, sizeof source->directory, "%s", path);
        int status = pretrained_open(path, NULL, &source->file);
        source->tensors = source->file.tensors;
        return status;
    }
    TRY(find_newest(path, newest));
    snprintf(source->directory, sizeof source->directory, "%s", newest);
    if (exchange_is_dcp(newest))
        return open_dcp(source);
    bool has_files = exchange_has_safetensors(newest, &is_sharded);
    bool has_config = !file_join(config, sizeof config, newest, "config.json") && file_exists(config);
    if (!has_files || (!is_sharded && has_config))
        return open_model(newest, source);
    source->kind = "files of safetensors";
    return exchange_open_safetensors(source->directory, &source->tensors);
}

int source_read_tokenizer(const char *directory, struct tokenizer_files *files) {
    struct tokenizer *tokenizer = NULL;
    int status = pretrained_read_tokenizer(directory, files);
    TRY(status);
    if (files->is_there[TOKENIZER_JSON] || files->is_there[TOKENIZER_VOCAB])
        status = tokenizer_open_files(files, &tokenizer);
    tokenizer_close(tokenizer);
    if (status == STATUS_UNSUPPORTED)
        status = STATUS_OK;
    if (status)
        tokenizer_files_free(files);
    return status;
}

void source_close(struct source *source) {
    if (!source->file.tensors)
        ckpt_close(source->tensors);
    pretrained_close(&source->file);
}
