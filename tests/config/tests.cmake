room_tests(config)
