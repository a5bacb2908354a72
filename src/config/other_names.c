/* Explains unknown options. The table has names that other programs have for our options: TRL and transformers, PEFT,
 * Megatron-LM, vLLM, SGLang, llama.cpp and lm_eval. The error for an unknown option gives the advice of its row.
 *
 * Names are compared without their section and without regard to case, and '_' equals '-'. A name that begins with '-'
 * has one dash. Advice that begins with "--" is an option, other advice is a phrase. "@serve text" is for `serve`.
 * Advice applies to a command that has every option in it; the first one that applies is given. Without one the name is
 * for other commands. */
#include "config-internal.h"

#define REQUEST(field) "@serve each request has it: \"" field "\""
#define FIELD          "@serve each request has it, as a field", "@generate lines of --requests have it, as a field"
#define CONFIG         "config.json of the model has it"

enum { ADVICE = 5 };

static const struct {
    const char *names, *advice[ADVICE];
} others[] = {
    /* models, tokenizers and adapters */
    {"model -m model_name_or_path model_path model_name model_id base_model pretrained_model_name_or_path model_args",
     {"--model", "--init-from", "--from", "--tokenizer"}},
    {"hf_repo -hf model_url download_dir revision hf_token load_format cache_dir model_revision tokenizer_revision "
     "code_revision hub_token",
     {"nothing is downloaded: tools/models fetches a model, and --model names its directory"}},
    {"load load_dir checkpoint_dir ckpt_path", {"--from", "--checkpoint.load", "--model"}},
    {"pretrained_checkpoint finetune", {"--init-from", "--model"}},
    {"no_load_optim no_load_rng", {"a run with --init-from starts with only the weights"}},
    {"tokenizer_name tokenizer_name_or_path tokenizer_path tokenizer_type tokenizer_model vocab_file merge_file",
     {"--tokenizer"}},
    {"trust_remote_code remove_unused_columns dataset_kwargs dataloader_drop_last padding_free "
     "fan_in_fan_out use_cache inference_mode tokenizer_mode lora_dtype lora_backend fully_sharded_loras "
     "lora_extra_vocab_size accumulate_allreduce_grads_in_fp32 attention_softmax_in_fp32 task_type "
     "ddp_find_unused_parameters ddp_timeout manual_gc use_checkpoint_args dataloader_type log_throughput "
     "timing_log_level",
     {"it is not needed"}},
    {"target_tensor_parallel_size use_cpu_initialization low_cpu_mem_usage stage plot_loss do_train "
     "pad_to_multiple_of dataloader_pin_memory disable_tqdm logging_first_step "
     "gradient_checkpointing_kwargs include_num_input_tokens_seen skip_memory_metrics "
     "include_tokens_per_second average_tokens_across_devices ignore_data_skip prediction_loss_only "
     "label_names eval_accumulation_steps torch_empty_cache_steps accelerator_config ddp_bucket_cap_mb "
     "save_on_each_node",
     {"it is not needed"}},
    {"length_column_name megatron_core lora_task_type tokenizer_pool_size max_parallel_loading_workers "
     "check_tensors v2_block_manager num_scheduler_steps num_continuous_decode_steps async_scheduling "
     "overlap_schedule p2p_check config_format api_server_count fastapi_docs persist_layer_norm "
     "lazy_mpu_init empty_unused_memory_level scatter_gather_tensors_in_pipeline ring_exchange_p2p "
     "create_attention_mask_in_dataloader log_progress dist_ckpt",
     {"it is not needed"}},
    {"eos_token pad_token bos_token", {"the tokenizer's files have it"}},
    {"served_model_name alias -a", {"--model-name"}},
    {"lora enable_lora use_lora", {"--adapter-root DIR", "--peft lora", "--adapter DIR"}},
    {"lora_modules lora_paths lora_path adapter_path lora_init_without_apply qlora_adapter_name_or_path "
     "adapter_name_or_path peft_model",
     {"@serve --adapter NAME=DIR", "--init-adapter", "--adapter"}},
    {"lora_scaled", {"it is lora_alpha / r in adapter_config.json"}},
    {"max_lora_rank max_loras max_cpu_loras max_loras_per_batch max_loaded_loras max_prompt_adapters",
     {"--adapter-memory SIZE"}},

    /* the network of a server */
    {"host port", {"--listen HOST:PORT"}},
    {"uds", {"--listen unix:PATH"}},
    {"api_key", {"--api-key-file FILE"}},
    {"admin_api_key", {"--control-key-file FILE"}},
    {"ssl_keyfile ssl_key_file", {"--tls-key"}},
    {"ssl_certfile ssl_cert_file", {"--tls-cert"}},
    {"allowed_origins allowed_methods allowed_headers allow_credentials allow_origins cors", {"--cors-origin"}},
    {"timeout -to", {"--request-timeout"}},
    {"watchdog_timeout dist_timeout", {"--rank-timeout"}},
    {"log_level uvicorn_log_level log_requests log_stats verbose -v verbosity log_file log_disable log_colors "
     "log_prefix uvicorn_access_log logging_level max_log_len",
     {"--log-format"}},
    {"metrics", {"/metrics is on --control; --metrics-on-data puts it on --listen, too"}},
    {"otlp_traces_endpoint", {"--otlp-endpoint"}},
    {"schedule_policy scheduling_policy", {"@serve keys of --api-key-file have shares, and requests a \"priority\""}},
    {"auto_tool_choice tool_call_parser reasoning_parser reasoning_format jinja",
     {"templates always run; no tool call or thought is read from a completion"}},
    {"webui", {"/ on --listen is the page"}},
    {"embedding embeddings reranking rerank pooling is_embedding",
     {"only completions, chats and log-probabilities are computed"}},

    /* memory and batches */
    {"gpu_memory_utilization mem_fraction_static kv_cache_memory_bytes max_total_tokens swap_space cpu_offload_gb "
     "num_gpu_blocks_override",
     {"--kv-cache-memory SIZE", "memory is planned before the run: --dry-run prints the plan"}},
    {"max_num_seqs max_running_requests parallel -np", {"--max-batch-size", "--batch"}},
    {"max_num_batched_tokens max_prefill_tokens chunked_prefill_size ubatch_size -ub", {"--max-batch-tokens"}},
    {"batch_size -b",
     {"--train.micro_batch_size", "--micro-batch-size", "--batch", "--max-batch-tokens",
      "the program chooses the batches"}},
    {"no_enable_prefix_caching disable_radix_cache no_cache_prompt", {"--prefix-cache=off"}},
    {"prefix_caching cache_prompt cache_reuse", {"--prefix-cache=on"}},
    {"chunked_prefill mixed_chunk cont_batching -cb",
     {"prompts always share steps with completions: --max-batch-tokens"}},
    {"enforce_eager disable_cuda_graph", {"--cuda-graphs=off"}},
    {"cuda_graph_max_bs cuda_graph_sizes max_seq_len_to_capture cuda_graph_padding cudagraph_capture_sizes",
     {"--cuda-graphs"}},
    {"kv_cache_dtype cache_type_k cache_type_v -ctk -ctv", {"keys and values have the type of --precision"}},
    {"deterministic_inference deterministic_mode full_determinism",
     {"--batch-invariant=on", "equal seeds always give equal bits"}},
    {"quantization quantize load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_nested_quant torchao_config "
     "bnb_4bit_compute_dtype qlora "
     "quantization_bit -q",
     {"--load-in=nf4", "quantised models open as they are; activations are in --precision"}},
    {"mlock no_mmap mmap", {"weights are always read into memory at the start"}},

    /* lengths and sampling */
    {"max_model_len max_seq_length max_seq_len max_length seq_length sequence_len cutoff_len max_prompt_length "
     "model_max_length context_length ctx_size -c n_ctx decoder_seq_length",
     {"--data.seq_length", "--max-model-len", "--max-length", "--seq-length", "--input-len"}},
    {"block_size page_size", {"--data.seq_length", "pages of keys and values have a fixed size"}},
    {"max_new_tokens max_tokens n_predict predict -n max_completion_length max_gen_toks",
     {"--max-new-tokens", REQUEST("max_tokens"), "--output-len"}},
    {"seed random_seed -s", {"--train.seed", "--seed", REQUEST("seed")}},
    {"temperature temp", {"--temperature", REQUEST("temperature")}},
    {"top_p top_k min_p presence_penalty frequency_penalty logit_bias ignore_eos generation_config "
     "override_generation_config preferred_sampling_params stop_token_ids "
     "eos_token_id",
     {FIELD}},
    {"stream streaming", {"--stream", REQUEST("stream")}},
    {"repetition_penalty repeat_penalty", {"--repetition-penalty", REQUEST("repetition_penalty")}},
    {"logprobs n_probs max_logprobs", {FIELD, "'cambium score' prints the log-probability of each token"}},
    {"num_return_sequences num_generations best_of n", {"--num-samples", REQUEST("n")}},
    {"stop stop_sequences stop_strings reverse_prompt -r", {"--stop", REQUEST("stop")}},
    {"do_sample",
     {"with --temperature 0 the likeliest token is taken, with other values one is drawn", REQUEST("temperature")}},
    {"num_beams use_beam_search no_repeat_ngram_size length_penalty mirostat typical typical_p top_nsigma "
     "dynatemp_range penalty_alpha num_beam_groups bad_words_ids dry_multiplier xtc_probability",
     {"it is not supported: temperature, top_k, top_p, min_p and penalties are"}},
    {"repeat_last_n", {"all tokens of prompt and completion count for --repetition-penalty"}},
    {"prompt -p", {"--prompt", REQUEST("prompt"), "--input"}},
    {"file -f prompt_file", {"--prompt - < FILE", "--input"}},
    {"system_prompt system_message -sys", {"--system", "one of --messages has the role system"}},
    {"interactive -i conversation -cnv single_turn multiline_input", {"@generate 'cambium chat' talks in a terminal"}},
    {"no_display_prompt display_prompt", {"with --echo the prompt is printed, too"}},
    {"chat_template chat_template_path chat_template_file template", {"--tuning.template", "--chat-template"}},

    /* devices and ranks */
    {"no_cuda use_cpu cpu", {"--device=cpu"}},
    {"n_gpu_layers gpu_layers -ngl main_gpu base_gpu_id device_id -mg device_map gpu cuda use_cuda gpu_id",
     {"--device=cuda"}},
    {"tensor_parallel_size tensor_parallel tp_size tp tensor_split -ts split_mode -sm",
     {"--parallel.tensor_model_parallel_size", "--tensor", "--fix parallel.tensor_model_parallel_size=N"}},
    {"pipeline_parallel_size pipeline_parallel pp_size pp",
     {"--parallel.pipeline_model_parallel_size", "--pipeline", "--fix parallel.pipeline_model_parallel_size=N"}},
    {"data_parallel_size dp_size dp",
     {"@serve each replica is its own server", "data ranks are --ranks / (tensor x pipeline)"}},
    {"nproc_per_node num_processes num_gpus gpus nnodes node_rank master_addr master_port local_rank "
     "distributed_executor_backend dist_init_addr",
     {"for threads give --ranks N; mpirun -n N or srun runs processes", "--devices"}},
    {"distributed_backend ddp_backend disable_custom_all_reduce", {"--collectives"}},
    {"threads -t threads_batch -tb num_threads", {"--threads", "--parallel.threads_per_rank", "--workers"}},
    {"num_workers dataloader_num_workers preprocessing_num_workers dataset_num_proc",
     {"--workers", "it is not needed: no workers read the rows"}},
    {"attn_implementation flash_attn -fa flash_attention flash_attention_2 attention_backend transformer_impl",
     {"it is not needed: the program chooses the kernels"}},
    {"torch_compile liger_kernel mcore_models masked_softmax_fusion bias_gelu_fusion bias_swiglu_fusion rope_fusion "
     "unsloth compilation_config cross_entropy_loss_fusion gradient_accumulation_fusion",
     {"it is not needed: the program chooses the kernels"}},

    /* training */
    {"learning_rate max_lr lr", {"--optim.lr"}},
    {"min_learning_rate min_lr_rate min_lr_ratio", {"--optim.min_lr"}},
    {"lr_scheduler_type lr_scheduler lr_schedule lr_scheduler_kwargs", {"--optim.lr_decay_style"}},
    {"warmup_steps num_warmup_steps warmup_iters warmup", {"--optim.lr_warmup_iters"}},
    {"warmup_ratio lr_warmup_fraction", {"give --optim.lr_warmup_iters: the ratio x train.train_iters"}},
    {"lr_warmup_samples", {"give --optim.lr_warmup_iters: the samples / train.global_batch_size"}},
    {"lr_decay_samples lr_decay_steps", {"--optim.lr_decay_iters"}},
    {"max_grad_norm grad_clip gradient_clip_val gradient_clipping", {"--optim.clip_grad"}},
    {"adam_epsilon", {"--optim.adam_eps"}},
    {"optimizer optim optim_args", {"the optimizer is AdamW: --optim.lr, --optim.weight_decay"}},
    {"num_train_epochs num_epochs epochs max_epochs",
     {"--tuning.epochs", "give --train.train_iters: the epochs x samples / train.global_batch_size"}},
    {"max_steps num_train_steps max_iters num_steps iters", {"--train.train_iters", "--steps"}},
    {"train_samples", {"give --train.train_iters: the samples / train.global_batch_size"}},
    {"per_device_train_batch_size train_micro_batch_size_per_gpu micro_batch_size micro_batch",
     {"--train.micro_batch_size", "--micro-batch-size"}},
    {"per_device_eval_batch_size eval_batch_size",
     {"validation has micro batches of --train.micro_batch_size", "the program chooses the batches"}},
    {"train_batch_size total_batch_size", {"--train.global_batch_size", "--global-batch-size"}},
    {"gradient_accumulation_steps grad_accum_steps gradient_accumulation",
     {"it is train.global_batch_size / (micro_batch_size x data ranks)"}},
    {"rampup_batch_size", {"one --train.global_batch_size holds for the whole run"}},
    {"bf16 bfloat16 bf16_full_eval", {"--train.precision=bf16", "--precision=bf16", "--dtype=bf16"}},
    {"tf32", {"--train.precision=tf32", "--precision=tf32"}},
    {"fp32", {"--train.precision=fp32", "--precision=fp32", "--dtype=fp32"}},
    {"fp8 fp8_hybrid", {"--train.precision=fp8", "only training has FP8"}},
    {"fp16 half float16 fp16_full_eval",
     {"fp16 is not computed: --train.precision=bf16 is", "fp16 is not computed: --precision=bf16 is", "--dtype=fp16"}},
    {"torch_dtype dtype mixed_precision precision outtype", {"--train.precision", "--precision", "--dtype"}},
    {"loss_scale initial_loss_scale min_loss_scale", {"it is not needed: bf16 has no loss scale"}},
    {"gradient_checkpointing activation_checkpointing checkpoint_activations",
     {"--parallel.recompute_granularity=full"}},
    {"recompute_activations", {"--parallel.recompute_granularity=selective"}},
    {"deepspeed zero_stage fsdp fsdp_config torch_fsdp2 megatron_fsdp", {"--parallel.data_parallel_sharding_strategy"}},
    {"num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank",
     {"--parallel.virtual_pipeline_model_parallel_size"}},
    {"dataset dataset_name train_file dataset_path train_data data data_path train_data_path dataset_dir input "
     "input_file",
     {"--data", "--data.data_path", "--requests", "--input", "--task NAME=FILE.jsonl"}},
    {"validation_file eval_file eval_dataset valid_data_path val_data val_file test_data_path",
     {"--valid-data", "--data.split"}},
    {"val_size validation_split_percentage test_size val_set_size dataset_test_split dataset_train_split",
     {"put rows for validation into a separate file: --valid-data", "--data.split"}},
    {"dataset_text_field text_column",
     {"--json-keys", "rows have known fields, such as text, prompt and completion, or messages"}},
    {"max_train_samples max_eval_samples max_samples", {"--limit", "all rows of a file are read"}},
    {"data_seed", {"--data.seed", "--seed"}},
    {"completion_only_loss assistant_only_loss train_on_inputs mask_prompt", {"--tuning.train_on_prompt"}},
    {"logging_steps logging_strategy log_every_n_steps", {"--log.log_interval"}},
    {"logging_dir tensorboard", {"--log.tensorboard_dir"}},
    {"report_to wandb_project run_name wandb_exp_name",
     {"there are --log.metrics_file (JSON lines) and --log.tensorboard_dir"}},
    {"output_dir save save_dir output_path outfile -o output output_file save_path",
     {"--output", "--checkpoint.save", "--output-prefix"}},
    {"overwrite_output_dir", {"name another --output, or resume with --checkpoint.load"}},
    {"log_samples", {"--samples"}},
    {"save_steps save_strategy", {"--checkpoint.save_interval"}},
    {"save_total_limit save_retain_interval", {"--checkpoint.keep_last"}},
    {"save_safetensors ckpt_format dist_ckpt_format", {"files are always safetensors"}},
    {"resume_from_checkpoint resume", {"--checkpoint.load", "--resume"}},
    {"eval_steps eval_strategy evaluation_strategy do_eval", {"--train.eval_interval"}},
    {"early_stopping_patience early_stopping", {"--train.early_stop"}},
    {"load_best_model_at_end metric_for_best_model greater_is_better",
     {"@finetune best/ in --output has the adapter of the best validation"}},
    {"exit_duration_in_mins exit_signal_handler", {"SIGTERM saves and ends; see also --train.exit_interval"}},
    {"push_to_hub hub_model_id hub_strategy hub_private_repo", {"nothing is uploaded"}},
    {"guided_decoding_backend grammar_backend grammar grammar_file json_schema structured_outputs_config "
     "speculative_config speculative_model speculative_algorithm num_speculative_tokens model_draft -md draft_max "
     "speculative_num_steps speculative_num_draft_tokens speculative_draft_model_path mmproj image limit_mm_per_prompt "
     "context_parallel_size cp_size ulysses_size expert_parallel",
     {"it is not supported"}},
    {"expert_parallel_size ep_size num_experts moe_router_topk moe_grouped_gemm beta loss_type reward_model ref_model "
     "neftune_noise_alpha label_smoothing_factor group_by_length modules_to_save lora_modules_to_save lora_bias "
     "init_lora_weights stream_interval save_only_model auto_find_batch_size color in_prefix bias samplers",
     {"it is not supported"}},
    {"root_path ssl_ca_certs response_role kv_transfer_config slots props numa mock_data log_params_norm "
     "tp_comm_overlap escape keep override_tensor n_cpu_moe kv_offload sampling_backend dp_attention "
     "reward_funcs task runner squared_relu label_smoothing multi_latent_attention q_lora_rank "
     "mtp_num_layers moe_aux_loss_coeff apply_layernorm_1p",
     {"it is not supported"}},
    {"apply_residual_connection_post_layernorm apply_query_key_layer_scaling rotary_interleaved "
     "sgd_momentum cpu_offloading optimizer_cpu_offload activation_offloading distribute_saved_activations "
     "start_weight_decay end_weight_decay weight_decay_incr_style decoupled_lr calculate_per_token_loss "
     "fp8_recipe precision_aware_optimizer main_grads_dtype exp_avg_dtype "
     "num_distributed_optimizer_instances pipeline_model_parallel_layout data_parallel_random_init "
     "optim_target_modules target_parameters loftq_config lora_target_parameters trainable_token_indices "
     "layers_pattern layer_replication",
     {"it is not supported"}},
    {"eva_config corda_config slot_save_path grp_attn_n defrag_thold context_shift swa_full kv_unified "
     "control_vector override_kv sleep_mode sleep_idle_seconds reasoning_budget disaggregation_mode "
     "hierarchical_cache hicache_ratio middleware preemption_mode max_num_partial_prefills "
     "long_prefill_token_threshold schedule_conservativeness speculative_eagle_topk mm_processor_kwargs "
     "assistant_model max_time",
     {"it is not supported"}},

    /* models and adapters to train */
    {"group_query_attention num-key-value-heads", {"--model.num_query_groups"}},
    {"norm_epsilon layer_norm_eps", {"--model.layernorm_epsilon"}},
    {"use_rotary_position_embeddings", {"--model.position_embedding_type=rope"}},
    {"rope-theta rope_freq_base", {"--model.rotary_base", CONFIG}},
    {"rope-scaling rope_scale rope_freq_scale hf_overrides", {"--model.rope_scaling_factor", CONFIG}},
    {"disable_bias_linear", {"--model.add_bias_linear=false"}},
    {"make_vocab_size_divisible_by padded_vocab_size", {"--model.vocab_size"}},
    {"lora_r lora_rank rank r", {"--peft.r", "--rank"}},
    {"lora_alpha alpha", {"--peft.lora_alpha"}},
    {"lora_dropout", {"--peft.lora_dropout"}},
    {"target_modules lora_target_modules lora_target", {"--peft.target_modules"}},
    {"lora_layers num_lora_layers", {"--peft.layers_to_transform"}},
    {"peft peft_type use_peft finetuning_type tuner_type", {"--peft"}},
    {"rslora", {"--peft.use_rslora"}},
    {"dora", {"--peft.use_dora"}},
    {"prompt_length num_virtual_tokens", {"--peft.num_virtual_tokens"}},
    {"merge_and_unload merge_lora", {"'cambium merge' folds an adapter into its model"}},
};

