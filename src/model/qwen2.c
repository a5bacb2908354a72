/* The Qwen2 family: q, k and v have biases, and some layers may have windows. */
#include "llama_like.h"

static const struct llama_variant variant = {
    .vocab_size = 151936,
    .hidden_size = 4096,
    .intermediate_size = 22016,
    .max_position_embeddings = 32768,
    .num_key_value_heads = 32,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .biases = LLAMA_BIASES_QKV,
    .windows = LLAMA_WINDOWS_SOME,
};

const struct model_family model_family_qwen2 = {
    .name = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    LLAMA_LIKE_SEVEN,
    .eos_id = -1,
    .targets.scales = llama_like_scales_of_queries,
    .variant = &variant,
};
