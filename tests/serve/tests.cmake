# What is behind the room's one door: driver and registry use the inside, and others the messages of services. The separate
# ones have their own functions in the place of the room's or the engine's.
room_tests(serve INSIDE driver registry tinker SEPARATE driver grpc_allocation grpc_calls openai route tinker LINKS serve_messages)
