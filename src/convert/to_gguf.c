/* Writes a model as a GGUF file, with the names and keys of llama.cpp's converter. */
#include "convert-internal.h"

#include <math.h>

/* A tensor of the file: rows of a parameter. */
struct written {
    int param;
    int64_t row, rows;
    int64_t pairs; /* as in struct gguf_source */
};

struct writing {
    const struct convert_request *request;
    struct model_source model;
    const struct model_family *family;
    enum gguf_written type; /* of matrices */
    struct gguf_output *output;
    struct written *tensors;
    size_t count;
    float *divisors; /* the values of rope_freqs.weight, the last tensor; NULL: none */
    struct model_array array;
    int64_t divisor_count;
};

/* ---- what cannot be said in this format ---- */

static int refuse(const struct writing *w, const char *what) {
    return status_fail(STATUS_UNSUPPORTED, "%s: a GGUF file of a %s cannot have %s", w->model.source->directory,
                       w->family->name, what);
}

static int check_model(const struct writing *w) {
    const struct model_config *c = &w->model.config;
    bool is_learned = c->position_embedding == POSITION_LEARNED;
    double attention = c->position_embedding == POSITION_YARN ? 0.1 * log(c->rotary.yarn_factor) + 1 : 0;
    if (c->window > 0 && c->window < c->max_position_embeddings && !w->family->has_gguf_window)
        return refuse(w, "windows shorter than its positions");
    for (int64_t i = 0; i < c->num_layers; i++)
        if (c->window > 0 && c->window < c->max_position_embeddings && c->full_layers[i / 8] >> i % 8 & 1)
            return refuse(w, "windows in some of its layers");
    if (is_learned && c->activation != ACTIVATION_GELU_TANH)
        return refuse(w, "this activation: llama.cpp has the GELU of tanh");
    if (c->rotary.attention_factor > 0 && fabs(c->rotary.attention_factor - attention) > 1e-6)
        return refuse(w, "this attention factor of YaRN");
    if (c->position_embedding == POSITION_YARN && (c->rotary.factor > 0 || c->rotary.interpolation > 1))
        return refuse(w, "two scalings of positions");
    return STATUS_OK;
}

/* ---- keys ---- */

/* The architecture's name. */
static const char *architecture(const struct writing *w) {
    return w->family->gguf_name ? w->family->gguf_name : w->family->name;
}

static void put_integer(const struct writing *w, const char *name, int64_t value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture(w), name);
    gguf_put_integer(w->output, key, (uint32_t)value);
}

static void put_number(const struct writing *w, const char *name, double value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture(w), name);
    gguf_put_number(w->output, key, (float)value);
}

static void put_rotation(const struct writing *w) {
    const struct model_config *c = &w->model.config;
    char key[128];
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture(w));
    put_integer(w, "rope.dimension_count", llround(c->rotary.percent * (double)c->kv_channels));
    put_number(w, "rope.freq_base", c->rotary.base);
    if (c->position_embedding == POSITION_YARN) {
        gguf_put_text(w->output, key, "yarn");
        put_number(w, "rope.scaling.factor", c->rotary.yarn_factor);
        put_integer(w, "rope.scaling.original_context_length", c->rotary.original_positions);
        put_number(w, "rope.scaling.yarn_beta_fast", c->rotary.beta_fast);
        put_number(w, "rope.scaling.yarn_beta_slow", c->rotary.beta_slow);
    } else if (c->rotary.interpolation > 1) {
        gguf_put_text(w->output, key, "linear");
        put_number(w, "rope.scaling.factor", c->rotary.interpolation);
    }
}

static void put_keys(const struct writing *w) {
    const struct model_config *c = &w->model.config;
    gguf_put_text(w->output, "general.architecture", architecture(w));
    gguf_put_text(w->output, "general.type", "model");
    gguf_put_integer(w->output, "general.file_type", gguf_file_type(w->type));
    if (gguf_is_rounded(w->type))
        gguf_put_integer(w->output, "general.quantization_version", 2);
    put_integer(w, "context_length", c->max_position_embeddings);
    put_integer(w, "embedding_length", c->hidden_size);
    put_integer(w, "block_count", c->num_layers);
    put_integer(w, "feed_forward_length", c->ffn_hidden_size);
    put_integer(w, "attention.head_count", c->num_attention_heads);
    put_integer(w, "attention.head_count_kv", c->num_query_groups);
    put_integer(w, "vocab_size", c->vocab_size);
    put_number(
        w, c->normalization == NORMALIZATION_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
        c->layernorm_epsilon);
    if (c->position_embedding == POSITION_LEARNED)
        return;
    put_integer(w, "attention.key_length", c->kv_channels);
    put_integer(w, "attention.value_length", c->kv_channels);
    if (w->family->has_gguf_window && c->window > 0)
        put_integer(w, "attention.sliding_window", c->window);
    put_rotation(w);
}

