room_tests(base)
