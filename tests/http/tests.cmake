room_tests(http)
