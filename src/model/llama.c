/* The Llama family: scaled rotations, and biases if its keys ask for them. */
#include "llama_like.h"

static const struct llama_variant variant = {
    .vocab_size = 32000,
    .hidden_size = 4096,
    .intermediate_size = 11008,
    .max_position_embeddings = 2048,
    .rms_norm_eps = 1e-6,
    .biases = LLAMA_BIASES_BOTH,
    .has_equal_heads = true,
};

const struct model_family model_family_llama = {
    .name = "llama",
    .class_name = "LlamaForCausalLM",
    LLAMA_LIKE_SEVEN,
    .has_paired_gguf_heads = true,
    .eos_id = 2,
    .targets.scales = llama_like_scales_of_keys,
    .variant = &variant,
};
