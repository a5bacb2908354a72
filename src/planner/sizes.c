/* The tables of the auto-configurator, and the shapes of open models. */
#include "planner/sizes.h"

#include <math.h>
#include <strings.h>

static const struct {
    double below; /* billions */
    int64_t hidden, heads;
    double lr;
} widths[] = {
    {0.25, 768, 12, 6e-4},   {0.5, 1024, 16, 3e-4},   {1, 1536, 16, 2.5e-4},    {2, 2048, 16, 2e-4},
    {3, 2560, 32, 1.6e-4},   {4.5, 3072, 32, 1.4e-4}, {8, 4096, 32, 1.2e-4},    {15, 5120, 40, 1e-4},
    {25, 6144, 48, 1e-4},    {52, 8192, 64, 0.8e-4},  {105, 10240, 80, 0.7e-4}, {205, 12288, 96, 0.6e-4},
    {405, 20480, 128, 5e-5}, {805, 20480, 128, 4e-5}, {1105, 25600, 160, 3e-5},
};

static const struct {
    double most; /* billions */
    int64_t batch;
} batches[] = {
    {1, 256},      {4, 720},      {8, 1440},     {13, 1440},  {20.6, 1440}, {45.6, 1440},
    {123.6, 1440}, {196.6, 1536}, {392.2, 1792}, {735, 1920}, {1100, 2048},
};

static const struct {
    double most;
    int tensor[4], least_pipeline, most_pipeline, micro_batch[9];
} grids[] = {
    {1, {1, 2}, 1, 1, {1, 2, 4, 6, 8}},
    {4, {1, 2, 4}, 1, 1, {1, 2, 4, 8}},
    {8, {2, 4, 8}, 1, 1, {1, 2, 4, 8}},
    {13, {4, 8}, 1, 1, {1, 2, 4, 8}},
    {23, {2, 4, 8}, 1, 4, {1, 2, 4, 6, 8, 10, 12, 16}},
    {45, {2, 4, 8}, 1, 4, {1, 2, 4, 6, 8, 10, 12, 16}},
    {95, {2, 4, 8}, 1, 8, {1, 2, 4, 6, 8, 10, 12, 16}},
    {130, {4, 8}, 1, 16, {1, 2, 4, 6, 8, 10, 12}},
    {195, {4, 8}, 1, 16, {1, 2, 4, 6, 8}},
    {395, {4, 8}, 1, 32, {1, 2, 4, 6, 8}},
    {790, {4, 8}, 2, 100, {1, 2, 4}},
    {1100, {4, 8}, 2, 130, {1, 2, 4}},
};
/* By their config.json on Hugging Face. All have RMSNorm, rotated positions and gated feed-forward layers. */
static const struct {
    const char *name;
    double billions;
    int64_t layers, hidden, heads, query_groups, head_size, ffn;
    bool is_qwen3, is_tied;
} open_models[] = {
    {"llama-3.1-8b", 8, 32, 4096, 32, 8, 128, 14336, false, false},
    {"llama-3.1-70b", 70, 80, 8192, 64, 8, 128, 28672, false, false},
    {"llama-3.1-405b", 405, 126, 16384, 128, 8, 128, 53248, false, false},
    {"qwen3-0.6b", 0.6, 28, 1024, 16, 8, 128, 3072, true, true},
    {"qwen3-1.7b", 1.7, 28, 2048, 16, 8, 128, 6144, true, true},
    {"qwen3-4b", 4, 36, 2560, 32, 8, 128, 9728, true, true},
    {"qwen3-8b", 8, 36, 4096, 32, 8, 128, 12288, true, false},
    {"qwen3-14b", 14, 40, 5120, 40, 8, 128, 17408, true, false},
    {"qwen3-32b", 32, 64, 5120, 64, 8, 128, 25600, true, false},
};
enum { OPEN_MODELS = sizeof open_models / sizeof *open_models };
enum { WIDTHS = sizeof widths / sizeof *widths, BATCHES = sizeof batches / sizeof *batches };
enum { GRIDS = sizeof grids / sizeof *grids };

static const double most_billions = 1100;

static int read_size(const char *text, double *billions) {
    char *end;
    *billions = strtod(text, &end);
    bool is_millions = *end == 'M' || *end == 'm', is_billions = *end == 'B' || *end == 'b';
    *billions *= is_millions ? 1e-3 : 1;
    if (end != text && (is_millions || is_billions) && !end[1] && *billions > 0)
        return STATUS_OK;
    struct strbuf names = STRBUF_INIT;
    for (int i = 0; i < OPEN_MODELS; i++)
        strbuf_format(&names, "%s%s", i ? ", " : "", open_models[i].name);
    int status = strbuf_status(&names);
    THEN(status, status_fail(STATUS_USAGE,
                             "'%.80s' is not a size: expected billions or millions of parameters, 20B or 126M, or one "
                             "of %s",
                             text, strbuf_text(&names)));
    strbuf_free(&names);
    return status;
}

double size_parameters(const struct size_shape *shape, int64_t vocab, int64_t seq_length) {
    double h = (double)shape->hidden, L = (double)shape->layers;
    return 12 * L * h * h * (1 + 13 / (12 * h) + ((double)vocab + (double)seq_length) / (12 * L * h)) / 1e9;
}

/* Returns true if a number of layers is of the kind that a pass of the search tries. */
static bool is_tried(int pass, int64_t layers) {
    static const int multiples[] = {0, 16, 2, 5, 1};
    return pass == 0 ? (layers & (layers - 1)) == 0 /* a power of two */ : layers % multiples[pass] == 0;
}

