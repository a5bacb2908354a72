/* The rotation of a GGUF file's model. Llama 3's scaling has no keys in this format: the tensor rope_freqs.weight has
 * the number that divides each frequency. */
#include "gguf_model-internal.h"

#include <math.h>

enum { MAX_FREQUENCIES = 4096, LLAMA3_POSITIONS = 8192 };
static const double LLAMA3_LOW = 1, LLAMA3_HIGH = 4, TOLERANCE = 1e-4, TURN = 6.283185307179586;

double gguf_llama3_divisor(const struct model_config *config, double frequency) {
    double low = config->rotary.low, high = config->rotary.high, factor = config->rotary.factor;
    double turns = (double)config->rotary.original_positions * frequency / TURN;
    if (turns < low)
        return factor;
    if (turns > high)
        return 1;
    double smooth = (turns - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

/* Finds the factor, which is the largest divisor, and checks that it explains all others. All of Llama 3's models share
 * the other three numbers. */
static int read_llama3(const struct gguf *file, const struct gguf_tensor *tensor, struct model_config *config) {
    float divisors[MAX_FREQUENCIES];
    int64_t count = config->kv_channels / 2;
    double factor = 1;
    if (tensor->elements != count || count > MAX_FREQUENCIES)
        return status_fail(
            STATUS_INVALID, "%s: rope_freqs.weight has %lld numbers, but heads of %lld columns need %lld",
            gguf_path(file), (long long)tensor->elements, (long long)config->kv_channels, (long long)count);
    TRY(gguf_read(tensor, 0, count, DTYPE_F32, divisors));
    for (int64_t i = 0; i < count; i++)
        factor = fmax(factor, (double)divisors[i]);
    struct model_config scaled = *config;
    scaled.rotary.factor = factor;
    scaled.rotary.low = LLAMA3_LOW;
    scaled.rotary.high = LLAMA3_HIGH;
    scaled.rotary.original_positions = LLAMA3_POSITIONS;
    for (int64_t i = 0; i < count; i++) {
        double frequency = pow(config->rotary.base, -2.0 * (double)i / (double)config->kv_channels);
        double expected = gguf_llama3_divisor(&scaled, frequency);
        if (fabs((double)divisors[i] - expected) > TOLERANCE * expected)
            return status_fail(STATUS_UNSUPPORTED,
                               "%s: rope_freqs.weight is not supported: number %lld is %g, and Llama 3's scaling makes "
                               "it %g",
                               gguf_path(file), (long long)i, (double)divisors[i], expected);
    }
    if (factor > 1)
        config->rotary = scaled.rotary;
    return STATUS_OK;
}

static void read_yarn(struct gguf_keys *keys, struct model_config *config) {
    gguf_need(keys, "rope.scaling.original_context_length");
    config->position_embedding = POSITION_YARN;
    config->rotary.yarn_factor = gguf_number(keys, "rope.scaling.factor", 1, 1, MODEL_MAX_POSITIONS);
    config->rotary.beta_fast = gguf_number(keys, "rope.scaling.yarn_beta_fast", 0, 0, MODEL_MAX_POSITIONS);
    config->rotary.beta_slow = gguf_number(keys, "rope.scaling.yarn_beta_slow", 0, 0, MODEL_MAX_POSITIONS);
    config->rotary.original_positions =
        gguf_integer(keys, "rope.scaling.original_context_length", 1, 1, MODEL_MAX_POSITIONS);
}

static void read_scaling(struct gguf_keys *keys, struct model_config *config) {
    const char *type = gguf_string(keys, "rope.scaling.type", "none");
    if (strcmp(type, "none") != 0 && !keys->status)
        gguf_need(keys, "rope.scaling.factor");
    if (!strcmp(type, "linear"))
        config->rotary.interpolation = gguf_number(keys, "rope.scaling.factor", 1, 1, MODEL_MAX_POSITIONS);
    else if (!strcmp(type, "yarn"))
        read_yarn(keys, config);
    else if (strcmp(type, "none") != 0 && !keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED,
                                   "%s: the key '%srope.scaling.type' is %s, which is not supported (supported: none, "
                                   "linear, yarn)",
                                   gguf_path(keys->file), keys->prefix, type);
}

int gguf_read_rotation(const struct gguf *file, struct gguf_keys *keys, struct model_config *config) {
    const struct gguf_tensor *divisors = gguf_find(file, "rope_freqs.weight");
    if (config->position_embedding == POSITION_LEARNED)
        return keys->status;
    if (!config->kv_channels && config->hidden_size % config->num_attention_heads == 0)
        config->kv_channels = config->hidden_size / config->num_attention_heads;
    int64_t rotated = gguf_integer(keys, "rope.dimension_count", config->kv_channels, 1, MODEL_MAX_WIDTH);
    config->rotary.base = gguf_number(keys, "rope.freq_base", 10000, 1, 1e30);
    config->rotary.percent = config->kv_channels ? (double)rotated / (double)config->kv_channels : 1;
    read_scaling(keys, config);
    if (!keys->status && rotated > config->kv_channels)
        keys->status = status_fail(STATUS_INVALID, "%s: %lld columns of a head are rotated, but it has %lld",
                                   gguf_path(file), (long long)rotated, (long long)config->kv_channels);
    return keys->status || !divisors ? keys->status : read_llama3(file, divisors, config);
}
