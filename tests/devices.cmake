# Tests of all that computes, once more on other devices.

# On the stand-ins for a GPU: cuda_NAME, with the label cuda. They are skipped by name where this build has no CUDA. The
# other programs take too long on an interpreter, or test what the CPU alone promises or has, such as int8 weights.
set(on_card
    kernels_adapter_test kernels_draw_test kernels_encoded_test kernels_ends_test kernels_fp8_test kernels_gemm_test
    kernels_grouped_test kernels_lstm_test kernels_missing_test kernels_norm_test kernels_optimizer_test
    kernels_pointwise_test kernels_rotary_test kernels_sample_test kernels_stream_test kernels_tails_test
    kernels_vocab_parts_test comm_allocation_test comm_comm_test tensor_allocation_test tensor_map_test
    tensor_pack_test tensor_part_test parallel_allocation_test parallel_layout_test parallel_rounds_test
    parallel_sharded_test parallel_sketch_test parallel_sync_test parallel_unit_slots_test
    model_allocation_test model_family_config_test model_family_test model_golden_test model_hook_test
    model_hub_models_test model_layers_test model_order_test model_recompute_test model_tensor_parallel_test
    model_text_ends_test model_tied_test model_units_test optim_allocation_test optim_schedule_test
    ckpt_allocation_test ckpt_checkpoint_test ckpt_exchange_test ckpt_flat_test ckpt_gguf_test
    ckpt_layout_test ckpt_model_test ckpt_safetensors_test pretrained_allocation_test train_allocation_test
    train_metrics_test train_opening_test train_steps_test train_trainer_test peft_allocation_test
    peft_backend_test peft_bytes_test peft_config_test peft_fp8_test peft_frozen_test
    peft_kept_test peft_merge_test peft_prefix_test peft_runners_test peft_serving_test peft_units_test
    infer_allocation_test infer_engine_test
    infer_family_adapters_test infer_graphs_test infer_greedy_test infer_likelihood_test infer_opening_test
    infer_sample_test infer_scale_test infer_scheduler_test infer_steps_test infer_window_test)

# What the stand-ins have freed counts as held while it lies in a thread's cache, so tests that count go without it.
set(cuda_lib ${CMAKE_CURRENT_BINARY_DIR}/cuda/lib)
foreach(name ${on_card})
    if(CAMBIUM_HAS_CUDA AND TARGET ${name})
        run_again(cuda_${name} ${name})
        test_needs(cuda_${name} cuda_libraries)
        set_tests_properties(cuda_${name} PROPERTIES LABELS cuda TIMEOUT 1800
            ENVIRONMENT "LD_LIBRARY_PATH=${cuda_lib};CAMBIUM_TEST_DEVICE=cuda;GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
    elseif(NOT CAMBIUM_HAS_CUDA)
        skipped_test(cuda_${name} "this build has no CUDA")
        set_tests_properties(cuda_${name} PROPERTIES LABELS cuda)
    endif()
endforeach()

# On the backend late: CAMBIUM_TEST_DEVICE=late, and the label late. Code that reads a result before it has waited, or
# hands over memory of the host, fails there without a GPU. Programs that open no device, or all of them by name, do not
# run again. The CPU's own kernels run their op cases only. The training layouts in one process do not run: their ranks
# spend minutes opening and closing their memory.
set(computes "^(kernels|comm|tensor|parallel|model|optim|ckpt|pretrained|train|peft|infer)_")
string(APPEND computes "|^commands_(pretrain|finetune|finetune_data|generate|score|adapter|model_ranks)_test$")
set(elsewhere "avx2|mpi|kernels_(promises|waits|event|stream|allocation)|train_(layout|events|bytes)|comm_watch")
string(APPEND elsewhere "|parallel_(schedule|site|phases)|infer_(writer|kv_pool|graphs|scheduler_random|scheduler_fairness)|ckpt_background")

# The stand-ins show the same, so where they run these tests, or commands_cuda_test has their promises, `tools/test --long`
# alone runs them on late (label late-by-hand). So it does with those that take longest there.
set(late_by_hand ${on_card} kernels_attention_test model_head_rows_test train_strategies_test infer_mixed_test
    peft_layout_test)
get_property(names DIRECTORY PROPERTY TESTS)
foreach(name ${names})
    if(name MATCHES "${computes}" AND NOT name MATCHES "${elsewhere}")
        if(CAMBIUM_HAS_CUDA AND (name MATCHES "^commands_" OR name IN_LIST late_by_hand))
            set_property(TEST ${name} APPEND PROPERTY LABELS late-by-hand)
        else()
            set_property(TEST ${name} APPEND PROPERTY LABELS late)
        endif()
    endif()
endforeach()