/* Returns the columns, the batch and the learning rate of a size. */
static struct size_shape row_of(double billions) {
    int width = 0, batch = 0;
    while (billions >= widths[width].below && width < WIDTHS - 1)
        width++;
    while (billions > batches[batch].most && batch < BATCHES - 1)
        batch++;
    return (struct size_shape){.hidden = widths[width].hidden,
                               .heads = widths[width].heads,
                               .lr = widths[width].lr,
                               .global_batch = batches[batch].batch};
}

int size_shape(double billions, int64_t vocab, int64_t seq_length, struct size_shape *shape) {
    static const int margins[] = {10, 6, 6, 6, 10}; /* percent, tried from 1 up */
    if (!(billions > 0 && billions <= most_billions))
        return status_fail(STATUS_USAGE, "a model of %g billion parameters: expected at most %g", billions,
                           most_billions);
    *shape = row_of(billions);
    for (int pass = 0; pass < 5; pass++)
        for (int margin = 1; margin <= margins[pass]; margin++)
            for (shape->layers = 1; shape->layers <= 200; shape->layers++) {
                double size = size_parameters(shape, vocab, seq_length);
                if (is_tried(pass, shape->layers) && fabs(size / billions - 1) < margin / 100.0)
                    return STATUS_OK;
            }
    return status_fail(STATUS_USAGE, "no number of layers of %lld columns gives %g billion parameters",
                       (long long)shape->hidden, billions);
}

int size_grid(double billions, struct size_grid *grid) {
    int row = 0;
    while (row < GRIDS && billions > grids[row].most)
        row++;
    if (row == GRIDS)
        return status_fail(STATUS_USAGE, "a model of %g billion parameters: hp-tool has grids for at most %g", billions,
                           most_billions);
    *grid = (struct size_grid){.least_pipeline = grids[row].least_pipeline,
                               .most_pipeline = grids[row].most_pipeline,
                               .is_large = billions > 13};
    for (int i = 0; i < 4; i++)
        grid->tensor[i] = grids[row].tensor[i];
    for (int i = 0; i < 9; i++)
        grid->micro_batch[i] = grids[row].micro_batch[i];
    return STATUS_OK;
}

double size_rule_days(double billions, double tokens, double devices, double flops) {
    return 8 * tokens * billions * 1e9 / (devices * flops) / 86400;
}

double size_rule_billions(double days, double tokens, double devices, double flops) {
    return days * 86400 * devices * flops / (8 * tokens) / 1e9;
}

static void apply_batch(const struct size_shape *shape, struct run_config *run) {
    run->train.global_batch_size = shape->global_batch;
    run->optim.lr = shape->lr;
    run->optim.min_lr = shape->lr / 10;
}

void size_apply(const struct size_shape *shape, int64_t vocab, int64_t seq_length, struct run_config *run) {
    run->model.num_layers = shape->layers;
    run->model.hidden_size = shape->hidden;
    run->model.num_attention_heads = shape->heads;
    run->model.ffn_hidden_size = 4 * shape->hidden;
    run->model.vocab_size = vocab;
    run->model.max_position_embeddings = seq_length;
    run->model.init_method_std = 0.64 / sqrt((double)shape->hidden);
    run->data.seq_length = seq_length;
    apply_batch(shape, run);
}

static void apply_open_model(int number, int64_t seq_length, struct run_config *run) {
    struct model_config *model = &run->model;
    bool is_qwen3 = open_models[number].is_qwen3;
    *model = (struct model_config){.num_layers = open_models[number].layers,
                                   .hidden_size = open_models[number].hidden,
                                   .num_attention_heads = open_models[number].heads,
                                   .num_query_groups = open_models[number].query_groups,
                                   .kv_channels = open_models[number].head_size,
                                   .ffn_hidden_size = open_models[number].ffn,
                                   .max_position_embeddings = is_qwen3 ? 40960 : 131072,
                                   .vocab_size = is_qwen3 ? 151936 : 128256,
                                   .embedding_dropout = -1,
                                   .init_method_std = model->init_method_std,
                                   .layernorm_epsilon = is_qwen3 ? 1e-6 : 1e-5,
                                   .rotary.base = is_qwen3 ? 1e6 : 5e5,
                                   .normalization = NORMALIZATION_RMS,
                                   .position_embedding = POSITION_ROPE,
                                   .untie_embeddings_and_output_weights = !open_models[number].is_tied,
                                   .swiglu = true,
                                   .qk_layernorm = is_qwen3};
    run->model_words.use_rope_scaling = !is_qwen3; /* with the factors of Llama 3 */
    run->data.seq_length = seq_length < model->max_position_embeddings ? seq_length : model->max_position_embeddings;
    const struct size_shape shape = row_of(open_models[number].billions);
    apply_batch(&shape, run);
}

int size_take(const char *text, int64_t seq_length, struct run_config *run, double *billions) {
    struct size_shape shape;
    for (int i = 0; i < OPEN_MODELS; i++)
        if (!strcasecmp(text, open_models[i].name)) {
            *billions = open_models[i].billions;
            apply_open_model(i, seq_length, run);
            return STATUS_OK;
        }
    int status = read_size(text, billions);
    THEN(status, size_shape(*billions, SIZE_VOCABULARY, seq_length, &shape));
    if (!status)
        size_apply(&shape, SIZE_VOCABULARY, seq_length, run);
    return status;
}
