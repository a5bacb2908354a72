room_tests(planner SEPARATE bytes order LINKS tiny_model)

wrap(planner_order_tests pipeline_run) # it records the steps of the executor
# It counts by part, and trains adapters.
wrap(planner_bytes_tests device_alloc device_alloc_zeroed device_free training_allocate param_store_open fp8_open
    rank_allocate_workspace pipeline_open train_load_base optimizer_open)
