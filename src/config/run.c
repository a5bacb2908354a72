/* The rows of a run's configuration: Megatron-LM's names where it has one. */
#include "model_words.h"

#include <math.h>

static const char *const normalizations[] = {"LayerNorm", "RMSNorm", NULL};        /* enum normalization */
static const char *const positions[] = {"learned_absolute", "rope", "yarn", NULL}; /* enum position_embedding */
static const char *const activations[] = {"gelu_tanh", "gelu", NULL};
static const char *const decay_styles[] = {"constant", "linear", "cosine", "inverse-square-root", "WSD", NULL};
static const char *const wsd_styles[] = {"linear", "cosine", "exponential", "minus_sqrt", NULL};
static const char *const granularities[] = {"none", "selective", "full", NULL}; /* enum recompute_granularity */
const char *const run_shardings[] = {"no_shard", "optim", "optim_grads", "optim_grads_params", NULL};
static const char *const methods[] = {"uniform", "block", NULL}; /* enum recompute_method */
const char *const precision_names[] = {"fp32", "bf16", "tf32", "fp8", NULL};
const char *const plain_precision_names[] = {"fp32", "bf16", "tf32", NULL};
static const char *const fp8_formats[] = {"hybrid", "e4m3", NULL};         /* enum fp8_format */
static const char *const amax_algorithms[] = {"max", "most_recent", NULL}; /* enum fp8_amax_algorithm */

#define AT(member) offsetof(struct run_config, member)
/* A key whose path names its member. */
#define INT(member, ...)    ROW_INT(#member, AT(member), __VA_ARGS__)
#define FLOAT(member, ...)  ROW_FLOAT(#member, AT(member), __VA_ARGS__)
#define BOOL(member, ...)   ROW_BOOL(#member, AT(member), __VA_ARGS__)
#define CHOICE(member, ...) ROW_CHOICE(#member, AT(member), __VA_ARGS__)
#define PATH(member, ...)   ROW_PATH(#member, AT(member), __VA_ARGS__)

