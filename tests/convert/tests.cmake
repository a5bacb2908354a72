room_tests(convert)
