# durable replaces fsync.
room_tests(base SEPARATE durable)
