/* Llama and its relatives: RMSNorm, rotation, a gated MLP and grouped queries. They share the keys of config.json and
 * the names of tensors; each family's file has its differences. */
#pragma once

#include "family-internal.h"

/* The linears that may have biases, and the keys that decide. */
enum llama_biases {
    LLAMA_BIASES_NONE,
    LLAMA_BIASES_QKV,       /* q, k and v always have them */
    LLAMA_BIASES_ATTENTION, /* attention_bias: q, k, v and the output */
    LLAMA_BIASES_BOTH,      /* and mlp_bias */
};

/* The layers that may have a window. */
enum llama_windows {
    LLAMA_WINDOWS_NONE,
    LLAMA_WINDOWS_ALL, /* sliding_window: every layer */
    LLAMA_WINDOWS_SOME /* use_sliding_window: the layers in layer_types, or those from max_window_layers on */
};

/* The differences of a family's class in `transformers`: its defaults for missing keys, and its parts. */
struct llama_variant {
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
    bool has_equal_heads;       /* hidden_size must be a multiple of the number of heads, for any head_dim */
};

/* Members of a family's row that has a struct llama_variant: see struct model_family. */
void llama_like_read(const struct model_family *family, struct json_keys *keys, struct model_config *config);
json_t *llama_like_write(const struct model_family *family, const struct model_config *config);
const char *llama_like_unfit(const struct model_family *family, const struct model_config *config);
/* q, k, v, the output, gate, up and down: each is one tensor. */
enum { LLAMA_PROJECTIONS = 7 };
void llama_like_projections(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]);

/* The members of struct model_family that are the same for all of these families. */
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
/* The further members of families whose files have seven projections. PEFT scales keys in some of them and queries in
 * others. */
extern const char *const llama_like_weights[], *const llama_like_scaled_inputs[];
extern const char *const llama_like_scales_of_keys[], *const llama_like_scales_of_queries[];
#define LLAMA_LIKE_SEVEN                                                                                               \
    LLAMA_LIKE,                                                                                                        \
    .projection_count = LLAMA_PROJECTIONS, .projections = llama_like_projections,                                      \
    .targets.weights = llama_like_weights, .targets.scaled_inputs = llama_like_scaled_inputs
/* clang-format on */

/* ---- rope.c ---- */

/* Reads the rotation from rope_theta and rope_scaling, or from rope_parameters as in version 5 of `transformers`.
 * Errors go to keys->status. */
void rope_read(struct json_keys *keys, bool has_partial_rotation, struct model_config *config);
/* Adds both forms to an object. */
void rope_write(const struct model_config *config, bool has_partial_rotation, json_t *object);
/* The part of model_family.unfit that concerns the rotation. */
const char *rope_unfit(const struct model_config *config, bool has_partial_rotation);
