/* The GPT-2 family: its parameters under our names and Hugging Face's, and its config.json.
 *
 * Hugging Face keeps GPT-2's linears as Conv1D, [in, out]; ours are [out, in], so their slices are transposed. Without
 * biases (add_bias_linear false) the bias rows stay, zero and frozen: the files stay what `transformers` opens. */
#include "base/json.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the parameter table ---- */

struct describer {
    const struct model_config *config;
    struct param_table *table;
    int status;
};

static void add(struct describer *d, struct param *row) {
    if (row->dims == 1)
        row->shape[1] = 1;
    for (int i = 0; i < row->slice_count; i++) {
        struct param_slice *slice = &row->slices[i];
        if (!slice->rows)
            *slice = (struct param_slice){
                .rows = row->shape[0], .file_rows = row->shape[0], .is_transposed = slice->is_transposed};
    }
    int id = d->status ? d->status : param_table_add(d->table, row);
    d->status = id < 0 ? id : STATUS_OK;
}

static void name(char out[PARAM_NAME_BYTES], int64_t layer, const char *text) {
    if (layer >= 0)
        snprintf(out, PARAM_NAME_BYTES, "layers.%lld.%s", (long long)layer, text);
    else
        snprintf(out, PARAM_NAME_BYTES, "%s", text);
}

static void file_name(char out[PARAM_NAME_BYTES], int64_t layer, const char *text) {
    if (layer >= 0)
        snprintf(out, PARAM_NAME_BYTES, "h.%lld.%s", (long long)layer, text);
    else
        snprintf(out, PARAM_NAME_BYTES, "%s", text);
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
    name(row.name, -1, ours);
    file_name(row.slices[0].name, -1, file);
    add(d, &row);
}

static void add_norm(struct describer *d, int64_t layer, const char *ours, const char *file) {
    for (int is_bias = 0; is_bias < 2; is_bias++) {
        char text[64], file_text[64];
        snprintf(text, sizeof text, "%s.%s", ours, is_bias ? "bias" : "weight");
        snprintf(file_text, sizeof file_text, "%s.%s", file, is_bias ? "bias" : "weight");
        int64_t C = d->config->hidden_size;
        struct param row = {
            .dims = 1,
            .shape = {C, 1},
            .init = is_bias ? PARAM_INIT_ZERO : PARAM_INIT_ONE,
            .is_trainable = true,
            .layer = (int)(layer >= 0 ? layer : d->config->num_layers),
            .slice_count = 1,
            .slices = {{.rows = C, .file_rows = C}},
        };
        name(row.name, layer, text);
        file_name(row.slices[0].name, layer, file_text);
        add(d, &row);
    }
}

/* A linear [out, in] and its bias; `parts` slices of equal size (q, k and v), each cut over the ranks by itself. */
static void add_linear(struct describer *d, int64_t layer, const char *ours, const char *file, int64_t out, int64_t in,
                       int parts, bool is_row_split, double std) {
    for (int is_bias = 0; is_bias < 2; is_bias++) {
        char text[64], file_text[64];
        snprintf(text, sizeof text, "%s.%s", ours, is_bias ? "bias" : "weight");
        snprintf(file_text, sizeof file_text, "%s.%s", file, is_bias ? "bias" : "weight");
        struct param row = {
            .dims = is_bias ? 1 : 2,
            .shape = {out, is_bias ? 1 : in},
            .shard = !is_row_split ? PARAM_SHARD_AXIS0
                     : is_bias     ? PARAM_REPLICATED
                                   : PARAM_SHARD_AXIS1,
            .init = is_bias ? PARAM_INIT_ZERO : PARAM_INIT_NORMAL,
            .init_std = (float)std,
            .decays = !is_bias,
            .is_trainable = !is_bias || d->config->add_bias_linear,
            .is_linear = !is_bias,
            .layer = (int)layer,
            .slice_count = parts,
        };
        name(row.name, layer, text);
        for (int i = 0; i < parts; i++) {
            row.slices[i] = (struct param_slice){.row = i * (out / parts),
                                                 .rows = out / parts,
                                                 .file_start = i * (out / parts),
                                                 .file_rows = out,
                                                 .is_transposed = !is_bias};
            file_name(row.slices[i].name, layer, file_text);
        }
        add(d, &row);
    }
}

