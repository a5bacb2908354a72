/* A GGUF file as a model. */
#include "convert-internal.h"

static bool is_there(const struct source *source) {
    return source->gguf;
}

/* The configuration is read back, so that none is written that could not be opened. */
static int open_model(const struct convert_request *request, struct model_source *m) {
    const struct gguf *file = m->source->gguf;
    struct model_config again;
    struct model_text_ends ends;
    TRY(gguf_read_config(file, &m->config));
    TRY(model_describe(&m->config, &m->table));
    m->dtype = convert_dtype(request, !strcmp(gguf_main_type(file), "BF16"));
    TRY(gguf_weights_open(file, &m->config, &m->table, &m->weights));
    TRY(gguf_read_tokenizer(file, &m->config, &m->tokenizer, &m->ends));
    TRY(model_source_make_config(m, &m->config, m->dtype));
    TRY(model_read_config(strbuf_text(&m->config_text), request->from, &again, &m->config_dtype, &ends));
    log_info("%s: %s, %.1f million parameters, most of them %s; they become %s", request->from,
             model_family(&m->config)->name, (double)param_table_elements(&m->table, false) / 1e6, gguf_main_type(file),
             dtype_name(m->dtype));
    return STATUS_OK;
}

static int read_block(const struct model_source *m, const struct ckpt_array *array, const struct ckpt_block *block,
                      void *values) {
    return gguf_weights_read(&m->weights, block, values);
}

const struct model_form gguf_form = {.is_there = is_there, .open = open_model, .read = read_block, .is_fp32 = true};
