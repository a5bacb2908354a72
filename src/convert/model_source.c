/* The tensors of a source as a model's parameters: its configuration, the prefix of its names, its tokenizer. */
#include "convert-internal.h"

#include "base/json.h"
#include "ckpt/codec.h"

enum { TEXT_LIMIT = 64 << 20 };

/* ---- forms ---- */

static bool is_any(const struct source *source) {
    return source;
}

static int check_files(const struct model_source *m, const struct ckpt_array *arrays, int count) {
    return ckpt_check(m->source->tensors, &m->table, arrays, count);
}

static int read_files(const struct model_source *m, const struct ckpt_array *array, const struct ckpt_block *block,
                      void *values) {
    return ckpt_read_block(m->source->tensors, &m->table, array, block, values);
}

static const struct model_form file_form = {
    .is_there = is_any, .check = check_files, .read = read_files, .is_as_in_files = true};
/* The first that fits is taken. */
static const struct model_form *const forms[] = {&megatron_form, &file_form};

/* ---- the configuration ---- */

int model_source_make_config(struct model_source *m, const struct model_config *config, enum dtype dtype) {
    char *text = NULL;
    int status = model_write_config(config, dtype, &m->ends, &text);
    strbuf_clear(&m->config_text);
    if (!status)
        strbuf_add_text(&m->config_text, text);
    free(text);
    return status ? status : strbuf_status(&m->config_text);
}

/* Reads the config.json that is named, or the source's, or what the arguments make. */
static int read_config(const struct convert_request *request, struct model_source *m) {
    char where[PATH_MAX];
    int status = request->config ? STATUS_OK : file_join(where, sizeof where, m->source->directory, "config.json");
    if (request->config)
        snprintf(where, sizeof where, "%s", request->config);
    else if (!status && m->form->make_config && !file_exists(where))
        status = m->form->make_config(m);
    THEN_IF(status, !m->config_text.length, file_read(where, TEXT_LIMIT, &m->config_text));
    if (status == STATUS_NOT_FOUND && !request->config)
        return status_fail(status, "%s has no config.json: name one with --config", m->source->directory);
    THEN(status, model_read_config(strbuf_text(&m->config_text), where, &m->config, &m->config_dtype, &m->ends));
    return status ? status : model_describe(&m->config, &m->table);
}

/* ---- the prefix of names ---- */

/* True when there is a tensor of this parameter's name, with or without the family's prefix. */
static bool has_name(const struct model_source *m, const char *prefix, const char *name) {
    char full[3 * PARAM_NAME_BYTES];
    snprintf(full, sizeof full, "%s%s%s", prefix, m->table.files->prefix, name);
    if (ckpt_has_tensor(m->source->tensors, full))
        return true;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return ckpt_has_tensor(m->source->tensors, full);
}

/* True when the source has all parameters after this prefix. Those that are zero may be absent, and a tied embedding
 * may have the head's name. */
static bool fits(const struct model_source *m, const char *prefix) {
    const struct param_files *files = m->table.files;
    for (int i = 0; i < m->table.count; i++)
        for (int s = 0; s < m->table.rows[i].slice_count; s++) {
            const char *name = m->table.rows[i].slices[s].name;
            bool is_there = m->table.rows[i].is_zero || has_name(m, prefix, name) ||
                            (!strcmp(name, files->embedding) && has_name(m, prefix, files->head));
            if (!is_there)
                return false;
        }
    return true;
}

/* Finds the one prefix that fits among the beginnings of names that end with the last norm's. */
static int find_prefix(const struct model_source *m, char prefix[PARAM_NAME_BYTES]) {
    const struct ckpt_tensors *tensors = m->source->tensors;
    int found = 0;
    const char *wanted = m->table.rows[m->table.count - 1].slices[0].name;
    *prefix = 0;
    if (fits(m, ""))
        return STATUS_OK;
    for (size_t i = 0; i < ckpt_count(tensors); i++) {
        char candidate[PARAM_NAME_BYTES];
        const char *name = ckpt_tensor_at(tensors, i)->name;
        size_t length = strlen(name), end = strlen(wanted), family = strlen(m->table.files->prefix);
        if (length <= end || length >= sizeof candidate || strcmp(name + length - end, wanted) ||
            ckpt_optimizer_prefix(name))
            continue;
        snprintf(candidate, sizeof candidate, "%.*s", (int)(length - end), name);
        length -= end;
        if (family && length >= family && !strcmp(candidate + length - family, m->table.files->prefix))
            candidate[length - family] = 0;
        if (!*candidate || !fits(m, candidate))
            continue;
        if (found++)
            return status_fail(STATUS_INVALID,
                               "%s: all parameters are there after '%s' and after '%s': choose with --prefix",
                               m->source->directory, prefix, candidate);
        snprintf(prefix, PARAM_NAME_BYTES, "%s", candidate);
    }
    return STATUS_OK; /* none: the check of names says what is missing */
}

