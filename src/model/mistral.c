/* The Mistral family: every layer has the same window, or none has one. */
#include "llama_like.h"

static const struct llama_variant variant = {
    .vocab_size = 32000,
    .hidden_size = 4096,
    .intermediate_size = 14336,
    .max_position_embeddings = 131072,
    .num_key_value_heads = 8,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .windows = LLAMA_WINDOWS_ALL,
};

const struct model_family model_family_mistral = {
    .name = "mistral",
    .class_name = "MistralForCausalLM",
    LLAMA_LIKE_SEVEN,
    .gguf_name = "llama",
    .has_paired_gguf_heads = true,
    .eos_id = 2,
    .targets.scales = llama_like_scales_of_keys,
    .variant = &variant,
};