const struct config_row run_rows[] = {
    INT(model.num_layers, NULL, 1, MODEL_MAX_LAYERS, "transformer layers"),
    INT(model.hidden_size, NULL, 1, MODEL_MAX_WIDTH, "width of the residual stream"),
    INT(model.num_attention_heads, NULL, 1, MODEL_MAX_WIDTH,
        "attention heads; must divide hidden_size unless kv_channels is given"),
    INT(model.num_query_groups, NULL, 1, MODEL_MAX_WIDTH,
        "key/value heads; must divide num_attention_heads, which is the default"),
    INT(model.kv_channels, NULL, 1, MODEL_MAX_WIDTH,
        "columns of a head; hidden_size / num_attention_heads when not given"),
    INT(model.ffn_hidden_size, NULL, 1, MODEL_MAX_FFN_WIDTH,
        "width of the feed-forward layer; default: 4 * hidden_size, or with swiglu 2/3 of that, rounded down to a "
        "multiple of 64"),
    INT(model.max_position_embeddings, NULL, 1, MODEL_MAX_POSITIONS,
        "positions of the model; data.seq_length when not given"),
    INT(model.vocab_size, NULL, 1, MODEL_MAX_VOCABULARY, "tokens in the vocabulary; the tokenizer's when not given"),
    FLOAT(model.hidden_dropout, "0.1", 0, 1, "share of features dropped before each residual sum, below 1"),
    FLOAT(model.attention_dropout, "0.1", 0, 1, "share of attention weights dropped, below 1"),
    FLOAT(model.embedding_dropout, "-1", 0, 1,
          "share of features dropped after the embedding, below 1; hidden_dropout when not given"),
    FLOAT(model.init_method_std, "0.02", 0, 100,
          "standard deviation of the initial weights; those that write to the residual stream get it divided by "
          "sqrt(2 * num_layers)"),
    CHOICE(model.normalization, "LayerNorm", normalizations, "LayerNorm, or RMSNorm, which has no mean and no biases"),
    FLOAT(model.layernorm_epsilon, "1e-5", 1e-20, 1,
          "added to the variance in LayerNorm, and to the mean square in RMSNorm"),
    BOOL(model.qk_layernorm, "false", "a norm of each query and key head, before its rotation"),
    CHOICE(model.activation, "gelu_tanh", activations, "GELU by its tanh formula, or exact"),
    BOOL(model.swiglu, "false",
         "a gated feed-forward layer instead of GELU: SiLU of one half of its columns times the other half"),
    BOOL(model.untie_embeddings_and_output_weights, "false",
         "give the output layer its own weights instead of the embedding's"),
    BOOL(model.add_bias_linear, "true", "biases in the linear layers (norms always have theirs)"),
    BOOL(model.add_qkv_bias, "false", "biases of only queries, keys and values"),
    ROW_CHOICE("model.position_embedding_type", AT(model.position_embedding), "learned_absolute", positions,
               "a table of learned positions, or rotated queries and keys, unscaled or scaled by YaRN"),
    ROW_FLOAT("model.rotary_base", AT(model.rotary.base), NULL, 1, 1e30,
              "of rope and yarn: base of the wavelengths, above 1; 10000 when not given"),
    ROW_FLOAT("model.rotary_percent", AT(model.rotary.percent), NULL, 1e-6, 1,
              "of rope and yarn: share of a head's columns that are rotated; all when not given"),
    ROW_FLOAT("model.rotary_seq_len_interpolation_factor", AT(model.rotary.interpolation), NULL, 1, MODEL_MAX_POSITIONS,
              "of rope: divisor of the positions; 1 when not given"),
    ROW_BOOL("model.use_rope_scaling", AT(model_words.use_rope_scaling), "false",
             "of rope: divide long wavelengths as Llama 3 does; implied by rope_scaling_factor"),
    ROW_FLOAT("model.rope_scaling_factor", AT(model.rotary.factor), NULL, 1, MODEL_MAX_POSITIONS,
              "of use_rope_scaling: divisor of long wavelengths; 8 when not given"),
    ROW_FLOAT(
        "model.rope_low_freq_factor", AT(model.rotary.low), NULL, 1e-6, MODEL_MAX_POSITIONS,
        "of use_rope_scaling: wavelengths above rope_original_max_position_embeddings / this are divided; 1 when not "
        "given"),
    ROW_FLOAT(
        "model.rope_high_freq_factor", AT(model.rotary.high), NULL, 1e-6, MODEL_MAX_POSITIONS,
        "of use_rope_scaling: wavelengths below rope_original_max_position_embeddings / this are not changed; 4 when "
        "not given"),
    ROW_INT("model.rope_original_max_position_embeddings", AT(model_words.rope_original_max_position_embeddings), NULL,
            1, MODEL_MAX_POSITIONS,
            "of use_rope_scaling: positions of the model before it was scaled; 8192 when not given"),
    ROW_FLOAT("model.yarn_rotary_scaling_factor", AT(model.rotary.yarn_factor), NULL, 1, MODEL_MAX_POSITIONS,
              "of yarn: factor by which positions were extended; must be given"),
    ROW_INT("model.yarn_original_max_position_embeddings", AT(model_words.yarn_original_max_position_embeddings), NULL,
            1, MODEL_MAX_POSITIONS, "of yarn: positions of the model before it was scaled; must be given"),
    ROW_FLOAT(
        "model.yarn_beta_fast", AT(model.rotary.beta_fast), NULL, 1e-6, MODEL_MAX_POSITIONS,
        "of yarn: columns that turn more often than this in the original positions are not scaled; 32 when not given"),
    ROW_FLOAT("model.yarn_beta_slow", AT(model.rotary.beta_slow), NULL, 1e-6, MODEL_MAX_POSITIONS,
              "of yarn: columns that turn less often than this are scaled fully; 1 when not given"),
    ROW_FLOAT("model.yarn_attention_factor", AT(model.rotary.attention_factor), NULL, 1e-6, MODEL_MAX_POSITIONS,
              "of yarn: factor of sines and cosines; 0.1 * ln(yarn_rotary_scaling_factor) + 1 when not given"),
    ROW_LIST("model.window_size", AT(model_words.window_size), "W,0",
             "a token sees itself and the W tokens before it; when not given, all tokens before it",
             .item = model_words_window_size),
    ROW_LIST("model.window_attn_skip_freq", AT(model_words.window_attn_skip_freq), "N|1,0,...",
             "of window_size: each Nth layer sees all tokens; or a list with 1 for each layer with a window and 0 for "
             "each without. When not given, every layer has the window",
             .item = model_words_window_skip),

    ROW_PATH("tokenizer", AT(tokenizer.path), "DIR",
             "directory of the tokenizer; without one model.vocab_size is needed"),

    CONFIG_DEVICE_ROW(AT(device)),
    CONFIG_COLLECTIVES_ROW(AT(collectives)),
    CONFIG_ALGORITHMS_ROW(AT(gemm_algorithms)),
    CONFIG_INVARIANT_ROW(AT(batch_invariant)),

    ROW_PATHS("data.data_path", AT(data.data_path), "P...",
              "prefix of a dataset (P.bin and P.idx), or a blend: weight, prefix, weight, prefix, ..."),
    INT(data.seq_length, NULL, 1, MODEL_MAX_POSITIONS, "tokens of a sample; max_position_embeddings when not given"),
    ROW_TEXT("data.split", AT(data.split), "A,B,C", "shares of the documents for training, validation and test",
             .default_text = "969, 30, 1"),
    INT(data.seed, "1234", 0, 4294967295.0, "seed of the order of the samples"),
    PATH(data.data_cache_path, "DIR",
         "directory of index maps; when not given, cache/GPTDataset_indices next to each prefix", .may_differ = true),
    BOOL(data.eod_mask_loss, "false", "no loss on end-of-document tokens"),
    BOOL(data.reset_position_ids, "false", "positions start again after each document's end"),
    BOOL(data.reset_attention_mask, "false", "no attention across a document's end"),

    INT(train.train_iters, NULL, 1, 1e9, "iterations (updates of the weights) of the whole run"),
    INT(train.micro_batch_size, "1", 1, 65536, "samples of one forward and backward pass"),
    INT(train.global_batch_size, NULL, 1, 1048576,
        "samples of one iteration: a multiple of micro_batch_size, which is the default"),
    CHOICE(train.precision, "fp32", precision_names,
           "data type of the computation; bf16 keeps fp32 master weights and gradients; fp8: bf16 with products of "
           "layers' linears in FP8; tf32: fp32 with products in TF32"),
    CHOICE(train.fp8_format, "hybrid", fp8_formats,
           "of fp8: hybrid casts inputs and weights to E4M3 and gradients to E5M2; e4m3 casts all to E4M3"),
    INT(train.fp8_margin, "0", 0, 64, "of fp8: powers of two by which scales are smaller"),
    INT(train.fp8_amax_history_len, NULL, 1, 65536,
        "of fp8: iterations whose largest values decide a scale; 1024 when not given"),
    CHOICE(train.fp8_amax_compute_algo, "max", amax_algorithms,
           "of fp8: scale by the largest value of these iterations, or by that of the last one"),
    INT(train.seed, "1234", 0, 4294967295.0, "seed of the initial weights and of dropout"),
    INT(train.eval_interval, "0", 0, 1e9, "iterations between validations; 0: none"),
    INT(train.eval_iters, "100", 0, 1e9, "global batches of one validation; 0: none"),
    BOOL(train.skip_train, "false", "run one validation of the weights and no iterations; save nothing"),
    INT(train.exit_interval, "0", 0, 1e9,
        "save and exit at each multiple of this number of iterations, without changing the schedule; 0: off"),
    INT(train.early_stop, "0", 0, 1e9,
        "stop after this number of validations in a row without a better loss; 0: never"),

    FLOAT(optim.lr, "-1", 0, 1e6, "highest learning rate; must be given"),
    FLOAT(optim.min_lr, "0", 0, 1e6, "learning rate at the end of the decay"),
    CHOICE(optim.lr_decay_style, "linear", decay_styles, "shape of the learning rate's decay"),
    INT(optim.lr_decay_iters, NULL, 1, 1e9, "iterations until min_lr is reached; train_iters when not given"),
    INT(optim.lr_warmup_iters, "0", 0, 1e9,
        "iterations in which the learning rate rises linearly from lr_warmup_init to lr"),
    FLOAT(optim.lr_warmup_init, "0", 0, 1e6, "learning rate at the start of the warm-up"),
    INT(optim.lr_wsd_decay_iters, NULL, 1, 1e9, "iterations of the decay at the end of a WSD schedule; needed for WSD"),
    CHOICE(optim.lr_wsd_decay_style, "exponential", wsd_styles, "shape of the decay at the end of a WSD schedule"),
    FLOAT(optim.weight_decay, "0.01", 0, 1e6,
          "decoupled weight decay (AdamW) of matrices and embeddings; biases and norms have none"),
    FLOAT(optim.clip_grad, "1.0", 0, 1e30, "largest global norm of the gradient; 0: no clipping"),
    FLOAT(optim.adam_beta1, "0.9", 0, 1, "decay of Adam's mean of gradients, below 1"),
    FLOAT(optim.adam_beta2, "0.999", 0, 1, "decay of Adam's mean of squared gradients, below 1"),
    FLOAT(optim.adam_eps, "1e-8", 1e-30, 1, "added to the root in Adam's quotient"),

    INT(parallel.tensor_model_parallel_size, "1", 1, 65536, "ranks that share each layer"),
    INT(parallel.pipeline_model_parallel_size, "1", 1, 65536, "pipeline stages that share the layers"),
    INT(parallel.virtual_pipeline_model_parallel_size, "1", 1, 64,
        "model chunks of each stage; more than 1: the interleaved schedule"),
    INT(parallel.microbatch_group_size_per_vp_stage, "0", 0, 65536,
        "micro batches that go through one chunk before the next chunk's turn; 0: pipeline_model_parallel_size"),
    INT(parallel.decoder_first_pipeline_num_layers, "0", 0, MODEL_MAX_LAYERS,
        "layers of the first stage; 0: an equal share"),
    INT(parallel.decoder_last_pipeline_num_layers, "0", 0, MODEL_MAX_LAYERS,
        "layers of the last stage, which also has the head; 0: an equal share"),
    BOOL(parallel.account_for_embedding_in_pipeline_split, "false",
         "count the embedding as one layer when layers are dealt to stages: the first chunk has one less"),
    BOOL(parallel.account_for_loss_in_pipeline_split, "false",
         "count the head and its loss as one layer: the last chunk has one less"),
    INT(parallel.context_parallel_size, "1", 1, 65536, "ranks that share each sequence; this build supports 1"),
    INT(parallel.expert_model_parallel_size, "1", 1, 65536, "ranks that share the experts; this build supports 1"),
    BOOL(parallel.sequence_parallel, "false",
         "divide norms, dropout and residuals along the sequence over the tensor-parallel ranks"),
    BOOL(parallel.use_distributed_optimizer, "false",
         "divide the optimizer's state over the data-parallel ranks (ZeRO-1)"),
    CHOICE(parallel.data_parallel_sharding_strategy, "no_shard", run_shardings,
           "values that the data-parallel ranks divide: none, the optimizer's state (as use_distributed_optimizer), "
           "the gradients too (ZeRO-2), or the weights too (fully sharded)"),
    INT(parallel.fsdp_keep_gathered, "0", 0, MODEL_MAX_LAYERS,
        "with optim_grads_params, number of further layers whose gathered weights stay in memory between their uses"),
    BOOL(parallel.overlap_grad_reduce, "true",
         "sum gradients over the data-parallel ranks while the backward runs, not after it"),
    BOOL(parallel.overlap_param_gather, "true",
         "with divided optimizers or weights, gather weights while other layers compute, not before they are needed"),
    CHOICE(parallel.recompute_granularity, "none", granularities,
           "activations that the backward recomputes instead of storing: of some modules of each layer, or of whole "
           "layers"),
    CHOICE(parallel.recompute_method, "uniform", methods,
           "of full: recompute all layers, recompute_num_layers at a time, or the first recompute_num_layers layers of "
           "each chunk"),
    INT(parallel.recompute_num_layers, "1", 1, MODEL_MAX_LAYERS, "of full: see recompute_method"),
    INT(parallel.num_microbatches_with_partial_activation_checkpoints, "0", 0, 65536,
        "of method block: number of the micro batches held at once by a stage that recompute only "
        "recompute_num_layers layers; the others recompute all layers; 0: no difference"),
    ROW_LIST("parallel.recompute_modules", AT(parallel.recompute_modules), "MODULE...",
             "of selective: core_attn (attention never stores its weights), layernorm, mlp_act",
             .default_text = "core_attn"),
    INT(parallel.nccl_max_ctas, "0", 0, 64,
        "the maximum number of a GPU's multiprocessors that a call of NCCL takes; 0: NCCL decides"),
    INT(parallel.gemm_sm_margin, "0", 0, 1024,
        "multiprocessors of a GPU that products leave free while gradients or weights travel"),
    INT(parallel.threads_per_rank, "0", 0, 4096,
        "threads that each rank computes with; 0: one if ranks share their cores, else all cores of the rank",
        .may_differ = true),

    PATH(checkpoint.save, "DIR", "write checkpoints DIR/iter_0000100; when not given, nothing is saved"),
    PATH(checkpoint.load, "DIR", "resume from the newest checkpoint in DIR; start afresh if there is none yet"),
    INT(checkpoint.save_interval, "0", 0, 1e9, "iterations between checkpoints; 0: save only at the end"),
    INT(checkpoint.keep_last, "0", 0, 1e9,
        "number of newest checkpoints to keep, of this run or of the one that it resumes; 0: all"),
    BOOL(checkpoint.async_save, "false",
         "write while training continues, from a copy in memory: 12 bytes a parameter over all ranks, 14 in bf16"),
    INT(checkpoint.max_shard_size, "5000", 1, 1e9,
        "MB (10^6 bytes) of tensors in a file; further files hold the rest, and an index names them all"),

    INT(log.log_interval, "1", 1, 1e9, "iterations between progress lines where no bar is drawn", .may_differ = true),
    PATH(log.metrics_file, "FILE", "append each iteration's figures as a line of JSON", .may_differ = true),
    PATH(log.tensorboard_dir, "DIR", "write TensorBoard event files", .may_differ = true),
    BOOL(log.measure_ceiling, "false",
         "measure the matrix-product ceiling of this machine first, even if standard error is not a terminal",
         .may_differ = true),
};
const size_t run_row_count = sizeof run_rows / sizeof *run_rows;
