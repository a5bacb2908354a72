/* The configuration of a run: sections and keys with the names of Megatron-LM's flags. run.c has the rows. A command
 * that takes a run's configuration embeds `struct run_config`, and names run_rows and its offset in the section_ fields
 * of its struct config_command. */
#pragma once

#include "config/config.h"

/* The largest sizes of a model, the same for a run's options and for config.json. They keep every product of sizes
 * (samples of a run, logits of a micro batch, weights) within 63 bits. */
enum {
    MODEL_MAX_LAYERS = 10000,
    MODEL_MAX_WIDTH = 131072, /* of the residual stream, and of heads */
    MODEL_MAX_FFN_WIDTH = 1048576,
    MODEL_MAX_POSITIONS = 1048576,
    MODEL_MAX_VOCABULARY = 16777216,
};

enum activation { ACTIVATION_GELU_TANH, ACTIVATION_GELU_EXACT };
enum normalization { NORMALIZATION_LAYER, NORMALIZATION_RMS };
enum position_embedding { POSITION_LEARNED, POSITION_ROPE, POSITION_YARN };
enum lr_decay_style { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_INVERSE_SQUARE_ROOT, LR_WSD };
enum lr_wsd_decay_style { LR_WSD_LINEAR, LR_WSD_COSINE, LR_WSD_EXPONENTIAL, LR_WSD_MINUS_SQRT };
enum recompute_granularity { GRANULARITY_NONE, GRANULARITY_SELECTIVE, GRANULARITY_FULL };
enum recompute_method { METHOD_UNIFORM, METHOD_BLOCK };
/* The values that the data ranks share: none, the optimizer's, the gradients too, or the weights too. */
enum sharding { SHARDING_NONE, SHARDING_OPTIM, SHARDING_OPTIM_GRADS, SHARDING_OPTIM_GRADS_PARAMS };
/* PRECISION_TF32 is fp32 whose products may be rounded to TF32. */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_TF32, PRECISION_FP8 };
/* The names of enum precision, and those before FP8, each ended by NULL. */
extern const char *const precision_names[], *const plain_precision_names[];
/* Returns the data type of activations. */
static inline enum dtype precision_dtype(int precision) {
    return precision == PRECISION_BF16 || precision == PRECISION_FP8 ? DTYPE_BF16 : DTYPE_F32;
}
enum fp8_format { FP8_HYBRID, FP8_E4M3 };
enum fp8_amax_algorithm { FP8_AMAX_MAX, FP8_AMAX_MOST_RECENT };

/* The mathematics of a model, read from `model:` or from a model directory's config.json. Absent parts are zero; a
 * zeroed struct describes a GPT-2. */
struct model_config {
    int64_t num_layers, hidden_size, num_attention_heads;
    int64_t num_query_groups;        /* key/value heads; a divisor of the heads */
    int64_t kv_channels;             /* columns of a head; 0: hidden_size / num_attention_heads */
    int64_t ffn_hidden_size;         /* 0: 4 * hidden_size; with swiglu 2/3 of that, rounded down to a multiple of 64 */
    int64_t max_position_embeddings; /* 0: data.seq_length */
    int64_t vocab_size;              /* 0: the tokenizer's size */
    int64_t window;                  /* tokens that a row sees, itself included; 0: all tokens before it */
    unsigned char full_layers[(MODEL_MAX_LAYERS + 7) / 8];       /* bit l: layer l has no window */
    double hidden_dropout, attention_dropout, embedding_dropout; /* embedding_dropout -1: hidden_dropout */
    double init_method_std, layernorm_epsilon;
    struct {
        double base, percent;     /* percent: the share of a head's columns that are rotated */
        double interpolation;     /* divides positions; 0: 1 */
        double factor, low, high; /* Llama 3's scaling; factor 0: none */
        double yarn_factor, beta_fast, beta_slow;
        double attention_factor;    /* YaRN's, for cosine and sine; 0: 0.1 ln(yarn_factor) + 1 */
        int64_t original_positions; /* the positions that the model had before either scaling */
    } rotary;                       /* used unless position_embedding is learned */
    int family;                     /* row of the table of families (model/family.h); 0: the default family */
    int activation;                 /* enum activation */
    int normalization;              /* enum normalization */
    int position_embedding;         /* enum position_embedding */
    bool untie_embeddings_and_output_weights;
    bool swiglu;                            /* the MLP is gated: swish(gate) * up replaces the activation */
    bool qk_layernorm;                      /* each query and key head is normalised before the rotation */
    bool add_bias_linear;                   /* biases of the linears; norms keep their own */
    bool add_qkv_bias;                      /* biases of queries, keys and values, whatever the other linears have */
    bool add_projection_bias, add_mlp_bias; /* the same for the attention's output and for the MLP; only in files */
};

