/* The Llama family: scaled rotations, and biases where its keys ask for them. */
#include "llama_like.h"

static const char *const lora_targets[] = {"q_proj", "v_proj", NULL};
static const char *const ia3_targets[] = {"k_proj", "v_proj", "down_proj", NULL};
static const char *const ia3_feedforward[] = {"down_proj", NULL};

static const struct llama_kin kin = {
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
    LLAMA_LIKE,
    .eos_id = 2,
    .projection_count = LLAMA_PROJECTIONS,
    .projections = llama_like_projections,
    .lora_targets = lora_targets,
    .ia3_targets = ia3_targets,
    .ia3_feedforward = ia3_feedforward,
    .kin = &kin,
};