int gpt2_describe(const struct model_config *config, struct param_table *table) {
    struct describer d = {.config = config, .table = table};
    int64_t C = config->hidden_size, F = config->ffn_hidden_size;
    double std = config->init_method_std, residual_std = std / sqrt(2.0 * (double)config->num_layers);
    add_table(&d, "embedding.token.weight", "wte.weight", config->vocab_size, -1, true, true);
    add_table(&d, "embedding.position.weight", "wpe.weight", config->max_position_embeddings, -1, false, true);
    for (int64_t layer = 0; layer < config->num_layers; layer++) {
        add_norm(&d, layer, "norm1", "ln_1");
        add_linear(&d, layer, "attention.qkv", "attn.c_attn", 3 * C, C, 3, false, std);
        add_linear(&d, layer, "attention.projection", "attn.c_proj", C, C, 1, true, residual_std);
        add_norm(&d, layer, "norm2", "ln_2");
        add_linear(&d, layer, "mlp.fc1", "mlp.c_fc", F, C, 1, false, std);
        add_linear(&d, layer, "mlp.fc2", "mlp.c_proj", C, F, 1, true, residual_std);
    }
    add_norm(&d, -1, "final_norm", "ln_f");
    if (config->untie_embeddings_and_output_weights)
        add_table(&d, "head.weight", "lm_head.weight", config->vocab_size, (int)config->num_layers, true, false);
    return d.status;
}

/* ---- config.json ---- */

static const char *const activation_names[] = {[ACTIVATION_GELU_TANH] = "gelu_new", [ACTIVATION_GELU_EXACT] = "gelu"};

int gpt2_write_config(const struct model_config *config, enum dtype dtype, int32_t eos_id, char **text) {
    const char *type = dtype == DTYPE_BF16 ? "bfloat16" : dtype == DTYPE_F16 ? "float16" : "float32";
    double embedding = config->embedding_dropout < 0 ? config->hidden_dropout : config->embedding_dropout;
    json_begin();
    json_t *eos = eos_id >= 0 ? json_integer(eos_id) : json_null();
    json_t *root =
        json_pack("{s:s, s:b, s:[s], s:f, s:O, s:s, s:f, s:O, s:f, s:f, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:b, "
                  "s:b, s:s, s:b, s:s, "
                  "s:b, s:I}",
                  "activation_function", activation_names[config->activation], "add_cross_attention", 0,
                  "architectures", "GPT2LMHeadModel", "attn_pdrop", config->attention_dropout, "bos_token_id", eos,
                  "dtype", type, "embd_pdrop", embedding, "eos_token_id", eos, "initializer_range",
                  config->init_method_std, "layer_norm_epsilon", config->layernorm_epsilon, "model_type", "gpt2",
                  "n_embd", (json_int_t)config->hidden_size, "n_head", (json_int_t)config->num_attention_heads,
                  "n_inner", (json_int_t)config->ffn_hidden_size, "n_layer", (json_int_t)config->num_layers,
                  "n_positions", (json_int_t)config->max_position_embeddings, "reorder_and_upcast_attn", 0,
                  "resid_pdrop", config->hidden_dropout, "scale_attn_by_inverse_layer_idx", 0, "scale_attn_weights", 1,
                  "torch_dtype", type, "tie_word_embeddings", !config->untie_embeddings_and_output_weights,
                  "summary_type", "cls_index", "use_cache", 1, "vocab_size", (json_int_t)config->vocab_size);
    if (root && !config->add_bias_linear)
        json_object_set_new(root, "add_bias_linear", json_false());
    char *dump;
    int status = json_end(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15), &dump);
    json_decref(eos);
    if (status || asprintf(text, "%s\n", dump) < 0)
        *text = NULL;
    free(dump);
    return status || *text ? status : status_fail(STATUS_MEMORY, "out of memory");
}

