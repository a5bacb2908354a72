room_tests(infer INSIDE engine_plan opening SEPARATE engine_plan opening LINKS tiny_model peft_golden)

foreach(group engine_plan opening) # they count what is allocated
    wrap(infer_${group}_tests device_alloc device_alloc_zeroed device_free device_host_alloc device_host_free
        aligned_alloc calloc free kv_pool_open comm_subgroup model_open param_store_open peft_bank_allocate)
endforeach()
mpi_test(infer_mpi_mixed 2 infer_tests infer_mixed_test)