static bool has_name(const char *names, const char *word) {
    size_t length = strcspn(names, " ");
    while (*names && !config_is_name(names, length, word)) {
        names += length + (names[length] != 0);
        length = strcspn(names, " ");
    }
    return *names;
}

/* Returns the text of advice when it applies to the command, else NULL. */
static const char *find_text(const struct config_command *command, const char *advice) {
    const char *text = *advice == '@' ? strchr(advice, ' ') + 1 : advice;
    if (*advice == '@' && !config_is_name(advice + 1, (size_t)(text - advice) - 2, command->name))
        return NULL;
    for (const char *at = text; (at = strstr(at, "--")); at += 2)
        if (config_find_row(command, at + 2, strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-_.")) ==
            config_row_total(command))
            return NULL;
    return text;
}

/* Returns the advice for a name, or NULL when the table does not have it. */
static const char *find_advice(const struct config_command *command, const char *word) {
    size_t i = 0;
    while (i < sizeof others / sizeof *others && !has_name(others[i].names, word))
        i++;
    if (i == sizeof others / sizeof *others)
        return NULL;
    const char *text = NULL;
    for (size_t a = 0; a < ADVICE && others[i].advice[a] && !text; a++)
        text = find_text(command, others[i].advice[a]);
    return text ? text : "it is for other commands ('cambium help finetune', 'cambium help serve')";
}

const char *config_other_name(const struct config_command *command, const char *word) {
    static const char *const switches[] = {"-", "no-", "enable-", "disable-", "use-"};
    const char *dot = strrchr(word, '.'), *name = dot ? dot + 1 : word, *text = find_advice(command, name);
    for (size_t i = 0; i < sizeof switches / sizeof *switches && !text; i++)
        if (config_is_name(name, strlen(switches[i]), switches[i]))
            text = find_advice(command, name += strlen(switches[i]));
    return text;
}

void config_explain(const struct config_command *command, const char *word, bool is_file, char *out, size_t bytes) {
    const char *path = config_suggest(command, word, is_file), *advice = NULL;
    if (!path || !config_is_name(path, strlen(strchr(word, '.') ? word : path), word))
        advice = config_other_name(command, word);
    if (advice && strncmp(advice, "--", 2))
        snprintf(out, bytes, ": %s", advice);
    else if (advice && is_file && strchr(advice, '.'))
        snprintf(out, bytes, " (did you mean %s?)", advice + 2);
    else if (advice || path)
        snprintf(out, bytes, " (did you mean %s%s?)", advice || is_file ? "" : "--", advice ? advice : path);
    else
        *out = 0;
}