struct reader {
    const json_t *root;
    const char *where;
    int status;
};

/* The value of the first of two spellings that is there and not null. */
static const json_t *find(const struct reader *r, const char *key, const char *other, const char **found) {
    const json_t *value = json_object_get(r->root, key);
    *found = key;
    if ((!value || json_is_null(value)) && other) {
        value = json_object_get(r->root, other);
        *found = other;
    }
    return value && !json_is_null(value) ? value : NULL;
}

/* An integer from 1 to `maximum`; `fallback` when absent, which is an error where it is 0. The maxima are those of a
 * run's options (config/run.c): they keep every product of sizes within 63 bits. */
static int64_t read_size(struct reader *r, const char *key, const char *other, int64_t maximum, int64_t fallback) {
    const char *found;
    const json_t *value = find(r, key, other, &found);
    if (r->status || (!value && fallback))
        return fallback;
    if (!value)
        r->status = status_fail(STATUS_INVALID, "%s: '%s' is missing", r->where, key);
    else if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > maximum)
        r->status = status_fail(STATUS_INVALID, "%s: '%s' must be an integer from 1 to %lld", r->where, found,
                                (long long)maximum);
    else
        return json_integer_value(value);
    return fallback;
}

static double read_number(struct reader *r, const char *key, double fallback, double minimum, double below) {
    const char *found;
    const json_t *value = find(r, key, NULL, &found);
    if (r->status || !value)
        return fallback;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= minimum && number < below)) {
        r->status =
            status_fail(STATUS_INVALID, "%s: '%s' must be a number from %g to below %g", r->where, key, minimum, below);
        return fallback;
    }
    return number;
}

static bool read_bool(struct reader *r, const char *key, bool fallback) {
    const char *found;
    const json_t *value = find(r, key, NULL, &found);
    if (r->status || !value)
        return fallback;
    if (!json_is_boolean(value))
        r->status = status_fail(STATUS_INVALID, "%s: '%s' must be true or false", r->where, key);
    return json_is_true(value);
}

static const char *read_text(struct reader *r, const char *key, const char *fallback) {
    const char *found;
    const json_t *value = find(r, key, NULL, &found);
    if (r->status || !value)
        return fallback;
    if (!json_is_string(value))
        r->status = status_fail(STATUS_INVALID, "%s: '%s' must be a string", r->where, key);
    return json_is_string(value) ? json_string_value(value) : fallback;
}

