room_tests(data)
