/* A GGUF file into a model directory. */
#include "convert-internal.h"

#include <stdlib.h>
#include <string.h>

struct conversion {
    const struct convert_request *request;
    struct gguf *file;
    struct model_config config;
    struct model_text_ends ends;
    struct tokenizer_files tokenizer;
    struct param_table table;
    struct gguf_weights weights;
    char *config_text;
};

static void choose_type(struct conversion *c) {
    bool is_bf16 = !strcmp(gguf_main_type(c->file), "BF16");
    c->weights.dtype = convert_dtype(c->request, is_bf16);
}

/* Makes config.json and reads it back, so that no configuration is written that could not be opened. */
static int make_config(struct conversion *c) {
    struct model_config again;
    struct model_text_ends ends;
    enum dtype dtype;
    int status = model_write_config(&c->config, c->weights.dtype, &c->ends, &c->config_text);
    return status ? status : model_read_config(c->config_text, c->request->from, &again, &dtype, &ends);
}

static int read_all(struct conversion *c) {
    TRY(gguf_open(c->request->from, &c->file));
    TRY(gguf_read_config(c->file, &c->config));
    TRY(model_describe(&c->config, &c->table));
    choose_type(c);
    int status = gguf_weights_open(c->file, &c->config, &c->table, c->weights.dtype, &c->weights);
    THEN(status, gguf_read_tokenizer(c->file, &c->config, &c->tokenizer, &c->ends));
    return status ? status : make_config(c);
}

static int write_all(struct conversion *c) {
    struct ckpt_array weights = {
        .prefix = "", .dtype = c->weights.dtype, .get = gguf_weights_get, .context = &c->weights};
    struct ckpt_model model = {.table = &c->table,
                               .weights = &weights,
                               .config_text = c->config_text,
                               .tokenizer = &c->tokenizer,
                               .max_shard_bytes = c->request->max_shard_bytes};
    log_info("%s: %s, %.1f million parameters, most of them %s; they become %s", c->request->from,
             model_family(&c->config)->name, (double)param_table_elements(&c->table, false) / 1e6,
             gguf_main_type(c->file), dtype_name(c->weights.dtype));
    return ckpt_write_model(c->request->output, &model);
}

int gguf_to_model(const struct convert_request *request) {
    struct conversion c = {.request = request};
    int status = read_all(&c);
    THEN(status, write_all(&c));
    free(c.config_text);
    gguf_weights_close(&c.weights);
    tokenizer_files_free(&c.tokenizer);
    param_table_free(&c.table);
    gguf_close(c.file);
    return status;
}