static int strip_prefix(const struct convert_request *request, struct model_source *m) {
    char prefix[PARAM_NAME_BYTES];
    int status = STATUS_OK;
    if (request->prefix)
        snprintf(prefix, sizeof prefix, "%s", request->prefix);
    else
        status = find_prefix(m, prefix);
    if (status || !*prefix)
        return status;
    size_t dropped = ckpt_strip(m->source->tensors, prefix);
    log_info("%s: names begin with '%s'; %zu tensors have other names and are skipped", m->source->directory, prefix,
             dropped);
    return STATUS_OK;
}

/* ---- texts ---- */

/* Reads trainer_state.json without its digests, which are of other files. */
static int read_state(struct model_source *m) {
    char path[PATH_MAX], *text = NULL;
    json_t *state = NULL;
    json_error_t error;
    struct strbuf found = STRBUF_INIT;
    int status = file_join(path, sizeof path, m->source->directory, "trainer_state.json");
    THEN(status, file_read(path, TEXT_LIMIT, &found));
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    THEN(status, json_read(strbuf_text(&found), found.length, JSON_REJECT_DUPLICATES, &state, &error));
    if (status == STATUS_INVALID && !state)
        status = status_fail(STATUS_INVALID, "%s: line %d: expected JSON", path, error.line);
    if (!status) {
        json_begin();
        json_object_del(state, "files");
        json_object_del(state, "digest");
        status = json_end(state, JSON_INDENT(2), &text);
    }
    if (!status)
        strbuf_add_text(&m->state_text, text);
    free(text);
    strbuf_free(&found);
    return status ? status : strbuf_status(&m->state_text);
}

/* Keeps bf16 where the largest weight has it. */
static void choose_type(const struct convert_request *request, struct model_source *m) {
    const struct ckpt_tensors *tensors = m->source->tensors;
    enum dtype found = DTYPE_F32;
    int64_t most = 0;
    for (size_t i = 0; i < ckpt_count(tensors); i++) {
        const struct safetensor *tensor = ckpt_tensor_at(tensors, i);
        if (tensor->elements > most && !ckpt_optimizer_prefix(tensor->name)) {
            most = tensor->elements;
            found = tensor->dtype;
        }
    }
    bool is_exact = found == DTYPE_BF16 && !ckpt_quantization(tensors)->method;
    m->dtype = convert_dtype(request, is_exact);
}

static int open_directory(const struct convert_request *request, struct model_source *m) {
    TRY(read_config(request, m));
    if (m->form->is_as_in_files)
        TRY(strip_prefix(request, m));
    choose_type(request, m);
    if (m->config_dtype != m->dtype || (m->source->tensors && ckpt_quantization(m->source->tensors)->method))
        TRY(model_source_make_config(m, &m->config, m->dtype));
    TRY(read_state(m));
    return source_read_tokenizer(request->tokenizer ? request->tokenizer : m->source->directory, &m->tokenizer);
}

static int open_file(const struct convert_request *request, struct model_source *m) {
    const struct pretrained *file = &m->source->file;
    m->config = file->config;
    m->ends = file->ends;
    choose_type(request, m);
    TRY(model_source_make_config(m, &m->config, m->dtype));
    TRY(model_describe(&m->config, &m->table));
    log_info("%s: %s, %.1f million parameters, most of them %s; they become %s", request->from,
             model_family(&m->config)->name, (double)param_table_elements(&m->table, false) / 1e6, file->weights,
             dtype_name(m->dtype));
    return source_read_tokenizer(m->source->directory, &m->tokenizer);
}

int model_source_open(const struct convert_request *request, struct source *source, struct model_source *m) {
    const struct model_form *const *form = forms;
    while (!(*form)->is_there(source))
        form++;
    *m = (struct model_source){.source = source, .form = *form};
    return source->file.tensors ? open_file(request, m) : open_directory(request, m);
}

void model_source_close(struct model_source *m) {
    strbuf_free(&m->config_text);
    strbuf_free(&m->state_text);
    tokenizer_files_free(&m->tokenizer);
    param_table_free(&m->table);
}

int model_source_check(const struct model_source *m, const struct ckpt_array *arrays, int count) {
    return m->form->check(m, arrays, count);
}

/* Reads fp32 and rounds to fp16. */
static int get_rounded(const struct model_array *array, const struct ckpt_block *block, uint16_t *out) {
    const struct model_source *m = array->model;
    struct ckpt_array fp32 = array->array;
    int64_t count = block->rows * block->columns;
    float *values = malloc((size_t)count * sizeof *values + 1);
    fp32.dtype = DTYPE_F32;
    int status = values ? m->form->read(m, &fp32, block, values) : status_no_memory();
    for (int64_t i = 0; i < count && !status; i++)
        out[i] = f16_from_float(values[i]);
    free(values);
    if (!status && dtype_find_not_finite(DTYPE_F16, out, count) >= 0)
        return status_fail(STATUS_INVALID, "%s: %s has numbers that are not finite in %s", m->source->directory,
                           m->table.rows[block->param].name, dtype_name(DTYPE_F16));
    return status;
}

int model_array_get(void *context, const struct ckpt_block *block, void *values) {
    const struct model_array *array = context;
    if (array->array.dtype == DTYPE_F16)
        return get_rounded(array, block, values);
    return array->model->form->read(array->model, &array->array, block, values);
}