/* Keys that change the mathematics, with the one value that is built. */
static void refuse_what_is_not_built(struct reader *r) {
    static const struct {
        const char *key;
        bool built;
    } keys[] = {{"scale_attn_by_inverse_layer_idx", false},
                {"reorder_and_upcast_attn", false},
                {"add_cross_attention", false},
                {"scale_attn_weights", true}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (read_bool(r, keys[i].key, keys[i].built) != keys[i].built && !r->status)
            r->status = status_fail(STATUS_UNSUPPORTED, "%s: '%s': %s is not supported", r->where, keys[i].key,
                                    keys[i].built ? "false" : "true");
    const char *type = read_text(r, "model_type", NULL);
    if (!r->status && !type)
        r->status = status_fail(STATUS_INVALID, "%s: 'model_type' is missing", r->where);
    if (!r->status && strcmp(type, "gpt2"))
        r->status = status_fail(STATUS_UNSUPPORTED, "%s: 'model_type' \"%s\" is not supported (supported: gpt2)",
                                r->where, type);
    const char *found;
    if (!r->status && find(r, "quantization_config", NULL, &found))
        r->status = status_fail(STATUS_UNSUPPORTED, "%s: 'quantization_config' is not supported", r->where);
    const json_t *pruned = find(r, "pruned_heads", NULL, &found);
    if (!r->status && pruned && json_object_size(pruned) > 0)
        r->status = status_fail(STATUS_UNSUPPORTED, "%s: 'pruned_heads' is not supported", r->where);
}

static int read_activation(struct reader *r) {
    static const char *const tanh_names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const char *text = read_text(r, "activation_function", "gelu_new");
    for (size_t i = 0; i < sizeof tanh_names / sizeof *tanh_names; i++)
        if (!strcmp(text, tanh_names[i]))
            return ACTIVATION_GELU_TANH;
    if (strcmp(text, "gelu") && !r->status)
        r->status =
            status_fail(STATUS_UNSUPPORTED,
                        "%s: 'activation_function' \"%s\" is not supported (supported: gelu_new, gelu_pytorch_tanh, "
                        "gelu_fast, gelu)",
                        r->where, text);
    return ACTIVATION_GELU_EXACT;
}

static enum dtype read_dtype(struct reader *r) {
    const char *text = read_text(r, "dtype", NULL);
    const char *key = text ? "dtype" : "torch_dtype";
    if (!text)
        text = read_text(r, "torch_dtype", NULL);
    if (!text || r->status)
        return DTYPE_COUNT;
    if (!strcmp(text, "float32"))
        return DTYPE_F32;
    if (!strcmp(text, "bfloat16"))
        return DTYPE_BF16;
    if (!strcmp(text, "float16"))
        return DTYPE_F16;
    r->status =
        status_fail(STATUS_UNSUPPORTED, "%s: '%s' \"%s\" is not supported (supported: float32, bfloat16, float16)",
                    r->where, key, text);
    return DTYPE_COUNT;
}

int gpt2_read_config(const char *text, const char *where, struct model_config *config, enum dtype *dtype,
                     int32_t *eos_id) {
    json_error_t error;
    json_t *root;
    int status = json_read(text, strlen(text), JSON_REJECT_DUPLICATES, &root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s:%d:%d: %s", where, error.line, error.column, error.text);
    if (status)
        return status;
    struct reader r = {.root = root, .where = where};
    if (!json_is_object(root))
        r.status = status_fail(STATUS_INVALID, "%s: a JSON object was expected", where);
    if (!r.status)
        refuse_what_is_not_built(&r);
    *config = (struct model_config){0};
    config->num_layers = read_size(&r, "n_layer", "num_hidden_layers", 10000, 0);
    config->hidden_size = read_size(&r, "n_embd", "hidden_size", 131072, 0);
    config->num_attention_heads = read_size(&r, "n_head", "num_attention_heads", 131072, 0);
    config->num_query_groups = config->num_attention_heads;
    config->ffn_hidden_size = read_size(&r, "n_inner", NULL, 1048576, 4 * config->hidden_size + (r.status != 0));
    config->max_position_embeddings = read_size(&r, "n_positions", "max_position_embeddings", 1048576, 0);
    config->vocab_size = read_size(&r, "vocab_size", NULL, 16777216, 0);
    config->hidden_dropout = read_number(&r, "resid_pdrop", 0.1, 0, 1);
    config->attention_dropout = read_number(&r, "attn_pdrop", 0.1, 0, 1);
    config->embedding_dropout = read_number(&r, "embd_pdrop", 0.1, 0, 1);
    config->init_method_std = read_number(&r, "initializer_range", 0.02, 0, 1e6);
    config->layernorm_epsilon = read_number(&r, "layer_norm_epsilon", 1e-5, 0, 1);
    config->activation = read_activation(&r);
    config->untie_embeddings_and_output_weights = !read_bool(&r, "tie_word_embeddings", true);
    config->add_bias_linear = read_bool(&r, "add_bias_linear", true);
    *dtype = read_dtype(&r);
    const char *found;
    const json_t *eos = find(&r, "eos_token_id", NULL, &found);
    if (json_is_array(eos))
        eos = json_array_get(eos, 0);
    json_int_t id = json_is_integer(eos) ? json_integer_value(eos) : -1;
    *eos_id = id >= 0 && id < config->vocab_size ? (int32_t)id : -1;
    json_decref(root);
    if (!r.status && model_config_resolve(config))
        r.status = status_wrap(STATUS_INVALID, "%s", where);
    return r.status;
}