/* ---- tensors ---- */

/* True for layers whose values and ffn_down llama.cpp keeps in more bits: an eighth at either end, and every third. */
static bool has_more_bits(int64_t layer, int64_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* Returns the type of a tensor. Q4_K is llama.cpp's mixture Q4_K_M: Q6_K for the head and for some matrices. */
static enum gguf_written type_of(const struct writing *w, const struct param *param, const char *name) {
    bool is_head = !strcmp(name, "output.weight") ||
                   (!strcmp(name, "token_embd.weight") && !w->model.config.untie_embeddings_and_output_weights);
    bool is_mixed = strstr(name, ".attn_v.") || strstr(name, ".ffn_down.");
    bool is_fused_qkv = strstr(name, ".attn_qkv.") != NULL; /* llama.cpp has Q5_K */
    enum gguf_written type = w->type;
    if (param->dims == 1 || !strcmp(param->name, "embedding.position"))
        return GGUF_WRITE_F32;
    if (type == GGUF_WRITE_Q4_K &&
        (is_head || is_fused_qkv || (is_mixed && has_more_bits(param->layer, w->model.config.num_layers))))
        type = GGUF_WRITE_Q6_K;
    return gguf_type_for(type, param->shape[1]);
}

static void add_tensor(struct writing *w, int index, int64_t row, int64_t rows, int64_t pairs, const char *name) {
    const struct param *param = &w->model.table.rows[index];
    gguf_output_tensor(w->output, name, type_of(w, param, name), param->dims, (int64_t[]){rows, param->shape[1]});
    w->tensors[w->count++] = (struct written){.param = index, .row = row, .rows = rows, .pairs = pairs};
}

/* True when the family's files, and so the format's, have the linear of this module as one tensor. */
static bool is_fused(const struct writing *w, int place) {
    struct model_projection projections[MODEL_MAX_PROJECTIONS];
    int count = 0;
    w->family->projections(&w->model.config, projections);
    for (int i = 0; i < w->family->projection_count; i++)
        count += (int)projections[i].place == place;
    return count == 1;
}

static void add_param(struct writing *w, int index) {
    const struct param *param = &w->model.table.rows[index];
    struct model_widths widths = model_widths(&w->model.config, 1);
    struct gguf_module module;
    char name[PARAM_NAME_BYTES];
    gguf_find_module(param, &module);
    int64_t row = 0;
    bool is_qkv = module.parts[2] != NULL, is_split = module.parts[0] && !is_fused(w, param->place);
    if (!is_split || (!is_qkv && !w->model.config.swiglu)) {
        add_tensor(w, index, 0, param->shape[0], 0, gguf_tensor_name(&module, module.whole, name));
        return;
    }
    for (int i = 0; i < GGUF_MAX_SOURCES && module.parts[i]; i++) {
        int64_t rows = !is_qkv ? widths.ffn : i == 0 ? widths.q : widths.kv;
        bool is_paired = w->family->has_paired_gguf_heads && is_qkv && i < 2;
        add_tensor(w, index, row, rows, is_paired ? widths.head : 0, gguf_tensor_name(&module, module.parts[i], name));
        row += rows;
    }
}

/* Adds what divides the frequencies, which has no keys in this format. */
static int add_divisors(struct writing *w) {
    const struct model_config *c = &w->model.config;
    int64_t count = w->divisor_count = llround(c->rotary.percent * (double)c->kv_channels) / 2;
    if (c->position_embedding == POSITION_LEARNED || c->rotary.factor <= 0)
        return STATUS_OK;
    w->divisors = calloc((size_t)count + 1, sizeof *w->divisors);
    TRY(status_allocated(w->divisors));
    for (int64_t i = 0; i < count; i++)
        w->divisors[i] = (float)gguf_llama3_divisor(c, pow(c->rotary.base, -(double)i / (double)count));
    gguf_output_tensor(w->output, "rope_freqs.weight", GGUF_WRITE_F32, 1, &count);
    return STATUS_OK;
}

static int read_rows(const struct writing *w, const struct written *t, int64_t row, int64_t rows, float *values) {
    const struct param *param = &w->model.table.rows[t->param];
    struct ckpt_block block = {.param = t->param, .row = t->row + row, .rows = rows, .columns = param->shape[1]};
    if (param->is_zero) {
        memset(values, 0, (size_t)(rows * param->shape[1]) * sizeof *values);
        return STATUS_OK;
    }
    return model_array_get((void *)&w->array, &block, values);
}

/* `get` of gguf_output_write. Of a head of pairs, rows 2i and 2i + 1 are row i of either half. A vector is one row. */
static int get(void *context, size_t index, int64_t row, int64_t rows, float *values) {
    const struct writing *w = context;
    const struct written *t = &w->tensors[index];
    int status = STATUS_OK;
    if (index == w->count) {
        memcpy(values, w->divisors, (size_t)w->divisor_count * sizeof *values);
        return STATUS_OK;
    }
    const struct param *param = &w->model.table.rows[t->param];
    if (param->dims == 1)
        rows = t->rows;
    if (!t->pairs)
        return read_rows(w, t, row, rows, values);
    for (int64_t i = 0; i < rows && !status; i++) {
        int64_t place = (row + i) % t->pairs, head = row + i - place;
        int64_t from = head + place % 2 * (t->pairs / 2) + place / 2;
        status = read_rows(w, t, from, 1, values + i * param->shape[1]);
    }
    return status;
}

/* ---- writing ---- */

static void choose_type(struct writing *w) {
    static const enum gguf_written types[] = {
        [CONVERT_FP32] = GGUF_WRITE_F32,  [CONVERT_BF16] = GGUF_WRITE_BF16,  [CONVERT_FP16] = GGUF_WRITE_F16,
        [CONVERT_Q8_0] = GGUF_WRITE_Q8_0, [CONVERT_Q5_0] = GGUF_WRITE_Q5_0,  [CONVERT_Q4_0] = GGUF_WRITE_Q4_0,
        [CONVERT_Q6_K] = GGUF_WRITE_Q6_K, [CONVERT_Q4_K_M] = GGUF_WRITE_Q4_K};
    bool is_bf16 = w->model.dtype == DTYPE_BF16;
    w->type = w->request->type != CONVERT_AUTO ? types[w->request->type] : is_bf16 ? GGUF_WRITE_BF16 : GGUF_WRITE_F32;
}

static int check_source(struct writing *w) {
    const struct ckpt_array *read = &w->array.array;
    int status = check_model(w);
    if (!status && file_exists(w->request->output))
        status =
            status_fail(STATUS_INVALID, "%s is already there: name another file, or remove it", w->request->output);
    return status ? status : model_source_check(&w->model, read, 1);
}

static int write(struct writing *w) {
    int count = w->model.table.count;
    w->family = model_family(&w->model.config);
    w->array =
        (struct model_array){.model = &w->model, .array = {.prefix = "", .dtype = DTYPE_F32, .must_be_finite = true}};
    choose_type(w);
    TRY(check_source(w));
    TRY(gguf_output_new(&w->output));
    w->tensors = calloc((size_t)count * GGUF_MAX_SOURCES + 1, sizeof *w->tensors);
    TRY(status_allocated(w->tensors));
    put_keys(w);
    int status = gguf_put_tokenizer(&w->model, w->output);
    for (int i = 0; i < count && !status; i++)
        add_param(w, i);
    THEN(status, add_divisors(w));
    return status ? status : gguf_output_write(w->output, w->request->output, get, w);
}

int write_gguf(const struct convert_request *request, struct source *source) {
    struct writing w = {.request = request};
    int status = model_source_open(request, source, &w.model);
    THEN(status, write(&w));
    gguf_output_free(w.output);
    free(w.tensors);
    free(w.divisors);
    model_source_close(&w.model);
    return status;
}
