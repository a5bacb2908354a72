/* The table of the model's parameters, with our names and the names in its family's files.
 *
 * If a family's files have a bias for every linear and the model has none, the table still has rows for the biases.
 * They are zero and frozen, because `transformers` needs them in the files. */
#include "model/family.h"

#include <math.h>

struct describer {
    const struct model_config *config;
    const struct model_family *family;
    struct param_table *table;
    struct model_projection projections[MODEL_MAX_PROJECTIONS];
    int status;
};

struct model_widths model_widths(const struct model_config *config, int tensors) {
    int64_t heads = config->num_attention_heads, groups = config->num_query_groups;
    struct model_widths widths = {
        .head = config->kv_channels ? config->kv_channels
                : heads             ? config->hidden_size / heads
                                    : 0,
        .heads = heads / tensors,
        .query_groups = groups && groups < tensors ? 1 : groups / tensors,
        .ffn = config->ffn_hidden_size / tensors,
    };
    widths.q = widths.heads * widths.head;
    widths.kv = widths.query_groups * widths.head;
    widths.qkv = widths.q + 2 * widths.kv;
    widths.fc1 = config->swiglu ? 2 * widths.ffn : widths.ffn;
    return widths;
}

/* Returns where the part of a place's columns that starts at `column` starts on each rank. Projections consist of whole
 * parts, and each part is cut separately. */
static int64_t local_column(const struct model_config *config, int tensors, enum attach_place place, int64_t column) {
    struct model_widths whole = model_widths(config, 1), local = model_widths(config, tensors);
    if (model_linear(place).split != LINEAR_COLUMN)
        return column;
    if (place != ATTACH_QKV)
        return column / tensors;
    return column < whole.q ? 0 : column == whole.q ? local.q : column == whole.qkv ? local.qkv : local.q + local.kv;
}

struct model_range model_range(const struct model_config *config, int tensors, const struct model_projection *p) {
    int64_t first = local_column(config, tensors, p->place, p->first);
    return (struct model_range){first, local_column(config, tensors, p->place, p->first + p->out) - first};
}

bool model_has_bias(const struct model_config *config, enum attach_place place) {
    bool is_own = place == ATTACH_QKV          ? config->add_qkv_bias
                  : place == ATTACH_PROJECTION ? config->add_projection_bias
                                               : config->add_mlp_bias;
    return config->add_bias_linear || is_own;
}

struct model_linear model_linear(enum attach_place place) {
    static const struct model_linear linears[ATTACH_PLACE_COUNT] = {
        [ATTACH_QKV] = {"attention.qkv", LINEAR_COLUMN},
        [ATTACH_PROJECTION] = {"attention.projection", LINEAR_ROW},
        [ATTACH_FC1] = {"mlp.fc1", LINEAR_COLUMN},
        [ATTACH_FC2] = {"mlp.fc2", LINEAR_ROW},
    };
    return linears[place];
}

static void add(struct describer *d, const struct param *row) {
    int id = d->status ? d->status : param_table_add(d->table, row);
    d->status = id < 0 ? id : STATUS_OK;
}

static const char *kind(bool is_bias) {
    return is_bias ? "bias" : "weight";
}

/* "layers.3.norm1.weight"; layer below 0: none. */
static void name(char out[PARAM_NAME_BYTES], const char *layers, int64_t layer, const char *module, bool is_bias) {
    if (layer >= 0)
        snprintf(out, PARAM_NAME_BYTES, "%s.%lld.%s.%s", layers, (long long)layer, module, kind(is_bias));
    else
        snprintf(out, PARAM_NAME_BYTES, "%s.%s", module, kind(is_bias));
}

static void add_table(struct describer *d, const char *ours, const char *file, int64_t entries, int layer, bool is_head,
                      bool is_embedding) {
    struct param row = {
        .dims = 2,
        .shape = {entries, d->config->hidden_size},
        .shard = is_head ? PARAM_SHARD_AXIS0 : PARAM_REPLICATED,
        .init = PARAM_INIT_NORMAL,
        .init_std = (float)d->config->init_method_std,
        .decays = true,
        .is_trainable = true,
        .is_linear = is_head && (!is_embedding || !d->config->untie_embeddings_and_output_weights),
        .is_embedding = is_embedding,
        .layer = layer,
        .slice_count = 1,
        .slices = {{.rows = entries, .file_rows = entries}},
    };
    name(row.name, NULL, -1, ours, false);
    name(row.slices[0].name, NULL, -1, file, false);
    add(d, &row);
}

/* Adds a norm over `columns` columns. In a norm of heads, each tensor rank has other heads, so it computes a part of
 * the gradient. */
static void add_norm(struct describer *d, int64_t layer, const char *ours, const char *file, int64_t columns) {
    bool has_bias = d->config->normalization == NORMALIZATION_LAYER;
    for (int is_bias = 0; is_bias <= has_bias; is_bias++) {
        struct param row = {
            .dims = 1,
            .shape = {columns, 1},
            .init = is_bias ? PARAM_INIT_ZERO : PARAM_INIT_ONE,
            .is_trainable = true,
            .layer = (int)(layer >= 0 ? layer : d->config->num_layers),
            .slice_count = 1,
            .slices = {{.rows = columns, .file_rows = columns}},
        };
        name(row.name, "layers", layer, ours, is_bias);
        name(row.slices[0].name, d->family->layers, layer, file, is_bias);
        add(d, &row);
    }
}

