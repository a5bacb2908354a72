/* Writes a distributed checkpoint of PyTorch. */
#include "base/staging.h"
#include "convert-internal.h"

enum { TEXT_LIMIT = 64 << 20 };

/* Reads a file of the source; "" when there is none. */
static int read_text(const struct source *source, const char *name, struct strbuf *text) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, source->directory, name);
    THEN(status, file_read(path, TEXT_LIMIT, text));
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

/* Writes a GGUF file by way of a model directory, which is removed. */
static int write_file(const struct convert_request *request, struct source *source) {
    struct staging staging = {.mark = -1};
    struct source model = {0};
    struct convert_request as_model = *request;
    char path[PATH_MAX];
    int status = staging_begin(&staging, request->output);
    THEN(status, file_join(path, sizeof path, staging.directory, "model"));
    as_model.to = CONVERT_MODEL;
    as_model.output = path;
    THEN(status, write_model(&as_model, source));
    THEN(status, source_open(path, &model));
    THEN(status, write_dcp(request, &model));
    source_close(&model);
    staging_abort(&staging);
    return status;
}

int write_dcp(const struct convert_request *request, struct source *source) {
    static const char state_name[] = "trainer_state.json";
    if (source->file.tensors)
        return write_file(request, source);
    struct strbuf config = STRBUF_INIT, state = STRBUF_INIT;
    struct tokenizer_files tokenizer = {0};
    int status = read_text(source, "config.json", &config);
    THEN(status, read_text(source, state_name, &state));
    THEN(status, source_read_tokenizer(source->directory, &tokenizer));
    if (!status) {
        struct ckpt_text text = {.text = strbuf_text(&state)};
        snprintf(text.name, sizeof text.name, "%s", state_name);
        status = exchange_write_dcp(&(struct exchange_dcp){.directory = request->output,
                                                           .tensors = source->tensors,
                                                           .files = request->files,
                                                           .config_text = config.length ? config.data : NULL,
                                                           .texts = &text,
                                                           .text_count = state.length > 0,
                                                           .tokenizer = &tokenizer});
        tokenizer_files_free(&tokenizer);
    }
    strbuf_free(&config);
    strbuf_free(&state);
    return status;
}
