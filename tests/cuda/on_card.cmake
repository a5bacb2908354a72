# Tests of what computes, once more on the stand-ins for a card: cuda_NAME, with the label cuda. They are skipped by name
# where this build has no CUDA. .ci/run runs on the backend late what is not in this list: the other programs take too
# long on an interpreter, or need int8 weights, which the card lacks.
set(on_card
    kernels_adapter_test kernels_draw_test kernels_ends_test kernels_gemm_test kernels_grouped_test kernels_lstm_test
    kernels_norm_test kernels_optimizer_test kernels_pointwise_test kernels_rotary_test kernels_sample_test
    kernels_vocab_parts_test comm_comm_test tensor_allocation_test tensor_pack_test parallel_sketch_test
    parallel_sync_test model_golden_test model_layers_test model_units_test train_trainer_test)

# What the stand-ins have freed counts as held while it lies in a thread's cache, so tests that count go without it.
set(cuda_lib ${CMAKE_CURRENT_BINARY_DIR}/cuda/lib)
foreach(name ${on_card})
    if(CAMBIUM_HAS_CUDA AND TARGET ${name})
        add_test(NAME cuda_${name} COMMAND ${name})
        set_tests_properties(cuda_${name} PROPERTIES LABELS cuda TIMEOUT 1800
            ENVIRONMENT "LD_LIBRARY_PATH=${cuda_lib};CAMBIUM_TEST_DEVICE=cuda;GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
    elseif(NOT CAMBIUM_HAS_CUDA)
        add_test(NAME cuda_${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: cuda_${name}: this build has no CUDA")
        set_tests_properties(cuda_${name} PROPERTIES LABELS cuda SKIP_REGULAR_EXPRESSION "skipped: ")
    endif()
endforeach()
