/* The Mistral family: every layer has the same window, or none has one. */
#include "llama_like.h"

static const char *const lora_targets[] = {"q_proj", "v_proj", NULL};
static const char *const ia3_targets[] = {"k_proj", "v_proj", "down_proj", NULL};
static const char *const ia3_feedforward[] = {"down_proj", NULL};

static const struct llama_kin kin = {
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
    LLAMA_LIKE,
    .eos_id = 2,
    .projection_count = LLAMA_PROJECTIONS,
    .projections = llama_like_projections,
    .lora_targets = lora_targets,
    .ia3_targets = ia3_targets,
    .ia3_feedforward = ia3_feedforward,
    .kin = &kin,
};
