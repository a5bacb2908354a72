/* The tensors of Megatron core as the parameters of a model. All layers are one tensor, whose first axis is the layer.
 * Each linear is [out, in], as ours are; queries, keys and values are fused by group: its queries, its key, its value.
 */
#include "convert-internal.h"

static const struct {
    const char *ours, *theirs;
} modules[] = {
    {"embedding.token", "embedding.word_embeddings."},
    {"embedding.position", "embedding.position_embeddings."},
    {"norm1", "decoder.layers.self_attention.linear_qkv.layer_norm_"},
    {"attention.qkv", "decoder.layers.self_attention.linear_qkv."},
    {"attention.q_norm", "decoder.layers.self_attention.q_layernorm."},
    {"attention.k_norm", "decoder.layers.self_attention.k_layernorm."},
    {"attention.projection", "decoder.layers.self_attention.linear_proj."},
    {"norm2", "decoder.layers.mlp.linear_fc1.layer_norm_"},
    {"mlp.fc1", "decoder.layers.mlp.linear_fc1."},
    {"mlp.fc2", "decoder.layers.mlp.linear_fc2."},
    {"final_norm", "decoder.final_layernorm."},
    {"head", "output_layer."},
};
static const char embedding_name[] = "embedding.word_embeddings.weight";

void megatron_find_place(const struct param *param, struct megatron_place *place) {
    struct param_words words = param_split(param->name);
    size_t i = 0;
    while (!param_is_of(&words, modules[i].ours))
        i++;
    *place = (struct megatron_place){.layer = words.layer};
    snprintf(place->name, sizeof place->name, "%s%s", modules[i].theirs, words.kind);
    place->is_qkv = param->place == ATTACH_QKV;
    place->has_more_rows = param->is_embedding || !strcmp(modules[i].ours, "head"); /* of the padded vocabulary */
}

static bool is_there(const struct source *source) {
    return source->tensors && ckpt_has_tensor(source->tensors, embedding_name) &&
           ckpt_has_tensor(source->tensors, "decoder.layers.mlp.linear_fc1.weight");
}

/* Makes config.json from the arguments of the run, if there are any. */
static int make_config(struct model_source *m) {
    struct model_config config;
    bool has_arguments;
    int status = megatron_read_config(m->source->directory, &config, &has_arguments);
    return status || !has_arguments ? status : model_source_make_config(m, &config, DTYPE_F32);
}

static int check_param(const struct model_source *m, const struct param *param, const struct safetensor *tensor,
                       const struct megatron_place *place) {
    int64_t expected[3] = {m->config.num_layers, param->shape[0], param->shape[1]};
    const int64_t *shape = place->layer >= 0 ? expected : expected + 1;
    int dims = param->dims + (place->layer >= 0);
    bool fits = tensor->dims == dims;
    for (int i = 0; i < dims && fits; i++)
        fits = tensor->shape[i] == shape[i] || (i == 0 && place->has_more_rows && tensor->shape[0] > shape[0]);
    if (fits)
        return STATUS_OK;
    struct strbuf shapes = STRBUF_INIT;
    for (int i = 0; i < tensor->dims; i++)
        strbuf_format(&shapes, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    strbuf_add_text(&shapes, "], but its arguments make it [");
    for (int i = 0; i < dims; i++)
        strbuf_format(&shapes, "%s%lld", i ? ", " : "", (long long)shape[i]);
    int status = status_fail(STATUS_INVALID, "%s: tensor '%s' has the shape [%s]", m->source->directory, place->name,
                             strbuf_text(&shapes));
    strbuf_free(&shapes);
    return status;
}

static int check(const struct model_source *m, const struct ckpt_array *arrays, int count) {
    size_t used = 0;
    for (int i = 0; i < m->table.count; i++) {
        const struct param *param = &m->table.rows[i];
        struct megatron_place place;
        megatron_find_place(param, &place);
        const struct safetensor *tensor = ckpt_find_tensor(m->source->tensors, place.name);
        if (!tensor && param->is_zero)
            continue;
        if (!tensor)
            return status_fail(STATUS_INVALID, "%s: missing tensor %s", m->source->directory, place.name);
        TRY(check_param(m, param, tensor, &place));
        used += place.layer <= 0;
    }
    if (ckpt_count(m->source->tensors) > used)
        log_info("%s: %zu tensors are not parameters of a model and are skipped", m->source->directory,
                 ckpt_count(m->source->tensors) - used);
    return STATUS_OK;
}

/* Returns the row of the fused tensor that has a row of ours: all queries, all keys, all values. */
static int64_t fused_row(const struct model_config *config, int64_t row) {
    struct model_widths w = model_widths(config, 1);
    int64_t in_group = w.heads / w.query_groups, head = row / w.head, place = row % w.head;
    if (row < w.q)
        return (head / in_group * (in_group + 2) + head % in_group) * w.head + place;
    bool is_value = row >= w.q + w.kv;
    head = (row - w.q - (is_value ? w.kv : 0)) / w.head;
    return (head * (in_group + 2) + in_group + is_value) * w.head + place;
}

int64_t megatron_our_row(const struct model_config *config, int64_t fused, int64_t *rows) {
    struct model_widths w = model_widths(config, 1);
    int64_t in_group = w.heads / w.query_groups, head = fused / w.head, place = fused % w.head;
    int64_t group = head / (in_group + 2), number = head % (in_group + 2);
    *rows = (number < in_group ? in_group - number : 1) * w.head - place;
    if (number < in_group)
        return (group * in_group + number) * w.head + place;
    return w.q + (number > in_group ? w.kv : 0) + group * w.head + place;
}

static int read_block(const struct model_source *m, const struct ckpt_array *array, const struct ckpt_block *block,
                      void *values) {
    enum dtype dtype = array->dtype;
    const struct param *param = &m->table.rows[block->param];
    struct megatron_place place;
    megatron_find_place(param, &place);
    int64_t columns = param->shape[1], first = place.layer > 0 ? place.layer * param->shape[0] : 0;
    int64_t bytes = block->columns * (int64_t)dtype_bytes(dtype), head = model_widths(&m->config, 1).head;
    int status = STATUS_OK;
    if (!ckpt_has_tensor(m->source->tensors, place.name)) { /* a parameter that is zero */
        memset(values, 0, (size_t)(block->rows * bytes));
        return STATUS_OK;
    }
    for (int64_t i = 0, rows; i < block->rows && !status; i += rows) {
        int64_t row = block->row + i, left = block->rows - i;
        rows = block->columns < columns ? 1 : place.is_qkv && head - row % head < left ? head - row % head : left;
        int64_t from = first + (place.is_qkv ? fused_row(&m->config, row) : row);
        status = ckpt_read_numbers(m->source->tensors, place.name, from * columns + block->column,
                                   rows * block->columns, dtype, (char *)values + i * bytes);
    }
    return status;
}

const struct model_form megatron_form = {
    .is_there = is_there, .make_config = make_config, .check = check, .read = read_block};
