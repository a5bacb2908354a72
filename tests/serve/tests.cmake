# What is behind the room's one door: driver and registry use the inside, and others the messages of services. The separate
# ones have their own functions in the place of the room's or the engine's.
room_tests(serve INSIDE driver jobs registry tinker tuning
    SEPARATE driver jobs grpc_allocation grpc_calls openai route tinker LINKS serve_messages)
wrap(serve_jobs_tests tuning_data_open tuning_data_close tuning_data_epoch tuning_data_length tuning_batch_view)
