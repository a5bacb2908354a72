room_tests(grammar)
