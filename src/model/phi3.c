/* The Phi-3 family: q, k and v share one tensor of its files, gate and up share another, and only a part of each head
 * may be rotated. PEFT has no default targets for it, so they must be given. */
#include "llama_like.h"

static const char *const no_targets[] = {NULL};

static void list_projections(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]) {
    struct model_widths w = model_widths(config, 1);
    int64_t C = config->hidden_size;
    out[0] = (struct model_projection){ATTACH_QKV, "self_attn.qkv_proj", .out = w.qkv,
                                       .in = C,    .parts = 3,           .part = {w.q, w.kv, w.kv}};
    out[1] = (struct model_projection){ATTACH_PROJECTION, "self_attn.o_proj", .out = C, .in = w.q, .parts = 1};
    out[2] = (struct model_projection){ATTACH_FC1, "mlp.gate_up_proj", .out = w.fc1,
                                       .in = C,    .parts = 2,         .part = {w.ffn, w.ffn}};
    out[3] = (struct model_projection){ATTACH_FC2, "mlp.down_proj", .out = C, .in = w.ffn, .parts = 1};
}

static const struct llama_variant variant = {
    .vocab_size = 32064,
    .hidden_size = 3072,
    .intermediate_size = 8192,
    .max_position_embeddings = 4096,
    .rms_norm_eps = 1e-5,
    .windows = LLAMA_WINDOWS_ALL,
    .has_partial_rotation = true,
    .has_residual_dropouts = true,
};

const struct model_family model_family_phi3 = {
    .name = "phi3",
    .has_gguf_window = true,
    .class_name = "Phi3ForCausalLM",
    LLAMA_LIKE,
    .eos_id = 32000,
    .projection_count = 4,
    .projections = list_projections,
    .targets.weights = no_targets,
    .targets.scales = no_targets,
    .targets.scaled_inputs = no_targets,
    .variant = &variant,
};
