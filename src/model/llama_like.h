/* The kin of Llama: RMSNorm, rotation, a gated MLP and grouped queries. They share the keys of config.json and the
 * names of tensors; a family's file says where it differs. */
#ifndef CAMBIUM_MODEL_LLAMA_LIKE_H
#define CAMBIUM_MODEL_LLAMA_LIKE_H

#include "family-internal.h"

/* Which linears may have biases, and the keys that say so. */
enum llama_biases {
    LLAMA_BIASES_NONE,
    LLAMA_BIASES_QKV,       /* those of q, k and v, always */
    LLAMA_BIASES_ATTENTION, /* attention_bias: those of q, k, v and the output */
    LLAMA_BIASES_BOTH,      /* and mlp_bias */
};

/* Which layers may have a window. */
enum llama_windows {
    LLAMA_WINDOWS_NONE,
    LLAMA_WINDOWS_ALL, /* sliding_window: every layer */
    LLAMA_WINDOWS_SOME /* use_sliding_window: those of layer_types, or from max_window_layers on */
};

/* The differences of a family's class in `transformers`: its defaults for missing keys, and its parts. */
struct llama_kin {
    int64_t vocab_size, hidden_size, intermediate_size, max_position_embeddings;
    int64_t num_key_value_heads; /* 0: as many as heads */
    int64_t head_dim;            /* 0: hidden_size / num_attention_heads */
    int64_t sliding_window;      /* 0: none */
    double rms_norm_eps;
    enum llama_biases biases;
    enum llama_windows windows;
    bool has_qk_norms;
    bool has_partial_rotation;  /* partial_rotary_factor, and no scaling */
    bool has_residual_dropouts; /* resid_pdrop and embd_pdrop */
    bool has_equal_heads;       /* hidden_size is a multiple of the heads, whatever head_dim is */
};

/* Members of a family's row, whose kin it has. */
void llama_like_read(const struct model_family *family, struct json_keys *keys, struct model_config *config);
json_t *llama_like_write(const struct model_family *family, const struct model_config *config);
const char *llama_like_unfit(const struct model_family *family, const struct model_config *config);
/* q, k and v, and gate and up, each a tensor of its own. */
enum { LLAMA_PROJECTIONS = 7 };
void llama_like_projections(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]);

/* The members of struct model_family that are the same for all of them. */
extern const char *const llama_like_buffers[];
/* clang-format off */
#define LLAMA_LIKE                                                                                                     \
    .files = {.prefix = "model.",                                                                                      \
              .head = "lm_head.weight",                                                                                \
              .embedding = "embed_tokens.weight",                                                                      \
              .buffers = llama_like_buffers,                                                                           \
              .claims = model_claims_name},                                                                            \
    .layers = "layers",                                                                                                \
    .modules = {.token = "embed_tokens",                                                                               \
                .final_norm = "norm",                                                                                  \
                .head = "lm_head",                                                                                     \
                .norm1 = "input_layernorm",                                                                            \
                .norm2 = "post_attention_layernorm",                                                                   \
                .q_norm = "self_attn.q_norm",                                                                          \
                .k_norm = "self_attn.k_norm"},                                                                         \
    .read = llama_like_read, .write = llama_like_write, .unfit = llama_like_unfit
/* And what those do whose files have seven projections. What PEFT scales differs in one. */
extern const char *const llama_like_weights[], *const llama_like_scaled_inputs[];
extern const char *const llama_like_scales_of_keys[], *const llama_like_scales_of_queries[];
#define LLAMA_LIKE_SEVEN                                                                                               \
    LLAMA_LIKE,                                                                                                        \
    .projection_count = LLAMA_PROJECTIONS, .projections = llama_like_projections,                                      \
    .targets.weights = llama_like_weights, .targets.scaled_inputs = llama_like_scaled_inputs
/* clang-format on */

/* ---- rope.c ---- */

/* The rotation, from rope_theta and rope_scaling, or from rope_parameters, as version 5 of `transformers` has it. */
void rope_read(struct json_keys *keys, bool has_partial_rotation, struct model_config *config);
/* Both forms, added to an object. */
void rope_write(const struct model_config *config, bool has_partial_rotation, json_t *object);
/* See struct model_family. */
const char *rope_unfit(const struct model_config *config, bool has_partial_rotation);

#endif