/* Keys and values have at most as many parts as heads. */
int model_projection_slices(const struct model_config *config, const struct model_projection *p,
                            struct param_slice slices[PARAM_MAX_SLICES]) {
    int64_t q = model_widths(config, 1).q, row = 0;
    for (int i = 0; i < p->parts; i++) {
        int64_t rows = p->parts > 1 ? p->part[i] : p->out;
        bool is_kv = p->place == ATTACH_QKV && p->first + row >= q;
        slices[i] = (struct param_slice){.row = row,
                                         .rows = rows,
                                         .file_start = row,
                                         .file_rows = p->out,
                                         .most_parts = is_kv ? config->num_query_groups : 0};
        row += rows;
    }
    return p->parts;
}

/* Adds the slices of a projection after those of others. */
static void add_slices(const struct describer *d, int64_t layer, const struct model_projection *p, bool is_bias,
                       struct param *row) {
    struct param_slice *slices = &row->slices[row->slice_count];
    int count = model_projection_slices(d->config, p, slices);
    for (int i = 0; i < count; i++) {
        slices[i].row += p->first;
        slices[i].is_transposed = d->family->is_transposed && !is_bias;
        name(slices[i].name, d->family->layers, layer, p->module, is_bias);
    }
    row->slice_count += count;
}

/* Adds a linear [out, in] and its bias. */
static void add_linear(struct describer *d, int64_t layer, enum attach_place place, double std) {
    struct model_linear linear = model_linear(place);
    bool has_bias = model_has_bias(d->config, place);
    for (int is_bias = 0; is_bias <= (has_bias || d->family->keeps_biases); is_bias++) {
        struct param row = {
            .dims = is_bias ? 1 : 2,
            .shape = {0, 1},
            .shard = linear.split == LINEAR_COLUMN ? PARAM_SHARD_AXIS0
                     : is_bias                     ? PARAM_REPLICATED
                                                   : PARAM_SHARD_AXIS1,
            .init = is_bias ? PARAM_INIT_ZERO : PARAM_INIT_NORMAL,
            .init_std = (float)std,
            .decays = !is_bias,
            .is_trainable = !is_bias || has_bias,
            .is_zero = is_bias && !has_bias,
            .is_linear = !is_bias,
            .layer = (int)layer,
            .place = place,
        };
        name(row.name, "layers", layer, linear.name, is_bias);
        for (int i = 0; i < d->family->projection_count; i++) {
            const struct model_projection *p = &d->projections[i];
            if (p->place != place)
                continue;
            add_slices(d, layer, p, is_bias, &row);
            row.shape[0] += p->out;
            row.shape[1] = is_bias ? 1 : p->in;
        }
        add(d, &row);
    }
}

int model_find_linear(const struct param_table *table, int64_t layer, enum attach_place place, bool is_bias) {
    for (int i = 0; i < table->count; i++) {
        const struct param *row = &table->rows[i];
        bool is_head = row->is_linear && !row->place && !is_bias; /* a linear of no layer */
        bool is_there = row->layer == layer && row->place == (int)place && (row->dims == 1) == is_bias;
        if (place == ATTACH_HEAD ? is_head : is_there)
            return i;
    }
    return PARAM_NONE;
}

int model_describe(const struct model_config *config, struct param_table *table) {
    const struct model_family *family = model_family(config);
    struct describer d = {.config = config, .family = family, .table = table};
    int64_t C = config->hidden_size, D = model_widths(config, 1).head;
    double std = config->init_method_std, residual_std = std / sqrt(2.0 * (double)config->num_layers);
    family->projections(config, d.projections);
    table->files = &family->files;
    add_table(&d, "embedding.token", family->modules.token, config->vocab_size, -1, true, true);
    if (config->position_embedding == POSITION_LEARNED)
        add_table(&d, "embedding.position", family->modules.position, config->max_position_embeddings, -1, false, true);
    for (int64_t layer = 0; layer < config->num_layers; layer++) {
        add_norm(&d, layer, "norm1", family->modules.norm1, C);
        add_linear(&d, layer, ATTACH_QKV, std);
        if (config->qk_layernorm) {
            add_norm(&d, layer, "attention.q_norm", family->modules.q_norm, D);
            add_norm(&d, layer, "attention.k_norm", family->modules.k_norm, D);
        }
        add_linear(&d, layer, ATTACH_PROJECTION, residual_std);
        add_norm(&d, layer, "norm2", family->modules.norm2, C);
        add_linear(&d, layer, ATTACH_FC1, std);
        add_linear(&d, layer, ATTACH_FC2, residual_std);
    }
    add_norm(&d, -1, "final_norm", family->modules.final_norm, C);
    if (config->untie_embeddings_and_output_weights)
        add_table(&d, "head", family->modules.head, config->vocab_size, (int)config->num_layers, true, false);
    return d.status;
}