struct run_config {
    struct model_config model;
    struct {
        struct config_list window_size, window_attn_skip_freq; /* as typed; empty once they are resolved */
        bool use_rope_scaling;
        int64_t rope_original_max_position_embeddings, yarn_original_max_position_embeddings; /* 0: not given */
    } model_words; /* keys that model_config holds in another form */
    struct {
        const char *path; /* tokenizer: DIR, a top-level key */
    } tokenizer;
    const char *device;          /* NULL: the CPU */
    int collectives;             /* enum collectives */
    const char *gemm_algorithms; /* a file, or NULL */
    int batch_invariant;         /* 1: on */
    struct {
        struct config_list data_path; /* prefix, or w1 P1 w2 P2 ... */
        int64_t seq_length, seed;
        const char *split;
        const char *data_cache_path; /* NULL: <prefix>'s directory/cache/GPTDataset_indices */
        bool eod_mask_loss, reset_position_ids, reset_attention_mask;
    } data;
    struct {
        int64_t train_iters, exit_interval, micro_batch_size, global_batch_size, seed, eval_interval, eval_iters,
            early_stop; /* validations; 0: never */
        bool skip_train;
        int precision; /* enum precision */
        /* Only with PRECISION_FP8; otherwise 0. */
        int fp8_format, fp8_amax_compute_algo; /* enum fp8_format, enum fp8_amax_algorithm */
        int64_t fp8_margin, fp8_amax_history_len;
    } train;
    struct {
        double lr, min_lr;
        int lr_decay_style; /* enum lr_decay_style */
        int64_t lr_decay_iters, lr_warmup_iters, lr_wsd_decay_iters;
        int lr_wsd_decay_style; /* enum lr_wsd_decay_style: linear, cosine, exponential (default), minus_sqrt */
        double lr_warmup_init, weight_decay, clip_grad, adam_beta1, adam_beta2, adam_eps;
    } optim;
    struct {
        int64_t tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size,
            expert_model_parallel_size;
        int64_t virtual_pipeline_model_parallel_size, microbatch_group_size_per_vp_stage,
            decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers; /* 0: not given */
        bool account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split;
        bool sequence_parallel, use_distributed_optimizer, overlap_grad_reduce, overlap_param_gather;
        int data_parallel_sharding_strategy; /* enum sharding; see run_sharding */
        int64_t fsdp_keep_gathered;
        int recompute_granularity, recompute_method; /* enum recompute_granularity, enum recompute_method */
        int64_t recompute_num_layers, num_microbatches_with_partial_activation_checkpoints;
        struct config_list recompute_modules; /* of core_attn, layernorm, mlp_act */
        int64_t threads_per_rank;             /* 0: one when ranks share cores, else all */
        int64_t nccl_max_ctas;                /* 0: as many as NCCL takes */
        int64_t gemm_sm_margin;
    } parallel;
    struct {
        const char *save, *load;
        int64_t save_interval, keep_last, max_shard_size; /* max_shard_size: MB */
        bool async_save;
    } checkpoint;
    struct {
        int64_t log_interval;
        const char *metrics_file, *tensorboard_dir;
        bool measure_ceiling; /* measure the GEMM ceiling even when standard error is not a terminal */
    } log;
};

extern const struct config_row run_rows[];
extern const size_t run_row_count;

/* Returns the type of a run's weights and activations. */
static inline enum dtype run_dtype(const struct run_config *run) {
    return precision_dtype(run->train.precision);
}

/* The names of enum sharding in configurations, ended by NULL. */
extern const char *const run_shardings[];
/* Returns the values that the data ranks of a run share. Its keys are data_parallel_sharding_strategy, and
 * use_distributed_optimizer, which requires at least SHARDING_OPTIM. */
static inline enum sharding run_sharding(const struct run_config *run) {
    enum sharding sharding = (enum sharding)run->parallel.data_parallel_sharding_strategy;
    return sharding == SHARDING_NONE && run->parallel.use_distributed_optimizer ? SHARDING_OPTIM : sharding;
}

/* Fills values that depend on other keys (ffn_hidden_size, lr_decay_iters, ...). STATUS_USAGE, with both numbers, for
 * keys that contradict each other. Call it after the tokenizer's size, if any, is in model.vocab_size. */
int run_config_resolve(struct run_config *run);
/* Gives the run a resolved model from elsewhere. */
void run_config_take_model(struct run_config *run, const struct model_config *model);
/* True when a layer sees all tokens, not only those in the window. model_set_full makes a layer such a one. */
static inline bool model_layer_is_full(const struct model_config *model, int64_t layer) {
    return !model->window || model->full_layers[layer / 8] >> layer % 8 & 1;
}
static inline void model_set_full(struct model_config *model, int64_t layer) {
    model->full_layers[layer / 8] |= (unsigned char)(1 << layer % 8);
}
/* Sets the layers that have the window, from Megatron's window_attn_skip_freq. `numbers` is a list with 0 for each
 * layer without one, or one number of at least 1: every such layer has none. Returns false when no layer has the
 * window. */
bool model_skip_windows(struct model_config *model, const int64_t *numbers, bool is_list);
/* Returns N when every Nth layer has no window and all others have one; returns 0 when only a list can say it. */
int64_t model_window_period(const struct model_config *model);
/* Does the part of run_config_resolve that only concerns `model`; also used for a config.json. STATUS_USAGE. */
int model_config_resolve(struct model_config *model);
/* Returns the positions that a text may have: max_position_embeddings, or more where the rotation is scaled (linear:
 * factor times as many; YaRN: factor times the original ones). */
int64_t model_positions(const struct model_config *model);
