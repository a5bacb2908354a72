room_tests(unicode)
